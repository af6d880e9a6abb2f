"""Arrays or features.h5 as private rows: blocks of fixed shape, padded, in order, read
ahead where they are on disk.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from itertools import pairwise
from pathlib import Path

import numpy as np

from dphead.privacy.contract import Block, Known
from dphead.privacy.sampling import within_cap
from dphead.sums.passes import cores
from extract.format import FeaturesFile, FormatError, group_ids, open_features

CHUNK = 128  # rows that kernels add at a time: blocks have a multiple of it
BLOCK_ROWS = 2048
# of a streamed block. First passes over 50,000 x 15,552 rows took 7.3, 6.5, 4.3 s with
# 32, 16, 8 MB (larger memory is taken from the system anew for each block), further
# ones 0.44, 0.51, 0.60 s; with blocks of 127 MB 10.6 and 0.70 s.
BLOCK_BYTES = 16 << 20
# blocks of rows in memory that are one, where there are so many for each core: fewer
# calls
TOGETHER = 4
SAMPLE_ROWS = 2 * CHUNK  # of a block of a sample
AHEAD = 2  # blocks that are read while others are summed
GAP = 4  # rows that are read and dropped rather than asked for apart


class ArrayRows:
    """Rows in memory.

    x: (n_rows, n_features) float; y: (n_rows,) int class positions, anything else
    counts zero.

    groups: (n_rows,) integers that int64 holds (`group_ids`), negative for a row on its
    own; with group_cap only the first so many rows of each count.
    Kept as float32: a float64 value beyond float32's range becomes infinite, and its
    row counts zero.
    block_rows: rows of a block; by default 2,048, and more together where each core has
    enough.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        block_rows: int | None = None,
        groups: np.ndarray | None = None,
        group_cap: int | None = None,
    ) -> None:
        if x.ndim != 2 or y.shape != (x.shape[0],):
            raise ValueError(
                f"x must be (n, d) and y (n,), got {x.shape=}, {y.shape=}. Reshape "
                "them."
            )
        with np.errstate(over="ignore"):
            # masked or not, a chunk goes to the same kernel
            self._x = np.require(x, np.float32, ["C", "A"])
        # 2**32 must not come round to class 0
        held = (y >= 0) & (y < 2**31)
        self._y = np.where(held, y, -1).astype(np.int32)
        self.within = _within(groups, group_cap, y.shape)
        self._y[~self.within] = -1
        self.group_cap = group_cap
        self._most, self._together = (
            (block_rows, 1) if block_rows else (BLOCK_ROWS, TOGETHER)
        )
        self.n_rows, self.n_features = x.shape

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Blocks that hold each row (or each of `indices`) once; the last is padded
        with index -1.
        """
        size = _block_rows(self._most, self.n_rows, indices is not None)
        if indices is not None:
            for chosen in (indices[i : i + size] for i in range(0, len(indices), size)):
                yield _padded(chosen, self._x[chosen], self._y[chosen], size)
            return
        large = self._together * size
        # each core has as many large blocks
        end = self.n_rows // (large * cores()) * large * cores()
        for first, last, rows in ((0, end, large), (end, self.n_rows, size)):
            for i in range(first, last, rows):
                part = slice(i, min(i + rows, last))  # views, but for the last block
                yield _padded(
                    np.arange(part.start, part.stop), self._x[part], self._y[part], rows
                )


class FeaturesRows:
    """Rows of one split of a features.h5, streamed from disk with blocks read ahead, or
    loaded if they fit.

    split: the name of the split to use. memory: bytes that the loaded features may
        take; beyond it they are streamed.
    group_cap: only the first so many rows of each of the file's groups count;
        FormatError if it has none.
    Unreadable images are rows that count zero, so n_rows stays the public number of
    images.
    """

    def __init__(
        self,
        file: FeaturesFile,
        split: str | None = None,
        memory: int = 2 << 30,
        group_cap: int | None = None,
    ) -> None:
        self._file = file
        self._slots = split_slots(file, split)
        self.n_rows, self.n_features = len(self._slots), file.n_features
        labels = np.where(file.valid, file.labels, -1).astype(np.int32)
        self._y = labels[self._slots]
        check_groups(file, group_cap)
        self.within = _within(
            None if file.group is None else file.group[self._slots],
            group_cap,
            self._y.shape,
        )
        self._y[~self.within] = -1
        self.group_cap = group_cap
        self._loaded = None
        self._load(memory)

    def part(self, start: int, stop: int, memory: int) -> "FeaturesRows":
        """Rows start to stop - 1 as rows of their own, loaded if they fit in `memory`.

        The cap is that of the whole.
        """
        own = copy(self)
        own._slots, own._y, own.within = (
            a[start:stop] for a in (self._slots, self._y, self.within)
        )
        own.n_rows, own._loaded = len(own._slots), None
        own._load(memory)
        return own

    @property
    def streamed(self) -> bool:
        """Whether features are read from disk at each pass."""
        return self._loaded is None

    def features(self) -> np.ndarray:
        """All rows, (n_rows, n_features) float32."""
        x = np.empty((self.n_rows, self.n_features), np.float32)
        raw = self._buffer()
        for start in range(0, self.n_rows, BLOCK_ROWS):
            index = np.arange(start, min(start + BLOCK_ROWS, self.n_rows))
            self._read(index, raw, x[start : start + len(index)])
        return x

    def labels(self) -> np.ndarray:
        """Class positions, (n_rows,) int32, -1 where there is none."""
        return self._y

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        """Blocks that hold each row (or each of `indices`) once; the last is padded
        with index -1.

        Features that the pass knows are not read.
        """
        if self._loaded is not None:
            yield from self._loaded.blocks(indices)
            return
        order = np.arange(self.n_rows) if indices is None else indices
        size = _block_rows(
            streamed_rows(self.n_features), self.n_rows, indices is not None
        )
        parts = (order[i : i + size] for i in range(0, len(order), size))
        raw = self._buffer()
        ahead: deque[Block | Future[Block]] = deque()
        with ThreadPoolExecutor(1) as reader:
            for part in parts:
                unread = _padded(
                    part, np.empty((len(part), 0), np.float32), self._y[part], size
                )
                if known is not None and known(unread.index):
                    ahead.append(unread)
                else:
                    ahead.append(reader.submit(self._block, part, raw, size))
                if len(ahead) > AHEAD:
                    yield _read_block(ahead.popleft())
            for block in ahead:
                yield _read_block(block)

    def _load(self, memory: int) -> None:
        if self.n_rows * self.n_features * 4 <= memory:
            # the cap is in the labels
            self._loaded = ArrayRows(self.features(), self._y)

    def _buffer(self) -> np.ndarray:
        return np.empty((BLOCK_ROWS, self.n_features), self._file.dtype)

    def _block(self, index: np.ndarray, raw: np.ndarray, size: int) -> Block:
        x = np.empty((len(index), self.n_features), np.float32)
        self._read(index, raw, x)
        return _padded(index, x, self._y[index], size)

    def _read(self, index: np.ndarray, raw: np.ndarray, out: np.ndarray) -> None:
        """Features of increasing rows `index` into out (k, n_features) float32: each
        run of near slots in one read.
        """
        slots = self._slots[index]
        # so that no run is longer than `raw`
        apart = (np.diff(slots) > GAP) | (np.diff(slots // BLOCK_ROWS) > 0)
        for start, stop in pairwise(
            [0, *(np.flatnonzero(apart) + 1).tolist(), len(slots)]
        ):
            first = int(slots[start])
            end = int(slots[stop - 1]) + 1
            self._file.features.read_direct(raw, np.s_[first:end], np.s_[: end - first])
            run = (
                raw[: end - first]
                if end - first == stop - start
                else raw[slots[start:stop] - first]
            )
            to_float32(run, out[start:stop])


def streamed_rows(n_features: int) -> int:
    """Rows of a block that is read from disk."""
    return max(CHUNK, min(BLOCK_ROWS, BLOCK_BYTES // (4 * n_features)) // CHUNK * CHUNK)


def _read_block(block: Block | Future[Block]) -> Block:
    return block if isinstance(block, Block) else block.result()


def to_float32(x: np.ndarray, out: np.ndarray) -> None:
    """out[...] = x, (k, d) float16 or float32.

    Seven times numpy's own speed for float16, bit for bit the same.

    A value that is not finite may come out as another that is not finite.
    """
    if x.dtype != np.float16:
        out[...] = x
        return
    huge = np.float32(2.0**112)
    tiny = np.float32(2.0**-112)
    with np.errstate(over="ignore"):
        for i in range(0, len(x), 64):  # in the cache
            values = out[i : i + 64]
            bits = values.view(np.int32)
            bits[...] = x[i : i + 64].view(np.int16)
            # exponent and fraction to their places; the sign is also in the three bits
            # below its own
            bits <<= 13
            bits &= np.int32(-0x70002000)
            values *= huge  # the exponents' biases differ by 112; denormal numbers too
            values *= huge  # what was not finite becomes infinite
            values *= tiny


def check_groups(file: FeaturesFile, group_cap: int | None) -> None:
    """FormatError if groups are to be capped and the file has none."""
    if group_cap is not None and file.group is None:
        raise FormatError(
            f"group_cap needs a file with groups, got {group_cap=}. Extract with a "
            "group column."
        )


def check_views(file: FeaturesFile, relation: str) -> None:
    """FormatError for views that followed the slot where a row less moves all later
    slots.
    """
    if relation == "add_remove" and file.views.get("keyed_by") == "slot":
        raise FormatError(
            "under add_remove a row's views must follow its image, got a features "
            f"file of an earlier version with views={file.views}. Extract it again."
        )


def split_slots(file: FeaturesFile, split: str | None) -> np.ndarray:
    """Positions of a split's rows in the file; None means the file's only split."""
    if split is None:
        if len(file.split_names) > 1:
            raise FormatError(
                "a file with several splits needs --split, got "
                f"splits={file.split_names}. Name the one to use."
            )
        return np.arange(file.n_rows)
    if split not in file.split_names:
        raise FormatError(
            f"split must be one of {file.split_names}, got {split=}. Choose one of "
            "them."
        )
    return np.flatnonzero(file.split == file.split_names.index(split))


def load_features(
    path: str | Path,
    split: str | None = None,
    memory: int = 2 << 30,
    group_cap: int | None = None,
) -> tuple[FeaturesRows, FeaturesFile]:
    """Open a features file and one of its splits."""
    file = open_features(path)
    return FeaturesRows(file, split, memory, group_cap), file


def _within(
    groups: np.ndarray | None, group_cap: int | None, shape: tuple[int, ...]
) -> np.ndarray:
    """(n,) bool: the rows within the cap of their group, all of them without a cap."""
    if group_cap is None:
        return np.ones(shape, bool)
    if groups is None:
        raise ValueError(
            f"group_cap needs a group for each row, got {group_cap=} and no groups. "
            "Give them."
        )
    groups = group_ids(groups, shape[0])
    return within_cap(groups, group_cap)


def _block_rows(wanted: int, n_rows: int, sampled: bool) -> int:
    """A multiple of CHUNK, no larger than all n_rows need; for a sample one size for
    all, whatever there is.

    So no shape, and no message about memory, tells the size of a sample. That of a full
    batch tells a small n to 128 rows, also where n is private: as the number of blocks
    does, to this process alone (AUDIT.md, "Not protected").
    """
    most = min(wanted, SAMPLE_ROWS) if sampled else min(wanted, n_rows)
    return CHUNK * max(1, -(-most // CHUNK))


def _padded(index: np.ndarray, x: np.ndarray, y: np.ndarray, rows: int) -> Block:
    missing = rows - len(index)
    if missing:
        index = np.concatenate([index, np.full(missing, -1)])
        # zeros that nobody reads take no memory
        x, given = np.zeros((rows, x.shape[1]), np.float32), x
        x[: len(given)] = given
        y = np.concatenate([y, np.full(missing, -1, np.int32)])
    return Block(index, x, y)
