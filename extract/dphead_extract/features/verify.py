"""Check the private content of a features file, for the data holder only.

All functions here read private values without noise. The guarantee does not cover their
results, so never publish them.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dphead_extract.errors import FormatError
from dphead_extract.features.disk import read_names
from dphead_extract.features.reading import FeaturesFile, open_features
from dphead_extract.features.rows import block_digest
from dphead_extract.items import UNGROUPED, text_group, unit_ids

# texts that other software writes for a missing value
_LIKE_MISSING = ("NA", "N/A", "#N/A", "NaN", "nan", "None", "null", "NULL", "<NA>")
# most rows, and most sets of equal images, shown per problem; choices, not measured
_SHOWN_ROWS = 5
_SHOWN_SETS = 20
# Largest share of the rows' squared length in one column. With more, `auto` lost 4 to
# 30 points of accuracy (single fits).
_ALMOST_ALL = 0.999


def verify(path: str | Path) -> list[str]:
    """Return the problems of a features file in plain words.

    The function reads private values. The guarantee does not cover its result.

    Parameters
    ----------
    path : str or Path
        The features file.

    Returns
    -------
    list of str
        The problems. Rows are named if the table of names lies beside the file.

    Raises
    ------
    FormatError
        If the file cannot be opened.

    Notes
    -----
    The checks cover the digest of each block, a column that hides all others, labels
    without a class, unreadable rows, equal images, rows without a split, groups in two
    splits, and groups with the name of a missing value.
    """
    with open_features(path) as file:
        found = [*_blocks(file), *_labels(file), *_images(file), *_groups(file)]
        return _told(found, file)


# a problem as text, and the indices of its rows, or of sets of equal rows; None if
# there are no rows to list
_Problem = tuple[str, np.ndarray | list[np.ndarray] | None]


def _told(problems: Iterable[_Problem], file: FeaturesFile) -> list[str]:
    """Return problems as text, with the first rows by name if names are known.

    Problems with an empty list of rows are omitted.
    """
    names, told = read_names(file.path, file.n_rows), []
    lead = "rows " if names is None else ""
    for text, rows in problems:
        if rows is None:
            told.append(text)
        elif len(rows):
            most = _SHOWN_SETS if isinstance(rows, list) else _SHOWN_ROWS
            first = [_named(np.atleast_1d(row), names) for row in rows[:most]]
            first += ["..."] * (len(rows) > most)
            count = sum(np.size(row) for row in rows)
            told.append(f"{text}: {count} ({lead}{', '.join(first)})")
    return told


def _named(equal: np.ndarray, names: list[str] | None) -> str:
    """Return equal rows joined by "=", by name, or by number if names are unknown."""
    shown = equal[:_SHOWN_ROWS].tolist()
    texts = [str(row) if names is None else names[row] for row in shown]
    more = ["..."] if len(equal) > _SHOWN_ROWS else []
    return " = ".join(texts + more)


def check_blocks(file: FeaturesFile) -> None:
    """Raise FormatError if a row changed since it was written.

    Call this function before a charge. Otherwise a head could be trained on damaged
    rows without notice.
    """
    for start, block, sound in blocks(file):
        if not sound:
            raise FormatError(
                f"Rows {start} to {start + len(block['valid']) - 1} of "
                f"{str(file.path)!r} are damaged. Copy or extract the file again."
            )


def blocks(file: FeaturesFile) -> Iterator[tuple[int, dict[str, np.ndarray], bool]]:
    """Yield each block: its first row, its columns, and whether it is sound.

    A block is sound if its columns match its digest. Two blocks are read at a time,
    because a digest takes longer than reading. Raises FormatError if blocks lack a
    digest, or cannot be read.
    """
    size = file.config["block_rows"]
    # otherwise a file without digests would pass without a check
    if size < 1 or len(file.block_digest) != -(-file.n_rows // size):
        raise FormatError(
            f"The digests of {str(file.path)!r} do not cover its {file.n_rows} rows. "
            "Extract it again."
        )

    def checked(start: int) -> tuple[int, dict[str, np.ndarray], bool]:
        block = file.block(start, start + size)
        digest = file.block_digest[start // size]
        return start, block, np.array_equal(block_digest(block), digest)

    with ThreadPoolExecutor(2) as pool:
        for start in range(0, file.n_rows, 2 * size):
            stop = min(start + 2 * size, file.n_rows)
            yield from pool.map(checked, range(start, stop, size))


def sound_blocks(
    file: FeaturesFile, todo: str
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield the first row and the columns of each block.

    Raises FormatError, which ends with `todo`, at the first damaged block.
    """
    for start, block, sound in blocks(file):
        if not sound:
            raise FormatError(
                f"{str(file.path)!r} is damaged from row {start} on. {todo}"
            )
        yield start, block


