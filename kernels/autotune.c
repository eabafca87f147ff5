#include "autotune.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "device.h"
#include "gemm.h"

static int is_on, version;
static char *chosen, *cache;        /* texts; NULL = none. The cache has all that is chosen */

void autotune_enable(int on)      { is_on = on; }
int  autotune_enabled(void)       { return is_on; }
int  autotune_version(void)       { return version; }
const char *autotune_text(void)   { return chosen ? chosen : ""; }
const char *autotune_cache(void)  { return cache ? cache : ""; }

const char *autotune_machine(void) {
    static char text[400];
    if (*text) return text;
    const DeviceInfo info = device_info();
    /* 2: incremented when a choice's meaning changes */
    snprintf(text, sizeof text, "train_gpt choices 2: %s, %s, %s", info.name, info.detail, gemm_name());
    return text;
}

static int find(const char *text, const char *name) {
    char line[160];
    int choice;
    snprintf(line, sizeof line, "\n%s: ", name);
    const char *found = text ? strstr(text, line) : NULL;
    return found && sscanf(found + strlen(line), "%3d", &choice) == 1 ? choice : -1;
}

static void append(char **text, const char *name, int choice) {
    char *longer;
    if (find(*text, name) >= 0) return;
    const int length = asprintf(&longer, "%s%s%s: %d\n", *text ? *text : autotune_machine(), *text ? "" : "\n", name,
                                choice);
    REQUIRE(length > 0, "out of memory: the choices of algorithms");
    free(*text);
    *text = longer;
}

void autotune_add(const char *name, int choice) {
    append(&chosen, name, choice);
    append(&cache, name, choice);
}

int autotune_find(const char *name) {
    const int choice = find(chosen, name), cached = choice < 0 && is_on ? find(cache, name) : choice;
    if (cached >= 0) append(&chosen, name, cached);
    return cached;
}

/* At most 2000 shapes: reading N of them takes O(N^2). */
static int is_valid(const char *text) {
    const char *machine = autotune_machine();
    const size_t size = strlen(text), length = strlen(machine);
    return size <= 1 << 18 && !strncmp(text, machine, length) && text[length] == '\n' && text[size - 1] == '\n';
}

int autotune_adopt(const char *text) {
    if (!is_valid(text)) return 0;
    free(chosen);
    chosen = strchr(text, '\n')[1] ? strdup(text) : NULL;
    version++;
    return 1;
}

void autotune_set_cache(const char *text) {
    char name[152];
    int choice;
    free(cache);
    cache = is_valid(text) ? strdup(text) : NULL;
    for (const char *line = chosen ? strchr(chosen, '\n') : NULL; line; line = strchr(line + 1, '\n'))
        if (sscanf(line, "\n%151[^:\n]: %d", name, &choice) == 2) append(&cache, name, choice);
}
