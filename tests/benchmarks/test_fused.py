"""The benchmarks' fast sums are the audited ones up to rounding, and turn a fit into
the same head.
"""

import numpy as np
import pytest
from fits import plan_and_fit

from benchmarks.fused import FusedSums, Together, fit_together, residual_of
from dphead.planning.plan import Plan
from dphead.privacy.contract import Block, ReleaseSpec
from dphead.privacy.noise import NoiseSource
from dphead.privacy.query import Params
from dphead.privacy.statistics import Gradient
from dphead.privacy.transform import RADIUS, RowTransform
from dphead.rows.arrays import ArrayRows
from dphead.runs.loop import Run, fit_head
from dphead.solvers import DPFC, Auto, GradientDescent, LeastSquares, PublicFacts
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization
from dphead.sums.cpu import CpuSums
from dphead.sums.door import Door
from dphead.sums.reference import ask_of

D, M = 12, 3


def planned(solver, facts):
    """Of a noise multiplier of 1. To find that of a budget takes seconds for Poisson
    batches, and is tested elsewhere."""
    specs = [
        ReleaseSpec(
            p.label, p.query.name, p.clip_norm, 1.0, facts.n_rows, p.sampling_prob
        )
        for p in solver.plan(facts)
    ]
    return Plan(20.0, 1e-5, "zero_out", "rdp", specs=specs)


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
    facts = PublicFacts(300, D, M)
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
            solver, rows, facts, plan, Run(noise=NoiseSource(0), summer=Door(sums))
        ).head
        for sums in (CpuSums(), FusedSums())
    ]
    np.testing.assert_allclose(
        heads[0].weights, heads[1].weights, atol=1e-3 * np.abs(heads[0].weights).max()
    )


def test_fits_on_common_batches_are_those_on_their_own():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, D))
    x[7] = np.nan
    rows = ArrayRows(x, rng.integers(0, M, 300))
    facts = PublicFacts(300, D, M)
    solvers = [
        GradientDescent(
            steps=4,
            sampling_prob=0.4,
            clip_norm=0.1,
            learning_rate=rate,
            intercept=1.0,
            centering=c,
        )
        for rate, c in (
            (1.0, ChannelNormalization(4, 1.0, 1.0)),
            (8.0, ChannelNormalization(4, 2.0, 1.0, 4.0)),
        )
    ]
    plans = [planned(solver, facts) for solver in solvers]
    together = Together(rows, 2)

    def fit(i: int):
        run = Run(noise=NoiseSource(5), summer=together.summer(i))
        return fit_head(solvers[i], together.rows(), facts, plans[i], run)

    found = together.run(fit)
    for solver, plan, result in zip(solvers, plans, found, strict=True):
        alone = fit_head(
            solver, rows, facts, plan, Run(noise=NoiseSource(5))
        ).head.weights
        np.testing.assert_allclose(
            result.head.weights, alone, atol=1e-3 * np.abs(alone).max()
        )


def test_full_batches_are_shared_by_fits_of_any_length():
    """Their transforms differ, and the count at the end is asked for while others still
    descend.
    """
    rng = np.random.default_rng(3)
    y = rng.integers(0, M, 400)
    rows = ArrayRows(
        rng.normal(size=(400, D)) + 2 * np.eye(M, D)[y],
        y,
    )
    facts = PublicFacts(400, D, M)
    solvers = [
        Auto(),
        GradientDescent(steps=3, intercept=1.0),
        GradientDescent(steps=5, centering=Centering(0.0)),
        DPFC(steps=4, ridge=0.1),
        LeastSquares(),
    ]
    together = Together(rows, len(solvers))

    def fit(i: int):
        return plan_and_fit(
            solvers[i],
            together.rows(),
            facts,
            epsilon=5,
            noise=NoiseSource(i),
            summer=together.summer(i),
        )

    for i, result in enumerate(together.run(fit)):
        alone = plan_and_fit(
            solvers[i], rows, facts, epsilon=5, noise=NoiseSource(i)
        ).head
        np.testing.assert_allclose(
            result.head.weights, alone.weights, atol=1e-3 * np.abs(alone.weights).max()
        )
        if alone.estimate:
            # a row or two on the border
            assert abs(result.head.estimate.accuracy - alone.estimate.accuracy) < 0.01


def test_fits_without_privacy_are_those_on_their_own():
    """Each asks for the largest norm of the rows that its batch only names."""
    rng = np.random.default_rng(4)
    rows = ArrayRows(rng.normal(size=(300, D)), rng.integers(0, M, 300))
    facts = PublicFacts(300, D, M)
    solvers = [
        GradientDescent(steps=3, learning_rate=rate, centering=Centering(0.0))
        for rate in (1.0, 4.0)
    ]
    found = fit_together(rows, facts, [(solver, 1, np.inf) for solver in solvers], 1e-5)
    for solver, result in zip(solvers, found, strict=True):
        for summer in (Door(CpuSums()), Door(FusedSums())):
            alone = plan_and_fit(
                solver, rows, facts, epsilon=np.inf, summer=summer
            ).head.weights
            # rows and residuals on a grid of 1 / RADIUS
            np.testing.assert_allclose(
                result.head.weights, alone, atol=2e-3 * np.abs(alone).max()
            )


def test_fits_that_draw_other_rows_are_refused():
    rows = ArrayRows(np.ones((300, D)), np.zeros(300, int))
    facts = PublicFacts(300, D, M)
    together = Together(rows, 2)

    def fit(i: int):
        solver = GradientDescent(
            steps=2, sampling_prob=(0.4, 0.5)[i], centering=Centering(0.0, False)
        )
        plan = planned(solver, facts)
        run = Run(noise=NoiseSource(0), summer=together.summer(i))
        return fit_head(solver, together.rows(), facts, plan, run)

    with pytest.raises(RuntimeError, match="must draw the same rows"):
        together.run(fit)
