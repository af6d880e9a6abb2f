"""Hostile rows through every way to a sum: sources, threads, kept rows, compiled loops.

`dphead audit` tries them in memory alone (`hostile_rows`). Here they go through what
fits use. For each release the distance of two worlds' sums is compared with the one
that its noise is for, and two ways must give the same integers.
"""

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
from dphead_extract.features.format import open_features, write_features
from features import digests_of
from hostile_rows import Pair, asked, pairs

from dphead.analysis.audit_rows import NO_CLASS, way_of
from dphead.analysis.audit_transcript import ROWS_BEYOND_CAP, Problem, Seen, planned
from dphead.data.arrays import ArrayRows
from dphead.data.blocks import CHUNK
from dphead.data.features import FeaturesRows
from dphead.planning.plan import Plan
from dphead.privacy.contract import ReleaseSpec, Rows, SumTask
from dphead.privacy.sampling import NO_GROUP
from dphead.privacy.statistic_base import Params, Statistic
from dphead.solvers.base import ProblemInfo, Solver
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.reference import BlockSum

# Chosen, not measured.
WORLD_SLOTS = 3 * CHUNK + 5  # of a world: several blocks, the last of them padded
COUNTED_EVERY = 32  # slots, of which one has a row that counts
# entries of a sum from which a pair goes one way only, not also the first
LARGE_SUM_ENTRIES = 1 << 16
WAYS = ("memory", "threads", "kept rows", "compiled", "file", "streamed file")
FILE_WAYS = ("file", "streamed file")


@dataclass(frozen=True)
class World:
    """Rows of which some slots are the protected unit's.

    x: (n, d); y, groups: (n,); sampled: (n,) bool.
    """

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    group_cap: int | None
    sampled: np.ndarray


