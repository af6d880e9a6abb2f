/* Exact products of 16-bit integers: scores, gradients, Gram matrices and class sums.

   One instruction multiplies a register of pairs of int16 and adds the two products of
   each pair, at twice the rate of float32. A pair is two columns of a row for scores, and
   two rows of a column for sums over rows.

   No sum may overflow. A row and a residual are int16 vectors of norm at most RADIUS, so a
   product of two entries is below 2**24. int32 holds the sum of CHUNK_ROWS = 128 products,
   and every partial sum of a score (proofs/exactness.md). int64 holds all other sums.

   These functions check no bounds: `dphead.sums.kernels` checks shapes and types first. */
#include "kernels.h"

#define SCORE_COLUMNS 1664 /* of 8 rows and 3 classes: 37 KB, for the L1 cache */
#define SCORE_WEIGHTS (1 << 18) /* entries of weights: 512 KB, for the L2 cache; chosen */
#define BLOCK_CLASSES 384       /* rows of `left`: 384 KB, for the L2 cache; chosen */
#define AHEAD (4 * COLUMNS) /* prefetch these columns ahead; 2 to 16 registers: same speed */

/* Scores */

/* Return the number of columns of packed weights: d, rounded up to whole registers. */
int64_t packed_width(int64_t d)
{
    return (d + COLUMNS - 1) / COLUMNS * COLUMNS;
}

/* Copy weights (m, d) to packed (m, packed_width(d)).

   The last register of a row of features holds its last COLUMNS columns, so that no load
   reads beyond the row. Its weights are zero for columns that other registers hold. */
void pack_weights(const int16_t *weights, int64_t m, int64_t d, int16_t *packed)
{
    int64_t width = packed_width(d);
    int64_t whole = d > COLUMNS ? width - COLUMNS : 0;
    int64_t start = d > COLUMNS ? width - (d - whole) : 0;
    memset(packed, 0, 2 * m * width);
    for (int64_t c = 0; c < m; c++) {
        memcpy(packed + c * width, weights + c * d, 2 * whole);
        memcpy(packed + c * width + start, weights + c * d + whole, 2 * (d - whole));
    }
}

/* Add the lanes of each of four registers. Return the four sums in one register. */
INLINE four lane_sums(const ints *sums)
{
    ints ab = LOW(32, sums[0], sums[1]) + HIGH(32, sums[0], sums[1]);
    ints cd = LOW(32, sums[2], sums[3]) + HIGH(32, sums[2], sums[3]);
    ints lanes = LOW(64, ab, cd) + HIGH(64, ab, cd); /* four sums in each 128 bits */
    four total = {0}, part;
    for (int i = 0; i < LANES; i += 4) {
        memcpy(&part, (char *)&lanes + 4 * i, sizeof part);
        total += part;
    }
    return total;
}

/* The columns from `first` to before `end` of some rows and of packed weights. Rows lie
   `step` entries apart, and weights `width`. Row `last` stands for all rows after it. The
   last load of a row starts at column `limit`, as `pack_weights` says. */
struct scored {
    const int16_t *rows, *weights;
    int64_t step, width, last, first, end, limit;
    int32_t *scores;
};

/* Add the products of these columns to the scores of SCORED_ROWS rows and `classes`
   classes. */
INLINE void add_scores(const int classes, const struct scored *s)
{
    ints sums[SCORED_CLASSES][SCORED_ROWS];
    const int16_t *rows[SCORED_ROWS];
    UNROLL for (int r = 0; r < SCORED_ROWS; r++) {
        rows[r] = s->rows + SMALLER(r, s->last) * s->step;
        UNROLL for (int c = 0; c < classes; c++) sums[c][r] = all_lanes(0);
    }
    for (int64_t v = s->first; v < s->end; v += COLUMNS) {
        int64_t column = SMALLER(v, s->limit);
        ints weights[SCORED_CLASSES];
        UNROLL for (int c = 0; c < classes; c++)
            weights[c] = load(s->weights + c * s->width + v);
        UNROLL for (int r = 0; r < SCORED_ROWS; r++) {
            ints row = load(rows[r] + column);
            UNROLL for (int c = 0; c < classes; c++)
                sums[c][r] = add_pairs(sums[c][r], row, weights[c]);
        }
    }
    UNROLL for (int c = 0; c < classes; c++) {
        int32_t *scores = s->scores + c * CHUNK_ROWS;
        UNROLL for (int r = 0; r < SCORED_ROWS; r += 4) {
            four total = lane_sums(sums[c] + r), before;
            memcpy(&before, scores + r, sizeof before);
            total += before;
            memcpy(scores + r, &total, sizeof total);
        }
    }
}

