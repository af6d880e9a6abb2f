"""Components and regressions: near those of the rows, with nothing charged for what
cannot be used.
"""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dphead import DPPCA, DPRegressor, PrivacyWarning
from dphead.estimators.regression import clipped_target
from dphead.privacy.ledger import Ledger

N = 2000
# check: why a private fit can fail it
EXCUSED = {"check_dtype_object": "an object's own code would run, and could stop it"}
EXCUSED_TARGETS = EXCUSED | {
    "check_supervised_y_no_nan": "targets would be refused by their values"
}
BOUNDS = (-10.0, 10.0)


@parametrize_with_checks(
    [
        DPPCA(n_components=1, epsilon=200.0, row_norm=100.0, random_state=0),
        DPRegressor(epsilon=1e3, bounds=BOUNDS, row_norm=6.0, random_state=0),
    ],
    expected_failed_checks=lambda model: (
        EXCUSED_TARGETS if isinstance(model, DPRegressor) else EXCUSED
    ),
    xfail_strict=True,
)
def test_scikit_learn_checks_of_a_private_fit(estimator, check):
    check(estimator)


@pytest.fixture
def rows():
    """(n, 5) rows shorter than 1 mostly, and a target in [5, 15]."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(N, 5)) * [0.5, 0.3, 0.1, 0.1, 0.1] + 0.2
    return x, 10 + x @ [4.0, -2.0, 0.0, 1.0, 0.0] + 0.1 * draw.normal(size=N)


def regressor(**changes):
    return DPRegressor(**({"epsilon": 4.0, "bounds": (5.0, 15.0)} | changes))


def test_components_of_a_private_fit_are_near_those_of_the_rows(rows):
    x, _ = rows
    pca = DPPCA(n_components=2, epsilon=8.0, row_norm=1.5).fit(x)
    plain = PCA(2).fit(x)
    likeness = np.abs(plain.components_ @ pca.components_.T)
    assert np.diag(likeness).min() > 0.97
    z = pca.transform(x)
    assert z.shape == (N, 2)
    assert_allclose(z, (x - pca.mean_) @ pca.components_.T, atol=1e-5)
    whole = DPPCA(n_components=5, epsilon=8.0).fit(x)
    assert_allclose(whole.inverse_transform(whole.transform(x)), x, atol=1e-5)
    assert list(pca.get_feature_names_out()) == ["dppca0", "dppca1"]
    assert pca.privacy_.epsilon == pytest.approx(8.0)
    labels = [release["label"] for release in pca.privacy_.releases]
    assert labels == ["row count", "mean", "gram"]


def test_the_regression_of_a_private_fit_is_near_that_of_the_rows(rows):
    x, y = rows
    ours = regressor(row_norm=1.5).fit(x, y)
    theirs = LinearRegression().fit(x, y)
    assert ours.score(x, y) > theirs.score(x, y) - 0.05
    assert ours.predict(x).shape == (N,)
    x[3] = np.nan
    x[4, 0] = 1e300  # no float32
    assert np.flatnonzero(np.isnan(ours.predict(x))).tolist() == [3, 4]
    coordinates = DPPCA(epsilon=8.0).fit(x).transform(x)
    none = np.isnan(coordinates).all(axis=1)
    assert np.flatnonzero(none).tolist() == [3, 4]
    assert np.isfinite(coordinates[~none]).all()


def test_the_regression_of_wide_rows_is_better_than_one_gram_matrix():
    """Of scikit-learn's digits, with one draw: 0.50, and 0.40 by one Gram matrix."""
    x, y = load_digits(return_X_y=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = DPRegressor(epsilon=0.5, bounds=(0, 9), random_state=0).fit(x, y)
    assert found.score(x, y) > 0.45


@pytest.mark.parametrize("epsilon", [0.5, 100.0])  # sums of residuals, and one Gram
def test_rows_longer_than_1_are_scaled_to_norm_1_in_fits_and_predictions(epsilon):
    """Within the rounding of float32: with longer rows, the steps would diverge."""
    x, y = load_digits(return_X_y=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    longer = x * np.random.default_rng(0).uniform(2, 1000, (len(x), 1))
    model = DPRegressor(epsilon=epsilon, bounds=(0, 9), random_state=0)
    ours, theirs = clone(model).fit(longer, y), clone(model).fit(x, y)
    assert_allclose(ours.predict(longer), theirs.predict(x), atol=1e-3)
    assert_allclose(ours.predict(x), theirs.predict(x), atol=1e-3)
    assert ours.score(longer, y) > 0.45
    # without noise, and with a norm of one's own, rows keep their norms
    for change in ({"epsilon": np.inf}, {"row_norm": 2.0}):
        assert clone(model).set_params(**change).fit(x, y).head_.feature_clip is None


def test_targets_beyond_the_range_count_as_its_ends(rows):
    x, y = rows
    far = np.where(y > 12, 1e30, np.where(y < 8, -1e30, y))
    ours = regressor(random_state=0, bounds=(8.0, 12.0)).fit(x, far)
    theirs = regressor(random_state=0, bounds=(8.0, 12.0)).fit(x, np.clip(y, 8, 12))
    assert_array_equal(ours.coef_, theirs.coef_)
    part = clipped_target(np.array([5.0, 10.0, 20.0, np.nan, np.inf]), 10.0, 5.0)
    assert_array_equal(part, [-1.0, 0.0, 1.0, np.nan, np.nan])


@pytest.mark.parametrize("model", [DPPCA(epsilon=1.0), regressor()])
def test_a_row_that_is_not_finite_counts_as_one_that_is_not_there(rows, model):
    """In silence: whether there is one must not be seen."""
    x, y = rows
    model = clone(model).set_params(random_state=0)
    bad = x.copy()
    bad[7, 2] = np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyWarning)  # of the seed
        ours = clone(model).fit(bad, y).head_
    bad[7] = np.nan
    theirs = clone(model).fit(bad, y).head_
    assert_array_equal(ours.weights, theirs.weights)
    listed = y.tolist()
    listed[9] = "no number"
    clone(model).fit(x, listed)


def test_what_cannot_be_used_is_refused_with_nothing_charged(rows):
    x, y = rows
    ledger = Ledger()
    for change, said in (
        ({"bounds": None}, "`bounds` must be two finite"),
        ({"bounds": (3.0, 3.0)}, "`bounds` must be two finite"),
        ({"bounds": (0.0, np.inf)}, "`bounds` must be two finite"),
        ({"bounds": ("0", "1")}, "`bounds` must be two finite"),
        ({"bounds": (0, 10**400)}, "`bounds` must be two finite"),
        ({"bounds": (1e308, 1.7e308)}, "`bounds` must be two finite"),
        ({"row_norm": -1.0}, "row_norm must be"),
        ({"delta": 0.1}, "delta must be below 1/n"),
        ({"group_cap": 2}, "need each other"),
        ({"relation": "add_remove"}, "needs `--nominal-n`"),
    ):
        with pytest.raises(ValueError, match=said):
            regressor(ledger=ledger, **change).fit(x, y)
    with pytest.raises(ValueError, match="`y` must have real numbers"):
        regressor(ledger=ledger).fit(x, y.astype(str))
    with pytest.raises(ValueError, match="`n_components` must be"):
        DPPCA(n_components=9, ledger=ledger).fit(x)
    assert ledger.fits() == []


def test_at_most_so_many_rows_of_a_group_count():
    """400 rows of one person along the first axis, and 200 people along the second.
    Noise is far below both, so that a cap of 1 decides the component and the fit.
    """
    x = np.zeros((600, 3))
    x[:400, 0] = x[400:, 1] = 0.9
    groups = np.maximum(np.arange(600), 399)
    budget = {"epsilon": 1e5, "group_cap": 1, "mean_share": 0.0}
    model = DPPCA(n_components=1, **budget).fit(x, groups=groups)
    assert abs(model.components_[0, 1]) > 0.99
    # one row says 1 and 200 say 0
    same = np.where(np.arange(600)[:, None] < 400, [[0.5, 0.0]], [[0.5, 0.0]])
    target = np.where(np.arange(600) < 400, 1.0, 0.0)
    fitted = DPRegressor(bounds=(0, 1), ridge=1e-3, **(budget | {"mean_share": 0.1}))
    fitted.fit(same, target, groups=groups)
    assert fitted.predict(same[:1])[0] < 0.1
    # the means of 400 equal rows are one row, as the first of them is
    for first, fit in ((model, (x,)), (fitted, (same, target))):
        mean = clone(first).set_params(group_mean=True, random_state=0)
        first = clone(first).set_params(random_state=0)
        heads = [one.fit(*fit, groups=groups).head_.weights for one in (first, mean)]
        assert_allclose(*heads, atol=1e-6)


def test_a_private_number_of_rows_is_published_nowhere(rows):
    """nominal_n stands in its place: in the guarantee, the ledger and all scales,
    where no noisy count is released (mean_share of 0).
    """
    x, y = rows
    ledger = Ledger()
    hidden = {"relation": "add_remove", "nominal_n": N, "ledger": ledger}
    deviations = set()
    for n in (N - 1, N - 700):
        model = regressor(**hidden).fit(x[:n], y[:n])
        pca = DPPCA(n_components=1, epsilon=2.0, mean_share=0.0, **hidden).fit(x[:n])
        deviations.add(pca.noise_sd_)
        for fitted in (model, pca):
            assert fitted.privacy_.n_rows == N
            rows_of = {row["n_rows"] for row in fitted.privacy_.releases}
            assert rows_of == {N}
    assert len(deviations) == 1
    digests = set()
    for fit in ledger.fits():
        digests.add(fit.pop("plan_hash"))
        fit.pop("fit_id")  # random hexadecimal digits
        assert f"{N - 1}" not in repr(fit) and f"{N - 700}" not in repr(fit)
    assert len(digests) == 2  # one for each estimator, whatever n is
