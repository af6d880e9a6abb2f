"""Open a source of images; its rows have a fixed order.

`open_source` recognizes:

- a folder of images by class, or by split and class (`train/cat/1.png`; see
  `dphead_extract.sources.listing`), sorted by path
- a manifest: a CSV, TSV or Parquet file of paths, and optionally labels, splits and
  groups
- a folder with IDX files (MNIST, Fashion-MNIST) or CIFAR-10/100 binary files, or one
  IDX images file
- an .npz with an array `images`, and optionally `labels`, `split` and `group`
- a Hugging Face dataset: Parquet files with the bytes of images

Class names are declared, or taken from the source if its names are declared public.
Otherwise, labels are refused, ignored on request, or stored as whole numbers without
class names.
"""

import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dphead_extract.bounds import check_ends
from dphead_extract.errors import ExtractError
from dphead_extract.images import PixelRange
from dphead_extract.sources import arrays, listing
from dphead_extract.sources.classes import Classes
from dphead_extract.sources.columns import TABLE_SUFFIXES, Columns
from dphead_extract.sources.image import Source, SourceOptions


def open_source(
    path: str | Path,
    classes: Classes | None = None,
    split: str | None = "all",
    layout: str | None = None,
    columns: Columns | None = None,
    pixels: PixelRange | None = None,
) -> Source:
    """Return the rows of a source in their fixed order, without decoding image files.

    Parameters
    ----------
    path : str or Path
        The source.
    classes : Classes, optional
        How the classes are declared.
    split : str or None, default "all"
        "train", "test" or "validation" keeps the rows of that split. None is like
        "all", but refuses a source with several splits.
    layout : str, optional
        Meaning of the folders in the paths of images (`listing.Layout`).
    columns : Columns, optional
        Columns of a table.
    pixels : PixelRange, optional
        Declared range of the images' samples.

    Returns
    -------
    Source
        The rows.

    Raises
    ------
    ExtractError
        If the source is missing, not recognized or empty, or if `split` is None and
        there are several splits. If classes, splits or groups cannot be read
        (`interpreted`).
    """
    declared = SourceOptions(
        classes or Classes(),
        "all" if split is None else split,
        layout,
        columns or Columns(),
        pixels or PixelRange(),
    )
    path = Path(path)
    source = _opened(path, declared)
    source.pixels = declared.pixels
    if path.is_dir():
        source.left_out += _beside(path, source.kind)
    if split is None and len(source.split_names) > 1:
        raise ExtractError(
            f"--split is required, because {str(path)!r} has the splits "
            f"{', '.join(source.split_names)}. Type --split {source.split_names[0]}."
        )
    return source


def _opened(path: Path, declared: SourceOptions) -> Source:
    if not path.exists():
        raise ExtractError(f"{str(path)!r} does not exist.")
    check_ends(path)
    for recognize in (_open_table, *arrays.READERS):
        source = recognize(path, declared)
        if source is not None and declared.layout is not None:
            raise ExtractError(
                "--layout needs a folder of image files without a table or arrays, got "
                f"{str(path)!r}. Remove --layout."
            )
        if source is not None:
            return source
        if declared.columns.declared:
            raise ExtractError(
                f"--columns needs a table of images, got {str(path)!r}. Type the path "
                "of a table (CSV, TSV, Parquet), or remove --columns."
            )
    if path.is_dir():
        return listing.open_folder(path, declared)
    raise ExtractError(
        "SOURCE must be a folder of images, a table (CSV, TSV, Parquet), an .npz, or "
        f"IDX or CIFAR files, got {str(path)!r}. Unpack a zip or tar into a folder."
    )


def _open_table(path: Path, declared: SourceOptions) -> Source | None:
    if path.is_file() and path.suffix.lower() not in TABLE_SUFFIXES:
        return None
    from dphead_extract.sources import datasets  # loads pyarrow

    return datasets.open_table(path, declared)


def tell_left_out(left_out: Counter[str]) -> None:
    """Print the numbers of left-out files of a source, by reason, to standard error.

    The counts are private, for the data holder only.
    """
    counts = [f"{count:,} {reason}" for reason, count in (+left_out).most_common()]
    if counts:
        _tell(f"Left out of the source (private): {', '.join(counts)}")


def tell_doubts(doubts: Sequence[str]) -> None:
    """Print warnings about a source's rows to standard error, for the data holder."""
    for doubt in doubts:
        _tell(f"! private, for the data holder only: {doubt}.")


def _tell(text: str) -> None:
    print(textwrap.fill(text, 80), file=sys.stderr)


def _beside(folder: Path, kind: str) -> Counter[str]:
    """Count the files of a folder that a reader of arrays or data sets leaves out."""
    if kind == "dataset":
        from dphead_extract.sources import datasets

        opened = set(datasets.table_files(folder, Columns()))
    elif kind in arrays.OPENED:
        opened = {f for pattern in arrays.OPENED[kind] for f in folder.glob(pattern)}
    else:  # the reader of image files counts its left-out files
        return Counter()
    others = set(listing.files_below(folder)) - opened
    return Counter({f"files that are not of the {kind} format": len(others)})