/* Add the products of these columns to the scores of k rows and the classes from u to
   before `stop`. */
static void score_block(struct scored s, int64_t k, int64_t u, int64_t stop)
{
    const int16_t *rows = s.rows, *weights = s.weights;
    int32_t *scores = s.scores;
    for (int64_t i = 0; i < k; i += SCORED_ROWS) {
        s.rows = rows + i * s.step;
        s.last = k - i - 1;
        for (int64_t j = u, left; (left = stop - j) > 0;) {
            s.weights = weights + j * s.width;
            s.scores = scores + j * CHUNK_ROWS + i;
            /* four classes as two and two: one class alone uses a third of the registers */
            if (left == 3 || left > 4)
                add_scores(3, &s), j += 3;
            else if (left > 1)
                add_scores(2, &s), j += 2;
            else
                add_scores(1, &s), j += 1;
        }
    }
}

/* Write the scores of at most CHUNK_ROWS rows (k, d) to scores (m, CHUNK_ROWS).

   Scores of missing rows are unspecified. */
void score(const int16_t *rows, int64_t k, int64_t d, const int16_t *packed, int64_t m,
           int32_t *scores)
{
    int16_t wide[CHUNK_ROWS][COLUMNS];
    if (d < COLUMNS) { /* a register's load would read beyond the array */
        memset(wide, 0, sizeof wide);
        for (int64_t i = 0; i < k; i++)
            memcpy(wide[i], rows + i * d, 2 * d);
        rows = wide[0];
        d = COLUMNS;
    }
    memset(scores, 0, 4 * m * CHUNK_ROWS);
    int64_t width = packed_width(d);
    int64_t most = LARGER(SCORED_CLASSES, SCORE_WEIGHTS / SMALLER(SCORE_COLUMNS, width));
    for (int64_t v = 0; v < width; v += SCORE_COLUMNS)
        for (int64_t u = 0; u < m; u += most) {
            int64_t end = SMALLER(width, v + SCORE_COLUMNS);
            struct scored s = {rows, packed, d, width, 0, v, end, d - COLUMNS, scores};
            score_block(s, k, u, SMALLER(m, u + most));
        }
}

/* Sums over rows */

/* Read COLUMNS columns of two rows as pairs. In each 128 bits, `low` gets the first four
   columns of eight, and `high` the last four: shuffles across 128 bits are slow. */
INLINE void read_pairs(const int16_t *one, const int16_t *other, ints *low, ints *high)
{
#if LANES > 4
    ints a = load(one), b = load(other);
    *low = LOW(16, a, b);
    *high = HIGH(16, a, b);
#else
    for (int j = 0; j < LANES; j++) {
        (*low)[j] = (uint16_t)one[j] | (uint32_t)other[j] << 16;
        (*high)[j] = (uint16_t)one[LANES + j] | (uint32_t)other[LANES + j] << 16;
    }
#endif
}

/* Restore the order of the columns after `read_pairs`. */
INLINE void restore_order(ints *low, ints *high)
{
#if LANES == 16
    __m512i a = (__m512i)*low, b = (__m512i)*high;
    __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    __m512i last = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    *low = (ints)_mm512_permutex2var_epi64(a, first, b);
    *high = (ints)_mm512_permutex2var_epi64(a, last, b);
#elif LANES == 8
    __m256i a = (__m256i)*low, b = (__m256i)*high;
    *low = (ints)_mm256_permute2x128_si256(a, b, 0x20);
    *high = (ints)_mm256_permute2x128_si256(a, b, 0x31);
#endif
}

INLINE void add_to(int64_t *out, ints sums)
{
    longs total;
    memcpy(&total, out, sizeof total);
    total += __builtin_convertvector(sums, longs);
    memcpy(out, &total, sizeof total);
}

/* A tile of a sum: out[c][j] += sum_i left[c][i] right[i][j], for k rows i and COLUMNS
   columns j. `left` has classes first. `right` has packed pairs, or rows in place. */
struct tile {
    const int16_t *left, *right;
    int64_t left_step, right_step, k, out_step;
    int64_t *out;
};

/* Add a tile of `classes` classes and at most CHUNK_ROWS rows, so that int32 holds the
   sums. A load of columns serves all classes, and a broadcast pair of `left` serves two
   registers of columns. */
