"""Shuffled batches are an epoch's parts, and their true epsilon has no
amplification.
"""

import numpy as np
import pytest

from benchmarks.shuffled import ShuffledBatches, batches_per_epoch, true_epsilon
from dphead.planning.plan import make_plan
from dphead.privacy.accounting import epsilon_from_mu
from dphead.privacy.sampling import poisson_sample
from dphead.solvers import GradientDescent, ProblemInfo
from dphead.solvers.centering import Centering
from dphead.solvers.normalization import ChannelNormalization

FACTS = ProblemInfo(100, 4, 2)


def plan_of(centering, steps=9):
    solver = GradientDescent(
        steps=steps, sampling_prob=0.3, clip_norm=1.0, centering=centering
    )
    return make_plan(solver, FACTS, epsilon=3, delta=1e-5)


@pytest.mark.parametrize(
    "centering", [Centering(0.0, False), ChannelNormalization(2, 1.0, 1.0, 20.0)]
)
def test_an_epoch_holds_each_row_once(centering):
    plan = plan_of(centering)
    noise = ShuffledBatches(3, plan)
    first = len(plan.specs) - 9
    drawn = [
        poisson_sample(100, 0.3, noise.generator(first + t, "sample")) for t in range(8)
    ]
    assert batches_per_epoch(0.3) == 4
    for epoch in (drawn[:4], drawn[4:]):
        assert sorted(np.concatenate(epoch)) == list(range(100))
        assert {len(b) for b in epoch} == {25}
    assert not np.array_equal(drawn[0], drawn[4])
    again = poisson_sample(
        100, 0.3, ShuffledBatches(3, plan).generator(first, "sample")
    )
    assert np.array_equal(drawn[0], again)


def test_the_true_epsilon_counts_each_use_of_a_row():
    plan = plan_of(Centering(0.0, False))
    sigma = plan.specs[0].noise_multiplier
    # 9 steps: 3 epochs of 4
    assert true_epsilon(plan.events(), 1e-5) == pytest.approx(
        epsilon_from_mu(np.sqrt(3) / sigma, 1e-5)
    )
    assert true_epsilon(plan.events(), 1e-5) > plan.epsilon_spent()


def test_full_batch_releases_are_charged_too():
    plan = plan_of(ChannelNormalization(2, 1.0, 1.0, 20.0))
    sigma = plan.specs[-1].noise_multiplier
    assert true_epsilon(plan.events(), 1e-5) == pytest.approx(
        epsilon_from_mu(np.sqrt(3 / sigma**2 + 2 / 400), 1e-5)
    )
