"""One sum whose rows lie with several processes: each sums a part of its own, the first adds the sums up.

The first process holds the ledger, draws the sample and the noise, and alone calls `release`; the others `serve` it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from dphead.privacy.mechanism import BlockSum, ReleaseSpec, Rows, _clipped_sum
from dphead.privacy.queries import Params, Query


@dataclass(frozen=True)
class PartAsk:
    """What a process is to sum. n_rows: slots of its part; indices: those of them in the sample, from 0, or None."""

    query: Query
    params: Params
    spec: ReleaseSpec
    n_rows: int
    indices: np.ndarray | None


class Processes(Protocol):
    """The first process's way to the others. count: the number of all. Each ask is answered by one sum."""

    count: int

    def ask(self, process: int, ask: PartAsk) -> None:
        """Send a process what it is to sum."""
        ...

    def receive(self, process: int, shape: tuple[int, ...]) -> np.ndarray:
        """The float64 sum, bit for bit, with which a process answered the last ask. Raises if the process is lost."""
        ...


class Asked(Protocol):
    """Another process's way to the first."""

    def next(self) -> PartAsk | None:
        """What to sum, or None at the end."""
        ...

    def answer(self, value: np.ndarray) -> None:
        """Send a sum, which has no noise, to the first process and to no other."""
        ...


def bounds(n_rows: int, processes: int) -> list[int]:
    """Part i is the slots bounds[i] to bounds[i + 1] - 1: each slot of n_rows is in one part, from public numbers."""
    return [i * n_rows // processes for i in range(processes + 1)]


class SumOfParts:
    """`release`'s sum over rows on the first process. own: its part of the rows.

    Guarantee: each slot (of the sample) is asked of one process, which sums it exactly once or raises (`_clipped_sum`);
    one sum of each process is added, in order; the result is `_clipped_sum`'s, but for the order of float64 additions.
    """

    def __init__(self, processes: Processes, own: Rows) -> None:
        self._processes, self._own = processes, own

    def __call__(
        self,
        query: Query,
        params: Params,
        rows: Rows,
        spec: ReleaseSpec,
        indices: np.ndarray | None,
        block_sum: BlockSum,
    ) -> np.ndarray:
        """Ask all, sum the own part meanwhile, add up."""
        others, at = range(1, self._processes.count), bounds(rows.n_rows, self._processes.count)
        asks = [_ask(query, params, spec, indices, *part) for part in pairwise(at)]
        for i in others:
            self._processes.ask(i, asks[i])
        total = _sum(asks[0], self._own, block_sum)
        for i in others:
            total += self._processes.receive(i, total.shape)
        return total


def serve(first: Asked, own: Rows, block_sum: BlockSum) -> None:
    """Sum this process's part whenever the first process asks, until it says that it is done."""
    while (ask := first.next()) is not None:
        first.answer(_sum(ask, own, block_sum))


def _ask(query: Query, params: Params, spec: ReleaseSpec, indices: Any, start: int, stop: int) -> PartAsk:
    if indices is not None:
        indices = indices[(indices >= start) & (indices < stop)] - start
    return PartAsk(query, params, spec, stop - start, indices)


def _sum(ask: PartAsk, own: Rows, block_sum: BlockSum) -> np.ndarray:
    if own.n_rows != ask.n_rows or own.group_cap != ask.spec.group_cap:
        raise RuntimeError(
            f"a process must hold the part that it is asked for, got {own.n_rows} rows, group_cap={own.group_cap}. "
            f"It was asked for {ask.n_rows}, group_cap={ask.spec.group_cap}: this is a defect in the row source."
        )
    return _clipped_sum(ask.query, ask.params, own, ask.spec, ask.indices, block_sum)
