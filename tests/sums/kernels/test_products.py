"""Compiled products of integers are those of plain int64, whatever the shapes."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphead.sums.kernels import gradient, loops, processor, rows
from dphead.sums.kernels import products as compiled

TOP = 4095  # the largest entry of a row or a residual
SHAPES = {
    "k": st.one_of(st.integers(0, 9), st.integers(120, 137), st.integers(500, 650)),
    "p": st.integers(1, 120),
    "q": st.one_of(st.integers(1, 70), st.integers(90, 200)),
    "seed": st.integers(0, 9),
}


def integers(seed, shape, top=TOP):
    """Entries up to the top of either sign."""
    return np.random.default_rng(seed).integers(-top, top + 1, shape).astype(np.int16)


def product(a, b):
    """aᵀ b in int64."""
    return a.T.astype(np.int64) @ b.astype(np.int64)


def add_products(left, right, out):
    """Add leftᵀ right as the gradient does: pairs of rows of residuals, class first."""
    k, m = left.shape
    residuals = np.zeros((-(-m // 24) * 24, k + k % 2), np.int16)
    residuals[:m, :k] = left.T
    pairs = residuals.view(np.int32)
    loops.add_pair_products(pairs, np.ascontiguousarray(right), 0, k, out)


def scores(rows, weights):
    out = np.empty((len(weights), len(rows)), np.int32)
    packed = loops.packed_weights(weights)
    loops.scores_into(np.ascontiguousarray(rows), 0, len(rows), packed, out)
    return out


def test_compiled_code_is_kept_under_the_text_of_all_that_it_is_made_of(tmp_path):
    """numba compiles anew when a function's own file changes, not those whose functions
    and constants it takes in.
    """
    made_of = processor.MADE_OF
    names = {file.name for file in made_of}
    assert names == {
        "__init__.py",
        "gradient.py",
        "llvm.py",
        "loops.py",
        "predictions.py",
        "processor.py",
        "products.py",
        "rows.py",
        "statistics.py",
        "transform.py",
        "tuning.py",
    }
    name = processor.sources(made_of)
    for module in (loops, gradient, rows):
        kept = [
            f.py_func.__qualname__
            for f in vars(module).values()
            if hasattr(f, "py_func")
        ]
        assert kept
        assert all(text.endswith(f"_{name}") for text in kept)
    for i, file in enumerate(made_of):
        changed = tmp_path / file.name
        changed.write_text(file.read_text() + "\n")
        others = [*made_of[:i], changed, *made_of[i + 1 :]]
        assert processor.sources(others) != name


@settings(max_examples=30, deadline=None)
@given(**SHAPES)
def test_products_of_any_shape_are_exact(k, p, q, seed):
    left = integers(seed, (k, p))
    right = integers(seed + 1, (k, q))
    out = np.ones((p, q), np.int64)
    add_products(left, right, out)
    assert np.array_equal(out, 1 + product(left, right))


@settings(max_examples=30, deadline=None)
@given(k=SHAPES["k"], q=SHAPES["q"], seed=SHAPES["seed"])
def test_a_square_of_any_shape_is_exact_from_its_diagonal_on(k, q, seed):
    x = integers(seed, (k, q))
    out = np.ones((q, q), np.int64)
    compiled.add_gram(x, out)
    assert np.array_equal(np.triu(out), np.triu(1 + product(x, x)))


@settings(max_examples=30, deadline=None)
@given(k=st.integers(0, 40), m=SHAPES["p"], d=SHAPES["q"], seed=SHAPES["seed"])
def test_scores_of_any_shape_are_exact(k, m, d, seed):
    """Norms of rows and weights multiply to less than 2**31."""
    rows = integers(seed, (k, d))
    weights = integers(seed + 1, (m, d), 2**31 // d // TOP)
    wanted = product(weights.T, rows.T)
    assert np.array_equal(scores(rows, weights), wanted)


@pytest.mark.parametrize("k, d, m", [(9, 1700, 400), (17, 15552, 2)])
def test_scores_are_exact_across_the_blocks_of_columns_and_weights(k, d, m):
    rows = integers(0, (k, d), 99)
    weights = integers(1, (m, d), 999)
    wanted = product(weights.T, rows.T)
    assert np.array_equal(scores(rows, weights), wanted)


@pytest.mark.parametrize("p", [1, 2, 10, 16, 17, 49])
@pytest.mark.parametrize("sign", [1, -1])
def test_nothing_overflows_where_every_row_has_its_norm_at_one_place(p, sign):
    """128 products of 4095 and 4095 are 2**31 less 2**20: one row more is too many."""
    left = np.zeros((1000, p), np.int16)
    right = np.zeros((1000, 70), np.int16)
    left[:, -1], right[:, -1] = sign * TOP, TOP
    out = np.zeros((p, 70), np.int64)
    add_products(left, right, out)
    assert np.array_equal(out, product(left, right))
    square = np.zeros((70, 70), np.int64)
    compiled.add_gram(right, square)
    assert np.array_equal(square, product(right, right))


@pytest.mark.parametrize("weight", [32767, -32768])
def test_scores_reach_the_ends_of_int32(weight):
    rows = np.zeros((3, 40), np.int16)
    weights = np.zeros((2, 40), np.int16)
    rows[:, 7:23], weights[:, 7:23] = TOP, weight  # 16 * 4095 * 2**15 < 2**31
    assert np.array_equal(scores(rows, weights), product(weights.T, rows.T))


@pytest.mark.parametrize("m", [1, 2, 13, 100])
@pytest.mark.parametrize("k", [1, 31, 128])
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_a_chunk_is_scored_and_multiplied_where_it_lies(m, k, kind):
    """As a fused loop does: scores (m, k), residuals as pairs of rows, their products;
    an int32 sum too, of no more than 128 rows."""
    rows = integers(0, (200, 75))
    weights = integers(1, (m, 75), 99)
    scores = np.full((m, 128), 7, np.int32)
    packed = loops.packed_weights(weights)
    loops.scores_into(rows, 50, 50 + k, packed, scores)
    assert np.array_equal(scores[:, :k], product(weights.T, rows[50 : 50 + k].T))
    assert (scores[:, k:] == 7).all()
    most = (m + 23) // 24 * 24
    residuals = np.full((most, 140), 999, np.int16)  # what stands after k is not read
    residuals[:, : k + k % 2] = 0
    residuals[:m, :k] = integers(2, (m, k))
    out = np.ones((m, 75), kind)
    loops.add_pair_products(residuals.view(np.int32), rows, 50, 50 + k, out)
    wanted = 1 + product(residuals[:m, :k].T, rows[50 : 50 + k])
    assert np.array_equal(out, wanted)


@pytest.mark.parametrize("kept", [0, 1, 5, 299])
def test_rows_are_added_to_their_classes_whatever_their_number(kept):
    rng = np.random.default_rng(kept)
    rows = integers(0, (299, 37))
    y = rng.integers(0, 9, 299)
    keep = np.zeros(299, bool)
    keep[rng.permutation(299)[:kept]] = True
    y[~keep] = 10**6
    out = np.ones((9, 37), np.int64)
    compiled.add_class_rows(rows, y, keep, out)
    wanted = 1 + product((y[:, None] == np.arange(9))[keep], rows[keep])
    assert np.array_equal(out, wanted)


def test_rows_of_any_memory_layout_are_exact():
    """Rows and weights that are parts of others, or turned."""
    left = integers(0, (7, 300)).T
    right = integers(1, (300, 90))[:, ::2]
    out = np.zeros((7, 45), np.int64)
    add_products(left, right, out)
    assert np.array_equal(out, product(left, right))
    assert np.array_equal(scores(right, right[:3]), product(right[:3].T, right.T))


@pytest.mark.parametrize(
    "rows, out, words",
    [
        ((9, 3), np.zeros((3, 4), int), "a sum must be int64"),
        ((9, 3), np.zeros((3, 6), int)[:, ::2], "in C order"),
        ((9, 3), np.zeros((3, 3)), "a sum must be int64"),
        ((9,), np.zeros((3, 3), int), "an int16 matrix"),
    ],
)
def test_rows_that_do_not_fit_their_sum_are_refused(rows, out, words):
    """Compiled loops check no bounds."""
    with pytest.raises(ValueError, match=words):
        compiled.add_gram(np.ones(rows, np.int16), out)


@pytest.mark.parametrize(
    "y, keep, width, words",
    [
        ([0, 1], [1, 1, 1], 4, "3 rows have"),
        ([0, 1, 2], [1, 1, 1], 4, "no class from 0 to 1"),
        ([0, 1, -1], [1, 1, 1], 4, "no class from 0 to 1"),
        ([0, 1, 1], [1, 1, 1], 5, "a sum must be int64"),
    ],
)
def test_class_rows_that_do_not_fit_are_refused(y, keep, width, words):
    out = np.zeros((2, width), np.int64)
    with pytest.raises(ValueError, match=words):
        compiled.add_class_rows(
            integers(0, (3, 4)), np.array(y), np.array(keep, bool), out
        )


@pytest.mark.parametrize(
    "features, machine, tile",
    [({"avx2": True}, "x86_64", (4, 24)), ({}, "arm64", (6, 12))],
)
def test_other_processors_make_the_same_sums(features, machine, tile, tmp_path):
    """Registers of 8 and 4 numbers, and products without an instruction of their own,
    compiled here in a process of its own, where numba fills new arrays."""
    code = f"""
