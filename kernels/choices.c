#include "choices.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "device.h"
#include "gemm.h"

typedef struct {
    char name[152];
    int  choice, used;
} Choice;

int choices_measuring, choices_version;
static Choice *choices;
static int count, capacity, added;

static Choice *find(const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(choices[i].name, name)) return &choices[i];
    return NULL;
}

static void add(const char *name, int choice, int used) {
    if (count == capacity) {
        capacity = 2 * capacity + 32;
        choices = realloc(choices, (size_t)capacity * sizeof *choices);
        REQUIRE(choices, "out of memory: %d choices of algorithms", capacity);
    }
    Choice *c = &choices[count++];
    *c = (Choice){ .choice = choice, .used = used };
    snprintf(c->name, sizeof c->name, "%s", name);
}

const char *choices_machine(void) {
    static char text[400];
    if (*text) return text;
    const DeviceInfo info = device_info();
    /* 2: incremented when a choice comes to mean another algorithm */
    snprintf(text, sizeof text, "train_gpt choices 2: %s, %s, %s", info.name, info.detail, gemm_name());
    return text;
}

int choices_find(const char *name) {
    Choice *c = find(name);
    if (!c || (!choices_measuring && !c->used)) return -1;
    c->used = 1;
    return c->choice;
}

void choices_add(const char *name, int choice) {
    add(name, choice, 1);
    added++;
}

int choices_added(void) { return added; }

char *choices_text(int only_used) {
    char *text;
    size_t size;
    int written = 0;
    FILE *file = open_memstream(&text, &size);
    REQUIRE(file, "out of memory: the text of %d choices", count);
    for (int i = 0; i < count; i++) {
        if (only_used && !choices[i].used) continue;
        if (!written++) fprintf(file, "%s\n", choices_machine());
        fprintf(file, "%s: %d\n", choices[i].name, choices[i].choice);
    }
    fclose(file);
    return text;
}

/* Reads "NAME: CHOICE\n" and returns the next line; NULL: it is another line. */
static const char *read_line(const char *line, Choice *c) {
    int length = 0;
    if (sscanf(line, "%151[^:\n]: %3d%n", c->name, &c->choice, &length) != 2 || c->choice < 0 || line[length] != '\n')
        return NULL;
    return line + length + 1;
}

int choices_adopt(const char *text, ChoicesKind kind) {
    const char *machine = choices_machine();
    const size_t length = strlen(machine);
    Choice c;
    if (strncmp(text, machine, length) || text[length] != '\n') return 0;
    const char *first = text + length + 1, *line = first;
    while (line && *line) line = read_line(line, &c);
    if (!line) return 0;
    if (kind == CHOICES_REPLACE) {
        count = 0;
        choices_version++;
    }
    for (line = first; *line; ) {
        line = read_line(line, &c);
        Choice *old = find(c.name);
        if (!old) add(c.name, c.choice, kind != CHOICES_KNOWN);
        else if (kind != CHOICES_KNOWN) old->choice = c.choice, old->used = 1;
    }
    return 1;
}
