/* attention.c - What implementations of attention share: choice, checks, and a forward pass that merges. */
#include "attention.h"
#include <string.h>
#include "check_ops.h"

const Attention *attention_pick(const char *name, const AttentionSpec *spec) {
    const char *reason = NULL;
    for (int i = 0; attention_list[i]; i++) {
        const Attention *a = attention_list[i];
        if (strcmp(name, "auto") != 0 && strcmp(name, a->name) != 0) continue;
        const char *refusal = a->refuse(spec);
        if (!refusal) return a;
        if (!reason) reason = refusal;
    }
    REQUIRE(reason, "attention: unknown name \"%s\", want auto, flash or naive", name);
    fail("attention %s cannot run here: %s", name, reason);
}

size_t attention_no_bytes(const AttentionSpec *s) { (void)s; return 0; }

size_t attention_row_bytes(const AttentionSpec *s) {
    return sizeof(float) * (size_t)s->B * (size_t)s->NH * (size_t)s->Tq;
}

/* ---- out_into = ACCUMULATE where the implementation does not merge: work begins with lse and out of these keys */

static size_t part_lse_bytes(const AttentionSpec *s) { return (attention_row_bytes(s) + 15) / 16 * 16; }

static size_t part_bytes(const Attention *a, const AttentionSpec *s) {
    if (s->out_into == OVERWRITE || (a->merges && a->merges(s))) return 0;
    return part_lse_bytes(s) + (attention_row_bytes(s) * (size_t)s->HS + 15) / 16 * 16;
}

size_t attention_workspace_bytes(const Attention *a, const AttentionSpec *s) {
    return a->workspace_bytes(s) + part_bytes(a, s);
}

/* ---- the passes */

/* Checks the operands of both passes. Returns what the implementation gets: q0 is the diagonal of the mask. */
static AttentionSpec checked(const Attention *a, const AttentionSpec *s, const AttentionOperands *o, DType out_dtype) {
    REQUIRE(s->dropout.rate >= 0 && s->dropout.rate <= 0.95f, "attention: a rate of dropout of %g, want 0 .. 0.95",
            s->dropout.rate);
    const char *refusal = a->refuse(s);
    REQUIRE(!refusal, "attention %s cannot run here: %s", a->name, refusal);
    REQUIRE(s->B >= 1 && s->NH >= 1 && s->Tq >= 1 && s->Tk >= 1,
            "attention: B %d, NH %d, Tq %d, Tk %d: want all sizes >= 1", s->B, s->NH, s->Tq, s->Tk);
    const int C = s->NH * s->HS;
    check_tensor("attention", "q",   o->q,   s->dtype,  3, s->B, s->Tq, C);
    check_tensor("attention", "k",   o->k,   s->dtype,  3, s->B, s->Tk, C);
    check_tensor("attention", "v",   o->v,   s->dtype,  3, s->B, s->Tk, C);
    check_tensor("attention", "lse", o->lse, F32,       3, s->B, s->NH, s->Tq);
    check_tensor("attention", "out", o->out, out_dtype, 3, s->B, s->Tq, C);
    AttentionSpec spec = *s;
    spec.q0 = !s->causal || s->q0 > s->Tk ? s->Tk : s->q0 < -s->Tq ? -s->Tq : s->q0;
    return spec;
}

void attention_forward(const Attention *a, const AttentionSpec *s, const AttentionOperands *o) {
    AttentionSpec spec = checked(a, s, o, s->out_dtype);
    AttentionOperands part = *o;
    const size_t bytes = part_bytes(a, s);
    if (bytes) {
        part.lse = tensor_of(o->work, F32, 3, (int64_t)s->B, (int64_t)s->NH, (int64_t)s->Tq);
        part.out = tensor_of((char *)o->work + part_lse_bytes(s), F32, 3, (int64_t)s->B, (int64_t)s->Tq,
                             (int64_t)s->NH * s->HS);
        part.work = (char *)o->work + bytes;
        spec.out_into = OVERWRITE;
        spec.out_dtype = F32;
    }
    a->forward(&spec, &part);
    if (bytes) attention_merge(o->out, o->lse, o->out, part.out, part.lse);
}

void attention_backward(const Attention *a, const AttentionSpec *s, const AttentionOperands *o) {
    const AttentionSpec spec = checked(a, s, o, s->dtype);
    const int C = s->NH * s->HS;
    check_tensor("attention", "dq",   o->dq,   s->out_dtype, 3, s->B, s->Tq, C);
    check_tensor("attention", "dk",   o->dk,   s->out_dtype, 3, s->B, s->Tk, C);
    check_tensor("attention", "dv",   o->dv,   s->out_dtype, 3, s->B, s->Tk, C);
    check_tensor("attention", "dout", o->dout, s->dtype,     3, s->B, s->Tq, C);
    a->backward(&spec, o);
}
