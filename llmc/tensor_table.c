#include "tensor_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../kernels/check.h"

void tensor_table_add(TensorTable *table, const char *prefix, const char *name, Tensor shape, TensorEntry entry) {
    snprintf(entry.name, sizeof entry.name, "%s%s", prefix, name);
    entry.bytes = (size_t)((tensor_count(shape) + 127) / 128 * 128) * dtype_bytes(shape.dtype);
    entry.offset = table->bytes;
    *entry.field = shape;
    if ((table->count & (table->count - 1)) == 0)            /* full at 0, 1, 2, 4, 8, ...; 1000 layers: 12,000 */
        table->entry = realloc(table->entry, (size_t)(table->count ? 2 * table->count : 1) * sizeof entry);
    REQUIRE(table->entry, "out of memory: a table of %d tensors", table->count + 1);
    table->entry[table->count++] = entry;
    if (!entry.phases && !entry.same) table->bytes += entry.bytes;
}

/* Whether two places overlap that are in use at the same time. */
static int collides(const TensorEntry *a, const TensorEntry *b) {
    return (a->phases & b->phases) && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

typedef struct { TensorEntry *entry; size_t best; } Place;     /* best: the offset in the best order so far */

static size_t end_of(const TensorEntry *entry) { return entry->offset + entry->bytes; }

/* First fit from start on: each moves up past those before it that it collides with. Returns the one that ends last. */
static int first_fit(Place *place, int count, size_t start) {
    int last = 0;
    for (int i = 0; i < count; i++) {
        TensorEntry *entry = place[i].entry;
        entry->offset = start;
        for (int j = 0; j < i; j++) {
            if (!collides(entry, place[j].entry)) continue;
            entry->offset = end_of(place[j].entry);
            j = -1;                             /* it may collide with one that it has passed */
        }
        if (end_of(entry) > end_of(place[last].entry)) last = i;
    }
    return last;
}

/* The entry that ends last is placed first the next time, as long as this helps ("squeaky wheel" optimization: Joslin
   and Clements 1999). */
void tensor_table_overlap(TensorTable *table) {
    const size_t start = table->bytes;
    TensorEntry *end = table->entry + table->count;
    Place *place = malloc((size_t)table->count * sizeof *place);
    REQUIRE(place, "out of memory: a table of %d tensors", table->count);
    int count = 0;
    for (TensorEntry *entry = end; entry-- > table->entry; )
        if (entry->phases) place[count++].entry = entry;
    for (size_t bytes = SIZE_MAX; count; ) {
        const int last = first_fit(place, count, start);
        if (end_of(place[last].entry) >= bytes) break;
        table->bytes = bytes = end_of(place[last].entry);
        for (int i = 0; i < count; i++) place[i].best = place[i].entry->offset;
        const Place first = place[last];
        memmove(place + 1, place, (size_t)last * sizeof *place);
        place[0] = first;
    }
    for (int i = 0; i < count; i++) place[i].entry->offset = place[i].best;
    for (TensorEntry *entry = table->entry; entry < end; entry++)
        if (entry->same) entry->offset = entry[-1].offset;
    free(place);
}

void tensor_table_reuse(TensorTable *table, const TensorTable *larger, const char *what) {
    for (int i = 0; i < table->count; i++) {
        const TensorEntry *place = &larger->entry[i];
        REQUIRE(table->entry[i].bytes <= place->bytes, "%s needs %zu bytes for %s, %zu are allocated", what,
                table->entry[i].bytes, place->name, place->bytes);
        table->entry[i].bytes = place->bytes;
        table->entry[i].offset = place->offset;
    }
    table->bytes = larger->bytes;
}

void tensor_table_align(TensorTable *table, int64_t elements, DType dtype) {
    size_t bytes = (size_t)elements * dtype_bytes(dtype);
    table->bytes = (table->bytes + bytes - 1) / bytes * bytes;
}

void tensor_table_place(TensorTable *table, void *memory) {
    table->memory = memory;
    for (int i = 0; i < table->count; i++)
        table->entry[i].field->data = (char *)memory + table->entry[i].offset;
}

Tensor tensor_table_flat(const TensorTable *table, DType dtype) {
    return tensor_of(table->memory, dtype, 1, (int64_t)(table->bytes / dtype_bytes(dtype)));
}

void tensor_table_free(TensorTable *table) {
    free(table->entry);
    *table = (TensorTable){0};
}
