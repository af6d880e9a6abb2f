"""Sources of images, in one fixed order, decoded to canonical 8-bit arrays.

Each gives (row, image, label, split, group).

`open_source` recognises what it is given:

- a folder of images by class, or by split and class (`train/cat/1.png`), as
  `extract.layout` is told; sorted by path
- a manifest CSV with columns path, label and optionally split, group
- a zip or tar of images laid out like the folder (zip sorted by path, tar in its own
  order)
- a folder with IDX files (MNIST, Fashion-MNIST) or CIFAR-10/100 binary files, or one
  IDX images file
- an .npz with arrays images, labels and optionally split, group

The classes are never inferred from labels: they are declared, or the labels stay out.
"""

from __future__ import annotations

from pathlib import Path

from extract import arrays, listing
from extract.classes import Classes
from extract.errors import ExtractError
from extract.images import Source


def open_source(
    path: str | Path,
    classes: Classes | None = None,
    split: str = "all",
    layout: str | None = None,
) -> Source:
    """Recognise a source and list its rows in their fixed order; no image is decoded
    yet.

    `split` keeps the rows of "train", "test" or "validation" only. `layout` says what
    the folders of a folder's or an archive's paths are (`extract.layout`). ExtractError
    if the source is missing, not recognised, empty, or unsafe (archive members outside
    the archive, links).
    """
    path, classes = Path(path), classes or Classes()
    if not path.exists():
        raise ExtractError(
            f"the source must exist, got source={str(path)!r}. Check the path."
        )
    for recognise in (
        arrays.open_npz,
        arrays.open_idx,
        arrays.open_cifar,
        listing.open_manifest,
    ):
        source = recognise(path, classes, split)
        if source is not None and layout is not None:
            raise ExtractError(
                f"a layout says what the folders of image files are, got {layout=} for "
                f"a source of kind {source.kind}, which says itself. Leave --layout "
                "out."
            )
        if source is not None:
            return source
    source = listing.open_archive(path, classes, split, layout)
    if source is not None:
        return source
    if path.is_dir():
        return listing.open_folder(path, classes, split, layout)
    raise ExtractError(
        "the source must be a folder, CSV, zip, tar, npz, IDX or CIFAR files, got "
        f"source={str(path)!r}. Run `dphead extract --help` for the layouts."
    )
