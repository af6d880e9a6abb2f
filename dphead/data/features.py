"""Read the rows of a features file, from memory or streamed from disk.

`FeaturesRows` first checks all rows of the file against their digests. No other check
reads a row's values.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from itertools import pairwise
from pathlib import Path

import numpy as np
from dphead_extract.features.format import (
    FeaturesFile,
    FormatError,
    check_blocks,
    open_features,
)
from dphead_extract.items import name_of

from dphead.data.arrays import ArrayRows, capped, held_labels, within_group_cap
from dphead.data.blocks import (
    BLOCK_ROWS,
    padded,
    rows_of_block,
    streamed_rows,
    to_float32,
)
from dphead.privacy.contract import Block, Known

# Chosen, not measured.
_BLOCKS_AHEAD = 2  # blocks that are read while others are summed
_DROPPED_ROWS = 4  # longest gap that is read and dropped, instead of a second read
# Number of blocks that are joined if earlier passes kept their rows. With 1, 4 and 8
# blocks, `auto` took 24, 22 and 23 s on 60,000 x 3,969 rows, and 65, 59 and 59 s on
# 50,000 x 15,552 rows (one run each, Xeon, 2 cores).
_KNOWN_TOGETHER = 4


def streaming_bytes(n_features: int, threads: int) -> int:
    """Return the memory for float32 blocks of a streamed file, in bytes.

    It covers blocks that are read ahead, blocks that wait or are processed on each
    thread, and one block that is being read.
    """
    blocks = _BLOCKS_AHEAD + 2 * threads + 4
    return 4 * streamed_rows(n_features) * (n_features + 1) * blocks


class FeaturesRows:
    """Read the rows of one split of a features file.

    The rows are loaded if they fit in memory. Otherwise they are streamed from disk,
    and blocks are read ahead.

    Parameters
    ----------
    file : FeaturesFile
        Open features file.
    split : str, optional
        Split to use. None means the file's only split.
    memory : int, default 2 GiB
        Bytes that the loaded features may take. Larger features are streamed.
    group_cap : int, optional
        Largest number of rows used in each of the file's groups. The first rows are
        used.
    group_mean : bool, default False
        Whether means of groups are used instead of rows, as in `ArrayRows`.
    label_sets : ndarray of shape (n_rows, n_classes), optional
        Label sets of ones and zeros, one for each row of the split, in its order. They
        replace the file's labels.

    Attributes
    ----------
    valid : ndarray of bool, shape (n_rows,)
        False for unreadable images. Their rows add zero to every sum, so n_rows stays
        the public number of images.
    groups : ndarray of int64, shape (n_rows,), or None
        The group id of each row, even of rows beyond the cap; None without groups.

    Raises
    ------
    FormatError
        If a row was changed after it was written. If `split_slots` refuses the split.
        If `group_cap` is given for a file without groups. If the number of label sets
        is not the number of rows.
    ValueError
        If `group_mean` is set without `group_cap`, or for label sets.
    """

    def __init__(
        self,
        file: FeaturesFile,
        split: str | None = None,
        memory: int = 2 << 30,
        group_cap: int | None = None,
        label_sets: np.ndarray | None = None,
        group_mean: bool = False,
    ) -> None:
        check_blocks(file)
        self._file = file
        self._slots = split_slots(file, split)
        self.n_rows, self.n_features = len(self._slots), file.n_features
        labels = file.labels[self._slots] if label_sets is None else label_sets
        self.has_sets = label_sets is not None
        check_one_each(labels, self.n_rows)
        check_groups(file, group_cap)
        self._y = held_labels(labels)
        self.valid = file.valid[self._slots]
        self._y[~self.valid] = -1
        self.groups = None if file.group is None else file.group[self._slots]
        self.within = within_group_cap(self.groups, group_cap, self._y.shape[:1])
        cap = self.groups, group_cap, group_mean
        self._y, self._means = capped(self._y, self.within, *cap)
        self._whole = self  # a part's means use rows of the whole split
        self.group_cap = group_cap
        self._loaded = None
        self._load(memory)

    def part(self, start: int, stop: int, memory: int) -> "FeaturesRows":
        """Return rows start to stop - 1 as a new `FeaturesRows`.

        The features are loaded if they fit in `memory` bytes. The group cap applies to
        the whole split.
        """
        own = copy(self)
        own._slots, own._y, own.within, own.valid = (
            a[start:stop] for a in (self._slots, self._y, self.within, self.valid)
        )
        own.n_rows, own._loaded = len(own._slots), None
        if self.groups is not None:
            own.groups = self.groups[start:stop]
        if self._means is not None:
            own._means = self._means.part(start, stop)
        own._load(memory)
        return own

    @property
    def streamed(self) -> bool:
        """Return whether passes read the features from disk."""
        return self._loaded is None

    def features(self) -> np.ndarray:
        """Return the features of all rows, (n_rows, n_features) float32."""
        x = np.empty((self.n_rows, self.n_features), np.float32)
        raw = self._buffer()
        for start in range(0, self.n_rows, BLOCK_ROWS):
            index = np.arange(start, min(start + BLOCK_ROWS, self.n_rows))
            self._read(index, raw, x[start : start + len(index)])
        return x

    def measured_features(self) -> np.ndarray:
        """Return `features` with NaN in the rows of unreadable images."""
        x = self.features()
        x[~self.valid] = np.nan
        return x

    def measured_labels(self) -> np.ndarray:
        """Return the file's class indices (n_rows,), even of rows that no fit uses."""
        return held_labels(self._file.labels[self._slots])

    def image_digests(self) -> np.ndarray | None:
        """Return the salted digests of the rows' images, (n_readable,) uint64. Private.

        None for rows that a schema encoded: different people may have equal values.
        """
        if "schema" in self._file.config["transform"]:
            return None
        digests = self._file.row_digest[self._slots[self.valid]]
        return digests[digests.any(axis=1), :8].copy().view(np.uint64)[:, 0]

    def labels(self) -> np.ndarray:
        """Return class indices (n_rows,) int32, or label sets (n_rows, n_classes) int8.

        Labels that training does not use are -1.
        """
        return self._y

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Yield blocks that hold each row, or each of `indices`, once.

        A short last block is padded with index -1. Features that the pass keeps from
        earlier passes (`known`) are not read from disk again.
        """
        if self._loaded is not None:
            yield from self._loaded.blocks(indices)
            return
        order = np.arange(self.n_rows) if indices is None else indices
        size = rows_of_block(
            streamed_rows(self.n_features), self.n_rows, indices is not None
        )
        raw = self._buffer()
        ahead: deque[Block | Future[Block]] = deque()
        with ThreadPoolExecutor(1) as reader:
            for part, unread in self._parts(order, size, known):
                if unread is not None:
                    ahead.append(unread)
                else:
                    ahead.append(reader.submit(self._block, part, raw, size))
                if len(ahead) > _BLOCKS_AHEAD:
                    yield _read_block(ahead.popleft())
            for block in ahead:
                yield _read_block(block)

    def _parts(
        self, order: np.ndarray, size: int, known: Known | None
    ) -> Iterator[tuple[np.ndarray, Block | None]]:
        """Yield (slots, block) for each block, or (slots, None) if it must be read.

        If earlier passes kept all rows of a block (`known`), the block has labels, but
        no features. A block has `size` slots (positions of rows). Where all rows are
        kept, it has _KNOWN_TOGETHER times `size` slots.
        """

        def unread(part: np.ndarray) -> Block | None:
            if known is None:
                return None
            nothing = np.empty((len(part), 0), np.float32)
            rows = max(size, len(part))
            block = padded(part, nothing, self._y[part], rows)
            return block if known(block.index) else None

        together = _KNOWN_TOGETHER * size
        for i in range(0, len(order), together):
            part = order[i : i + together]
            block = unread(part) if len(part) == together else None
            if block is not None:
                yield part, block
                continue
            for start in range(0, len(part), size):
                few = part[start : start + size]
                yield few, unread(few)

    def _load(self, memory: int) -> None:
        if self.n_rows * self.n_features * 4 <= memory:
            x = self._counted_rows()
            # no cap is needed: labels of rows beyond it are -1 already
            self._loaded = ArrayRows(x, self._y)

    def _counted_rows(self) -> np.ndarray:
        """Return the features for training: each slot's row, or its group's mean."""
        if self._means is None:
            return self.features()
        x = np.empty((self.n_rows, self.n_features), np.float32)
        self._write_means(np.arange(self.n_rows), self._buffer(), x)
        return x

    def _write_means(self, index: np.ndarray, raw: np.ndarray, out: np.ndarray) -> None:
        def read(rows: np.ndarray) -> np.ndarray:
            x = np.empty((len(rows), self.n_features), np.float32)
            self._whole._read(rows, raw, x)
            return x

        assert self._means is not None
        self._means.write(index, read, out)

    def _buffer(self) -> np.ndarray:
        return np.empty((BLOCK_ROWS, self.n_features), self._file.dtype)

    def _block(self, index: np.ndarray, raw: np.ndarray, size: int) -> Block:
        x = np.empty((len(index), self.n_features), np.float32)
        if self._means is None:
            self._read(index, raw, x)
        else:
            self._write_means(index, raw, x)
        return padded(index, x, self._y[index], size)

    def _read(self, index: np.ndarray, raw: np.ndarray, out: np.ndarray) -> None:
        """Read features of increasing rows `index` to out (k, n_features) float32.

        One read takes a run of rows with small gaps.
        """
        slots = self._slots[index]
        # a run also ends at a multiple of BLOCK_ROWS, so that none is longer than `raw`
        apart = (np.diff(slots) > _DROPPED_ROWS) | (np.diff(slots // BLOCK_ROWS) > 0)
        for start, stop in pairwise(
            [0, *(np.flatnonzero(apart) + 1).tolist(), len(slots)]
        ):
            first = int(slots[start])
            end = int(slots[stop - 1]) + 1
            whole = end - first == stop - start
            given, place = raw, np.s_[: end - first]
            if whole and raw.dtype == out.dtype:
                given, place = out, np.s_[start:stop]
            self._file.features.read_direct(given, np.s_[first:end], place)
            if given is raw:
                run = raw[place] if whole else raw[slots[start:stop] - first]
                to_float32(run, out[start:stop])


def _read_block(block: Block | Future[Block]) -> Block:
    return block if isinstance(block, Block) else block.result()


def check_groups(file: FeaturesFile, group_cap: int | None) -> None:
    """Raise FormatError if `group_cap` is given and the file has no groups."""
    if group_cap is not None and file.group is None:
        raise FormatError(
            f"`--group-cap` (`group_cap`) needs groups, and {file.path} has none. "
            "Extract again with `--columns group=NAME`, or drop the cap."
        )


def check_classes(file: FeaturesFile, classes: Iterable[object]) -> None:
    """Raise FormatError if these classes contradict the labels of the file.

    A file without class names holds only indices. Numbers as class names would
    contradict these indices, unless they are 0, 1, 2, ...
    """
    names = [name_of(str(name)) or "" for name in classes]
    counted = [str(position) for position in range(len(names))]
    if not file.class_names and names != counted and all(map(str.isdecimal, names)):
        raise FormatError(
            f"{file.path} has no class names. Its labels are numbers from 0, which do "
            f"not match the classes {_listed(names)}. Extract again with `--classes`, "
            f"or name the classes {_listed(counted)}."
        )
    own = [name_of(name) or "" for name in file.class_names or []]
    if own and own != names:
        raise FormatError(
            f"The classes {_listed(names)} differ from the classes of {file.path}, "
            f"which are {_listed(own)} in this order. Use the file's classes, or a "
            "different file."
        )


def _listed(names: Sequence[str]) -> str:
    """Return names as text.

    Of more than six names, only the first five and the last are written.
    """
    if len(names) <= 6:
        return ",".join(names)
    return ",".join([*names[:5], "...", names[-1]])


def check_one_each(labels: np.ndarray, n_rows: int) -> None:
    """Raise FormatError unless there is a label or a label set for each row."""
    if len(labels) != n_rows:
        raise FormatError(
            f"The split has {n_rows} rows, and there are {len(labels)} label sets. "
            "Pass one label set per row, in the order of the split."
        )


def split_slots(file: FeaturesFile, split: str | None) -> np.ndarray:
    """Return the positions of a split's rows in the file.

    None means the file's only split. Raises FormatError if there are several, or if the
    file has no such split.
    """
    if split is None:
        if len(file.split_names) > 1:
            raise FormatError(
                f"{file.path} has the splits {', '.join(file.split_names)}. Choose "
                "one with --split (for a --test file: --test-split; in Python: "
                f'split="{file.split_names[0]}").'
            )
        return np.arange(file.n_rows)
    if split not in file.split_names:
        raise FormatError(
            f"{file.path} has no split {split!r}. Type one of its splits: "
            f"{', '.join(file.split_names)}."
        )
    return np.flatnonzero(file.split == file.split_names.index(split))


def load_features(
    path: str | Path,
    split: str | None = None,
    memory: int = 2 << 30,
    group_cap: int | None = None,
    group_mean: bool = False,
) -> tuple[FeaturesRows, FeaturesFile]:
    """Open a features file, and return the rows of one split and the file."""
    file = open_features(path)
    return FeaturesRows(file, split, memory, group_cap, group_mean=group_mean), file
