/* test_gpt.c - The whole model: against HuggingFace's GPT2LMHeadModel in float64 (reference.h), and what must hold of
   any model. */
#include "../oracle.h"
#include "reference.h"

static void random_batch(int32_t *batch, int count, uint32_t which, int V) {
    for (int i = 0; i < count; i++)
        batch[i] = (int32_t)random_below(1, RANDOM_TEST, which, (uint64_t)i, (uint64_t)V);
}

/* The model of the file, with its batch. */
static GPT *reference_model(const Reference *r, const char *attention) {
    GPT *m = new_model(r->config, attention, r->B, r->T, TRAIN);
    read_reference(m, r);
    load(m, r->tokens, r->targets, 0);
    return m;
}

/* ---- Against the reference */

/* c_attn holds q, k and v, which are compared one by one: a wrong k would hide behind a large v, and the gradient of
   its bias is zero by theory, as a softmax does not change when all its scores move by q . bias. */
static double compare_gradient(const Reference *r, const TensorEntry *row, double limit) {
    char name[96];
    snprintf(name, sizeof name, "grad.%s", row->name);
    Tensor t = *row->field;
    int64_t N = t.dim[0], K = t.ndim == 2 ? t.dim[1] : 1, count = row->layout == VOCABULARY ? r->config.V * K : N * K;
    float *file = tensor_from(&r->file, name, "F32", 4, count);
    float *got = download(t), *want = new_array(count, sizeof *want);
    for (int64_t i = 0; i < count; i++)
        want[i] = row->layout == CONV1D ? file[i % K * N + i / K] : file[i];
    int parts = strstr(row->name, "c_attn") ? 3 : 1;
    double worst = 0;
    for (int i = 0; i < parts; i++) {
        int64_t size = count / parts;
        double error = error_of(got + i * size, want + i * size, size);
        EXPECT(error <= limit, "%s: gradient of %s, part %d of %d: error %.2g, want at most %.2g", r->path, row->name,
               i + 1, parts, error, limit);
        worst = fmax(worst, error);
    }
    return worst;
}

/* By how much the loss has fallen is a sum of gradients times updates, which are off by limit of themselves: so is the
   fall, which is at most the first loss. AdamW is steady: it divides a gradient by its own size. */
static void compare_steps(GPT *m, const Reference *r, double *loss_error, double *norm_error, double limit) {
    Optimizer o;
    optimizer_create(&o, m);
    for (int step = 0; step < r->steps; step++) {
        train_pass(m, 1.0f / (float)r->target_count, OVERWRITE);
        optimizer_begin(&o, &r->settings, r->learning_rate);
        loss_add(o.stats, m->acts.losses, 1.0f / (float)r->target_count);
        StepStats got = update(&o);
        double loss = fabs(got.loss - r->losses[step]) / r->losses[0], norm = fabs(got.norm / r->norms[step] - 1);
        EXPECT(got.apply && o.step == step + 1, "%s: step %d was not applied", r->path, step + 1);
        EXPECT(loss <= limit && norm <= limit, "%s: step %d: loss %.9f, want %.9f; norm %.9f, want %.9f; up to %.1e",
               r->path, step + 1, got.loss, r->losses[step], got.norm, r->norms[step], limit);
        *loss_error = fmax(*loss_error, loss);
        *norm_error = fmax(*norm_error, norm);
    }
    EXPECT(outside_nonzero(&m->params, r->config.V) == 0 && outside_nonzero(&m->master, r->config.V) == 0,
           "%s: padding moved after %d steps", r->path, r->steps);
    optimizer_free(&o);
}

