/* GELU, elementwise: 16 bytes of each operand a thread. With s(z) = 1 / (1 + exp(-z)), (1 + tanh u) / 2 = s(2u): one
   exponential and one reciprocal an element. An H200 issues about 31 instructions, 4 of them to the special function
   unit, in the time that two bf16 take from and to memory: a tanhf (about 25, with a branch) would fill that budget,
   tanh.approx would not keep 8 bits (error 2^-11 of 1, but 1 + tanh cancels on the left). */
#include "common.cuh"
extern "C" {
#include "../gelu.h"
#include "../profile.h"
}

enum { THREADS = 256 };

static constexpr float SCALE = 0.7978845608028654f, CUBE = 0.044715f, LOG2E = 1.4426950408889634f;     /* sqrt(2/pi) */

/* Of 2u: e = exp(-|2u|), at most 1, so that nothing overflows and neither tail cancels; s = 1 / (1 + e). */
struct Sigmoid { float e, s; };
template <class T> __device__ inline Sigmoid sigmoid_of(float x);

template <> __device__ inline Sigmoid sigmoid_of<float>(float x) {
    const float e = expf(fabsf(x) * (-2 * SCALE - 2 * SCALE * CUBE * (x * x)));
    return { e, 1.0f / (1.0f + e) };
}

/* ex2.approx and rcp.approx err by 2^-22; the exponent, below 126 where e is not 0, carries three roundings of 2^-24:
   together under 2^-15 of e, a 64th of the rounding to bf16. */
template <> __device__ inline Sigmoid sigmoid_of<bf16>(float x) {
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e)
        : "f"(fabsf(x) * (-2 * SCALE * LOG2E - 2 * SCALE * CUBE * LOG2E * (x * x))));
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
    const float du = 2 * SCALE + 6 * SCALE * CUBE * (x * x);             /* of 2u; may overflow where the tail is 0 */
    return (x < 0 ? g.e * g.s : g.s) + (tail > 0 ? x * (tail * du) : 0.0f);
}

/* packs: all operands are aligned to 16 bytes. The last thread may have less than a pack. */
template <class T> __global__ void __launch_bounds__(THREADS)
gelu_forward_kernel(T *y, const T *x, int64_t count, bool packs) {
    constexpr int SIZE = Pack<T>::SIZE;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * SIZE;
    if (packs && i + SIZE <= count) {
        float f[SIZE];
        Pack<T>::load(x + i).to_float(f);
        #pragma unroll
        for (int k = 0; k < SIZE; k++) f[k] = gelu<T>(f[k]);
        Pack<T>::from_float(f).store(y + i);
    } else {
        for (int64_t k = i; k < i + SIZE && k < count; k++) y[k] = from_float<T>(gelu<T>(to_float(x[k])));
    }
}

template <class T> __global__ void __launch_bounds__(THREADS)
gelu_backward_kernel(T *dx, const T *dy, const T *x, int64_t count, bool packs) {
    constexpr int SIZE = Pack<T>::SIZE;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * SIZE;
    if (packs && i + SIZE <= count) {
        const Pack<T> x_pack = Pack<T>::load_once(x + i), dy_pack = Pack<T>::load(dy + i);
        float f[SIZE], d[SIZE];
        x_pack.to_float(f);
        dy_pack.to_float(d);
        #pragma unroll
        for (int k = 0; k < SIZE; k++) d[k] *= gelu_slope<T>(f[k]);
        Pack<T>::from_float(d).store(dx + i);
    } else {
        for (int64_t k = i; k < i + SIZE && k < count; k++)
            dx[k] = from_float<T>(to_float(dy[k]) * gelu_slope<T>(to_float(x[k])));
    }
}

static bool on_16_bytes(Tensor t) { return (uintptr_t)t.data % 16 == 0; }

template <class T> static void forward(Tensor y, Tensor x) {
    const int64_t count = tensor_count(x);
    LAUNCH(gelu_forward_kernel<T>, (unsigned)ceil_div(count, THREADS * Pack<T>::SIZE), THREADS, 0,
           (T *)y.data, (const T *)x.data, count, on_16_bytes(y) && on_16_bytes(x));
}

template <class T> static void backward(Tensor dx, Tensor dy, Tensor x) {
    const int64_t count = tensor_count(x);
    LAUNCH(gelu_backward_kernel<T>, (unsigned)ceil_div(count, THREADS * Pack<T>::SIZE), THREADS, 0, (T *)dx.data,
           (const T *)dy.data, (const T *)x.data, count, on_16_bytes(dx) && on_16_bytes(dy) && on_16_bytes(x));
}

void gelu_forward(Tensor y, Tensor x) {
    check_gelu("gelu", y, x);
    op_begin("gelu", op_bytes(2, y, x), 0);
    if (x.dtype == BF16) forward<bf16>(y, x);
    else                 forward<float>(y, x);
    op_end();
}

void gelu_backward(Tensor dx, Tensor dy, Tensor x) {
    check_gelu("gelu backward", dx, x);
    check_gelu("gelu backward", dy, x);
    op_begin("gelu backward", op_bytes(3, dx, dy, x), 0);
    if (x.dtype == BF16) backward<bf16>(dx, dy, x);
    else                 backward<float>(dx, dy, x);
    op_end();
}
