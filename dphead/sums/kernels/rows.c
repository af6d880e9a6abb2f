/* The integer rows of `privacy.transform`, bit for bit.

   Each row's arithmetic follows the definition: one IEEE operation on an entry at a time,
   and sums of integers. The compiler may not fuse or reorder floating-point operations. */
#include "kernels.h"
#include <math.h>

#define FINE_BITS 20             /* bits of a row's largest entry after `to_fine` */
#define SMALLEST_ENTRY 0x1p-900  /* rows with only smaller entries become zeros */
#define MOMENT_RADIUS (1 << 20)  /* longest integer row of moments */
#define MOMENT_GRID 0x1p20       /* a row's largest moment becomes this before the clip */

/* The public numbers of a `RowTransform`. A missing center or scale is NULL. */
struct transform {
    int unit;
    const double *center, *scale;
};

/* The unit of a row's whole numbers, and the sum of their squares. `squared` is -1 if the
   row is not finite. */
struct fine {
    double size;
    int64_t squared;
};

/* Return the bits of the absolute value. They sort like the values, and NaN comes last. */
INLINE int64_t size_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & INT64_MAX;
}

INLINE double from_bits(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE double rounded(double value)
{
    return (value + ROUNDING_SHIFT) - ROUNDING_SHIFT;
}

/* Return the square of a whole number below 2**31. */
INLINE int64_t square(double value)
{
    return (int64_t)(int32_t)value * (int32_t)value;
}

/* Round a row's values, in place, to whole numbers times a power of two. The whole numbers
   are at most 2**FINE_BITS. `bits` are the `size_bits` of the row's largest entry. */
static struct fine to_fine(double *values, int64_t d, int64_t bits)
{
    double largest = from_bits(bits);
    if (!(largest < INFINITY))
        return (struct fine){1.0, -1};
    if (largest < SMALLEST_ENTRY) {
        /* dividing by the power of two of such a number would overflow */
        memset(values, 0, 8 * d);
        largest = 1.0;
    }
    int exponent;
    frexp(largest, &exponent);
    double inverse = ldexp(1.0, FINE_BITS - exponent);
    int64_t squared = 0;
    for (int64_t l = 0; l < d; l++) {
        values[l] = rounded(values[l] * inverse);
        squared += square(values[l]);
    }
    return (struct fine){ldexp(1.0, exponent - FINE_BITS), squared};
}

/* Compute (values * size - center) * scale in place, one operation at a time. Return the
   `size_bits` of the largest result. */
static int64_t move(double *restrict values, int64_t d, double size,
                    const struct transform *t)
{
    const double *restrict center = t->center, *restrict scale = t->scale;
    int64_t largest = 0;
    for (int64_t l = 0; l < d; l++) {
        double value = values[l] * size;
        if (center)
            value -= center[l];
        if (scale)
            value *= scale[l];
        values[l] = value;
        largest = LARGER(largest, size_bits(value));
    }
    return largest;
}

/* Write a row to values as whole numbers, after its transform. */
static struct fine transformed(const float *restrict row, int64_t d,
                               const struct transform *t, double *restrict values)
{
    int64_t largest = 0;
    for (int64_t l = 0; l < d; l++) {
        values[l] = row[l]; /* exact: every float32 is a float64 */
        largest = LARGER(largest, size_bits(values[l]));
    }
    struct fine fine = to_fine(values, d, largest);
    if (fine.squared >= 0 && t->unit)
        fine.size = 1 / sqrt((double)LARGER(fine.squared, 1));
    if (fine.squared < 0 || !(t->center || t->scale))
        return fine;
    /* the transform moves entries off the grid: round them again */
    fine = to_fine(values, d, move(values, d, fine.size, t));
    /* unit rows that are only scaled keep their new norms */
    if (fine.squared >= 0 && t->unit && t->center)
        fine.size = 1 / sqrt((double)LARGER(fine.squared, 1));
    return fine;
}

/* How entries become integers: whether a constant is appended, whether the bound on the
   sum of squares counts it, and whether the integers are moments, int32 and not int16. */
struct rounding {
    int append, whole, moments;
    int64_t bound;
};

/* Round or truncate values * factor to q, and return the sum of squares. */
static int64_t fill(const double *restrict values, int64_t d, double factor,
                    int truncated, int moments, void *q)
{
    int16_t *restrict shorts = q;
    int32_t *restrict ints = q;
    int64_t total = 0;
    for (int64_t l = 0; l < d; l++) {
        double value = values[l] * factor;
        int32_t entry = (int32_t)(truncated ? value : rounded(value));
        if (moments)
            ints[l] = entry;
        else
            shorts[l] = (int16_t)entry;
        total += (int64_t)entry * entry; /* an entry beyond int16 is beyond the bound */
    }
    return total;
}

/* Write values * factor, and the constant, to q as whole numbers within the bound.

   If the rounded entries exceed the bound, they are truncated. If the truncated entries
   exceed it too, they are zero. */
void to_integers(const double *values, int64_t d, double factor, double constant,
                 const struct rounding *how, void *q)
{
    int16_t *last = (int16_t *)q + d;
    for (int truncated = 0; truncated < 2; truncated++) {
        int64_t total = fill(values, d, factor, truncated, how->moments, q);
        int16_t entry = (int16_t)(truncated ? constant : rounded(constant));
        if (how->append)
            *last = entry;
        if (total + (how->whole ? entry * entry : 0) <= how->bound)
            return;
    }
    memset(q, 0, (how->moments ? 4 : 2) * d);
    if (how->append && how->whole)
        *last = 0;
}

/* Write the integers of rows x (k, d) to q (k, d or d + 1), and the sizes of their units.

   If `whole`, the rows are direction rows of length `length`, with the constant b.
   Otherwise, rows are clipped to `length` units of size b, with the constant's entry
   `last`. Return 0, or 1 without memory. */
int round_rows(const float *x, int64_t k, int64_t d, int unit, const double *center,
               const double *scale, const struct rounding *how, double length, double b,
               double last, int16_t *q, double *sizes)
{
    struct transform t = {unit, center, scale};
    double *values = lines(8 * d); /* one row at a time, which stays in a cache */
    int64_t width = d + how->append;
    for (int64_t i = 0; values && i < k; i++) {
        struct fine fine = transformed(x + i * d, d, &t, values);
        double norm = fine.size * sqrt((double)LARGER(fine.squared, 0));
        double total = sqrt(norm * norm + b * b);
        double size = !how->whole ? b : total > 0 ? total / length : 1.0;
        memset(q + i * width, 0, 2 * width);
        sizes[i] = 0;
        if (fine.squared < 0 || !(size < INFINITY)) /* true for NaN too */
            continue;
        double factor = fine.size / size;
        double longest = length / sqrt((double)LARGER(fine.squared, 1));
        if (!how->whole && longest < factor)
            factor = longest; /* clipped */
        to_integers(values, d, factor, how->whole ? b / size : last, how, q + i * width);
        sizes[i] = size;
    }
    free(values);
    return !values;
}

/* Write the integer moments of rows x (k, d) to q (k, d). Each feature is a channel.

   sizes (k,) gets 1, or 0 for a row without finite moments. `power` is 1 or 2, `step` the
   size of one unit of q, and `longest` the length that rows of q are clipped to. Return 0,
   or 1 without memory. */
int round_moments(const float *x, int64_t k, int64_t d, int unit, const double *center,
                  const double *scale, int power, double step, double longest, int32_t *q,
                  double *sizes)
{
    struct transform t = {unit, center, scale};
    struct rounding how = {0, 0, 1, (int64_t)MOMENT_RADIUS * MOMENT_RADIUS};
    double *values = lines(8 * d);
    for (int64_t i = 0; values && i < k; i++) {
        struct fine fine = transformed(x + i * d, d, &t, values);
        memset(q + i * d, 0, 4 * d);
        sizes[i] = 0;
        if (fine.squared < 0)
            continue;
        double size = power == 2 ? fine.size * fine.size : fine.size;
        int64_t bits = 0, squared = 0;
        for (int64_t l = 0; l < d; l++) {
            if (power == 2)
                values[l] *= values[l]; /* whole and below 2**53, so exact */
            bits = LARGER(bits, size_bits(values[l]));
        }
        double largest = LARGER(from_bits(bits), 1.0);
        for (int64_t l = 0; l < d; l++) {
            values[l] = rounded(values[l] / largest * MOMENT_GRID);
            squared += square(values[l]);
        }
        double norm = sqrt((double)squared);
        double factor = size * largest / MOMENT_GRID / step;
        double clipped = longest / LARGER(norm, 1.0);
        factor = clipped < factor ? clipped : factor; /* NaN stays NaN */
        if (!(factor < INFINITY))
            continue;
        to_integers(values, d, factor, 0.0, &how, q + i * d);
        sizes[i] = 1;
    }
    free(values);
    return !values;
}

/* Write the norms of transformed rows x (k, d), 0 for rows that are not finite. Return 0,
   or 1 without memory. */
int row_norms(const float *x, int64_t k, int64_t d, int unit, const double *center,
              const double *scale, double *norms)
{
    struct transform t = {unit, center, scale};
    double *values = lines(8 * d);
    for (int64_t i = 0; values && i < k; i++) {
        struct fine fine = transformed(x + i * d, d, &t, values);
        norms[i] = fine.size * sqrt((double)LARGER(fine.squared, 0));
    }
    free(values);
    return !values;
}
