"""Compiled products of 16-bit integers for a CPU, exact: scores, outer products, sums.

A row and a residual are int16 vectors of norm at most 4095. So a product of two
entries is below 2**24, the sum of CHUNK = 128 of them fits in int32, and int64 holds
all others. One instruction multiplies a register of pairs of int16 and adds the two
products of each pair, at twice the rate of float32. A pair is seen as one int32: two
columns of a row where scores are made, two rows of a column where products are.

Layouts, all C order: rows (k, d) int16, classes first elsewhere. Scores are (m, k)
int32, so that residuals are made for many rows at a time; residuals (m, k) int16 of an
even k are the pairs (m, k / 2) int32 that `_add_products` takes.
"""

import hashlib
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils
from numba.extending import intrinsic

CHUNK = 128  # rows whose products int32 can add: 128 * 4095**2 < 2**31
ROUND = 1.5 * 2.0**52  # added and taken away, it leaves the nearest whole number
MANY = 4 * CHUNK  # rows whose panels stay in the cache
THIN = 16  # classes or fewer: rows are multiplied where they lie
_HAS = binding.get_host_cpu_features()
_ARM = platform.machine().lower() in ("arm64", "aarch64")
LANES = 16 if _HAS.get("avx512bw") else 8 if _HAS.get("avx2") else 4  # int32 numbers
MULTIPLY_ADD = {
    16: "llvm.x86.avx512.pmaddw.d.512",
    8: "llvm.x86.avx2.pmadd.wd",
    4: "",  # any processor
}[LANES]
MANY_REGISTERS = LANES == 16 or _ARM  # 32, else 16
HEIGHT = {16: 8, 8: 4, 4: 6 if _ARM else 4}[LANES]  # of a tile that fits in them
WIDTH = 3 * LANES
STRIP = 12 if MANY_REGISTERS else 6  # the most classes of a strip
BESIDE = 8 if MANY_REGISTERS else 4  # rows whose scores are made at once
COLUMNS = 2 * LANES  # int16 numbers of a register
SCORED = 3  # the most classes whose scores are made at once
LINE = 32  # int16 numbers of a line of the cache
BLOCK = 16 * LINE  # columns of a chunk that come to the cache together
DEPTH = 1664  # columns of scores' operands that stay in the nearest cache
CACHED = 1 << 18  # entries of the weights that stay in the next


def sources(files: Iterable[Path]) -> str:
    """A name for the text of files, eight hexadecimal digits."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


# What compiled loops are made of. They take functions and constants of each other's
# files into their code, and numba itself compiles anew for the function's own alone.
_HERE = Path(__file__).parent
MADE_OF = [
    *sorted(_HERE.glob("*_numba.py")),
    _HERE.parent / "privacy" / "transform.py",
    _HERE.parent / "privacy" / "statistics.py",
]
_SOURCES = sources(MADE_OF)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, kept on the disk where a folder for it can be written.

    Under a name of its own for each size of a tile, as other processors may share it,
    and for each text of what it is made of.
    """
    function.__qualname__ += f"_{LANES}_{HEIGHT}_{_SOURCES}"
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's own folder
        return numba.njit(**options)(function)


