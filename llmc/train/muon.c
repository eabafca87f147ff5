#include "muon.h"
#include <math.h>
#include <stdlib.h>
#include "../../kernels/muon.h"
#include "../base/os.h"

typedef struct {
    MuonPlan plan;
    int64_t  group;             /* elements of a block in the flat memory */
    Tensor   updates;           /* muon_dtype: this rank's slices of all blocks, one after the other */
    Tensor   blocks;            /* this rank's blocks, whole; the same memory where there is one rank */
    void    *scratch;
} Muon;

/* Moonlight's: the update has about the RMS of AdamW's, 0.2. */
static float scale_of(const TensorEntry *e) {
    if (!e->matrices) return 0;
    return 0.2f * sqrtf((float)fmax((double)tensor_rows(*e->field) / e->matrices, (double)tensor_columns(*e->field)));
}

static void create(Optimizer *o) {
    const int64_t *start = o->model->master.group_start;
    Muon *muon = o->method_state = host_alloc(sizeof *muon, "Muon");
    *muon = (Muon){ .plan = gpt_muon_plan(&o->model->config), .group = start[2] - start[1] };
    const int64_t bytes = (int64_t)dtype_bytes(muon_dtype);
    muon->updates = tensor_of(device_alloc(muon->plan.update_bytes, "the updates of Muon"), muon_dtype, 1,
                              (int64_t)muon->plan.update_bytes / bytes);
    muon->blocks = muon->updates;
    if (comm_size > 1)
        muon->blocks = tensor_of(device_alloc(muon->plan.block_bytes, "the blocks of Muon"), muon_dtype, 1,
                                 muon->group * muon->plan.blocks);
    muon->scratch = device_alloc(muon->plan.scratch_bytes, "the scratch memory of Muon");
}

static void free_memory(Optimizer *o) {
    Muon *muon = o->method_state;
    if (comm_size > 1) device_free(muon->blocks.data);
    device_free(muon->updates.data);
    device_free(muon->scratch);
    free(muon);
}

/* This rank's slice of a block's update; empty past the last block. */
static Tensor slice_of(const Optimizer *o, const Muon *muon, int block) {
    const int64_t count = muon->group / comm_size;
    const int exists = block < o->model->config.L;
    return tensor_column_range(muon->updates, exists ? block * count : 0, exists ? count : 0);
}

/* The slice of a rank in block `index` of this rank. */
static Tensor part_of(const Optimizer *o, const Muon *muon, int index, int rank) {
    const int64_t count = muon->group / comm_size;
    const int exists = comm_rank * muon->plan.blocks + index < o->model->config.L;
    return tensor_column_range(muon->blocks, index * muon->group + rank * count, exists ? count : 0);
}

/* The slices of all blocks to the ranks that have them, or back. */
static void exchange(const Optimizer *o, const Muon *muon, int is_back) {
    const int blocks = muon->plan.blocks;
    CommTransfer *transfers = host_alloc((size_t)(blocks * comm_size) * sizeof *transfers, "transfers"), *t = transfers;
    for (int i = 0; i < blocks; i++) {
        const Tensor slice = slice_of(o, muon, comm_rank * blocks + i), part = part_of(o, muon, i, comm_rank);
        if (tensor_count(part)) tensor_convert(is_back ? slice : part, is_back ? part : slice);
        for (int distance = 1; distance < comm_size; distance++) {
            const int to = (comm_rank + distance) % comm_size, from = (comm_rank - distance + comm_size) % comm_size;
            const Tensor theirs = slice_of(o, muon, to * blocks + i), ours = part_of(o, muon, i, from);
            *t++ = is_back ? (CommTransfer){ ours, from, theirs, to } : (CommTransfer){ theirs, to, ours, from };
        }
    }
    comm_wait(comm_exchange(transfers, (int)(t - transfers)));
    free(transfers);
}

/* The matrices of a tensor in this rank's blocks, in batches. */
static void orthogonalize(const Optimizer *o, const Muon *muon, const TensorEntry *e) {
    const int64_t rows = tensor_rows(*e->field) / e->matrices, columns = tensor_columns(*e->field);
    const int64_t first = (int64_t)(e->offset / sizeof(float)) - o->model->master.group_start[1];
    const int left = o->model->config.L - comm_rank * muon->plan.blocks;
    const int blocks = left < muon->plan.blocks ? left : muon->plan.blocks;
    for (int i = 0; i < e->matrices; i++)
        for (int block = 0; block < blocks; block += muon->plan.batch) {
            const int count = blocks - block < muon->plan.batch ? blocks - block : muon->plan.batch;
            const Tensor x = tensor_column_range(muon->blocks, block * muon->group + first + i * rows * columns,
                                                 rows * columns);
            muon_orthogonalize(tensor_of(x.data, muon_dtype, 2, rows, columns), count, muon->group, muon->scratch);
        }
}

static void update(Optimizer *o) {
    const Muon *muon = o->method_state;
    const TensorTable *table = &o->model->master.table;
    const int64_t end = o->model->master.group_start[2];        /* of block 0 */
    for (int block = 0; block < o->model->config.L; block++) {
        const SliceView s = optimizer_slice(o, block - FIRST_GROUP);
        muon_momentum(slice_of(o, muon, block), s.m, s.grad, s.rows, s.row_count, o->stats);
    }
    if (comm_size > 1) exchange(o, muon, 0);
    for (const TensorEntry *e = table->entry; e < table->entry + table->count; e++)
        if (e->matrices && (int64_t)(e->offset / sizeof(float)) < end) orthogonalize(o, muon, e);
    if (comm_size > 1) exchange(o, muon, 1);
    for (int block = 0; block < o->model->config.L; block++) {
        const SliceView s = optimizer_slice(o, block - FIRST_GROUP);
        muon_apply(s.param, s.param_bf16, slice_of(o, muon, block), s.rows, s.row_count, o->stats);
    }
}

const OptimizerMethod muon_method = { scale_of, create, update, free_memory };
