/* kernels/cuda/attention_list.c - The attentions of this backend, best first. */
#include "attention_cuda.h"

const Attention *const attention_list[] = {
    &attention_flash_sm90, &attention_flash_sm80, &attention_flash_f32, &attention_naive, NULL
};

const char *attention_refuse_on_cuda(const AttentionSpec *s) {
    if (s->dropout != 0)                       return "dropout on the probabilities is not there yet, want 0";
    if (s->dtype != F32 && s->dtype != BF16)   return "the operands are neither f32 nor bf16";
    if (s->out_dtype != s->dtype)              return "out has another data type than q, k and v";
    if (s->HS < 1 || s->HS > HS_MOST)          return "the head size is not in 1 .. 128";
    return NULL;
}
