/* vecmath.h - Functions without branches, so that a plain loop over them becomes vector code, and sums over
   a row in several lanes in a fixed order. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^n by its bits; -126 <= n <= 127. */
static inline float vec_power_of_two(int32_t n) {
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* x = n ln 2 + r with |r| <= ln(2)/2: returns exp(r) - 1. |x| < 2^15. Adding 1.5 * 2^23 rounds to an integer, which the
   low bits of the sum then hold. ln 2 is split into 15 bits, which times n is exact, and the rest. */
static inline float vec_exp_reduced(float x, int32_t *n) {
    const float magic = 12582912.0f, shifted = x * 1.44269504f + magic, whole = shifted - magic;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    *n = (int32_t)(bits - 0x4B400000u);
    const float r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
    /* r + r^2 p(r): the minimax polynomial of relative error 3.1e-9 */
    float p = 0.00138206338f;
    p = p * r + 0.00836867373f;
    p = p * r + 0.0416682661f;
    p = p * r + 0.166665211f;
    p = p * r + 0.49999994f;
    return p * (r * r) + r;
}

/* exp(x) to 1.01 ulp; 0 where it would be denormal (x < -87.3365), infinity above 88.7228, NaN from NaN. */
static inline float vec_exp(float x) {
    int32_t n;
    const float low = x < -87.3365f ? -87.3365f : x, clamped = low > 89.0f ? 89.0f : low;
    const float q = vec_exp_reduced(clamped, &n);
    const int32_t half = n >> 1;        /* 2^128 is not a float: two factors */
    const float y = (q + 1.0f) * vec_power_of_two(half) * vec_power_of_two(n - half);
    return x < -87.3365f ? 0.0f : y;
}

/* tanh(x) = e / (e + 2) with e = exp(2x) - 1, which keeps its digits near zero; 2.6 ulp. */
static inline float vec_tanh(float x) {
    int32_t n;
    const float a = fabsf(x), clamped = a > 10.0f ? 10.0f : a;      /* tanh(10) rounds to 1 */
    const float q = vec_exp_reduced(2.0f * clamped, &n), power = vec_power_of_two(n);
    const float e = power * q + (power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}

enum { VEC_LANES = 32 };    /* partial sums: two vectors of the widest instruction set */

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Maximum of count >= 1 numbers; NaNs may be ignored. */
static inline float vec_max(const float *x, int64_t count) {
    float lane[VEC_LANES], max = x[0];
    for (int j = 0; j < VEC_LANES; j++) lane[j] = x[0];
    int64_t i = 0;
    for (; i + VEC_LANES <= count; i += VEC_LANES)
        for (int j = 0; j < VEC_LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; i + j < count; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; j < VEC_LANES; j++) max = lane[j] > max ? lane[j] : max;
    return max;
}

/* Sum of the expression for c in [0,n), in lanes that are added pairwise at the end: vectorises without -ffast-math,
   and the rounding errors of a lane are those of a sum as many times shorter. */
#define LANE_SUM(total, lanes, n, expression) do { \
        float lane[lanes] = {0}; \
        int64_t i = 0; \
        for (; i + (lanes) <= (n); i += (lanes)) \
            for (int64_t j = 0; j < (lanes); j++) { const int64_t c = i + j; lane[j] += (expression); } \
        for (int64_t c = i; c < (n); c++) lane[c - i] += (expression); \
        for (int64_t half = (lanes) / 2; half; half /= 2) \
            for (int64_t j = 0; j < half; j++) lane[j] += lane[j + half]; \
        total = lane[0]; \
    } while (0)

/* x = exp(x - shift); returns the sum. */
static inline float vec_exp_row(float *x, int64_t count, float shift) {
    float sum;
    LANE_SUM(sum, VEC_LANES, count, x[c] = vec_exp(x[c] - shift));
    return sum;
}

static inline float vec_dot(const float *x, const float *y, int64_t count) {
    float sum;
    LANE_SUM(sum, VEC_LANES, count, x[c] * y[c]);
    return sum;
}
