"""Helpers of the privacy tests: rows, one release, one sum."""

import os
import subprocess
import sys

import numpy as np

from dphead.data.arrays import ArrayRows
from dphead.privacy.contract import Block, ReleaseSpec, SumTask
from dphead.privacy.ledger import Ledger
from dphead.privacy.loss import LOSSES
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import release
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import (
    ChannelMoment,
    ClassCorrectCounts,
    ClassCounts,
    ClassGrams,
    ClassSums,
    CorrectCounts,
    Gradient,
    Gram,
    RowCounts,
    SigmoidHessians,
)
from dphead.sums.cpu import CpuSums
from dphead.sums.passes import NO_ROWS, checked_sum
from dphead.sums.verified import VerifiedSum

M, D = 3, 4  # classes and features of the small problems
BOUNDED = [n for n, loss in LOSSES.items() if np.isfinite(loss.longest_residual(M))]
STATISTICS = [
    ChannelMoment(M),
    ChannelMoment(M, 2),
    ChannelMoment(M, 1, 2),
    ChannelMoment(M, 2, 2),
    Gram(M),
    ClassGrams(M),
    SigmoidHessians(M),
    ClassSums(M),
    ClassCounts(M),
    *(Gradient(M, loss) for loss in LOSSES),
    *(Gradient(M, loss, "features") for loss in BOUNDED),
    CorrectCounts(M),
    ClassCorrectCounts(M),
    RowCounts(M),
]
NAMES = [q.name for q in STATISTICS]


def spec_of(
    statistic, n_rows, *, clip_norm=1.0, sigma=1.0, label="test", **more
) -> ReleaseSpec:
    return ReleaseSpec(label, statistic.name, clip_norm, sigma, n_rows, **more)


def reserve(specs, ledger=None, store=None, epsilon=1.0, delta=1e-5):
    """A fit of these releases in `ledger` (in memory by default)."""
    return (ledger or Ledger()).reserve(
        [s.row() for s in specs],
        epsilon=epsilon,
        delta=delta,
        description="test",
        plan_hash="hash",
        store=store,
    )


def verified(block_sum=None):
    """How `release` sums; CpuSums() by default."""
    return VerifiedSum(CpuSums() if block_sum is None else block_sum)


class KnownNoise(NoiseSource):
    """Noise from a seed that is charged as if it were secret: for one release alone."""

    private = True


def release_one(statistic, params, rows, seed=1, block_sum=None, **spec):
    """One release of a fit of its own."""
    s = spec_of(statistic, rows.n_rows, **spec)
    ledger = reserve([s])
    noise = KnownNoise(seed)
    return release(
        statistic,
        params,
        rows,
        s,
        ledger=ledger,
        noise=noise,
        summer=verified(block_sum),
    )


def run(statistic, rows, spec, fit, noise=None, summer=None):
    """The next release of a reserved fit, of rows that are not transformed."""
    noise = noise or KnownNoise(1)
    parts = {"ledger": fit, "noise": noise, "summer": summer or verified()}
    return release(statistic, Params(), rows, spec, **parts)


def release_many(statistic, params, rows, times, seed=None, **spec):
    """`times` releases of one fit, (times, *shape)."""
    s = spec_of(statistic, rows.n_rows, **spec)
    ledger = reserve([s] * times)
    noise = KnownNoise(seed)
    summer = verified()
    found = [
        release(statistic, params, rows, s, ledger=ledger, noise=noise, summer=summer)
        for _ in range(times)
    ]
    return np.stack([one.value for one in found])


def sensitivity(statistic, clip_norm, relation, append=0.0) -> float:
    """How far one row can move the sum, in real numbers and in L2."""
    squared = statistic.sensitivity_sq(relation, clip_norm, append)
    return statistic.unit(clip_norm, append) * float(np.sqrt(float(squared)))


def integer_sum(
    statistic,
    params,
    x,
    y=None,
    clip_norm=1.0,
    block_rows=128,
    block_sum=None,
    **of_pass,
):
    """The int64 sum without noise, as `release` computes it.

    x: rows (n, d), or a row source. of_pass: `checked_sum`'s indices and kept rows.
    """
    rows = x if hasattr(x, "blocks") else ArrayRows(x, y, block_rows)
    ask = SumTask(statistic, params, clip_norm, rows, of_pass.get("indices"))
    kept = of_pass.get("kept", NO_ROWS)
    return checked_sum([ask], block_sum or CpuSums(), kept)[0]


