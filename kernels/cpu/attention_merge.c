#include <math.h>
#include "../attention.h"
#include "../check_ops.h"

void attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse) {
    check_attention_merge(merged, lse, out, part, part_lse);
    const int64_t NH = lse.dim[1], T = lse.dim[2], HS = out.dim[2] / NH;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < tensor_rows(lse) * T; row++) {          /* row of lse: (b, h, t) */
        const int64_t h = row / T % NH, i = row / T / NH * T + row % T;
        float *m = (float *)merged.data + i * merged.pitch + h * HS;
        float *l = (float *)lse.data + row / T * lse.pitch + row % T;
        const float *o = (const float *)out.data + i * out.pitch + h * HS;
        const float *p = (const float *)part.data + i * part.pitch + h * HS;
        const float pl = ((const float *)part_lse.data)[row / T * part_lse.pitch + row % T];
        if (pl == -INFINITY) {
            for (int64_t c = 0; c < HS; c++) m[c] = o[c];
            continue;
        }
        const float row_max = fmaxf(*l, pl), weight = expf(*l - row_max), part_weight = expf(pl - row_max);
        const float total = weight + part_weight;
        for (int64_t c = 0; c < HS; c++) m[c] = (weight * o[c] + part_weight * p[c]) / total;
        *l = row_max + logf(total);
    }
}