def world(
    pair: Pair, inside: bool, relation: str, clip_norm: float, group_cap: int | None
) -> World:
    """The rows with the pair's canary, or with what the relation puts in its place.

    The unit's first slot is the first of all, so that everything moves when it goes;
    the rows of a group are more than the cap, in all blocks. Slots without a class hold
    numbers that would spoil any sum.
    """
    rng = np.random.default_rng(0)
    d = len(pair.canary[0])
    copies = 1 if group_cap is None else group_cap + ROWS_BEYOND_CAP
    n = max(WORLD_SLOTS, 4 * copies)
    x = (clip_norm / np.sqrt(d) * rng.standard_normal((n, d))).astype(np.float32)
    slots = np.arange(n)
    y = np.where(slots % COUNTED_EVERY == 1, slots // COUNTED_EVERY % 2, NO_CLASS)
    x[2::COUNTED_EVERY] = np.nan
    x[3::COUNTED_EVERY] = np.float32(1e6 * clip_norm)
    unit = np.arange(copies) * (n // copies)
    groups = np.full(n, NO_GROUP)
    groups[unit] = 0
    sampled = slots % 2 == 1
    sampled[unit] = True
    x[unit], y[unit] = pair.canary
    if not inside and relation == "replace_one":
        x[unit], y[unit] = pair.neighbor
    elif not inside:
        x[unit] = 0
        y[unit] = NO_CLASS
    kept = np.ones(n, bool)
    kept[unit] = inside or relation != "add_remove"
    return World(x[kept], y[kept], groups[kept], group_cap, sampled[kept])


class Ways:
    """The ways from worlds to their sums, each through a row source and a block sum of
    real fits.

    folder: for the features file that has each world that goes through one as a split.
        Use it as a context manager.
    """

    def __init__(
        self, worlds: dict[tuple[int, bool], World], n_classes: int, folder: str | None
    ) -> None:
        self._worlds = worlds
        self._splits = {key: f"{key[0]} {key[1]}" for key in worlds}
        if folder is None:
            return
        path = Path(folder) / "rows.h5"
        every = list(worlds.values())
        x = np.concatenate([w.x for w in every])
        y = np.concatenate([w.y for w in every])
        splits = [np.full(len(w.y), i, np.uint8) for i, w in enumerate(every)]
        write_features(
            path,
            np.zeros_like(x),
            y.astype(np.int32),
            [str(i) for i in range(n_classes)],
            split=np.concatenate(splits),
            split_names=list(self._splits.values()),
            group=[None if g == NO_GROUP else g for w in every for g in w.groups],
        )
        # the writer refuses what is not finite: others may not
        with h5py.File(path, "r+", locking=False) as file:
            columns: Any = file
            columns["features"][:] = x
            columns["block_digest"][:] = digests_of(file)
        self._file = open_features(path)

    def __enter__(self) -> "Ways":
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def total(
        self,
        way: str,
        key: tuple[int, bool],
        statistic: Statistic,
        params: Params,
        spec: ReleaseSpec,
    ) -> np.ndarray:
        """The sum over a world; of kept rows the sum of a later pass, after one of
        another transform.
        """
        w = self._worlds[key]
        rows: Any
        if way in FILE_WAYS:
            memory = 0 if way == "streamed file" else 1 << 40
            rows = FeaturesRows(self._file, self._splits[key], memory, w.group_cap)
        else:
            size = None if way == "memory" else CHUNK
            rows = ArrayRows(w.x, w.y, size, w.groups, w.group_cap)
        if hasattr(statistic, "block_sum"):  # a network's own way
            return _total(statistic, params, rows, spec, w, way_of(statistic))
        if way == "compiled":
            return _total(statistic, params, rows, spec, w, CpuSums(compiled_from=0))
        if way != "kept rows":
            return _total(statistic, params, rows, spec, w, CpuSums())
        kept = KeptRows(1 << 40)
        t = params.transform
        for transform in (replace(t, unit_norm=not t.unit_norm), t):
            other = replace(params, transform=transform)
            _total(statistic, other, rows, spec, w, CpuSums(), kept)
        return _total(statistic, params, rows, spec, w, CpuSums(), kept)


def _total(
    statistic: Statistic,
    params: Params,
    rows: Rows,
    spec: ReleaseSpec,
    world: World,
    block_sum: BlockSum,
    kept: KeptRows = NO_ROWS,
) -> np.ndarray:
    """The exact sum, over the world's sample where the release has one."""
    indices = None
    if spec.sampling_prob < 1:
        within: Any = getattr(rows, "within")  # noqa: B009  # both sources have it
        indices = np.flatnonzero(world.sampled & within)
    task = SumTask(statistic, params, spec.clip_norm, rows, indices)
    unit = statistic.unit(spec.clip_norm, params.transform.append)
    return checked_sum(task, block_sum, kept) * unit


def measure(
    solver: Solver, plan: Plan, facts: ProblemInfo, ways: tuple[str, ...] = WAYS
) -> dict[str, Any]:
    """Distances of hostile worlds at the releases of one fit, as shares of what the
    noise of each is for.

    The first and the last release of each label are measured, where they depend on
    weights also at weights that give hostile rows to the wrong class. `passed` is False
    if a share exceeds 1, or if two ways to the sum of a world disagree. Each pair goes
    the first way and one of the others, in turn.
    """
    clip = max(s.clip_norm for s in plan.specs)
    hostile = pairs(facts.n_features, facts.n_classes, clip)
    keys = list(product(range(len(hostile)), (False, True)))
    worlds = {
        (i, side): world(hostile[i], side, plan.relation, clip, plan.group_cap)
        for i, side in keys
    }
    found: dict[str, Any] = {
        "pairs": len(hostile),
        "ways": list(ways),
        "sums": 0,
        "largest_share": 0.0,
    }
    found |= {"worst": "", "largest_disagreement": 0.0}
    few = slice(1, 1 + COUNTED_EVERY * min(8, facts.n_rows), COUNTED_EVERY)
    first = worlds[0, True]
    copies = 1 if plan.group_cap is None else plan.group_cap + ROWS_BEYOND_CAP
    problem = Problem(
        facts,
        plan.relation,
        first.x[few],
        first.y[few],
        hostile[0].canary,
        group_cap=plan.group_cap,
        copies=copies,
    )
    with TemporaryDirectory() as folder:
        file = folder if set(ways) & set(FILE_WAYS) else None
        with Ways(worlds, facts.n_classes, file) as made, np.errstate(all="ignore"):
            for number, seen in enumerate(asked(solver, plan, problem, clip)):
                _compare(made, hostile, number, seen, facts.n_features, ways, found)
    found["passed"] = (
        found["largest_share"] <= 1 + 1e-9 and found["largest_disagreement"] == 0
    )
    return found


def _compare(
    made: Ways,
    hostile: list[Pair],
    number: int,
    seen: Seen,
    n_features: int,
    ways: tuple[str, ...],
    found: dict[str, Any],
) -> None:
    """Measure a release, and keep what is largest in `found`.

    number: of the release, which turns the ways.
    """
    statistic, params, spec = seen.statistic, seen.params, seen.spec
    row, _ = planned(seen)
    width = params.transform.width(n_features)
    large = np.prod(statistic.shape(width)) >= LARGE_SUM_ENTRIES
    for i, pair in enumerate(hostile):
        turn = ways[(i + number) % len(ways)]
        chosen = [turn] if large or turn == ways[0] else [ways[0], turn]
        sums = {}
        for way in chosen:
            without = made.total(way, (i, False), statistic, params, spec)
            inside = made.total(way, (i, True), statistic, params, spec)
            sums[way] = [without, inside]
        found["sums"] += 2 * len(sums)
        for way, (without, inside) in sums.items():
            moved = float(np.linalg.norm(inside - without))
            share = moved / (row * (spec.group_cap or 1))
            if share > found["largest_share"]:
                found["largest_share"] = share
                found["worst"] = f"{spec.label}: {pair.name}, {way}"
            for value, first in zip((without, inside), sums[chosen[0]], strict=True):
                apart = float(np.linalg.norm(value - first)) / row
                largest = max(found["largest_disagreement"], apart)
                found["largest_disagreement"] = largest
