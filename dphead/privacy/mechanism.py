"""`release`: the only function that touches private rows.

It charges the ledger, samples, sums clipped statistics, adds noise, and commits. The noise, the sample and the event
that the accountant sees are all computed from one `ReleaseSpec`, so the guarantee cannot differ from what ran.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache, partial, reduce
from itertools import chain, islice
from threading import Lock
from typing import Any, Protocol, cast

import numpy as np
from threadpoolctl import ThreadpoolController

from dphead.privacy.accounting import RELATIONS, GaussianEvent, event_of
from dphead.privacy.ledger import FitLedger
from dphead.privacy.noise import NoiseSource, gaussian
from dphead.privacy.queries import ClassSums, Gram, GramAndSums, Params, Query, RowTransform
from dphead.privacy.sampling import poisson_sample
from dphead.privacy.sums import CHUNK, PIECE, grid_step, mirrored, slack


@dataclass(frozen=True)
class Block:
    """Rows: index (k,) their slots, -1 for padding; x (k, n_features) float32; y (k,) int; k % 128 == 0.

    in_place: set by `release` alone, from its plan: whether chunks may be summed in float32 (`sums`).
    """

    index: np.ndarray
    x: np.ndarray
    y: np.ndarray
    in_place: bool = False


class Rows(Protocol):
    """Private rows. `blocks(None)` yields each row slot once; `blocks(indices)` each named slot once.

    The shape of blocks of `indices` must not depend on how many there are; that of `blocks(None)` may depend on n_rows.
    group_cap: rows beyond so many of a group (`sampling.within_cap`) have no class, so that they count zero; or None.
    """

    n_rows: int
    n_features: int
    group_cap: int | None

    def blocks(self, indices: np.ndarray | None = None) -> Iterator[Block]:
        """Yield blocks that together hold each slot once (checked by `release`), laid out by `indices` alone."""
        ...


class GroupedRows(Rows, Protocol):
    """Rows with a cap. within: (n_rows,) bool, `sampling.within_cap` of their groups."""

    within: np.ndarray


@dataclass(frozen=True)
class ReleaseSpec:
    """One release, decided before any row is read.

    label: what the solver calls it. query: `Query.name`. clip_norm: R or C (`inf` only with no noise).
    noise_multiplier: noise sd over sensitivity; 0 turns the noise off and is recorded as not private.
    sampling_prob: 1 for the full batch. relation: the neighbouring relation. n_rows: public n, or `nominal_n`.
    group_cap: None if a row is the protected unit, else a group is, of which at most so many rows count.
    """

    label: str
    query: str
    clip_norm: float
    noise_multiplier: float
    n_rows: int
    sampling_prob: float = 1.0
    relation: str = "zero_out"
    group_cap: int | None = None

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(f"relation must be one of {RELATIONS}, got relation={self.relation!r}. Choose one.")
        if not 0 <= self.noise_multiplier < np.inf:
            raise ValueError(f"noise_multiplier must be finite and >= 0, got {self.noise_multiplier=}. Correct it.")
        if self.noise_multiplier > 0 and not 1e-6 <= self.clip_norm <= 1e6:
            raise ValueError(f"clip_norm must be in [1e-6, 1e6], got clip_norm={self.clip_norm}. Rescale the features.")
        self.event()  # refuses a sampling_prob or a group_cap that could not be charged

    @property
    def in_place(self) -> bool:
        """Whether neighbouring data differ at one slot only, so that all other rows keep their places in a pass."""
        return self.sampling_prob == 1 and self.relation != "add_remove" and self.group_cap is None

    def event(self) -> GaussianEvent:
        """What the accountant sees."""
        return event_of(vars(self))

    def row(self) -> dict[str, Any]:
        """Plain data for the ledger and the report."""
        return asdict(self)


@dataclass(frozen=True)
class Released:
    """A value that carries noise. value: float64, the query's shape. noise_sd: its standard deviation per entry."""

    value: np.ndarray
    noise_sd: float


LARGE_PIECE = 2 * PIECE  # the same for Gram matrices and class sums, and on accelerators
COPIES = 1 << 30  # bytes of sums that cores may hold apart
BlockSum = Callable[[Query, Params, Block, np.ndarray, float, Any], Any]
RowSum = Callable[[Query, Params, Rows, ReleaseSpec, np.ndarray | None, BlockSum], np.ndarray]


