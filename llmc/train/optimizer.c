#include "optimizer.h"
#include <math.h>
#include <stdlib.h>
#include "../../kernels/device.h"
#include "../base/os.h"
#include "muon.h"

static const OptimizerMethod *const methods[] = { [OPTIMIZER_ADAMW] = NULL, [OPTIMIZER_MUON] = &muon_method };

AdamW adamw_of(const Settings *s) {
    return (AdamW){ .beta1 = (float)s->beta1, .beta2 = (float)s->beta2, .eps = (float)s->eps,
                    .weight_decay = (float)s->weight_decay, .max_norm = (float)s->clip };
}

/* ---- Slices */

/* Sets the slices, of each group of tensors or of all; returns the number of elements of this rank. */
static int64_t set_slices(Optimizer *o) {
    const int groups = o->model->config.L + 2;
    int64_t count = 0;
    o->slices = comm_size > 1 || o->method ? groups : 1;
    o->slice = host_alloc((size_t)o->slices * sizeof *o->slice, "the slices of the optimizer");
    for (int i = 0; i < o->slices; i++) {
        const int64_t *start = o->model->master.group_start + i, *end = start + groups / o->slices;
        Slice *slice = &o->slice[i];
        slice->count = (*end - *start) / comm_size;
        slice->first = *start + comm_rank * slice->count;
        slice->state_first = count;
        count += slice->count;
    }
    return count;
}

static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

/* The rows of a slice: its intersections with the tensors of the table. A tensor in two slices has a row in each. */
static void set_rows(Optimizer *o) {
    const TensorTable *table = &o->model->master.table;
    const size_t bytes = (size_t)(table->count + o->slices - 1) * sizeof(UpdateRow);
    UpdateRow *host = o->host_rows = host_alloc(bytes, "the rows of the optimizer"), *row = host;
    int64_t v_count = 0;
    for (Slice *slice = o->slice; slice < o->slice + o->slices; slice++) {
        slice->first_row = (int)(row - host);
        slice->v_first = v_count;
        slice->v_count = o->method ? 0 : slice->count;
        for (const TensorEntry *e = table->entry; e < table->entry + table->count; e++) {
            int64_t start = (int64_t)(e->offset / sizeof(float)) - slice->first;
            int64_t first = max(start, 0), end = min(start + tensor_count(*e->field), slice->count);
            if (first >= end) continue;
            *row = (UpdateRow){ .first = first, .count = end - first, .decay = e->decay,
                                .scale = o->method ? o->method->scale(e) : 0 };
            if (o->method && row->scale == 0) {
                row->v_shift = first - slice->v_count;
                slice->v_count += row->count;
            }
            row++;
        }
        slice->rows = (int)(row - host) - slice->first_row;
        v_count += slice->v_count;
    }
    o->rows = device_alloc(bytes, "the rows of the optimizer");
    device_upload(o->rows, host, bytes);
}

static Tensor flat_grads(const Optimizer *o) { return tensor_table_flat(&o->model->grads.table, F32); }

/* A slice in memory of all elements, and in memory of this rank's only. */
static Tensor of_all(Tensor flat, const Slice *s) { return tensor_column_range(flat, s->first, s->count); }
static Tensor of_state(Tensor flat, const Slice *s) { return tensor_column_range(flat, s->state_first, s->count); }

SliceView optimizer_slice(const Optimizer *o, int index) {
    const Params *params = &o->model->params;
    const Slice *s = &o->slice[index];
    const DType dtype = o->model->config.dtype;
    const Tensor master = tensor_table_flat(&o->model->master.table, F32);
    return (SliceView){ .param = o->master.data ? of_state(o->master, s) : of_all(master, s),
                        .param_bf16 = dtype == F32 ? ABSENT : of_all(tensor_table_flat(&params->table, dtype), s),
                        .m = of_state(o->m, s), .v = tensor_column_range(o->v, s->v_first, s->v_count),
                        .grad = of_all(flat_grads(o), s), .rows = o->rows + s->first_row, .row_count = s->rows };
}

/* ---- Creation */

/* Waits once: until the next update the operation then is {0}. */
static void wait_for_group(void *optimizer, int group) {
    CommOp *op = &((Optimizer *)optimizer)->gathered[group - FIRST_GROUP];
    comm_wait(*op);
    *op = (CommOp){0};
}

static void before_group(void *optimizer, int group) { device_graph_call(wait_for_group, optimizer, group); }

void optimizer_create(Optimizer *o, GPT *model, AdamW adamw) {
    *o = (Optimizer){ .adamw = adamw, .loss_limit = INFINITY, .norm_limit = INFINITY, .model = model,
                      .method = methods[model->config.optimizer] };
    const int64_t count = set_slices(o);
    const size_t bytes = (size_t)count * sizeof(float), v_bytes = gpt_second_moment_bytes(&model->config);
    set_rows(o);
    o->m = tensor_of(device_alloc(bytes, "the first moments"), F32, 1, count);
    o->v = tensor_of(device_alloc(v_bytes, "the second moments"), F32, 1, (int64_t)(v_bytes / sizeof(float)));
    if (o->method) o->method->create(o);
    if (comm_size > 1) {
        if (model->config.dtype != F32)
            o->master = tensor_of(device_alloc(bytes, "the slice of the parameters in f32"), F32, 1, count);
        o->gathered = host_alloc((size_t)o->slices * sizeof *o->gathered, "the operations of ZeRO");
        comm_reserve(gpt_scratch_bytes(&model->config));
        model->before_group = before_group;
        model->before_context = o;
    }
    o->stats = device_alloc(sizeof *o->stats, "the statistics of a step");
    o->result = device_host_alloc(sizeof *o->result, "the results of a step");
}

