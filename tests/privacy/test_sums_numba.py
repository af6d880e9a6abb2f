"""The compiled gradient is that of `queries`: bad rows, worst cases and definitions are tested there with both."""

import os
import subprocess
import sys

import numpy as np
import pytest
from core import CompiledGradient, clipped_sum, toy
from dphead.privacy.sums import CHUNK, class_sum, slack

from dphead.privacy.statistics import COMPILED, Gradient, Params
from dphead.privacy.transform import RowTransform


@pytest.mark.parametrize("append", [0.0, 0.5])
@pytest.mark.parametrize("clip", ["rows", "features"])
@pytest.mark.parametrize(
    "d, m", [(3, 2), (37, 3), (700, 10), (1280, 10), (2000, 10), (5000, 10), (768, 100), (1700, 160), (70, 1001)]
)
def test_the_compiled_sum_equals_numpys_whatever_the_rows_of_a_product(d, m, clip, append):
    """Products with the weights of 128, 64, 32, 16, 256 and 512 rows, of norms that differ by ten. A row differs by
    its own float32 rounding, at most the slack's row term of its statistic, and a chunk's sum by the slack's chunk
    term."""
    n = 16 * CHUNK - 5
    x, y = toy(n, d, m)
    x *= (np.random.default_rng(1).uniform(0.2, 2, n) / np.linalg.norm(x, axis=1))[:, None].astype(np.float32)
    x[3], x[4], y[5], y[6] = np.nan, np.inf, m, -1
    transform = RowTransform(append=append)
    weights = np.random.default_rng(0).standard_normal((transform.width(d), m)).astype(np.float32)
    params = Params(transform, weights)
    a = clipped_sum(CompiledGradient(m, "softmax", clip), params, x, y, 0.7, block_rows=n)
    b = clipped_sum(Gradient(m, "softmax", clip), params, x, y, 0.7, relation="add_remove")
    single = Gradient(m, "softmax", clip).sensitivity(0.7, "zero_out", append)
    assert np.linalg.norm(a - b) <= n * single * slack(0, d + m, 1, 0.0, True)
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


@pytest.mark.parametrize("d, m", [(3, 2), (1280, 10), (5000, 10), (768, 100), (1700, 160)])
@pytest.mark.parametrize("away", ["not kept", "scaled"])
@pytest.mark.parametrize("chunks", [9, 16])
def test_a_row_that_must_not_be_used_as_it_is_changes_no_bit_of_the_others(d, m, away, chunks):
    """Its neighbours are copied with it. A row of zeros adds nothing either way, so the sums are equal. Large weights
    take one chunk at a time of nine, and two or four of 16."""
    from dphead.privacy.sums_numba import add_softmax_gradient

    k, rng = chunks * CHUNK, np.random.default_rng(0)
    x, y = rng.standard_normal((k, d)).astype(np.float32), rng.integers(0, m, k)
    x[5] = 0
    squared, weights = (x * x).sum(axis=1), rng.standard_normal((d, m)).astype(np.float32)
    keep, factor = np.ones(k, bool), np.ones(k, np.float32)

    def total(factor):
        return add_softmax_gradient(x, factor, 0.0, squared, y, keep, weights, 0.7, np.zeros((m, d)).T)

    wanted = total(None)
    if away == "scaled":
        factor[5] = 0.5
    else:
        keep[5], x[5] = False, np.nan
    assert np.array_equal(total(factor), wanted) and np.abs(wanted).max() > 0


def whole_numbers(k, p):
    """Odd numbers whose sum is below 2**24 for CHUNK of them, and above it for twice as many: not all in float32."""
    return 2 * np.random.default_rng(p).integers(2**15, 2**16, (k, p)).astype(np.float32) - 1


