"""Sum a statistic in one pass over the rows, each slot once, in integers.

A slot is the position of a row in its source. A pass returns a sum only after it has
checked that each slot was used once. If the block sum `is_compared`, the pass also
compares the sum of a few random rows, the secret rows, with the reference.
"""

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, reduce
from itertools import chain, islice
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from dphead.privacy.contract import Block, SumTask
from dphead.privacy.statistic_base import Statistic
from dphead.sums.caches import KeptRows
from dphead.sums.reference import (
    BlockSum,
    check_equal,
    empty_sum,
    mirror,
    rows_key,
)
from dphead.sums.tuning import CHECKED_PIECE_ROWS, MAX_SUM_COPY_BYTES

_CHECKED_ROWS = 32  # secret rows, also added by the reference; chosen

NO_ROWS = KeptRows(0)


class _SlotCount:
    """Count the uses of each slot in a pass over all slots, or over `indices`."""

    def __init__(self, n_rows: int, indices: np.ndarray | None) -> None:
        self.seen = np.zeros(n_rows, np.int64)
        self.wanted = np.ones(n_rows, np.int64)
        if indices is not None:
            self.wanted[:] = 0
            self.wanted[indices] = 1

    def add(self, index: np.ndarray) -> np.ndarray:
        """Count a block's slots, and return (k,) bool: False for padding."""
        used = index >= 0
        # `seen[index] += 1` would miss the second use of a slot in one block
        np.add.at(self.seen, index if used.all() else index[used], 1)
        return used

    def check(self) -> None:
        """Raise RuntimeError unless each wanted slot, and no other, was used once."""
        if not np.array_equal(self.seen, self.wanted):
            raise RuntimeError(
                "Internal error: a pass must use each slot of its rows exactly once. "
                "Please report it."
            )


def checked_sum(
    asks: Sequence[SumTask], block_sum: BlockSum, kept: KeptRows = NO_ROWS
) -> list[np.ndarray]:
    """Return the sums over all slots of the tasks' rows, or over their `indices`.

    Parameters
    ----------
    asks : sequence of SumTask
        The statistics and the rows. If there are several tasks, they may differ in
        statistic and spec only, and all of their statistics must clip the features.
    block_sum : BlockSum
        Summation backend for one block.
    kept : KeptRows
        Integer rows of earlier passes. Features are read only for other rows, and for
        the block of the secret rows.

    Returns
    -------
    list of ndarray of int64
        Sum of each task in the shape of its statistic.

    Raises
    ------
    RuntimeError
        If several statistics do not use the same integer rows, if a slot is not used
        exactly once, or if the integers of the secret rows differ from the reference's.
    TypeError
        If a block does not have the declared shapes and types.

    Guarantee
    ---------
    Each slot counts once, or the pass raises RuntimeError. If the block sum
    `is_compared`, the contribution of random secret rows must equal the reference's
    integers, or the pass raises RuntimeError. If a block sum has a defect, whether a
    fit stops reveals one bit about the rows per attempt.
    """
    _check_same_rows([ask.statistic for ask in asks])
    ask = asks[0]
    rows, indices = ask.rows, ask.indices
    assert rows is not None
    count = _SlotCount(rows.n_rows, indices)
    exact = any(block_sum.is_compared(a.statistic) for a in asks)
    # A new slot for each pass: a kernel that is wrong on some rows cannot know which
    # rows are compared [proofs/sums.md].
    tested = secret_slot(rows.n_rows, indices) if exact else None
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
            if block.x.shape[1] == 0:
                raise RuntimeError(
                    "Internal error: the features of a block were not read. Please "
                    "report it."
                )
            return block_sum.rows(ask, block)

        # do not keep the rows of a count, because a plan has each count once
        keep = ask.statistic.clips != "nothing"
        pieces = kept(key, block.index, make, keep)
        if tested is None or tested not in block.index:
            for made, run in pieces:
                out = _each(block_sum.add, asks, out, made, block.y[run], used[run])
            return out
        # `known` is False for this block, so the source did not join it with others
        ((made, _),) = pieces
        return _each(_add_checked, asks, out, block_sum, made, block, used, tested)

    def empty() -> list[np.ndarray]:
        return [empty_sum(a, rows.n_features) for a in asks]

    if block_sum.parallel:
        totals = on_every_core(add, checked(), empty)
    else:  # no threads: this block sum already uses every core, or a device
        totals = reduce(lambda out, item: add(item, out), checked(), empty())
    count.check()  # raises before anyone uses a value of this pass
    return _each(_whole, asks, totals)


def _each(
    one: Callable[..., Any], asks: Sequence[SumTask], sums: Sequence[Any], *more: Any
) -> list[Any]:
    """Return one(task, *more, sum) for each task with its sum."""
    return [one(ask, *more, own) for ask, own in zip(asks, sums, strict=True)]


def _whole(ask: SumTask, total: Any) -> np.ndarray:
    """Return the sum as a writable array, with both triangles if it is symmetric."""
    total = np.require(total, requirements=["C", "W"])  # sums of a device are read-only
    if ask.statistic.symmetric:
        mirror(total)
    return total


