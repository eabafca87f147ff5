/* The key/value cache: a copy of rows, 16 bytes a thread where they are aligned. */
#include <assert.h>
#include "common.cuh"
extern "C" {
#include "../cache.h"
}

enum { THREADS = 256 };

template <class Part> __global__ void __launch_bounds__(THREADS)
append_kernel(char *cache, int64_t cache_pitch, int64_t T, const char *rows, int64_t rows_pitch, int64_t n,
              int64_t parts, int64_t count, const int *position) {
    wait_for_previous();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / parts, part = i % parts;
    if (i >= count) return;
    assert(*position >= 0 && *position + n <= T && "cache: a position outside of the cache");
    ((Part *)(cache + (row / n * T + *position + row % n) * cache_pitch))[part] =
        ((const Part *)(rows + row * rows_pitch))[part];
}

void cache_append(Tensor cache, Tensor rows, Tensor position) {
    check_cache_append(cache, rows, position);
    const bool aligned = rows_aligned(cache) && rows_aligned(rows);
    const int64_t bytes = (int64_t)dtype_bytes(rows.dtype), part_bytes = aligned ? 16 : bytes;
    const int64_t parts = rows.dim[2] * bytes / part_bytes, count = tensor_rows(rows) * parts;
    const auto kernel = aligned ? append_kernel<uint4> : bytes == 4 ? append_kernel<float> : append_kernel<uint16_t>;
    LAUNCH_EARLY(kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, (char *)cache.data, cache.pitch * bytes,
                 cache.dim[1], (const char *)rows.data, rows.pitch * bytes, rows.dim[1], parts, count,
                 (const int *)position.data);
}
