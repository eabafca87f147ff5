#include "optimizer.h"
#include "../../kernels/muon.h"

/* ---- Creation */

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

static Tensor part_of(Tensor flat, int64_t first, int64_t count) {
    return flat.data ? tensor_column_range(flat, first, count) : ABSENT;
}

/* The slices, of each group of tensors or of all, and the rows of each: its intersections with the tensors that AdamW
   updates. A tensor in two slices has a row in each. */
static void set_slices(Optimizer *o) {
    const GPT *model = o->model;
    const DType dtype = model->config.dtype;
    const TensorTable *table = &model->master.table;
    const Tensor master = tensor_table_flat(table, F32), grads = tensor_table_flat(&model->grads.table, F32);
    const Tensor params = dtype == F32 ? ABSENT : tensor_table_flat(&model->params.table, dtype);
    const size_t bytes = (size_t)(table->count + o->slices - 1) * sizeof(UpdateRow);
    int64_t state = 0, v = 0;
    o->slice = host_alloc((size_t)o->slices * sizeof *o->slice, "the slices of the optimizer");
    UpdateRow *row = o->host_rows = host_alloc(bytes, "the rows of the optimizer");
    for (int i = 0; i < o->slices; i++) {
        const int64_t *start = model->master.group_start + i, *end = start + model->master.groups / o->slices;
        const int64_t count = (*end - *start) / comm_size, first = *start + comm_rank * count, v_first = v;
        Slice *s = &o->slice[i];
        s->first_row = (int)(row - o->host_rows);
        for (const TensorEntry *e = table->entry; e < table->entry + table->count; e++) {
            const int64_t at = (int64_t)(e->offset / sizeof(float)) - first;
            const int64_t begin = max(at, 0), length = min(at + tensor_count(*e->field), count) - begin;
            if (length <= 0 || (o->batch && e->matrices)) continue;
            *row++ = (UpdateRow){ .first = begin, .count = length, .decay = e->decay,
                                  .v_shift = o->batch ? begin - (v - v_first) : 0 };
            v += length;
        }
        if (!o->batch) v = v_first + count;
        s->rows = (int)(row - o->host_rows) - s->first_row;
        s->param = o->master.data ? part_of(o->master, state, count) : part_of(master, first, count);
        s->param_bf16 = part_of(params, first, count);
        s->m = part_of(o->m, state, count);
        s->v = part_of(o->v, v_first, v - v_first);
        s->grad = part_of(grads, first, count);
        state += count;
    }
    o->rows = device_alloc(bytes, "the rows of the optimizer");
    device_upload(o->rows, o->host_rows, bytes);
}

/* Group `group` of gpt_forward and gpt_backward. */
static int index_of(const Optimizer *o, int group) {
    const Params *p = &o->model->params;
    return group == o->model->config.L ? p->groups - 1 : (group + p->group_blocks) / p->group_blocks;
}

/* Waits once: until the next update the operation then is {0}. */
static void wait_for_group(void *optimizer, int group) {
    CommOp *op = &((Optimizer *)optimizer)->gathered[index_of(optimizer, group)];
    comm_wait(*op);
    *op = (CommOp){0};
}

static Tensor flat_alloc(size_t bytes, const char *what) {
    return tensor_of(device_alloc(bytes, what), F32, 1, (int64_t)(bytes / sizeof(float)));
}

void optimizer_create(Optimizer *o, GPT *model) {
    const OptimizerMemory memory = gpt_optimizer_memory(&model->config);
    *o = (Optimizer){ .model = model, .batch = memory.batch };
    o->m = flat_alloc(memory.m, "the first moments");
    o->v = flat_alloc(memory.v, "the second moments");
    o->slices = comm_size > 1 || o->batch ? model->master.groups : 1;
    if (memory.scratch) o->scratch = device_alloc(memory.scratch, "the scratch memory of Muon");
    if (comm_size > 1) {
        if (model->config.dtype != F32) o->master = flat_alloc(memory.m, "the slice of the parameters in f32");
        o->gathered = host_alloc((size_t)o->slices * sizeof *o->gathered, "the operations of ZeRO");
        comm_reserve(memory.reduce);
        model->before_group = wait_for_group;
        model->before_context = o;
    }
    set_slices(o);
    o->stats = device_alloc(sizeof *o->stats, "the statistics of a step");
    o->result = device_host_alloc(sizeof *o->result, "the results of a step");
    *o->result = (StepStats){ .loss_limit = INFINITY, .norm_limit = INFINITY };
}

/* ---- Muon (kernels/muon.h) for the matrices of the blocks */

/* A matrix in each of `count` blocks of this rank, `at` elements from the start of a block; next: the second block. */
static Tensor batch_of(Tensor block, Tensor next, int64_t at, int64_t count, int64_t size) {
    const int64_t bytes = (int64_t)dtype_bytes(block.dtype), apart = (char *)next.data - (char *)block.data;
    if (!block.data) return ABSENT;
    return (Tensor){ (char *)block.data + at * bytes, block.dtype, 2, { count, size }, apart / bytes, NULL };
}

