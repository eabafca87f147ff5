/* gemm.c - GEMM: c is cut into strips of columns and these into tiles of rows, and
   each thread takes an equal run of tiles, strip after strip. Each thread packs its own copy of a strip of b: at most
   two strips are packed twice, which costs less than waiting for, and fetching, what another core has packed. */
#include "tile.h"
#include "vecmath.h"

const char *gemm_name(void) { return "train_gpt"; }

enum { MAX_ROWS = 4 };       /* the GEMM below is faster from about 5 on */

/* A GEMM of a few rows, bound by reading b once: a dot product for each element of c. Returns 0, having done nothing,
   where M is large or the columns of b are not contiguous, as weights are in a forward pass. */
static int gemv(const Gemm *g) {
    if (g->M > MAX_ROWS || g->a.layout != ROW_MAJOR || g->b.layout != COLUMN_MAJOR) return 0;
    const float *bias = g->bias;
    #pragma omp parallel for schedule(static) if ((double)g->N * (double)g->K > 3e4)
    for (int64_t n = 0; n < g->N; n++)
        for (int64_t m = 0; m < g->M; m++) {
            const float *a = (const float *)g->a.data + m * g->a.pitch, *b = (const float *)g->b.data + n * g->b.pitch;
            float *c = (float *)g->c + m * g->c_pitch + n;
            const float sum = vec_dot(a, b, g->K) + (bias ? bias[n] : 0);
            *c = g->into == ACCUMULATE ? *c + sum : sum;
        }
    return 1;
}

void gemm(Gemm g) {
    if (gemv(&g)) return;
    const int64_t strips = (g.N + BLOCK_N - 1) / BLOCK_N, row_tiles = (g.M + TILE_M - 1) / TILE_M;
    const int64_t width = ((g.N + strips - 1) / strips + TILE_N - 1) / TILE_N * TILE_N;

    #pragma omp parallel if ((double)g.M * (double)g.N * (double)g.K > 3e4)     /* waking the threads takes 1 us */
    {
        float *block = tile_block();
        for (int64_t k = 0; k < g.K; k += BLOCK_K) {
            const int count = (int)min64(BLOCK_K, g.K - k);
            int64_t packed = -1;
            #pragma omp for schedule(static) nowait         /* static: a tile of c belongs to one thread for all k */
            for (int64_t tile = 0; tile < strips * row_tiles; tile++) {
                const int64_t n = tile / row_tiles * width, m = tile % row_tiles * TILE_M;
                const int columns = (int)min64(width, g.N - n);
                if (n != packed) tile_pack(block, &g, k, count, n, columns);
                packed = n;
                tile_multiply(&g, m, n, columns, k, count, block);
            }
        }
    }
}
