#include "../attention.h"
#include <string.h>
#include "../check_ops.h"

void cache_append(Tensor cache, Tensor rows, Tensor position) {
    check_cache_append(cache, rows, position);
    const int64_t n = rows.dim[1], first = *(const int32_t *)position.data, C = rows.dim[2];
    REQUIRE(first >= 0 && first + n <= cache.dim[1], "cache: rows %lld .. %lld, want 0 .. %lld", (long long)first,
            (long long)(first + n - 1), (long long)cache.dim[1] - 1);
    for (int64_t r = 0; r < tensor_rows(rows); r++)
        memcpy((float *)cache.data + (r / n * cache.dim[1] + first + r % n) * cache.pitch,
               (const float *)rows.data + r * rows.pitch, sizeof(float) * (size_t)C);
}
