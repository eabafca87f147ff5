#include "gemv.h"
#include "vecmath.h"

enum { MAX_ROWS = 4,        /* the GEMMs are faster from about 5 on */
       COLUMNS = 4 };       /* of b at a time: a single dot product waits for its own sums */

/* sum[j] = vec_dot of x and the column j of b, with its bits. */
static void dots(float sum[COLUMNS], const float *x, const float *b, int64_t pitch, int64_t count) {
    float lane[COLUMNS][VEC_LANES] = {0};
    int64_t i = 0;
    for (; i + VEC_LANES <= count; i += VEC_LANES)
        for (int j = 0; j < COLUMNS; j++)
            for (int k = 0; k < VEC_LANES; k++) lane[j][k] += x[i + k] * b[j * pitch + i + k];
    for (int j = 0; j < COLUMNS; j++) {
        for (int k = 0; i + k < count; k++) lane[j][k] += x[i + k] * b[j * pitch + i + k];
        sum[j] = vec_sum_lanes(lane[j]);
    }
}

int gemv(const Gemm *g) {
    if (g->M > MAX_ROWS || g->a.layout != ROW_MAJOR || g->b.layout != COLUMN_MAJOR) return 0;
    const float *bias = g->bias;
    #pragma omp parallel for schedule(static) if ((double)g->N * (double)g->K > 3e4)
    for (int64_t first = 0; first < g->N; first += COLUMNS) {
        const float *b = (const float *)g->b.data + first * g->b.pitch;
        const int count = (int)min64(COLUMNS, g->N - first);
        for (int64_t m = 0; m < g->M; m++) {
            const float *x = (const float *)g->a.data + m * g->a.pitch;
            float *c = (float *)g->c + m * g->c_pitch + first, sum[COLUMNS];
            if (count == COLUMNS) dots(sum, x, b, g->b.pitch, g->K);
            else for (int j = 0; j < count; j++) sum[j] = vec_dot(x, b + j * g->b.pitch, g->K);
            for (int j = 0; j < count; j++) {
                if (bias) sum[j] += bias[first + j];
                c[j] = g->into == ACCUMULATE ? c[j] + sum[j] : sum[j];
            }
        }
    }
    return 1;
}
