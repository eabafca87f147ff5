/* kernels/cuda/attention_flash.cuh - Shared by the bf16 flash attention kernels (sm80 and sm90): the order of tiles and
   the correction of tied maxima. */
#ifndef KERNELS_CUDA_ATTENTION_FLASH_CUH
#define KERNELS_CUDA_ATTENTION_FLASH_CUH
#include "attention_cuda.h"

static constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

/* The row maximum in use may lie up to this much (log2) below the true one, so P <= 2^8, before the accumulators are
   rescaled: after the first block that is rare. */
static constexpr float RESCALE_THRESHOLD = 8.0f;

/* L2 swizzle: the tiles of `heads_in_flight` heads run side by side, so that what they read stays in the L2, and in the
   order of decreasing work: the last queries see the most keys, the first keys are seen by the most queries. */
struct TileIndex { int head, tile; };
__device__ __forceinline__ TileIndex swizzled_tile(int index, int heads, int heads_in_flight, int tiles,
                                                   bool last_is_longest) {
    const int first = index / (heads_in_flight * tiles) * heads_in_flight, width = min(heads_in_flight, heads - first);
    const int i = index - first * tiles, order = i / width;
    return { first + i % width, last_is_longest ? tiles - 1 - order : order };
}

/* Added to a row's maximum, in units of log2, before P = 2^(score - maximum): less than one bf16 step of P, taken from
   the low bits of the score. Without it P is exactly 1 wherever scores tie: out lies half way between two bf16 and is
   rounded to the same side all along the row, and what rounding adds to P near 1 is missing in the row sum. This bias
   adds up in delta = rowsum(dout out) and can end a bf16 training (Qiu and Yao 2025, arXiv 2510.04212). The range
   leaves out the middle of the step, so that a row of one key stays exact; integer scores get 0. */
__device__ __forceinline__ float tie_breaker(float row_max) {
    const unsigned n = (__float_as_uint(row_max) << 20) * 0x9e3779b1u >> 24;       /* 0 .. 255 */
    return (float)(n + (n >> 7 << 4)) * 2.0836e-5f;                                /* 271 of these: log2(256 / 255) */
}

#endif
