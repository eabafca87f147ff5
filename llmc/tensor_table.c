#include "tensor_table.h"
#include <stdio.h>
#include <stdlib.h>
#include "../kernels/check.h"

void tensor_table_add(TensorTable *table, const char *prefix, const char *name, Tensor shape, TensorEntry entry) {
    snprintf(entry.name, sizeof entry.name, "%s%s", prefix, name);
    entry.offset = table->bytes;
    *entry.field = shape;
    if ((table->count & (table->count - 1)) == 0)            /* full at 0, 1, 2, 4, 8, ...; 1000 layers: 12,000 */
        table->entry = realloc(table->entry, (size_t)(table->count ? 2 * table->count : 1) * sizeof entry);
    REQUIRE(table->entry, "out of memory: a table of %d tensors", table->count + 1);
    table->entry[table->count++] = entry;
    table->bytes += (size_t)((tensor_count(shape) + 127) / 128 * 128) * dtype_bytes(shape.dtype);
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
