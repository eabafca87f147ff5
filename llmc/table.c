#include "table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../kernels/check.h"

Row *table_add(Table *table, Tensor *field, const char *name, Tensor shape) {
    if ((table->count & (table->count - 1)) == 0) {          /* full at 0, 1, 2, 4, 8, ... */
        size_t room = table->count ? 2 * (size_t)table->count : 1;
        table->row = realloc(table->row, room * sizeof *table->row);
        REQUIRE(table->row, "out of memory: a table of %zu tensors", room);
    }
    Row *row = &table->row[table->count++];
    memset(row, 0, sizeof *row);
    snprintf(row->name, sizeof row->name, "%s", name);
    *field = shape;
    row->field = field;
    row->offset = table->bytes;
    table->bytes += (size_t)((tensor_count(shape) + 127) / 128 * 128) * dtype_bytes(shape.dtype);
    return row;
}

void table_place(Table *table, void *memory) {
    table->memory = memory;
    for (int i = 0; i < table->count; i++)
        table->row[i].field->data = (char *)memory + table->row[i].offset;
}

Tensor table_flat(const Table *table, DType dtype) {
    return tensor_of(table->memory, dtype, 1, (int64_t)(table->bytes / dtype_bytes(dtype)));
}

void table_free(Table *table) {
    free(table->row);
    *table = (Table){0};
}