INLINE void add_tile(const int classes, const int in_place, const struct tile *t)
{
    ints low[TILE_CLASSES], high[TILE_CLASSES];
    UNROLL for (int c = 0; c < classes; c++) {
        low[c] = high[c] = all_lanes(0);
        for (int j = 0; j < COLUMNS; j += 8) /* lines of 64 bytes */
            __builtin_prefetch(t->out + c * t->out_step + j, 1);
    }
    for (int64_t i = 0; i < t->k; i += 2) {
        const int16_t *right = t->right + i * t->right_step;
        ints a, b;
        if (in_place) { /* rows can lie pages apart, so processors do not prefetch them */
            __builtin_prefetch(right + AHEAD);
            __builtin_prefetch(right + t->right_step + AHEAD);
            read_pairs(right, right + t->right_step, &a, &b);
        } else {
            a = load(right);
            b = load(right + COLUMNS);
        }
        UNROLL for (int c = 0; c < classes; c++) {
            int32_t pair;
            memcpy(&pair, t->left + c * t->left_step + i, sizeof pair);
            low[c] = add_pairs(low[c], all_lanes(pair), a);
            high[c] = add_pairs(high[c], all_lanes(pair), b);
        }
    }
    UNROLL for (int c = 0; c < classes; c++) {
        restore_order(&low[c], &high[c]);
        add_to(t->out + c * t->out_step, low[c]);
        add_to(t->out + c * t->out_step + LANES, high[c]);
    }
}

/* Add a tile of any number of classes up to TILE_CLASSES: sums in registers need a
   number that the compiler knows. */
#define CASE(n) \
    case n: \
        in_place ? add_tile(n, 1, t) : add_tile(n, 0, t); \
        break;
