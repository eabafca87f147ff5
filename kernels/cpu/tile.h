/* tile.h - GEMM of small blocks in f32, from which gemm.c and the attentions are made.

   A block of b, BLOCK_K rows of BLOCK_N columns, is packed into panels of TILE_N columns. TILE_M rows of a are copied
   into the L1 cache and multiplied by one panel after the other: c's TILE_M x TILE_N sums stay in registers over all of
   BLOCK_K. Each sum runs over k in order, block by block, so its bits depend on K alone. */
#pragma once
#include "../gemm.h"

#if defined(__AVX512F__)
enum { LANES = 16, TILE_M = 8 };    /* 16 sums in 32 registers; 12 rows are no faster and waste more at the edges */
#elif defined(__AVX__)
enum { LANES = 8, TILE_M = 6 };     /* 12 sums in 16 registers */
#elif defined(__aarch64__)
enum { LANES = 4, TILE_M = 8 };
#else
enum { LANES = 4, TILE_M = 6 };
#endif
enum {
    TILE_N  = 2 * LANES,
    BLOCK_K = 256,          /* 8 rows of a: 8 KiB of the L1 cache */
    BLOCK_N = 256           /* a block of b: 256 KiB of the L2 cache */
};

/* The calling thread's block, which tile_gemm uses too; not on the stack, whose limit may be 128 KiB. */
float *tile_block(void);

/* Packs rows k .. k + count - 1 (at most BLOCK_K), columns n .. n + columns - 1 (at most BLOCK_N) of g->b into a block
   aligned to 64 bytes: one panel (count, TILE_N) after the other, the last padded with zeros. */
void tile_pack(float *block, const Gemm *g, int64_t k, int count, int64_t n, int columns);

/* Rows m .. m + TILE_M - 1 of c in the columns of that block; k > 0 is added to c, k = 0 as g->into says. */
void tile_multiply(const Gemm *g, int64_t m, int64_t n, int columns, int64_t k, int count, const float *block);

/* All of g in the calling thread. */
void tile_gemm(Gemm g);
