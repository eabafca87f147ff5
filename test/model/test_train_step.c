/* test_train_step.c - Steps whose batch was uploaded behind the step before, and from recorded work (CUDA graphs),
   against steps that upload theirs and issue every op: the same bits. Then the times of a profile. */
#include "models.h"
#include "../oracle.h"
#include "../scratch.h"
#include "../../kernels/profile.h"
#include "../../llmc/train/train_step.h"

/* An update is 3 micro-batches of 2 sequences: =, +=, +=. Of 29 windows one is short, in every fifth step or so: then
   dloss has another value, once, which is no reason to record. */
enum { B = 2, SEQUENCES = 6, T = 24, L = 2, NH = 2, C = 64, BYTES = 680, STEPS = 12, SEED = 41 };

typedef struct { GPT gpt; Optimizer optimizer; TrainStep step; } Stepper;

static Tokens *tokens;

static const float dropout_rate = 0.1f;
static const Settings settings = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1, .seed = SEED,
                                   .deterministic = 1 };

/* batch: sequences of a micro-batch. */
static void stepper_create(Stepper *t, DType dtype, int batch, float rate, OptimizerKind optimizer) {
    GPTConfig config = { .L = L, .NH = NH, .C = C, .T = T, .V = 256, .matmul_dtype = dtype, .deterministic = 1,
                         .dtype = dtype == E4M3 ? BF16 : dtype,
                         .dropout = rate, .dropout_seed = SEED, .optimizer = optimizer };
    gpt_check(&config);
    gpt_create(&t->gpt, config, "auto", batch, T, TRAIN);
    gpt_init(&t->gpt, SEED);
    optimizer_create(&t->optimizer, &t->gpt);
    t->step = (TrainStep){ .model = &t->gpt, .optimizer = &t->optimizer, .tokens = tokens, .settings = &settings,
                           .B = batch, .sequences = SEQUENCES };
    train_step_create(&t->step);
}

static void stepper_free(Stepper *t) {
    TrainStep *s = &t->step;
    for (int i = 0; i < 2; i++) {
        device_wait_mark(&s->copied[i]);
        device_mark_free(&s->copied[i]);
        device_host_free(s->batch[i]);
        for (int j = 0; j < 2; j++) device_graph_free(&s->graph[i][j]);
    }
    free(s->window);
    optimizer_free(&t->optimizer);
    gpt_free(&t->gpt);
}

static void issue(Stepper *t, int step) {
    train_step(&t->step, (uint64_t)(step * SEQUENCES), 1e-3 * (1 + step % 3));
}

/* So that the next step is issued op by op. */
static void forget_recordings(Stepper *t) {
    DeviceGraph *const graphs[] = { &t->step.graph[OVERWRITE][0], &t->step.graph[ACCUMULATE][0], &t->optimizer.graph };
    for (int i = 0; i < COUNT(graphs); i++) {
        device_graph_free(graphs[i]);
        *graphs[i] = (DeviceGraph){0};
    }
}

/* A pass with other shapes in the same memory. */
static void validate(Stepper *t) {
    int32_t inputs[T], targets[T];
    tokens_eval_window(tokens, 3, T, inputs, targets);
    gpt_set_batch(&t->gpt, 1, T);
    gpt_load(&t->gpt, inputs, targets, NULL);
    gpt_forward(&t->gpt);
    gpt_loss(&t->gpt);
}

static void expect_equal(const StepStats *a, const StepStats *b, int step) {
    EXPECT(a->apply == 1 && b->apply == 1 && a->loss == b->loss && a->norm == b->norm,
           "step %d: loss %.17g and %.17g, norm %.17g and %.17g", step, a->loss, b->loss, a->norm, b->norm);
}

