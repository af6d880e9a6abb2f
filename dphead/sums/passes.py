"""Sum a statistic in one pass over the rows, each slot once, in integers.

A pass returns a sum only after it counted its slots. If the block sum `is_compared`,
the pass also compares a secret run of rows with the reference.
"""

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, reduce
from itertools import chain, islice
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from dphead.privacy.contract import Block, SumTask
from dphead.privacy.transform import IntegerRows
from dphead.sums.caches import KeptRows
from dphead.sums.reference import BlockSum, ReferenceSums, rows_key
from dphead.sums.tuning import CHECKED_PIECE_ROWS, CHECKED_ROWS, MAX_SUM_COPY_BYTES

_REFERENCE = ReferenceSums()
NO_ROWS = KeptRows(0)


@dataclass
class SlotCount:
    """Count the uses of each slot in a pass.

    Parameters
    ----------
    wanted : ndarray of bool, shape (n_rows,)
        Slots that the pass must use.
    seen : ndarray of int64, shape (n_rows,)
        Number of uses of each slot.
    """

    wanted: np.ndarray
    seen: np.ndarray

    @classmethod
    def of(cls, n_rows: int, indices: np.ndarray | None) -> "SlotCount":
        """Return a count for all slots, or for the slots `indices`."""
        wanted = np.ones(n_rows, bool)
        if indices is not None:
            wanted[:] = False
            wanted[indices] = True
        return cls(wanted, np.zeros(n_rows, np.int64))

    def add(self, index: np.ndarray) -> np.ndarray:
        """Count a block's slots, and return (k,) bool: False for padding."""
        used = index >= 0
        np.add.at(self.seen, index if used.all() else index[used], 1)
        return used

    def check(self) -> None:
        """Raise RuntimeError unless each wanted slot, and no other, was used once."""
        if not np.array_equal(self.seen, self.wanted.astype(np.int64)):
            raise RuntimeError(
                "a pass must use each row slot exactly once. "
                "This is a defect in the row source."
            )


def checked_sum(
    ask: SumTask, block_sum: BlockSum, kept: KeptRows = NO_ROWS
) -> np.ndarray:
    """Return the sum over all slots of the task's rows, or over its `indices`.

    Parameters
    ----------
    ask : SumTask
        The statistic and the rows.
    block_sum : BlockSum
        Summation backend for one block.
    kept : KeptRows
        Integer rows of earlier passes. Features are read only for other rows.

    Returns
    -------
    ndarray of int64
        Sum in the query's shape.

    Raises
    ------
    RuntimeError
        If a slot is not used exactly once, or if the secret run's integers differ from
        the reference's.

    Guarantee
    ---------
    Each slot counts once, or the pass raises RuntimeError. If the block sum
    `is_compared`, the contribution of a random secret run of rows must equal the
    reference's integers, or the pass raises RuntimeError. Whether a fit stops reveals
    one bit per attempt about a defect and its rows.
    """
    rows, indices = ask.rows, ask.indices
    assert rows is not None
    count = SlotCount.of(rows.n_rows, indices)
    exact = block_sum.is_compared(ask.query)
    tested = _secret_slot(rows.n_rows, indices) if exact else None
    key = rows_key(ask)

    def known(index: np.ndarray) -> bool:
        return kept.holds(key, index) and (tested is None or tested not in index)

    def checked() -> Iterator[tuple[Block, np.ndarray]]:
        for block in rows.blocks(indices, known):
            _check_block(block, rows.n_features)
            yield block, count.add(block.index)

    def add(item: tuple[Block, np.ndarray], out: Any) -> Any:
        block, used = item

        def make() -> Any:
            _check_features(block)
            return block_sum.rows(ask, block)

        pieces = kept(key, block.index, make)
        if tested is None or tested not in block.index:
            for made, run in pieces:
                out = block_sum.add(ask, made, block.y[run], used[run], out)
            return out
        # `known` is False for this block. The block has the row source's own size: one
        # piece
        ((made, _),) = pieces
        return _add_checked(ask, block_sum, made, block, used, tested, out)

    def empty() -> np.ndarray:
        return empty_sum(ask, rows.n_features)

    if block_sum.parallel:
        total = _on_every_core(add, checked(), empty)
    else:  # this block sum already uses every core or a device
        total = reduce(lambda out, item: add(item, out), checked(), empty())
    count.check()
    total = np.ascontiguousarray(total)
    if ask.query.symmetric:
        mirror(total[..., : total.shape[-1], :])
    return total


def empty_sum(ask: SumTask, n_features: int) -> np.ndarray:
    """Return int64 zeros in the shape and memory layout that the kernels expect.

    Columns are contiguous if they are longer than rows. Checks also use this function,
    because another layout would use another kernel.
    """
    shape = ask.shape(n_features)
    if ask.query.kind == "outer" and shape[0] > shape[-1]:
        return np.zeros(shape[::-1], np.int64).T
    return np.zeros(shape, np.int64)


def mirror(square: np.ndarray, strip: int = 192) -> None:
    """Make matrices (..., d, d) symmetric in place, from their upper triangles."""
    d = square.shape[-1]
    for i in range(0, d, strip):
        own = slice(i, i + strip)
        rest = slice(i + strip, None)
        above = square[..., own, rest]
        square[..., rest, own] = above.swapaxes(-1, -2)
        corner = square[..., own, own]
        upper = np.triu(corner, 1)
        corner[...] = np.triu(corner) + upper.swapaxes(-1, -2)


def _part_of(rows: Any, run: slice) -> Any:
    """Return a run of rows made by a `BlockSum`."""
    if isinstance(rows, IntegerRows):
        return IntegerRows(rows.q[run], rows.scale[run])
    return rows.part(run)


