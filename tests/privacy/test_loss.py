"""The losses: their integers beside their definitions, their bounds and their steps."""

import numpy as np
import pytest
from core import D, M, integer_sum
from definitions import predictions
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from dphead.privacy.loss import LOSSES, loss_named
from dphead.privacy.predictions import PROBABILITY_SCALE
from dphead.privacy.statistic_base import Params
from dphead.privacy.statistics import Gradient
from dphead.sums.cpu import CpuSums

GRID = 2.0**-20  # one unit of a score


@settings(max_examples=60, deadline=None)
@given(
    loss=st.sampled_from(list(LOSSES)),
    m=st.integers(1, 12),
    size=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_every_loss_predicts_as_it_is_defined_and_keeps_its_bound(loss, m, size, seed):
    """Powers are truncated to 1/2048 of a doubling: 0.1 % of a probability at most."""
    rng = np.random.default_rng(seed)
    z = np.rint(rng.standard_normal((1, m)) * size / GRID)
    p = LOSSES[loss].predictions(np, z, np.full((1, 1), GRID))
    assert p.dtype == np.int64
    p = p[0] / PROBABILITY_SCALE
    exact = np.clip(predictions(z[0] * GRID, loss), -256, 256)
    np.testing.assert_allclose(p, exact, atol=1e-3)
    score_norm = float(np.linalg.norm(z * GRID))
    longest = LOSSES[loss].longest_residual(m, score_norm)
    residuals = np.linalg.norm(p - np.eye(m), axis=1)
    assert residuals.max() <= longest + 1e-3 * np.sqrt(m)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_residual_of_any_score_is_longer_than_an_unconditional_bound(loss):
    """A confident and wrong prediction reaches it; the squared loss has none."""
    m = 4
    z = np.array([[2.0**29, *[-(2.0**29)] * (m - 1)]])
    p = loss.predictions(np, z, np.ones((1, 1))) / PROBABILITY_SCALE
    residual = p[0] - (0 if loss.takes_sets else np.eye(m)[1])
    if loss.takes_sets:  # the worst label set: each class but the predicted one
        residual = p[0] - np.array([0, *[1] * (m - 1)])
    longest = loss.longest_residual(m)
    assert np.isinf(longest) or np.isclose(np.linalg.norm(residual), longest)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_monotone_step_is_the_largest_for_which_the_hessian_bound_holds(loss):
    """The slope of the predictions times the step never exceeds one, and reaches it."""
    step = 1e-5
    rng = np.random.default_rng(0)
    at = np.concatenate([np.zeros((1, 2)), rng.standard_normal((200, 2)) * 3])
    slopes = []
    for z in at:
        ahead = [predictions(z + step * e, loss.name) for e in np.eye(2)]
        behind = [predictions(z - step * e, loss.name) for e in np.eye(2)]
        slope = np.subtract(ahead, behind) / (2 * step)
        slopes.append(np.linalg.eigvalsh((slope + slope.T) / 2)[-1])
    assert np.isclose(max(slopes) * loss.monotone_step, 1.0, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_calibrated_if_its_predictions_are_its_link(loss):
    z = np.random.default_rng(0).standard_normal(M) * 3
    link = {"softmax": softmax, "sigmoid": expit}[loss.link]
    assert loss.calibrated == np.allclose(predictions(z, loss.name), link(z))


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e9, 1e12, 1e16])
@pytest.mark.parametrize("compiled", [True, False])
def test_squared_residuals_of_any_size_are_clipped(size, compiled):
    """Beyond 2**31 their squares would come round in int64."""
    weights = np.zeros((D, M))
    x = np.eye(1, D, dtype=np.float32)
    weights[0, 1] = size
    way = CpuSums(compiled)
    statistic = Gradient(M, "squared")
    total = integer_sum(
        statistic, Params(weights=weights), x, np.array([1]), block_sum=way
    )
    assert total[0, 1] >= 0.99 * statistic.max_entry
    assert not total[:, [0, 2]].any()


def test_a_loss_that_is_not_defined_is_refused_by_name():
    """A new one would be summed as another loss."""
    with pytest.raises(ValueError, match=f"{list(LOSSES)[-1]}, got 'new'"):
        loss_named("new")
    with pytest.raises(ValueError, match="got 'new'"):
        Gradient(M, "new")
    with pytest.raises(ValueError, match="bounded residuals, got the squared loss"):
        Gradient(M, "squared", "features")
