/* test_run.c - The program's own figures, checked step by step: train_gpt trains and saves after every step, and
   each step is repeated from the checkpoint before it in another arrangement, all micro-batches as one batch, with the
   norm, AdamW, the schedule and the means written out in double. Then FLOPs and memory plan against explicit counts. */
#include "../model/models.h"
#include "../scratch.h"
#include "../../llmc/checkpoint/checkpoint.h"
#include "../../llmc/model/model_config.h"

/* An update is 3 micro-batches of 2 sequences; with this seed the short window is the first of one, so that its targets
   would be missed in a count that is off by a sequence. With an epsilon of 1 an update is a smooth function of the
   gradient (its derivative is at most 1), so the error of a weight can be bounded by that of the gradient. */
enum { B = 2, MICRO_BATCHES = 3, SEQUENCES = B * MICRO_BATCHES, T = 17, STEPS = 5, VAL_EVERY = 2, WARMUP = 2, SEED = 41,
       L = 2, NH = 2, C = 64, BYTES = 480, VAL_BYTES = 320 };  /* 29 windows, the last one short; the steps read 30 */
static const double LR = 0.5, FINAL_LR = 0.05, BETA1 = 0.8, BETA2 = 0.9, EPS = 1, WEIGHT_DECAY = 0.2, CLIP = 0.5;

static const char *program;                 /* build/cpu/train_gpt */

/* ---- The log */

static const char *log_text;
static double logged(int step, const char *column) {        /* NaN: empty */
    const char *cell = log_cell(log_text, step, column);
    return cell && *cell ? strtod(cell, NULL) : NAN;
}

/* ---- A step, repeated */

typedef struct { float *param, *m, *v; } Weights;       /* on the host, as they lie on the device */

/* After a step; 0: the initial weights, and the moments that optimizer_create zeroed. */
static Weights load(const char *out, int step, GPT *gpt, Optimizer *optimizer) {
    char *checkpoint = STRING("%s/step-%08d", out, step);
    if (step) checkpoint_load_model(checkpoint, gpt);
    else gpt_init(gpt, SEED);
    const TrainState state = step ? checkpoint_load_state(checkpoint) : (TrainState){0};
    if (step) checkpoint_load_optimizer(checkpoint, &state, OPTIMIZER_ADAMW, optimizer);
    EXPECT(optimizer->step == step, "%lld updates after step %d", (long long)optimizer->step, step);
    return (Weights){ download(tensor_table_flat(&gpt->master.table, F32)),
                      download(optimizer->m),
                      download(optimizer->v) };
}

static double learning_rate(int step) {         /* cosine */
    if (step < WARMUP) return LR * (step + 1) / (WARMUP + 1);
    return FINAL_LR + (LR - FINAL_LR) * (1 + cos(acos(-1) * (step - WARMUP) / (STEPS - WARMUP))) / 2;
}

static void expect_near(double got, double want, double bound, const char *what, int step) {
    EXPECT(fabs(got - want) <= bound, "step %d: %s %.9g, want %.9g +- %.1e", step, what, got, want, bound);
}

/* The elements of one tensor after the update, from those before it. error: of the gradient after clipping. */
static void compare_update(const TensorEntry *entry, int step, Weights before, Weights after, const float *grad,
                           double clip, double error, DType dtype) {
    double lr = learning_rate(step - 1), correction1 = 1 - pow(BETA1, step), correction2 = 1 - pow(BETA2, step);
    double decay = tensor_count(*entry->field) > 4 * C ? WEIGHT_DECAY : 0;          /* matrices decay, vectors do not */
    double worst[3] = {0}, max_moved = 0;
    for (int64_t i = (int64_t)entry->offset / 4, end = i + tensor_count(*entry->field); i < end; i++) {
        double g = clip * grad[i], m = BETA1 * before.m[i] + (1 - BETA1) * g;
        double v = BETA2 * before.v[i] + (1 - BETA2) * g * g, rounding = 0x1p-24;
        double mhat = m / correction1, root = sqrt(v / correction2);
        double param = before.param[i] - lr * (mhat / (root + EPS) + decay * before.param[i]);
        /* m has (1 - beta1) of the error, v twice |g| times (1 - beta2) of it, root at most the error itself, and each
           result a few roundings */
        double m_bound = (1 - BETA1) * error + 4 * rounding * fabs(m);
        double v_bound = (1 - BETA2) * (2 * fabs(g) * error + error * error) + 4 * rounding * v;
        double param_bound = lr * error * (1 + fabs(mhat)) + 8 * rounding * (fabs(before.param[i]) + lr);
        worst[0] = fmax(worst[0], fabs(after.m[i] - m) / m_bound);
        worst[1] = fmax(worst[1], fabs(after.v[i] - v) / v_bound);
        worst[2] = fmax(worst[2], fabs(after.param[i] - param) / param_bound);
        max_moved = fmax(max_moved, fabs(after.param[i] - before.param[i]) / param_bound);
    }
    EXPECT(worst[0] <= 1 && worst[1] <= 1 && worst[2] <= 1, "step %d, %s: m, v and weights are off by %.2g, %.2g and "
           "%.2g times their bounds", step, entry->name, worst[0], worst[1], worst[2]);
    /* so that an update that is a third off, as by one of three micro-batches, is beyond the bounds */
    EXPECT(max_moved > (dtype == BF16 ? 3 : 10), "step %d, %s moved by %.1f bounds only", step, entry->name, max_moved);
}