static void compare(DType dtype, float rate) {
    Stepper recorded, plain;
    StepStats want[STEPS];
    int64_t targets = 0;
    stepper_create(&recorded, dtype, B, rate, OPTIMIZER_ADAMW);
    stepper_create(&plain, dtype, B, rate, OPTIMIZER_ADAMW);
    train_step_measure(&plain.step, 3);         /* nothing is left of it */
    for (int i = 0; i < STEPS; i++) {
        forget_recordings(&plain);
        validate(&plain);                       /* overwrites the batch that was uploaded */
        issue(&plain, i);
        want[i] = optimizer_result(&plain.optimizer);
    }
    for (int i = 0; i < STEPS; i++) {
        issue(&recorded, i);
        targets += train_step_targets(&recorded.step, (uint64_t)(i * SEQUENCES));
        const StepStats got = optimizer_result(&recorded.optimizer);
        expect_equal(&got, &want[i], i);
        EXPECT(recorded.optimizer.comm_wait_ms == 0, "step %d: %g ms", i, recorded.optimizer.comm_wait_ms);
        if (i == STEPS / 2) validate(&recorded);
    }
    EXPECT(targets < STEPS * SEQUENCES * T, "%lld targets: no window is short", (long long)targets);
    EXPECT(recorded.optimizer.step == STEPS && plain.optimizer.step == STEPS, "%lld and %lld updates",
           (long long)recorded.optimizer.step, (long long)plain.optimizer.step);
    expect_equal_rows(&recorded.gpt.master, &plain.gpt.master, "weights");
    expect_equal_rows(&recorded.gpt.params, &plain.gpt.params, "weights of the ops");
    expect_equal_moments(&recorded.optimizer, &plain.optimizer);
    const int records = strcmp(backend_name, "cuda") == 0;
    EXPECT(recorded.step.graph[OVERWRITE][0].parts == records && recorded.step.graph[ACCUMULATE][0].parts == records &&
           recorded.optimizer.graph.parts == records, "what was recorded");
    stepper_free(&recorded);
    stepper_free(&plain);
}

TEST(recorded_is_the_same) {
    for (int i = 0; i < 2; i++) {
        compare(F32, i ? dropout_rate : 0);
        if (!device_refuse_dtype(BF16)) compare(BF16, i ? dropout_rate : 0);
        if (!device_refuse_dtype(E4M3)) compare(E4M3, i ? dropout_rate : 0);
    }
}

/* Two updates of random gradients by the formulas: c_attn is three matrices to Muon; AdamW for all other tensors. The
   oracle bounds the rounding of Newton-Schulz (test_muon.c); here an element moves by up to 0.1, and is off by 3e-7 in
   f32. */
TEST(muon_is_the_formula) {
    Stepper t;
    stepper_create(&t, F32, 1, 0, OPTIMIZER_MUON);
    const Settings mild = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1, .weight_decay = 0.2, .clip = 5 };
    fill_normally(&t.gpt, SEED, 1, 0);
    const TensorTable *table = &t.gpt.master.table;
    const int64_t size = tensor_count(flat_params(&t.gpt.master));
    float *got = download_params(&t.gpt.master), *grad = new_array(size, sizeof *grad);
    double *param = new_array(4 * size, sizeof *param), *m = param + size, *v = m + size, *wide = v + size;
    for (int64_t i = 0; i < size; i++) param[i] = got[i];
    for (int step = 0; step < 2; step++) {
        for (int64_t i = 0; i < size; i++)
            wide[i] = grad[i] = (float)normal_of(philox(SEED, RANDOM_TEST, (uint32_t)step, 7, (uint64_t)i));
        device_upload(t.gpt.grads.table.memory, grad, (size_t)size * sizeof *grad);
        optimizer_begin(&t.optimizer, &mild, 0.1);
        const StepStats stats = update(&t.optimizer);
        EXPECT(stats.apply == 1 && stats.clip < 0.1f, "apply %d, clip %g", stats.apply, stats.clip);
        got = download_params(&t.gpt.master);
        for (int k = 0; k < table->count; k++) {
            const TensorEntry *e = &table->entry[k];
            const int64_t first = (int64_t)(e->offset / sizeof *grad), count = tensor_count(*e->field);
            const int matrices = strstr(e->name, ".h.") && e->field->ndim == 2 ? strstr(e->name, "c_attn") ? 3 : 1 : 0;
            if (!matrices)
                oracle_adamw(param + first, m + first, v + first, wide + first, count, e->field->ndim == 2, &stats);
            for (int64_t at = first; matrices && at < first + count; at += count / matrices)
                oracle_muon(param + at, m + at, wide + at, (int)e->field->dim[0] / matrices, (int)e->field->dim[1],
                            &stats);
            const double bound = !matrices || device_refuse_dtype(BF16) ? 1e-5 : 0.02;
            double error = 0;
            for (int64_t i = first; i < first + count && !isnan(error); i++)
                if (!(fabs(got[i] - param[i]) <= error)) error = fabs(got[i] - param[i]);
            EXPECT(error <= bound, "step %d, %s: off by up to %g", step, e->name, error);
        }
    }
    stepper_free(&t);
}

