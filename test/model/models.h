/* models.h - What tests of models share: tensors on the host, in arrays that live until the test ends, and a tiny GPT
   whose rows hold random bits. */
#pragma once
#include "../test.h"
#include "../../kernels/matmul.h"
#include "../../kernels/normal.h"
#include "../../llmc/checkpoint/safetensors.h"
#include "../../llmc/checkpoint/weights.h"
#include "../../llmc/train/optimizer.h"

/* The program frees neither: they live until it ends. */
static inline void gpt_free(GPT *m) {
    if (m->master.table.memory == m->grads.table.memory) m->master.table.memory = NULL;
    if (m->config.dtype != F32) params_free(&m->master);
    params_free(&m->params);
    params_free(&m->grads);
    device_free(m->acts.table.memory);
    free(m->acts.table.entry);
    free(m->acts.block);
    device_graph_free(&m->step);
}

static inline void optimizer_free(Optimizer *o) {
    void *const device[] = { o->m.data, o->v.data, o->master.data, o->scratch, o->rows, o->stats };
    void *const host[] = { o->host_rows, o->slice, o->gathered };
    for (int i = 0; i < COUNT(device); i++) device_free(device[i]);
    for (int i = 0; i < COUNT(host); i++) free(host[i]);
    device_host_free(o->result);
    device_mark_free(&o->done);
    device_graph_free(&o->graph);
}

static inline void free_model(void *model) {
    gpt_free(model);
    free(model);
}

/* Until the test ends. */
static inline GPT *new_model(GPTConfig config, const char *attention, int B, int T, Purpose purpose) {
    GPT *m = malloc(sizeof *m);
    gpt_create(m, config, attention, B, T, purpose);
    return test_keep_by(free_model, m);
}

/* A copy of a tensor of a file of test/reference, which does not align it. */
static inline void *tensor_from(const SafeFile *file, const char *name, const char *dtype, size_t bytes,
                                int64_t count) {
    const SafeTensor *t = safetensors_find(file, name);
    REQUIRE(t && !strcmp(t->dtype, dtype) && t->bytes == count * (int64_t)bytes, "%s: %s: want %lld elements of %s: "
            "run make reference", file->path, name, (long long)count, dtype);
    return memcpy(new_array(count, bytes), t->data, (size_t)t->bytes);
}

/* All of a tensor or a table, in f32 or I32. BF16 is widened. */
static inline void *download(Tensor t) {
    int64_t count = tensor_count(t);
    float *host = new_array(count, sizeof *host);
    device_download(host, t.data, tensor_bytes(t));
    for (int64_t i = count - 1; i >= 0 && t.dtype == BF16; i--) {      /* the upper half of an f32, from the last on */
        uint32_t bits = (uint32_t)((uint16_t *)host)[i] << 16;
        memcpy(&host[i], &bits, sizeof bits);
    }
    return host;
}

static inline int same_values(Tensor a, Tensor b) {
    const int blocks = test_blocks;
    void *x = download(a), *y = download(b);
    int same = tensor_count(a) == tensor_count(b) && !memcmp(x, y, (size_t)tensor_count(a) * sizeof(float));
    test_release(blocks);
    return same;
}

static inline Tensor flat_params(const Params *params) {
    return tensor_table_flat(&params->table, params->wte.dtype);
}
static inline float *download_params(const Params *params) { return download(flat_params(params)); }
static inline int same_params(const Params *a, const Params *b) { return same_values(flat_params(a), flat_params(b)); }

/* Elements that are in no file, the gaps between rows and the padding of the token table, and are not zero. */
static inline int64_t outside_nonzero(const Params *params, int V) {
    const TensorTable *table = &params->table;
    float *value = download_params(params);
    int64_t count = 0, end = tensor_count(flat_params(params)), bytes = (int64_t)dtype_bytes(params->wte.dtype);
    for (int i = 0; i < table->count; i++) {
        Tensor t = *table->entry[i].field;
        int64_t inside = table->entry[i].layout == VOCABULARY ? V * tensor_columns(t) : tensor_count(t);
        memset(value + (int64_t)table->entry[i].offset / bytes, 0, (size_t)inside * sizeof *value);
    }
    for (int64_t i = 0; i < end; i++) count += value[i] != 0;
    return count;
}

/* Both passes over the loaded batch */
static inline void train_pass(GPT *m, float dloss, Into into) {
    gpt_forward(m);
    gpt_backward(m, dloss, into, NULL, NULL);
}

/* Losses of the loaded batch, summed; an ignored target has loss 0. */
static inline double sum_of_losses(const GPT *m) {
    float *losses = download(m->acts.losses);
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(m->acts.losses); i++) sum += losses[i];
    return sum;
}

/* (B,T,V), packed, of the pass that has run. */
static inline float *logits_of(const GPT *m) {
    const int64_t rows = tensor_rows(m->acts.lnf), V = m->config.V, Vp = m->config.Vp;
    Tensor logits = tensor_of(new_device_memory((size_t)(rows * Vp) * sizeof(float)), F32, 2, rows, Vp);
    matmul_forward(logits, ABSENT, tensor_flat(m->acts.lnf), m->params.lm_head, ABSENT);
    float *got = download(logits);
    for (int64_t i = 0; i < rows * V; i++) got[i] = got[i / V * Vp + i % V];    /* never from behind its source */
    return got;
}