static void repeat_step(GPT *gpt, Optimizer *optimizer, const Tokens *train, const char *out, int step) {
    int32_t inputs[SEQUENCES * T], targets[SEQUENCES * T];
    int64_t count = 0;
    double near = tolerance(&gpt->config, SEQUENCES, T), norm = 0;
    Weights before = load(out, step - 1, gpt, optimizer);
    for (int i = 0; i < SEQUENCES; i++)
        count += tokens_train_window(train, SEED, (uint64_t)((step - 1) * SEQUENCES + i), T, inputs + i * T,
                                     targets + i * T);
    gpt_set_batch(gpt, SEQUENCES, T);
    gpt_load(gpt, inputs, targets, NULL);
    gpt_forward(gpt);
    gpt_backward(gpt, 1.0f / (float)count, OVERWRITE, NULL, NULL);
    double loss = sum_of_losses(gpt) / (double)count;
    float *grad = download(tensor_table_flat(&gpt->grads.table, F32));
    for (int64_t i = 0; i < (int64_t)(gpt->grads.table.bytes / 4); i++) norm += (double)grad[i] * grad[i];
    norm = sqrt(norm);
    const double speed = logged(step, "tokens_per_s"), ms = logged(step, "ms");
    expect_near(logged(step, "loss"), loss, near * loss, "loss", step);
    expect_near(logged(step, "norm"), norm, near * norm, "norm", step);
    expect_near(logged(step, "lr"), learning_rate(step - 1), 1e-6 * LR, "learning rate", step);
    /* the log has three digits of ms and one of tokens/s */
    expect_near(speed * ms, 1e3 * (double)count, 5.1e-4 * speed + 0.051 * ms, "tokens/s x ms", step);
    double before_it = step > 1 ? logged(step - 1, "tokens") : 0;
    expect_near(logged(step, "tokens"), before_it + (double)count, 0, "tokens", step);
    double peak = device_info().peak_flops[gpt->config.dtype], logged_mfu = logged(step, "mfu");
    double mfu = peak > 0 ? speed * gpt_flops_per_token(&gpt->config) / peak : 0;
    expect_near(isnan(logged_mfu) ? 0 : logged_mfu, mfu, 0.51e-4, "MFU", step);       /* it has 4 digits */

    double clip = fmin(1, CLIP / norm);
    Weights after = load(out, step, gpt, optimizer);
    for (int k = 0; k < gpt->grads.table.count; k++) {
        const TensorEntry *entry = &gpt->grads.table.entry[k];
        int64_t first = (int64_t)entry->offset / 4;
        double max = 0;
        for (int64_t i = 0; i < tensor_count(*entry->field); i++) max = fmax(max, fabs(grad[first + i]));
        /* the clip factor has the relative error of the norm, too */
        compare_update(entry, step, before, after, grad, clip, 2 * near * clip * max, gpt->config.dtype);
    }
}

/* The mean over the windows of the first val_tokens targets, 0 = all, one by one. */
static void repeat_validation(GPT *gpt, const Tokens *val, int val_tokens, int step) {
    const double val_loss = logged(step, "val_loss");
    if (step % VAL_EVERY && step != STEPS) {
        EXPECT(isnan(val_loss), "step %d: val loss %g", step, val_loss);
        return;
    }
    double sum = 0, count = 0;
    for (int64_t w = 0; w < tokens_windows(val, T) && (!val_tokens || w * T < val_tokens); w++) {
        int32_t inputs[T], targets[T];
        count += tokens_eval_window(val, w, T, inputs, targets);
        gpt_set_batch(gpt, 1, T);
        gpt_load(gpt, inputs, targets, NULL);
        gpt_forward(gpt);
        gpt_loss(gpt);
        sum += sum_of_losses(gpt);
    }
    expect_near(val_loss, sum / count, tolerance(&gpt->config, SEQUENCES, T) * val_loss, "val loss", step);
}