static void against_reference(const Reference *r, const char *attention) {
    double limit = tolerance(&r->config, r->B, r->T), steps = 0, norms = 0, worst = 0;
    GPT *m = reference_model(r, attention);
    gpt_forward(m);
    double logits = error_of(logits_of(m), reference_logits(r), (int64_t)r->B * r->T * r->config.V);
    EXPECT(logits <= limit, "%s: logits: error %.2g, want at most %.2g", r->path, logits, limit);
    gpt_backward(m, 1.0f / (float)r->target_count, OVERWRITE, NULL, NULL);
    double loss = fabs(sum_of_losses(m) / r->target_count / r->losses[0] - 1);
    double loss_limit = limit / sqrt(r->target_count);       /* a mean of as many errors, now up, now down */
    EXPECT(loss <= loss_limit, "%s: loss: error %.2g, want at most %.2g", r->path, loss, loss_limit);
    for (int i = 0; i < m->grads.table.count; i++)
        worst = fmax(worst, compare_gradient(r, &m->grads.table.entry[i], limit));
    EXPECT(outside_nonzero(&m->grads, r->config.V) == 0, "%s: padding has a gradient", r->path);
    compare_steps(m, r, &steps, &norms, limit);
    printf("  %s %s %s: errors (allowed %.1e): logits %.1e, loss %.1e, gradients %.1e; %d steps of AdamW: losses "
           "%.1e, norms %.1e\n", r->path, attention, dtype_name(r->config.dtype), limit, logits, loss, worst, r->steps,
           steps, norms);
}

/* ---- What must hold of any model; the awkward reference lends weights that leave no path idle */

/* The first T tokens of B sequences of the reference's batch from sequence b on, behind them the targets. */
static int32_t *corner_of(const Reference *r, int b, int B, int T) {
    int32_t *batch = new_array(2 * B * T, sizeof *batch);
    for (int i = 0; i < B * T; i++) {
        batch[i]         = r->tokens [(b + i / T) * r->T + i % T];
        batch[B * T + i] = r->targets[(b + i / T) * r->T + i % T];
    }
    return batch;
}

static void load_corner(GPT *m, const Reference *r, int b, int B, int T) {
    int32_t *batch = corner_of(r, b, B, T);
    gpt_set_batch(m, B, T);
    load(m, batch, batch + B * T, b);
}

static int same_losses(const GPT *a, const GPT *b) { return same_values(a->acts.losses, b->acts.losses); }

typedef struct { const GPT *m; int next; float *grads; } Ready;

static int block_of(const char *name, int L) {
    int block;
    if (sscanf(name, "transformer.h.%d.", &block) == 1) return block;
    return strstr(name, "wte") || strstr(name, "wpe") ? -1 : L;
}

/* Copies the gradients that have become final. */
static void copy_ready(void *context, int group) {
    Ready *ready = context;
    EXPECT(group == ready->next, "group %d is ready, want %d", group, ready->next);
    ready->next--;
    for (int i = 0; i < ready->m->grads.table.count; i++) {
        const TensorEntry *row = &ready->m->grads.table.entry[i];
        if (block_of(row->name, ready->m->config.L) == group)
            device_download((char *)ready->grads + row->offset, row->field->data, tensor_bytes(*row->field));
    }
}

/* Gradients are final when they are reported, and all are reported. */
static void reported_gradients_are_final(const Reference *r, const char *attention) {
    GPT *m = reference_model(r, attention);
    Tensor grads = flat_params(&m->grads);
    Ready ready = { m, m->config.L, new_array(tensor_count(grads), sizeof(float)) };
    gpt_forward(m);
    gpt_backward(m, 1.0f / (float)r->target_count, OVERWRITE, copy_ready, &ready);
    float *end = download(grads);
    EXPECT(ready.next == -2, "%s: the last group reported is %d", attention, ready.next + 1);
    EXPECT(!memcmp(ready.grads, end, tensor_bytes(grads)), "%s: gradients changed after their report", attention);
}

/* ---- Dropout */

