"""Define the innermost products in LLVM, because numba chooses registers badly.

These kernels check no bounds. Only `loops` may call them, with places inside their
arrays. One instruction multiplies a register of pairs of int16 and adds the two
products of each pair. `products` explains why int32 holds the sums.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from dphead.sums.kernels.processor import (
    LANES,
    MULTIPLY_ADD,
    REGISTER_COLUMNS,
    SCORED_CLASSES,
    SCORED_ROWS,
    STRIP_CLASSES,
    TILE_HEIGHT,
    TILE_REGISTERS,
    TILE_WIDTH,
)
from dphead.sums.tuning import CACHE_LINE

_INT = numba.types.intp


class Matrix(NamedTuple):
    """Describe a matrix in a flat array: (i, j) is entries[first + i stride + j]."""

    entries: Any
    first: int
    stride: int


class _Emitter:
    """Write LLVM code, one register or number at a time.

    `operands` has the kernel's arguments. An array is the address of its entries, and a
    `Matrix` is a tuple of three.
    """

    def __init__(self, context, builder, signature, given):
        self.builder = builder
        self.whole = ir.IntType(64)
        self.pairs = ir.VectorType(ir.IntType(32), LANES)
        self.halves = ir.VectorType(ir.IntType(16), 2 * LANES)
        self._context = context
        kinds = signature.args
        self.operands = [self._operand(*x) for x in zip(kinds, given, strict=True)]

    def _operand(self, kind, value):
        if isinstance(kind, numba.types.BaseTuple):
            parts = cgutils.unpack_tuple(self.builder, value)
            kinds: Any = kind
            return tuple(self._operand(*x) for x in zip(kinds, parts, strict=True))
        if isinstance(kind, numba.types.Array):
            array = self._context.make_array(kind)
            return array(self._context, self.builder, value=value).data
        return value

    def number(self, a):
        """Return an LLVM int64 for an LLVM or a Python number."""
        return a if isinstance(a, ir.Value) else self.whole(a)

    def times(self, a, b):
        """Return the product of two numbers."""
        return self.builder.mul(a, self.number(b))

    def equal(self, a, b: int):
        """Return whether two numbers are equal."""
        return self.builder.icmp_signed("==", a, self.whole(b))

    def least(self, a, b):
        """Return the smaller of two numbers."""
        a = self.number(a)
        less = self.builder.icmp_signed("<", a, b)
        return self.builder.select(less, a, b)

    def address(self, data, *offsets):
        """Return the address of the entry at the sum of the offsets."""
        for offset in offsets:
            data = self.builder.gep(data, [self.number(offset)])
        return data

    def row(self, place, i):
        """Return the address of row i of a `Matrix`."""
        entries, first, stride = place
        return self.address(entries, first, self.times(stride, i))

    def vector(self, kind, data, *offsets):
        """Return the address of a register."""
        address = self.address(data, *offsets)
        return self.builder.bitcast(address, kind.as_pointer())

    def load(self, kind, align: int, data, *offsets):
        """Return a register loaded from memory."""
        vector = self.vector(kind, data, *offsets)
        return self.builder.load(vector, align=align)

    def all_lanes(self, one):
        """Return a register with one int32 number in all lanes."""
        # LLVM turns this shuffle into one broadcast instruction
        unset = ir.Constant(self.pairs, ir.Undefined)
        first = ir.IntType(32)(0)
        lanes = self.builder.insert_element(unset, one, first)
        return self.shuffle(lanes, lanes, [0] * LANES)

    def shuffle(self, a, b, places: list[int]):
        """Return the entries at `places` of a followed by b."""
        kind = ir.VectorType(ir.IntType(32), len(places))
        return self.builder.shuffle_vector(a, b, ir.Constant(kind, places))

    def sums(self, n: int) -> list[Any]:
        """Return n zero registers for sums, which LLVM keeps out of memory."""
        # allocas in the entry block: LLVM's mem2reg turns them into registers
        zeros = ir.Constant(self.pairs, None)
        return [cgutils.alloca_once_value(self.builder, zeros) for _ in range(n)]

    def add_products(self, total, a, b):
        """Add the products of the pairs of a and b to the register `total`."""
        builder = self.builder
        if MULTIPLY_ADD:
            kind = ir.FunctionType(self.pairs, [self.halves, self.halves])
            made = cgutils.get_or_insert_function(builder.module, kind, MULTIPLY_ADD)
            a = builder.bitcast(a, self.halves)
            b = builder.bitcast(b, self.halves)
            products = builder.call(made, [a, b])
        else:
            # without the instruction: take each half of a pair with its sign
            shift = ir.Constant(self.pairs, [16] * LANES)
            pairs = [builder.bitcast(x, self.pairs) for x in (a, b)]
            lifted = [builder.shl(x, shift) for x in pairs]
            low = [builder.ashr(x, shift) for x in lifted]
            high = [builder.ashr(x, shift) for x in pairs]
            low_product = builder.mul(*low)
            high_product = builder.mul(*high)
            products = builder.add(low_product, high_product)
        before = builder.load(total)
        builder.store(builder.add(before, products), total)

    def add_to(self, sums, data, *offsets):
        """Add a register of int32 numbers to int64 or int32 entries in memory."""
        entry = data.type.pointee
        kind = ir.VectorType(entry, sums.type.count)
        if entry.width == 64:  # int32 sums of a chunk go to int64 sums of all rows
            sums = self.builder.sext(sums, kind)
        address = self.vector(kind, data, *offsets)
        align = entry.width // 8
        before = self.builder.load(address, align=align)
        after = self.builder.add(before, sums)
        self.builder.store(after, address, align=align)

    def prefetch(self, write: int, data, *offsets):
        """Prefetch a memory location for reading (0) or writing (1)."""
        byte = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        # arguments: address, read or write, locality, data or instructions
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        name = "llvm.prefetch.p0i8"
        made = cgutils.get_or_insert_function(self.builder.module, kind, name)
        address = self.address(data, *offsets)
        place = self.builder.bitcast(address, byte)
        keep_in_every_cache = flag(3)
        data_not_code = flag(1)
        options = [flag(write), keep_in_every_cache, data_not_code]
        self.builder.call(made, [place, *options])

    def prefetch_sum(self, n: int, data):
        """Prefetch n entries of a sum while its products are computed."""
        entries_of_a_line = 512 // data.type.pointee.width
        for j in range(0, n, entries_of_a_line):
            self.prefetch(1, data, j)

    def each_row(self, registers: list[Any]) -> list[Any]:
        """Return the sum of all lanes of each register, packed into registers."""
        # add halves, and pack two registers into one, until each lane is a whole sum
        size = LANES  # lanes left to add
        while size > 1:
            merged = len(registers) > 1
            half = size // 2
            joined = []
            for i in range(0, len(registers), 2 if merged else 1):
                a = registers[i]
                b = registers[i + 1 if merged else i]
                starts = range(0, (1 + merged) * a.type.count, size)
                low = [start + l for start in starts for l in range(half)]
                high = [place + half for place in low]
                one = self.shuffle(a, b, low)
                other = self.shuffle(a, b, high)
                joined.append(self.builder.add(one, other))
            registers = joined
            size = half
        return registers


Code = Callable[[Any, Any, Any, Any], Any]


def _tile(context, left, pair_step, right, n, out):
    """Add a tile of products: out(r, j) += sum_l left(r, l pair_step) right(l, j).

    l < n, r < TILE_HEIGHT, j < TILE_WIDTH, and each factor is a pair. The sum is int32
    and stays in registers, three of them for each r.
    """
    signature = numba.types.void(left, _INT, right, _INT, out)

    def code(context, builder, signature, given):
        emit = _Emitter(context, builder, signature, given)
        left, pair_step, right, n, out = emit.operands
        sums = [emit.sums(TILE_REGISTERS) for _ in range(TILE_HEIGHT)]
        starts = [v * LANES for v in range(TILE_REGISTERS)]
        for r in range(TILE_HEIGHT):
            emit.prefetch_sum(TILE_WIDTH, emit.row(out, r))
        with cgutils.for_range(builder, n) as loop:
            pair = emit.times(pair_step, loop.index)
            entries, first, stride = left
            from_left = emit.address(entries, first, pair)
            from_right = emit.row(right, loop.index)
            # each load of columns serves TILE_HEIGHT rows, each broadcast three columns
            columns = [emit.load(emit.pairs, 4, from_right, v) for v in starts]
            for r in range(TILE_HEIGHT):
                own = emit.address(from_left, emit.times(stride, r))
                one = builder.load(own)
                lanes = emit.all_lanes(one)
                for total, column in zip(sums[r], columns, strict=True):
                    emit.add_products(total, lanes, column)
        for r in range(TILE_HEIGHT):
            for total, v in zip(sums[r], starts, strict=True):
                register = builder.load(total)
                emit.add_to(register, emit.row(out, r), v)
        return context.get_dummy_value()

    return signature, code


add_tile: Any = intrinsic(_tile)


def _for_each_size(sizes: range, make: Callable[[_Emitter, int], None]) -> Code:
    """Return code with a branch for each size, chosen by the first operand."""

    def code(context, builder, signature, given):
        emit = _Emitter(context, builder, signature, given)
        for size in sizes:
            with builder.if_then(emit.equal(emit.operands[0], size)):
                make(emit, size)
        return context.get_dummy_value()

    return code


# With up to MAX_STRIP_CLASSES classes, packed rows would be read too few times to pay
# for the packing, so a strip pairs two rows in registers instead.
def _strip(context, h, pairs, n, rows, last, ahead, out):
    """Add a strip of products: out(r, j) += sum_l pairs(r, l) (rows 2 l, 2 l + 1 at j).

    l < n, r < h, j < REGISTER_COLUMNS, and each factor is a pair. h is even and at most
    STRIP_CLASSES. Rows after `last` are replaced by row `last`. The kernel shuffles a
    register of each of two rows into two registers of pairs. It restores the order of
    the columns when it adds the sums to `out`.

    The kernel prefetches eight rows of PREFETCH_COLUMNS columns, from entry `ahead` of
    the rows' array on. A strip crosses many pages, and no processor prefetches across
    them.
    """
    signature = numba.types.void(_INT, pairs, _INT, rows, _INT, _INT, out)
    return signature, _for_each_size(range(2, STRIP_CLASSES + 1, 2), _make_strip)


def _orders() -> tuple[list[int], list[int], list[int]]:
    """Return the orders that turn two rows into registers of pairs, and back.

    Shuffles stay in blocks of 128 bits, eight columns: across blocks they are slow.
    """
    low = []
    order = []
    for i in range(REGISTER_COLUMNS):
        block = i // 8 * 8
        other_row = i % 2 * REGISTER_COLUMNS
        low.append(block + i % 8 // 2 + other_row)
        other_register = i % 8 // 4 * LANES
        order.append(other_register + block // 2 + i % 4)
    high = [i + 4 for i in low]
    return low, high, order


def _make_strip(emit: _Emitter, classes: int) -> None:
    """Write the code of `_strip` for this number of classes."""
    builder = emit.builder
    _, pairs, n, rows, last, ahead, out = emit.operands
    sums = [emit.sums(2) for _ in range(classes)]
    low, high, order = _orders()
    for r in range(classes):
        emit.prefetch_sum(REGISTER_COLUMNS, emit.row(out, r))
    with cgutils.for_range(builder, n) as loop:
        even = emit.times(loop.index, 2)
        after = builder.add(even, emit.whole(1))
        # the pair of a missing row is zero, so any row may stand in its place
        odd = emit.least(after, last)
        one = emit.load(emit.halves, 2, emit.row(rows, even))
        other = emit.load(emit.halves, 2, emit.row(rows, odd))
        paired = [emit.shuffle(one, other, places) for places in (low, high)]
        eighth = builder.lshr(loop.index, emit.whole(3))
        within = builder.and_(loop.index, emit.whole(7))
        entries, _, stride = rows
        row = emit.times(stride, eighth)
        line = emit.times(within, 2 * CACHE_LINE)
        for i in (0, CACHE_LINE):
            emit.prefetch(0, entries, ahead, row, line, i)
        entries, first, stride = pairs
        from_pairs = emit.address(entries, first, loop.index)
        for r in range(classes):
            own = emit.address(from_pairs, emit.times(stride, r))
            pair = emit.all_lanes(builder.load(own))
            for total, column in zip(sums[r], paired, strict=True):
                emit.add_products(total, pair, column)
    for r in range(classes):
        one, other = (builder.load(total) for total in sums[r])
        for half in (0, LANES):
            numbers = emit.shuffle(one, other, order[half : half + LANES])
            emit.add_to(numbers, emit.row(out, r), half)


add_strip: Any = intrinsic(_strip)


def _dots(context, h, rows, last, weights, v, n, out):
    """Add scores: out(c, r) += the product of row r and weight c over some columns.

    c < h <= SCORED_CLASSES, r < SCORED_ROWS. The columns are registers v to v + n - 1.
    Rows after `last` are replaced by row `last`. A row's last register holds the row's
    last columns.
    """
    signature = numba.types.void(_INT, rows, _INT, weights, _INT, _INT, out)
    return signature, _for_each_size(range(1, SCORED_CLASSES + 1), _make_dots)


def _make_dots(emit: _Emitter, classes: int) -> None:
    """Write the code of `_dots` for this number of classes."""
    builder = emit.builder
    _, rows, last, weights, v, n, out = emit.operands
    sums = [emit.sums(SCORED_ROWS) for _ in range(classes)]
    # The last register starts so that it ends with the row; `packed_weights` is zero
    # for the columns that it repeats.
    limit = builder.sub(rows[2], emit.whole(REGISTER_COLUMNS))
    places = [emit.least(r, last) for r in range(SCORED_ROWS)]
    from_rows = [emit.row(rows, place) for place in places]
    from_weights = [emit.row(weights, c) for c in range(classes)]
    with cgutils.for_range(builder, n) as loop:
        register = builder.add(v, loop.index)
        begin = emit.times(register, REGISTER_COLUMNS)
        column = emit.least(begin, limit)
        own = [emit.load(emit.halves, 2, w, begin) for w in from_weights]
        for r in range(SCORED_ROWS):
            row = emit.load(emit.halves, 2, from_rows[r], column)
            for c in range(classes):
                emit.add_products(sums[c][r], row, own[c])
    for c in range(classes):
        lanes = [builder.load(total) for total in sums[c]]
        for i, register in enumerate(emit.each_row(lanes)):
            beside = i * register.type.count
            emit.add_to(register, emit.row(out, c), beside)


add_dots: Any = intrinsic(_dots)
