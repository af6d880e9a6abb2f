"""The compiled gradient is that of `queries`: bad rows, worst cases and definitions are tested there with both."""

import numpy as np
import pytest
from core import CompiledGradient, clipped_sum, toy

from dphead.privacy.queries import COMPILED, Gradient, Params, RowTransform
from dphead.privacy.sums import CHUNK, slack


@pytest.mark.parametrize("append", [0.0, 0.5])
@pytest.mark.parametrize("clip", ["rows", "features"])
@pytest.mark.parametrize(
    "d, m", [(3, 2), (37, 3), (700, 10), (1280, 10), (2000, 10), (5000, 10), (768, 100), (1700, 160)]
)
def test_the_compiled_sum_equals_numpys_whatever_the_rows_of_a_product(d, m, clip, append):
    """Products with the weights of 128, 64, 32, 16 and all rows. A row differs by its own float32 rounding, at most the
    slack's row term of its statistic, and a chunk's sum by the slack's chunk term."""
    n = 3 * CHUNK + 5
    x, y = toy(n, d, m)
    x[3], x[4], y[5], y[6] = np.nan, np.inf, m, -1
    transform = RowTransform(True, append=append)
    weights = np.random.default_rng(0).standard_normal((transform.width(d), m)).astype(np.float32)
    params = Params(transform, weights)
    a = clipped_sum(CompiledGradient(m, "softmax", clip), params, x, y, 0.7)
    b = clipped_sum(Gradient(m, "softmax", clip), params, x, y, 0.7, relation="add_remove")
    single = Gradient(m, "softmax", clip).sensitivity(0.7, "zero_out", append)
    assert np.linalg.norm(a - b) <= n * single * slack(0, d + m, 1, 0.0, True)
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


@pytest.mark.parametrize("size", [30.0, 1e3, 1e37, 3e38])
def test_scores_far_apart_and_beyond_float32(size):
    """Exponentials below the smallest number count nothing; a row with an infinite or no highest score counts zero."""
    x, y = toy(3 * CHUNK, 37, 5)
    x = np.abs(x) / np.linalg.norm(x, axis=1, keepdims=True)
    x[:7] = 2 * np.eye(37, dtype=np.float32)[:7]
    weights = (size * np.random.default_rng(1).uniform(-1, 1, (37, 5))).astype(np.float32)
    weights[:4] = [-size] * 5, [size, -size, 0, 1, -size], [0] * 5, [0, -size, 0, 1, -size]
    with np.errstate(over="ignore"):
        highest = (x[:4] @ weights).max(axis=1)
    assert size < 3e38 or highest.tolist() == [-np.inf, np.inf, 0, 2]
    a = clipped_sum(CompiledGradient(5), Params(weights=weights), x, y, 0.7)
    b = clipped_sum(Gradient(5), Params(weights=weights), x, y, 0.7, relation="add_remove")
    assert np.linalg.norm(b) > 0 and np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


def test_exponentials_of_the_compiled_softmax():
    """Over all that float32 can hold below 1: to 2 units in the last place, and 2**-24 of the number times its size,
    since whole * log(2) is subtracted in two rounded parts."""
    from dphead.privacy.sums_numba import _residuals

    d = np.concatenate([-np.logspace(-6, np.log10(87), 1021), [0, -88, -np.inf]]).astype(np.float32)
    r = np.stack([np.zeros_like(d), d])
    numbers = [np.float32(v) for v in (np.inf, 1e-30, 1.2e-38)]
    _residuals(r, np.ones_like(d), np.zeros(len(d), int), np.ones(len(d), bool), *numbers)
    e = np.exp(d.astype(np.float64))
    wanted = e / (1 + e)
    assert np.all(np.abs(r[1] - wanted) <= 2.0**-21 * wanted + 2e-38)


@pytest.mark.parametrize("shape", [(37, 2), (37, 4), (36, 3)])  # unchecked, the second would crash
def test_weights_of_another_shape_are_refused(shape):
    """Compiled loops check no bounds: they would write beside the sum, where no noise is added."""
    x, y = toy(130, 37, 3)
    with pytest.raises(ValueError, match=r"weights must be those of the gradient, got shapes .* defect"):
        clipped_sum(CompiledGradient(3), Params(weights=np.zeros(shape, np.float32)), x, y)


@pytest.mark.parametrize("k, short", [(200, None), (256, 0), (256, 1), (256, 2)])
def test_rows_without_a_norm_a_class_or_a_mask_are_refused(k, short):
    """They would be read beside the arrays. 128 divides the rows of a block."""
    from dphead.privacy.sums_numba import add_softmax_gradient

    columns = [np.ones(k, np.float32), np.zeros(k, int), np.ones(k, bool)]
    if short is not None:
        columns[short] = columns[short][:-1]
    with pytest.raises(ValueError, match="each of a multiple of 128 rows must have a norm"):
        add_softmax_gradient(np.ones((k, 4), np.float32), 0.0, *columns, np.zeros((4, 3)), 1.0, np.zeros((4, 3)))


def test_code_is_compiled_without_a_folder_to_keep_it_in(monkeypatch):
    """numba refuses to cache where neither the package's folder nor the user's can be written."""
    import numba

    import dphead.privacy.sums_numba as compiled

    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function, options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled._compiled(len) == (len, {"nogil": True, "error_model": "numpy"})


def test_small_gradients_and_sums_that_move_are_not_compiled(monkeypatch):
    """The choice is made from public sizes and the plan alone."""
    import dphead.privacy.sums_numba as compiled

    used = []
    monkeypatch.setattr(compiled, "add_softmax_gradient", lambda *a: used.append(a[-1].shape) or a[-1])

    def ask(d, m, loss="softmax", relation="zero_out"):
        x, y = toy(130, d, m)
        clipped_sum(Gradient(m, loss), Params(weights=np.zeros((d, m), np.float32)), x, y, relation=relation)

    wide = COMPILED // 2
    ask(wide - 1, 2)
    ask(wide, 2, "sigmoid")
    ask(wide, 2, relation="add_remove")
    assert not used
    ask(wide, 2)
    assert set(used) == {(wide, 2)}
