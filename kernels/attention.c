/* The part of attention that is the same for every implementation. */
#include "attention.h"
#include <string.h>
#include "check_ops.h"

const Attention *attention_pick(const char *name, const AttentionSpec *spec) {
    int any = strcmp(name, "auto") == 0;
    const char *reason = NULL;
    char names[128] = "auto";
    for (int i = 0; attention_list[i]; i++) {
        const Attention *a = attention_list[i];
        strncat(names, ", ", sizeof names - strlen(names) - 1);
        strncat(names, a->name, sizeof names - strlen(names) - 1);
        if (!any && strcmp(name, a->name) != 0) continue;
        const char *refusal = a->refuse(spec);
        if (!refusal) return a;
        if (!reason) reason = refusal;
    }
    REQUIRE(reason, "attention: unknown name \"%s\", want one of %s", name, names);
    fail("attention %s cannot run here: %s", name, reason);
}

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

void attention_check_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse) {
    REQUIRE(lse.ndim == 3 && lse.dim[1] >= 1 && out.ndim == 3 && out.dim[2] % lse.dim[1] == 0,
            "attention_merge: want out (B,T,NH*HS) and lse (B,NH,T), got %d and %d dimensions, %lld columns and "
            "%lld heads", out.ndim, lse.ndim, (long long)out.dim[2], (long long)lse.dim[1]);
    check_tensor("attention_merge", "merged",   merged,   merged.dtype == BF16 ? BF16 : F32, 3, lse.dim[0], lse.dim[2],
                 out.dim[2]);
    check_tensor("attention_merge", "out",      out,      merged.dtype == BF16 ? out.dtype : F32, 3, lse.dim[0],
                 lse.dim[2], out.dim[2]);
    check_tensor("attention_merge", "part",     part,     F32, 3, lse.dim[0], lse.dim[2], out.dim[2]);
    check_tensor("attention_merge", "lse",      lse,      F32, 3, lse.dim[0], lse.dim[1], lse.dim[2]);
    check_tensor("attention_merge", "part_lse", part_lse, F32, 3, lse.dim[0], lse.dim[1], lse.dim[2]);
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
