"""Numbers that make numpy warn, among the rows and labels of estimators."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone

from dphead import DPPCA, DPLeastSquaresClassifier, DPRegressor, PrivateNotice

N = 60
ESTIMATORS = (
    DPLeastSquaresClassifier(classes=range(3), random_state=1),
    DPRegressor(bounds=(0.0, 2.0), random_state=1),
    DPPCA(random_state=1),
)
# beyond float32, or beyond float64; and too small for them
NUMBERS = {
    "float32": ["1e38", "1e-45"],
    "float64": ["1e300", "1e-300"],
    "longdouble": ["1e4000", "1e-4000"],
}


def signaling(dtype):
    """A NaN that makes numpy warn of an invalid value when it is converted."""
    if dtype == "float32":
        return np.array([0x7F800001], np.uint32).view(np.float32)
    if dtype == "float64":
        return np.array([0x7FF0000000000001], np.uint64).view(np.float64)
    return np.array([np.nan], np.longdouble)  # their bits differ between processors


def placed(column, values):
    """Copies of whole elements: a conversion would make a signaling NaN quiet."""
    for i, value in enumerate(values):
        column[i : i + 1] = value


@pytest.mark.parametrize("dtype", NUMBERS)
def test_no_number_of_any_kind_warns_or_stops_a_fit(dtype):
    values = [np.array([text], np.dtype(dtype)) for text in NUMBERS[dtype]]
    values.append(signaling(dtype))
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(N, 4)).astype(dtype), draw.integers(0, 3, N).astype(dtype)
    placed(x[:, 1], values)
    placed(y[10:], values)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        # said of the estimators, whatever their rows
        warnings.filterwarnings("ignore", "Clones of this estimator|Not private")
        for model in ESTIMATORS:
            fitted = clone(model).fit(x, y)
            assert np.isfinite(fitted.head_.weights).all()
    # labels that are no class are said to the data holder, after the fit
    assert [str(one.message) for one in warned if one.category != PrivateNotice] == []
