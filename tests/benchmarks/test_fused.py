"""The benchmarks' fast sums are the audited ones up to rounding, and turn a fit into
the same head.
"""

import numpy as np
import pytest
from fits import planned

from benchmarks.fused import FusedSums, residual_of
from dphead.data.arrays import ArrayRows
from dphead.fit.loop import Run, fit_head
from dphead.privacy.contract import Block
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RADIUS, RowTransform
from dphead.solvers import GradientDescent, ProblemInfo
from dphead.solvers.normalization import ChannelNormalization
from dphead.sums.cpu import CpuSums
from dphead.sums.reference import ask_of
from dphead.sums.verified import VerifiedSum

D, M = 12, 3


def block(rng, rows=256):
    x = rng.normal(size=(rows, D)).astype(np.float32)
    x[3], x[4] = np.inf, np.nan
    y = rng.integers(0, M, rows)
    y[5] = M  # no class
    index = np.arange(rows)
    index[-20:] = -1
    return Block(index, x, y)


def test_a_loss_that_is_not_defined_has_no_residual():
    """A new one would be summed as a squared loss."""
    with pytest.raises(ValueError, match="sigmoid or squared, got loss='new'"):
        residual_of(np.zeros((1, 1, M), np.float32), np.zeros(1, int), "new")


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("clip", [0.1, 5.0, np.inf])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("parts", ["", "center", "scale", "center scale"])
def test_sums_are_the_audited_ones(loss, clip, unit, parts):
    rng = np.random.default_rng(0)
    rows = block(rng)
    query = Gradient(M, loss)
    rows.x[6] = 0
    center = rng.normal(size=D).astype(np.float32)
    scale = rng.uniform(0.5, 2, D).astype(np.float32)
    transform = RowTransform(
        unit,
        center if "center" in parts else None,
        scale if "scale" in parts else None,
        0.7,
    )
    params = Params(transform, rng.normal(size=(D + 1, M)).astype(np.float32))
    fused = FusedSums()
    exact = CpuSums()
    if np.isinf(clip):  # as `release` asks: the largest norm is the clip
        norms = [
            sums.norms(ask_of(query, params, clip), rows) for sums in (fused, exact)
        ]
        np.testing.assert_array_equal(*norms)
        clip = query.no_clip(float(norms[0][rows.index >= 0].max()), params)
    ask = ask_of(query, params, clip)
    for _ in range(2):  # norms computed, and kept
        found, wanted = (
            sums.add(
                ask,
                sums.rows(ask, rows),
                rows.y,
                rows.index >= 0,
                np.zeros((D + 1, M), np.int64),
            )
            for sums in (fused, exact)
        )
        # Rows and residuals are brought to a little less than RADIUS (`aim`): 3 parts
        # in 10,000 each.
        # Both are rounded: 230 rows at random make 15 roundings.
        atol = 1e-3 * np.abs(wanted).max() + 15 * RADIUS
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


def test_a_fit_gives_the_same_head():
    rng = np.random.default_rng(1)
    rows = ArrayRows(rng.normal(size=(300, D)), rng.integers(0, M, 300))
    facts = ProblemInfo(300, D, M)
    solver = GradientDescent(
        steps=5,
        sampling_prob=0.5,
        clip_norm=0.1,
        intercept=1.0,
        centering=ChannelNormalization(4, 1.0, 1.0),
    )
    plan = planned(solver, facts)
    heads = [
        fit_head(
            solver,
            rows,
            facts,
            plan,
            Run(noise=NoiseSource(0), summer=VerifiedSum(sums)),
        ).head
        for sums in (CpuSums(), FusedSums())
    ]
    np.testing.assert_allclose(
        heads[0].weights, heads[1].weights, atol=1e-3 * np.abs(heads[0].weights).max()
    )
