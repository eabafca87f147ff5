#include "optimizer.h"
#include <math.h>
#include <stdlib.h>
#include "../kernels/device.h"
#include "os.h"

void optimizer_create(Optimizer *o, const GPT *model, AdamW adamw) {
    *o = (Optimizer){ .adamw = adamw, .loss_limit = INFINITY, .norm_limit = INFINITY };
    const TensorTable *table = &model->master.table;
    const int64_t count = (int64_t)(table->bytes / sizeof(float));
    o->m = tensor_of(device_alloc(table->bytes, "the first moments of AdamW"), F32, 1, count);
    o->v = tensor_of(device_alloc(table->bytes, "the second moments of AdamW"), F32, 1, count);
    size_t bytes = (size_t)table->count * sizeof(UpdateRow);
    UpdateRow *rows = host_alloc(bytes, "the rows of AdamW");
    for (int i = 0; i < table->count; i++)
        rows[i] = (UpdateRow){ .first = (int64_t)(table->entry[i].offset / sizeof(float)),
                               .count = tensor_count(*table->entry[i].field), .decay = table->entry[i].decay };
    o->rows = device_alloc(bytes, "the rows of AdamW");
    device_upload(o->rows, rows, bytes);
    free(rows);
    o->stats = device_alloc(sizeof *o->stats, "the statistics of a step");
}

void optimizer_free(Optimizer *o) {
    device_free(o->m.data);
    device_free(o->v.data);
    device_free(o->rows);
    device_free(o->stats);
    *o = (Optimizer){0};
}

void optimizer_begin(Optimizer *o, double learning_rate) {
    double t = (double)(o->step + 1);
    StepStats stats = {
        .learning_rate = (float)learning_rate, .beta1 = o->adamw.beta1, .beta2 = o->adamw.beta2, .eps = o->adamw.eps,
        .weight_decay = o->adamw.weight_decay, .max_norm = o->adamw.max_norm,
        .loss_limit = o->loss_limit, .norm_limit = o->norm_limit,
        .correction1 = (float)(1 - pow(o->adamw.beta1, t)), .correction2 = (float)(1 - pow(o->adamw.beta2, t)),
    };
    device_upload(o->stats, &stats, sizeof stats);
}

StepStats optimizer_update(Optimizer *o, GPT *model) {
    StepStats stats;
    const Tensor grads = tensor_table_flat(&model->grads.table, F32);
    const DType dtype = model->config.dtype;
    gradient_square_sum(o->stats, grads);
    update_decide(o->stats);
    adamw_update(tensor_table_flat(&model->master.table, F32),
                 dtype == F32 ? ABSENT : tensor_table_flat(&model->params.table, dtype), o->m, o->v, grads,
                 o->rows, model->master.table.count, o->stats);
    device_download(&stats, o->stats, sizeof stats);
    o->step += stats.apply;
    return stats;
}

/* ---- The learning rate */

ScheduleKind schedule_named(const char *name) {
    return *name == 'c' ? SCHEDULE_COSINE : *name == 'l' ? SCHEDULE_LINEAR : SCHEDULE_WSD;
}

double schedule_learning_rate(const Schedule *s, int64_t step) {
    if (step >= s->total) return s->final;
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)(s->warmup + 1);

    int64_t decay_start = s->warmup;
    if (s->kind == SCHEDULE_WSD && s->decay < s->total - s->warmup) decay_start = s->total - s->decay;
    if (step < decay_start) return s->peak;

    double done = (double)(step - decay_start) / (double)(s->total - decay_start);      /* 0 .. 1 */
    double left = s->kind == SCHEDULE_COSINE ? 0.5 * (1 + cos(3.14159265358979323846 * done)) : 1 - done;
    return s->final + left * (s->peak - s->final);
}
