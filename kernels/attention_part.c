/* attention_part.c - What implementations of attention share: checks, sizes, and a forward that merges. */
#include "check_ops.h"
#include "attention.h"

static void check_inputs(const Attention *a, const AttentionSpec *s, Tensor lse, Tensor q, Tensor k, Tensor v) {
    const char *refusal = a->refuse(s);
    REQUIRE(!refusal, "attention %s cannot run here: %s", a->name, refusal);
    REQUIRE(s->B >= 1 && s->NH >= 1 && s->Tq >= 1 && s->Tk >= 1,
            "attention: B %d, NH %d, Tq %d, Tk %d: want all sizes >= 1", s->B, s->NH, s->Tq, s->Tk);
    int C = s->NH * s->HS;
    check_tensor("attention", "q",   q,   s->dtype, 3, s->B, s->Tq, C);
    check_tensor("attention", "k",   k,   s->dtype, 3, s->B, s->Tk, C);
    check_tensor("attention", "v",   v,   s->dtype, 3, s->B, s->Tk, C);
    check_tensor("attention", "lse", lse, F32,      3, s->B, s->NH, s->Tq);
}

void attention_check_forward(const Attention *a, const AttentionSpec *s, Tensor out, Tensor lse,
                             Tensor q, Tensor k, Tensor v) {
    check_inputs(a, s, lse, q, k, v);
    check_tensor("attention", "out", out, s->out_dtype, 3, s->B, s->Tq, s->NH * s->HS);
}

void attention_check_backward(const Attention *a, const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv,
                              Tensor dout, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v) {
    check_inputs(a, s, lse, q, k, v);
    int C = s->NH * s->HS;
    check_tensor("attention", "dq",   dq,   s->out_dtype, 3, s->B, s->Tq, C);
    check_tensor("attention", "dk",   dk,   s->out_dtype, 3, s->B, s->Tk, C);
    check_tensor("attention", "dv",   dv,   s->out_dtype, 3, s->B, s->Tk, C);
    check_tensor("attention", "dout", dout, s->dtype,     3, s->B, s->Tq, C);
    check_tensor("attention", "out",  out,  s->dtype,     3, s->B, s->Tq, C);
}

const char *attention_refuse_rate(const AttentionSpec *s) {
    return s->dropout.rate >= 0 && s->dropout.rate <= 0.95f ? NULL : "the rate of dropout is not in 0 .. 0.95";
}

size_t attention_row_bytes(const AttentionSpec *s) {
    return sizeof(float) * (size_t)s->B * (size_t)s->NH * (size_t)s->Tq;
}

size_t attention_row_workspace(const AttentionSpec *s) { return attention_row_bytes(s) + attention_part_bytes(s); }

size_t attention_no_bytes(const AttentionSpec *s) {
    (void)s;
    return 0;
}

size_t attention_part_bytes(const AttentionSpec *s) {
    const size_t rows = attention_row_bytes(s);
    return s->out_into == ACCUMULATE ? (rows + 15) / 16 * 16 + rows * (size_t)s->HS : 0;
}

int attention_merge_part(const Attention *a, const AttentionSpec *s, Tensor out, Tensor lse, void *kept, Tensor q,
                         Tensor k, Tensor v, void *work) {
    if (s->out_into == OVERWRITE) return 0;
    AttentionSpec spec = *s;
    const size_t rows = (attention_row_bytes(s) + 15) / 16 * 16;
    const Tensor part_lse = tensor_of(work, F32, 3, (int64_t)s->B, (int64_t)s->NH, (int64_t)s->Tq);
    const Tensor part = tensor_of((char *)work + rows, F32, 3, (int64_t)s->B, (int64_t)s->Tq, (int64_t)s->NH * s->HS);
    spec.out_into = OVERWRITE;
    spec.out_dtype = F32;
    a->forward(&spec, part, part_lse, kept, q, k, v, (char *)work + attention_part_bytes(s));
    attention_merge(out, lse, out, part, part_lse);
    return 1;
}
