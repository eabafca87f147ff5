#include "gemv.h"
#include "vecmath.h"

enum { MAX_ROWS = 4 };      /* the GEMMs are faster from about 5 on */

int gemv(const Gemm *g) {
    if (g->M > MAX_ROWS || g->a.layout != ROW_MAJOR || g->b.layout != COLUMN_MAJOR) return 0;
    const float *bias = g->bias;
    #pragma omp parallel for schedule(static) if ((double)g->N * (double)g->K > 3e4)
    for (int64_t n = 0; n < g->N; n++) {
        const float *column = (const float *)g->b.data + n * g->b.pitch;
        for (int64_t m = 0; m < g->M; m++) {
            float *c = (float *)g->c + m * g->c_pitch + n;
            const float sum = vec_dot((const float *)g->a.data + m * g->a.pitch, column, g->K) + (bias ? bias[n] : 0);
            *c = g->into == ACCUMULATE ? *c + sum : sum;
        }
    }
    return 1;
}