def _check_same_rows(statistics: Sequence[Statistic]) -> None:
    """Raise RuntimeError unless all statistics use the same integer rows."""
    for statistic in statistics if len(statistics) > 1 else ():
        if type(statistic).rows is not Statistic.rows or statistic.clips != "features":
            raise RuntimeError(
                f"Internal error: {statistic.name} does not use the same rows as other "
                "statistics of the request. No row was read. Please report it."
            )


def secret_slot(n_rows: int, indices: np.ndarray | None) -> int | None:
    """Return the slot of a random row of the sample, or None for an empty sample."""
    # `secrets`, not a seeded generator: a kernel must not be able to predict the slot
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
    # labels (k, 1) are refused: they would broadcast against masks of shape (k,)
    labels = block.y.ndim <= 2 and block.y.shape[1:] != (1,)
    fits = labels and block.index.shape == block.y.shape[:1] == (k,)
    fits = fits and block.x.shape in ((k, n_features), (k, 0))
    if not fits or block.x.dtype != np.float32 or block.y.dtype.kind != "i":
        raise TypeError(
            f"Internal error: a block must have {n_features} float32 features and a "
            f"label for each slot, got {block.x.dtype} features of shape "
            f"{block.x.shape} and {block.y.dtype} labels of shape {block.y.shape}. "
            "Please report it."
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
    """Add a block, and compare the secret rows around the slot.

    The secret rows' share is the piece's contribution minus the contribution of the
    piece without them. Therefore the check covers the used sum. Raises RuntimeError
    unless this share and the sum over the secret rows alone equal the reference's
    integers.
    """
    n_features = block.x.shape[1]
    place = int(np.flatnonzero(block.index == slot)[0])
    first = place // CHECKED_PIECE_ROWS * CHECKED_PIECE_ROWS
    for start in range(0, len(block.index), CHECKED_PIECE_ROWS):
        piece = slice(start, start + CHECKED_PIECE_ROWS)
        part = made.part(piece)
        y, mask = block.y[piece], used[piece]
        if start != first:
            out = block_sum.add(ask, part, y, mask, out)
            continue
        # a copy: `add` may write to `out` in place
        before = np.array(out)
        out = block_sum.add(ask, part, y, mask, out)
        own_first = place // _CHECKED_ROWS * _CHECKED_ROWS
        run = slice(own_first, own_first + _CHECKED_ROWS)
        others = mask.copy()
        others[run.start - start : run.stop - start] = False
        empty = empty_sum(ask, n_features)
        without = block_sum.add(ask, part, y, others, empty)
        # share = (sum with the piece) - (sum before it) - (piece without secret rows)
        before += np.asarray(without)
        del empty, without  # free the fourth copy of a large sum
        share = np.subtract(np.asarray(out), before, out=before)
        own = Block(block.index[run], block.x[run], block.y[run])
        # Compare secret rows alone too: a kernel may treat short blocks differently.
        alone = empty_sum(ask, n_features)
        alone = block_sum.add(ask, made.part(run), own.y, used[run], alone)
        # a device's sum is read-only
        alone = np.require(alone, requirements="W")
        check_equal(ask, block_sum, [share, alone], own)
    return out


_libraries = cache(ThreadpoolController)  # finding the BLAS libraries takes 3 ms


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_every_core(
    add: Callable[[Any, Any], Any],
    items: Iterator[Any],
    empty: Callable[[], list[np.ndarray]],
) -> list[np.ndarray]:
    """Return the sums over all items. Each thread adds items to its own sums.

    Large sums use fewer threads (MAX_SUM_COPY_BYTES), and a single item uses none.
    """
    sums = [empty()]
    n_cores = cores()
    size = sum(one.nbytes for one in sums[0])
    most = min(n_cores, MAX_SUM_COPY_BYTES // max(1, size))
    while len(sums) < most:
        sums.append(empty())
    # two blocks tell whether threads are worth starting
    first = list(islice(items, 2))
    items = chain(first, items)
    several = len(first) > 1
    del first  # otherwise these two blocks stay in memory for the whole pass
    # BLAS and this pass together run at most one thread per core.
    blas = _libraries().limit(limits=n_cores // len(sums), user_api="blas")
    with blas, ExitStack() as stack:
        if not several:  # starting a thread takes longer than summing a block
            return reduce(lambda out, item: add(item, out), items, sums[0])

        free = deque(range(len(sums)))  # sums not in use by a thread

        def step(item: Any) -> None:
            # deque operations are atomic, and no more steps run than there are sums
            k = free.popleft()
            try:
                sums[k] = add(item, sums[k])
            finally:
                free.append(k)

        # New threads for each pass: threads of an interrupted pass could still add to
        # the sums of the next one.
        workers = stack.enter_context(ThreadPoolExecutor(len(sums)))
        running: deque[Future[Any]] = deque()
        for item in items:
            running.append(workers.submit(step, item))
            # wait: the row source would otherwise read the whole file into the queue
            if len(running) > 2 * len(sums):
                running.popleft().result()
        for future in running:
            future.result()
    return [reduce(np.add, parts) for parts in zip(*sums, strict=True)]