static void run_and_repeat(DType dtype, int val_tokens) {
    const char *name = dtype == BF16 ? "bf16" : "f32";
    const char *out = IN_SCRATCH("run-%s-%d", name, val_tokens), *text = IN_SCRATCH("text");
    char bytes[BYTES + VAL_BYTES];
    for (size_t i = 0; i < sizeof bytes; i++)                    /* skewed, so that there is something to learn */
        bytes[i] = (char)(uint8_t)(255 * pow(random_uniform(SEED, RANDOM_TEST, 0, i), 3));
    put(text, bytes, sizeof bytes);
    char *command = STRING("%s --data %s --out %s --layers %d --heads %d --channels %d --context %d --batch %d "
        "--total-batch %d --steps %d --save-every 1 --val-every %d --val-tokens %d --val-fraction 0.4 --warmup %d "
        "--lr %g --min-lr %g --beta1 %g --beta2 %g --eps %g --weight-decay %g --clip %g --seed %d --dtype %s "
        "> %s.out 2>&1", program, text, out, L, NH, C, T, B, SEQUENCES * T, STEPS, VAL_EVERY, val_tokens, WARMUP, LR,
        FINAL_LR, BETA1, BETA2, EPS, WEIGHT_DECAY, CLIP, SEED, name, out);
    int status = system(command);
    EXPECT(status == 0, "exit status %d of %s", status, command);

    Tokens *all = tokens_open(text, NULL, NULL);
    Tokens *train = tokens_slice(all, 0, BYTES), *val = tokens_slice(all, BYTES, VAL_BYTES);
    log_text = text_of(STRING("%s/log.csv", out));
    const int is_whole = log_cell(log_text, STEPS, "step") && !log_cell(log_text, STEPS + 1, "step");
    EXPECT(is_whole, "want %d rows: %s", STEPS, log_text);
    Optimizer optimizer;
    GPTConfig config = { .L = L, .NH = NH, .C = C, .T = T, .V = 256, .dtype = dtype };
    gpt_check(&config);
    GPT *gpt = new_model(config, "auto", SEQUENCES, T, TRAIN);
    optimizer_create(&optimizer, gpt);
    for (int step = 1; step <= STEPS && is_whole; step++) {
        repeat_step(gpt, &optimizer, train, out, step);
        repeat_validation(gpt, val, val_tokens, step);
    }
    optimizer_free(&optimizer);
    tokens_close(train);
    tokens_close(val);
    tokens_close(all);
}

TEST(each_step_is_as_computed_otherwise) {
    run_and_repeat(F32, 300);
    run_and_repeat(F32, 0);
    if (!device_refuse_dtype(BF16)) run_and_repeat(BF16, 300);
}

/* ---- FLOPs and memory */

static const GPTConfig configs[] = {
    { .L = 2, .NH = 2, .C = 16, .T = 7,  .V = 65 },
    { .L = 3, .NH = 4, .C = 64, .T = 33, .V = 256, .untied = 1 },
    { .L = 1, .NH = 2, .C = 128, .T = 256, .V = 1000 },
};

/* 6 FLOP per multiply-add of a forward pass: 2 there, 4 in the backward pass. The formula counts those of every matrix
   and of attention (scores and P V, over all T keys), and one for every other parameter. */
TEST(flops_are_multiply_adds) {
    for (int k = 0; k < COUNT(configs); k++) {
        const GPTConfig *c = &configs[k];
        double width = c->C, attention = 2.0 * c->T * width;
        double matrices = 3 * width * width + width * width + 4 * width * width + 4 * width * width;
        double biases = 3 * width + width + 4 * width + width, norms = 4 * width;
        double per_token = c->L * (matrices + attention + biases + norms) + 2 * width + c->V * width + c->T * width;
        double got = gpt_flops_per_token(c);
        EXPECT(fabs(got - 6 * per_token) < 1e-9 * got, "model %d: %.0f FLOP, want %.0f", k, got, 6 * per_token);
    }
}

static size_t allocated;

void *__real_device_alloc(size_t bytes, const char *what);
void *__wrap_device_alloc(size_t bytes, const char *what) {
    allocated += bytes;
    return __real_device_alloc(bytes, what);
}

