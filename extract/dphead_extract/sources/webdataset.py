"""Read images in WebDataset's tar archives: members of one key are one sample.

Archives are read in place; none may be unpacked. The facts about a sample come only
from its own members.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dphead_extract.errors import ExtractError
from dphead_extract.sources.archives import Archive
from dphead_extract.sources.columns import ROLES, is_called
from dphead_extract.sources.image import Source, SourceOptions
from dphead_extract.sources.listing import SUFFIXES, Row, files_below, list_rows

_MAX_TEXT_BYTES = 1 << 20  # of a .cls or .json member; a choice, not measured


@dataclass
class _Sample:
    """Hold the members of one sample key.

    Attributes
    ----------
    image, size : member or None, and int
        The image's member and its bytes.
    label : str
        The text of .cls.
    fields : dict or None
        The fields of .json; None without .json.
    is_unread : bool
        Whether there is a .json that cannot be read.
    """

    image: Any = None
    size: int = -1
    label: str = ""
    fields: dict[str, Any] | None = None
    is_unread: bool = False


def open_samples(path: Path, declared: SourceOptions) -> Source:
    """Return a Source of the samples of a .tar, or of all .tar files in a folder.

    Parameters
    ----------
    path : Path
        The archive, or the folder with archives, which are read by name.
    declared : SourceOptions
        Its columns are the fields of .json that are label, group and split. Other
        fields have no meaning. Other fields with the name of a role are counted as left
        out.

    Returns
    -------
    Source
        The rows, in the archives' order. A sample without an image is an unreadable
        row.

    Raises
    ------
    ExtractError
        For two images of one key, a field that no sample has, or what `listing`
        refuses.

    Notes
    -----
    The label of a sample is the text of .cls, the name of a class. If a group is named,
    a sample with an unreadable .json has no class, because its person is unknown.
    """
    tars = sorted(path.glob("*.tar*")) if path.is_dir() else [path]
    if not tars:
        raise ExtractError(f"{str(path)!r} has no .tar file.")
    fields = declared.columns.declared
    rows: list[Row] = []
    images = {}
    present: set[str] = set()
    left_out = Counter({"files that are no archives": _n_others(path, tars)})
    for tar in tars:
        for key, sample in _samples(tar, left_out).items():
            name = f"{tar.name}:{key}"
            values = sample.fields or {}
            present.update(values)
            for role in (role for role in ROLES if role not in fields):
                unused = sum(is_called(field, role) for field in values)
                left_out[f"{role}s in .json: name them by --columns {role}="] += unused
            said = {role: values.get(field) for role, field in fields.items()}
            label = said.get("label", sample.label)
            if "group" in fields and sample.is_unread:
                label = None
            others = (said.get("split"), said.get("group"))
            rows.append((name, sample.size, label, *others))
            images[name] = (tar, sample.image)
    for role, field in fields.items():
        if field not in present:
            raise ExtractError(
                f"--columns {role}={field} names a field that no .json of "
                f"{str(path)!r} has. Type the name of a field in the samples' "
                ".json."
            )
    reader = _Members()
    source = list_rows(
        "webdataset",
        path,
        rows,
        lambda name: reader.read(*images[name]),
        declared,
        splits="split" in fields,
        grouped="group" in fields,
    )
    return replace(source, left_out=source.left_out + left_out)


def _n_others(path: Path, tars: Sequence[Path]) -> int:
    """Return how many files below a folder are not the given archives."""
    return len(set(files_below(path)) - set(tars)) if path.is_dir() else 0


def _samples(path: Path, left_out: Counter[str]) -> dict[str, _Sample]:
    """Return the samples of an archive by key, in its order.

    `left_out` counts the members that belong to none.
    """
    found: dict[str, _Sample] = {}
    archive = Archive(path)
    for name, size, member in archive.files():
        folder, _, base = name.rpartition("/")
        stem, _, ending = base.partition(".")
        ending = ending.lower()
        if not stem:
            left_out["hidden members"] += 1
            continue
        sample = found.setdefault(f"{folder}/{stem}".lstrip("/"), _Sample())
        if f".{ending}" in SUFFIXES:
            is_new = sample.image is None
            sample.image, sample.size = member, archive.check_size(size)
        elif ending == "cls":
            is_new = not sample.label
            sample.label = _text(archive, size, member).strip()
        elif ending == "json":
            is_new = sample.fields is None
            parsed = _parsed(_text(archive, size, member))
            sample.fields, sample.is_unread = parsed or {}, parsed is None
        else:
            is_new = True
            left_out[f"members of other kinds (.{ending})"] += 1
        if not is_new:
            raise ExtractError(
                f"{str(path)!r} has a second image, .cls or .json of one sample: "
                f"{name!r}. Keep one for each key."
            )
    archive.close()
    return found


def _text(archive: Archive, size: int, member: Any) -> str:
    archive.check_size(size, _MAX_TEXT_BYTES)
    return archive.read(member).decode("utf-8-sig", "surrogateescape")


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Members:
    """Read the bytes of a member, with one archive open at a time.

    Reading is fast in the order of the members.
    """

    def __init__(self) -> None:
        self._archive: Archive | None = None

    def read(self, path: Path, member: Any) -> bytes:
        """Return the bytes of a member.

        Raises FileNotFoundError if the sample has no image.
        """
        if member is None:
            raise FileNotFoundError("the sample has no image")
        if self._archive is None or self._archive.path != path:
            if self._archive is not None:
                self._archive.close()
            self._archive = Archive(path)
        return self._archive.read(member)
