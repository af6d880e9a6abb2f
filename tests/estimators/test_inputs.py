"""What estimators take for rows, labels and groups, and what they refuse."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import dphead
from dphead.estimators import inputs

LeastSquares = dphead.DPLeastSquaresClassifier


def make(**changes):
    settings = {"epsilon": 4.0, "delta": 1e-4, "classes": range(3), "random_state": 0}
    return LeastSquares(**(settings | changes))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_are_rows_like_arrays(blobs, dtype):
    torch = pytest.importorskip("torch")
    x, y = blobs
    tensor = torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True)
    array = tensor.detach().to(torch.float64).numpy()
    model = make(group_cap=2, error_bars=True)
    ours = clone(model).fit(tensor, torch.tensor(y), torch.arange(300) // 3)
    theirs = clone(model).fit(array, y, np.arange(300) // 3)
    assert_array_equal(ours.coef_, theirs.coef_)
    for name in ("predict", "decision_function", "predict_proba", "decision_std"):
        got = getattr(ours, name)(tensor)
        assert_array_equal(got, getattr(ours, name)(array))
    assert ours.score(tensor, torch.tensor(y)) == ours.score(array, y)


def test_weights_are_refused_before_anything_is_charged(blobs, tmp_path):
    x, y = blobs
    ledger = tmp_path / "ledger.sqlite"
    with pytest.raises(TypeError, match="sample_weight"):
        make(ledger=ledger).fit(x, y, sample_weight=np.ones(300))
    with pytest.raises(TypeError, match="sample_weight"):
        pipeline = make_pipeline(Normalizer(), make(ledger=ledger))
        pipeline.fit(x, y, dpleastsquaresclassifier__sample_weight=np.ones(300))
    assert not ledger.exists()


def test_what_is_no_tensor_stays_as_it_is():
    class Tensor:
        def detach(self):
            raise AssertionError("no code of ours may run")

    given = [[1, 2]], Tensor(), None, "path.h5"
    assert all(a is b for a, b in zip(inputs.as_arrays(*given), given, strict=True))
