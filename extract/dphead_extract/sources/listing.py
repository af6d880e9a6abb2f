"""List sources of image files: folders, manifests, zip and tar archives.

Archives are read in place; none may be unpacked.
"""

from __future__ import annotations

import csv
import hashlib
import os
import stat
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from dphead_extract.bounds import is_plain, lines, undecoded_line
from dphead_extract.errors import ExtractError
from dphead_extract.sources.classes import (
    SPLITS,
    Classes,
    check_found,
    interpreted,
    possible_splits,
    split_codes,
)
from dphead_extract.sources.image import Source
from dphead_extract.sources.layout import EXAMPLES, Layout
from dphead_extract.sources.tables import check_columns

# endings of common image formats that Pillow decodes
SUFFIXES = (
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".jif"),
    *(".bmp", ".dib", ".gif", ".tif", ".tiff", ".webp", ".avif", ".avifs"),
    *(".pbm", ".pgm", ".pnm", ".ppm", ".jp2", ".j2k", ".jpx", ".tga"),
)
MAX_FILE_BYTES = 256 << 20  # of one stored image; a choice, not measured
# name, bytes, label, split and group of an image; None for what the source does not say
Row = tuple[str, int, Any, Any, Any]


def _why_left_out(name: str) -> str:
    """Return the reason why a file is no row; "" for an image."""
    path = PurePosixPath(name)
    if any(part.startswith(".") or part == "__MACOSX" for part in path.parts):
        return "hidden files"
    if path.suffix.lower() not in SUFFIXES:
        return f"files without an image's ending ({path.suffix.lower() or 'none'})"
    return ""


def listed(
    kind: str,
    path: Path,
    rows: list[Row],
    read: Callable[[str], bytes],
    classes: Classes,
    split: str,
    *,
    splits: bool,
    grouped: bool = False,
) -> Source:
    """Return a Source of the rows of the wanted split.

    Parameters
    ----------
    kind : str
        The kind of source.
    path : Path
        The source.
    rows : list of Row
        All its rows, in their fixed order.
    read : callable
        Returns the bytes of an image by its name.
    classes : Classes
        How the classes are declared.
    split : str
        The wanted split, or "all".
    splits, grouped : bool
        Whether the source has splits and groups.

    Returns
    -------
    Source
        The rows.

    Raises
    ------
    ExtractError
        If the source has no such split, or no image of it.
    """
    n_listed = len(rows)
    names = possible_splits(splits)
    check_found(split, names, path)
    if split != "all":
        codes = split_codes([row[3] for row in rows], len(rows), names)
        rows = [
            row for row, code in zip(rows, codes, strict=True) if names[code] == split
        ]
    if not rows:
        raise ExtractError(
            f"a source must hold at least one image, got images=0 in {str(path)!r} "
            f"with {split=}. Check the path and the layout."
        )
    columns = {"label": [row[2] for row in rows]}
    if split == "all":
        columns["split"] = [row[3] for row in rows]
    else:
        names = [split]
    if grouped:
        columns["group"] = [row[4] for row in rows]
    said = interpreted(columns, len(rows), classes, names)
    files = [row[0] for row in rows]
    digest = hashlib.sha256(repr((kind, rows)).encode("utf-8", "surrogateescape"))
    return Source(
        kind=kind,
        labels=said.labels,
        split=said.split,
        split_names=names,
        digest=digest.hexdigest(),
        names=files,
        group=said.group,
        class_names=said.class_names,
        classes_declared=said.declared,
        read=lambda row: read(files[row]),
        left_out=Counter({"rows of other splits": n_listed - len(rows)}),
    )


def _laid_out(
    kind: str,
    path: Path,
    members: list[tuple[str, int]],
    read: Callable[[str], bytes],
    classes: Classes,
    split: str,
    declared: str | None,
    left_out: Counter[str],
) -> Source:
    """Return a Source from (path, bytes) of files, each path read alone.

    `declared` is the layout, or None for the usual one.
    """
    layout = Layout.parse(declared, split)
    if split != "all" and not layout.has_splits:
        raise ExtractError(
            f"a split of image files needs a layout that names it, got {split=}, "
            f"layout={str(layout)!r}. Say which folder is the split by --layout "
            f"({EXAMPLES}), or leave --split out."
        )
    rows = [(name, size, *layout.read(name), "") for name, size in members]
    # labels are checked below, after the layout
    anything = replace(classes, allow_unlabelled=True)
    source = listed(kind, path, rows, read, anything, split, splits=layout.has_splits)
    source = replace(source, layout=str(layout), left_out=source.left_out + left_out)
    _check_found_classes(source, classes, declared)
    others = [
        layout.read(name)[0]
        for name, label in zip(source.names, source.labels, strict=True)
        if label < 0
    ]
    if source.class_names is not None and not classes.ignore_labels:
        classes.check_known({label for label in others if label})
    return source


