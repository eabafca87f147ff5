/* gemm_cblas.c - GEMM by a CBLAS: OpenBLAS, BLIS or MKL, whichever was linked. The library's own threads
   may cut the sums differently for every number of threads, so it runs on one thread, on tiles whose sizes depend on
   the shape alone, and OpenMP distributes the tiles. */
#include "gemv.h"
#include <stdio.h>
#include "vecmath.h"

/* Declared here because the name of the header differs from library to library. The values are the CBLAS standard's. */
enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };
void cblas_sgemm(int order, int trans_a, int trans_b, int M, int N, int K, float alpha, const float *a, int a_pitch,
                 const float *b, int b_pitch, float beta, float *c, int c_pitch);

/* Each exists in one of the libraries only; NULL in the others. */
#define WEAK __attribute__((weak))
WEAK void openblas_set_num_threads(int count);
WEAK char *openblas_get_config(void);
WEAK void MKL_Set_Num_Threads(int count);
WEAK void bli_thread_set_num_threads(int64_t count);
WEAK const char *bli_info_get_version_str(void);

const char *gemm_name(void) {
    static char text[64];
    if (openblas_get_config)           snprintf(text, sizeof text, "%s", openblas_get_config());
    else if (bli_info_get_version_str) snprintf(text, sizeof text, "BLIS %s", bli_info_get_version_str());
    else if (MKL_Set_Num_Threads)      snprintf(text, sizeof text, "MKL");
    else                               snprintf(text, sizeof text, "a CBLAS");
    char *space = strchr(text, ' ');                /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
    if (space && (space = strchr(space + 1, ' '))) *space = 0;
    return text;
}

static void set_one_thread(void) {
    static int done;
    if (done) return;
    if (openblas_set_num_threads)   openblas_set_num_threads(1);
    if (MKL_Set_Num_Threads)        MKL_Set_Num_Threads(1);
    if (bli_thread_set_num_threads) bli_thread_set_num_threads(1);
    done = 1;
}

/* c's rows m .. m + rows - 1, columns n .. n + columns - 1. */
static void tile(const Gemm *g, int64_t m, int64_t rows, int64_t n, int64_t columns) {
    const Operand a = g->a, b = g->b;
    const float *a_tile = (const float *)a.data + (a.layout == ROW_MAJOR ? m * a.pitch : m), *bias = g->bias;
    const float *b_tile = (const float *)b.data + (b.layout == ROW_MAJOR ? n : n * b.pitch);
    float *c = (float *)g->c + m * g->c_pitch + n;
    float beta = g->into == ACCUMULATE ? 1.0f : 0.0f;
    if (bias) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                c[i * g->c_pitch + j] = beta == 0 ? bias[n + j] : c[i * g->c_pitch + j] + bias[n + j];
        beta = 1.0f;
    }
    cblas_sgemm(CBLAS_ROW_MAJOR, a.layout == ROW_MAJOR ? CBLAS_NO_TRANS : CBLAS_TRANS,
                b.layout == ROW_MAJOR ? CBLAS_NO_TRANS : CBLAS_TRANS, (int)rows, (int)columns, (int)g->K, 1.0f,
                a_tile, (int)a.pitch, b_tile, (int)b.pitch, beta, c, (int)g->c_pitch);
}

/* Parts of a dimension, a multiple of 16 long (a vector of every library's kernel) but for the last. */
static int64_t part(int64_t length, int64_t parts) { return ((length + parts - 1) / parts + 15) / 16 * 16; }

void gemm(Gemm g) {
    if (gemv(&g)) return;
    set_one_thread();
    /* Halve the longer side until there are 8 tiles of at most 384 x 384: fewer leave cores idle, smaller ones
       spend their time on packing. */
    int64_t height = g.M, width = g.N, tiles = 1;
    while ((tiles < 8 && height * width > 64 * 64) || height * width > 384 * 384) {
        if (height > width) height = part(height, 2); else width = part(width, 2);
        tiles = ((g.M + height - 1) / height) * ((g.N + width - 1) / width);
    }
    const int64_t across = (g.N + width - 1) / width;
    #pragma omp parallel for schedule(static) if (tiles > 1)
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t m = i / across * height, n = i % across * width;
        tile(&g, m, min64(height, g.M - m), n, min64(width, g.N - n));
    }
}
