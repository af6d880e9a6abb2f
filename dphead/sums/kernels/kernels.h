/* Registers of the instruction set that the compiler may use.

   setup.py compiles all sources once for each instruction set. Every choice in this file
   gives the same sums. Sizes marked "chosen" were not measured. */
#ifndef DPHEAD_KERNELS_H
#define DPHEAD_KERNELS_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Rows and residuals get the reference's bits because each operation is rounded to
   float64, in the order of the source (privacy/proofs/exactness.md). */
#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "dphead needs IEEE 754 arithmetic. Compile without -ffast-math."
#endif
/* A pair is one int32, with the first int16 in its low half. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The kernels are for little-endian processors. numpy sums on others."
#endif

/* Constants of dphead.privacy have its names, and a test compares them. */
#define RADIUS 4095                       /* longest integer row or residual */
#define CHUNK_ROWS 128 /* rows that int32 can add: 128 * 4095**2 < 2**31 */
/* 1.5 * 2**52: adding and subtracting it leaves the nearest whole number */
#define ROUNDING_SHIFT 6755399441055744.0

#if defined(__AVX512BW__)
#include <immintrin.h>
#define LANES 16        /* int32 numbers in a register */
#define TILE_CLASSES 12 /* two sums for each class: 24 of 32 registers */
#define SCORED_ROWS 8
#define LOW(bits, a, b) ((ints)_mm512_unpacklo_epi##bits((__m512i)(a), (__m512i)(b)))
#define HIGH(bits, a, b) ((ints)_mm512_unpackhi_epi##bits((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#define TILE_CLASSES 6 /* 12 of 16 registers */
#define SCORED_ROWS 4
#define LOW(bits, a, b) ((ints)_mm256_unpacklo_epi##bits((__m256i)(a), (__m256i)(b)))
#define HIGH(bits, a, b) ((ints)_mm256_unpackhi_epi##bits((__m256i)(a), (__m256i)(b)))
#else /* any processor: the compiler chooses the instructions */
#define LANES 4
#define TILE_CLASSES 6
#define SCORED_ROWS 4
#define LOW(bits, a, b) LOW_##bits(a, b)
#define HIGH(bits, a, b) HIGH_##bits(a, b)
#define LOW_32(a, b) ((ints){(a)[0], (b)[0], (a)[1], (b)[1]})
#define HIGH_32(a, b) ((ints){(a)[2], (b)[2], (a)[3], (b)[3]})
#define LOW_64(a, b) ((ints){(a)[0], (a)[1], (b)[0], (b)[1]})
#define HIGH_64(a, b) ((ints){(a)[2], (a)[3], (b)[2], (b)[3]})
#endif
#define SCORED_CLASSES 3    /* SCORED_ROWS sums for each */
#define COLUMNS (2 * LANES) /* int16 numbers in a register */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 12")
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int64_t longs __attribute__((vector_size(8 * LANES)));
typedef int32_t four __attribute__((vector_size(16)));

INLINE ints load(const void *from)
{
    ints lanes;
    memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

INLINE ints all_lanes(int32_t value)
{
    return value - (ints){0};
}

/* Add the two products of each pair of int16 in a and b to the sums. */
INLINE ints add_pairs(ints sums, ints a, ints b)
{
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif LANES == 16
    return sums + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif LANES == 8
    return sums + (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    ints low_a = (ints)((words)a << 16) >> 16;
    ints low_b = (ints)((words)b << 16) >> 16;
    return sums + low_a * low_b + (a >> 16) * (b >> 16);
#endif
}

/* Return memory that starts at a cache line, or NULL if memory is short. */
static inline void *lines(int64_t bytes)
{
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

/* products.c */
int64_t packed_width(int64_t d);
void pack_weights(const int16_t *weights, int64_t m, int64_t d, int16_t *packed);
void score(const int16_t *rows, int64_t k, int64_t d, const int16_t *packed, int64_t m,
           int32_t *scores);
void add_residuals(const int16_t *left, int64_t m, const int16_t *rows, int64_t k,
                   int64_t d, int64_t *out);

#define PANEL_ROWS (4 * CHUNK_ROWS) /* most rows of features that are added at once, and
                                       the row length of `left`; chosen */

#endif
