#include "muon.h"
#include "../../kernels/muon.h"

/* A matrix in each of `count` blocks of this rank, `at` elements from the start of a block; next: the second block. */
static Tensor batch_of(Tensor block, Tensor next, int64_t at, int64_t count, int64_t size) {
    const int64_t bytes = (int64_t)dtype_bytes(block.dtype), apart = (char *)next.data - (char *)block.data;
    if (!block.data) return ABSENT;
    return (Tensor){ (char *)block.data + at * bytes, block.dtype, 2, { count, size }, apart / bytes, NULL };
}

/* Those of a tensor, for all blocks in batches. */
static void update(const Optimizer *o, int64_t at, int64_t rows, int64_t columns) {
    const int blocks = o->slices - 2;               /* this rank's; one that is absent is zero and stays so */
    const int64_t size = rows * columns;
    for (int block = 0; block < blocks; block += o->batch) {
        const Slice *s = &o->slice[1 + block], *next = s + 1;
        const int count = blocks - block < o->batch ? blocks - block : o->batch;
        muon_update(batch_of(s->param, next->param, at, count, size),
                    batch_of(s->param_bf16, next->param_bf16, at, count, size),
                    batch_of(s->m, next->m, at, count, size), batch_of(s->grad, next->grad, at, count, size), rows,
                    o->scratch, o->stats);
    }
}

void muon_step(const Optimizer *o) {
    const Params *params = &o->model->master;
    for (const TensorEntry *e = params->table.entry; e < params->table.entry + params->table.count; e++) {
        const int64_t at = (int64_t)(e->offset / sizeof(float)) - params->group_start[1];
        if (!e->matrices || at >= tensor_count(o->slice[1].grad)) continue;                 /* another block's */
        const int64_t rows = tensor_rows(*e->field) / e->matrices, columns = tensor_columns(*e->field);
        for (int i = 0; i < e->matrices; i++) update(o, at + i * rows * columns, rows, columns);
    }
}
