/* kernels/cuda/attention_cuda.h - What the attentions of this backend share. */
#ifndef KERNELS_CUDA_ATTENTION_CUDA_H
#define KERNELS_CUDA_ATTENTION_CUDA_H
#ifdef __cplusplus
extern "C" {
#endif
#include "../attention.h"

enum { HS_MOST = 128 };

extern const Attention attention_flash_sm90, attention_flash_sm80, attention_flash_f32, attention_naive;

/* What none of them can do, or NULL. */
const char *attention_refuse_on_cuda(const AttentionSpec *spec);

#ifdef __cplusplus
}
#endif
#endif