static inline StepStats update(Optimizer *o) {
    optimizer_update(o);
    return optimizer_result(o);
}

static inline void expect_equal_rows(const Params *a, const Params *b, const char *what) {
    for (int i = 0; i < a->table.count; i++)
        EXPECT(same_values(*a->table.entry[i].field, *b->table.entry[i].field), "%s: %s differs", what,
               a->table.entry[i].name);
}

static inline void expect_equal_moments(const Optimizer *a, const Optimizer *b) {
    EXPECT(same_values(a->m, b->m), "the first moments differ");
    EXPECT(same_values(a->v, b->v), "the second moments differ");
}

/* max|a-b| / max|b|. Where b is 0 by theory (1e-17 in float64), the error is absolute: the reference has gradients of
   about 0.1. */
static inline double error_of(const float *a, const float *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(a[i])) return INFINITY;
        difference = fmax(difference, fabs((double)a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return size > 1e-12 ? difference / size : difference;
}

/* How far rounding may go: max|a-b| / max|b| of a tensor, of a batch of B x T tokens.
   An operation is off by half an ulp u for each term of its sums, now up, now down: n terms by sqrt(n) u; and N of them
   in a row, each on what the one before has left, by sqrt(N) times that. The longest sums are those of the MLP, 4C, and
   of a weight's gradient, B T; that over the vocabulary is a mean, which few terms make. A block has 8 operations, the
   rest of the model 3, and the backward pass two for each. PyTorch in f32 stays within a third of this.
   In bf16, u = 2^-9, sums are made in f32: their length does not matter, but each of the N operations reads two
   operands that are rounded, and rounds what it writes: sqrt(3 N) u; twice that, as some take a difference (x - its
   mean, dP - its mean), to which both terms' errors are relatively larger. PyTorch in bf16, whose gradients are bf16,
   too, comes to 0.7 of this. */
static inline double tolerance(const GPTConfig *c, int B, int T) {
    double N = 3 * (8.0 * c->L + 3);
    return c->dtype == BF16 ? 2 * 0x1p-9 * sqrt(3 * N) : 0x1p-24 * sqrt(fmax(4.0 * c->C, (double)B * T) * N);
}

/* Normal numbers times deviation in all tensors, or only in matrices; the padding of the vocabulary stays. */
static inline void fill_normally(GPT *m, uint64_t seed, double deviation, int matrices_only) {
    for (int i = 0; i < m->master.table.count; i++) {
        const TensorEntry *row = &m->master.table.entry[i];
        Tensor t = *row->field;
        if (matrices_only && t.ndim < 2) continue;
        int64_t count = row->layout == VOCABULARY ? m->config.V * t.dim[1] : tensor_count(t);
        float *value = new_array(tensor_count(t), sizeof *value);
        for (int64_t j = 0; j < count; j++)
            value[j] = (float)(deviation * normal_of(philox(seed, RANDOM_TEST, 0, (uint32_t)i, (uint64_t)j)));
        device_upload(t.data, value, tensor_bytes(t));
    }
    gpt_cast_params(m);
}

/* The table of a model from a file. */
static inline void params_read(const char *path, const Params *params, int V) {
    weights_read(path, &params->table, &(Part){ "", "", params->table.memory }, 1, V);
}

typedef struct { GPT model; Optimizer optimizer; } Trainer;

static inline void free_trainer(void *trainer) {
    Trainer *t = trainer;
    optimizer_free(&t->optimizer);
    gpt_free(&t->model);
    free(t);
}

/* A model to train, without weights, until the test ends. */
static inline Trainer *new_trainer(GPTConfig config, int B, int T) {
    Trainer *t = malloc(sizeof *t);
    gpt_create(&t->model, config, "auto", B, T, TRAIN);
    optimizer_create(&t->optimizer, &t->model);
    return test_keep_by(free_trainer, t);
}

/* memory: of tensors as the table says */
static inline void fill_memory(const TensorTable *table, void *memory, int V, uint32_t seed) {
    for (int i = 0; i < table->count; i++) {
        Tensor t = *table->entry[i].field;
        uint32_t *bits = new_array(tensor_count(t), sizeof *bits);
        int64_t count = table->entry[i].layout == VOCABULARY ? V * t.dim[1] : tensor_count(t);
        for (int64_t j = 0; j < count; j++)                /* any finite number: the highest bit of the exponent is 0 */
            bits[j] = philox(7, RANDOM_TEST, 0, seed, (uint64_t)(i << 20 | j)).word[0] & 0xbfffffff;
        device_upload((char *)memory + table->entry[i].offset, bits, tensor_bytes(t));
    }
}

static inline void fill(const Params *params, int V, uint32_t seed) {
    fill_memory(&params->table, params->table.memory, V, seed);
}

static inline void tiny_fill(Trainer *t, uint32_t seed) {
    fill(&t->model.params, t->model.config.V, seed);
    fill_memory(&t->model.params.table, t->optimizer.m.data, t->model.config.V, seed + 1);
    fill_memory(&t->model.params.table, t->optimizer.v.data, t->model.config.V, seed + 2);
}

static inline Trainer *new_tiny(uint32_t seed) {
    Trainer *t = new_trainer((GPTConfig){ .L = 2, .NH = 2, .C = 16, .T = 7, .V = 65 }, 1, 7);
    tiny_fill(t, seed);
    return t;
}
