"""Check the private content of a features file, on the data holder's own screen.

All functions here read private values without noise. The guarantee does not cover their
results: read the list, never publish it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

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

    It reads private values and is outside the guarantee.

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
    It checks the digest of each block, non-finite features, labels without a class,
    unreadable rows, equal images, near-equal images in two splits, and groups in two
    splits.
    """
    with open_features(path) as file:
        problems = _blocks(file)
        problems += _labels(file)
        problems += _equal(file)
        problems += _groups(file)
        problems += _across_splits(file)
        if against is not None:
            with open_features(against) as other:
                theirs = read_names(other.path, other.n_rows)
                for problem in _blocks(other):
                    problems.append(Problem(f"{against}: {_told(problem, theirs)}"))
                problems += _between(file, other)
        names = read_names(file.path, file.n_rows)
    return [_told(problem, names) for problem in problems]


class Problem(NamedTuple):
    """Describe what is wrong, and in which rows (their ordinals) if it is in some."""

    text: str
    rows: np.ndarray | None = None


def _told(problem: Problem, names: list[str] | None) -> str:
    """Return a problem in words, with the first rows by name if names are known."""
    if problem.rows is None:
        return problem.text
    rows = problem.rows.tolist()
    first = [str(row) if names is None else names[row] for row in rows[:_SHOWN_ROWS]]
    if len(rows) > _SHOWN_ROWS:
        first.append("...")
    lead = "rows " if names is None else ""
    return f"{problem.text}: {len(rows)} ({lead}{', '.join(first)})"


def check_blocks(file: FeaturesFile) -> None:
    """Raise FormatError unless every row is as it was written.

    Call it before a charge: a damaged row would be in the head, and nobody would know.
    """
    for start, stop, _, sound in blocks(file):
        if not sound:
            raise FormatError(
                "rows of a features file must be as they were written, got rows "
                f"{start} to {stop - 1} of {str(file.path)!r} damaged. Extract it "
                "again."
            )


