/* attention_list.c - The attentions of this backend, best first. */
#include "attention_cuda.h"

const Attention *const attention_list[] = {
    &attention_flash_sm90, &attention_decode, &attention_flash_sm80, &attention_flash_f32, &attention_naive, NULL
};

const char *attention_refuse_on_cuda(const AttentionSpec *s) {
    if (s->dtype != F32 && s->dtype != BF16)   return "the operands are neither f32 nor bf16";
    if (s->out_dtype != s->dtype && s->out_dtype != F32)
        return "out is neither f32 nor of the data type of q, k and v";
    if (s->HS < 1 || s->HS > HS_MAX)           return "the head size is not in 1 .. 128";
    return NULL;
}

const char *attention_refuse_in_bf16(const AttentionSpec *s) {
    const char *shared_reason = attention_refuse_on_cuda(s);
    if (shared_reason)     return shared_reason;
    if (s->dtype != BF16)  return "this kernel computes in bf16 only";
    if (s->HS % 8 != 0)    return "the head size is not a multiple of 8";
    if (!(s->scale > 0))   return "the scale of the scores is not above 0";
    if (s->position)       return "this kernel takes no position from the device";
    return NULL;
}

int attention_heads_in_flight(const AttentionSpec *s) {
    const int64_t head_bytes = (int64_t)s->Tk * s->HS * 2 * 2, fitting = (16 << 20) / head_bytes;
    const int64_t heads = (int64_t)s->B * s->NH;
    return (int)(fitting < 1 ? 1 : fitting < heads ? fitting : heads);
}