/* Updates a matrix of every block, in batches. */
static void update_matrix(const Optimizer *o, int64_t at, int64_t rows, int64_t columns) {
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

/* Issues the update of this rank's matrices, where stats->apply. A group of parameters has a block for each rank, whose
   slice it is: nothing is sent but gradients and parameters, as with AdamW. */
static void muon_step(const Optimizer *o) {
    const Params *params = &o->model->master;
    for (const TensorEntry *e = params->table.entry; e < params->table.entry + params->table.count; e++) {
        const int64_t at = (int64_t)(e->offset / sizeof(float)) - params->group_start[1];
        if (!e->matrices || at >= tensor_count(o->slice[1].grad)) continue;                 /* another block's */
        const int64_t rows = tensor_rows(*e->field) / e->matrices, columns = tensor_columns(*e->field);
        for (int i = 0; i < e->matrices; i++) update_matrix(o, at + i * rows * columns, rows, columns);
    }
}

/* ---- A step */

void optimizer_begin(Optimizer *o, const Settings *s, double learning_rate) {
    const double t = (double)(o->step + 1);
    const float beta1 = (float)s->beta1, beta2 = (float)s->beta2;
    o->comm_wait_ms = -comm_waited_ms();
    *o->result = (StepStats){
        .learning_rate = (float)learning_rate, .beta1 = beta1, .beta2 = beta2, .eps = (float)s->eps,
        .weight_decay = (float)s->weight_decay, .max_norm = (float)s->clip,
        .loss_limit = o->result->loss_limit, .norm_limit = o->result->norm_limit,
        .stop = stop_requested() != NULL, .save = save_requested(),
        .correction1 = (float)(1 - pow(beta1, t)), .correction2 = (float)(1 - pow(beta2, t)),
    };
    device_upload_async(o->stats, o->result, sizeof *o->stats);
}

/* A group of blocks is complete with its first one, the last in the backward pass. */
void optimizer_reduce(void *optimizer, int group) {
    Optimizer *o = optimizer;
    const Params *grads = &o->model->grads;
    if (group > 0 && group < o->model->config.L && group % grads->group_blocks) return;
    o->reduced[group == FIRST_GROUP] = comm_reduce_scatter(params_group(grads, index_of(o, group), F32));
}

static void issue_update(Optimizer *o) {
    const Params *params = &o->model->params;
    comm_wait(o->reduced[0]);
    for (int i = 1; i < o->slices; i++) gradient_square_sum(o->stats, o->slice[i].grad);
    comm_wait(o->reduced[1]);
    gradient_square_sum(o->stats, o->slice[0].grad);
    /* stop, save, loss, and square_sum, as each rank has the gradients of its slices only */
    if (comm_size > 1) comm_wait(comm_all_reduce(tensor_of(&o->stats->stop, F64, 1, 4)));
    update_decide(o->stats);
    if (o->batch) muon_step(o);
    for (int i = 0; i < o->slices; i++) {
        const Slice *s = &o->slice[i];
        adamw_update(s->param, s->param_bf16, s->m, s->v, s->grad, o->rows + s->first_row, s->rows, o->stats);
        if (comm_size > 1) o->gathered[i] = comm_all_gather(params_group(params, i, o->model->config.dtype));
    }
}

void optimizer_update(Optimizer *o) {
    if (comm_size > 1 || device_graph_begin(&o->graph, 0)) issue_update(o);     /* a kernel between collectives */
    if (comm_size == 1) device_graph_end(&o->graph);
    device_download_async(o->result, o->stats, sizeof *o->stats);
    device_mark(&o->done);
    o->step++;
}

StepStats optimizer_result(Optimizer *o) {
    device_wait_mark(&o->done);
    o->comm_wait_ms += comm_waited_ms();
    o->step -= !o->result->apply;
    o->result->loss = fabs(o->result->loss);            /* the NaN of x86 is negative */
    o->result->norm = fabs(o->result->norm);
    return *o->result;
}

/* ---- The whole state, for files */

/* The slices lie apart from each other; otherwise their memory has the layout of a file. */
static int is_sharded(const Optimizer *o, OptimizerState which) {
    return comm_size > 1 ? which != STATE_PARAM || o->master.data : which == STATE_V && o->batch;
}

void *optimizer_memory(Optimizer *o, OptimizerState which) {
    if (is_sharded(o, which)) return o->model->grads.table.memory;
    return which == STATE_PARAM ? o->model->master.table.memory : which == STATE_M ? o->m.data : o->v.data;
}

/* Copies this rank's slices to the memory of the gradients, or from there; v row by row, as it has no matrices. */
static void copy_slices(Optimizer *o, OptimizerState which, int to_all) {
    for (const Slice *s = o->slice; is_sharded(o, which) && s < o->slice + o->slices; s++) {
        const Tensor state = which == STATE_PARAM ? s->param : which == STATE_M ? s->m : s->v;
        const UpdateRow whole = { .count = tensor_count(s->grad) };
        for (int i = 0; i < (which == STATE_V ? s->rows : 1); i++) {
            const UpdateRow *row = which == STATE_V ? &o->host_rows[s->first_row + i] : &whole;
            const Tensor all = part_of(s->grad, row->first, row->count);
            const Tensor part = part_of(state, row->first - row->v_shift, row->count);
            tensor_convert(to_all ? all : part, to_all ? part : all);
        }
    }
}

void optimizer_scatter(Optimizer *o, OptimizerState which) { copy_slices(o, which, 0); }

void *optimizer_gather(Optimizer *o, OptimizerState which) {
    CommOp last = o->gathered ? o->gathered[o->slices - 1] : (CommOp){0};
    copy_slices(o, which, 1);
    for (int i = 0; is_sharded(o, which) && i < o->slices; i++)
        last = comm_all_gather(params_group(&o->model->grads, i, F32));
    comm_wait(last);
    return optimizer_memory(o, which);
}
