#include "tensor_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../kernels/check.h"

TensorEntry *tensor_table_add(TensorTable *table, Tensor *field, const char *name, Tensor shape) {
    if ((table->count & (table->count - 1)) == 0) {          /* full at 0, 1, 2, 4, 8, ... */
        size_t room = table->count ? 2 * (size_t)table->count : 1;
        table->entry = realloc(table->entry, room * sizeof *table->entry);
        REQUIRE(table->entry, "out of memory: a table of %zu tensors", room);
    }
    TensorEntry *entry = &table->entry[table->count++];
    memset(entry, 0, sizeof *entry);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    *field = shape;
    entry->field = field;
    entry->offset = table->bytes;
    table->bytes += (size_t)((tensor_count(shape) + 127) / 128 * 128) * dtype_bytes(shape.dtype);
    return entry;
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