def hidden_columns(squares: np.ndarray) -> str:
    """Return a warning if one column dominates the length of the rows, else "".

    `squares` (d,) has the sum of squares of each column. After scaling to norm 1, the
    other columns would be nearly zero.
    """
    if len(squares) < 2 or not squares.max() > _ALMOST_ALL * squares.sum():
        return ""
    return (
        f"column {squares.argmax()} has over 99.9 % of the squared length of all rows, "
        "so a head can hardly use the other columns: divide the columns by public "
        "constants"
    )


def _blocks(file: FeaturesFile) -> Iterator[_Problem]:
    squares = np.zeros(file.n_features)
    for start, block, sound in blocks(file):
        squares += np.square(block["features"], dtype=np.float64).sum(axis=0)
        if not sound:
            text = (
                f"rows {start} to {start + len(block['valid']) - 1} changed since they "
                "were written (their digest does not match)"
            )
            yield text, None
    if text := hidden_columns(squares):
        yield text, None


def _labels(file: FeaturesFile) -> Iterator[_Problem]:
    if not file.valid.any():
        yield "no row is valid", None
    else:
        what = "masked rows (unreadable, or not finite)"
        yield what, np.flatnonzero(~file.valid)
    if file.class_names is None:
        if (file.labels >= 0).any():
            yield "there are labels, but no declared classes (--classes)", None
    elif (file.labels == -1).all():
        yield "no row has a label", None
    else:
        outside = (file.labels < 0) | (file.labels >= len(file.class_names))
        text = "rows without a label, or with a label outside the classes"
        yield text, np.flatnonzero(outside)


def _images(file: FeaturesFile) -> Iterator[_Problem]:
    """Yield a problem for each kind of repeated images.

    Rows that a schema encoded are not compared, because different people may have equal
    values.
    """
    if "schema" in file.config["transform"]:
        return
    digests = np.ascontiguousarray(file.row_digest).view("V16").ravel()
    keys = np.unique(digests, return_inverse=True)[1]
    real = file.valid & file.row_digest.any(axis=1)
    ordinals = np.arange(file.n_rows)
    found = {
        "in two splits": _in_two(keys, file.split, real),
        "in two classes": _in_two(keys, file.labels, real & (file.labels >= 0)),
    }
    if file.group is not None:
        found["in two groups"] = _in_two(keys, unit_ids(file.group), real)
    twice = _in_two(keys, ordinals, real)
    found["in several rows"] = np.setdiff1d(twice, np.concatenate([*found.values()]))
    for where, rows in found.items():
        ordered = rows[np.argsort(keys[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(keys[ordered])) + 1
        sets = np.split(ordered, starts) if len(ordered) else []
        yield f"equal images {where}", sorted(sets, key=lambda rows: rows[0])


def _groups(file: FeaturesFile) -> Iterator[_Problem]:
    """Yield problems of splits, and of groups named like a missing value, such as "NA".

    Rows of a group "NA" count as one person, so a group cap leaves most of them out.
    """
    if int(file.split.max(initial=0)) >= len(file.split_names):
        yield "rows of a split that has no name in the file", None
    elif file.split_names[-1] == "none":
        rows = np.flatnonzero(file.split == len(file.split_names) - 1)
        yield "rows in no split, which a fit on a split does not use", rows
    if file.group is None:
        return
    for name in _LIKE_MISSING:
        text = f"rows of one group {name!r} (empty the cells if each row is a person)"
        yield text, np.flatnonzero(file.group == text_group(name))
    grouped = file.group != UNGROUPED
    yield "rows whose group is in two splits", _in_two(file.group, file.split, grouped)


def _in_two(keys: np.ndarray, split: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return the indices of used rows with a key that is in more than one split."""
    rows = np.flatnonzero(use)
    pairs = np.stack([keys[rows], split[rows]], 1).astype(np.int64)
    pairs = np.unique(pairs, axis=0)
    values, counts = np.unique(pairs[:, 0], return_counts=True)
    return rows[np.isin(keys[rows], values[counts > 1])]
