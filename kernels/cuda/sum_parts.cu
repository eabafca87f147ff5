/* sum_parts.cu - Sums the slices that a reduce-scatter by copy engines has received, in rank order (comm_nccl.c). */
#include "common.cuh"

enum { THREADS = 512 };

template <int SIZE> static __global__ void __launch_bounds__(THREADS)
sum_parts_kernel(float *sum, const float *parts, int64_t count, int part_count) {
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * SIZE;
    float total[SIZE], x[SIZE];
    if (i >= count) return;
    load_floats(total, parts + i);
    #pragma unroll 4
    for (int part = 1; part < part_count; part++) {
        load_floats(x, parts + part * count + i);
        for (int k = 0; k < SIZE; k++) total[k] += x[k];
    }
    store_floats(sum + i, total);
}

void sum_parts(float *sum, const float *parts, int64_t count, int part_count, cudaStream_t stream) {
    const bool packs = count % 4 == 0 && (uintptr_t)sum % 16 == 0 && (uintptr_t)parts % 16 == 0;
    const unsigned blocks = (unsigned)ceil_div(count, THREADS * (packs ? 4 : 1));
    if (packs) sum_parts_kernel<4><<<blocks, THREADS, 0, stream>>>(sum, parts, count, part_count);
    else       sum_parts_kernel<1><<<blocks, THREADS, 0, stream>>>(sum, parts, count, part_count);
    CUDA(cudaGetLastError());
}
