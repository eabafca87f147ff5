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
    REQUIRE(reason, "attention: \"%s\" is none of ours, want one of %s", name, names);
    fail("attention %s cannot run here: %s", name, reason);
}

void attention_check(const Attention *attention, const AttentionSpec *spec, Tensor out, Tensor q, Tensor k, Tensor v) {
    const char *refusal = attention->refuse(spec);
    REQUIRE(!refusal, "attention %s cannot run here: %s", attention->name, refusal);
    REQUIRE(spec->B >= 1 && spec->NH >= 1 && spec->Tq >= 1 && spec->q0 >= 0 && spec->q0 + spec->Tq <= spec->Tk,
            "attention: B %d, NH %d, Tq %d, q0 %d, Tk %d: want all sizes >= 1 and q0 + Tq <= Tk",
            spec->B, spec->NH, spec->Tq, spec->q0, spec->Tk);
    int C = spec->NH * spec->HS;
    check_tensor("attention", "q",   q,   spec->dtype,     3, spec->B, spec->Tq, C);
    check_tensor("attention", "k",   k,   spec->dtype,     3, spec->B, spec->Tk, C);
    check_tensor("attention", "v",   v,   spec->dtype,     3, spec->B, spec->Tk, C);
    check_tensor("attention", "out", out, spec->out_dtype, 3, spec->B, spec->Tq, C);
}
