"""Fits on common batches are those on their own."""

import numpy as np
import pytest
from fits import plan_and_fit, planned

from benchmarks.fused import FusedSums
from benchmarks.together import Together, fit_together
from dphead.data.arrays import ArrayRows
from dphead.fit.loop import Run, fit_head
from dphead.privacy.noise import NoiseSource
from dphead.solvers import DPFC, Auto, GradientDescent, LeastSquares, ProblemInfo
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization
from dphead.sums.cpu import CpuSums
from dphead.sums.verified import VerifiedSum

D, M = 12, 3


def test_fits_on_common_batches_are_those_on_their_own():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, D))
    x[7] = np.nan
    rows = ArrayRows(x, rng.integers(0, M, 300))
    facts = ProblemInfo(300, D, M)
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
    facts = ProblemInfo(400, D, M)
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
    facts = ProblemInfo(300, D, M)
    solvers = [
        GradientDescent(steps=3, learning_rate=rate, centering=Centering(0.0))
        for rate in (1.0, 4.0)
    ]
    found = fit_together(rows, facts, [(solver, 1, np.inf) for solver in solvers], 1e-5)
    for solver, result in zip(solvers, found, strict=True):
        for summer in (VerifiedSum(CpuSums()), VerifiedSum(FusedSums())):
            alone = plan_and_fit(
                solver, rows, facts, epsilon=np.inf, summer=summer
            ).head.weights
            # rows and residuals on a grid of 1 / RADIUS
            np.testing.assert_allclose(
                result.head.weights, alone, atol=2e-3 * np.abs(alone).max()
            )


def test_fits_that_draw_other_rows_are_refused():
    rows = ArrayRows(np.ones((300, D)), np.zeros(300, int))
    facts = ProblemInfo(300, D, M)
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
