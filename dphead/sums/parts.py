"""Sum rows that several processes hold: each sums a part, and the first adds the parts.

The first process holds the ledger, draws the sample and the noise, and alone calls
`release`. The others `serve` it. Integers add up to the same sum for any parts.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from dphead.privacy.contract import ReleaseSpec, Rows, SumRequest
from dphead.privacy.query import Params, Statistic
from dphead.sums.caches import KeptRows
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import BlockSum, ReferenceSums, SumTask, ask_of, largest_norm


@dataclass(frozen=True)
class PartAsk:
    """Tell a process what to sum.

    Parameters
    ----------
    query : Statistic
        Statistic to sum.
    params : Params
        Public numbers and earlier releases that the statistic depends on.
    spec : ReleaseSpec
        Spec of the release.
    clip_norm : float or None
        Clip norm of the request. None asks for the largest norm of a row instead.
    n_rows : int
        Number of slots of the process's part.
    indices : ndarray of int or None
        Slots of the part in the sample, counted from 0; None sums all.
    """

    query: Statistic
    params: Params
    spec: ReleaseSpec
    clip_norm: float | None
    n_rows: int
    indices: np.ndarray | None


class Processes(Protocol):
    """Define how the first process talks to the others.

    `count` is the number of all processes. Each ask is answered by one array.
    """

    count: int

    def ask(self, process: int, ask: PartAsk) -> None:
        """Send a process what it is to sum."""
        ...

    def receive(self, process: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return the int64 array that answers the last ask of a process.

        Raises an error if the process is lost.
        """
        ...


class Asked(Protocol):
    """Define how another process talks to the first."""

    def next(self) -> PartAsk | None:
        """Return what to sum, or None at the end."""
        ...

    def answer(self, value: np.ndarray) -> None:
        """Send int64 numbers without noise to the first process and to no other."""
        ...


def bounds(n_rows: int, processes: int) -> list[int]:
    """Return the bounds of the parts: part i is bounds[i] to bounds[i + 1] - 1.

    Each slot is in exactly one part.
    """
    return [i * n_rows // processes for i in range(processes + 1)]


class SumOfParts:
    """Sum the rows of all processes, on the first process.

    Parameters
    ----------
    processes : Processes
        Way to the other processes.
    own : Rows
        The first process's own part of the rows.

    Guarantee
    ---------
    Each slot (of the sample) is asked of one process, which adds it exactly once or
    raises an error (`checked_sum`). One sum of each process is added. Sums travel as
    int64, so that no number of rows, which may be private, is too large for a process.
    """

    def __init__(self, processes: Processes, own: Rows) -> None:
        self._processes = processes
        self._own = own

    def __call__(
        self,
        ask: SumTask,
        request: SumRequest,
        block_sum: BlockSum,
        kept: KeptRows = NO_ROWS,
    ) -> np.ndarray:
        """Ask all processes, sum the own part meanwhile, and add all parts."""
        others = self._send(ask.query, request, request.clip_norm)
        total = _sum(others[0], self._own, block_sum, kept)
        for i in range(1, self._processes.count):
            total += self._processes.receive(i, total.shape)
        return total

    def largest_norm(self, request: SumRequest) -> float:
        """Return the largest norm among the rows of all processes."""
        asks = self._send(request.query, request, None)
        largest = _largest(asks[0], self._own)
        for i in range(1, self._processes.count):
            bits = self._processes.receive(i, (1,))
            largest = max(largest, float(bits.view(np.float64)[0]))
        return largest

    def _send(
        self, query: Statistic, request: SumRequest, clip_norm: float | None
    ) -> list[PartAsk]:
        """Ask the other processes, and return all asks, the own one first."""
        count = self._processes.count
        parts = list(pairwise(bounds(request.rows.n_rows, count)))
        asks = [_ask(query, request, clip_norm, *part) for part in parts]
        for i in range(1, count):
            self._processes.ask(i, asks[i])
        return asks


def serve(
    first: Asked, own: Rows, block_sum: BlockSum, kept: KeptRows = NO_ROWS
) -> None:
    """Sum this process's part for each ask of the first process, until the end."""
    while (ask := first.next()) is not None:
        if ask.clip_norm is None:
            largest = np.array([_largest(ask, own)])
            first.answer(largest.view(np.int64))  # the float's bits: answers are int64
        else:
            first.answer(_sum(ask, own, block_sum, kept))


def _ask(
    query: Statistic,
    request: SumRequest,
    clip_norm: float | None,
    start: int,
    stop: int,
) -> PartAsk:
    indices = request.indices
    if indices is not None:
        indices = indices[(indices >= start) & (indices < stop)] - start
    return PartAsk(
        query, request.params, request.spec, clip_norm, stop - start, indices
    )


def _largest(part: PartAsk, own: Rows) -> float:
    ask = ask_of(part.query, part.params, 1.0)
    return largest_norm(ask, own, part.indices, ReferenceSums())


def _sum(part: PartAsk, own: Rows, block_sum: BlockSum, kept: KeptRows) -> np.ndarray:
    if own.n_rows != part.n_rows or own.group_cap != part.spec.group_cap:
        raise RuntimeError(
            "a process must hold the part that it is asked for, got "
            f"{own.group_cap=}, {part.spec.group_cap=} or another number of rows. "
            "This is a defect in the row source."
        )
    assert part.clip_norm is not None
    ask = ask_of(part.query, part.params, part.clip_norm, own)
    return checked_sum(ask, own, part.indices, block_sum, kept)
