/* tile.c - Blocks of a GEMM in GCC's vector extensions: one source for every instruction set. */
#include "tile.h"
#include <string.h>
#include "vecmath.h"

typedef float Vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float VecUnaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float Four __attribute__((vector_size(16), may_alias));

enum {
    PITCH_ROW_MAJOR    = BLOCK_K + 16,               /* not a power of two: rows would map to one set of the cache */
    PITCH_COLUMN_MAJOR = (TILE_M + 7) / 8 * 8,
    ROWS_FLOATS      = PITCH_ROW_MAJOR * PITCH_COLUMN_MAJOR         /* enough for either */
};

/* memcpy for short rows, where its call and its branches would take half the time. */
static inline void copy_row(float *to, const float *from, int count) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) *(VecUnaligned *)(to + i) = *(const VecUnaligned *)(from + i);
    for (; i < count; i++) to[i] = from[i];
}

static void pack_panel(float *panel, const Gemm *g, int64_t k, int count, int64_t n) {
    const int columns = (int)min64(TILE_N, g->N - n);
    if (columns < TILE_N) memset(panel, 0, sizeof(float) * TILE_N * (size_t)count);
    if (g->b.layout == ROW_MAJOR) {
        const float *b = (const float *)g->b.data + k * g->b.pitch + n;
        for (int i = 0; i < count; i++, b += g->b.pitch)
            if (columns == TILE_N) copy_row(panel + i * TILE_N, b, TILE_N);
            else                   copy_row(panel + i * TILE_N, b, columns);
    } else {
        const float *b = (const float *)g->b.data + n * g->b.pitch + k;
        int j = 0;
        for (; j + 4 <= columns; j += 4, b += 4 * g->b.pitch) {
            const float *b1 = b + g->b.pitch, *b2 = b1 + g->b.pitch, *b3 = b2 + g->b.pitch;
            for (int i = 0; i < count; i++) *(Four *)(panel + i * TILE_N + j) = (Four){ b[i], b1[i], b2[i], b3[i] };
        }
        for (; j < columns; j++, b += g->b.pitch)
            for (int i = 0; i < count; i++) panel[i * TILE_N + j] = b[i];
    }
}

void tile_pack(float *block, const Gemm *g, int64_t k, int count, int64_t n, int columns) {
    for (int j = 0; j < columns; j += TILE_N) pack_panel(block + j * count, g, k, count, n + j);
}

/* Copies rows m .. of a with another pitch, because rows 4096 bytes apart would evict each other. Zeros beyond M:
   garbage there could be denormal, which is slow. */
static void copy_rows(float *rows, const Gemm *g, int64_t m, int64_t k, int count) {
    const int height = (int)min64(TILE_M, g->M - m);
    if (g->a.layout == ROW_MAJOR) {
        const float *a = (const float *)g->a.data + m * g->a.pitch + k;
        for (int i = 0; i < height; i++) copy_row(rows + i * PITCH_ROW_MAJOR, a + i * g->a.pitch, count);
        for (int i = height; i < TILE_M; i++) memset(rows + i * PITCH_ROW_MAJOR, 0, sizeof(float) * (size_t)count);
    } else {
        const float *a = (const float *)g->a.data + k * g->a.pitch + m;
        if (height == TILE_M)
            for (int i = 0; i < count; i++)
                memcpy(rows + i * PITCH_COLUMN_MAJOR, a + i * g->a.pitch, sizeof(float) * TILE_M);
        else
            for (int i = 0; i < count; i++)
                for (int j = 0; j < TILE_M; j++)
                    rows[i * PITCH_COLUMN_MAJOR + j] = j < height ? a[i * g->a.pitch + j] : 0.0f;
    }
}

/* sum = rows panel. Inlined with constant strides. */
static inline __attribute__((always_inline))
void multiply(Vec sum[TILE_M][2], const float *rows, int row_stride, int k_stride, const float *panel, int count) {
    memset(sum, 0, sizeof(Vec) * TILE_M * 2);
    for (int k = 0; k < count; k++, rows += k_stride, panel += TILE_N) {
        Vec b[2];
        for (int j = 0; j < 2; j++) b[j] = *(const Vec *)(panel + j * LANES);
        for (int i = 0; i < TILE_M; i++)
            for (int j = 0; j < 2; j++) sum[i][j] += rows[i * row_stride] * b[j];
    }
}

/* c's tile at (m,n) = or += sum, and the bias where this is the first block of k. */
static void store(const Gemm *g, Vec sum[TILE_M][2], int64_t m, int64_t n, int64_t k) {
    const int height = (int)min64(TILE_M, g->M - m), columns = (int)min64(TILE_N, g->N - n);
    const int add = k > 0 || g->into == ACCUMULATE;
    const float *bias = k == 0 && g->bias ? (const float *)g->bias + n : NULL;
    float *c = (float *)g->c + m * g->c_pitch + n;
    for (int i = 0; i < height; i++, c += g->c_pitch) {
        if (columns == TILE_N) {
            for (int j = 0; j < 2; j++) {
                Vec s = sum[i][j];
                if (bias) s += *(const VecUnaligned *)(bias + j * LANES);
                if (add)  s += *(const VecUnaligned *)(c + j * LANES);
                *(VecUnaligned *)(c + j * LANES) = s;
            }
        } else {
            for (int j = 0; j < columns; j++) {
                float s = sum[i][j / LANES][j % LANES];
                if (bias) s += bias[j];
                if (add)  s += c[j];
                c[j] = s;
            }
        }
    }
}

void tile_multiply(const Gemm *g, int64_t m, int64_t n, int columns, int64_t k, int count, const float *block) {
    float rows[ROWS_FLOATS] __attribute__((aligned(64)));
    copy_rows(rows, g, m, k, count);
    for (int j = 0; j < columns; j += TILE_N) {
        const float *panel = block + j * count;
        Vec sum[TILE_M][2];
        if (g->a.layout == ROW_MAJOR) multiply(sum, rows, PITCH_ROW_MAJOR, 1, panel, count);
        else                          multiply(sum, rows, 1, PITCH_COLUMN_MAJOR, panel, count);
        store(g, sum, m, n + j, k);
    }
}

float *tile_block(void) {
    static _Thread_local float block[BLOCK_K * BLOCK_N] __attribute__((aligned(64)));
    return block;
}

void tile_gemm(Gemm g) {
    float *block = tile_block();
    for (int64_t n = 0; n < g.N; n += BLOCK_N) {
        const int columns = (int)min64(BLOCK_N, g.N - n);
        for (int64_t k = 0; k < g.K; k += BLOCK_K) {
            const int count = (int)min64(BLOCK_K, g.K - k);
            tile_pack(block, &g, k, count, n, columns);
            for (int64_t m = 0; m < g.M; m += TILE_M) tile_multiply(&g, m, n, columns, k, count, block);
        }
    }
}
