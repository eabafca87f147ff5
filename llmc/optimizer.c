#include "optimizer.h"
#include <math.h>
#include <stdlib.h>
#include "../kernels/check.h"
#include "../kernels/device.h"

size_t optimizer_bytes(const GPTConfig *config) {
    return 2 * gpt_param_bytes(config, F32);
}

void optimizer_create(Optimizer *o, const GPT *model, AdamW adamw) {
    *o = (Optimizer){ .adamw = adamw, .loss_limit = INFINITY, .norm_limit = INFINITY };
    params_create(&o->m, &model->config, F32, "the first moments of AdamW");
    params_create(&o->v, &model->config, F32, "the second moments of AdamW");
    const Table *table = &model->master.table;
    size_t bytes = (size_t)table->count * sizeof(UpdateRow);
    UpdateRow *rows = malloc(bytes);
    REQUIRE(rows, "out of memory: the rows of AdamW");
    for (int i = 0; i < table->count; i++)
        rows[i] = (UpdateRow){ .first = (int64_t)(table->row[i].offset / sizeof(float)),
                               .count = tensor_count(*table->row[i].field), .decay = table->row[i].decay };
    o->rows = device_alloc(bytes, "the rows of AdamW");
    device_upload(o->rows, rows, bytes);
    free(rows);
    o->numbers = device_alloc(sizeof *o->numbers, "the numbers of a step");
}

void optimizer_free(Optimizer *o) {
    params_free(&o->m);
    params_free(&o->v);
    device_free(o->rows);
    device_free(o->numbers);
    *o = (Optimizer){0};
}

void optimizer_begin(Optimizer *o, double learning_rate) {
    double t = (double)(o->step + 1);
    StepNumbers numbers = {
        .learning_rate = (float)learning_rate, .beta1 = o->adamw.beta1, .beta2 = o->adamw.beta2, .eps = o->adamw.eps,
        .weight_decay = o->adamw.weight_decay, .max_norm = o->adamw.max_norm,
        .loss_limit = o->loss_limit, .norm_limit = o->norm_limit,
        .correction1 = (float)(1 - pow(o->adamw.beta1, t)), .correction2 = (float)(1 - pow(o->adamw.beta2, t)),
    };
    device_upload(o->numbers, &numbers, sizeof numbers);
}

StepNumbers optimizer_update(Optimizer *o, GPT *model) {
    StepNumbers numbers;
    gradient_norm(o->numbers, table_flat(&model->grads.table, F32));
    Tensor copy = model->config.dtype == F32 ? ABSENT : table_flat(&model->params.table, model->config.dtype);
    adamw_update(table_flat(&model->master.table, F32), copy, table_flat(&o->m.table, F32),
                 table_flat(&o->v.table, F32), table_flat(&model->grads.table, F32), o->rows,
                 model->master.table.count, o->numbers);
    device_download(&numbers, o->numbers, sizeof numbers);
    o->step += numbers.apply;
    return numbers;
}