def _secret_slot(n_rows: int, indices: np.ndarray | None) -> int | None:
    n = n_rows if indices is None else len(indices)
    if n == 0:
        return None
    i = secrets.randbelow(n)
    return i if indices is None else int(indices[i])


def _check_block(block: Block, n_features: int) -> None:
    """Raise TypeError unless a block's arrays have the declared shapes and types.

    Otherwise broadcasting could add one column to all columns. A block of kept rows has
    no columns.
    """
    k = len(block.index)
    labels = block.y.ndim <= 2 and block.y.shape[1:] != (1,)
    fits = labels and block.index.shape == block.y.shape[:1] == (k,)
    fits = fits and block.x.shape in ((k, n_features), (k, 0))
    if not fits or block.x.dtype != np.float32 or block.y.dtype.kind != "i":
        raise TypeError(
            "a block must be float32 with a number for each feature, and a slot and "
            f"a whole number or a label set per row, got {block.x.dtype}, "
            f"{block.y.dtype}, {block.x.shape=}, {block.y.shape=}. This is a defect "
            "in the row source."
        )


def _check_features(block: Block) -> None:
    """Raise RuntimeError unless the features of a block were read."""
    if block.x.shape[1] == 0:
        raise RuntimeError(
            "a block whose rows are not kept must have features, got "
            f"{block.x.shape=}. This is a defect in the row source."
        )


def _add_checked(
    ask: SumTask,
    block_sum: BlockSum,
    made: Any,
    block: Block,
    used: np.ndarray,
    slot: int,
    out: Any,
) -> Any:
    """Add a block, and compare the run of rows around the secret slot.

    The run's share is the piece's contribution minus the contribution of the piece
    without the run. Therefore the check covers the used sum. Raises RuntimeError unless
    this share and the sum over only the run equal the reference's integers.
    """
    place = int(np.flatnonzero(block.index == slot)[0])
    first = place // CHECKED_PIECE_ROWS * CHECKED_PIECE_ROWS
    rows = len(block.index)
    for start in range(0, rows, CHECKED_PIECE_ROWS):
        piece = slice(start, min(start + CHECKED_PIECE_ROWS, rows))
        part = _part_of(made, piece)
        y, mask = block.y[piece], used[piece]
        if start != first:
            out = block_sum.add(ask, part, y, mask, out)
            continue
        before = np.array(out)
        out = block_sum.add(ask, part, y, mask, out)
        own_first = place // CHECKED_ROWS * CHECKED_ROWS
        run = slice(own_first, own_first + CHECKED_ROWS)
        others = mask.copy()
        others[run.start - start : run.stop - start] = False
        empty = empty_sum(ask, block.x.shape[1])
        without = block_sum.add(ask, part, y, others, empty)
        before += np.asarray(without)
        del empty, without  # keep three copies of a large sum in memory, not four
        share = np.subtract(np.asarray(out), before, out=before)
        own = Block(block.index[run], block.x[run], block.y[run])
        own_rows = _part_of(made, run)
        alone = empty_sum(ask, block.x.shape[1])
        alone = block_sum.add(ask, own_rows, own.y, used[run], alone)
        found = [share, np.asarray(alone)]
        _compare(ask, type(block_sum).__name__, found, own, used[run])
    return out


def _compare(
    ask: SumTask, name: str, found: list[np.ndarray], own: Block, used: np.ndarray
) -> None:
    """Raise RuntimeError unless every sum in `found` equals the reference's."""
    empty = empty_sum(ask, own.x.shape[1])
    rows = _REFERENCE.rows(ask, own)
    wanted = _REFERENCE.add(ask, rows, own.y, used, empty)
    if ask.query.symmetric:  # entries below the diagonal are unspecified
        for total in (*found, wanted):
            square = total[..., : total.shape[-1], :]
            square[...] = np.triu(square)
    if not all(np.array_equal(total, wanted) for total in found):
        raise RuntimeError(
            "fast sums must equal the reference's, got other integers with "
            f"{name}. This is a defect: use --backend reference."
        )


_libraries = cache(ThreadpoolController)  # finding the BLAS libraries takes 3 ms


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _on_every_core(
    add: Callable[[Any, Any], Any],
    items: Iterator[Any],
    empty: Callable[[], np.ndarray],
) -> np.ndarray:
    """Sum over items on all cores: each thread adds items to its own sum.

    Large sums use fewer threads (MAX_SUM_COPY_BYTES).
    """
    sums = [empty()]
    n_cores = cores()
    most = min(n_cores, MAX_SUM_COPY_BYTES // max(1, sums[0].nbytes))
    while len(sums) < most:
        sums.append(empty())
    first = list(islice(items, 2))
    items = chain(first, items)
    several = len(first) > 1
    del first  # otherwise two blocks stay in memory for the whole pass
    blas = _libraries().limit(limits=n_cores // len(sums), user_api="blas")
    with blas, ExitStack() as stack:
        if not several:  # starting a thread takes longer than summing a block
            return reduce(lambda out, item: add(item, out), items, sums[0])

        free = deque(range(len(sums)))  # sums not in use by a thread

        def step(item: Any) -> None:
            k = free.popleft()
            try:
                sums[k] = add(item, sums[k])
            finally:
                free.append(k)

        # use new threads per pass: threads of an interrupted pass could add to the next
        # one
        workers = stack.enter_context(ThreadPoolExecutor(len(sums)))
        running: deque[Future[Any]] = deque()
        for item in items:
            running.append(workers.submit(step, item))
            if len(running) > 2 * len(sums):
                running.popleft().result()
        for future in running:
            future.result()
    return reduce(np.add, sums)
