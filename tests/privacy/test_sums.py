"""Rounding is part of the sensitivity: each term of `slack`, checked by brute force (ALGORITHMS.md §5)."""

import math
from dataclasses import replace

import numpy as np
import pytest
from core import NAMES, QUERIES, CompiledGradient, D, M, clipped_sum, one_block, release_one, reserve, spec_of, toy
from dphead.privacy.mechanism import _clipped_sum, numpy_block_sum
from dphead.privacy.sums import (
    CHUNK,
    FEW_CLASSES,
    GRID,
    STRIP,
    gram_sum,
    grid_step,
    matmul,
    mirrored,
    outer_sum,
    scores,
    slack,
    squares,
)

from dphead.data import ArrayRows
from dphead.privacy.noise import NoiseSource
from dphead.privacy.release import noise_scale, release
from dphead.privacy.statistics import ChannelMoment, ClassGrams, ClassSums, Gradient, Gram, Params
from dphead.privacy.transform import RowTransform
from dphead.sums.jax import jax_block_sum

U32 = 2.0**-24


def terms(n, width, size, grid):
    """(row, across, grid): the slack's parts, each by switching the others off."""
    across = slack(n, 0, 1, 0.0) - slack(0, 0, 1, 0.0)
    return slack(0, width, 1, 0.0), across, slack(0, 0, size, grid) - slack(0, 0, size, 0.0)


def in_chunks(x, k, dtype):
    """Float32 sums of k rows, one row after the other, added up in `dtype`: how a BLAS adds along the long side."""
    x = np.concatenate([x, np.zeros((-len(x) % k, x.shape[1]), np.float32)]).reshape(-1, k, x.shape[1])
    parts = np.add.accumulate(x, axis=1, dtype=np.float32)[:, -1]
    return np.add.accumulate(parts, axis=0, dtype=dtype)[-1].astype(np.float64)


def hostile(n, seed):
    """Rows of one feature, at most 1, whose float32 sums are inexact at every step."""
    rng = np.random.default_rng(seed)
    x = np.abs(rng.standard_normal((n, 1))) ** 0.1
    return (x / x.max()).astype(np.float32)


def our_distance(x, y, x2, y2, relation="add_remove"):
    sums = [clipped_sum(ClassSums(1), Params(), a, b, relation=relation) for a, b in ((x, y), (x2, y2))]
    return float(np.linalg.norm(sums[0] - sums[1]))


def test_a_plain_float32_sum_would_break_the_sensitivity_and_ours_does_not():
    """125,000 rows of norm 1, the first removed, so that the others move up: sums of 256 rows, added in float32 as a
    matrix product does, move by far more than the sensitivity and any slack."""
    n, plain, ours = 125_000, 0.0, 0.0
    for seed in range(4):
        x, y = hostile(n, seed), np.zeros(n, int)
        x[0] = 1.0
        plain = max(plain, float(np.linalg.norm(in_chunks(x, 256, np.float32) - in_chunks(x[1:], 256, np.float32))))
        ours = max(ours, our_distance(x, y, x[1:], y[1:]))
    assert plain > 1.05
    assert ours <= 1 + slack(n, 2, 1, 0.0)


