/* kernels/cpu/attention_list.c - The attentions of the CPU, best first. */
#include "attention_cpu.h"

const Attention *const attention_list[] = { &attention_flash, &attention_naive, NULL };

const char *attention_refuse_on_cpu(const AttentionSpec *s) {
    if (s->dtype != F32 || s->out_dtype != F32) return "the CPU computes in f32 only";
    if (s->dropout != 0)                        return "dropout on the probabilities is not there yet, want 0";
    if (s->HS < 1 || s->HS > HS_MAX)           return "the head size is not in 1 .. 128";
    return NULL;
}
