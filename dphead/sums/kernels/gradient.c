/* Softmax gradients, by chunks of rows: scores, residuals and products.

   `Gradient.factors` defines the same integers with whole arrays, and `sums.verified`
   compares sums of test rows. Inner loops run over the rows of a chunk, so that the
   compiler can vectorize them. */
#include "kernels.h"
#include <math.h>

#define POWER_TABLE_SIZE 2048
#define MAX_POWER (16 * POWER_TABLE_SIZE - 1)
#define PROBABILITY_SCALE 65536
#define FEW_CLASSES 16 /* sums of so few classes stay in a cache; chosen */

/* Replace each score by `predictions.power` of its distance from the row's largest score,
   and add the powers to `sums`. */
static void to_powers(int32_t *z, int64_t m, int64_t k, const double *restrict rate,
                      const int32_t *restrict table, int64_t *restrict sums)
{
    int32_t top[CHUNK_ROWS];
    for (int64_t i = 0; i < k; i++)
        top[i] = INT32_MIN;
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = 0; i < k; i++)
            top[i] = LARGER(top[i], z[j * CHUNK_ROWS + i]);
    for (int64_t j = 0; j < m; j++) {
        int32_t *restrict own = z + j * CHUNK_ROWS;
        for (int64_t i = 0; i < k; i++) {
            /* float64 holds the distance exactly; the product is rounded once */
            double steps = ((double)top[i] - (double)own[i]) * rate[i];
            uint32_t exponent = (uint32_t)(int32_t)SMALLER(steps, (double)MAX_POWER);
            own[i] = table[exponent % POWER_TABLE_SIZE] >> exponent / POWER_TABLE_SIZE;
            sums[i] += own[i];
        }
    }
}

/* Replace powers by predictions minus the one-hot class, and add their squares. */
static void to_differences(int32_t *z, int64_t m, int64_t k, const int32_t *restrict y,
                           const double *restrict share, int64_t *restrict squares)
{
    for (int64_t j = 0; j < m; j++) {
        int32_t *restrict own = z + j * CHUNK_ROWS;
        for (int64_t i = 0; i < k; i++) {
            double rounded = (own[i] * share[i] + ROUNDING_SHIFT) - ROUNDING_SHIFT;
            int32_t r = (int32_t)rounded - (j == y[i] ? PROBABILITY_SCALE : 0);
            own[i] = y[i] >= 0 ? r : 0;
            squares[i] += (int64_t)own[i] * own[i];
        }
    }
}

/* Write rounded residuals z times each row's factor to l, and add their squares. */
static void round_residuals(const int32_t *z, int64_t m, int64_t k, const double *factor,
                            int16_t *l, int64_t step, int64_t *restrict squares)
{
    for (int64_t j = 0; j < m; j++) {
        const int32_t *restrict own = z + j * CHUNK_ROWS;
        int16_t *restrict final = l + j * step;
        for (int64_t i = 0; i < k; i++) {
            double rounded = (own[i] * factor[i] + ROUNDING_SHIFT) - ROUNDING_SHIFT;
            final[i] = (int16_t)(int32_t)rounded;
            /* the square of the stored int16, so that an overflow would be seen */
            squares[i] += (int64_t)final[i] * final[i];
        }
    }
}

/* Round a row's residual toward zero instead. Set it to zero if it is still too long. */
static void truncate_residual(const int32_t *z, int64_t m, double factor, int16_t *l,
                              int64_t step)
{
    int64_t squared = 0;
    for (int64_t j = 0; j < m; j++) {
        int16_t *final = l + j * step;
        *final = (int16_t)(int32_t)(z[j * CHUNK_ROWS] * factor);
        squared += (int64_t)*final * *final;
    }
    for (int64_t j = 0; squared > RADIUS * RADIUS && j < m; j++)
        l[j * step] = 0;
}

/* Turn scores z (m, CHUNK_ROWS) of k rows into clipped residuals, or 0 if y < 0.

   `rate` has the table entries per unit of each row's scores, and `table` the powers of
   `predictions.powers_of_two`. A row's residual is multiplied by the row's `factor`, but
   clipped to the length `longest`, which is inf if the loss bounds residuals. l (m, step)
   gets the residuals, and z holds intermediate results. */
void residuals(int32_t *z, int64_t m, int64_t k, const int32_t *y, const double *rate,
               const double *factor, double longest, const int32_t *table, int16_t *l,
               int64_t step)
{
    /* sums of powers, then of squares; int64, because one square can be 2**32 */
    int64_t sums[CHUNK_ROWS] = {0};
    double share[CHUNK_ROWS];
    to_powers(z, m, k, rate, table, sums);
    /* one division for each row, then a product for each class, as the reference */
    for (int64_t i = 0; i < k; i++) {
        share[i] = PROBABILITY_SCALE / (double)sums[i];
        sums[i] = 0;
    }
    to_differences(z, m, k, y, share, sums);
    for (int64_t i = 0; i < k; i++) {
        double clipped = longest / LARGER(sqrt((double)sums[i]), 1.0);
        share[i] = y[i] >= 0 ? SMALLER(factor[i], clipped) : 0.0;
        sums[i] = 0;
    }
    round_residuals(z, m, k, share, l, step, sums);
    for (int64_t i = 0; i < k; i++)
        if (sums[i] > RADIUS * RADIUS)
            truncate_residual(z + i, m, share[i], l + i, step);
}

/* Add the softmax gradients of rows (k, d) to out (m, d).

   y has a class for each row, or -1 for rows that add zero. weights (m, d) are the head's.
   `residuals` explains the other arguments. Return 0, or 1 without memory. */
int add_gradient(const int16_t *rows, int64_t k, int64_t d, const int32_t *y,
                 const double *rate, const double *factor, const int16_t *weights,
                 int64_t m, double longest, const int32_t *table, int64_t *out)
{
    int16_t *packed = lines(2 * m * packed_width(d));
    int32_t *z = lines(4 * m * CHUNK_ROWS);
    int16_t *l = lines(2 * m * PANEL_ROWS);
    int failed = !packed || !z || !l;
    if (!failed)
        pack_weights(weights, m, d, packed);
    /* large sums are read and written once for several chunks */
    int64_t most = m > FEW_CLASSES ? PANEL_ROWS : CHUNK_ROWS;
    for (int64_t i = 0; !failed && i < k; i += most) {
        int64_t n = SMALLER(most, k - i);
        for (int64_t c = 0; c < n; c += CHUNK_ROWS) {
            int64_t at = i + c, own = SMALLER(CHUNK_ROWS, n - c);
            score(rows + at * d, own, d, packed, m, z);
            residuals(z, m, own, y + at, rate + at, factor + at, longest, table, l + c,
                      PANEL_ROWS);
        }
        add_residuals(l, m, rows + i * d, n, d, out);
    }
    free(packed);
    free(z);
    free(l);
    return failed;
}
