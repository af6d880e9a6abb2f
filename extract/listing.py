"""Sources that list image files: folders, manifests, zip and tar archives, which are read in place, never unpacked."""

from __future__ import annotations

import csv
import hashlib
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from extract.errors import ExtractError
from extract.images import SPLITS, Classes, Source, check_found, split_codes

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".jp2")
MAX_FILE_BYTES = 256 << 20


def _is_image(name: str) -> bool:
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return not hidden and name.lower().endswith(SUFFIXES)


def layout(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(label texts, split texts) of relative paths: `class/...`, or `split/class/...` if all first parts are splits."""
    parts = [PurePosixPath(name).parts for name in names]
    by_split = all(len(p) > 1 and p[0].lower() in SPLITS for p in parts)
    depth = int(by_split)
    labels = [p[depth] if len(p) > depth + 1 else "" for p in parts]
    return labels, [p[0] if by_split else "" for p in parts]


def _listed(
    kind: str,
    path: Path,
    rows: list[tuple[str, int, str, str, str]],
    read: Callable[[str], bytes],
    classes: Classes,
    split: str,
    grouped: bool = False,
) -> Source:
    """A Source from rows (name, bytes, label, split, group), the wanted split only."""
    codes, names = split_codes([row[3] for row in rows])
    check_found(split, names, path)
    if split != "all":
        rows = [row for row, code in zip(rows, codes, strict=True) if names[code] == split]
        codes, names = split_codes([row[3] for row in rows])
    if not rows:
        raise ExtractError(f"a source must hold at least one image, got images=0 in {str(path)!r}. Check the layout.")
    texts: list[str] | np.ndarray = [row[2] for row in rows]
    labels, class_names, declared = classes.encode(texts, len(rows))
    group = None
    if grouped:
        index = {text: i for i, text in enumerate(sorted({row[4] for row in rows if row[4]}))}
        group = np.array([index.get(row[4], -1) for row in rows], np.int64)
    files = [row[0] for row in rows]
    digest = hashlib.sha256(repr((kind, rows)).encode("utf-8", "surrogateescape"))
    return Source(
        kind=kind,
        labels=labels,
        split=codes,
        split_names=names,
        digest=digest.hexdigest(),
        names=files,
        group=group,
        class_names=class_names,
        classes_declared=declared,
        read=lambda row: read(files[row]),
    )


def open_folder(path: Path, classes: Classes, split: str) -> Source:
    """Images below a folder, sorted by path."""
    found: list[tuple[str, int]] = []
    for folder, _, files in os.walk(path):
        for file in files:
            name = (Path(folder) / file).relative_to(path).as_posix()
            if _is_image(name):
                found.append((name, os.stat(path / name).st_size if (path / name).exists() else -1))
    found.sort(key=lambda item: os.fsencode(item[0]))
    labels, splits = layout([name for name, _ in found])
    rows = [(name, size, label, part, "") for (name, size), label, part in zip(found, labels, splits, strict=True)]
    return _listed("folder", path, rows, lambda name: (path / name).read_bytes(), classes, split)


def open_manifest(path: Path, classes: Classes, split: str) -> Source | None:
    """CSV with a header: path, label and optionally split, group; paths are relative to it. None if this is no .csv."""
    if path.suffix.lower() != ".csv":
        return None
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = [str(name).strip() for name in reader.fieldnames or []]
            reader.fieldnames = header
            records = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExtractError(f"a manifest must be a CSV file in UTF-8, got file={str(path)!r}. Save it again.") from error
    unknown = sorted(set(header) - {"path", "label", "split", "group"})
    if "path" not in header or unknown:
        raise ExtractError(
            f"a manifest must have the columns path, label and optionally split, group, got columns={header}. "
            "Rename them."
        )
    root, rows = path.parent, []
    for line, record in enumerate(records, 2):
        values = {key: (record.get(key) or "").strip() for key in ("path", "label", "split", "group")}
        if not values["path"] or None in record:
            raise ExtractError(f"each line of a manifest must name an image, got line={line}. Correct that line.")
        file = root / values["path"]
        size = file.stat().st_size if file.is_file() else -1
        rows.append((values["path"], size, values["label"], values["split"], values["group"]))
    return _listed(
        "manifest", path, rows, lambda name: (root / name).read_bytes(), classes, split, grouped="group" in header
    )


def _check_member(name: str, link: bool, archive: Path) -> None:
    """ExtractError for a member that could reach outside the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if link or path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
        what = "a link" if link else "a path outside the archive"
        raise ExtractError(
            f"archive members must be plain files below the archive's root, got {what} in {str(archive)!r}. "
            "Pack the images again."
        )


def _limited(name: str, size: int, archive: Path) -> int:
    if size > MAX_FILE_BYTES:
        raise ExtractError(
            f"an image file must have at most {MAX_FILE_BYTES} bytes, got bytes={size} in {str(archive)!r}. "
            "Remove it from the archive."
        )
    return size


def open_archive(path: Path, classes: Classes, split: str) -> Source | None:
    """A zip (rows sorted by path), a tar (rows in its own order, the only quick one if compressed), or None."""
    if not path.is_file():
        return None
    damaged = ExtractError(f"an archive must be complete, got file={str(path)!r} damaged. Copy or pack it again.")
    try:
        if zipfile.is_zipfile(path):
            kind, members, read = _open_zip(path)
        elif tarfile.is_tarfile(path):
            kind, members, read = _open_tar(path)
        elif path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")):
            raise damaged
        else:
            return None
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise damaged from error
    names = [name for name, _ in members]
    tops = {PurePosixPath(name).parts[0] for name in names}
    wrapped = len(tops) == 1 and not tops & set(SPLITS) and all(len(PurePosixPath(n).parts) > 2 for n in names)
    labels, splits = layout([n.split("/", 1)[1] for n in names] if wrapped else names)
    rows = [(name, size, label, part, "") for (name, size), label, part in zip(members, labels, splits, strict=True)]
    return _listed(kind, path, rows, read, classes, split)


def _open_zip(path: Path) -> tuple[str, list[tuple[str, int]], Callable[[str], bytes]]:
    archive, lock = zipfile.ZipFile(path), threading.Lock()
    members = []
    for info in archive.infolist():
        _check_member(info.filename, stat.S_ISLNK(info.external_attr >> 16), path)
        if not info.is_dir() and _is_image(info.filename):
            members.append((info.filename, _limited(info.filename, info.file_size, path)))

    def read(name: str) -> bytes:
        with lock, archive.open(name) as file:
            return _read_limited(file.read)

    return "zip", sorted(members), read


def _open_tar(path: Path) -> tuple[str, list[tuple[str, int]], Callable[[str], bytes]]:
    archive, lock = tarfile.open(path), threading.Lock()  # noqa: SIM115  (open as long as the source)
    members, index = [], {}
    for info in archive:
        _check_member(info.name, info.issym() or info.islnk() or info.isdev(), path)
        name = info.name.removeprefix("./")
        if info.isfile() and _is_image(name):
            members.append((name, _limited(name, info.size, path)))
            index[name] = info

    def read(name: str) -> bytes:
        with lock:
            file = archive.extractfile(index[name])
            return b"" if file is None else _read_limited(file.read)

    return "tar", members, read


def _read_limited(read: Callable[[int], bytes]) -> bytes:
    """The bytes of a member, but an error where it unpacks to more than the bound, whatever its header says."""
    data = read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError("file too large")
    return data