def _check_found_classes(
    source: Source, classes: Classes, declared: str | None
) -> None:
    """Raise ExtractError if the layout is plainly another one.

    It only refuses: it never decides how a path is read.
    """
    names = source.class_names or []
    splits = [name for name in names if name.lower() in SPLITS]
    if classes.folder_names_public and declared is None and splits:
        raise ExtractError(
            "folders with the names of splits must be declared as splits or as "
            f"classes, got classes={names[:8]}. Pass --layout split/class, or --layout "
            "class."
        )
    if names and not classes.ignore_labels and not (source.labels >= 0).any():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise ExtractError(
            f"one image at least must lie in the folder of a class ({some}), got none "
            f"under layout={source.layout!r}, the first at {source.names[0]!r}. Give "
            "the folders' names by --classes, or declare what the folders are by "
            f"--layout ({EXAMPLES}); images without classes need --ignore-labels."
        )


def open_folder(path: Path, classes: Classes, split: str, layout: str | None) -> Source:
    """Return a Source of the images below a folder, sorted by path."""
    found: list[tuple[str, int]] = []
    left_out: Counter[str] = Counter()
    for file in files_below(path):
        name = file.relative_to(path).as_posix()
        if reason := _why_left_out(name):
            left_out[reason] += 1
        else:
            found.append((name, _size(file)))
    found.sort(key=lambda item: os.fsencode(item[0]))
    return _laid_out(
        "folder",
        path,
        found,
        lambda name: (path / name).read_bytes(),
        classes,
        split,
        layout,
        left_out,
    )


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, also through links to other folders.

    Raises
    ------
    ExtractError
        If a folder cannot be read, or a link leads back to a folder on the way to it:
        the files below it would have no end.
    """
    for inner, folders, files in os.walk(folder, onerror=_unreadable, followlinks=True):
        for link in (Path(inner) / name for name in folders):
            if link.is_symlink():
                _check_link(link, folder)
        yield from (Path(inner) / name for name in files)


def _check_link(link: Path, root: Path) -> None:
    """Raise ExtractError if a link leads back to a folder between root and it."""
    target = link.resolve()
    above = link.parents[: len(link.relative_to(root).parts)]
    if target in {folder.resolve() for folder in above}:
        raise ExtractError(
            f"a linked folder must not hold its own link, got {str(link)!r} that leads "
            f"back to {str(target)!r}. Remove the link."
        )


def _unreadable(error: OSError) -> None:
    """Raise ExtractError for a folder that cannot be listed.

    Its rows would otherwise be missing without notice.
    """
    raise ExtractError(
        f"every folder of a source must be readable, got {error.filename!r} "
        f"({error.strerror}). Give yourself the right to read it, or move it away."
    ) from error


def _size(file: Path) -> int:
    """Return the bytes of a file, or -1 if it does not exist.

    Raises ExtractError if it is not a plain file: reading it could wait for ever.
    """
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return -1
    if not stat.S_ISREG(found.st_mode):
        raise ExtractError(
            f"images must be plain files, got {str(file)!r} that is none. Move it away."
        )
    return found.st_size


def open_manifest(path: Path, classes: Classes, split: str) -> Source | None:
    """Return a Source of a CSV file, or None if this is not a .csv.

    Its header names the columns path, label and optionally split, group. Paths are
    relative to the CSV file.

    Raises
    ------
    ExtractError
        If the file is not CSV in UTF-8, or a column or a line is wrong.
    """
    if path.suffix.lower() != ".csv":
        return None
    try:
        if not is_plain(path):
            raise OSError("no plain file")
        with path.open(newline="", encoding="utf-8-sig") as file:
            # strict: a quote that is not closed is an error
            reader = csv.DictReader(lines(file), strict=True)
            header = [str(name).strip() for name in reader.fieldnames or []]
            reader.fieldnames = header
            records = [(reader.line_num, record) for record in reader]
    except (OSError, ValueError, csv.Error) as error:
        undecoded = isinstance(error, UnicodeDecodeError)
        where = f", line={undecoded_line(path)}" if undecoded else ""
        raise ExtractError(
            f"a manifest must be a CSV file in UTF-8, got file={str(path)!r}{where} "
            f"({error}). Save it again."
        ) from error
    unknown = sorted(set(header) - {"path", "label", "split", "group"})
    if "path" not in header or unknown:
        raise ExtractError(
            "a manifest must have the columns path, label and optionally split, "
            f"group, got columns={header}. Rename them."
        )
    check_columns([], header, path)
    root, rows = path.parent, []
    for line, record in records:
        values = {
            key: (record.get(key) or "").strip()
            for key in ("path", "label", "split", "group")
        }
        # a quote that only a later line closes would swallow the lines between
        if (
            not values["path"]
            or None in record
            or None in record.values()
            or any({"\n", "\r"} & set(v) for v in values.values())
        ):
            raise ExtractError(
                "each line of a manifest must name an image and have as many cells as "
                f"its header, got line={line}. Correct that line."
            )
        file = root / values["path"]
        size = file.stat().st_size if is_plain(file) else -1
        rows.append(
            (values["path"], size, values["label"], values["split"], values["group"])
        )
    return listed(
        "manifest",
        path,
        rows,
        lambda name: (root / name).read_bytes(),
        classes,
        split,
        splits="split" in header,
        grouped="group" in header,
    )


def check_member(name: str, link: bool, archive: Path) -> None:
    """Raise ExtractError for a member that could reach outside the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if (
        link
        or path.is_absolute()
        or ".." in path.parts
        or (path.parts and path.parts[0].endswith(":"))
    ):
        what = "a link" if link else "a path outside the archive"
        raise ExtractError(
            f"archive members must be plain files below the archive's root, got {what} "
            f"in {str(archive)!r}. Pack the images again."
        )


