"""Run compiled loops over 16-bit integers around the kernels of `llvm`.

These loops check no bounds. Callers check shapes and types first (`products`), or make
the arrays themselves (`gradient`). One instruction multiplies a register of pairs of
int16 and adds the two products of each pair, at twice the rate of float32. A pair is
one int32: two columns of a row for scores, two rows of a column for products.

All arrays are in C order. Rows are (k, d) int16; other arrays have classes first.
Scores are (m, k) int32, so that residuals are computed for many rows at a time.
Residuals (m, k) int16 with even k are the pairs (m, k / 2) int32 of
`add_pair_products`.
"""

import numpy as np

from dphead.sums.kernels.llvm import Matrix, add_dots, add_strip, add_tile
from dphead.sums.kernels.processor import (
    REGISTER_COLUMNS,
    SCORED_CLASSES,
    SCORED_ROWS,
    STRIP_CLASSES,
    TILE_HEIGHT,
    TILE_WIDTH,
    compiled,
)
from dphead.sums.tuning import (
    CACHE_LINE,
    CHUNK_ROWS,
    MAX_STRIP_CLASSES,
    PANEL_ROWS,
    PREFETCH_COLUMNS,
    SCORE_COLUMNS,
    SCORE_WEIGHTS,
)


@compiled
def packed_weights(weights):
    """Return weights (m, d) packed for `scores_into`, aligned to a cache line.

    The result has whole registers: (m, ⌈d / REGISTER_COLUMNS⌉ REGISTER_COLUMNS). The
    last register holds the last columns, with zeros for columns that other registers
    hold.
    """
    m, d = weights.shape
    vectors = (d + REGISTER_COLUMNS - 1) // REGISTER_COLUMNS
    width = vectors * REGISTER_COLUMNS
    # one line more than needed, so that the first entry can start at a line
    room = np.zeros(m * width + CACHE_LINE, np.int16)
    first = (-room.ctypes.data % (2 * CACHE_LINE)) // 2
    packed = room[first : first + m * width].reshape(m, width)
    shift = width - d if d > REGISTER_COLUMNS else 0
    for j in range(m):
        for l in range(d):
            place = l + shift if l >= width - REGISTER_COLUMNS else l
            packed[j, place] = weights[j, l]
    return packed


@compiled
def _wide_rows(rows, start, stop):
    """Return rows[start:stop] as a `Matrix`, copied if narrower than a register."""
    k = stop - start
    d = rows.shape[1]
    # a register's load of a narrower row would read beyond the array
    if d >= REGISTER_COLUMNS:
        return Matrix(rows.reshape(-1), start * d, d)
    short = np.zeros((k, REGISTER_COLUMNS), np.int16)
    for i in range(k):
        for l in range(d):
            short[i, l] = rows[start + i, l]
    return Matrix(short.reshape(-1), 0, REGISTER_COLUMNS)


