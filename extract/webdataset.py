"""Images in WebDataset's tar archives: members of one key are one sample.

Archives are read in place, none may be unpacked; what a sample says is read from its
own members alone.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.bounds import check_ends
from extract.classes import Classes
from extract.errors import ExtractError
from extract.image_source import Source
from extract.listing import (
    SUFFIXES,
    Row,
    check_member,
    files_below,
    limited,
    listed,
    read_limited,
)
from extract.tables import ROLES, Columns, is_called

MAX_TEXT_BYTES = 1 << 20  # of a .cls or .json member; chosen, not measured


@dataclass
class Sample:
    """What was found under one key: an image's member and its bytes, the text of .cls,
    the fields of .json, and whether there is a .json without any.
    """

    image: str | None = None
    size: int = -1
    label: str = ""
    fields: dict[str, Any] | None = None
    is_unread: bool = False


def open_samples(path: Path, classes: Classes, split: str, columns: Columns) -> Source:
    """A Source of the samples of a .tar, or of all that lie in a folder, by name.

    Rows are in the archives' order; a sample without an image is an unreadable row. Its
    label is the text of .cls, a class's name. columns: which fields of .json are label,
    group and split; those that are not named are not looked at. Where a group is, a
    sample whose .json cannot be read has no class: it may be anybody's. Raises
    ExtractError for two images of one key, for a field that no sample has, and for what
    `listing` refuses.
    """
    tars = sorted(path.glob("*.tar*")) if path.is_dir() else [path]
    if not tars:
        raise ExtractError(
            f"a folder of WebDataset archives must hold .tar files, got none in "
            f"{str(path)!r}. Check the path."
        )
    named = {role: getattr(columns, role) for role in ROLES}
    fields = {role: name for role, name in named.items() if name is not None}
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
                left_out[f"{role}s in .json: name them by --column {role}="] += unused
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
                f"the field of a {role} must be in some sample's .json, got {field!r} "
                f"in none of {str(path)!r}. Correct its name."
            )
    reader = _Members()
    source = listed(
        "webdataset",
        path,
        rows,
        lambda name: reader.read(*images[name]),
        classes,
        split,
        splits="split" in fields,
        grouped="group" in fields,
    )
    return replace(source, left_out=source.left_out + left_out)


def _n_others(path: Path, tars: Sequence[Path]) -> int:
    """Return how many files below a folder are not the given archives."""
    return len(set(files_below(path)) - set(tars)) if path.is_dir() else 0


def _samples(path: Path, left_out: Counter[str]) -> dict[str, Sample]:
    """Samples of an archive by key, in its order; counts what is part of none."""
    found: dict[str, Sample] = {}
    check_ends(path)
    try:
        with tarfile.open(path) as archive:
            for info in archive:
                check_member(
                    info.name, info.issym() or info.islnk() or info.isdev(), path
                )
                folder, _, base = info.name.removeprefix("./").rpartition("/")
                stem, _, ending = base.partition(".")
                if info.isfile() and stem:
                    sample = found.setdefault(f"{folder}/{stem}".lstrip("/"), Sample())
                    if not _take(sample, ending.lower(), archive, info, path):
                        left_out[f"members of other kinds (.{ending.lower()})"] += 1
                elif info.isfile():
                    left_out["hidden members"] += 1
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ExtractError(
            f"an archive must be complete, got file={str(path)!r} damaged. Copy or "
            "pack it again."
        ) from error
    return found


def _take(
    sample: Sample, ending: str, archive: tarfile.TarFile, info: Any, path: Path
) -> bool:
    """Note one member of a sample and return whether it is of a known kind.

    Raises ExtractError for a second member of one kind.
    """
    if f".{ending}" in SUFFIXES:
        twice = sample.image is not None
        sample.image, sample.size = info.name, limited(info.name, info.size, path)
    elif ending == "cls":
        twice = bool(sample.label)
        sample.label = _text(archive, info, path).strip()
    elif ending == "json":
        twice = sample.fields is not None
        parsed = _parsed(_text(archive, info, path))
        sample.fields, sample.is_unread = parsed or {}, parsed is None
    else:
        return False
    if twice:
        raise ExtractError(
            "a sample must have one image, one .cls and one .json at most, got a "
            f"second {info.name!r} in {str(path)!r}. Pack the samples again."
        )
    return True


def _text(archive: tarfile.TarFile, info: Any, path: Path) -> str:
    if info.size > MAX_TEXT_BYTES:
        raise ExtractError(
            f"a .cls or .json member must have at most {MAX_TEXT_BYTES} bytes, got "
            f"bytes={info.size} in {str(path)!r}. Pack the samples again."
        )
    file = archive.extractfile(info)
    return "" if file is None else file.read().decode("utf-8-sig", "surrogateescape")


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Members:
    """Bytes of members, quick in the archives' order: one archive is open at a time."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._archive: tarfile.TarFile | None = None

    def read(self, path: Path, member: str | None) -> bytes:
        if member is None:
            raise FileNotFoundError("the sample has no image")
        if path != self._path or self._archive is None:
            if self._archive is not None:
                self._archive.close()
            self._path, self._archive = path, tarfile.open(path)  # noqa: SIM115
        file = self._archive.extractfile(member)
        return b"" if file is None else read_limited(file.read)
