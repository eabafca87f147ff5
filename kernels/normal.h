/* normal.h - Normally distributed numbers from Philox, by Box and Muller 1958. The same bits on every backend, in host
   code and kernels, with any libm: every operation is an IEEE one, and where a product meets a sum it is an explicit
   fma. The series are Taylor's; the first term left out is below 2^-54 of the result. */
#pragma once
#include <math.h>
#include <string.h>
#include "philox.h"
#include "tensor.h"

/* [0,1), 53 bits, from the upper bits of two words */
PHILOX_FUNCTION double uniform_of(uint32_t low, uint32_t high) {
    return (double)((low | (uint64_t)high << 32) >> 11) * 0x1p-53;
}

/* ln u for normal u > 0. u = 2^k m with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh s with s = (m - 1) / (m + 1). */
PHILOX_FUNCTION double log_of(double u) {
    int64_t bits;
    memcpy(&bits, &u, sizeof bits);
    const int64_t k = (bits - 0x3fe6a09e667f3bcd) >> 52;            /* the bits of sqrt(1/2) */
    bits -= k * (INT64_C(1) << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 0;
    for (int n = 21; n > 0; n -= 2) p = fma(p, z, 1.0 / n);
    return fma((double)(int32_t)k, 0x1.62e42fefa39efp-1, 2 * s * p);
}

/* cos(2 pi v) for v in [0,1): quarter turns, and the angle a of at most 1/8 turn that is left */
PHILOX_FUNCTION double cos_turns(double v) {
    const int32_t quarter = (int32_t)fma(v, 4.0, 0.5);
    const double a = 0x1.921fb54442d18p+2 * fma((double)quarter, -0.25, v), z = a * a;
    const double sines[] = { -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040,
                             1.0 / 120, -1.0 / 6, 1 };
    const double cosines[] = { 1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320,
                               -1.0 / 720, 1.0 / 24, -1.0 / 2, 1 };
    double sine = 0, cosine = 0;
    for (int i = 0; i < 8; i++) sine = fma(sine, z, sines[i]);
    for (int i = 0; i < 9; i++) cosine = fma(cosine, z, cosines[i]);
    const double value = quarter & 1 ? sine * a : cosine;
    return (quarter + 1) & 2 ? -value : value;
}

/* Mean 0, deviation 1, at most 8.6 in size: 1 - [0,1) is never 0. */
PHILOX_FUNCTION double normal_of(Random128 r) {
    return sqrt(-2 * log_of(1 - uniform_of(r.word[0], r.word[1]))) * cos_turns(uniform_of(r.word[2], r.word[3]));
}

/* t F32, packed, on the device: element i = mean + deviation * normal_of(Philox4x32-10 of the counter { i, i >> 32,
   word2, word3 } and the key), in double, rounded once. */
void fill_normal(Tensor t, double mean, double deviation, uint64_t key, uint32_t word2, uint32_t word3);