class KeptRows:
    """Rows of consecutive slots, as they were made of a block's, kept for one fit. memory: bytes of rows to keep.

    Guarantee: what is kept serves the same slots and the same transform object only, so no other fit's rows.
    """

    def __init__(self, memory: int) -> None:
        self.memory, self._used, self._lock = memory, 0, Lock()
        self._kept: tuple[Any, dict[tuple[int, int], Any]] = (None, {})

    def __call__(self, transform: RowTransform, index: np.ndarray, x: np.ndarray, make: Callable[..., Any]) -> Any:
        """What is kept of these slots, or make(transform, x) if there is room for it, else None."""
        start = int(index[0]) if len(index) else -1
        if self.memory == 0 or start < 0 or not np.array_equal(index, np.arange(start, start + len(index))):
            return None
        with self._lock:  # several threads are here at once
            if self._kept[0] is not transform:
                self._kept, self._used = (transform, {}), 0
            kept = self._kept[1]
            found = kept.get((start, len(index)))
            if found is not None or self._used + x.nbytes > self.memory:
                return found
            self._used += x.nbytes
        kept[start, len(index)] = made = make(transform, x)
        return made


class NumpySums:
    """Adds a block's clipped statistics to a sum on a CPU; `sums_jax.jax_block_sum` does it on an accelerator.

    memory: bytes of transformed rows kept between passes, for solvers that ask again with the same transform.
    Guarantee: a kept row is used for the same slot and the same transform object only, and is masked and clipped anew.
    """

    def __init__(self, memory: int = 0) -> None:
        self.kept = KeptRows(memory)

    def __call__(self, query: Query, params: Params, block: Block, keep: np.ndarray, clip_norm: float, out: Any) -> Any:
        """A block in pieces, for numpy's calls make arrays of their rows; a compiled loop makes none of kept ones."""
        rows = len(block.x)
        if block.in_place:  # the number of slots is public: no work for chunks without one
            rows = CHUNK * -(-(1 + np.flatnonzero(block.index >= 0).max(initial=-1)) // CHUNK)
        if params.weights is not None:
            params = replace(params, weights=np.asarray(params.weights, np.float32))
        prepared = None
        if query.kind != "gram":
            prepared = self.kept(params.transform, block.index[:rows], block.x[:rows], _transformed)
        step = PIECE if query.kind == "outer" else LARGE_PIECE
        if prepared is not None and query.compiled(np, block.in_place, out.shape):
            step = rows
        for part in (slice(i, min(i + step, rows)) for i in range(0, rows, step)):
            own = None if prepared is None else (prepared[0][part], prepared[1][part])
            out = query.clipped_sum(
                params, block.x[part], block.y[part], keep[part], clip_norm, out, np, own, block.in_place
            )
        return out


def _transformed(transform: RowTransform, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        return transform.apply(np, x)


numpy_block_sum = NumpySums()


def sensitivity(query: Query, spec: ReleaseSpec, append: float) -> float:
    """The distance that `noise_multiplier` multiplies, without the rounding slack.

    Guarantee: the relation's own for full batches; the zero-out one for Poisson batches, whose accountant handles
    replace-one itself (ALGORITHMS.md §2, "Relation first").
    """
    relation = "zero_out" if spec.sampling_prob < 1 else spec.relation
    return query.sensitivity(spec.clip_norm, relation, append)


def noise_scale(query: Query, spec: ReleaseSpec, append: float, width: int) -> tuple[float, float]:
    """(noise sd, grid step) of a release. Guarantee: sd = noise_multiplier x sensitivity x (1 + rounding slack)."""
    if spec.noise_multiplier == 0:
        return 0.0, 0.0
    size = int(np.prod(query.shape(width)))
    base = sensitivity(query, spec, append)
    grid = grid_step(base, size)
    # Under add_remove n is private: room for twice nominal_n, and for a million rows in any case.
    n = max(2 * spec.n_rows, 2**20) if spec.relation == "add_remove" else spec.n_rows
    rounding = slack(n, width + query.n_classes, size, grid / base, spec.in_place)
    if (n + 40 * spec.noise_multiplier * 1.01) * base / grid > 2.0**53:
        raise ValueError(f"results must fit their grid in float64, got n_rows={spec.n_rows}. Split the data.")
    sd = spec.noise_multiplier * base * (1 + rounding)
    if not 0 < sd < np.inf:
        raise ValueError(f"a noise sd must be positive and finite, got noise_sd={sd}. This is a defect in the query.")
    return sd, grid


class NextSum:
    """Class sums that are planned after a Gram matrix are made in its pass, and wait here without noise.

    Guarantee: they are in memory alone, `release` alone reads them, and only the release that comes next can use them,
    with the planned spec and the rows and transform that they were made of; whatever else comes next drops them.
    """

    def __init__(self) -> None:
        self._held: tuple[Query, ReleaseSpec, Rows, RowTransform, np.ndarray] | None = None

    def __reduce__(self) -> Any:
        raise TypeError("sums without noise must stay in memory, got a request to copy or store them. Make new ones.")

    def _exact(
        self,
        query: Query,
        params: Params,
        rows: Rows,
        spec: ReleaseSpec,
        ledger: FitLedger,
        total: Callable[[Query], np.ndarray],
    ) -> np.ndarray:
        """The exact sum of the release that the ledger began. total: sums a query over the rows."""
        held, self._held = self._held, None
        if held and held[:2] == (query, spec) and held[2] is rows and held[3] is params.transform:
            return held[4]
        sums = _class_sums_after(query, spec, ledger)
        if sums is None:
            return total(query)
        both = total(GramAndSums(query.n_classes))
        width = both.shape[1]
        self._held = *sums, rows, params.transform, both[width:].T.copy()
        return both[:width].copy()  # no view, which would lead from what is released to the rest


class KeptSums(NextSum):
    """The last Gram matrix and class sums, kept for further fits on the same rows: another epsilon, another ridge.

    For `fit_head(next_sum=...)`, one fit at a time, all rows in this process. It saves passes, not budget: each release
    of each fit is charged, with its own noise. A centre that is a noisy mean is another transform in each fit.
    Guarantee: as `NextSum`; a sum serves full-batch releases of the same query, clip, relation, rows object and
    transform only. Rows that change while their sums are kept are protected as they were when they were read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[tuple[Query, ReleaseSpec, Rows, RowTransform, np.ndarray]] = deque(maxlen=2)

    def _exact(self, query: Query, params: Params, rows: Rows, spec: ReleaseSpec, *rest: Any) -> np.ndarray:
        if type(query) not in (Gram, ClassSums) or spec.sampling_prob < 1:
            return super()._exact(query, params, rows, spec, *rest)
        asked = replace(spec, label="", noise_multiplier=0.0)
        for kept, made, their_rows, transform, value in self._kept:
            if (kept, made) == (query, asked) and their_rows is rows and transform.equals(params.transform):
                self._held = None
                return value.copy()
        value = super()._exact(query, params, rows, spec, *rest)
        self._kept.append((query, asked, rows, deepcopy(params.transform), value.copy()))
        return value


def _class_sums_after(query: Query, spec: ReleaseSpec, ledger: FitLedger) -> tuple[Query, ReleaseSpec] | None:
    """The release reserved next, if it is of the class sums of the same clipped rows as a Gram matrix."""
    if type(query) is not Gram or spec.sampling_prob < 1 or (reserved := ledger.following()) is None:
        return None
    sums, planned = ClassSums(query.n_classes), ReleaseSpec(**reserved)
    same = replace(spec, label=planned.label, query=sums.name, noise_multiplier=planned.noise_multiplier)
    return (sums, planned) if planned == same else None


def release(
    query: Query,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    *,
    ledger: FitLedger,
    noise: NoiseSource,
    block_sum: BlockSum = numpy_block_sum,
    row_sum: RowSum | None = None,
    next_sum: NextSum | None = None,
) -> Released:
    """Charge, sample, clip, sum, add noise once, commit, return.

    Guarantee: the returned value is a Gaussian mechanism (on a Poisson sample if sampling_prob < 1) of the query's
    clipped sum with sd >= noise_multiplier x sensitivity, rounded to a public grid; the charge is durable before the
    first row is read, and the noisy value is durable, where the ledger stores values, before it is returned.
    row_sum: None, or `parts.SumOfParts` where the rows lie with several processes.
    next_sum: one object for all releases of a fit, so that class sums planned after a Gram matrix need no pass.
    """
    if query.name != spec.query:
        raise ValueError(f"the query must be the planned one, got query={query.name}. The plan says {spec.query}.")
    if spec.relation != "add_remove" and rows.n_rows != spec.n_rows:
        raise ValueError(f"n_rows must be the planned one, got {rows.n_rows}. The plan says {spec.n_rows}.")
    if rows.group_cap != spec.group_cap:
        raise ValueError(f"group_cap must be the planned one, got {rows.group_cap}. The plan says {spec.group_cap}.")
    transform = params.transform
    sd, grid = noise_scale(query, spec, transform.append, transform.width(rows.n_features))
    sequence, committed = ledger.begin(spec.row())
    if committed is not None:
        return Released(committed, sd)
    indices = None
    if spec.sampling_prob < 1:
        indices = poisson_sample(rows.n_rows, spec.sampling_prob, noise.generator(sequence, "sample"))
        if spec.group_cap is not None:  # a row beyond its cap must not even move the places of other rows
            indices = indices[cast(GroupedRows, rows).within[indices]]

    def total(query: Query) -> np.ndarray:
        """The exact sum of a query over the rows of this release."""
        return (row_sum or _clipped_sum)(query, params, rows, spec, indices, block_sum)

    value = next_sum._exact(query, params, rows, spec, ledger, total) if next_sum else total(query)
    if spec.noise_multiplier > 0:
        value /= grid
        np.rint(value, out=value)
        z = gaussian(noise.generator(sequence, "noise"), value.shape, sd / grid, query.symmetric)
        np.rint(z, out=z)
        value += z  # both are whole numbers below 2**53: exact
        value += 0.0  # the sign of -0.0 would tell what was rounded away
        value *= grid
    ledger.commit(sequence, value)
    return Released(value, sd)


def _clipped_sum(
    query: Query, params: Params, rows: Rows, spec: ReleaseSpec, indices: np.ndarray | None, block_sum: BlockSum
) -> np.ndarray:
    """Sum over every block, each row slot exactly once. The result has no noise and must not leave this module."""
    if indices is None and spec.relation == "add_remove":
        indices = np.arange(rows.n_rows)  # n is private: blocks of one shape whatever it is, like a sample's
    seen = np.zeros(rows.n_rows, np.int64)
    shape = query.shape(params.transform.width(rows.n_features))
    empty = partial(np.zeros, shape, order="F" if query.kind == "outer" and shape[0] > shape[-1] else "C")

    def checked() -> Iterator[tuple[Block, np.ndarray]]:
        """Blocks and their slots in use (k,), as `seen` counts them."""
        for block in rows.blocks(indices):
            if block.x.dtype != np.float32:
                raise TypeError(f"a block must be float32, got {block.x.dtype}. This is a defect in the row source.")
            used = block.index >= 0
            np.add.at(seen, block.index if used.all() else block.index[used], 1)
            yield replace(block, in_place=spec.in_place), used

    def add(item: tuple[Block, np.ndarray], out: Any) -> Any:
        """out, with a block's clipped statistics added."""
        return block_sum(query, params, *item, spec.clip_norm, out)

    if isinstance(block_sum, NumpySums):
        total = _on_every_core(add, checked(), empty)
    else:  # these use every core, or a device, by themselves
        total = empty()
        for item in checked():
            total = add(item, total)
    wanted = np.ones(rows.n_rows, np.int64)
    if indices is not None:
        wanted[:] = 0
        wanted[indices] = 1
    if not np.array_equal(seen, wanted):
        raise RuntimeError("a pass must use each row slot exactly once. This is a defect in the row source.")
    total = np.array(total, order="C")
    if query.symmetric:
        mirrored(total[..., : total.shape[-1], :])
    return total


_libraries = cache(ThreadpoolController)  # numpy's BLAS has been loaded; looking for others costs 3 ms a release


def cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_every_core(add: Callable[[Any, Any], Any], items: Iterator[Any], empty: Callable[[], np.ndarray]) -> np.ndarray:
    """The sum of add(item, sum) over items: core k adds every k-th item to a sum of its own, in order.

    So the same items give the same bits however fast a core is. Where sums are large, fewer cores have their own.
    """
    sums, n_cores = [empty()], cores()
    while len(sums) < n_cores and (len(sums) + 1) * sums[0].nbytes <= COPIES:
        sums.append(empty())
    first = list(islice(items, 2))
    items, several = chain(first, items), len(first) > 1
    del first  # or it would hold two blocks for the whole pass
    with _libraries().limit(limits=n_cores // len(sums), user_api="blas"), ExitStack() as stack:
        if not several:  # a thread takes longer to start than a block to sum
            return reduce(lambda out, item: add(item, out), items, sums[0])
        # threads of this pass alone: those of a pass that was interrupted could add to the sums of the next
        workers = [stack.enter_context(ThreadPoolExecutor(1)) for _ in sums]
        running: deque[Future[Any]] = deque()
        for i, item in enumerate(items):
            running.append(workers[i % len(sums)].submit(add, item, sums[i % len(sums)]))
            if len(running) > 2 * len(sums):
                running.popleft().result()
        for future in running:
            future.result()
    return reduce(np.add, sums)