void optimizer_free(Optimizer *o) {
    if (o->method) o->method->free(o);
    device_free(o->m.data);
    device_free(o->v.data);
    device_free(o->master.data);
    device_free(o->rows);
    device_free(o->stats);
    device_host_free(o->result);
    device_mark_free(&o->done);
    device_graph_free(&o->graph);
    free(o->host_rows);
    free(o->slice);
    free(o->gathered);
    *o = (Optimizer){0};
}

/* ---- A step */

void optimizer_begin(Optimizer *o, double learning_rate) {
    const double t = (double)(o->step + 1);
    o->waited_ms = comm_waited_ms();
    *o->result = (StepStats){
        .learning_rate = (float)learning_rate, .beta1 = o->adamw.beta1, .beta2 = o->adamw.beta2, .eps = o->adamw.eps,
        .weight_decay = o->adamw.weight_decay, .max_norm = o->adamw.max_norm,
        .loss_limit = o->loss_limit, .norm_limit = o->norm_limit,
        .stop = stop_requested() != NULL, .save = save_requested(),
        .correction1 = (float)(1 - pow(o->adamw.beta1, t)), .correction2 = (float)(1 - pow(o->adamw.beta2, t)),
    };
    device_upload_async(o->stats, o->result, sizeof *o->stats);
}

static void reduce_group(void *optimizer, int group) {
    Optimizer *o = optimizer;
    o->reduced[group == FIRST_GROUP] = comm_reduce_scatter(params_group(&o->model->grads, group, F32));
}

void optimizer_reduce(void *optimizer, int group) { device_graph_call(reduce_group, optimizer, group); }

/* Sums over the ranks: stop, save, loss, and square_sum, as each rank has the gradients of its slices only. */
static void reduce_stats(Optimizer *o) {
    if (comm_size > 1) comm_wait(comm_all_reduce(tensor_of(&o->stats->stop, F64, 1, 4)));
}

static void issue_update(Optimizer *o) {
    GPT *model = o->model;
    const Tensor grads = flat_grads(o);
    comm_wait(o->reduced[0]);
    for (int i = 1; i < o->slices; i++) gradient_square_sum(o->stats, of_all(grads, &o->slice[i]));
    comm_wait(o->reduced[1]);
    gradient_square_sum(o->stats, of_all(grads, &o->slice[0]));
    reduce_stats(o);
    update_decide(o->stats);
    if (o->method) o->method->update(o);
    for (int i = 0; i < o->slices; i++) {
        const SliceView s = optimizer_slice(o, i);
        adamw_update(s.param, s.param_bf16, s.m, s.v, s.grad, s.rows, s.row_count, o->stats);
        if (comm_size > 1)
            o->gathered[i] = comm_all_gather(params_group(&model->params, i + FIRST_GROUP, model->config.dtype));
    }
}

void optimizer_update(Optimizer *o) {
    if (comm_size > 1 || device_graph_begin(&o->graph, 0)) issue_update(o);     /* a kernel between collectives */
    if (comm_size == 1) device_graph_end(&o->graph);
    device_download_async(o->result, o->stats, sizeof *o->stats);
    device_mark(&o->done);
    o->step++;
}

UpdateResult optimizer_result(Optimizer *o) {
    device_wait_mark(&o->done);
    o->step -= !o->result->apply;
    o->result->loss = fabs(o->result->loss);            /* the NaN of x86 is negative */
    o->result->norm = fabs(o->result->norm);
    return (UpdateResult){ *o->result, comm_waited_ms() - o->waited_ms };
}

/* ---- The whole state, for files */

/* This rank's slices of it; absent where the memory of the model or the moments has the layout of a file. */
static Tensor sharded(const Optimizer *o, OptimizerState which) {
    const int is_packed = which == STATE_V && o->method;
    if (comm_size == 1 && !is_packed) return ABSENT;
    return which == STATE_PARAM ? o->master : which == STATE_M ? o->m : o->v;
}

void *optimizer_memory(Optimizer *o, OptimizerState which) {
    if (sharded(o, which).data) return o->model->grads.table.memory;
    return which == STATE_PARAM ? o->model->master.table.memory : which == STATE_M ? o->m.data : o->v.data;
}

/* Copies this rank's slices to the memory of the gradients, or from there; row by row, as v may lack some. */
static void copy_slices(Optimizer *o, OptimizerState which, int to_all) {
    const Tensor state = sharded(o, which);
    for (int i = 0; state.data && i < o->slices; i++) {
        const Slice *slice = &o->slice[i];
        const UpdateRow *end = o->host_rows + slice->first_row + slice->rows;
        for (const UpdateRow *row = end - slice->rows; row < end; row++) {
            if (which == STATE_V && row->scale > 0) continue;
            const int64_t start = which == STATE_V ? slice->v_first - row->v_shift : slice->state_first;
            const Tensor all = tensor_column_range(of_all(flat_grads(o), slice), row->first, row->count);
            const Tensor part = tensor_column_range(state, start + row->first, row->count);
            tensor_convert(to_all ? all : part, to_all ? part : all);
        }
    }
}

void optimizer_scatter(Optimizer *o, OptimizerState which) { copy_slices(o, which, 0); }

void *optimizer_gather(Optimizer *o, OptimizerState which) {
    CommOp last = o->gathered ? o->gathered[o->slices - 1] : (CommOp){0};
    copy_slices(o, which, 1);
    for (int i = 0; sharded(o, which).data && i < o->slices; i++)
        last = comm_all_gather(params_group(&o->model->grads, i + FIRST_GROUP, F32));
    comm_wait(last);
    return optimizer_memory(o, which);
}