def test_an_empty_slot_that_is_not_there_at_all_moves_nothing_but_float64_rounding():
    """A Poisson batch without row i, and a removed row under add_remove, move all later rows up. Float32 sums of 128
    rows are then all rounded anew: they move by more than a slack for one chunk, so `sums` does not use them."""
    n, chunks, ours = CHUNK * 1000, 0.0, 0.0
    for seed in range(4):
        half = hostile(CHUNK // 2, seed)
        x, y = np.tile(np.concatenate([half, -half]), (n // CHUNK, 1)), np.zeros(n, int)  # every chunk errs alike
        x2, y2 = np.concatenate([np.zeros((1, 1), np.float32), x]), np.concatenate([[-1], y])
        chunks = max(chunks, float(np.linalg.norm(in_chunks(x, CHUNK, np.float64) - in_chunks(x2, CHUNK, np.float64))))
        ours = max(ours, our_distance(x, y, x2, y2))
    assert chunks > 2 * CHUNK * CHUNK * U32  # the slack of one chunk
    assert ours <= terms(n + 1, 1, 1, 0.0)[1]


@pytest.mark.parametrize(
    "query",
    [Gradient(M), CompiledGradient(M), Gradient(M, "sigmoid"), ClassSums(M), ChannelMoment(M)],
    ids=lambda q: q.name,
)
def test_a_row_counts_the_same_at_every_place(query):
    """What `slack` assumes of the platform: a product gives a row the same result wherever it stands in a block."""
    d = 37
    weights = np.random.default_rng(1).standard_normal((d, M)).astype(np.float32)
    x, y = toy(512, d)
    params = Params(RowTransform(True, np.full(d, 0.1, np.float32)), weights)
    rng = np.random.default_rng(2)
    for _ in range(3):
        order = rng.permutation(512)
        alone = []
        for place in (0, 1, 127, 300, 511):
            keep = np.zeros(512, bool)
            keep[np.flatnonzero(order == 7)[0] if place == 0 else place] = True
            block, _ = one_block(x[order], y[order])
            if place != 0:
                block.x[place], block.y[place] = x[7], y[7]
            alone.append(query.clipped_sum(params, block.x, block.y, keep, 0.5, np.zeros(query.shape(d))))
        assert all(np.array_equal(alone[0], a) for a in alone)


@pytest.mark.parametrize("block_sum", [numpy_block_sum, jax_block_sum], ids=["numpy", "jax"])
def test_a_sampled_row_counts_the_same_whatever_the_size_of_the_sample(block_sum):
    """Products of 128 and of 256 rows differ in the last bit here, and so would every row of samples of 128 and 129."""
    d, n = 769, 3000
    x, y = toy(n, d)
    y[1:] = -1  # only the first row counts
    params = Params(RowTransform(True), np.random.default_rng(1).standard_normal((d, M)).astype(np.float32))
    spec = spec_of(Gradient(M), n, clip_norm=0.5)
    for rows in (ArrayRows(x, y), ArrayRows(x[:300], y[:300])):
        sums = [
            _clipped_sum(Gradient(M), params, rows, spec, np.arange(size), block_sum)
            for size in (1, 127, 128, 129, 256, 257, 300, 2048, 3000)
            if size <= rows.n_rows
        ]
        assert all(np.array_equal(sums[0], s) for s in sums)


@pytest.mark.parametrize("d, m", [(512, 10), (64, 100)])
@pytest.mark.parametrize("block_sum", [numpy_block_sum, jax_block_sum], ids=["numpy", "jax"])
def test_a_row_more_does_not_round_all_other_rows_anew_where_their_number_is_private(block_sum, d, m):
    """Equal rows whose scores are nothing but rounding error of large public weights: the float32 kernel decides their
    class. A row more, without a class, must not give the others to the kernel of another shape: here 128 rows moved the
    sum by 125 times the sensitivity. What is left, 1e-9, is the order of float64 additions."""
    rng = np.random.default_rng(1)
    weights = (1e6 * rng.standard_normal((d, m))).astype(np.float32)
    weights[d // 2 :] = -rng.permutation(weights[: d // 2])  # each column adds up to zero
    x = np.ones((2049, d), np.float32)
    for n in (127, 128, 256, 512, 640, 1024, 2048):
        y = np.where(np.arange(n + 1) < n, 0, -1)
        sums = [
            clipped_sum(Gradient(m), Params(weights=weights), x[:k], y[:k], 1.0, 2048, block_sum, relation="add_remove")
            for k in (n, n + 1)
        ]
        assert np.linalg.norm(sums[0] - sums[1]) <= 1e-9, n


@pytest.mark.parametrize("d", [1, 10, 784, 4096])
def test_the_row_term_covers_the_norm_of_one_clipped_row(d):
    """Norm, clip factor and product in float32: the norm of one row's statistic, exactly, against the clip norm."""
    rng = np.random.default_rng(d)
    worst = 0.0
    for scale in (1e-3, 1.0, 1e3):
        for base in (np.ones(d), rng.standard_normal(d), np.geomspace(1, 1e-6, d)):
            x = np.float32(scale) * base.astype(np.float32)[None]
            clip_norm = 0.1 * float(np.linalg.norm(x.astype(np.float64)))
            if not 1e-6 <= clip_norm <= 1e6:
                continue
            for query in (ClassSums(M), Gradient(M), ChannelMoment(M), *([Gram(M)] if d < 1000 else [])):
                weights = rng.standard_normal((d, M)).astype(np.float32)
                value = clipped_sum(query, Params(weights=weights), x, np.array([0]), clip_norm)
                bound = query.sensitivity(clip_norm, "zero_out")
                worst = max(worst, float(np.linalg.norm(value)) / bound - 1)
    row = terms(0, d + M, 1, 0.0)[0]
    assert worst <= row
    assert row <= 0.0011  # and it is not lavish: 4 (d + m) + 64 units


def test_the_across_term_covers_any_order_of_a_float64_sum():
    """Sums of n rows in any order, against the exact sum (math.fsum): the error in units of the sensitivity."""
    rng = np.random.default_rng(0)
    for n in (128, 5000):
        for x in (np.ones(n), rng.choice([-1.0, 1.0], n), rng.random(n), np.where(np.arange(n) % 2, 1.0, -0.999)):
            x = x.astype(np.float32)[:, None]
            exact = math.fsum(x[:, 0].astype(float))
            for order in (np.arange(n), np.argsort(x[:, 0]), rng.permutation(n)):
                y = np.zeros(n, int)
                got = float(clipped_sum(ClassSums(1), Params(), x[order], y, 1.0, relation="add_remove")[0, 0])
                assert 2 * abs(got - exact) <= terms(n, 1, 1, 0.0)[1]


def test_chunks_are_summed_in_float32_only_where_every_other_row_keeps_its_place():
    query = ClassSums(M)
    for relation in ("zero_out", "replace_one"):
        assert spec_of(query, 10, relation=relation).in_place
        assert not spec_of(query, 10, relation=relation, sampling_prob=0.5).in_place
        assert not spec_of(query, 10, relation=relation, group_cap=2).in_place
    assert not spec_of(query, 10, relation="add_remove").in_place


class Claiming(ArrayRows):
    """A row source that says of its blocks what only the plan may say."""

    def blocks(self, indices=None):
        return (replace(block, in_place=True) for block in super().blocks(indices))


def test_a_row_source_cannot_ask_for_float32_sums():
    seen = []

    def spy(query, params, block, keep, clip_norm, out):
        seen.append(block.in_place)
        return numpy_block_sum(query, params, block, keep, clip_norm, out)

    for source in (Claiming, ArrayRows):
        for relation in ("add_remove", "zero_out"):
            release_one(ClassSums(M), Params(), source(*toy(200)), block_sum=spy, relation=relation)
    assert seen == [False, True, False, True]


def chunk_term(width=1):
    return slack(0, width, 1, 0.0, True) - slack(0, width, 1, 0.0)


def test_the_chunk_term_covers_any_order_of_a_float32_sum():
    """Two chunks of 128 terms of norm 1, each off by its own rounding, in whatever order a product adds them."""
    rng = np.random.default_rng(0)
    assert chunk_term() < 0.0021
    for x in (np.ones(CHUNK), hostile(CHUNK, 1)[:, 0], rng.random(CHUNK), np.where(np.arange(CHUNK) % 2, 1.0, -0.999)):
        x = x.astype(np.float32)
        exact = math.fsum(x.astype(float))
        for order in (np.arange(CHUNK), np.argsort(x), rng.permutation(CHUNK)):
            worst = float(np.add.accumulate(x[order])[-1])  # one after the other
            ours = clipped_sum(ClassSums(1), Params(), x[order][:, None], np.zeros(CHUNK, int), 1.0)[0, 0]
            assert 2 * max(abs(worst - exact), abs(ours - exact)) <= chunk_term()


@pytest.mark.parametrize(
    "query", [ClassSums(M), Gradient(M), CompiledGradient(M), Gram(M), ClassGrams(M)], ids=lambda q: q.name
)
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_row_rounds_its_own_chunk_anew_and_no_other(query, relation):
    """1,024 rows of which one goes or is another: the sums differ exactly as the sums of its 128 rows differ."""
    x, y = toy(8 * CHUNK)
    x2, y2 = x.copy(), y.copy()
    x2[300], y2[300] = (x[0], 1) if relation == "replace_one" else (x[300], -1)
    params = Params(weights=np.random.default_rng(0).standard_normal((D, M)).astype(np.float32))
    chunk = slice(2 * CHUNK, 3 * CHUNK)
    both, size = ((x, y), (x2, y2)), 8 * CHUNK
    whole = [clipped_sum(query, params, a, b, block_rows=size, relation=relation) for a, b in both]
    alone = [clipped_sum(query, params, a[chunk], b[chunk], relation=relation) for a, b in both]
    moved, expected = whole[0] - whole[1], alone[0] - alone[1]
    np.testing.assert_allclose(moved, expected, atol=1e-11)  # float64 rounding; a float32 sum would be off by 1e-6
    assert np.linalg.norm(moved) <= query.sensitivity(1.0, relation) * (1 + slack(8 * CHUNK, D + M, 1, 0.0, True))


@pytest.mark.parametrize("in_place", [True, False])
def test_the_fast_sums_are_the_outer_products_of_the_rows(in_place):
    """Shapes wider than a strip of the Gram matrix, and both orders of narrow and wide; random signs, so an error of
    float32 sums is about 1e-6 of the terms."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((256, 2 * STRIP + 7)), rng.standard_normal((256, 5))
    left, right = left.astype(np.float32), right.astype(np.float32)
    for a, b in ((left, right), (right, left), (left, left)):
        exact = a.astype(float).T @ b.astype(float)
        got = outer_sum(np, a, b, np.zeros(exact.shape), in_place)
        assert np.abs(got - exact).max() < (1e-3 if in_place else 1e-11)
    gram = mirrored(gram_sum(np, left, None, np.zeros((left.shape[1],) * 2), [], in_place))
    assert np.abs(gram - left.astype(float).T @ left.astype(float)).max() < (1e-3 if in_place else 1e-11)
    weights = np.abs(right)
    same = [0, 1, 1, 3, 4]
    weights[:, 2] = weights[:, 1]
    grams = mirrored(gram_sum(np, left, weights, np.zeros((5,) + (left.shape[1],) * 2), same, in_place))
    exact = np.einsum("ij,ik,il->jkl", weights.astype(float), left.astype(float), left.astype(float))
    assert np.abs(grams - exact).max() < (1e-3 if in_place else 1e-11)


@pytest.mark.parametrize("m", [1, 3, 10, FEW_CLASSES, FEW_CLASSES + 1, 100])
def test_scores_are_products_and_do_not_follow_the_shape_of_a_block(m):
    """Float32 scores of 37 random terms err by less than 1e-4; a row has the same bits in any block, even alone."""
    rng = np.random.default_rng(0)
    rows, weights = rng.standard_normal((1024, 37)).astype(np.float32), rng.standard_normal((37, m)).astype(np.float32)
    got = scores(np, rows, weights)
    assert got.dtype == np.float32 and np.abs(got - rows.astype(float) @ weights.astype(float)).max() < 1e-4
    for size in (1, 3, 127, CHUNK):
        parts = [scores(np, rows[i : i + size], weights) for i in range(0, 1024, size)]
        assert np.array_equal(got, np.concatenate(parts))


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("p", [1, 2, 5, 17, 300])
def test_a_score_is_one_sum_from_the_first_feature_to_the_last(backend, p):
    """Terms of 2**24 and 1: each order of additions rounds its own way, so equal bits are the same order. Products
    are exact, so that it does not matter whether they are rounded before they are added."""
    xp = np if backend == "numpy" else __import__("jax.numpy").numpy
    rng = np.random.default_rng(p)
    rows = rng.choice([1.0, -1.0, 3.0, 2.0**24, -(2.0**24)], (130, p)).astype(np.float32)
    weights = rng.choice([1.0, -1.0, 0.5], (p, 5)).astype(np.float32)
    wanted = np.zeros((130, 5), np.float32)
    for j in range(p):
        wanted += rows[:, j : j + 1] * weights[j]
    assert np.array_equal(np.asarray(scores(xp, xp.asarray(rows), xp.asarray(weights))), wanted)


@pytest.mark.parametrize("weights", [(4, 3), (6, 3), (0, 3)])
def test_weights_that_do_not_fit_the_rows_are_refused(weights):
    """Compiled code would read beside them."""
    with pytest.raises(ValueError, match="weights must have a row for each column of the rows"):
        scores(np, np.ones((128, 5 if weights[0] else 0), np.float32), np.ones(weights, np.float32))


@pytest.mark.parametrize("d", [1, 3, 8, 17, 64, 65, 768, 8191, 8193, 15552])
def test_squared_norms_are_the_same_bits_at_every_place_and_alignment(d):
    """numpy's einsum goes on behind its buffer of 8,192 numbers, and meets rows that begin between registers."""
    row = np.random.default_rng(d).standard_normal(d).astype(np.float32)
    k, found = 1024 if d < 1000 else 256, set()
    memory = np.empty(k * d + 16, np.float32)
    for start in range(16 if d < 1000 else 3):
        x = memory[start : start + k * d].reshape(k, d)
        x[:] = row
        found |= set(squares(np, x).tolist()) | set(squares(np, x[:CHUNK]).tolist())
    assert len(found) == 1


def test_many_classes_are_summed_as_the_one_hot_product_sums_them():
    """40 classes, rows without a class, bad rows; float32 sums of 128 rows of norm 1 err by less than 1e-4."""
    m = FEW_CLASSES + 24
    x, y = toy(1000, 7, m)
    y[3], y[4], x[5] = -1, m, np.nan
    got = clipped_sum(ClassSums(m), Params(RowTransform(append=0.5)), x, y)
    few = [clipped_sum(ClassSums(1), Params(RowTransform(append=0.5)), x, np.where(y == j, 0, -1)) for j in range(m)]
    np.testing.assert_allclose(got, np.concatenate(few, axis=1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 12, 10_000])
def test_the_grid_term_covers_rounding_to_the_grid(size):
    """Two sums may each move by half a step an entry."""
    for sensitivity in (1e-6, 1.0, 0.3, 1e6):
        grid = grid_step(sensitivity, size)
        assert grid == 2.0 ** round(math.log2(grid))
        assert 0.5 * GRID <= grid * math.sqrt(size) / sensitivity <= GRID
        worst = 2 * (grid / 2) * math.sqrt(size)
        assert worst <= sensitivity * terms(0, 0, size, grid / sensitivity)[2] * (1 + 1e-9)


def test_the_noise_is_scaled_by_the_sensitivity_with_all_its_slack():
    for query in (Gram(M), ClassSums(M), Gradient(M)):
        spec = spec_of(query, 1000, clip_norm=0.7, sigma=1.3)
        sd, grid = noise_scale(query, spec, 0.0, D)
        base = query.sensitivity(0.7, "zero_out")
        assert sd == 1.3 * base * (1 + slack(1000, D + M, int(np.prod(query.shape(D))), grid / base, True))
        assert sd > 1.3 * base * (1 + grid * math.sqrt(np.prod(query.shape(D))) / base)


def test_a_slack_above_one_per_cent_is_refused_and_ordinary_sizes_are_far_below():
    assert slack(1_281_167, 4096 + 1000, 4096 * 1000, GRID / math.sqrt(4096 * 1000)) < 0.003
    assert slack(50_000, 1290, 12_800, GRID / math.sqrt(12_800)) < 0.001
    with pytest.raises(ValueError, match="n_rows=50000000"):
        slack(50_000_000, 10, 10, 0.0)
    with pytest.raises(ValueError, match="width=100000"):
        slack(10, 100_000, 10, 0.0)


def test_outer_sum_is_a_float64_sum_of_exact_products():
    rng = np.random.default_rng(0)
    for p, q in ((3, 7), (7, 3), (1, 1)):
        a, b = rng.standard_normal((384, p)).astype(np.float32), rng.standard_normal((384, q)).astype(np.float32)
        out = outer_sum(np, a, b, np.ones((p, q)))
        np.testing.assert_allclose(out, 1 + a.astype(float).T @ b.astype(float), rtol=0, atol=1e-12)


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@pytest.mark.parametrize(
    "transform", [RowTransform(), RowTransform(True, np.full(D, 0.3, np.float32), np.full(D, 2.0, np.float32), 0.5)]
)
def test_the_jax_sum_equals_numpys(query, transform):
    """Strict promotion (conftest). A row differs by the order of its float32 sums, at most the slack's row term of its
    own statistic; the sums over rows are float64 in both."""
    if isinstance(query, ChannelMoment) and query.n_channels and transform.append:
        pytest.skip("channels do not divide the width")
    x, y = toy(300)
    x[3], x[4], y[5] = np.nan, np.inf, M
    weights = np.random.default_rng(0).standard_normal((transform.width(D), M)).astype(np.float32)
    params = Params(transform, weights)
    a = clipped_sum(query, params, x, y, 0.7)
    b = clipped_sum(query, params, x, y, 0.7, block_sum=jax_block_sum)
    assert b.dtype == np.float64
    single = query.sensitivity(0.7, "zero_out", transform.append)
    assert np.linalg.norm(a - b) <= 300 * single * slack(0, D + M, 1, 0.0)
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a)


def test_jax_takes_a_large_block_in_pieces_of_one_shape(monkeypatch):
    """XLA holds the products of all of a piece's chunks at once, and compiles for each shape anew."""
    import dphead.privacy.sums_jax as sums_jax

    compiled, asked = sums_jax._compiled, []
    monkeypatch.setattr(sums_jax, "_compiled", lambda *a: lambda *b: asked.append(len(b[3])) or compiled(*a)(*b))
    x, y = toy(8192 + 700)
    a = clipped_sum(Gram(M), Params(), x, y, block_rows=8192, block_sum=jax_block_sum)
    assert asked == [2048] * 8
    assert np.allclose(a, clipped_sum(Gram(M), Params(), x, y), rtol=1e-6)  # float32 rows


def test_the_products_of_jax_ask_for_the_highest_precision():
    """On accelerators the default would be TF32 or bfloat16; norms are no matrix products at all."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((4, 4), jnp.float32)
    assert "HIGHEST" in str(jax.make_jaxpr(lambda a: matmul(jnp, a, a))(x))
    assert "dot_general" not in str(jax.make_jaxpr(lambda a: squares(jnp, a))(x))


@pytest.mark.parametrize("query", [Gram(M), ClassGrams(M)], ids=lambda q: q.name)
def test_a_symmetric_release_is_symmetric_to_the_last_bit(query):
    """Its noise is: an asymmetric rounding of the sum would be released without any noise. XLA's products are not."""
    d = 130
    x, y = toy(256, d)

    def skewed(query, params, block, keep, clip_norm, out):
        total = numpy_block_sum(query, params, block, keep, clip_norm, out)
        return total + 1e-3 * np.triu(np.ones((d, d)), 1)

    for block_sum in (numpy_block_sum, jax_block_sum, skewed):
        s = spec_of(query, 256)
        released = release(
            query, Params(), ArrayRows(x, y), s, ledger=reserve([s]), noise=NoiseSource(1), block_sum=block_sum
        )
        assert np.array_equal(released.value, np.swapaxes(released.value, -1, -2))
