#include "tensor_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"

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

/* Whether two entries have a common phase and overlap in memory. */
static int collides(const TensorEntry *a, const TensorEntry *b) {
    return (a->phases & b->phases) && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* First fit, the last entry first: each moves up past those before it that it collides with. While they need more than
   the phase with the most bytes, the entry that ends last is the first one of another try (Joslin and Clements 1999,
   "Squeaky wheel optimization"): 124M at B = 64 needs 683 MiB, where the largest first need 870. Models need up to 18
   tries; a few stay 1 KiB above that phase. */
size_t tensor_table_overlap(TensorTable *table) {
    const size_t start = table->bytes;
    TensorEntry *end = table->entry + table->count, **shared = malloc((size_t)table->count * sizeof *shared);
    REQUIRE(shared, "out of memory: a table of %d tensors", table->count);
    size_t phase_bytes[32] = {0}, max_bytes = 0;
    int count = 0, last = 0;
    for (TensorEntry *entry = end; entry-- > table->entry; ) {
        if (entry->phases) shared[count++] = entry;
        for (int k = 0; k < 32; k++)
            if (entry->phases >> k & 1 && (phase_bytes[k] += entry->bytes) > max_bytes) max_bytes = phase_bytes[k];
    }
    for (int tries = 0; tries < 32 && table->bytes != start + max_bytes; tries++) {
        TensorEntry *first = shared[last];
        memmove(shared + 1, shared, (size_t)last * sizeof *shared);
        shared[0] = first;
        table->bytes = start;
        for (int i = 0; i < count; i++) {
            TensorEntry *entry = shared[i];
            entry->offset = start;
            for (int j = 0; j < i; j++) {
                if (!collides(entry, shared[j])) continue;
                entry->offset = shared[j]->offset + shared[j]->bytes;
                j = -1;                         /* after a move it may collide with an earlier one */
            }
            if (entry->offset + entry->bytes <= table->bytes) continue;
            table->bytes = entry->offset + entry->bytes;
            last = i;
        }
    }
    for (TensorEntry *entry = table->entry; entry < end; entry++)
        if (entry->same) entry->offset = entry[-1].offset;
    free(shared);
    return table->bytes - start;
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
        table->entry[i].field->data = table->entry[i].bytes ? (char *)memory + table->entry[i].offset : NULL;
}

Tensor tensor_table_flat(const TensorTable *table, DType dtype) {
    return tensor_of(table->memory, dtype, 1, (int64_t)(table->bytes / dtype_bytes(dtype)));
}

void tensor_table_free(TensorTable *table) {
    free(table->entry);
    *table = (TensorTable){0};
}