def scores(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Products of all rows (k, d) and weights (m, d), int16: (m, k) int32.

    Exact where ||row|| ||weight|| < 2**31; parts of a sum may be added in any order.
    ValueError if shapes or types differ.
    """
    _check_integers(rows, weights)
    if rows.shape[1] != weights.shape[1]:
        raise ValueError(
            f"each weight must have a column of the rows, got {rows.shape=}, "
            f"{weights.shape=}. This is a defect in a query."
        )
    out = np.empty((len(weights), len(rows)), np.int32)
    _scores(np.ascontiguousarray(rows), 0, len(rows), _packed(weights), out)
    return out


def add_products(left: np.ndarray, right: np.ndarray | None, out: np.ndarray) -> None:
    """Add sum_i left_i right_iᵀ to out (p, q) int64, C order.

    left (k, p), right (k, q) int16, entries of at most 4095. right None: left_i left_iᵀ
    is added to the upper triangle of out, and what is below it is unspecified.
    ValueError if shapes or types do not fit.
    """
    upper = right is None
    right = left if right is None else right
    _check_integers(left, right)
    _check_sum(out, (left.shape[1], right.shape[1]))
    if len(left) != len(right):
        raise ValueError(
            f"both sides must have the same rows, got {left.shape=}, {right.shape=}. "
            "This is a defect in a query."
        )
    left, right = (np.ascontiguousarray(x) for x in (left, right))
    _add_all(left, right, upper, out)


def add_class_rows(
    rows: np.ndarray, y: np.ndarray, keep: np.ndarray, out: np.ndarray
) -> None:
    """Add row i of rows (k, d) int16, where keep, to row y_i of out (m, d) int64.

    y (k,) integers below m where keep (k,) bool; ValueError if anything does not fit.
    """
    _check_integers(rows, rows)
    _check_sum(out, (len(out), rows.shape[1]))
    if y.shape != (len(rows),) or keep.shape != y.shape or keep.dtype != bool:
        raise ValueError(
            f"each row must have a class and a mask, got {rows.shape=}, {y.shape=}, "
            f"{keep.shape=}, {keep.dtype=}. This is a defect in the row source."
        )
    used = np.flatnonzero(keep)
    used = used[np.argsort(y[used], kind="stable")]
    classes = y[used]
    if len(used) and not 0 <= classes.min() <= classes.max() < len(out):
        raise ValueError(
            f"each row that is kept must be of a class below {len(out)}, got others. "
            "This is a defect in a query: such rows are not kept."
        )
    _add_class_rows(np.ascontiguousarray(rows), used, classes, out)


def _check_integers(*arrays: np.ndarray) -> None:
    if any(x.ndim != 2 or x.dtype != np.int16 for x in arrays):
        shapes = [(x.shape, str(x.dtype)) for x in arrays]
        raise ValueError(
            f"rows must be matrices of int16, got {shapes}. "
            "This is a defect in a query."
        )


def _check_sum(out: np.ndarray, shape: tuple[int, ...]) -> None:
    fits = out.shape == shape and out.dtype == np.int64
    if not (fits and out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(
            f"a sum must be int64, in C order and of shape {shape}, got {out.shape=}, "
            f"{out.strides=}, {out.dtype=}. This is a defect in a query."
        )


@compiled
def _packed(weights):  # type: ignore[no-untyped-def]
    """weights (m, d) for `_scores`: (m, ⌈d / COLUMNS⌉ COLUMNS), from a cache line on.

    The last register is that of the last columns, zero where they stand in others.
    """
    m, d = weights.shape
    vectors = (d + COLUMNS - 1) // COLUMNS
    room = np.zeros(m * vectors * COLUMNS + 32, np.int16)
    first = (-room.ctypes.data % 64) // 2
    packed = room[first : first + m * vectors * COLUMNS].reshape(m, vectors * COLUMNS)
    shift = vectors * COLUMNS - d if d > COLUMNS else 0
    for j in range(m):
        for l in range(d):
            place = l + shift if l >= (vectors - 1) * COLUMNS else l
            packed[j, place] = weights[j, l]
    return packed


@compiled
def _scores(rows, start, stop, packed, out):  # type: ignore[no-untyped-def]
    """Scores of rows[start:stop] into the first columns of out (m, at least k) int32.

    packed: of the weights, by `_packed`.
    """
    k, d = stop - start, rows.shape[1]
    m, size = packed.shape
    vectors = size // COLUMNS
    out[:, :k] = 0
    if d >= COLUMNS:
        x, first, wide = rows.reshape(-1), start * d, d
    else:
        short = np.zeros((k, COLUMNS), np.int16)
        for i in range(k):
            for l in range(d):
                short[i, l] = rows[start + i, l]
        x, first, wide = short.reshape(-1), 0, COLUMNS
    w, z, stride = packed.reshape(-1), out.reshape(-1), out.shape[1]
    edge = np.empty(SCORED * BESIDE, np.int32)
    depth = DEPTH // COLUMNS
    most = max(SCORED, CACHED // (min(depth, max(1, vectors)) * COLUMNS))
    for v in range(0, vectors, depth):
        n = min(depth, vectors - v)
        for u in range(0, m, most):
            end = min(m, u + most)
            for i in range(0, k, BESIDE):
                last = min(BESIDE, k - i) - 1
                at = first + i * wide
                j = u
                while j < end:
                    h = SCORED if end - j != 4 else 2
                    h = min(h, end - j)
                    place = j * stride + i
                    b = j * size
                    target, to, step = z, place, stride
                    if last + 1 < BESIDE:
                        edge[:] = 0
                        target, to, step = edge, 0, BESIDE
                    _add_dots(h, x, at, wide, last, w, b, size, v, n, target, to, step)
                    if last + 1 < BESIDE:
                        for c in range(h):
                            for r in range(last + 1):
                                z[place + c * stride + r] += edge[c * BESIDE + r]
                    j += h


@compiled
def _add_all(left, right, upper, out):  # type: ignore[no-untyped-def]
    k, (m, p) = len(left), out.shape
    thin = m <= THIN and not upper
    size = CHUNK if thin else MANY
    for start in range(0, k, size):
        stop = min(k, start + size)
        if thin:
            _add_strips(_pairs(left, start, stop), 0, right, start, stop, out)
            continue
        b = _panels(right, start, stop)
        a = b if upper else _panels(left, start, stop)
        n = b.shape[1]
        steps = (n * WIDTH, 1, CHUNK // 2 * WIDTH, WIDTH)
        _add_tiles(a.reshape(-1), steps, b, upper, m, p, out)


@compiled
def _add_products(left, rows, start, stop, out):  # type: ignore[no-untyped-def]
    """Add sum_i left_i rows_iᵀ, for rows[start:stop], to out (m, d).

    left: pairs (M, at least ⌈k / 2⌉) int32, class first, zero beside the last row and
    from m on; HEIGHT divides M, and 2. out is int64, or int32 for no more than CHUNK
    rows in all.
    """
    m, p = out.shape
    if m <= THIN:
        half = CHUNK // 2
        for c in range(0, (stop - start + 1) // 2, half):
            first = start + 2 * c
            _add_strips(left, c, rows, first, min(stop, first + CHUNK), out)
    else:
        panels = _panels(rows, start, stop)
        size = left.shape[1]
        steps = (size * WIDTH, size, CHUNK // 2, 1)
        _add_tiles(left.reshape(-1), steps, panels, False, m, p, out)


@compiled
def _pairs(left, start, stop):  # type: ignore[no-untyped-def]
    """Columns of left[start:stop] (k, m) as pairs of rows (M, ⌈k / 2⌉) int32."""
    k, m = stop - start, left.shape[1]
    n = (k + 1) // 2
    pairs = np.zeros(((m + STRIP - 1) // STRIP * STRIP, 2 * n), np.int16)
    for i in range(k):
        for j in range(m):
            pairs[j, i] = left[start + i, j]
    return pairs.view(np.int32)


@compiled
def _panels(x, start, stop):  # type: ignore[no-untyped-def]
    """Columns of x[start:stop] (k, p) as panels (⌈p / WIDTH⌉, ⌈k / 2⌉, WIDTH) int32 of
    pairs of rows; zero beside the last row, unspecified beside the last column."""
    whole, rest = divmod(x.shape[1], WIDTH)
    k = stop - start
    panels = np.empty((whole + (rest > 0), (k + 1) // 2, 2 * WIDTH), np.int16)
    nothing = np.zeros(x.shape[1] if k % 2 else 0, np.int16)
    for i in range((k + 1) // 2):
        one = x[start + 2 * i]
        other = x[start + 2 * i + 1] if 2 * i + 1 < k else nothing
        for j in range(whole):
            panel = panels[j, i]
            for l in range(WIDTH):
                panel[2 * l] = one[j * WIDTH + l]
                panel[2 * l + 1] = other[j * WIDTH + l]
        for l in range(rest):
            panels[whole, i, 2 * l] = one[whole * WIDTH + l]
            panels[whole, i, 2 * l + 1] = other[whole * WIDTH + l]
    return panels.view(np.int32)


@compiled
def _add_tiles(a, steps, panels, upper, m, p, out):  # type: ignore[no-untyped-def]
    """Add sum_i a_i b_iᵀ to out[:m, :p], where b_i is row i of panels.

    Entry r of pair i of a, for r = WIDTH u + s and i = 64 c + l, is a[(u, s, c, l) ·
    steps], padded to a multiple of HEIGHT. upper: only tiles from the diagonal on.
    """
    n, stride = panels.shape[1], out.shape[1]
    edge = np.empty(HEIGHT * WIDTH, out.dtype)
    flat, total, half = panels.reshape(-1), out.reshape(-1), CHUNK // 2
    for u in range((m + WIDTH - 1) // WIDTH):
        for j in range(u if upper else 0, len(panels)):
            for c in range(0, n, half):
                k = min(half, n - c)
                for s in range(0, min(WIDTH, m - u * WIDTH), HEIGHT):
                    start = u * steps[0] + s * steps[1] + c // half * steps[2]
                    b = (j * n + c) * WIDTH
                    rows = min(HEIGHT, m - u * WIDTH - s)
                    columns = min(WIDTH, p - j * WIDTH)
                    place = (u * WIDTH + s) * stride + j * WIDTH
                    whole = rows == HEIGHT and columns == WIDTH
                    target, to, step = total, place, stride
                    if not whole:
                        edge[:] = 0
                        target, to, step = edge, 0, WIDTH
                    slot, row = steps[3], steps[1]
                    _add_tile(a, start, slot, row, flat, b, k, target, to, step)
                    if not whole:
                        for i in range(rows):
                            for l in range(columns):
                                total[place + i * stride + l] += edge[i * WIDTH + l]


@compiled
def _add_strips(left, first, rows, start, stop, out):  # type: ignore[no-untyped-def]
    """`_add_products` of at most CHUNK rows, which are read where they lie.

    first: the pair of left that is theirs.
    """
    k, (m, d) = stop - start, out.shape
    x, a, total = rows.reshape(-1), left.reshape(-1), out.reshape(-1)
    n, last, size = (k + 1) // 2, k - 1, left.shape[1]
    whole = d // COLUMNS
    rest = d - whole * COLUMNS
    short = np.zeros((k if rest else 0, COLUMNS), np.int16)
    for i in range(len(short)):
        for l in range(rest):
            short[i, l] = rows[start + i, whole * COLUMNS + l]
    y = short.reshape(-1)
    edge = np.empty(STRIP * COLUMNS, out.dtype)
    for v in range(whole + (rest > 0)):
        columns = COLUMNS if v < whole else rest
        place = v * COLUMNS // BLOCK * BLOCK + BLOCK
        if place >= d:
            place = CHUNK * d
        ahead = (start + v * COLUMNS % BLOCK // LINE * 8) * d + place
        j = 0
        while j < m:
            h = min(STRIP, (m - j + 1) // 2 * 2)
            classes = min(h, m - j)
            place = j * d + v * COLUMNS
            source, at, wide = x, start * d + v * COLUMNS, d
            target, to, step = total, place, d
            if columns < COLUMNS:
                source, at, wide = y, 0, COLUMNS
            if columns < COLUMNS or classes < h:
                edge[:] = 0
                target, to, step = edge, 0, COLUMNS
            b = j * size + first
            _add_strip(
                h, a, b, size, n, source, at, wide, last, ahead, target, to, step
            )
            if columns < COLUMNS or classes < h:
                for i in range(classes):
                    for l in range(columns):
                        total[place + i * d + l] += edge[i * COLUMNS + l]
            j += h


@compiled
def _add_class_rows(rows, used, classes, out):  # type: ignore[no-untyped-def]
    """Add row used_i to row classes_i of out, four of a class at a time.

    Rows of a class follow each other.
    """
    i = 0
    while i < len(used):
        total, one = out[classes[i]], rows[used[i]]
        if i + 3 < len(used) and classes[i + 3] == classes[i]:
            two, three, four = rows[used[i + 1]], rows[used[i + 2]], rows[used[i + 3]]
            for l in range(rows.shape[1]):
                both = np.int32(one[l]) + np.int32(two[l])
                others = np.int32(three[l]) + np.int32(four[l])
                total[l] += np.int32(both) + np.int32(others)
            i += 4
        else:
            for l in range(rows.shape[1]):
                total[l] += one[l]
            i += 1


class _Code:
    """What the kernels below say to LLVM, a register or a number at a time."""

    def __init__(self, context: Any, builder: Any, signature: Any, given: Any) -> None:
        self.builder, self.whole = builder, ir.IntType(64)
        self.pairs = ir.VectorType(ir.IntType(32), LANES)
        self.halves = ir.VectorType(ir.IntType(16), 2 * LANES)
        self.given = list(given)
        for i, kind in enumerate(signature.args):
            if isinstance(kind, numba.types.Array):
                array = context.make_array(kind)(context, builder, value=given[i])
                self.given[i] = array.data

    def times(self, a: Any, b: Any) -> Any:
        return self.builder.mul(a, b if isinstance(b, ir.Value) else self.whole(b))

    def equal(self, a: Any, b: int) -> Any:
        return self.builder.icmp_signed("==", a, self.whole(b))

    def least(self, a: Any, b: Any) -> Any:
        a = a if isinstance(a, ir.Value) else self.whole(a)
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def address(self, data: Any, *offsets: Any) -> Any:
        """Of an entry whose offsets add up."""
        for offset in offsets:
            data = self.builder.gep(
                data, [offset if isinstance(offset, ir.Value) else self.whole(offset)]
            )
        return data

    def vector(self, kind: Any, data: Any, *offsets: Any) -> Any:
        """The address of a register."""
        return self.builder.bitcast(self.address(data, *offsets), kind.as_pointer())

    def load(self, kind: Any, align: int, data: Any, *offsets: Any) -> Any:
        return self.builder.load(self.vector(kind, data, *offsets), align=align)

    def all_lanes(self, one: Any) -> Any:
        """A register of one int32 number."""
        unset = ir.Constant(self.pairs, ir.Undefined)
        lanes = self.builder.insert_element(unset, one, ir.IntType(32)(0))
        return self.shuffle(lanes, lanes, [0] * LANES)

    def shuffle(self, a: Any, b: Any, places: list[int]) -> Any:
        """Entries of a and, from their number on, of b."""
        kind = ir.VectorType(ir.IntType(32), len(places))
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, places))

    def sums(self, n: int) -> list[Any]:
        """Registers of zeros that change; LLVM keeps them out of memory."""
        nothing = ir.Constant(self.pairs, None)
        return [cgutils.alloca_once_value(self.builder, nothing) for _ in range(n)]

    def add_products(self, total: Any, a: Any, b: Any) -> None:
        """Add the products of a's and b's pairs to the register total."""
        builder = self.builder
        if MULTIPLY_ADD:
            kind = ir.FunctionType(self.pairs, [self.halves, self.halves])
            made = cgutils.get_or_insert_function(builder.module, kind, MULTIPLY_ADD)
            a, b = (builder.bitcast(x, self.halves) for x in (a, b))
            products = builder.call(made, [a, b])
        else:
            shift = ir.Constant(self.pairs, [16] * LANES)
            a, b = (builder.bitcast(x, self.pairs) for x in (a, b))
            low = [builder.ashr(builder.shl(x, shift), shift) for x in (a, b)]
            high = [builder.ashr(x, shift) for x in (a, b)]
            products = builder.add(builder.mul(*low), builder.mul(*high))
        builder.store(builder.add(builder.load(total), products), total)

    def add_to(self, out: Any, sums: Any, *offsets: Any) -> None:
        """Add a register of int32 numbers to out, of int64 or int32."""
        n, entry = sums.type.count, out.type.pointee
        kind = ir.VectorType(entry, n)
        if entry.width == 64:
            sums = self.builder.sext(sums, kind)
        address, align = self.vector(kind, out, *offsets), entry.width // 8
        before = self.builder.load(address, align=align)
        self.builder.store(self.builder.add(before, sums), address, align=align)

    def prefetch(self, write: int, data: Any, *offsets: Any) -> None:
        """Ask for a place before it is needed, to be read (0) or written (1)."""
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        name = "llvm.prefetch.p0i8"
        made = cgutils.get_or_insert_function(self.builder.module, kind, name)
        address = self.builder.bitcast(self.address(data, *offsets), byte)
        self.builder.call(made, [address, flag(write), flag(3), flag(1)])

    def prefetch_sum(self, n: int, out: Any, *offsets: Any) -> None:
        """Ask for n entries of a sum, while its products are made."""
        for j in range(0, n, 512 // out.type.pointee.width):
            self.prefetch(1, out, *offsets, j)

    def each_row(self, registers: list[Any]) -> list[Any]:
        """Sums of all lanes of each register, in registers of as many as fit."""
        size, builder = LANES, self.builder  # lanes that are still to be added
        while size > 1:
            merged = len(registers) > 1
            half, joined = size // 2, []
            for i in range(0, len(registers), 2 if merged else 1):
                a, b = registers[i], registers[i + 1 if merged else i]
                starts = range(0, (1 + merged) * a.type.count, size)
                low = [start + l for start in starts for l in range(half)]
                high = [place + half for place in low]
                parts = (self.shuffle(a, b, places) for places in (low, high))
                joined.append(builder.add(*parts))
            registers, size = joined, half
        return registers


def _tile(context, a, start, slot, row, b, other, k, out, place, stride):  # type: ignore[no-untyped-def]
    """out[place + r stride + j] += sum over l < k of the products of the pairs
    a[start + l slot + r row] and b[other + l WIDTH + j], r < HEIGHT, j < WIDTH.

    Arrays are flat. The sum is int32 and stays in registers, three of them for each r.
    """
    integer = numba.types.intp
    ints = integer, integer, integer
    signature = numba.types.void(a, *ints, b, integer, integer, out, integer, integer)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        say = _Code(context, builder, signature, given)
        a, start, slot, row, b, other, k, out, place, stride = say.given
        sums = [say.sums(3) for _ in range(HEIGHT)]
        for r in range(HEIGHT):
            say.prefetch_sum(WIDTH, out, place, say.times(stride, r))
        with cgutils.for_range(builder, k) as loop:
            from_a = say.address(a, start, say.times(slot, loop.index))
            from_b = say.address(b, other, say.times(loop.index, WIDTH))
            columns = [say.load(say.pairs, 4, from_b, v * LANES) for v in range(3)]
            for r in range(HEIGHT):
                one = builder.load(say.address(from_a, say.times(row, r)))
                lanes = say.all_lanes(one)
                for v in range(3):
                    say.add_products(sums[r][v], lanes, columns[v])
        for r in range(HEIGHT):
            for v in range(3):
                at = place, say.times(stride, r), v * LANES
                say.add_to(out, builder.load(sums[r][v]), *at)
        return context.get_dummy_value()

    return signature, code


_add_tile: Any = intrinsic(_tile)


def _strip(
    context, h, a, start, size, n, x, first, wide, last, ahead, out, place, stride
):  # type: ignore[no-untyped-def]
    """out[place + r stride + j] += sum over l < n of the products of the pairs
    a[start + r size + l] and of column j of rows 2 l and 2 l + 1, r < h, j < COLUMNS.

    h is even and at most STRIP. Row i is x[first + i wide:], row `last` for those after
    it. A register of each row becomes two of pairs, whose order is undone in the sums.
    Eight rows of BLOCK columns from x[ahead] on come to the cache, for later: a strip
    crosses many pages, which no processor foresees.
    """
    one = numba.types.intp
    left, row = (a, one, one, one), (x, one, one, one, one)
    signature = numba.types.void(one, *left, *row, out, one, one)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        say = _Code(context, builder, signature, given)
        for classes in range(2, STRIP + 1, 2):
            with builder.if_then(say.equal(say.given[0], classes)):
                _make_strip(say, classes)
        return context.get_dummy_value()

    return signature, code


def _make_strip(say: _Code, classes: int) -> None:
    """The code of `_strip` for so many classes."""
    builder = say.builder
    a, start, size, n, x, first, wide, last, ahead, out, place, stride = say.given[1:]
    sums = [say.sums(2) for _ in range(classes)]
    blocks = range(0, COLUMNS, 8)  # of 128 bits, between which is no fast way
    low = [8 * (i // 8) + i % 8 // 2 + i % 2 * COLUMNS for i in range(COLUMNS)]
    high = [i + 4 for i in low]
    lanes = [(i, part, l) for i in blocks for part in (0, 1) for l in range(4)]
    order = [part * LANES + i // 2 + l for i, part, l in lanes]
    for r in range(classes):
        say.prefetch_sum(COLUMNS, out, place, say.times(stride, r))
    with cgutils.for_range(builder, n) as loop:
        even = say.times(loop.index, 2)
        odd = say.least(builder.add(even, say.whole(1)), last)
        one, other = (
            say.load(say.halves, 2, x, first, say.times(wide, i)) for i in (even, odd)
        )
        columns = [say.shuffle(one, other, places) for places in (low, high)]
        row = say.times(wide, builder.lshr(loop.index, say.whole(3)))
        line = say.times(builder.and_(loop.index, say.whole(7)), 2 * LINE)
        for i in (0, LINE):
            say.prefetch(0, x, ahead, row, line, i)
        from_a = say.address(a, start, loop.index)
        for r in range(classes):
            pair = builder.load(say.address(from_a, say.times(size, r)))
            pair = say.all_lanes(pair)
            for part in (0, 1):
                say.add_products(sums[r][part], pair, columns[part])
    for r in range(classes):
        one, other = (builder.load(total) for total in sums[r])
        for half in (0, LANES):
            numbers = say.shuffle(one, other, order[half : half + LANES])
            say.add_to(out, numbers, place, say.times(stride, r), half)


_add_strip: Any = intrinsic(_strip)


def _dots(context, h, x, first, wide, last, w, at, step, v, n, out, place, stride):  # type: ignore[no-untyped-def]
    """out[place + c stride + r] += the product of columns of row r and weight c.

    c < h <= SCORED, r < BESIDE. Registers v to v + n - 1 of the columns. Row r is
    x[first + r wide:], row `last` for those after it, and the last register is that of
    its last columns; weight c is w[at + c step:].
    """
    one = numba.types.intp
    row, weight = (x, one, one, one), (w, one, one, one, one)
    signature = numba.types.void(one, *row, *weight, out, one, one)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        say = _Code(context, builder, signature, given)
        for classes in range(1, SCORED + 1):
            with builder.if_then(say.equal(say.given[0], classes)):
                _make_dots(say, classes)
        return context.get_dummy_value()

    return signature, code


def _make_dots(say: _Code, classes: int) -> None:
    """The code of `_dots` for so many classes."""
    builder = say.builder
    x, first, wide, last, w, at, step, v, n, out, place, stride = say.given[1:]
    sums = [say.sums(BESIDE) for _ in range(classes)]
    limit = builder.sub(wide, say.whole(COLUMNS))
    rows = [
        say.address(x, first, say.times(wide, say.least(r, last)))
        for r in range(BESIDE)
    ]
    weights = [say.address(w, at, say.times(step, c)) for c in range(classes)]
    with cgutils.for_range(builder, n) as loop:
        begin = say.times(builder.add(v, loop.index), COLUMNS)
        column = say.least(begin, limit)
        own = [say.load(say.halves, 2, weight, begin) for weight in weights]
        for r in range(BESIDE):
            row = say.load(say.halves, 2, rows[r], column)
            for c in range(classes):
                say.add_products(sums[c][r], row, own[c])
    for c in range(classes):
        found = say.each_row([builder.load(total) for total in sums[c]])
        for i, register in enumerate(found):
            beside = i * register.type.count
            say.add_to(out, register, place, say.times(stride, c), beside)


_add_dots: Any = intrinsic(_dots)
