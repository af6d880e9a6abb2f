"""List a folder of image files.

The meaning of the folders is declared. Paths are private, so no path may affect how
another path is read.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dphead_extract.bounds import read_plain, size_of
from dphead_extract.errors import ExtractError
from dphead_extract.features.rows import group_names
from dphead_extract.sources.classes import (
    SPLITS,
    alike_groups,
    interpreted,
    possible_splits,
    split_doubts,
)
from dphead_extract.sources.image import Source, SourceOptions

# endings of common image formats that Pillow decodes
SUFFIXES = (
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".jif"),
    *(".bmp", ".dib", ".gif", ".tif", ".tiff", ".webp", ".avif", ".avifs"),
    *(".pbm", ".pgm", ".pnm", ".ppm", ".tga"),
)
# folders that network drives, desktops and zip programs make, with copies of images
_SYSTEM_FOLDERS = (
    *("@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin"),
    *("__macosx", "lost+found", "system volume information"),
)
_EXAMPLES = "class, split/class, any/class or any/split/class"
# name, size in bytes, label, split and group of an image; None if the source lacks it
Row = tuple[str, int, Any, Any, Any]


@dataclass(frozen=True)
class Layout:
    """Hold the meaning of each folder from the outside in: "class", "split" or "any".

    "any" folders, folders after the last part, and the name of the file have no
    meaning. Guarantee: the class and the split of a path depend only on that path and
    on the declared parts.
    """

    parts: tuple[str, ...] = ("class",)

    @classmethod
    def parse(cls, text: str | None, split: str = "all") -> "Layout":
        """Return the declared layout.

        Without `text`, this is split/class if `split` names a split, else class. Raises
        ExtractError for a text that is not a layout.
        """
        if text is None:
            return cls(("class",) if split == "all" else ("split", "class"))
        parts = tuple(text.split("/"))
        unknown = [part for part in parts if part not in ("any", "split", "class")]
        if unknown:
            raise ExtractError(
                f"--layout has the unknown word {unknown[0]!r}. Type class, split, or "
                "any (a folder without a meaning) for each folder, outermost first, "
                "such as any/class."
            )
        if parts.count("class") != 1 or parts.count("split") > 1:
            raise ExtractError(
                "--layout must have class once and split at most once, got "
                f"{text!r}. Examples: {_EXAMPLES}."
            )
        return cls(parts)

    def __str__(self) -> str:
        return "/".join(self.parts)

    @property
    def has_splits(self) -> bool:
        """Return whether a folder of the layout is a split."""
        return "split" in self.parts

    def read(self, name: str) -> tuple[str, str]:
        """Return the label and the split of a relative path; "" for none."""
        said = self._said(name)
        split = said.get("split", "")
        return said.get("class", ""), split if split.lower() in SPLITS else ""

    def _said(self, name: str) -> dict[str, str]:
        folders = PurePosixPath(name).parts[:-1]
        return dict(zip(self.parts, folders, strict=False))

    def doubts(self, names: list[str], labeled: bool) -> list[str]:
        """Return private warnings about folders without a split or below the layout.

        Folders below the layout may hold copies, or each may be a person. The warning
        about them is left out if the images are not `labeled`.
        """
        splits = Counter(self._said(name).get("split", "") for name in names)
        unknown = {s: n for s, n in splits.items() if s and s.lower() not in SPLITS}
        beyond = [PurePosixPath(name).parts[len(self.parts) : -1] for name in names]
        below = Counter(parts[0] for parts in beyond if parts)
        if not (below and labeled):
            return split_doubts(unknown)
        some = ", ".join(map(repr, sorted(below)[:3])) + ", ..." * (len(below) > 3)
        return [
            *split_doubts(unknown),
            f"images in {len(below)} folders below --layout {self}, whose names have "
            f"no meaning: {below.total()} ({some}). If the images are not copies, type "
            f"--layout {self}/any. If a folder is a person, write a table with groups",
        ]


def is_hidden(name: str) -> bool:
    """Return whether a path, or a folder of it, is hidden or made by a system."""
    parts = PurePosixPath(name).parts
    return any(p.startswith(".") or p.lower() in _SYSTEM_FOLDERS for p in parts)


def _why_left_out(name: str) -> str:
    """Return the reason why a file has no row, or "" for an image."""
    path = PurePosixPath(name)
    if is_hidden(name):
        return "hidden files"
    if path.suffix.lower() not in SUFFIXES:
        return f"files without an image's ending ({path.suffix.lower() or 'none'})"
    return ""


def list_rows(
    kind: str,
    path: Path,
    rows: list[Row],
    read: Callable[[str], bytes],
    declared: SourceOptions,
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
    declared : SourceOptions
        The declared classes and the wanted split.
    splits, grouped : bool
        Whether the source has splits and groups.

    Returns
    -------
    Source
        The rows.

    Raises
    ------
    ExtractError
        If the source has no such split, or no image in this split.
    """
    columns = {"label": [row[2] for row in rows], "split": [row[3] for row in rows]}
    if grouped:
        columns["group"] = [row[4] for row in rows]
    names, split = possible_splits(splits), declared.split
    kept, said = interpreted(columns, len(rows), declared.classes, names, split)
    if len(kept) == 0:
        if split != "all":
            raise ExtractError(
                f"{str(path)!r} has no image in split {split}. Type another --split, "
                "such as all."
            )
        raise ExtractError(
            f"{str(path)!r} has no image. Type the path of a source with images, such "
            "as .png, .jpg or .tif files."
        )
    own = [rows[row] for row in kept]
    files = [row[0] for row in own]
    digest = hashlib.sha256(repr((kind, own)).encode("utf-8", "surrogateescape"))
    return Source(
        **vars(said),
        kind=kind,
        digest=digest.hexdigest(),
        names=files,
        read=lambda row: read(files[row]),
        missing=[row for row, (_, size, *_) in enumerate(own) if size < 0],
        left_out=Counter({f"rows outside split {split!r}": len(rows) - len(own)}),
        doubts=alike_groups(group_names(columns.get("group", []))),
    )