@pytest.mark.parametrize("k", [0, CHUNK, 5 * CHUNK, 16 * CHUNK])
@pytest.mark.parametrize("p, q", [(1, 1), (8, 48), (5, 100), (391, 7), (145, 300)])
def test_products_are_summed_exactly_where_float32_holds_a_chunks_sum(k, p, q):
    """So no more than a chunk's is summed in float32. The sum is as wide as tiles, narrower, or ends within one."""
    from dphead.privacy.sums_numba import add_products

    left, right = np.ones((k, p), np.float32), whole_numbers(k, q)
    left[:, ::2] = -1
    out = np.ones((p, q))
    add_products(left, right, out)
    assert np.array_equal(out, 1 + left.astype(float).T @ right.astype(float))


@pytest.mark.parametrize("d", [1, 8, 48, 100, 391])
def test_a_square_is_summed_from_its_diagonal_on(d):
    """Numbers up to 128, whose products float32 sums exactly."""
    from dphead.privacy.sums_numba import add_products

    x = np.random.default_rng(0).integers(-128, 129, (7 * CHUNK, d)).astype(np.float32)
    out = np.ones((d, d))
    add_products(x, None, out)
    assert np.array_equal(np.triu(out), np.triu(1 + x.astype(float).T @ x.astype(float)))


@pytest.mark.parametrize(
    "left, right, out",
    [
        ((100, 3), (100, 4), np.zeros((3, 4))),
        ((128, 3), (256, 4), np.zeros((3, 4))),
        ((128, 3), (128, 4), np.zeros((4, 3))),
        ((128, 3), None, np.zeros((3, 4))),
        ((128, 3), (128, 4), np.zeros((4, 3)).T),
        ((128, 3), (128, 4), np.zeros((3, 4), np.float32)),
    ],
)
def test_rows_that_do_not_fit_their_sum_are_refused(left, right, out):
    """Compiled loops check no bounds."""
    from dphead.privacy.sums_numba import add_products

    with pytest.raises(ValueError, match="a multiple of 128 rows must fit a float64 sum in C order"):
        add_products(np.ones(left, np.float32), None if right is None else np.ones(right, np.float32), out)


@pytest.mark.parametrize("p", [37, 1000, 5000])
def test_no_more_than_a_chunk_of_a_gradient_is_summed_in_float32(p):
    """Weights of zero and 64 classes: residuals are multiples of 1/64, exactly. No row is of class 0."""
    from dphead.privacy.sums_numba import add_softmax_gradient

    k, m = 16 * CHUNK, 64
    x, ones = whole_numbers(k, p), np.ones(k, np.float32)
    rest = ones, 1 + np.arange(k) % 63, np.ones(k, bool), np.zeros((p, m), np.float32), np.inf
    out = add_softmax_gradient(x, None, 0.0, *rest, np.zeros((m, p)).T)
    assert np.array_equal(out[:, 0], x.astype(float).sum(axis=0) / m)