/* The sum of the losses of a batch in double; p: the parameters in the order of their table. */
static double exact_loss(const GPTConfig *c, double *const *p, const int32_t *batch, int B, int T) {
    const int rows = B * T, C = c->C, n = rows * C;
    uint64_t first = FIRST;
    double *x = new_array(13 * n + rows * (c->NH + 3) + c->Vp * C, sizeof *x), *y = x + n, *branch = y + n;
    double *qkv = branch + n, *split = qkv + 3 * n, *h = split + 3 * n, *mean = h + 4 * n, *rstd = mean + rows;
    double *lse = rstd + rows, *losses = lse + rows * c->NH, *dwte = losses + rows, *add = NULL, loss = 0;
    Dropout mask = { .rate = c->dropout, .site = RANDOM_DROPOUT, .seed = c->dropout_seed, .sequence = &first };
    oracle_embedding_forward(x, batch, p[0], p[1], B, T, C);
    oracle_dropout(x, x, &mask, first, B, T, C);
    for (int l = 0; l < c->L; l++) {
        double *const *w = p + 2 + 12 * l;
        oracle_residual_layernorm_forward(x, y, mean, rstd, x, add, w[0], w[1], rows, C);
        oracle_matmul_forward(qkv, y, w[2], w[3], rows, 3 * C, C);
        for (int i = 0; i < 3 * rows; i++)
            memcpy(split + (i % 3 * rows + i / 3) * C, qkv + i * C, (size_t)C * sizeof *x);
        mask.site = RANDOM_DROPOUT | (uint32_t)(3 * l + 1) << 8;
        const AttentionSpec spec = { .B = B, .Tq = T, .Tk = T, .NH = c->NH, .HS = C / c->NH, .causal = 1,
                                     .scale = (float)(1 / sqrt(C / c->NH)), .dropout = mask };
        oracle_attention_forward(&spec, y, lse, split, split + n, split + 2 * n);
        oracle_matmul_forward(branch, y, w[4], w[5], rows, C, C);
        mask.site += 1 << 8;
        oracle_dropout(branch, branch, &mask, first, B, T, C);
        oracle_residual_layernorm_forward(x, y, mean, rstd, x, branch, w[6], w[7], rows, C);
        oracle_matmul_forward(h, y, w[8], w[9], rows, 4 * C, C);
        oracle_gelu_forward(h, h, 4 * n);
        oracle_matmul_forward(branch, h, w[10], w[11], rows, C, 4 * C);
        mask.site += 1 << 8;
        oracle_dropout(branch, branch, &mask, first, B, T, C);
        add = branch;
    }
    oracle_residual_layernorm_forward(x, y, mean, rstd, x, add, p[2 + 12 * c->L], p[3 + 12 * c->L], rows, C);
    oracle_head_loss(losses, x, dwte, y, p[0], batch + rows, rows, C, c->V, c->Vp, 1);
    for (int i = 0; i < rows; i++) loss += losses[i];
    return loss;
}

static double direction(int row, int64_t i) {
    return philox(3, RANDOM_TEST, 0, (uint32_t)row, (uint64_t)i).word[0] % 2 ? 1 : -1;
}

/* The gradient of each tensor, times a vector v of 1 and -1, against the derivative of the exact loss along v, by
   central differences. n errors of up to limit * max|gradient| add up to sqrt(n) of it. */
static void dropout_has_its_gradients(const Reference *r, const char *attention) {
    enum { B = 2, T = 20, ROWS = 64 };
    static const double step = 1e-5;
    const GPTConfig *c = &r->config;
    const double limit = tolerance(c, B, T);
    GPT *m = reference_model(r, attention);
    double *p[ROWS];
    int32_t *batch = corner_of(r, 0, B, T);
    load_corner(m, r, 0, B, T);
    train_pass(m, 1, OVERWRITE);
    const TensorTable *table = &m->params.table;
    for (int i = 0; i < table->count; i++) {
        float *value = download(*table->entry[i].field);
        const int64_t count = tensor_count(*table->entry[i].field);
        p[i] = new_array(count, sizeof *p[i]);
        for (int64_t k = 0; k < count; k++) p[i][k] = value[k];
    }
    const double loss = exact_loss(c, p, batch, B, T), got_loss = sum_of_losses(m);
    EXPECT(fabs(got_loss / loss - 1) <= limit, "%s: loss %.9g, want %.9g", attention, got_loss, loss);
    for (int i = 0; i < table->count; i++) {
        const TensorEntry *row = &table->entry[i];
        const int64_t count = row->layout == VOCABULARY ? c->V * c->C : tensor_count(*row->field);
        float *grad = download(*m->grads.table.entry[i].field);
        double got = 0, max = 0, side[2];
        for (int64_t k = 0; k < count; k++) {
            got += grad[k] * direction(i, k);
            max = fmax(max, fabs(grad[k]));
        }
        for (int s = 0; s < 2; s++) {
            for (int64_t k = 0; k < count; k++) p[i][k] += (s ? -2 : 1) * step * direction(i, k);
            side[s] = exact_loss(c, p, batch, B, T);
        }
        for (int64_t k = 0; k < count; k++) p[i][k] += step * direction(i, k);
        const double want = (side[0] - side[1]) / (2 * step), bound = 4 * limit * max * sqrt((double)count);
        EXPECT(fabs(got - want) <= bound, "%s: derivative along a vector of %s: %.9g, want %.9g up to %.2g", attention,
               row->name, got, want, bound);
    }
}