/* ---- Marks, and the profile of two ops of known length */

static void spend(double ms) {
    DeviceMark begin = {0}, now = {0};
    static void *memory;
    if (!memory) memory = device_alloc(1 << 24, "bytes to spend time on");
    device_mark(&begin);
    do {
        device_zero(memory, 1 << 24);
        device_mark(&now);
    } while (device_mark_ms(&begin, &now) < ms);
    device_mark_free(&begin);
    device_mark_free(&now);
}

/* Two ops of a step, the shorter one first, with another op inside that is a part of it; printed into a file. */
TEST(a_profile_separates_ops) {
    const char *path = IN_SCRATCH("profile");
    const int before = redirect(STDOUT_FILENO, path);
    profile_begin();
    const double start = seconds_now();
    for (int i = 0; i < 2; i++) {
        op_begin("copies", 1e6, 0);
        op_begin("inner", 1e6, 1e6);
        spend(5);
        op_end();
        op_end();
        op_begin("multiplies", 0, 1e6);
        spend(15);
        op_end();
    }
    device_wait();              /* for the last marks, which other processes on the GPU delay */
    const double step_ms = 1e3 * (seconds_now() - start) / 2;
    profile_end((Rates){ .bytes_per_ms = 1e6, .flop_per_ms = 5e5 }, 2, 25);
    restore(STDOUT_FILENO, before);
    const char *text = text_of(path), *copies = strstr(text, "\ncopies "), *multiplies = strstr(text, "\nmultiplies ");
    double calls, mb, gflop, ms[2] = {0}, floor_ms[2] = {0};
    EXPECT(copies && sscanf(copies, " copies %lf %lf %lf %lf %lf", &calls, &mb, &gflop, &ms[0], &floor_ms[0]) == 5 &&
           calls == 1 && mb == 1 && gflop == 0 && floor_ms[0] == 1, "%s", text);
    EXPECT(multiplies && sscanf(multiplies, " multiplies %lf %lf %lf %lf %lf", &calls, &mb, &gflop, &ms[1],
           &floor_ms[1]) == 5 && calls == 1 && mb == 0 && gflop == 1e-3 && floor_ms[1] == 2, "%s", text);
    /* on a busy machine both take longer; a millisecond in both of them would exceed the step */
    EXPECT(ms[0] >= 4.9 && ms[1] >= 14.9 && ms[0] + ms[1] <= step_ms + 0.1, "%g and %g ms of a step of %g", ms[0],
           ms[1], step_ms);
    EXPECT((copies < multiplies) == (ms[0] >= ms[1]), "sorted by time:\n%s", text);
    EXPECT(strstr(text, "\nstep, not profiled ") && strstr(text, "\ngap ") && !strstr(text, "inner"), "%s", text);
    EXPECT(!profile_is_on, "it is over");
}

int main(void) {
    char bytes[BYTES];
    scratch_open();
    test_device_open((DeviceOptions){ .threads = 1 });
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(uint8_t)(255 * pow(random_uniform(SEED, RANDOM_TEST, 0, i), 3));
    put(IN_SCRATCH("text"), bytes, sizeof bytes);
    tokens = tokens_open(IN_SCRATCH("text"), NULL, NULL);
    return test_all();
}
