"""What `release` is given: sums that are checked before and while they are used.

No sum may reach `release` by another way.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from dphead.privacy.contract import Block, SumRequest
from dphead.privacy.query import Params, Query
from dphead.privacy.statistics import ChannelMoment, Gradient
from dphead.privacy.transform import RowTransform
from dphead.sums.caches import KeptRows, NextSum
from dphead.sums.passes import checked_sum, empty_sum
from dphead.sums.reference import (
    Ask,
    BlockSum,
    ReferenceSums,
    ask_of,
    largest_norm,
)
from dphead.sums.tuning import KNOWN_ANSWER_PRODUCTS


class Door:
    """A `Summer` for the releases of one fit.

    block_sum: how blocks are summed. next_sum: `KeptSums` for further fits on the same
    rows. parts: None, or `SumOfParts` where the rows lie with several processes.
    memory: bytes of integer rows to keep between passes, where the block sum has them.
    Guarantee: for queries whose block sum `is_compared`, in each pass a secret run of
    rows gives the reference's integers (`checked_sum`), and `check` tries rows made to
    break the block sum before the charge.
    """

    def __init__(
        self,
        block_sum: BlockSum | None = None,
        next_sum: NextSum | None = None,
        parts: Any = None,
        memory: int = 0,
    ) -> None:
        self.block_sum = ReferenceSums() if block_sum is None else block_sum
        self.next_sum = NextSum() if next_sum is None else next_sum
        self.kept = KeptRows(memory)
        self._parts = parts
        self._checked: set[tuple[Query, int]] = set()

    def check(self, queries: Iterable[Query], n_features: int) -> None:
        """RuntimeError unless these queries' sums of hostile rows are the reference's.

        To be called before anything is charged. What was tried is not tried again.
        """
        compared = {(q, n_features) for q in queries if self.block_sum.is_compared(q)}
        untried = {q for q, _ in compared - self._checked}
        known_answers(self.block_sum, untried, n_features)
        self._checked |= compared

    def __call__(self, request: SumRequest) -> np.ndarray:
        """The sum, int64, in units of the query."""

        def total(query: Query) -> np.ndarray:
            ask = ask_of(query, request.params, request.clip_norm, request.rows)
            way = (self.block_sum, self.kept)
            if self._parts is not None:
                return self._parts(ask, request, *way)
            return checked_sum(ask, request.rows, request.indices, *way)

        return self.next_sum(request, total)

    def largest_norm(self, request: SumRequest) -> float:
        """The largest norm of what is clipped, for fits without privacy."""
        if self._parts is not None:
            return self._parts.largest_norm(request)
        ask = ask_of(request.query, request.params, request.clip_norm)
        return largest_norm(ask, request.rows, request.indices, self.block_sum)


def known_answers(block_sum: BlockSum, queries: set[Query], n_features: int) -> None:
    """RuntimeError unless the sums of hostile rows are the reference's.

    They hold what has broken sums before: rows at the clip in one entry, tiny, huge and
    not finite ones, labels outside the classes, padding, and a tail of a chunk.
    Gradients that take label sets are tried with these too.
    """
    rng = np.random.default_rng(0)
    for query in sorted(queries, key=repr):
        entries = int(np.prod(query.shape(n_features)))
        k = int(np.clip(KNOWN_ANSWER_PRODUCTS // entries, 8, 160))
        blocks = [_hostile(rng, k, n_features, query.n_classes)]
        if isinstance(query, Gradient) and query.takes_sets:
            sets = _hostile_sets(rng, k, query.n_classes)
            blocks.append(replace(blocks[0], y=sets))
        center = rng.normal(size=n_features) / np.sqrt(n_features)
        append = 0.0 if isinstance(query, ChannelMoment) else 0.3  # features alone
        centered = RowTransform(True, center, None, append)
        for transform in (RowTransform(), centered):
            width = transform.width(n_features)
            weights = rng.normal(size=(width, query.n_classes))
            ask = ask_of(query, Params(transform, weights), 1.0)
            for block in blocks:
                _compare(block_sum, ask, block)


def _compare(block_sum: BlockSum, ask: Ask, block: Block) -> None:
    fast = _answer(block_sum, ask, block)
    wanted = _answer(ReferenceSums(), ask, block)
    if not np.array_equal(fast, wanted):
        raise RuntimeError(
            "fast sums must equal the reference's before anything is charged, got "
            f"other integers of {ask.query.name} with {type(block_sum).__name__}. Use "
            "--backend reference, and say on which processor this was."
        )


def _answer(way: BlockSum, ask: Ask, block: Block) -> np.ndarray:
    out = empty_sum(ask, block.x.shape[1])
    rows = way.rows(ask, block)
    used = block.index >= 0
    out = np.asarray(way.add(ask, rows, block.y, used, out))
    return np.triu(out) if ask.query.symmetric else out


def _hostile(rng: np.random.Generator, k: int, d: int, m: int) -> Block:
    """Rows (k, d), classes and others, and slots of which some are padding."""
    quarter = k // 4
    half = k // 2
    x = rng.normal(size=(k, d)).astype(np.float32)
    x[:quarter] = 0
    places = np.arange(quarter)
    x[places, places % d] = 1
    sizes = np.logspace(-38, 36, half - quarter)  # float32 has 1e-38 to 3e38
    with np.errstate(under="ignore"):
        x[quarter:half] *= sizes[:, None]
    x[half] = np.nan
    x[half + 1, 0] = np.inf
    y = rng.integers(-1, m + 1, k).astype(np.int32)
    index = np.arange(k)
    index[-k // 8 :] = -1
    return Block(index, x, y)


def _hostile_sets(rng: np.random.Generator, k: int, m: int) -> np.ndarray:
    """Label sets (k, m) int8: of any size, none, all, and some that are no set."""
    sets = (rng.random((k, m)) < rng.random((k, 1))).astype(np.int8)
    sets[::5] = 0
    sets[1::5] = 1
    sets[2::7] = -1
    sets[3::7, m // 2] = 2
    return sets