def clipped_sum(statistic, params, x, y=None, clip_norm=1.0, **more):
    """The same in real numbers."""
    unit = statistic.unit(clip_norm, params.transform.append)
    return integer_sum(statistic, params, x, y, clip_norm, **more) * unit


def added(way, statistic, params, x, y, index, clip_norm=0.7):
    """What a block sum adds of one block, without the pass, whose secret run would
    raise; upper triangles alone.
    """
    ask = SumTask(statistic, params, clip_norm)
    block = Block(index, x, y)
    shape = ask.shape(x.shape[1])
    out = (
        np.zeros(shape[::-1], np.int64).T
        if statistic.kind == "outer"
        else np.zeros(shape, np.int64)
    )
    out = way.add(ask, way.rows(ask, block), y, index >= 0, out)
    return np.triu(out) if statistic.symmetric else out


def one_block(x, y, n=None):
    """A padded block and its mask."""
    n = len(x) if n is None else n
    size = 128 * -(-len(x) // 128)
    xs = np.zeros((size, x.shape[1]), np.float32)
    ys = np.full(size, -1, np.int32)
    xs[: len(x)], ys[: len(x)] = x, y
    index = np.where(np.arange(size) < n, np.arange(size), -1)
    return Block(index, xs, ys), index >= 0


class Counted(ArrayRows):
    """Rows that count the passes over them."""

    passes = 0

    def blocks(self, indices=None, known=None):
        self.passes += 1
        return super().blocks(indices)


def toy(n=200, d=D, m=M, seed=0, scale=1.0):
    """Separable-ish rows and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, m, n)
    centers = rng.standard_normal((m, d)) * 2
    return (scale * (centers[y] + 0.5 * rng.standard_normal((n, d)))).astype(
        np.float32
    ), y.astype(np.int32)


def without_the_group(relation, x, y, groups):
    """Rows of data sets that differ from (x, y) in group 7, by this relation."""
    mine = groups == 7
    if relation == "zero_out":
        return [(x, np.where(mine, -1, y), groups)]
    if relation == "add_remove":
        return [(x[~mine], y[~mine], groups[~mine])]
    opposite = np.where(mine[:, None], -x, x)
    one_row = np.where(mine & (np.cumsum(mine) > 1), -1, y)
    return [(opposite, y, groups), (opposite, one_row, groups)]


def largest_move(statistic, relation, x, y, groups, **more):
    """The largest squared length by which group 7 moves a sum, in integers."""

    def total(x, y, groups):
        rows = ArrayRows(x, y, groups=groups, **more)
        return integer_sum(statistic, Params(weights=np.zeros((D, M))), rows)

    sizes = []
    for other in without_the_group(relation, x, y, groups):
        moved = (total(x, y, groups) - total(*other)).ravel().astype(object)
        sizes.append(moved @ moved)
    return max(sizes)


SIZES = np.array([0, 1e-45, 1e-38, 1e-19, 1e-3, 1, 1, 1, 1e4, 1e19, 3e38])


def hostile(n, d, m, seed):
    """Rows (n, d) of all sizes, some one-hot, equal or not finite, and labels of which
    some are no class.
    """
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        x = (
            (rng.standard_normal((n, d)) * rng.choice(SIZES, (n, 1)))
            .clip(-3.4e38, 3.4e38)
            .astype(np.float32)
        )
    x[: n // 8] = 0
    x[np.arange(n // 8), np.arange(n // 8) % d] = 5
    x[n // 8 : n // 4] = rng.choice([-1.0, 1.0])
    x[n // 4] = np.nan
    x[n // 4 + 1, 0] = np.inf
    return x, rng.integers(-1, m + 1, n)


def python(script: str, *args, wait=True, **variables):
    """Run a script in a fresh interpreter, with more environment variables."""
    paths = [os.path.dirname(os.path.dirname(__file__)), os.path.dirname(__file__)]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OPENBLAS_NUM_THREADS="1")
    env |= variables
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        process.out, process.err = process.communicate(timeout=600)  # on a busy machine
    return process