def blocks(
    file: FeaturesFile,
) -> Iterator[tuple[int, int, dict[str, np.ndarray], bool]]:
    """Yield each block: first row, row after its last, columns, whether it is sound.

    A block is sound if its columns match its digest. Raises FormatError unless each
    block has a digest.
    """
    size, digests = int(file.attrs["block_rows"]), file.block_digest
    if len(digests) != -(-file.n_rows // size):
        raise FormatError(
            f"a features file must have a digest for each block, got {len(digests)} "
            f"for {file.n_rows} rows in blocks of {size} in {str(file.path)!r}. "
            "Extract it again."
        )
    for index, start in enumerate(range(0, file.n_rows, size)):
        stop = min(start + size, file.n_rows)
        block = file.block(start, stop)
        sound = np.array_equal(block_digest(block), digests[index])
        yield start, stop, block, sound


def _blocks(file: FeaturesFile) -> list[Problem]:
    problems = []
    infinite, nonzero = [], []
    for start, stop, block, sound in blocks(file):
        if not sound:
            text = (
                f"rows {start} to {stop - 1} are not as they were written (their "
                "digest does not match)"
            )
            problems.append(Problem(text))
        finite = np.isfinite(block["features"]).all(axis=1)
        infinite.append(start + np.flatnonzero(~finite))
        nonzero.append(
            start + np.flatnonzero(~block["valid"] & block["features"].any(axis=1))
        )
    for rows, text in (
        (np.concatenate(infinite), "rows with non-finite features"),
        (np.concatenate(nonzero), "masked rows that are not zero"),
    ):
        if len(rows):
            problems.append(Problem(text, rows))
    return problems


def _labels(file: FeaturesFile) -> list[Problem]:
    problems = []
    unreadable = np.flatnonzero(~file.valid)
    if len(unreadable) == file.n_rows:
        problems.append(Problem("no row is valid"))
    elif len(unreadable):
        what = "rows kept as masked (unreadable, or not finite)"
        problems.append(Problem(what, unreadable))
    if file.class_names is None:
        if (file.labels >= 0).any():
            text = "labels are there but the classes were not declared (--classes)"
            problems.append(Problem(text))
        return problems
    if (file.labels == -1).all():
        return [*problems, Problem("no row has a label")]
    outside = np.flatnonzero((file.labels < 0) | (file.labels >= len(file.class_names)))
    if len(outside):
        text = "rows without a label, or with one outside the classes"
        problems.append(Problem(text, outside))
    return problems


def _equal(file: FeaturesFile) -> list[Problem]:
    """Report images that occur more than once: each row should be another image."""
    keys, real = _images(file), _has_image(file)
    found = {"in two splits": _in_two(keys, file.split, real)}
    found["in two classes"] = _in_two(keys, file.labels, real & (file.labels >= 0))
    if file.group is not None:
        alone = -1 - np.arange(file.n_rows)  # rows without a group, each on its own
        groups = np.where(file.group < 0, alone, file.group)
        found["in two groups"] = _in_two(keys, groups, real)
    reported = np.concatenate(list(found.values()))
    twice = _in_two(keys, np.arange(file.n_rows), real)
    found["that stand twice"] = np.setdiff1d(twice, reported)
    return [
        Problem(f"equal images {where}", rows)
        for where, rows in found.items()
        if len(rows)
    ]


def _groups(file: FeaturesFile) -> list[Problem]:
    """Report groups that are named like a missing value: each is one group."""
    problems = []
    for name in _LIKE_MISSING if file.group is not None else ():
        rows = np.flatnonzero(file.group == text_group(name))
        if len(rows):
            text = f"rows of one group named {name} (leave the group empty if missing)"
            problems.append(Problem(text, rows))
    return problems


def _images(file: FeaturesFile) -> np.ndarray:
    """Return (n,) int64 numbers that are equal for equal images."""
    digests = np.ascontiguousarray(file.row_digest).view("V16").ravel()
    return np.unique(digests, return_inverse=True)[1]


def _has_image(file: FeaturesFile) -> np.ndarray:
    return file.valid & file.row_digest.any(axis=1)


def _across_splits(file: FeaturesFile) -> list[Problem]:
    problems = []
    if len(file.split) and int(file.split.max(initial=0)) >= len(file.split_names):
        problems.append(Problem("split codes beyond split_names"))
    if len(np.unique(file.split)) < 2:
        return problems
    equal = _in_two(_images(file), file.split, _has_image(file))
    near = np.setdiff1d(near_equal(file.image_hash, file.split, file.valid), equal)
    if len(near):
        chance = sum(near_by_chance(file.image_hash, file.split, file.valid).values())
        text = f"{_NEAR} in two splits, {chance:,} by chance"
        problems.append(Problem(text, near))
    if file.group is not None:
        shared = _in_two(file.group, file.split, file.group != NO_GROUP)
        if len(shared):
            problems.append(Problem("rows whose group is in two splits", shared))
    return problems


def _between(file: FeaturesFile, other: FeaturesFile) -> list[Problem]:
    hashes = np.concatenate([file.image_hash, other.image_hash])
    valid = np.concatenate([file.valid, other.valid])
    side = np.concatenate(
        [np.zeros(file.n_rows, np.uint8), np.ones(other.n_rows, np.uint8)]
    )
    near = near_equal(hashes, side, valid)
    near = near[near < file.n_rows]
    chance = near_by_chance(hashes, side, valid)[0]
    text = f"{_NEAR} to one of {other.path.name}, {chance:,} by chance"
    found = [Problem(text, near)] if len(near) else []
    if file.feature_space == other.feature_space:
        own, theirs = _features_digests(file), set(_features_digests(other))
        equal = np.flatnonzero([key is not None and key in theirs for key in own])
        text = f"rows whose features are those of a row of {other.path.name}"
        found += [Problem(text, equal)] if len(equal) else []
    return found


def _features_digests(file: FeaturesFile) -> list[bytes | None]:
    """Return a digest of each row's features.

    It is None for a row of an image, which hashes compare, and for a masked row.
    """
    found: list[bytes | None] = []
    for start, stop, block, _ in blocks(file):
        used = file.valid[start:stop] & (file.image_hash[start:stop] == 0)
        rows = zip(block["features"], used, strict=True)
        found += [blake2b(x.tobytes()).digest() if use else None for x, use in rows]
    return found


def _in_two(keys: np.ndarray, split: np.ndarray, use: np.ndarray) -> np.ndarray:
    """Return the ordinals of used rows with a key that is in more than one split."""
    rows = np.flatnonzero(use)
    own_keys = keys[rows].astype(np.int64)
    own_splits = split[rows].astype(np.int64)
    pairs = np.unique(np.stack([own_keys, own_splits], 1), axis=0)
    values, counts = np.unique(pairs[:, 0], return_counts=True)
    return rows[np.isin(keys[rows], values[counts > 1])]


def near_equal(hashes: np.ndarray, split: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Return the ordinals of rows that have a near-equal image in another split.

    Near-equal hashes differ in at most 2 bits; hash 0 is no hash. Two differing bits
    leave one of three bands of the hash unchanged. So only rows that share a band are
    compared.
    """
    rows = np.flatnonzero(valid & (hashes != 0))
    found = np.zeros(len(hashes), bool)
    pairs = np.stack([hashes[rows], split[rows].astype(np.uint64)], 1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    hit = np.zeros(len(unique), bool)
    for low, width in ((0, 22), (22, 21), (43, 21)):
        band = (unique[:, 0] >> np.uint64(low)) & np.uint64((1 << width) - 1)
        order = np.argsort(band, kind="stable")
        ordered = band[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        for bucket in np.split(order, starts[1:]):
            codes = unique[bucket, 1]
            if len(bucket) > 1 and (codes != codes[0]).any():
                _compare(unique, bucket, hit)
    found[rows] = hit[inverse]
    return np.flatnonzero(found)


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
        The number of rows in the largest split, by its code, and in the other splits
        together, by the code of the next largest one.

    Notes
    -----
    A random part of the largest split stands for the other splits: no image of it is in
    two splits. Images that occur twice inside the split count as chance too. Small,
    similar pictures, such as digits, collide often: of 70,000 rows of MNIST 9,861 do.
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


def _compare(unique: np.ndarray, bucket: np.ndarray, hit: np.ndarray) -> None:
    for start in range(0, len(bucket), 1024):
        part = bucket[start : start + 1024]
        near = (
            np.bitwise_count(unique[part, 0][:, None] ^ unique[bucket, 0][None, :])
            <= _NEAR_BITS
        )
        near &= unique[part, 1][:, None] != unique[bucket, 1][None, :]
        hit[part] |= near.any(axis=1)
