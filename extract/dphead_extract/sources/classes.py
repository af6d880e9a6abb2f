"""Interpret declared classes, and each row's label, split and group.

Every format uses `interpreted`. Rows are private. Therefore classes are taken from rows
only if the user declares the names of their labels public. A row's split and group may
depend on that row only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unicodedata import normalize

import numpy as np

from dphead_extract.bounds import read_text
from dphead_extract.errors import ExtractError
from dphead_extract.features.rows import group_ids
from dphead_extract.items import check_exact, name_of, read_column, text_group
from dphead_extract.options import image_option

SPLITS = {
    "train": "train",
    "test": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}
_SPLIT_OF = SPLITS | {"0": "train", "1": "test", "2": "validation", "-1": "", "": ""}
_UNLABELED = "-1"  # many data sets mark a row without a class by this label
_MOST_CLASSES = 2**20  # largest `--classes N`; a choice, not measured
# zeros inside a number, as in 1.05, are not leading zeros
_LEADING_ZEROS = re.compile(r"(?<![0-9.])0+(?=[0-9])")
# the splits of a source with splits in its layout or header
_SPLIT_NAMES = ("train", "validation", "test", "none")


def class_names(text: str) -> list[str]:
    """Read the class names in "a,b,c", "10" ("0" to "9") or "@file" (one per line).

    Raises ExtractError if there is no name, if a name is empty or repeated, or if the
    file cannot be read.
    """
    if text.startswith("@"):
        names = _listed_names(Path(text[1:]))
    elif text.isascii() and text.strip().isdigit():
        names = _numbered(text.strip())
    else:
        names = text.split(",")
    names = [name_of(name) or "" for name in names]
    if not names or "" in names:
        raise ExtractError(
            f"--classes must have at least one class, and no empty name, got {text!r}."
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ExtractError(f"--classes must have each name once, got {twice!r} twice.")
    return names


@dataclass
class Classes:
    """Hold the declaration of the classes.

    Raises
    ------
    ExtractError
        If the classes are declared in two ways.
    """

    names: Annotated[
        list[str] | None,
        image_option(
            "Public class names, a file with one name per line, or a number of "
            "classes. With a number, labels are indices.",
            flags=("--classes",),
            read=class_names,
            metavar="A,B,C|N|@FILE",
        ),
    ] = None
    folder_names_public: Annotated[
        bool,
        image_option(
            "Declare the names of folders or labels public, and use them as classes.",
            flags=("--folder-names-are-public",),
        ),
    ] = False
    ignore_labels: Annotated[
        bool,
        image_option("Store no labels. The file then serves for prediction only."),
    ] = False
    allow_unlabeled: Annotated[
        bool,
        image_option(
            "Keep images with an undeclared label. These images have no class."
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.names is not None and self.folder_names_public:
            raise ExtractError(
                "--classes cannot be combined with --folder-names-are-public. Remove "
                "one of the two."
            )

    def encode(
        self, labels: Sequence[Any] | np.ndarray | None, n_rows: int
    ) -> tuple[np.ndarray, list[str] | None, str]:
        """Return class indices, class names, and how the classes were declared.

        The name of a label (`name_of`) selects the class: the number 2 is the class
        "2", not the third class. A missing label has no class, and -1 has none unless a
        class has this name. If no class is named, integer labels of an array are class
        indices; negative ones, and ones beyond int32, become -1.

        Parameters
        ----------
        labels : sequence, array or None
            Raw labels, one per row.
        n_rows : int
            Number of rows.

        Returns
        -------
        (n_rows,) int32
            Class indices; -1 for none.
        list of str or None
            The class names.
        str
            "classes-flag", "folder-names-flag" or "".

        Raises
        ------
        ExtractError
            If there are labels other than class indices but no declared classes, if
            `check_known` refuses a label, or if a class name is empty or equals another
            without the white space around it.
        """
        declared = "classes-flag" if self.names is not None else ""
        if labels is None or self.ignore_labels:
            return np.full(n_rows, -1, np.int32), self.names, declared
        whole = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu"
        if whole and self.names is None:
            codes = np.asarray(labels)
            known = (codes >= 0) & (codes <= np.iinfo(np.int32).max)
            return np.where(known, codes, -1).astype(np.int32), None, ""
        found, at = _named(labels)
        present, names = {name for name in found if name is not None}, self.names
        if names is None and self.folder_names_public:
            names, declared = sorted(present), "folder-names-flag"
        if names is None and present:
            raise ExtractError(
                "--classes is required because the source has labels. Type --classes "
                "A,B,C (names), --classes N (number of classes), --ignore-labels or, "
                "for image folders, --folder-names-are-public."
            )
        # ignore white space around a class name, as for a label
        index = {name_of(name): code for code, name in enumerate(names or [])}
        if None in index or len(index) != len(names or []):
            raise ExtractError(
                "The source's class names must be distinct without the white space "
                f"around them, and not empty, got {', '.join(map(repr, names or []))}. "
                "Rename the source's classes."
            )
        self.check_known({n for n in present if n not in index and n != _UNLABELED})
        codes = np.array([index.get(name, -1) for name in found], np.int32)
        return codes[at], names, declared

    def check_known(self, others: set[str]) -> None:
        """Raise ExtractError for undeclared labels, unless `allow_unlabeled` is set.

        Otherwise a spelling error would spend a budget on a useless head.
        """
        if not others or self.allow_unlabeled:
            return
        first = min(others)
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ExtractError(
            f"--classes lacks the label {first!r}{more}. Add the label, type --classes "
            "N if labels are numbers from 0, or type --allow-unlabeled to keep such "
            "rows without a class."
        )


def _numbered(count: str) -> list[str]:
    """Return the names "0", "1", ... of `count` classes."""
    # check the length first, because int() refuses thousands of digits
    if len(count) > len(str(_MOST_CLASSES)) or int(count) > _MOST_CLASSES:
        raise ExtractError(
            f"--classes N must be at most {_MOST_CLASSES}, got {count[:20]}."
        )
    return [str(i) for i in range(int(count))]


def _listed_names(path: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ExtractError(
            "--classes @FILE needs a UTF-8 file with one name per line. Reading "
            f"{str(path)!r} failed: {error}."
        ) from error
    return [line.strip() for line in lines if line.strip()]


def possible_splits(declared: bool) -> list[str]:
    """Return the public splits of a source, whatever its rows are.

    All of _SPLIT_NAMES if the source is declared to have splits, else only "all".
    """
    return list(_SPLIT_NAMES) if declared else ["all"]


def split_doubts(counts: Mapping[str, int]) -> list[str]:
    """Return at most one private warning: rows whose folder or file names no split.

    `counts` has the number of rows of each such folder or file.
    """
    if not counts:
        return []
    some = ", ".join(f"{name!r}: {count}" for name, count in [*counts.items()][:4])
    more = ", ..." if len(counts) > 4 else ""
    return [
        "rows in no split, because their folder or file is not named "
        f"{', '.join(sorted(SPLITS))}: {sum(counts.values())} ({some}{more})"
    ]


def _split_codes(
    values: Sequence[Any] | np.ndarray | None, n_rows: int, names: Sequence[str]
) -> np.ndarray:
    """Return each row's index in the public split names, uint8 (n_rows,).

    The index depends only on the row's own value: a string, or 0, 1 and 2 for train,
    test and validation, or -1 for none. The last name means a row without a split.
    Raises ExtractError for other values, and for booleans: True could mean training or
    test rows.
    """
    without = len(names) - 1
    if values is None:
        return np.full(n_rows, without, np.uint8)
    array = read_column(values)
    found, at = _named(array)
    said = ["" if name is None else name.lower() for name in found]
    booleans = (item for item in array.tolist() if type(item) in (bool, np.bool_))
    unknown = sorted({str(item) for item in booleans})
    unknown += sorted({text for text in said if text not in _SPLIT_OF})
    if unknown:
        raise ExtractError(
            f"A split must be one of {', '.join(sorted(SPLITS))}, got {unknown[0]!r}. "
            "Write these names into the source, such as `np.where(is_train, 'train', "
            "'test')`."
        )
    codes = {name: code for code, name in enumerate(names)}
    of_names = [codes.get(_SPLIT_OF[text], without) for text in said]
    return np.array(of_names, np.uint8)[at]


@dataclass
class Roles:
    """Hold the labels, splits and groups of rows.

    Attributes
    ----------
    split : (n,) uint8
        Indices into `split_names`.
    split_names : list of str
        Names of the splits.
    labels : (n,) int32
        Class indices; -1 for none, or for a label outside the classes.
    class_names : list of str or None
        The public classes.
    classes_declared : str
        How the classes were declared.
    group : (n,) int64 or None
        Group ids.
    """

    split: np.ndarray
    split_names: list[str]
    labels: np.ndarray
    class_names: list[str] | None = None
    classes_declared: str = ""
    group: np.ndarray | None = None


def interpreted(
    columns: Mapping[str, Any],
    n_rows: int,
    classes: Classes,
    split_names: list[str],
    wanted: str = "all",
) -> tuple[np.ndarray, Roles]:
    """Return the rows of the wanted split, with their classes, splits and groups.

    All formats with columns use this function.

    Parameters
    ----------
    columns : mapping
        The existing columns, by role: "label", "split", "group".
    n_rows : int
        Number of rows.
    classes : Classes
        How the classes are declared.
    split_names : list of str
        The public split names.
    wanted : str, default "all"
        One split name, or "all".

    Returns
    -------
    (k,) int
        Indices of the rows that are kept.
    Roles
        The classes, splits and groups of these rows.

    Raises
    ------
    ExtractError, FormatError
        If the source lacks the wanted split, or a label, split or group is invalid.
    """
    rows, kept = np.arange(n_rows), dict(columns)
    split = _split_codes(columns.get("split"), n_rows, split_names)
    if wanted != "all":
        if split_names == ["all"]:
            raise ExtractError(
                f"--split {wanted} needs a source with splits. Type --columns "
                "split=NAME for a table with a column of splits, or --split all."
            )
        if wanted not in split_names:
            raise ExtractError(
                f"--split must be one of all, {', '.join(split_names)}, got {wanted!r}."
            )
        rows = np.flatnonzero(split == split_names.index(wanted))
        kept = {role: _at(values, rows) for role, values in columns.items()}
        split, split_names = np.zeros(len(rows), np.uint8), [wanted]
    encoded = classes.encode(kept.get("label"), len(rows))
    group = None
    if "group" in kept:
        check_exact(kept["group"])
        group = group_ids(kept["group"], len(rows))
    return rows, Roles(split, split_names, *encoded, group)


def alike_groups(names: Iterable[str]) -> list[str]:
    """Return a private warning about ids that differ only by case or leading zeros.

    For example, a spreadsheet turns 007 into 7, which then counts as another person.
    """
    alike: dict[str, set[str]] = {}
    for name in names:
        folded = normalize("NFKC", name).casefold()
        alike.setdefault(_LEADING_ZEROS.sub("", folded), set()).add(name)
    found = sorted(
        sorted(same) for same in alike.values() if len({*map(text_group, same)}) > 1
    )
    if not found:
        return []
    some = "; ".join(" and ".join(map(repr, same[:3])) for same in found[:3])
    more = "; ..." if len(found) > 3 else ""
    return [
        "ids that differ only by case or leading zeros are different groups: "
        f"{len(found)} ({some}{more})"
    ]


def _at(values: Any, rows: np.ndarray) -> Any:
    """Return some items of an array, or of a list without changing their types."""
    if isinstance(values, np.ndarray):
        return values[rows]
    return [values[row] for row in rows]


def _named(values: Sequence[Any] | np.ndarray) -> tuple[list[str | None], np.ndarray]:
    """Return the distinct names of labels or splits, and each row's index in them.

    Raises
    ------
    ExtractError
        For an array of fractions, dates or complex numbers.
    """
    array = read_column(values)
    if array.dtype.kind not in "OSUiub":
        raise ExtractError(
            f"Labels and splits must be texts or integers, got {array.dtype}. Use "
            "`values.astype(int)`."
        )
    each = [name_of(item) for item in array.tolist()]
    places = {name: place for place, name in enumerate(dict.fromkeys(each))}
    return list(places), np.array([places[name] for name in each], np.intp)
