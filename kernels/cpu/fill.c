#include "../check_ops.h"
#include "../normal.h"

void fill_normal(Tensor t, double mean, double deviation, uint64_t key, uint32_t word2, uint32_t word3) {
    check_fill(t);
    const int64_t count = tensor_count(t);
    float *restrict value = t.data;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const Random128 counter = {{ (uint32_t)i, (uint32_t)(i >> 32), word2, word3 }};
        value[i] = (float)fma(deviation, normal_of(philox4x32(counter, key)), mean);
    }
}
