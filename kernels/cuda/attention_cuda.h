/* attention_cuda.h - What the attentions of this backend share. */
#ifndef KERNELS_CUDA_ATTENTION_CUDA_H
#define KERNELS_CUDA_ATTENTION_CUDA_H
#ifdef __cplusplus
extern "C" {
#endif
#include "../attention.h"

extern const Attention attention_flash_sm90, attention_decode, attention_flash_sm80, attention_flash_f32;
extern const Attention attention_naive;

/* NULL, or why no attention of this backend can run; the same for the two in bf16. */
const char *attention_refuse_on_cuda(const AttentionSpec *spec);
const char *attention_refuse_in_bf16(const AttentionSpec *spec);

/* Fails unless all rows begin on 16 bytes. */
void attention_check_rows(const char *name, Tensor t);

/* L2 swizzle: the tiles of so many heads run side by side that k and v of all of them, in bf16, take 16 MiB at most, a
   third of an H100's L2. At least 1. */
int attention_heads_in_flight(const AttentionSpec *spec);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* Added to a row's maximum, in units of log2, before P = 2^(score - maximum): less than one bf16 step of P, taken from
   the low bits of the score. With the maximum itself P is exactly 1 wherever scores tie: then out lies half way between
   two bf16, and the rest of the row rounds it to one side, always the same; and the rounding of P near 1 is not in the
   sum. That bias adds up in delta = rowsum(dout out) and can make a bf16 training diverge (Qiu and Yao 2025, arXiv
   2510.04212). The range leaves out the middle of the step, so that a row of one key stays exact; integer scores
   get 0. */
__device__ static inline float tie_breaker(float row_max) {
    const unsigned n = (__float_as_uint(row_max) << 20) * 0x9e3779b1u >> 24;       /* 0 .. 255 */
    return (float)(n + (n >> 7 << 4)) * 2.0836e-5f;                                /* 271 of these: log2(256 / 255) */
}

/* The index-th tile in the order in which they run: the tiles of heads_in_flight heads in turn, from the longest work
   to the shortest. With a causal mask later queries see more keys, and earlier keys are seen by more queries. */
struct TileIndex { int head, tile; };

__device__ static inline TileIndex swizzled_tile(int index, int heads, int heads_in_flight, int tiles,
                                                 bool last_is_longest) {
    const int first = index / (heads_in_flight * tiles) * heads_in_flight, width = min(heads_in_flight, heads - first);
    const int within = index - first * tiles, order = within / width;
    return { first + within % width, last_is_longest ? tiles - 1 - order : order };
}
#endif
#endif
