"""How far hostile rows move the sums to which `release` adds noise: without noise.

So there are no odds, and no private row may be measured.

Fits with and without a canary (`audit`) see what an attacker sees, but one canary at a
time, in one layout. Here rows of any size, of opposite signs and that are not finite go
through the row sources, threads and kept rows that fits use. For each release of a fit
the distance of two worlds' sums is compared with the one that its noise is for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

from dphead.analysis.audit import ROWS_BEYOND_CAP, transcript
from dphead.analysis.audit_rows import (
    NO_CLASS,
    AuditRows,
    Sums,
    UnrecordedSpec,
    exact,
    way_of,
)
from dphead.planning.plan import Plan
from dphead.privacy.accounting import epsilon_from_mu
from dphead.privacy.contract import ReleaseSpec, Rows
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params, Query
from dphead.privacy.release import noise_scale
from dphead.privacy.sampling import NO_GROUP
from dphead.rows.arrays import ArrayRows
from dphead.rows.blocks import CHUNK
from dphead.rows.features import FeaturesRows
from dphead.solvers.base import PublicFacts, Solver
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS
from dphead.sums.reference import BlockSum
from extract.format import digests_of, open_features, write_features

# Chosen, not measured.
WORLD_SLOTS = 3 * CHUNK + 5  # of a world: several blocks, the last of them padded
COUNTED_EVERY = 32  # slots, of which one has a row that counts
HOSTILE_NORMS = (1.0, 10.0, 1e6)  # of hostile rows, in clip norms
# of a clipped hostile row for the wrong class, where weights are chosen
WRONG_SCORE = 5.0
# entries of a sum from which a pair goes one way only, not also the first
LARGE_SUM_ENTRIES = 1 << 16
WAYS = ("memory", "threads", "kept rows", "compiled", "file", "streamed file")
FILE_WAYS = ("file", "streamed file")


@dataclass(frozen=True)
class Pair:
    """Two rows that may stand in the same slots.

    canary, neighbour: (row, class); the latter is for replace_one.
    """

    name: str
    canary: tuple[np.ndarray, int]
    neighbour: tuple[np.ndarray, int]


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


def pairs(n_features: int, n_classes: int, clip_norm: float) -> list[Pair]:
    """Hostile rows of every kind that a features file may hold."""
    first = np.zeros(n_features, np.float32)
    first[0] = clip_norm
    even = np.full(n_features, clip_norm / np.sqrt(n_features), np.float32)
    found = []
    for size, (name, row) in product(
        HOSTILE_NORMS, (("first axis", first), ("all features", even))
    ):
        row = np.float32(size) * row
        found.append(Pair(f"{size:g} clip norms, {name}", (row, 0), (-row, 0)))
        found.append(
            Pair(
                f"{size:g} clip norms, {name}, opposite",
                (-row, 0),
                (row, n_classes - 1),
            )
        )
    far = np.float32(HOSTILE_NORMS[1]) * first
    for name, value in (
        ("nan", np.nan),
        ("inf", np.inf),
        ("-inf", -np.inf),
        ("largest", 3e38),
        ("least", 1e-45),
    ):
        one = even.copy()
        one[-1] = value
        found.append(Pair(f"one entry {name}", (one, 0), (far, 0)))
        found.append(
            Pair(
                f"all entries {name}",
                (np.full(n_features, value, np.float32), 0),
                (-far, 0),
            )
        )
    found.append(Pair("a label beyond the classes", (far, n_classes), (-far, 0)))
    return found


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
        x[unit], y[unit] = pair.neighbour
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
            columns["block_digest"][:] = list(digests_of(file))
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
        query: Query,
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
        if hasattr(query, "block_sum"):  # a network's own way
            return _total(query, params, rows, spec, w, way_of(query))
        if way == "compiled":
            return _total(query, params, rows, spec, w, CpuSums(compiled_from=0))
        if way != "kept rows":
            return _total(query, params, rows, spec, w, CpuSums())
        kept = KeptRows(1 << 40)
        t = params.transform
        for transform in (replace(t, unit_norm=not t.unit_norm), t):
            other = replace(params, transform=transform)
            _total(query, other, rows, spec, w, CpuSums(), kept)
        return _total(query, params, rows, spec, w, CpuSums(), kept)


def _total(
    query: Query,
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
    return exact(query, params, rows, spec, block_sum, indices, kept)


def measure(
    solver: Solver, plan: Plan, facts: PublicFacts, ways: tuple[str, ...] = WAYS
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
    found |= {"worst": "", "epsilon_of_worst": 0.0, "largest_disagreement": 0.0}
    with TemporaryDirectory() as folder:
        file = folder if set(ways) & set(FILE_WAYS) else None
        with Ways(worlds, facts.n_classes, file) as made, np.errstate(all="ignore"):
            asked = _asked(solver, plan, facts, worlds[0, True], clip)
            for number, release in enumerate(asked):
                _compare(
                    made, hostile, number, release, facts.n_features, plan, ways, found
                )
    found["passed"] = (
        found["largest_share"] <= 1 + 1e-9 and found["largest_disagreement"] == 0
    )
    return found


def _compare(
    made: Ways,
    hostile: list[Pair],
    number: int,
    asked: tuple[Query, Params, ReleaseSpec],
    n_features: int,
    plan: Plan,
    ways: tuple[str, ...],
    found: dict[str, Any],
) -> None:
    """Measure a release, and keep what is largest in `found`.

    number: of the release, which turns the ways.
    """
    query, params, spec = asked
    t = params.transform
    unit, deviation = noise_scale(query, spec, t.append)
    sd = unit * deviation
    row = float(sd / spec.noise_multiplier)
    rows = spec.group_cap or 1
    if spec.sampling_prob < 1 and spec.relation == "replace_one":
        # the noise is over the zero-out sensitivity, the accountant handles the rest
        rows *= 2
    large = np.prod(query.shape(t.width(n_features))) >= LARGE_SUM_ENTRIES
    for i, pair in enumerate(hostile):
        turn = ways[(i + number) % len(ways)]
        chosen = [turn] if large or turn == ways[0] else [ways[0], turn]
        sums = {}
        for way in chosen:
            without = made.total(way, (i, False), query, params, spec)
            inside = made.total(way, (i, True), query, params, spec)
            sums[way] = [without, inside]
        found["sums"] += 2 * len(sums)
        for way, (without, inside) in sums.items():
            share = float(np.linalg.norm(inside - without)) / (rows * row)
            if share > found["largest_share"]:
                mu = share * rows * row / sd
                found["largest_share"] = share
                found["worst"] = f"{spec.label}: {pair.name}, {way}"
                found["epsilon_of_worst"] = _epsilon(mu, spec, plan.delta)
            for value, first in zip((without, inside), sums[chosen[0]], strict=True):
                apart = float(np.linalg.norm(value - first)) / row
                largest = max(found["largest_disagreement"], apart)
                found["largest_disagreement"] = largest


def _epsilon(mu: float, spec: ReleaseSpec, delta: float) -> float | None:
    """What the release alone shows of the pair; None of a Poisson batch, in which it
    may not be, and of everything.
    """
    if spec.sampling_prob < 1 or mu >= 1e6:
        return None
    return epsilon_from_mu(mu, delta)


def _asked(
    solver: Solver, plan: Plan, facts: PublicFacts, rows: World, clip: float
) -> Iterator[tuple[Query, Params, ReleaseSpec]]:
    """What one fit asks first and last under each label, and the same at weights that
    are wrong for hostile rows.
    """
    labels = [s.label for s in plan.specs]
    wanted = {labels.index(name) for name in labels} | {
        len(labels) - 1 - labels[::-1].index(name) for name in labels
    }
    few = slice(1, 1 + COUNTED_EVERY * min(8, facts.n_rows), COUNTED_EVERY)
    groups = None if plan.group_cap is None else rows.groups[few]
    sums = Sums(
        AuditRows(rows.x[few], rows.y[few], facts.n_rows, groups, plan.group_cap)
    )
    specs: list[ReleaseSpec] = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    fit = transcript(solver, plan.budgeted(facts), specs, NoiseSource(), sums)
    for i, (query, params, spec, _) in enumerate(fit):
        if i not in wanted:
            continue
        yield query, params, spec
        if type(params) is Params and params.weights is not None:
            yield query, replace(params, weights=_wrong(params, clip)), spec


def _wrong(params: Params, clip: float) -> np.ndarray:
    """Weights by which a row along the first axis, as long as the clip norm, belongs to
    the last class.
    """
    assert params.weights is not None
    weights = np.zeros_like(params.weights)
    weights[0, 0] = -WRONG_SCORE / clip
    weights[0, -1] = WRONG_SCORE / clip
    return weights
