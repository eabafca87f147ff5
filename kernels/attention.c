#include "attention.h"
#include <string.h>
#include "check.h"

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