static void add_classes(int64_t classes, int in_place, const struct tile *t)
{
    switch (classes) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TILE_CLASSES > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

/* Add tiles for all t.k rows, CHUNK_ROWS at a time, to `columns` columns of the sum. */
static void add_chunks(int64_t classes, int in_place, struct tile t, int64_t columns)
{
    int64_t edge[TILE_CLASSES][COLUMNS];
    int64_t *out = t.out, step = t.out_step, k = t.k;
    const int64_t chunk = CHUNK_ROWS; /* int32 cannot hold the sums of more rows */
    if (columns < COLUMNS) { /* a tile writes whole registers */
        memset(edge, 0, sizeof edge);
        t.out = edge[0];
        t.out_step = COLUMNS;
    }
    for (; k > 0; k -= chunk) {
        t.k = SMALLER(k, chunk);
        add_classes(classes, in_place, &t);
        t.left += chunk;
        t.right += chunk * t.right_step;
    }
    if (columns < COLUMNS)
        for (int64_t c = 0; c < classes; c++)
            for (int64_t j = 0; j < columns; j++)
                out[c * step + j] += edge[c][j];
}

/* Copy at most COLUMNS columns of k rows to a panel of pairs, with zeros for missing
   columns, and for the row that an odd k lacks. */
static void pack_panel(const int16_t *rows, int64_t k, int64_t step, int64_t columns,
                       int16_t *panel)
{
    int16_t edge[2][COLUMNS] = {{0}};
    for (int64_t i = 0; i < k; i += 2, panel += 2 * COLUMNS) {
        const int16_t *one = rows + i * step, *other = one + step;
        ints low, high;
        if (columns < COLUMNS || i + 1 == k) {
            memcpy(edge[0], one, 2 * columns);
            if (i + 1 < k)
                memcpy(edge[1], other, 2 * columns);
            else
                memset(edge[1], 0, sizeof edge[1]);
            one = edge[0];
            other = edge[1];
        }
        read_pairs(one, other, &low, &high);
        memcpy(panel, &low, sizeof low);
        memcpy(panel + COLUMNS, &high, sizeof high);
    }
}

/* Add sum_i left_i rows_iᵀ, for k rows, to out (m, width). The rows of `rows` and of `out`
   lie `step` entries apart. If `upper`, only the upper triangle of `out` is defined.

   left (m, PANEL_ROWS) has classes first. Its columns from k on do not change the sum. */
static void add_panel(const int16_t *left, int64_t m, const int16_t *rows, int64_t k,
                      int64_t width, int64_t step, int upper, int64_t *out)
{
    int16_t panel[PANEL_ROWS * COLUMNS] __attribute__((aligned(64)));
    for (int64_t v = 0; v < width; v += COLUMNS) {
        int64_t columns = SMALLER(COLUMNS, width - v);
        int64_t end = upper ? SMALLER(m, v + columns) : m;
        /* a copy of rows that are read for one tile would cost more than it saves */
        int in_place = end <= TILE_CLASSES && columns == COLUMNS && k % 2 == 0;
        if (!in_place)
            pack_panel(rows + v, k, step, columns, panel);
        for (int64_t j = 0; j < end; j += TILE_CLASSES) {
            struct tile t = {left + j * PANEL_ROWS, panel, PANEL_ROWS, COLUMNS, k, step,
                             out + j * step + v};
            if (in_place) {
                t.right = rows + v;
                t.right_step = step;
            }
            add_chunks(SMALLER(TILE_CLASSES, end - j), in_place, t, columns);
        }
    }
}

/* Add sum_i left_i rows_iᵀ, for at most PANEL_ROWS rows (k, d), to out (m, d). */
void add_residuals(const int16_t *left, int64_t m, const int16_t *rows, int64_t k,
                   int64_t d, int64_t *out)
{
    for (int64_t j = 0; j < m; j += BLOCK_CLASSES)
        add_panel(left + j * PANEL_ROWS, SMALLER(BLOCK_CLASSES, m - j), rows, k, d, d, 0,
                  out + j * d);
}

/* Transpose eight rows and COLUMNS columns to `left`, as in `transpose`. */
INLINE void transpose_block(const int16_t *rows, int64_t step, int16_t *left)
{
    ints pairs[2][4], turned[4];
    for (int p = 0; p < 4; p++, rows += 2 * step)
        read_pairs(rows, rows + step, &pairs[0][p], &pairs[1][p]);
    for (int half = 0; half < 2; half++) {
        ints *p = pairs[half];
        ints a = LOW(32, p[0], p[1]), b = HIGH(32, p[0], p[1]);
        ints c = LOW(32, p[2], p[3]), d = HIGH(32, p[2], p[3]);
        turned[0] = LOW(64, a, c);
        turned[1] = HIGH(64, a, c);
        turned[2] = LOW(64, b, d);
        turned[3] = HIGH(64, b, d);
        /* each 128 bits have one column's eight rows */
        for (int j = 0; j < COLUMNS; j += 8)
            for (int c = 0; c < 4; c++)
                memcpy(left + (j + 4 * half + c) * PANEL_ROWS,
                       (char *)&turned[c] + 2 * j, 16);
    }
}

/* Write columns of rows (k, step) to left (columns, PANEL_ROWS), columns first. */
static void transpose(const int16_t *rows, int64_t k, int64_t step, int64_t columns,
                      int16_t *left)
{
    for (int64_t i = 0; i < k; i += 8)
        for (int64_t j = 0; j < columns; j += COLUMNS) {
            const int16_t *own = rows + i * step + j;
            int16_t *turned = left + j * PANEL_ROWS + i;
            int64_t height = SMALLER(8, k - i), width = SMALLER(COLUMNS, columns - j);
            if (height == 8 && width == COLUMNS)
                transpose_block(own, step, turned);
            else
                for (int64_t c = 0; c < width; c++)
                    for (int64_t r = 0; r < height; r++)
                        turned[c * PANEL_ROWS + r] = own[r * step + c];
        }
}

/* Add sum_i row_i row_iᵀ of rows (k, d) to the upper triangle of out (d, d).

   Entries below the diagonal are unspecified. Return 0, or 1 without memory. */
int add_gram(const int16_t *rows, int64_t k, int64_t d, int64_t *out)
{
    int16_t *left = lines(2 * BLOCK_CLASSES * PANEL_ROWS);
    if (!left)
        return 1;
    for (int64_t i = 0; i < k; i += PANEL_ROWS)
        for (int64_t j = 0; j < d; j += BLOCK_CLASSES) {
            int64_t n = SMALLER(PANEL_ROWS, k - i), m = SMALLER(BLOCK_CLASSES, d - j);
            const int16_t *own = rows + i * d + j;
            transpose(own, n, d, m, left);
            add_panel(left, m, own, n, d - j, d, 1, out + j * d + j);
        }
    free(left);
    return 0;
}

/* Add row used_i of rows (k, d) to row classes_i of `out`, for each i below n. Return 0.

   `used` must be sorted by class, because four rows of one class are added at a time. */
int add_class_rows(const int16_t *rows, int64_t k, int64_t d, const int64_t *used,
                   const int64_t *classes, int64_t n, int64_t *out)
{
    for (int64_t i = 0; i < n;) {
        int64_t *total = out + classes[i] * d;
        const int16_t *a = rows + used[i] * d;
        if (i + 3 < n && classes[i + 3] == classes[i]) {
            const int16_t *b = rows + used[i + 1] * d;
            const int16_t *c = rows + used[i + 2] * d, *e = rows + used[i + 3] * d;
            for (int64_t j = 0; j < d; j++)
                total[j] += (a[j] + b[j]) + (c[j] + e[j]);
            i += 4;
        } else {
            for (int64_t j = 0; j < d; j++)
                total[j] += a[j];
            i++;
        }
    }
    return 0;
}
