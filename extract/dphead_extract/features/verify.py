"""Check the private content of a features file, on the data holder's own screen.

All functions here read private values without noise. The guarantee does not cover their
results: read the list, never publish it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

import numpy as np

from dphead_extract.errors import FormatError
from dphead_extract.features.disk import read_names
from dphead_extract.features.reading import FeaturesFile, open_features
from dphead_extract.features.rows import block_digest
from dphead_extract.items import NO_GROUP, text_group

_SHOWN_ROWS = 5  # rows that each problem shows; a choice, not measured
# Images are near-equal if their 64-bit hashes differ in at most this many bits. A
# choice, not measured; `near_equal` relies on it.
_NEAR_BITS = 2
_NEAR = "near-equal images (by a coarse hash)"
# names of groups that other software writes for a missing value
_LIKE_MISSING = ("NA", "N/A", "#N/A", "NaN", "nan", "None", "null", "NULL")
_SEED = 0  # for `near_by_chance`, which sets random rows apart; any seed will do


def verify(path: str | Path, against: str | Path | None = None) -> list[str]:
    """Return the problems of a features file in plain words; an empty list if none.

    The function reads private values. The guarantee does not cover its result.

    Parameters
    ----------
    path : str or Path
        The features file.
    against : str or Path, optional
        A second file, such as the test set. Its digests and features are checked too,
        and its rows count as one more split. Each file has its own salt: equal images
        are found there by their coarse hash only, and rows without an image by their
        features.

    Returns
    -------
    list of str
        The problems. Rows are named if the table of names lies beside the file.

    Raises
    ------
    FormatError
        If a file cannot be opened.

    Notes
    -----
    The checks cover the digest of each block, non-finite features, labels without a
    class, unreadable rows, equal images, near-equal images in two splits, and groups in
    two splits.
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_features(path))
        found = [*_blocks(file), *_labels(file), *_images(file), *_groups(file)]
        told = _told(found, file)
        if against is not None:
            other = stack.enter_context(open_features(against))
            told += [
                f"{against}: {problem}" for problem in _told(_blocks(other), other)
            ]
            told += _told(_between(file, other), file)
        return told


# what is wrong, and the rows where it is (their ordinals); None if it is in no row
_Problem = tuple[str, np.ndarray | None]


def _told(problems: Iterable[_Problem], file: FeaturesFile) -> list[str]:
    """Return problems as text, with the first rows by name if names are known.

    Problems without rows are omitted.
    """
    names, told = read_names(file.path, file.n_rows), []
    lead = "rows " if names is None else ""
    for text, rows in problems:
        if rows is None:
            told.append(text)
        elif len(rows):
            shown = rows[:_SHOWN_ROWS].tolist()
            first = [str(row) if names is None else names[row] for row in shown]
            first += ["..."] * (len(rows) > _SHOWN_ROWS)
            told.append(f"{text}: {len(rows)} ({lead}{', '.join(first)})")
    return told


def check_blocks(file: FeaturesFile) -> None:
    """Raise FormatError if a row changed since it was written.

    Call this before a charge: otherwise a damaged row would train the head unnoticed.
    """
    for start, block, sound in blocks(file):
        if not sound:
            raise FormatError(
                f"Rows {start} to {start + len(block['valid']) - 1} of "
                f"{str(file.path)!r} are damaged. Extract them again."
            )


def blocks(file: FeaturesFile) -> Iterator[tuple[int, dict[str, np.ndarray], bool]]:
    """Yield each block: its first row, its columns, and whether it is sound.

    A block is sound if its columns match its digest.
    """
    size = file.config["block_rows"]
    for index, start in enumerate(range(0, file.n_rows, size)):
        block = file.block(start, start + size)
        sound = np.array_equal(block_digest(block), file.block_digest[index])
        yield start, block, sound


def _blocks(file: FeaturesFile) -> Iterator[_Problem]:
    infinite, nonzero = [], []
    for start, block, sound in blocks(file):
        if not sound:
            text = (
                f"rows {start} to {start + len(block['valid']) - 1} are not as they "
                "were written (their digest does not match)"
            )
            yield text, None
        x = block["features"]
        infinite.append(start + np.flatnonzero(~np.isfinite(x).all(axis=1)))
        nonzero.append(start + np.flatnonzero(~block["valid"] & x.any(axis=1)))
    yield "rows with non-finite features", np.concatenate(infinite)
    yield "masked rows that are not zero", np.concatenate(nonzero)


def _labels(file: FeaturesFile) -> Iterator[_Problem]:
    if not file.valid.any():
        yield "no row is valid", None
    else:
        what = "rows kept as masked (unreadable, or not finite)"
        yield what, np.flatnonzero(~file.valid)
    if file.class_names is None:
        if (file.labels >= 0).any():
            yield "labels are there but the classes were not declared (--classes)", None
    elif (file.labels == -1).all():
        yield "no row has a label", None
    else:
        outside = (file.labels < 0) | (file.labels >= len(file.class_names))
        text = "rows without a label, or with one outside the classes"
        yield text, np.flatnonzero(outside)


