#include "common.cuh"
extern "C" {
#include "../normal.h"
}

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS)
fill_normal_kernel(float *value, int64_t count, double mean, double deviation, uint64_t key, uint32_t word2,
                   uint32_t word3) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const Random128 counter = {{ (uint32_t)i, (uint32_t)(i >> 32), word2, word3 }};
    value[i] = (float)fma(deviation, normal_of(philox4x32(counter, key)), mean);
}

void fill_normal(Tensor t, double mean, double deviation, uint64_t key, uint32_t word2, uint32_t word3) {
    check_fill(t);
    const int64_t count = tensor_count(t);
    LAUNCH(fill_normal_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, t, count, mean, deviation, key, word2,
           word3);
}
