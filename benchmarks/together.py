"""Several fits on the same batches, for benchmarks only: a batch is read once for all,
and their float32 sums share products (`fused`).

No proof covers such sums: nothing that is to be private may use this.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Lock
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.fused import Asked, FusedSums, content, fusible, rounded
from dphead.data.arrays import ArrayRows
from dphead.data.blocks import CHUNK
from dphead.fit.loop import FitResult, Run, fit_head
from dphead.planning.plan import make_plan
from dphead.privacy.contract import Block, Known
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Statistic
from dphead.privacy.statistics import Gradient
from dphead.solvers.base import ProblemInfo, Solver
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import SumTask
from dphead.sums.verified import VerifiedSum

T = TypeVar("T")


class Together:
    """`fits` fits on the same batches, each in a thread of its own: a batch is read
    once for all of them.

    Poisson batches: the fits must have the same seed, sampling probability and order of
    releases, so that they draw the same rows; RuntimeError if one does not. A fit that
    ends leaves the others to go on.
    """

    def __init__(self, rows: ArrayRows, fits: int) -> None:
        self._rows, self._sums, self._exact = rows, FusedSums(), CpuSums()
        self._running, self._round = fits, 0
        self._asked: dict[int, tuple[Asked, np.ndarray]] = {}
        self._failed, self._changed, self._lock = False, Condition(), Lock()
        self._known: dict[tuple, np.ndarray] = {}

    def rows(self) -> "_Named":
        """Rows for each of the fits: batches are only named, since `_add` reads
        them.
        """
        return _Named(self._rows)

    def run(self, fit: Callable[[int], T]) -> list[T]:
        """fit(position) for every position at once, a thread each; if one fails, all
        do, and its error is raised.
        """

        def one(i: int) -> T:
            try:
                found = fit(i)
                self._leave()
                return found
            except BaseException:
                self._leave(failed=True)  # or the others would wait for ever
                raise

        with threadpool_limits(1, "blas"), ThreadPoolExecutor(self._running) as pool:
            running = [pool.submit(one, i) for i in range(self._running)]
        errors = [error for future in running if (error := future.exception())]
        if errors:
            raise next(
                (e for e in errors if not isinstance(e, _OtherFailedError)), errors[0]
            )
        return [future.result() for future in running]

    def summer(self, fit: int) -> VerifiedSum:
        """How the fit of that position sums, called from `run`."""
        return VerifiedSum(_OfFit(self, fit))

    def _wait(self, fit: int, asked: Asked, indices: np.ndarray) -> None:
        with self._changed:
            self._asked[fit], now = (asked, indices), self._round
            self._add_if_complete()
            self._changed.wait_for(lambda: self._round > now or self._failed)
            if self._round == now:
                raise _OtherFailedError("another fit on these batches failed")

    def _leave(self, failed: bool = False) -> None:
        with self._changed:
            self._running -= 1
            self._failed |= failed
            self._changed.notify_all()
            if not self._failed:
                self._add_if_complete()

    def _add_if_complete(self) -> None:
        if self._asked and len(self._asked) == self._running:
            self._add([self._asked[i] for i in sorted(self._asked)])
            self._asked, self._round = {}, self._round + 1
            self._changed.notify_all()

    def _one(self, ask: SumTask, indices: np.ndarray, out: np.ndarray) -> np.ndarray:
        """A sum that is not shared; over all rows, one that needs no head is the same
        for every fit.
        """
        transform = ask.params.transform
        key = ask.query, ask.clip_norm, content(transform), transform.append
        shared = ask.params.weights is None and len(indices) == self._rows.n_rows
        with self._lock:
            value = self._known.get(key) if shared else None
            if value is None:
                value = np.zeros_like(out)
                for block in self._blocks(indices):
                    rows = self._exact.rows(ask, block)
                    value = self._exact.add(ask, rows, block.y, block.index >= 0, value)
            if shared:
                self._known[key] = value
        out += value
        return out

    def _blocks(self, indices: np.ndarray) -> Iterator[Block]:
        return self._rows.blocks(None if len(indices) == self._rows.n_rows else indices)

    def _add(self, asked: list[tuple[Asked, np.ndarray]]) -> None:
        indices = asked[0][1]
        if not all(np.array_equal(other, indices) for _, other in asked):
            raise RuntimeError(
                "fits on common batches must draw the same rows, got different ones."
            )
        if len({a.query for a, _ in asked}) > 1:
            raise RuntimeError(
                "fits on common batches must have one loss, got several."
            )
        self._sums.add_all(
            [a for a, _ in asked], ((b, b.index >= 0) for b in self._blocks(indices))
        )


def fit_together(
    rows: ArrayRows,
    facts: ProblemInfo,
    fits: Sequence[tuple[Solver, int, float]],
    delta: float,
) -> list[FitResult]:
    """Full-batch fits of each (solver, seed, epsilon), in that order."""
    together = Together(rows, len(fits))

    def fit(i: int) -> FitResult:
        solver, seed, epsilon = fits[i]
        plan = make_plan(solver, facts, epsilon=epsilon, delta=delta)
        run = Run(noise=NoiseSource(seed), summer=together.summer(i))
        return fit_head(solver, together.rows(), facts, plan, run)

    return together.run(fit)


class _OfFit:
    """The `BlockSum` of one of the fits: blocks only name their rows."""

    parallel = False

    def __init__(self, together: Together, fit: int) -> None:
        self._together, self._fit = together, fit

    def is_compared(self, query: Statistic) -> bool:
        """Never."""
        return False

    def norms(self, ask: SumTask, block: Block) -> np.ndarray:
        """Of the rows that the block names."""
        exact = CpuSums()
        indices = block.index[block.index >= 0]
        found = [
            exact.norms(ask, b)[b.index >= 0] for b in self._together._blocks(indices)
        ]
        return np.pad(np.concatenate(found), (0, len(block.index) - len(indices)))

    def rows(self, ask: SumTask, block: Block) -> Block:
        """The names."""
        return block

    def add(
        self,
        ask: SumTask,
        rows: Block,
        y: np.ndarray,
        used: np.ndarray,
        out: np.ndarray,
    ) -> np.ndarray:
        """The sum, made with those of the other fits."""
        indices = rows.index[used]
        if not fusible(ask.query, ask.params):
            return self._together._one(ask, indices, out)
        assert isinstance(ask.query, Gradient)
        value = np.zeros(out.shape)
        asked = Asked(ask.query, ask.params, ask.clip_norm, value)
        self._together._wait(self._fit, asked, indices)
        out += rounded(ask, value)
        return out


class _OtherFailedError(RuntimeError):
    """What ends a fit whose batch another one will never ask for."""


class _Named:
    """Rows whose batches are one block of indices, with zeros that take no memory for
    features.
    """

    def __init__(self, rows: ArrayRows) -> None:
        self._rows, self.group_cap = rows, rows.group_cap
        self.n_rows, self.n_features = rows.n_rows, rows.n_features

    def blocks(
        self, indices: np.ndarray | None = None, known: Known | None = None
    ) -> Iterator[Block]:
        indices = np.arange(self.n_rows) if indices is None else indices
        size = CHUNK * max(1, -(-len(indices) // CHUNK))
        index = np.append(indices, np.full(size - len(indices), -1))
        yield Block(
            index,
            np.broadcast_to(np.float32(0), (size, self.n_features)),
            np.full(size, -1, np.int32),
        )
