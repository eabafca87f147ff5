/* kernels/cuda/attention_cuda.h - What the attentions of this backend share. */
#ifndef KERNELS_CUDA_ATTENTION_CUDA_H
#define KERNELS_CUDA_ATTENTION_CUDA_H
#ifdef __cplusplus
extern "C" {
#endif
#include "../attention.h"

enum { HS_MAX = 128 };

extern const Attention attention_flash_sm90, attention_flash_sm80, attention_flash_f32, attention_naive;

/* What none of them can do, or NULL; and what neither of the two in bf16 can. */
const char *attention_refuse_on_cuda(const AttentionSpec *spec);
const char *attention_refuse_in_bf16(const AttentionSpec *spec);

/* Fails where the rows do not begin on 16 bytes. */
void attention_check_rows(const char *name, Tensor t);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* What is added to a row's greatest score, in units of log2, before P = 2^(score - it): less than one bf16 step of P,
   by the low bits of the score. With the greatest score itself P is exactly 1 wherever scores tie: then out lies half
   way between two bf16, and the rest of the row rounds it to one side, always the same; and what P near 1 is rounded up
   is not in the sum. That bias adds up in delta = rowsum(dout out) and can end a bf16 training (Qiu and Yao 2025, arXiv
   2510.04212). The range leaves out the middle of the step, so that a row of one key stays exact; integer scores
   get 0. */
__device__ static inline float tie_breaker(float greatest) {
    const unsigned n = (__float_as_uint(greatest) << 20) * 0x9e3779b1u >> 24;      /* 0 .. 255 */
    return (float)(n + (n >> 7 << 4)) * 2.0836e-5f;                                /* 271 of these: log2(256 / 255) */
}
#endif
#endif
