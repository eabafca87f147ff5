/* gelu.cuh - The GELU of a number and its slope. With s(z) = 1 / (1 + exp(-z)), (1 + tanh u) / 2 = s(2u):
   one exponential and one reciprocal an element. An H200 issues about 31 instructions, 4 of them to the special
   function unit, in the time that two bf16 take from and to memory: a tanhf (about 25, with a branch) would fill that
   budget, tanh.approx would not keep 8 bits (error 2^-11 of 1, but 1 + tanh cancels on the left). */
#pragma once
#include "ptx.cuh"

static constexpr float SCALE = 0.7978845608028654f, CUBE = 0.044715f;     /* sqrt(2/pi) */

/* For the sigmoid of 2u: e = exp(-|2u|), at most 1: nothing overflows, and neither tail cancels; s = 1 / (1 + e). */
struct Sigmoid { float e, s; };
template <class T> __device__ inline Sigmoid sigmoid_of(float x);

template <> __device__ inline Sigmoid sigmoid_of<float>(float x) {
    const float e = expf(fabsf(x) * (-2 * SCALE - 2 * SCALE * CUBE * (x * x)));
    return { e, 1.0f / (1.0f + e) };
}

/* ex2.approx and rcp.approx err by 2^-22; the exponent, below 126 where e is not 0, carries three roundings of 2^-24:
   together under 2^-15 of e, a 64th of the rounding to bf16. */
template <> __device__ inline Sigmoid sigmoid_of<bf16>(float x) {
    const float e = ex2(fabsf(x) * (-2 * SCALE * LOG2E - 2 * SCALE * CUBE * LOG2E * (x * x)));
    float s;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return { e, s };
}

template <class T> __device__ inline float gelu(float x) {
    const Sigmoid g = sigmoid_of<T>(x);
    return x * (x < 0 ? g.e * g.s : g.s);
}

template <class T> __device__ inline float gelu_slope(float x) {
    const Sigmoid g = sigmoid_of<T>(x);
    const float tail = g.e * g.s * g.s;                                  /* s(2u) s(-2u) */
    const float du = 2 * SCALE + 6 * SCALE * CUBE * (x * x);             /* d(2u)/dx; may overflow where tail is 0 */
    return (x < 0 ? g.e * g.s : g.s) + (tail > 0 ? x * (tail * du) : 0.0f);
}
