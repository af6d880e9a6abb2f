"""The compiled gradient is that of `queries`: bad rows, worst cases and definitions are tested there with both."""

import numpy as np
import pytest
from core import CompiledGradient, clipped_sum, toy

from dphead.privacy.queries import COMPILED, Gradient, Params, RowTransform
from dphead.privacy.sums import CHUNK, slack


@pytest.mark.parametrize("append", [0.0, 0.5])
@pytest.mark.parametrize("clip", ["rows", "features"])
@pytest.mark.parametrize("d, m", [(3, 2), (37, 3), (700, 10), (1280, 10), (2000, 10), (5000, 10), (768, 100)])
def test_the_compiled_sum_equals_numpys_whatever_the_rows_of_a_product(d, m, clip, append):
    """Products of 128, 64, 32 and 16 rows. A row differs by its own float32 rounding, at most the slack's row term of
    its statistic, and a chunk's sum by the slack's chunk term."""
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


@pytest.mark.parametrize("shape", [(37, 4), (37, 2), (36, 3)])
def test_weights_of_another_shape_are_refused(shape):
    """Compiled loops check no bounds: they would write beside the sum, where no noise is added."""
    x, y = toy(130, 37, 3)
    with pytest.raises(ValueError, match=r"weights must be those of the gradient, got shapes .* defect"):
        clipped_sum(CompiledGradient(3), Params(weights=np.zeros(shape, np.float32)), x, y)


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


def test_small_and_very_large_gradients_and_sums_that_move_are_not_compiled(monkeypatch):
    """The choice is made from public sizes and the plan alone."""
    import dphead.privacy.sums_numba as compiled

    used = []
    monkeypatch.setattr(compiled, "add_softmax_gradient", lambda *a: used.append(a[-1].shape) or a[-1])

    def ask(d, m, loss="softmax", relation="zero_out"):
        x, y = toy(130, d, m)
        clipped_sum(Gradient(m, loss), Params(weights=np.zeros((d, m), np.float32)), x, y, relation=relation)

    wide = COMPILED[0] // 2
    ask(wide - 1, 2)
    ask(wide, 2, "sigmoid")
    ask(wide, 2, relation="add_remove")
    ask(COMPILED[1] // 2 + 1, 2)
    assert not used
    ask(wide, 2)
    assert set(used) == {(wide, 2)}