@compiled
def scores_into(rows, start, stop, packed, out):
    """Write the scores of rows[start:stop] to the first columns of out (m, >= k) int32.

    `packed` comes from `packed_weights`.
    """
    k = stop - start
    m, size = packed.shape
    vectors = size // REGISTER_COLUMNS
    out[:, :k] = 0
    x, first, wide = _wide_rows(rows, start, stop)
    w = packed.reshape(-1)
    z = out.reshape(-1)
    stride = out.shape[1]
    edge = np.empty(SCORED_CLASSES * SCORED_ROWS, np.int32)
    # Columns in pieces that stay in the L1 cache, weights in pieces for the L2 cache.
    depth = SCORE_COLUMNS // REGISTER_COLUMNS
    columns = min(depth, max(1, vectors)) * REGISTER_COLUMNS
    most = max(SCORED_CLASSES, SCORE_WEIGHTS // columns)
    for v in range(0, vectors, depth):
        n = min(depth, vectors - v)
        for u in range(0, m, most):
            end = min(m, u + most)
            for i in range(0, k, SCORED_ROWS):
                last = min(SCORED_ROWS, k - i) - 1
                block = Matrix(x, first + i * wide, wide)
                j = u
                while j < end:
                    # two and two instead of three and one: one class uses a third
                    h = SCORED_CLASSES if end - j != 4 else 2
                    h = min(h, end - j)
                    place = j * stride + i
                    target = Matrix(z, place, stride)
                    # the kernel writes all SCORED_ROWS scores: fewer go through `edge`
                    if last + 1 < SCORED_ROWS:
                        edge[:] = 0
                        target = Matrix(edge, 0, SCORED_ROWS)
                    weights = Matrix(w, j * size, size)
                    add_dots(h, block, last, weights, v, n, target)
                    if last + 1 < SCORED_ROWS:
                        for c in range(h):
                            for r in range(last + 1):
                                part = edge[c * SCORED_ROWS + r]
                                z[place + c * stride + r] += part
                    j += h


@compiled
def add_squares(rows, out):
    """Add sum_i row_i row_iᵀ to the upper triangle of out (d, d).

    `products.add_gram` checks the arguments.
    """
    k, d = rows.shape
    for start in range(0, k, PANEL_ROWS):
        panels = _panels(rows, start, min(k, start + PANEL_ROWS))
        n = panels.shape[1]
        # one packing serves both sides: rows of a tile lie one entry apart in a panel
        steps = (n * TILE_WIDTH, 1, CHUNK_ROWS // 2 * TILE_WIDTH, TILE_WIDTH)
        _add_tiles(panels.reshape(-1), steps, panels, True, d, d, out)


@compiled
def add_pair_products(left, rows, start, stop, out):
    """Add sum_i left_i rows_iᵀ, for rows[start:stop], to out (m, d).

    left has pairs (M, at least ⌈k / 2⌉) int32, class first. For odd k, the second half
    of the last pair is zero. Classes from m on are zero. TILE_HEIGHT and 2 divide M.
    out is int64, or int32 for at most CHUNK_ROWS rows in all.
    """
    m, p = out.shape
    half = CHUNK_ROWS // 2
    if m <= MAX_STRIP_CLASSES:
        for c in range(0, (stop - start + 1) // 2, half):
            first = start + 2 * c
            last = min(stop, first + CHUNK_ROWS)
            _add_strips(left, c, rows, first, last, out)
    else:
        panels = _panels(rows, start, stop)
        # residuals are pairs already: a row of the tile is a row of `left`
        size = left.shape[1]
        steps = (size * TILE_WIDTH, size, half, 1)
        _add_tiles(left.reshape(-1), steps, panels, False, m, p, out)


@compiled
def _panels(x, start, stop):
    """Return columns of x[start:stop] (k, p) as panels of pairs of rows.

    The panels are (⌈p / TILE_WIDTH⌉, ⌈k / 2⌉, TILE_WIDTH) int32. For odd k, the second
    half of the last pairs is zero. Entries after column p are unspecified.
    """
    whole, rest = divmod(x.shape[1], TILE_WIDTH)
    k = stop - start
    n = (k + 1) // 2
    count = whole + (rest > 0)
    panels = np.empty((count, n, 2 * TILE_WIDTH), np.int16)
    # the pair of an odd last row: a row of zeros adds nothing
    zeros = np.zeros(x.shape[1] if k % 2 else 0, np.int16)
    for i in range(n):
        one = x[start + 2 * i]
        other = x[start + 2 * i + 1] if 2 * i + 1 < k else zeros
        for j in range(whole):
            panel = panels[j, i]
            for l in range(TILE_WIDTH):
                panel[2 * l] = one[j * TILE_WIDTH + l]
                panel[2 * l + 1] = other[j * TILE_WIDTH + l]
        for l in range(rest):
            column = whole * TILE_WIDTH + l
            panels[whole, i, 2 * l] = one[column]
            panels[whole, i, 2 * l + 1] = other[column]
    return panels.view(np.int32)


@compiled
def _add_tiles(a, steps, panels, upper, m, p, out):
    """Add sum_i a_i b_iᵀ to out[:m, :p], where b_i is row i of panels.

    For r = TILE_WIDTH u + s and i = 64 c + l, entry r of pair i of a is
    a[(u, s, c, l) · steps]. a is padded to a multiple of TILE_HEIGHT. With `upper`,
    only tiles from the diagonal on are added.
    """
    n = panels.shape[1]
    stride = out.shape[1]
    edge = np.empty(TILE_HEIGHT * TILE_WIDTH, out.dtype)
    flat = panels.reshape(-1)
    total = out.reshape(-1)
    half = CHUNK_ROWS // 2
    # The right panel of CHUNK_ROWS rows stays in the L1 cache for all tiles above it.
    for u in range((m + TILE_WIDTH - 1) // TILE_WIDTH):
        top = u * TILE_WIDTH
        for j in range(u if upper else 0, len(panels)):
            columns = min(TILE_WIDTH, p - j * TILE_WIDTH)
            for c in range(0, n, half):
                k = min(half, n - c)  # at most CHUNK_ROWS rows: int32 holds their sums
                right = Matrix(flat, (j * n + c) * TILE_WIDTH, TILE_WIDTH)
                for s in range(0, min(TILE_WIDTH, m - top), TILE_HEIGHT):
                    chunk = c // half
                    start = u * steps[0] + s * steps[1] + chunk * steps[2]
                    left = Matrix(a, start, steps[1])
                    rows = min(TILE_HEIGHT, m - top - s)
                    place = (top + s) * stride + j * TILE_WIDTH
                    # the kernel writes whole tiles: edge tiles go through `edge`
                    whole = rows == TILE_HEIGHT and columns == TILE_WIDTH
                    target = Matrix(total, place, stride)
                    if not whole:
                        edge[:] = 0
                        target = Matrix(edge, 0, TILE_WIDTH)
                    add_tile(left, steps[3], right, k, target)
                    if not whole:
                        for i in range(rows):
                            for l in range(columns):
                                part = edge[i * TILE_WIDTH + l]
                                total[place + i * stride + l] += part


@compiled
def _last_columns(rows, start, stop, first):
    """Return columns of rows[start:stop] from `first` on, zero-padded to a register."""
    rest = rows.shape[1] - first
    k = stop - start if rest else 0
    short = np.zeros((k, REGISTER_COLUMNS), np.int16)
    for i in range(k):
        for l in range(rest):
            short[i, l] = rows[start + i, first + l]
    return short.reshape(-1)


@compiled
def _add_strips(left, first, rows, start, stop, out):
    """Add the products of at most CHUNK_ROWS rows, which are read in place.

    The sum is the same as in `add_pair_products`. first is the first pair of left to
    use.
    """
    k, (m, d) = stop - start, out.shape
    x = rows.reshape(-1)
    a = left.reshape(-1)
    total = out.reshape(-1)
    size = left.shape[1]
    n = (k + 1) // 2
    whole = d // REGISTER_COLUMNS
    rest = d - whole * REGISTER_COLUMNS
    short = _last_columns(rows, start, stop, whole * REGISTER_COLUMNS)
    edge = np.empty(STRIP_CLASSES * REGISTER_COLUMNS, out.dtype)
    for v in range(whole + (rest > 0)):
        column = v * REGISTER_COLUMNS
        columns = REGISTER_COLUMNS if v < whole else rest
        source = Matrix(x, start * d + column, d)
        if columns < REGISTER_COLUMNS:
            source = Matrix(short, 0, REGISTER_COLUMNS)
        # Each strip fetches a share of the next PREFETCH_COLUMNS columns of the chunk.
        following = column // PREFETCH_COLUMNS * PREFETCH_COLUMNS + PREFETCH_COLUMNS
        if following >= d:
            following = CHUNK_ROWS * d
        eighths = column % PREFETCH_COLUMNS // CACHE_LINE * 8
        ahead = (start + eighths) * d + following
        j = 0
        while j < m:
            h = min(STRIP_CLASSES, (m - j + 1) // 2 * 2)  # kernels exist for even h
            classes = min(h, m - j)
            place = j * d + column
            whole_strip = columns == REGISTER_COLUMNS and classes == h
            target = Matrix(total, place, d)
            if not whole_strip:
                edge[:] = 0
                target = Matrix(edge, 0, REGISTER_COLUMNS)
            pairs = Matrix(a, j * size + first, size)
            add_strip(h, pairs, n, source, k - 1, ahead, target)
            if not whole_strip:
                for i in range(classes):
                    for l in range(columns):
                        part = edge[i * REGISTER_COLUMNS + l]
                        total[place + i * d + l] += part
            j += h


@compiled
def add_sorted_rows(rows, used, classes, out):
    """Add row used_i to row classes_i of out, four rows of a class at a time.

    `used` must be sorted by class.
    """
    i = 0
    while i < len(used):
        total = out[classes[i]]
        one = rows[used[i]]
        if i + 3 < len(used) and classes[i + 3] == classes[i]:
            two = rows[used[i + 1]]
            three = rows[used[i + 2]]
            four = rows[used[i + 3]]
            # One load and store of the sum for four rows. int32 holds four entries.
            for l in range(rows.shape[1]):
                both = np.int32(one[l]) + np.int32(two[l])
                others = np.int32(three[l]) + np.int32(four[l])
                total[l] += np.int32(both) + np.int32(others)
            i += 4
        else:
            for l in range(rows.shape[1]):
                total[l] += one[l]
            i += 1
