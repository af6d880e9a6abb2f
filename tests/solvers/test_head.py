"""Rows at prediction are those of training, and what training masks has no class."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits

import dphead
from dphead.privacy.transform import RADIUS, RowTransform, clipped_rows, direction_rows
from dphead.solvers.head import LinearHead, float_rows

D, M = 5, 3
CENTER = np.array([0.1, -0.2, 0.05, 0.0, 0.3], np.float32)
SCALE = np.array([1.0, 0.5, 3.0, 0.0, 40.0], np.float32)
TRANSFORMS = {
    "bare": RowTransform(),
    "unit": RowTransform(unit_norm=True),
    "unit, scaled": RowTransform(True, None, SCALE),
    "centered": RowTransform(True, CENTER),
    "centered, scaled": RowTransform(True, CENTER, SCALE),
    "standardized": RowTransform(False, CENTER, SCALE),
}
DTYPES = st.sampled_from([np.float16, np.float32, np.float64])
named = pytest.mark.parametrize("name", TRANSFORMS)


def any_rows(dtype):
    """Rows of all numbers of a dtype, not a number and infinity among them."""
    return arrays(dtype, (4, D))


def as_held(x):
    """Rows as training holds them."""
    with np.errstate(all="ignore"):
        return x.astype(np.float32)


@named
@given(x=DTYPES.flatmap(any_rows), append=st.sampled_from([0.0, 0.5]))
@settings(max_examples=60, deadline=None)
def test_rows_at_prediction_have_the_direction_that_training_sums(name, x, append):
    """To a grid step an entry, of RADIUS steps a row, where rounding leaves the row."""
    transform = replace(TRANSFORMS[name], append=append)
    ours = float_rows(transform, x)
    theirs = direction_rows(transform, as_held(x))
    masked = theirs.scale == 0
    assert np.array_equal(np.isnan(ours).all(axis=1), masked)
    assert np.array_equal(np.isnan(ours).any(axis=1), masked)
    whole = ours[~masked]
    if append:
        whole = np.pad(whole, ((0, 0), (0, 1)), constant_values=append)
    seen = theirs.q[~masked] * theirs.scale[~masked, None]
    # one step for rounding, one more where the row was truncated
    assert (np.abs(whole - seen) <= 2.01 * theirs.scale[~masked, None]).all()


@named
@given(x=DTYPES.flatmap(any_rows))
@settings(max_examples=60, deadline=None)
def test_rows_within_the_clip_are_those_of_clipped_sums(name, x):
    """As of a feature clip or a row norm: longer rows keep their direction there."""
    ours = float_rows(TRANSFORMS[name], x)
    theirs = clipped_rows(TRANSFORMS[name], as_held(x), 1.0)
    masked = np.isnan(ours).any(axis=1)
    assert np.array_equal(theirs.scale == 0, masked)
    rows = ours[~masked]
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    clipped = rows / np.maximum(length, 1)
    seen = theirs.q[~masked] / RADIUS
    # `aim` shortens a row at the clip by one step and its width's rounding
    assert (np.abs(clipped - seen) <= 4 / RADIUS).all()


def test_rows_of_another_width_are_refused():
    head = LinearHead(np.ones((D, M)), np.zeros(M), RowTransform(True, CENTER))
    with pytest.raises(ValueError, match=r"head's 5 features, got shape \(3, 1\)"):
        head.scores(np.ones((3, 1)))  # numpy would repeat it beside the center


CLIPPED = {
    "dp-ls": (dphead.DPLeastSquaresClassifier, {"intercept": 1.0}),
    "dp-newton": (dphead.DPNewtonClassifier, {"intercept": 1.0}),
    "nearest": (dphead.DPPrototypeClassifier, {"rule": "nearest"}),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_rows_longer_than_the_clip_are_predicted_as_they_were_trained(name):
    """Whole, they outweigh the intercept, which training set beside shortened rows."""
    method, options = CLIPPED[name]
    x, y = load_digits(return_X_y=True)
    model = method(epsilon=8.0, classes=range(10), unit_norm=False)
    model.set_params(**options).fit(x, y)
    head = model.head_
    assert head.feature_clip == 1
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)  # all are longer than 1
    scores = head.scores(x)
    assert_allclose(scores, rows @ head.weights + head.intercept, atol=1e-4)
    assert_allclose(head.scores(1000 * x), scores, atol=1e-4)
    short = rows / 2
    wanted = short @ head.weights + head.intercept
    assert_allclose(head.scores(short), wanted, atol=1e-4)


def test_a_head_of_rows_that_no_clip_shortens_has_none():
    x, y = load_digits(return_X_y=True)
    for method, options in (
        (dphead.DPLeastSquaresClassifier, {"intercept": 1.0}),  # unit rows, clip 1
        (dphead.DPLeastSquaresClassifier, {"unit_norm": False}),  # no constant
        (dphead.DPNewtonClassifier, {}),
        (dphead.DPAutoClassifier, {}),  # gradients are clipped, not rows
    ):
        model = method(epsilon=8.0, classes=range(10)).set_params(**options).fit(x, y)
        assert model.head_.feature_clip is None
    bare = dphead.DPNewtonClassifier(epsilon=np.inf, unit_norm=False).fit(x, y)
    assert bare.head_.feature_clip is None  # nothing is clipped without noise