/* Every tensor begins on a multiple of 128 elements. */
static size_t padded_bytes(const TensorTable *table, size_t element) {
    size_t count = 0;
    for (int i = 0; i < table->count; i++) count += ((size_t)tensor_count(*table->entry[i].field) + 127) / 128 * 128;
    return count * element;
}

/* Without a backward pass the blocks share their activations. */
TEST(evaluation_has_one_block) {
    for (int k = 0; k < COUNT(configs); k++) {
        GPTConfig config = configs[k];
        gpt_check(&config);
        MemoryPlan some = memory_plan(&config, "auto", 3, EVALUATE);
        config.L += 2;
        MemoryPlan more = memory_plan(&config, "auto", 3, EVALUATE);
        EXPECT(some.activations == more.activations && some.workspace == more.workspace,
               "model %d: %zu bytes of activations, %zu with two more blocks", k, some.activations, more.activations);
    }
}

/* What the plan adds up is what is allocated, but for the optimizer's list of tensors and its statistics; also on one
   of three ranks with ZeRO-1, which has a third of the moments, and in bf16 of the f32 parameters. Muon has one
   moment of the matrices. */
TEST(the_plan_is_what_is_allocated) {
    static const char *const attentions[] = { "auto", "naive" };
    for (int k = 0; k < 2 * 2 * 4 * 2 * 2 * 3 * COUNT(configs); k++) {
        GPTConfig config = configs[k / 96 % COUNT(configs)];
        config.optimizer = (OptimizerKind)(k / 96 / COUNT(configs));
        const int is_sharded = k / 48 % 2;
        config.recompute = (Recompute)(k / 12 % 4);
        const char *attention = attentions[k & 1];
        Purpose purpose = (Purpose)(k / 4 % 3);
        config.dtype = k & 2 ? BF16 : F32;
        config.cache_tokens = config.recompute & 1 ? config.T : 0;
        gpt_check(&config);
        if (device_refuse_dtype(config.dtype) || (is_sharded && purpose != TRAIN)) continue;
        const size_t matrices = config.optimizer == OPTIMIZER_MUON ? 48 * (size_t)(config.L * config.C * config.C) : 0;
        if (matrices && purpose != TRAIN) continue;
        GPT gpt;
        Optimizer optimizer;
        comm_size = is_sharded ? 3 : 1;
        comm_rank = k % comm_size;
        MemoryPlan plan = memory_plan(&config, attention, 3, purpose);
        allocated = 0;
        gpt_create(&gpt, config, attention, 3, config.T, purpose);
        const size_t f32 = is_sharded ? gpt.grads.table.bytes : padded_bytes(&gpt.master.table, 4);
        const size_t acts = gpt.act_bytes, share = f32 / (size_t)comm_size;
        const size_t received = gpt_optimizer_memory(&config).reduce;   /* at most: no ranks are connected */
        size_t list = 0;
        if (purpose == TRAIN) {
            optimizer_create(&optimizer, &gpt);
            list = (size_t)(gpt.grads.table.count + optimizer.slices - 1) * sizeof(UpdateRow) + sizeof(StepStats);
            EXPECT((matrices || plan.optimizer == 2 * share) && f32 % 3 * (size_t)is_sharded == 0,
                   "case %d: %zu of %zu bytes", k, plan.optimizer, f32);
            EXPECT(is_sharded || tensor_bytes(optimizer.v) == f32 - matrices, "case %d: %zu bytes of second moments, "
                   "want %zu", k, tensor_bytes(optimizer.v), f32 - matrices);
            optimizer_free(&optimizer);
        }
        EXPECT(allocated + received == plan.total + list, "case %d: %zu bytes, planned %zu, list %zu, received %zu", k,
               allocated, plan.total, list, received);
        EXPECT(plan.parameters == (config.dtype == BF16 ? f32 / 2 + share : f32), "case %d: %zu bytes of parameters", k,
               plan.parameters);
        EXPECT(plan.gradients == (purpose == TRAIN ? f32 + received : 0), "case %d: %zu bytes of gradients", k,
               plan.gradients);
        EXPECT(plan.activations + plan.workspace == acts, "case %d: %zu bytes of activations, planned %zu",
               k, acts, plan.activations + plan.workspace);
        gpt_free(&gpt);
        comm_size = 1;
        comm_rank = 0;
        config.host_bytes = 1 << 20;        /* for checkpoints: on the CPU in the same memory */
        const size_t more = memory_plan(&config, attention, 3, TRAIN).total;
        config.host_bytes = 0;
        EXPECT(more == memory_plan(&config, attention, 3, TRAIN).total + (device_count() ? 0 : 1 << 20), "case %d", k);
    }
}

