"""What estimators take for rows, labels and groups, and what they refuse."""

from decimal import Decimal
from fractions import Fraction

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


@pytest.mark.parametrize(
    "epsilon", [np.float32(0.7), np.float16(8), Decimal("0.7"), Fraction(7, 10)]
)
def test_a_declared_epsilon_of_any_type_is_never_exceeded(blobs, epsilon):
    x, y = blobs
    model = make(epsilon=epsilon, delta=Decimal("1e-4"), random_state=None)
    assert clone(model).epsilon == model.epsilon <= epsilon
    assert model.fit(x, y).privacy_.epsilon <= Fraction(*epsilon.as_integer_ratio())


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_sparse_columns_of_pandas_are_rows_like_others(blobs, kind):
    pandas = pytest.importorskip("pandas")
    x, y = blobs
    frame = pandas.DataFrame(np.round(4 * x).astype(kind))
    frame.columns = [f"f{i}" for i in range(x.shape[1])]
    sparse = frame.astype(pandas.SparseDtype(kind, 0))
    one = frame.astype({"f0": sparse.dtypes["f0"]})
    wanted = make().fit(frame, y)
    for other in (sparse, one):
        found = make().fit(other, y)
        assert_array_equal(found.coef_, wanted.coef_)
        assert_array_equal(found.predict(other), wanted.predict(frame))