def _images(file: FeaturesFile) -> Iterator[_Problem]:
    """Report images that occur in several rows."""
    digests = np.ascontiguousarray(file.row_digest).view("V16").ravel()
    keys = np.unique(digests, return_inverse=True)[1]
    real = file.valid & file.row_digest.any(axis=1)
    ordinals = np.arange(file.n_rows)
    across = _in_two(keys, file.split, real)
    found = {"in two splits": across}
    found["in two classes"] = _in_two(keys, file.labels, real & (file.labels >= 0))
    if file.group is not None:
        # each row without a group is on its own
        groups = np.where(file.group < 0, -1 - ordinals, file.group)
        found["in two groups"] = _in_two(keys, groups, real)
    twice = _in_two(keys, ordinals, real)
    found["that stand twice"] = np.setdiff1d(twice, np.concatenate([*found.values()]))
    for where, rows in found.items():
        yield f"equal images {where}", rows
    hashes = (file.image_hash, file.split, file.valid)
    near = np.setdiff1d(near_equal(*hashes), across)
    if len(near):
        chance = sum(near_by_chance(*hashes).values())
        yield f"{_NEAR} in two splits, {chance:,} by chance", near


def _groups(file: FeaturesFile) -> Iterator[_Problem]:
    """Report groups that are named like a missing value, and groups in two splits."""
    if int(file.split.max(initial=0)) >= len(file.split_names):
        yield "split codes beyond split_names", None
    if file.group is None:
        return
    for name in _LIKE_MISSING:
        text = f"rows of one group named {name} (leave the group empty if missing)"
        yield text, np.flatnonzero(file.group == text_group(name))
    grouped = file.group != NO_GROUP
    yield "rows whose group is in two splits", _in_two(file.group, file.split, grouped)


def _between(file: FeaturesFile, other: FeaturesFile) -> Iterator[_Problem]:
    hashes = np.concatenate([file.image_hash, other.image_hash])
    valid = np.concatenate([file.valid, other.valid])
    side = np.repeat(np.array([0, 1], np.uint8), [file.n_rows, other.n_rows])
    near = near_equal(hashes, side, valid)
    chance = near_by_chance(hashes, side, valid)[0]
    text = f"{_NEAR} to one of {other.path.name}, {chance:,} by chance"
    yield text, near[near < file.n_rows]
    if file.feature_space == other.feature_space:
        own, theirs = _features_digests(file), set(_features_digests(other))
        equal = np.flatnonzero([key is not None and key in theirs for key in own])
        yield f"rows whose features are those of a row of {other.path.name}", equal


def _features_digests(file: FeaturesFile) -> list[bytes | None]:
    """Return a digest of each row's features.

    The digest is None for a masked row, and for a row of an image, because hashes
    compare images.
    """
    found: list[bytes | None] = []
    for _, block, _ in blocks(file):
        used = block["valid"] & (block["image_hash"] == 0)
        rows = zip(block["features"], used, strict=True)
        found += [blake2b(x.tobytes()).digest() if use else None for x, use in rows]
    return found


def _in_two(keys: np.ndarray, split: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return the ordinals of used rows with a key that is in more than one split."""
    rows = np.flatnonzero(use)
    pairs = np.stack([keys[rows], split[rows]], 1).astype(np.int64)
    pairs = np.unique(pairs, axis=0)
    values, counts = np.unique(pairs[:, 0], return_counts=True)
    return rows[np.isin(keys[rows], values[counts > 1])]


def near_equal(hashes: np.ndarray, split: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return the ordinals of rows that have a near-equal image in another split.

    Near-equal hashes differ in at most 2 bits; hash 0 is no hash. Two differing bits
    leave one of three bands of the hash unchanged. Therefore only rows that share a
    band are compared.
    """
    rows = np.flatnonzero(valid & (hashes != 0))
    pairs = np.stack([hashes[rows], split[rows].astype(np.uint64)], 1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    keys, codes = unique.T
    hit = np.zeros(len(unique), bool)
    for low, width in ((0, 22), (22, 21), (43, 21)):
        band = (keys >> np.uint64(low)) & np.uint64((1 << width) - 1)
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order])) + 1
        for bucket in np.split(order, starts):
            if len(bucket) < 2 or (codes[bucket] == codes[bucket[0]]).all():
                continue
            for start in range(0, len(bucket), 1024):
                part = bucket[start : start + 1024, None]
                bits = np.bitwise_count(keys[part] ^ keys[bucket])
                near = (bits <= _NEAR_BITS) & (codes[part] != codes[bucket])
                hit[part[:, 0]] |= near.any(axis=1)
    return rows[hit[inverse.ravel()]]


def near_by_chance(
    hashes: np.ndarray, split: np.ndarray, valid: np.ndarray
) -> Counter[int]:
    """Estimate how many rows `near_equal` finds if no image is in two splits.

    Parameters
    ----------
    hashes, split, valid : (n,) arrays
        The columns of the features file.

    Returns
    -------
    Counter
        The number of rows in the largest split, by its code. The total for all other
        splits is under the code of the next largest split.

    Notes
    -----
    A random part of the largest split represents the other splits. No image of this
    part is in two splits. Images that occur twice inside the split count as chance too.
    Small, similar pictures, such as digits, collide often: of 70,000 rows of MNIST
    9,861 do.
    """
    codes, counts = np.unique(split[valid], return_counts=True)
    if len(codes) < 2:
        return Counter()
    others, largest = codes[np.argsort(counts)[-2:]].tolist()
    own = np.flatnonzero(valid & (split == largest))
    n_others = int(counts.sum() - counts.max())
    n_apart = min(n_others, len(own) // 2)
    apart = np.random.default_rng(_SEED).permutation(len(own)) < n_apart
    found = near_equal(hashes[own], apart, np.ones(len(own), bool))
    share_apart = apart[found].sum() / max(n_apart, 1)
    share_rest = (~apart[found]).sum() / (len(own) - n_apart)
    return Counter(
        {largest: round(share_rest * len(own)), others: round(share_apart * n_others)}
    )
