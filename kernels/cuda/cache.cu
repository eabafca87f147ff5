/* The key/value cache: a copy of rows, 16 bytes a thread. */
#include <assert.h>
#include "common.cuh"
extern "C" {
#include "../attention.h"
}

enum { THREADS = 256 };

/* Pitches in bytes; a row has `parts` of 16 bytes. */
static __global__ void __launch_bounds__(THREADS)
append_kernel(char *cache, int64_t cache_pitch, int64_t T, const char *rows, int64_t rows_pitch, int64_t n,
              int64_t parts, int64_t count, const int *position) {
    wait_for_previous();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / parts, part = i % parts;
    if (i >= count) return;
    assert(*position >= 0 && *position + n <= T && "cache: a position outside of the cache");
    ((uint4 *)(cache + (row / n * T + *position + row % n) * cache_pitch))[part] =
        ((const uint4 *)(rows + row * rows_pitch))[part];
}

void cache_append(Tensor cache, Tensor rows, Tensor position) {
    check_cache_append(cache, rows, position);
    require_aligned_rows("cache", { cache, rows });
    const int64_t bytes = (int64_t)dtype_bytes(rows.dtype);
    const int64_t parts = rows.dim[2] * bytes / 16, count = tensor_rows(rows) * parts;
    LAUNCH_EARLY(append_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cache, cache.pitch * bytes,
                 cache.dim[1], rows, rows.pitch * bytes, rows.dim[1], parts, count, position);
}