@pytest.mark.parametrize(
    "features, machine, tile",
    [(None, None, None), ({"avx2": True}, "x86_64", (4, 24)), ({}, "arm64", (6, 12))],
)
def test_other_processors_make_the_same_sums(features, machine, tile, tmp_path):
    """Tiles of registers of 8 and of 4 numbers, compiled for this processor in a process of its own, where numba fills
    new arrays with -2.7e7: what stands beside the last column and the last class adds nothing."""
    code = f"""
import platform
import numba, numba.extending
from llvmlite import binding
import numpy as np
if {machine!r}:
    binding.get_host_cpu_features = lambda: binding.FeatureMap({features})
    platform.machine = lambda: {machine!r}
from dphead.privacy import sums_numba as compiled
x = np.random.default_rng(0).integers(-128, 129, (640, 100)).astype(np.float32)
out = np.zeros((100, 100))
compiled.add_products(x, None, out)
assert np.array_equal(np.triu(out), np.triu(x.astype(float).T @ x.astype(float)))
rest = np.ones(640, np.float32), np.arange(640) % 21, np.ones(640, bool), np.zeros((3001, 21), np.float32), np.inf
x = np.random.default_rng(0).integers(-128, 129, (640, 3001)).astype(np.float32) * 21
gradient = compiled.add_softmax_gradient(x, None, 0.0, *rest, np.zeros((21, 3001)).T)
wanted = x.astype(float).T @ (1 / 21 - np.eye(21)[rest[1]])
assert np.abs(gradient - wanted).max() < 0.01, np.abs(gradient - wanted).max()
x, weights = x[:, :50], np.arange(350, dtype=np.float32).reshape(50, 7)
assert np.array_equal(compiled.row_scores(x, weights), x @ weights)  # whole numbers below 2**24
print(compiled.HEIGHT, compiled.WIDTH)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_NRT": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    height, width = map(int, done.stdout.splitlines()[-1].split())
    assert width % height == 0 and tile in (None, (height, width))


@pytest.mark.parametrize("rows, y, keep", [((128, 5), 128, 128), ((128, 4), 127, 128), ((128, 4), 128, 127)])
def test_rows_wider_than_their_class_sums_are_refused(rows, y, keep):
    """They would be added beside the sum."""
    with pytest.raises(ValueError, match="each row must have a class, a mask and the sum's width"):
        class_sum(np.ones(rows, np.float32), np.zeros(y, np.int32), np.ones(keep, bool), np.zeros((4, 20)))


@pytest.mark.parametrize("kept", [0, 1, 2, 300])
def test_rows_are_added_to_their_classes_whatever_their_number(kept):
    """Whole numbers, which float64 adds exactly in any order; rows that are not kept hold what must not be added."""
    from dphead.privacy.sums_numba import add_rows

    rng = np.random.default_rng(kept)
    rows, y, keep = rng.integers(-999, 999, (300, 37)).astype(np.float32), rng.integers(0, 40, 300), np.zeros(300, bool)
    keep[rng.permutation(300)[:kept]] = True
    rows[~keep], y[~keep] = np.nan, 10**6
    out = np.ones((40, 37))
    add_rows(rows, y.astype(np.int32), keep, out)
    assert np.array_equal(out, 1 + (np.arange(40)[:, None] == y[keep]) @ rows[keep].astype(float))


def test_rows_are_multiplied_by_their_factor():
    """Halves are exact. All rows of a chunk are kept, so that nothing else asks for a copy."""
    from dphead.privacy.sums_numba import add_softmax_gradient

    x, y = toy(CHUNK, 37, 3)
    factor, weights = np.where(np.arange(CHUNK) == 9, 0.5, 1).astype(np.float32), np.ones((37, 3), np.float32)
    rest = np.ones(CHUNK, np.float32), y, np.ones(CHUNK, bool), weights, np.inf
    given = [(x, factor), (x * factor[:, None], None), (x, None)]
    scaled, wanted, other = (add_softmax_gradient(*rows, 0.0, *rest, np.zeros((3, 37)).T) for rows in given)
    assert np.array_equal(scaled, wanted) and not np.array_equal(scaled, other)


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


@pytest.mark.parametrize("k, short", [(200, None), (256, 0), (256, 1), (256, 2), (256, 3)])
def test_rows_without_a_factor_a_norm_a_class_or_a_mask_are_refused(k, short):
    """They would be read beside the arrays. 128 divides the rows of a block."""
    from dphead.privacy.sums_numba import add_softmax_gradient

    columns = [np.ones(k, np.float32), np.ones(k, np.float32), np.zeros(k, int), np.ones(k, bool)]
    if short is not None:
        columns[short] = columns[short][:-1]
    factor, *rest = columns
    with pytest.raises(ValueError, match="each of a multiple of 128 rows must have a factor"):
        add_softmax_gradient(np.ones((k, 4), np.float32), factor, 0.0, *rest, np.zeros((4, 3)), 1.0, np.zeros((4, 3)))


def test_code_is_compiled_without_a_folder_to_keep_it_in(monkeypatch):
    """numba refuses to cache where neither the package's folder nor the user's can be written."""
    import dphead.privacy.sums_numba as compiled
    import numba

    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function, options)

    monkeypatch.setattr(numba, "njit", njit)

    def loop():
        pass

    assert compiled._compiled(loop) == (loop, {"nogil": True, "error_model": "numpy"})


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
