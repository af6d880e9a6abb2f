"""Compiled loops for a CPU: the clipped softmax gradient of full batches, class sums, and products of large sums.

A product of CHUNK rows is made in registers, a tile of the result at a time, and added to float64 sums from there: a
library's would be written, read and added, and a Gram matrix's is symmetric in steps of a tile.
`Gradient.factors` and `sums.outer_sum` say the same with whole arrays; tests hold the two equal.
"""

import platform
from collections.abc import Callable
from math import factorial, gcd
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils
from numba.extending import intrinsic

from dphead.privacy.sums import CHUNK, NOTHING, TINY

UNCOPIED = 1_000_000  # multiplications of a product for which OpenBLAS makes no copy of its operands
ROWS = tuple(CHUNK >> i for i in range(4))  # of a product with weights: the most without a copy, else two chunks
CACHED = 1 << 18  # entries of weights that stay in the cache; more are copied once for up to MANY rows
MANY = 4 * CHUNK  # rows whose panels stay in the cache
ZERO, HALF, ONE, LOWEST = np.float32(0), np.float32(0.5), np.float32(1), np.float32(-np.inf)
LOG2_E, LN2_HIGH, SMALLEST = np.float32(np.log2(np.e)), np.float32(355 / 512), np.float32(-87)  # e**-87 is not denormal
LN2_LOW = np.float32(np.log(2) - 355 / 512)  # a whole number up to 126 times 355/512 is exact
E3, E4, E5, E6, E7 = (np.float32(1 / factorial(k)) for k in range(3, 8))  # e**f to 2**-27 for |f| <= log(2) / 2
_HAS, _ARM = binding.get_host_cpu_features(), platform.machine().lower() in ("arm64", "aarch64")
LANES = 16 if _HAS.get("avx512f") else 8 if _HAS.get("avx2") else 4  # float32 numbers of a register
HEIGHT, WIDTH = {16: 8, 8: 4, 4: 6 if _ARM else 4}[LANES], 3 * LANES  # of a tile that fits in 32 registers, or in 16


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, kept on the disk for other processes where a folder for it can be written.

    Under a name of its own for each size of a tile: other processors may share the folder.
    """
    function.__qualname__ += f"_{LANES}_{HEIGHT}"
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's own folder
        return numba.njit(**options)(function)


def add_products(left: np.ndarray, right: np.ndarray | None, out: np.ndarray) -> None:
    """Add sum_i left_i right_iᵀ to out (p, q) float64, C order; if right is None, left_i left_iᵀ to its upper triangle.

    left (k, p), right (k, q) float32, CHUNK divides k.
    Rounding: float32 sums of CHUNK rows at their places, float64 across, as for `in_place` in `sums`.
    """
    upper = right is None
    left, right = (np.require(x, np.float32, "C") for x in (left, left if upper else right))
    shape = left.shape[1], right.shape[1]
    if len(left) % CHUNK or len(left) != len(right) or not _fits(out, shape):
        raise ValueError(
            f"a multiple of {CHUNK} rows must fit a float64 sum in C order, got {left.shape=}, {right.shape=}, "
            f"{out.shape=}, {out.strides=}, {out.dtype=}. This is a defect in a query."
        )
    _add_products(left, right, upper, CHUNK, MANY, out)


def _fits(out: np.ndarray, shape: tuple[int, ...]) -> bool:
    return out.shape == shape and out.dtype == np.float64 and out.flags.c_contiguous and out.flags.writeable


def row_scores(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """rows (k, p) @ weights (p, m) in float32.

    Guarantee: each score is one float32 sum over the features from the first to the last, made by the same instructions
    for every row and class: rows and classes are filled up with zeros to whole tiles, so none is at an edge.
    """
    if rows.ndim != 2 or weights.ndim != 2 or rows.shape[1] != len(weights) or not len(weights):
        raise ValueError(
            f"weights must have a row for each column of the rows, got {rows.shape=}, {weights.shape=}. "
            "This is a defect in the solver or the row source."
        )
    k, p = rows.shape
    m = weights.shape[1]
    rows = np.require(_filled_up(rows, 0, HEIGHT), np.float32, "C")
    weights = np.require(_filled_up(weights, 1, WIDTH), np.float32, "C")
    out = np.zeros((len(rows), weights.shape[1]))
    steps = WIDTH * p, p, 0, 1
    _add_tiles(rows.reshape(-1), steps, _panels(weights), p, False, *out.shape, out)
    return np.ascontiguousarray(out[:k, :m], np.float32)


def _filled_up(x: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """x with zeros behind it along an axis, up to a multiple; x itself if it is one."""
    rest = -x.shape[axis] % multiple
    if rest == 0:
        return x
    shape = list(x.shape)
    shape[axis] = rest
    return np.concatenate([x, np.zeros(shape, x.dtype)], axis)


@_compiled
def _add_products(left, right, upper, k, many, out):  # type: ignore[no-untyped-def]
    m, p = out.shape
    for start in range(0, len(left), many):
        rows = min(many, len(left) - start)
        b = _panels(right[start : start + rows])
        a = b if upper else _panels(left[start : start + rows])
        _add_tiles(a.reshape(-1), (rows * WIDTH, 1, k * WIDTH, WIDTH), b, k, upper, m, p, out)


@_compiled
def _panels(x):  # type: ignore[no-untyped-def]
    """Columns of x (k, p) in panels (⌈p / WIDTH⌉, k, WIDTH); what stands beside the last column is never used."""
    whole, rest = divmod(x.shape[1], WIDTH)
    panels = np.empty((whole + (rest > 0), len(x), WIDTH), np.float32)
    for i in range(len(x)):
        for j in range(whole):
            for l in range(WIDTH):
                panels[j, i, l] = x[i, j * WIDTH + l]
        for l in range(rest):
            panels[whole, i, l] = x[i, whole * WIDTH + l]
    return panels


@_compiled
def _add_tiles(a, steps, panels, k, upper, m, p, out):  # type: ignore[no-untyped-def]
    """Add sum_i a_i b_iᵀ to out[:m, :p], where b_i is row i of panels: in float32 for k rows, then in float64.

    Entry r of a_i, for r = WIDTH u + s and i = k c + l, is a[(u, s, c, l) · steps], padded to a multiple of HEIGHT, of
    which WIDTH is one. upper: only tiles from the diagonal on.
    """
    n, stride, edge = panels.shape[1], out.shape[1], np.empty(HEIGHT * WIDTH)
    flat, total = panels.reshape(-1), out.reshape(-1)
    for u in range((m + WIDTH - 1) // WIDTH):
        for j in range(u if upper else 0, len(panels)):
            for c in range(n // k):
                for s in range(0, min(WIDTH, m - u * WIDTH), HEIGHT):
                    start, b = u * steps[0] + s * steps[1] + c * steps[2], (j * n + c * k) * WIDTH
                    rows, columns = min(HEIGHT, m - u * WIDTH - s), min(WIDTH, p - j * WIDTH)
                    place = (u * WIDTH + s) * stride + j * WIDTH
                    if rows == HEIGHT and columns == WIDTH:
                        _add_tile(a, start, steps[3], steps[1], flat, b, k, total, place, stride)
                        continue
                    edge[:] = 0
                    _add_tile(a, start, steps[3], steps[1], flat, b, k, edge, 0, WIDTH)
                    for i in range(rows):
                        for l in range(columns):
                            total[place + i * stride + l] += edge[i * WIDTH + l]


def _tile(context, a, start, slot, row, b, other, k, out, place, stride):  # type: ignore[no-untyped-def]
    """out[place + r stride + j] += sum over l < k of a[start + l slot + r row] b[other + l WIDTH + j].

    r < HEIGHT, j < WIDTH. Arrays are flat. The sum is float32 and stays in registers, three of them for each r.
    """
    integer = numba.types.intp
    ints = integer, integer, integer
    signature = numba.types.void(a, *ints, b, integer, integer, out, integer, integer)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        number = ir.IntType(64)
        single, double = (ir.VectorType(kind, LANES) for kind in (ir.FloatType(), ir.DoubleType()))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
        a, b, out = (context.make_array(signature.args[i])(context, builder, value=given[i]).data for i in (0, 4, 7))
        start, slot, row, other, k, place, stride = (given[i] for i in (1, 2, 3, 5, 6, 8, 9))
        nothing = ir.Constant(single, None)
        sums = [[cgutils.alloca_once_value(builder, nothing) for _ in range(3)] for _ in range(HEIGHT)]

        def at(data: Any, *offsets: Any) -> Any:
            """The address of an entry whose offsets add up."""
            for offset in offsets:
                data = builder.gep(data, [offset])
            return data

        def vector(data: Any, kind: Any, v: int, *offsets: Any) -> Any:
            return builder.bitcast(at(data, *offsets, number(v * LANES)), kind.as_pointer())

        data, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [data, whole, whole, whole])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        for r in range(HEIGHT):  # out's place comes to the cache while the products are made; 8 entries a line of it
            for j in range(0, WIDTH, 8):
                address = at(out, place, builder.mul(stride, number(r)), number(j))
                builder.call(prefetch, [builder.bitcast(address, data), whole(1), whole(3), whole(1)])
        with cgutils.for_range(builder, k) as loop:
            from_a = at(a, start, builder.mul(loop.index, slot))
            from_b = at(b, other, builder.mul(loop.index, number(WIDTH)))
            columns = [builder.load(vector(from_b, single, v), align=4) for v in range(3)]
            for r in range(HEIGHT):
                one = builder.load(at(from_a, builder.mul(row, number(r))))
                all_lanes = builder.insert_element(ir.Constant(single, ir.Undefined), one, whole(0))
                all_lanes = builder.shuffle_vector(all_lanes, all_lanes, zeros)
                for v in range(3):
                    product = builder.fmul(all_lanes, columns[v], flags=("contract",))
                    builder.store(builder.fadd(builder.load(sums[r][v]), product, flags=("contract",)), sums[r][v])
        for r in range(HEIGHT):
            for v in range(3):
                address = vector(out, double, v, place, builder.mul(stride, number(r)))
                wide = builder.fpext(builder.load(sums[r][v]), double)
                builder.store(builder.fadd(builder.load(address, align=8), wide), address, align=8)
        return context.get_dummy_value()

    return signature, code


_add_tile: Any = intrinsic(_tile)


def add_softmax_gradient(
    x: np.ndarray,
    factor: np.ndarray | None,
    append: float,
    squared: np.ndarray,
    y: np.ndarray,
    keep: np.ndarray,
    weights: np.ndarray,
    clip_norm: float,
    out: np.ndarray,
) -> np.ndarray:
    """Add sum_i min(1, C / (||r_i|| ||x_i||)) x_i r_iᵀ, with r_i = softmax(x_i W) - e_{y_i}, to out (p, m) float64.

    x_i: row i of x (k, p) float32 times factor_i (None: 1), and the constant `append`, which out and the weights W have
    a row for if it is not 0; rows not in keep (k,) add nothing whatever they hold. squared (k,): squared norms of x_i;
    y (k,). CHUNK divides k.
    clip_norm C: infinite where features are clipped, which bounds r_i x_iᵀ already.
    Rounding: float32 sums of at most CHUNK rows at their places, float64 across, as for `in_place` in `sums`.
    """
    if weights.shape != out.shape or x.shape[1] + (append != 0) != len(out):  # compiled code would not notice
        raise ValueError(
            f"weights must be those of the gradient, got shapes {weights.shape}, {x.shape[1:]} for {out.shape}. "
            "This is a defect in the solver or the row source."
        )
    factor = np.ones(len(x), np.float32) if factor is None else factor
    if len(x) % CHUNK or any(v.shape != (len(x),) for v in (factor, squared, y, keep)):
        raise ValueError(
            f"each of a multiple of {CHUNK} rows must have a factor, a norm, a class and a mask, got {x.shape=}, "
            f"{factor.shape=}, {squared.shape=}, {y.shape=}, {keep.shape=}. This is a defect in the row source."
        )
    most = next((k for k in ROWS if k * weights.size <= UNCOPIED), 2 * CHUNK if weights.size <= CACHED else MANY)
    rows = gcd(len(x), most)
    constant = append * weights[x.shape[1] :].sum(axis=0)  # of a row's scores; nothing without the constant
    # arguments, since code that is kept on the disk does not notice that a constant of `sums` has changed
    numbers, k = [np.float32(v) for v in (append, clip_norm, NOTHING, TINY)], min(rows, CHUNK)
    x, factor, squared, w, b = (
        np.require(v, np.float32, "C") for v in (x, factor, squared, weights[: x.shape[1]], constant)
    )
    y, keep = np.require(y, np.int32, "C"), np.require(keep, bool, "C")
    direct = _fits(out.T, out.T.shape)
    total = out.T if direct else np.zeros(out.T.shape)
    _add(x, factor, squared, y, keep, w, b, *numbers, rows, k, total)
    if not direct:
        out += total.T
    return out


@_compiled
def _add(x, factor, squared, y, keep, weights, constant, append, clip_norm, nothing, tiny, rows, k, out):  # type: ignore[no-untyped-def]
    p, m = weights.shape
    z, changed, n = np.empty((m, rows), np.float32), np.empty_like(x[:rows]), rows // k
    most = (m + HEIGHT - 1) // HEIGHT * HEIGHT  # tiles read so many residuals
    r, product = np.zeros((n, most, k), np.float32), np.zeros((m, p if n == 1 else 0), np.float32)
    turned = np.ascontiguousarray(weights.T)
    for start in range(0, len(x), rows):
        part, as_it_is = x[start : start + rows], True
        for i in range(start, start + rows):
            as_it_is &= keep[i] and factor[i] == ONE
        if not as_it_is:
            for i in range(rows):
                for l in range(p):
                    changed[i, l] = part[i, l] * factor[start + i] if keep[start + i] else ZERO
            part = changed
        if n > 1:  # large weights
            np.dot(turned, part.T, z)
        else:
            np.dot(weights.T, part.T, z)
        for c in range(n):
            for j in range(m):
                own, scores = r[c, j], z[j, c * k : (c + 1) * k]
                for i in range(k):
                    own[i] = scores[i] + constant[j]
            at = slice(start + c * k, start + (c + 1) * k)
            _residuals(r[c, :m], squared[at], y[at], keep[at], clip_norm, nothing, tiny)
            if append != ZERO:
                for j in range(m):
                    out[j, p] += append * r[c, j].sum()
        if n > 1:
            _add_tiles(r.reshape(-1), (WIDTH * k, k, most * k, 1), _panels(part), k, False, m, p, out)
        else:
            np.dot(r[0, :m], part, product)
            for j in range(m):
                total, one = out[j], product[j]
                for l in range(p):
                    total[l] += one[l]


@_compiled
def _residuals(r, squared, y, keep, clip_norm, nothing, tiny):  # type: ignore[no-untyped-def]
    """Scores r (m, k) become softmax residuals, clipped, zero where not keep. A loop over rows is one of vectors."""
    m, k = r.shape
    top, total, factor = np.full(k, LOWEST), np.zeros(k, np.float32), np.empty(k, np.float32)
    exponent = np.empty(k, np.int32)
    power = exponent.view(np.float32)  # 2 to the exponent, whose bits are shifted to their place
    for j in range(m):
        own = r[j]
        for i in range(k):
            top[i] = max(top[i], own[i])
    for j in range(m):
        own = r[j]
        for i in range(k):
            d = own[i] - top[i]
            whole = np.floor((d if d > SMALLEST else SMALLEST) * LOG2_E + HALF)  # a number even if d is not
            exponent[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)
            f = ((SMALLEST if d < SMALLEST else d) - whole * LN2_HIGH) - whole * LN2_LOW
            own[i] = (((((E7 * f + E6) * f + E5) * f + E4) * f + E3) * f + HALF) * f * f + f + ONE
        for i in range(k):
            own[i] *= power[i]
            total[i] += own[i]
    for i in range(k):
        factor[i], total[i] = ONE / total[i], ZERO
    for j in range(m):
        own = r[j]
        for i in range(k):
            own[i] = own[i] * factor[i] - (ONE if j == y[i] else ZERO)
            total[i] += own[i] * own[i]
    for i in range(k):
        norm = np.sqrt(max(total[i], nothing)) * np.sqrt(max(squared[i], nothing))
        clip = min(ONE, clip_norm / norm)
        factor[i] = clip if keep[i] and np.isfinite(total[i]) and clip > tiny else ZERO
    for j in range(m):
        own = r[j]
        for i in range(k):
            own[i] = own[i] * factor[i] if factor[i] > ZERO else ZERO


@_compiled
def add_rows(rows, y, keep, out):  # type: ignore[no-untyped-def]
    """Add row i of rows (k, p) float32, where keep, to row y_i of out (m, p) float64, two of a class at a time."""
    used = np.flatnonzero(keep)
    used = used[np.argsort(y[used], kind="mergesort")]
    i = 0
    while i < len(used):
        total, one = out[y[used[i]]], rows[used[i]]
        if i + 1 < len(used) and y[used[i + 1]] == y[used[i]]:
            other = rows[used[i + 1]]
            for l in range(rows.shape[1]):
                total[l] += np.float64(one[l]) + np.float64(other[l])
            i += 2
        else:
            for l in range(rows.shape[1]):
                total[l] += one[l]
            i += 1
