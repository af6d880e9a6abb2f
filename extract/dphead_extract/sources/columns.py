"""Find the columns of a table that hold an image's path, label, group and split.

The role of a column is declared, or follows from its name in the file's header. No row
may decide the role.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from dphead_extract.errors import ExtractError
from dphead_extract.options import image_option

ROLES = ("label", "group", "split")
_NAMED = ("path", "image", *ROLES)
_ENCODINGS = ("utf-8", "windows-1252", "latin-1")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Declare which columns, or arrays of an .npz, have which role.

    Attributes
    ----------
    features : tuple of str
        Columns of embeddings: names, or patterns such as "emb_*". Default: all columns
        of a table without another role, or the array "features".
    path, image : str or None
        Column with the paths of image files, and column with the bytes of images.
    label, group, split : str or None
        Default: the column of that name or of its plural, if the file has one.
    width : int or None
        Number of features per row, if `features` is a column of lists and its type does
        not give this number.
    encoding : str
        Encoding of a CSV or TSV file.
    """

    features: tuple[str, ...] = ()
    path: str | None = None
    image: str | None = None
    label: str | None = None
    group: str | None = None
    split: str | None = None
    width: int | None = None
    encoding: str = "utf-8"

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Read texts such as "label=finding,features=a,b".

        After a feature, a name without a role is a further feature. Raises ExtractError
        if a text is invalid.
        """
        found: dict[str, Any] = {"features": ()}
        wrong = False
        for part in ",".join(texts).split(",") if texts else ():
            role, given, name = part.strip().rpartition("=")
            role = role or ("" if given or not found["features"] else "features")
            wrong |= not name or role not in (*_NAMED, "features", "width", "encoding")
            found[role] = (*found["features"], name) if role == "features" else name
        width = found.pop("width", None)
        wrong |= not str(width or 1).isdecimal() or width == "0"
        wrong |= found.get("encoding", "utf-8") not in _ENCODINGS
        if wrong:
            raise ExtractError(
                f"write ROLE=NAME,... with the roles {', '.join(_NAMED)} and features, "
                f"width=N, or encoding={'|'.join(_ENCODINGS)}, got {','.join(texts)!r}."
            )
        return cls(**found, width=None if width is None else int(width))

    @property
    def declared(self) -> dict[str, str]:
        """Return the declared names of columns by role."""
        return {role: name for role in _NAMED if (name := getattr(self, role))}

    def roles(self, names: Sequence[str], path: Path) -> dict[str, str]:
        """Return the columns of labels, groups and splits that the file has, by role.

        Raises ExtractError if a declared column is missing. Also if no column is
        declared for a role, and several columns have its name or its plural, or the
        name of such a column has upper-case letters or spaces.
        """
        found = {role: self.declared[role] for role in ROLES if role in self.declared}
        check_columns([*found.values()], names, path)
        for role in ROLES:
            alike = [name for name in names if _is_called(name, role)]
            if role in found or not alike:
                continue
            if alike not in ([role], [f"{role}s"]):
                raise ExtractError(
                    f"--columns {role}=NAME is required, because {str(path)!r} has "
                    f"no single column {role!r} or {role + 's'!r}, but "
                    f"{', '.join(map(repr, alike))}. Type --columns {role}={alike[0]}, "
                    "or the name of another column."
                )
            found[role] = alike[0]
        return found

    def of_features(self, names: Sequence[str], path: Path) -> list[str]:
        """Return the columns of features, in the order of the names or patterns.

        Columns that match one pattern are in the file's order.

        Raises ExtractError if a named column is missing. Also if no feature is named
        and a column is likely not a feature: a label, group or split under a different
        name, or the index of a data frame.
        """
        roles = self.roles(names, path).values()
        rest = [name for name in names if name not in roles]
        exact = [pattern for pattern in self.features if not set("*?[") & set(pattern)]
        check_columns(exact, rest, path)
        for name in [] if self.features else rest:
            is_index = name.startswith(("__index_level_", "Unnamed: "))
            is_role = any(_is_called(name, role) for role in ROLES)
            if not name or is_index or is_role:
                raise ExtractError(
                    f"--columns features=A,B,... is required for {str(path)!r}, "
                    f"because its column {name!r} is likely an index, a label, a "
                    "group or a split. Name the features."
                )
        patterns = self.features or ("*",)
        return list(
            dict.fromkeys(
                name
                for pattern in patterns
                for name in ([pattern] if pattern in rest else rest)
                if name == pattern or fnmatchcase(name, pattern)
            )
        )


COLUMNS = image_option(
    "Names of the columns that hold path or image, label, group, split and features "
    "(of embeddings), such as label=finding,features=emb_*. Default: columns with the "
    "names of these roles; all other columns are features. encoding=windows-1252: "
    "encoding of a CSV or TSV file, as Excel often writes it. width=N: length of the "
    "lists in a column of features, if the file does not give it.",
    flags=("--columns",),
    read=Columns.parse,
    repeated=True,
    metavar="ROLE=NAME,...",
)


def _is_called(name: str, role: str) -> bool:
    """Return whether a column has a role's name or its plural, in any case."""
    return name.strip().lower() in (role, f"{role}s")


def check_columns(
    wanted: Sequence[str], names: Sequence[str], path: Path, option: str = "--columns"
) -> None:
    """Raise ExtractError unless the file has these columns, each once.

    `option` names them.
    """
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise ExtractError(
            f"{str(path)!r} has two columns {twice!r}. Rename the second column."
        )
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ExtractError(
            f"{str(path)!r} has no column {missing[0]!r}. Name one of its columns in "
            f"{option}: {', '.join(names[:8])}{', ...' * (len(names) > 8)}."
        )