def _check_new(name: str, index: Collection[str], archive: Path) -> None:
    """Raise ExtractError for a second member of one name.

    It would replace the first one, and one image would decide another's row.
    """
    if name in index:
        raise ExtractError(
            f"the members of an archive must have names of their own, got {name!r} "
            f"twice in {str(archive)!r}. Pack the images again."
        )


def limited(name: str, size: int, archive: Path) -> int:
    """Return `size`, or raise ExtractError if it is above MAX_FILE_BYTES."""
    if size > MAX_FILE_BYTES:
        raise ExtractError(
            f"an image file must have at most {MAX_FILE_BYTES} bytes, got bytes={size} "
            f"in {str(archive)!r}. Remove it from the archive."
        )
    return size


def open_archive(
    path: Path, classes: Classes, split: str, layout: str | None
) -> Source | None:
    """Return a Source of a zip or tar, or None if this is neither.

    The rows of a zip are sorted by path. Those of a tar have its own order: in a
    compressed tar any other order is slow.

    Raises
    ------
    ExtractError
        If the archive is damaged or unsafe.
    """
    if not path.is_file():
        return None
    damaged = ExtractError(
        f"an archive must be complete, got file={str(path)!r} damaged. Copy or pack it "
        "again."
    )
    try:
        found = _archive_kind(path)
        if found is None:
            return None
        opened = _open_zip(path) if found == "zip" else _open_tar(path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise damaged from error
    members, read, left_out = opened
    return _laid_out(found, path, members, read, classes, split, layout, left_out)


def _archive_kind(path: Path) -> str | None:
    """Return "zip", "tar" or None, by the file's name, else by its first bytes.

    The members never decide it: an image with bytes that end like a zip's would turn a
    tar into another archive.
    """
    name = path.name.lower()
    if name.endswith(".zip"):
        return "zip"
    if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")):
        return "tar"
    with path.open("rb") as file:
        first = file.read(512)
        if first[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            return "zip"
        if not any(first):  # xz would skip zeros up to the end of the file
            return None
    return "tar" if tarfile.is_tarfile(path) else None


# (name, bytes) of each image, a function that reads one by name, and what is left out
_Archive = tuple[list[tuple[str, int]], Callable[[str], bytes], Counter[str]]


def _open_zip(path: Path) -> _Archive:
    archive = zipfile.ZipFile(path)
    lock = threading.Lock()
    index: dict[str, zipfile.ZipInfo] = {}
    left_out: Counter[str] = Counter()
    for info in archive.infolist():
        check_member(info.filename, stat.S_ISLNK(info.external_attr >> 16), path)
        name = info.filename.removeprefix("./")
        if info.is_dir():
            continue
        if reason := _why_left_out(name):
            left_out[reason] += 1
            continue
        _check_new(name, index, path)
        index[name] = info

    def read(name: str) -> bytes:
        with lock, archive.open(index[name]) as file:
            return read_limited(file.read)

    images = []
    for name, info in index.items():
        images.append((name, limited(name, info.file_size, path)))
    return sorted(images), read, left_out


def _open_tar(path: Path) -> _Archive:
    archive = tarfile.open(path)  # noqa: SIM115  (open as long as the source)
    lock = threading.Lock()
    index: dict[str, tarfile.TarInfo] = {}
    left_out: Counter[str] = Counter()
    for info in archive:
        check_member(info.name, info.issym() or info.islnk() or info.isdev(), path)
        name = info.name.removeprefix("./")
        if not info.isfile():
            continue
        if reason := _why_left_out(name):
            left_out[reason] += 1
            continue
        _check_new(name, index, path)
        index[name] = info

    def read(name: str) -> bytes:
        with lock:
            file = archive.extractfile(index[name])
            return b"" if file is None else read_limited(file.read)

    images = [(name, limited(name, info.size, path)) for name, info in index.items()]
    return images, read, left_out


def read_limited(read: Callable[[int], bytes]) -> bytes:
    """Return the bytes of a member, whatever size its header says.

    Raises ValueError if it unpacks to more than MAX_FILE_BYTES.
    """
    data = read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError("file too large")
    return data
