/* attention_cuda.h - What the attentions of this backend share. */
#pragma once
#ifdef __cplusplus
extern "C" {
#endif
#include "../attention.h"

extern const Attention attention_flash_sm90, attention_decode, attention_flash_sm80, attention_flash_f32;
extern const Attention attention_naive;

/* NULL, or why no attention of this backend can run; or neither of the two in bf16 */
const char *attention_refuse_on_cuda(const AttentionSpec *spec);
const char *attention_refuse_in_bf16(const AttentionSpec *spec);

/* L2 swizzle: the heads whose k and v in bf16 take 16 MiB, a third of an H100's L2. At least 1. */
int attention_heads_in_flight(const AttentionSpec *spec);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* Added to a row's maximum, in units of log2, before P = 2^(score - maximum): less than one bf16 step of P, so that P
   is not exactly 1 wherever scores tie, which biases out (README.md, "Ties"; Qiu and Yao 2025, arXiv 2510.04212). The
   range leaves out the middle of the step, so that a row of one key stays exact; integer scores get 0. */
__device__ static inline float tie_breaker(float row_max) {
    const unsigned n = (__float_as_uint(row_max) << 20) * 0x9e3779b1u >> 24;       /* 0 .. 255 */
    return (float)(n + (n >> 7 << 4)) * 2.0836e-5f;                                /* 271 of these: log2(256 / 255) */
}

/* The index-th tile in the order in which they run: the tiles of heads_in_flight heads in turn, the longest first: with
   a causal mask the last of queries, the first of keys. */
struct TileIndex { int head, tile; };

__device__ static inline TileIndex swizzled_tile(int index, int heads, int heads_in_flight, int tiles,
                                                 bool last_is_longest) {
    const int first = index / (heads_in_flight * tiles) * heads_in_flight, width = min(heads_in_flight, heads - first);
    const int within = index - first * tiles, order = within / width;
    return { first + within % width, last_is_longest ? tiles - 1 - order : order };
}
#endif