#define WHOLE "build/reference-124M.safetensors"

static void reference_124M(void) {
    reference_test = against_reference;
    if (file_exists(WHOLE)) each_attention(WHOLE, 0);
    else test_skip_reason = "there is no " WHOLE ": make reference-124M writes it";
}

/* ---- Recomputation, overlap and FP8 */

static int keep_order;
void __real_device_overlap_begin(void);
void __wrap_device_overlap_begin(void);
void __wrap_device_overlap_begin(void) { if (!keep_order) __real_device_overlap_begin(); }

/* So that a value that is read before it is made is found even if the old one was the same. */
static void poison_activations(const GPT *m) {
    void *poison = malloc(m->act_bytes);
    memset(poison, 0xff, m->act_bytes);             /* NaN in every type */
    device_upload(m->acts.table.memory, poison, m->act_bytes);
    free(poison);           /* at once: some hundred MB on a GPU */
}

/* The file lends its data type and rate of dropout. Two micro-batches, the second one smaller, at every level of
   recomputation, with overlap and without, with weights kept from the first: losses and gradients of none of these. On
   a GPU, in parts that take microseconds beside a stream that is as fast, and several times: a result that is read too
   early, or an operand that is written too early, is another one. */
static void recomputation_and_overlap_change_no_bit(const Reference *r, const char *attention) {
    enum { VARIANTS = 4 };      /* variants of a level */
    const int is_small = !strcmp(backend_name, "cpu"), B = is_small ? 2 : 8, T = is_small ? 8 : 256;
    const int C = is_small ? 16 : 256;
    int32_t *tokens = new_array(B * T, sizeof *tokens), *targets = new_array(B * T, sizeof *targets);
    random_batch(tokens, B * T, 2, 70);
    random_batch(targets, B * T, 3, 70);
    GPT *first = NULL;
    int blocks = 0;
    size_t bytes_before = SIZE_MAX;
    for (int i = 0; i < VARIANTS * (RECOMPUTE_BLOCK + 1); i++) {
        GPTConfig config = { .L = 3, .NH = C / 8, .C = C, .T = T, .V = 70, .deterministic = 1, .dropout_seed = 5,
                             .dtype = r->config.dtype, .matmul_dtype = r->config.matmul_dtype,
                             .dropout = r->config.dropout, .untied = r->config.dropout > 0,
                             .recompute = (Recompute)(i / VARIANTS) };
        GPT *m = new_model(config, attention, B, T, TRAIN);
        if (!first) {
            first = m;
            blocks = test_blocks;
        }
        fill_normally(m, 5, 0.3, 0);
        EXPECT(i % VARIANTS || m->act_bytes < bytes_before, "%s: level %d takes %zu bytes, the level before %zu",
               attention, config.recompute, m->act_bytes, bytes_before);
        bytes_before = m->act_bytes;
        keep_order = i % 2 == 0;
        for (int time = 0; time < (is_small || keep_order ? 1 : 4); time++) {
            poison_activations(m);
            for (int step = 0; step < 2; step++) {
                const int less = r->config.matmul_dtype == E4M3 ? 0 : step;     /* weights_kept: of the same shape */
                gpt_set_batch(m, B - less, T - less);
                load(m, tokens, targets, step);
                m->weights_kept = step && i % VARIANTS >= 2;
                train_pass(m, 1, step ? ACCUMULATE : OVERWRITE);
            }
            EXPECT(isfinite(sum_of_losses(m)) && same_losses(first, m), "%s: losses of level %d, variant %d",
                   attention, config.recompute, i);
            expect_equal_rows(&first->grads, &m->grads, attention);
        }
        keep_order = 0;
        test_release(blocks);           /* all but the first model */
    }
}

