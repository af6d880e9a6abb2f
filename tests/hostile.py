"""Hostile rows through every way to a sum: sources, threads, kept rows, compiled loops.

`dphead audit` sends its rows through memory alone. Here rows of any size, of opposite
signs and not finite go through what fits use. For each release the distance of two
worlds' sums is compared with the one that its noise is for, and two ways must give the
same integers. The sums are measured without noise, so there is no chance in it.
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import h5py
import numpy as np
from dphead_extract.features.format import open_features, write_features
from features import digests_of

from dphead.analysis.audit_rows import NO_CLASS, Sums, UnrecordedSpec
from dphead.analysis.audit_transcript import (
    ROWS_BEYOND_CAP,
    Problem,
    planned,
    transcript,
)
from dphead.data.arrays import ArrayRows
from dphead.data.blocks import CHUNK
from dphead.data.features import FeaturesRows
from dphead.privacy.contract import SumTask
from dphead.privacy.noise import NoiseSource
from dphead.privacy.sampling import NO_GROUP
from dphead.privacy.statistic_base import Params
from dphead.sums.caches import KeptRows
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum

# Chosen, not measured.
NORMS = (1.0, 10.0, 1e6)  # of hostile rows, in clip norms
WRONG_SCORE = 5.0  # of a clipped hostile row for the wrong class
WORLD_SLOTS = 3 * CHUNK + 5  # of a world: several blocks, the last of them padded
COUNTED_EVERY = 32  # slots, of which one has a row that counts
WAYS = ("memory", "threads", "kept rows", "compiled", "file", "streamed file")


def pairs(d, n_classes, clip_norm):
    """Pairs of (row, class): a hostile row of each kind that a features file may hold,
    and the row that replaces it under replace_one.
    """
    axis = np.zeros(d, np.float32)
    axis[0] = clip_norm
    even = np.full(d, clip_norm / np.sqrt(d), np.float32)
    found = []
    for size, row in product(NORMS, (axis, even)):
        far = np.float32(size) * row
        found += [((far, 0), (-far, 0)), ((-far, 0), (far, n_classes - 1))]
    far = np.float32(10) * axis
    for value in (np.nan, np.inf, -np.inf, 3e38, 1e-45):
        one = even.copy()
        one[-1] = value
        every = np.full(d, value, np.float32)
        found += [((one, 0), (far, 0)), ((every, 0), (-far, 0))]
    return [*found, ((far, n_classes), (-far, 0))]


class World(NamedTuple):
    """Rows (n, d), labels, groups and which slots are sampled, each (n,)."""

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    sampled: np.ndarray


def copies_of(plan):
    """Rows of the protected unit: those of a group are more than its cap."""
    return 1 if plan.group_cap is None else plan.group_cap + ROWS_BEYOND_CAP


def world(pair, inside, plan, clip_norm):
    """The rows with the pair's first, or with what the relation puts in its place.

    The unit's first slot is the first of all, so that everything moves when it goes;
    its rows are in all blocks. Slots without a class hold numbers that would spoil any
    sum.
    """
    rng = np.random.default_rng(0)
    copies, d = copies_of(plan), len(pair[0][0])
    n = max(WORLD_SLOTS, 4 * copies)
    x = (clip_norm / np.sqrt(d) * rng.standard_normal((n, d))).astype(np.float32)
    slots = np.arange(n)
    y = np.where(slots % COUNTED_EVERY == 1, slots // COUNTED_EVERY % 2, NO_CLASS)
    x[2::COUNTED_EVERY] = np.nan
    x[3::COUNTED_EVERY] = np.float32(1e6 * clip_norm)
    unit = np.arange(copies) * (n // copies)
    groups, sampled = np.full(n, NO_GROUP), slots % 2 == 1
    groups[unit], sampled[unit] = 0, True
    x[unit], y[unit] = pair[0]
    if not inside:
        replaced = plan.relation == "replace_one"
        x[unit], y[unit] = pair[1] if replaced else (0, NO_CLASS)
    kept = np.ones(n, bool)
    kept[unit] = inside or plan.relation != "add_remove"
    return World(*(column[kept] for column in (x, y, groups, sampled)))


@contextmanager
def stored(worlds, n_classes):
    """A features file that has each world as a split."""
    every = list(worlds.values())
    x = np.concatenate([w.x for w in every])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.h5"
        write_features(
            path,
            np.zeros_like(x),
            np.concatenate([w.y for w in every]).astype(np.int32),
            [str(i) for i in range(n_classes)],
            split=np.repeat(range(len(every)), [len(w.y) for w in every]),
            split_names=[str(key) for key in worlds],
            group=[None if g == NO_GROUP else g for w in every for g in w.groups],
        )
        # the writer refuses what is not finite: others may not
        with h5py.File(path, "r+", locking=False) as file:
            file["features"][:] = x
            file["block_digest"][:] = digests_of(file)
        with open_features(path) as file:
            yield file


def total(way, w, split, seen):
    """A release's exact sum over a world, over its sample where the release has one; of
    kept rows that of a later pass, after one of another transform.

    split: (features file, name) of the same rows.
    """
    params, spec = seen.params, seen.spec
    if way.endswith("file"):
        memory = 0 if way == "streamed file" else 1 << 40
        rows = FeaturesRows(*split, memory, spec.group_cap)
    else:
        size = None if way == "memory" else CHUNK
        rows = ArrayRows(w.x, w.y, size, w.groups, spec.group_cap)
    sampled = (
        np.flatnonzero(w.sampled & rows.within) if spec.sampling_prob < 1 else None
    )
    block_sum = CpuSums(compiled_from=0) if way == "compiled" else CpuSums()
    t = params.transform
    transforms, kept = [t], NO_ROWS
    if way == "kept rows":
        transforms, kept = (
            [replace(t, unit_norm=not t.unit_norm), t, t],
            KeptRows(1 << 40),
        )
    for transform in transforms:
        own = replace(params, transform=transform)
        task = SumTask(seen.statistic, own, spec.clip_norm, rows, sampled)
        found = checked_sum(task, block_sum, kept)
    return found * seen.statistic.unit(spec.clip_norm, t.append)


def asked(solver, plan, problem, clip):
    """The first and last release of each label in one fit, where they depend on weights
    also at weights that give a row along the first axis to the last class.
    """
    labels = [s.label for s in plan.specs]
    wanted = {labels.index(name) for name in labels}
    wanted |= {len(labels) - 1 - labels[::-1].index(name) for name in labels}
    specs = [UnrecordedSpec(**vars(s)) for s in plan.specs]
    sums = Sums(problem.world(True))
    facts = plan.budgeted(problem.facts)
    for i, seen in enumerate(transcript(solver, facts, specs, NoiseSource(), sums)):
        if i not in wanted:
            continue
        yield seen
        params = seen.params
        if type(params) is Params and params.weights is not None:
            wrong = np.zeros_like(params.weights)
            wrong[0, 0], wrong[0, -1] = -WRONG_SCORE / clip, WRONG_SCORE / clip
            yield replace(seen, params=replace(params, weights=wrong))


def measure(solver, plan, facts):
    """Distances of hostile worlds at the releases of one fit, as shares of what the
    noise of each is for.

    `passed` is False if a share exceeds 1, or if two ways to the sum of a world
    disagree. Each pair goes through memory and one of the other ways, in turn.
    """
    clip = max(s.clip_norm for s in plan.specs)
    hostile = pairs(facts.n_features, facts.n_classes, clip)
    worlds = {
        (i, side): world(pair, side, plan, clip)
        for (i, pair), side in product(enumerate(hostile), (False, True))
    }
    few = slice(1, 1 + COUNTED_EVERY * min(8, facts.n_rows), COUNTED_EVERY)
    rows = (worlds[0, True].x[few], worlds[0, True].y[few], hostile[0][0])
    group = {"group_cap": plan.group_cap, "copies": copies_of(plan)}
    problem = Problem(facts, plan.relation, *rows, **group)
    shares, apart = [], []

    def compare(number, seen, file):
        row, _ = planned(seen)

        @cache
        def of(way, key):
            return total(way, worlds[key], (file, str(key)), seen)

        for i in range(len(hostile)):
            # without the unit, worlds differ under replace_one alone
            outside = i if plan.relation == "replace_one" else 0
            keys = ((outside, False), (i, True))
            for way in {WAYS[0], WAYS[(i + number) % len(WAYS)]}:
                without, inside = (of(way, key) for key in keys)
                moved = np.linalg.norm(inside - without)
                share = moved / (row * (plan.group_cap or 1))
                shares.append((share, seen.spec.label, i, way))
                off = [np.linalg.norm(of(way, key) - of(WAYS[0], key)) for key in keys]
                apart.append(max(off) / row)

    with stored(worlds, facts.n_classes) as file, np.errstate(all="ignore"):
        for number, seen in enumerate(asked(solver, plan, problem, clip)):
            compare(number, seen, file)
    worst = max(shares)
    return {
        "passed": worst[0] <= 1 + 1e-9 and max(apart) == 0,
        "largest_share": worst[0],
        "largest_disagreement": max(apart),
        "worst": worst,
    }