/* At every level, with products in E4M3 as well, tensors that have values at the same time do not overlap, and none
   passes the end. */
TEST(tensors_in_use_do_not_overlap) {
    for (int k = 0; k < 3 * 4 * COUNT(configs); k++) {
        GPTConfig config = configs[k / 12];
        const int kind = k / 4 % 3;         /* 2: E4M3 */
        config.recompute = (Recompute)(k % 4);
        gpt_check(&config);
        if (kind == 2 && config.C % 16) continue;
        if (kind == 2) config.matmul_dtype = E4M3;
        GPT *gpt = new_model(config, "auto", kind == 2 ? 16 : 3, config.T, kind == 1 ? EVALUATE : TRAIN);
        const TensorTable *table = &gpt->acts.table;
        for (int i = 0; i < table->count; i++) {
            const TensorEntry *a = &table->entry[i];
            EXPECT(a->offset % 256 == 0 && a->offset + tensor_bytes(*a->field) <= gpt->act_bytes, "case %d: %s at %zu",
                   k, a->name, a->offset);
            EXPECT(!a->same || a->field->data == a[-1].field->data, "case %d: %s is elsewhere", k, a->name);
            for (int j = 0; j < i && !a->same; j++) {
                const TensorEntry *b = &table->entry[j];
                int shares = b->same || (a->phases && b->phases && !(a->phases & b->phases));
                EXPECT(shares || a->offset >= b->offset + tensor_bytes(*b->field) ||
                       b->offset >= a->offset + tensor_bytes(*a->field), "case %d: %s overlaps %s", k, a->name,
                       b->name);
            }
        }
    }
}

/* needs: free are as many bytes as a batch of that size needs, times more. */
TEST(auto_takes_the_largest_batch_that_fits) {
    GPTConfig config = configs[2];
    gpt_check(&config);
    static const struct { int needs; double more; int64_t sequences, max, want; } cases[] = {
        { 24, 1.001, 0, 1000, 16 },     /* a power of two */
        { 32, 1.001, 0, 1000, 32 },
        { 32, 0.999, 0, 1000, 16 },
        { 24, 1.001, 96, 1000, 24 },    /* a divisor of the sequences of an update */
        { 24, 0.999, 96, 1000, 16 },
        { 24, 1.001, 7, 1000, 7 },
        { 24, 1.001, 29, 1000, 1 },
        { 24, 1.001, 0, 5, 4 },
        { 1,  0.5,   0, 1000, 0 },      /* none fits */
    };
    for (int i = 0; i < COUNT(cases); i++) {
        double needs = (double)memory_plan(&config, "auto", cases[i].needs, TRAIN).total;
        int64_t got = batch_largest(&config, "auto", TRAIN, (int64_t)(needs * cases[i].more * 20 / 19),
                                    cases[i].sequences, cases[i].max, 0);
        EXPECT(got == cases[i].want, "case %d: a batch of %lld, want %lld", i, (long long)got,
               (long long)cases[i].want);
    }
}

/* In residual streams (B,T,C) of 4 bytes: what a block keeps at each level, and what all share. With E4M3 of 1 byte the
   transposes are 1.75 streams in the place of 6, and both layouts of the weights 24 C^2 bytes. */
TEST(levels_save_what_they_drop) {
    GPTConfig config = { .L = 12, .NH = 12, .C = 768, .T = 1024, .V = 50257 };
    gpt_check(&config);
    double stream = 4.0 * 64 * config.T * config.C, kept[8];
    for (int level = 0; level < 8; level++) {
        config.recompute = (Recompute)(level % 4);
        if (level == 4) config.matmul_dtype = E4M3;
        MemoryPlan plan = memory_plan(&config, "flash", 64, TRAIN);
        kept[level] = (double)plan.activations / stream / config.L;
        EXPECT((double)plan.workspace < (level % 4 < RECOMPUTE_BLOCK ? 11 : 24) * stream, "level %d: a workspace of %g "
               "residual streams", level, (double)plan.workspace / stream);
    }
    /* residual streams a block; means and lse are 0.03 of one */
    static const double want[] = { 16, 12, 10, 1, 11.82, 10.82, 10.32, 1.07 };
    for (int level = 0; level < 8; level++)
        EXPECT(kept[level] >= want[level] && kept[level] < want[level] + 0.05, "level %d: %g residual streams a block, "
               "want %g", level, kept[level], want[level]);
}

int main(void) {
    scratch_open();
    program = built("train_gpt");
    test_device_open((DeviceOptions){ .threads = 1 });
    return test_all();
}
