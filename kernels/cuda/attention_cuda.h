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
#endif