import platform
import numba, numba.extending
from llvmlite import binding
import numpy as np
binding.get_host_cpu_features = lambda: binding.FeatureMap({features})
platform.machine = lambda: {machine!r}
from dphead.sums.kernels import loops, products as compiled
x = np.random.default_rng(0).integers(-4095, 4096, (301, 100)).astype(np.int16)
wide = x.astype(np.int64)
out = np.zeros((100, 100), np.int64)
compiled.add_gram(x, out)
assert np.array_equal(np.triu(out), np.triu(wide.T @ wide))
for m in (13, 21):
    out = np.zeros((m, 100), np.int64)
    left = np.zeros((24, 302), np.int16)
    left[:m, :301] = x[:, -m:].T
    loops.add_pair_products(left.view(np.int32), x, 0, 301, out)
    assert np.array_equal(out, wide[:, -m:].T @ wide)
out = np.empty((6, 301), np.int32)
loops.scores_into(x, 0, 301, loops.packed_weights(x[:6] // 9), out)
assert np.array_equal(out, (wide[:6] // 9) @ wide.T)
print(loops.TILE_HEIGHT, loops.TILE_WIDTH)
"""
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_DEBUG_NRT": "1",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    height, width = map(int, done.stdout.splitlines()[-1].split())
    assert (height, width) == tile
    assert width % height == 0


@pytest.mark.parametrize(
    "setting, value, compiles",
    [("NUMBA_CPU_NAME", "generic", True), ("NUMBA_ENABLE_AVX", "0", False)],
)
def test_no_instruction_is_used_that_numbas_settings_leave_out(
    setting, value, compiles, tmp_path
):
    """LLVM would end the process: a name means the processor that numba compiles for,
    whatever this machine has. The number of lanes decides all instructions, so one
    setting is compiled.
    """
    code = """
import sys
import numpy as np
from dphead.sums.kernels import processor, products
print(processor.LANES)
if sys.argv[1] == "False":
    sys.exit()
x = np.random.default_rng(0).integers(-4095, 4096, (31, 50)).astype(np.int16)
out = np.zeros((50, 50), np.int64)
products.add_gram(x, out)
wide = x.astype(np.int64)
assert np.array_equal(np.triu(out), np.triu(wide.T @ wide))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), setting: value}
    command = [sys.executable, "-c", code, str(compiles)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    assert int(done.stdout) == 4


def test_code_is_compiled_without_a_folder_to_keep_it_in(monkeypatch):
    """numba refuses to cache where no folder can be written."""
    import numba

    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function, options)

    monkeypatch.setattr(numba, "njit", njit)

    def loop():
        pass

    options = {"nogil": True, "error_model": "numpy"}
    assert processor.compiled(loop) == (loop, options)