/* The gradients of random weights, with the largest of a tensor's differences from those of bf16, as |a - b| / |b|. An
   element in E4M3 is off by 2.6 % of itself (rms), so a product of two by 3.7 %, and 12 L products follow each other:
   0.037 sqrt(12 L). */
static void fp8_products(void) {
    enum { B = 3, T = 80, LAYERS = 2 };
    if (device_refuse_dtype(E4M3)) {
        test_skip_reason = device_refuse_dtype(E4M3);
        return;
    }
    recomputation_and_overlap_change_no_bit(&(Reference){ .config = { .dtype = BF16, .matmul_dtype = E4M3 } }, "auto");
    int32_t *tokens = new_array(B * T, sizeof *tokens), *targets = new_array(B * T, sizeof *targets);
    random_batch(tokens, B * T, 2, 70);
    random_batch(targets, B * T, 3, 70);
    GPT *models[2];
    for (int i = 0; i < 2; i++) {
        const GPTConfig config = { .L = LAYERS, .NH = 6, .C = 144, .T = T, .V = 70, .deterministic = 1, .dtype = BF16,
                                   .matmul_dtype = i ? E4M3 : BF16 };
        models[i] = new_model(config, "auto", B, T, TRAIN);
        gpt_init(models[i], 5);
        fill_normally(models[i], 5, 0.05, 1);
        load(models[i], tokens, targets, 0);
        train_pass(models[i], 1, OVERWRITE);
    }
    GPT *plain = models[0], *fp8 = models[1];
    double worst = 0;
    for (int i = 0; i < plain->grads.table.count; i++) {
        const TensorEntry *row = &plain->grads.table.entry[i];
        const int64_t count = tensor_count(*row->field);
        float *want = download(*row->field), *got = download(*fp8->grads.table.entry[i].field);
        double difference = 0, size = 0;
        for (int64_t k = 0; k < count; k++) {
            difference += ((double)got[k] - want[k]) * ((double)got[k] - want[k]);
            size += (double)want[k] * want[k];
        }
        const double error = sqrt(difference / size);
        EXPECT(error <= 0.037 * sqrt(12 * LAYERS), "%s: the gradient differs by %.3g", row->name, error);
        worst = fmax(worst, error);
    }
    printf("  gradients in fp8 differ by up to %.3g\n", worst);
    EXPECT(worst > 0.01, "%g: the products are not in fp8", worst);
    for (int i = 0; i < 2; i++) {
        gpt_load(models[i], tokens, targets, NULL);
        gpt_forward(models[i]);
        gpt_loss(models[i]);
    }
    EXPECT(same_losses(fp8, plain), "an evaluation is in bf16");
    const float nan = NAN;
    device_upload((char *)fp8->params.block[1].fcw.data + 2, (const char *)&nan + 2, 2);
    load(fp8, tokens, targets, 0);
    train_pass(fp8, 1, OVERWRITE);
    EXPECT(isnan(sum_of_losses(fp8)), "a weight is NaN, the loss is not");
}

int main(void) {
    test_device_open((DeviceOptions){0});
    RUN_REFERENCE(PLAIN, WITHOUT, against_reference);
    RUN_REFERENCE(AWKWARD, WITHOUT, against_reference);
    RUN(reference_124M);
    RUN_REFERENCE(AWKWARD, WITH | WITHOUT, dropout_has_its_gradients);
    RUN_REFERENCE(AWKWARD, WITH | WITHOUT, reported_gradients_are_final);
    RUN_REFERENCE(AWKWARD, WITH | WITHOUT, recomputation_and_overlap_change_no_bit);
    RUN(fp8_products);
    return test_close();
}