def _check_found_classes(source: Source, declared: SourceOptions) -> None:
    """Raise ExtractError if no image has a class, or a folder is named like a split.

    With a declared layout or declared classes, folders may have the names of splits.
    The check never changes how a path is read.
    """
    names, classes = source.class_names or [], declared.classes
    splits = [name for name in names if name.lower() in SPLITS]
    if classes.folder_names_public and declared.layout is None and splits:
        raise ExtractError(
            f"Some folders have the names of splits: {', '.join(splits)}. Type "
            "--layout split/class, or --layout class if they are classes."
        )
    if names and not classes.ignore_labels and not (source.labels >= 0).any():
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise ExtractError(
            f"No image is in the folder of a class ({some}) under --layout "
            f"{source.layout}. The first image is {source.names[0]!r}. Type the folder "
            f"names in --classes, another --layout ({_EXAMPLES}), --columns "
            "path=NAME,label=NAME for a table, or --ignore-labels."
        )


def open_folder(path: Path, declared: SourceOptions) -> Source:
    """Return a Source of the images below a folder, sorted by path."""
    classes, split = declared.classes, declared.split
    layout = Layout.parse(declared.layout, split)
    if split != "all" and not layout.has_splits:
        raise ExtractError(
            f"--split {split} needs a --layout with a split, got {str(layout)!r}. Type "
            "--layout split/class or any/split/class."
        )
    members: list[tuple[str, int]] = []
    left_out: Counter[str] = Counter()
    for file in files_below(path):
        name = file.relative_to(path).as_posix()
        if reason := _why_left_out(name):
            left_out[reason] += 1
        else:
            members.append((name, size_of(file)))
    members.sort(key=lambda item: os.fsencode(item[0]))
    rows = [(name, size, *layout.read(name), "") for name, size in members]
    # labels are checked below, after the layout
    anything = replace(declared, classes=replace(classes, allow_unlabeled=True))
    source = list_rows(
        "folder",
        path,
        rows,
        lambda name: read_plain(path / name),
        anything,
        splits=layout.has_splits,
    )
    source.layout, source.left_out = str(layout), source.left_out + left_out
    listed = [name for name, _ in members]
    source.doubts += layout.doubts(listed, not classes.ignore_labels)
    _check_found_classes(source, declared)
    others = [
        layout.read(name)[0]
        for name, label in zip(source.names, source.labels, strict=True)
        if label < 0
    ]
    if source.class_names is not None and not classes.ignore_labels:
        classes.check_known({label for label in others if label})
    return source


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, even through links to other folders.

    Raises
    ------
    ExtractError
        If a folder cannot be read, or a link leads back to a folder on the way to it:
        its files would be listed again and again.
    """
    for inner, _, files in os.walk(folder, onerror=_unreadable, followlinks=True):
        link = Path(inner)
        above = link.parents[: len(link.relative_to(folder).parts)]
        if link.resolve() in [parent.resolve() for parent in above]:
            raise ExtractError(
                f"The link {inner!r} leads back to a folder above it. Remove the link."
            )
        yield from (Path(inner) / name for name in files)


def _unreadable(error: OSError) -> None:
    """Raise ExtractError for a folder that cannot be listed.

    Its images would otherwise be missing without notice.
    """
    raise ExtractError(
        f"The folder {error.filename!r} cannot be read ({error.strerror}). Change its "
        "access rights, or move it away."
    ) from error
