/* attention_cpu.h - What the attentions of the CPU share. */
#pragma once
#include "../attention.h"
#include "tile.h"
#include "vecmath.h"

extern const Attention attention_flash, attention_naive;

static inline const char *attention_refuse_on_cpu(const AttentionSpec *s) {
    if (s->dtype != F32 || s->out_dtype != F32) return "the CPU computes in f32 only";
    if (s->HS < 1 || s->HS > HS_MAX)            return "the head size is not in 1 .. 128";
    return NULL;
}

/* The mask of P. head: b NH + h, over all sequences. */
static inline DropoutMask mask_of(const AttentionSpec *s, int64_t head) {
    const uint64_t first = s->dropout.sequence ? *s->dropout.sequence : 0;
    return dropout_mask(s->dropout.seed, s->dropout.site, first + (uint64_t)(head / s->NH), (uint32_t)(head % s->NH));
}

/* One head of one sequence: a matrix (T,HS). */
typedef struct { float *data; int64_t pitch; } Head;

static inline Head head_of(Tensor t, const AttentionSpec *s, int64_t head) {
    return (Head){ (float *)t.data + head / s->NH * t.dim[1] * t.pitch + head % s->NH * s->HS, t.pitch };
}
static inline Head    head_from (Head h, int64_t row) { return (Head){ h.data + row * h.pitch, h.pitch }; }
static inline Operand by_rows   (Head h)              { return (Operand){ h.data, h.pitch, ROW_MAJOR }; }
static inline Operand transposed(Head h)              { return (Operand){ h.data, h.pitch, COLUMN_MAJOR }; }

/* c (M,N) = or += a b */
static inline void matmul(Head c, int64_t M, int64_t N, int64_t K, Operand a, Operand b, Into into) {
    tile_gemm((Gemm){ .M = M, .N = N, .K = K, .a = a, .b = b, .c = c.data, .c_pitch = c.pitch, .into = into });
}

static inline int64_t diagonal_of(const AttentionSpec *s) { return s->q0 + (s->position ? *s->position : 0); }

/* Query row i sees the first so many keys. */
static inline int64_t keys_seen(const AttentionSpec *s, int64_t i) {
    const int64_t keys = diagonal_of(s) + i + 1;
    return keys < 0 ? 0 : min64(keys, s->Tk);
}
