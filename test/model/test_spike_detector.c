/* test_spike_detector.c - Limits of the spike detector, which steps are skipped, and the messages. That a skipped step
   changes neither weights nor moments: test_update.c and test_nonfinite.sh. */
#include "models.h"
#include "../../llmc/train/spike_detector.h"

static double normal(int run, int64_t i) { return normal_of(philox(1, RANDOM_TEST, 0, (uint32_t)run, (uint64_t)i)); }

/* A step as the device decides it, under the limits that the host has set. */
static StepResult step(SpikeDetector *g, double z, double loss, double norm) {
    StepStats n = { .loss = loss, .norm = norm };
    spike_detector_limits(g, z, &n);
    n.apply = isfinite(loss) && isfinite(norm) && loss <= n.loss_limit && norm <= n.norm_limit;
    return spike_detector_update(g, &n);
}

/* count updates of a loss of 3 +- 0.05 and a norm of 0.5 times a factor of about 1.2. */
static SpikeDetector quiet(int run, int count) {
    SpikeDetector g = {0};
    for (int i = 0; i < count; i++) step(&g, 0, 3 + 0.05 * normal(run, 2 * i), 0.5 * exp(0.2 * normal(run, 2 * i + 1)));
    return g;
}

/* By the textbook: the regression line of value[0 .. n - 1], and the standard error of what it predicts for n. Where it
   falls, the mean is expected. */
static double limit_of(const double *value, int n, double z, double min_sigma) {
    double x = 0, y = 0, xx = 0, xy = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        x += i;
        y += value[i];
        xx += i * i;
        xy += i * value[i];
    }
    const double slope = (n * xy - x * y) / (n * xx - x * x), start = (y - slope * x) / n, ahead = n - x / n;
    for (int i = 0; i < n; i++) squares += pow(value[i] - start - slope * i, 2);
    const double sigma = sqrt(squares / (n - 2) * (1 + 1.0 / n + ahead * ahead / (xx - x * x / n)));
    return y / n + fmax(slope, 0) * ahead + z * fmax(sigma, min_sigma);
}

/* Falling in a zigzag, constant, rising, and noise; windows half full, full, and moved on. */
TEST(limits_of_known_windows) {
    for (int kind = 0; kind < 12; kind++) {
        SpikeDetector g = {0};
        const int count = 64 << kind / 4, n = count < SPIKE_WINDOW ? count : SPIKE_WINDOW;
        double loss[256], log_norm[256];
        StepStats got;
        for (int i = 0; i < count; i++) {
            const double noise = normal(kind, i), zigzag = 10 - 0.03 * i + (i % 2 ? 0.25 : -0.25);
            loss[i] = (const double[]){ zigzag, 3, 2 + 1e-3 * i, 3 + 0.1 * noise }[kind % 4];
            log_norm[i] = (const double[]){ 0.03 * i, 0.2 * noise, -1, 1e-3 * noise - 0.01 * i }[kind % 4];
            step(&g, 0, loss[i], exp(log_norm[i]));
        }
        spike_detector_limits(&g, 5, &got);
        const double want_loss = limit_of(loss + count - n, n, 5, 1e-3 * loss[count - 1]);
        const double want_norm = exp(limit_of(log_norm + count - n, n, 5, 1e-2));
        EXPECT(fabs(got.loss_limit - want_loss) < 1e-9 * want_loss, "kind %d: loss limit %.12g, want %.12g", kind,
               got.loss_limit, want_loss);
        EXPECT(fabs(got.norm_limit - want_norm) < 1e-9 * want_norm, "kind %d: norm limit %.12g, want %.12g", kind,
               got.norm_limit, want_norm);
    }
}

TEST(spikes_are_found) {
    static const struct { double loss, norm; StepResult result; } cases[] = {
        {3, 0.5, APPLIED}, {3.1, 0.8, APPLIED}, {3.6, 0.5, SPIKE}, {3, 5, SPIKE}, {9, 50, SPIKE}, {0.1, 0.5, APPLIED},
        {3, 1e-9, APPLIED}, {3, 0, APPLIED}, {NAN, 0.5, NONFINITE}, {3, INFINITY, NONFINITE}, {INFINITY, 1, NONFINITE},
        {3, 1e30, SPIKE},
    };
    for (int n = 0; n < 2 * 6 * COUNT(cases); n++) {       /* too few updates, enough, a window that moves; z 0 */
        const int i = n / 12, z = n % 2 ? 6 : 0;
        const int count = (const int[]){ 0, SPIKE_WINDOW_MIN - 1, SPIKE_WINDOW_MIN, 100, 128, 300 }[n / 2 % 6];
        const int is_limited = z && count >= SPIKE_WINDOW_MIN;
        SpikeDetector g = quiet(i, count), before = g;
        const StepResult j = step(&g, z, cases[i].loss, cases[i].norm);
        const StepResult want = !is_limited && cases[i].result == SPIKE ? APPLIED : cases[i].result;
        EXPECT(j == want, "loss %g, norm %g after %d, z %d: result %d", cases[i].loss, cases[i].norm, count, z, j);
        EXPECT(g.nonfinite == (j == NONFINITE) && g.spikes == (j == SPIKE),
               "%d non-finite, %d spikes", g.nonfinite, g.spikes);
        before.nonfinite = g.nonfinite, before.spikes = g.spikes;
        EXPECT(!memcmp(&g, &before, sizeof g) == (j != APPLIED), "only what is applied enters the window");
    }
    SpikeDetector g = quiet(1, 100);
    StepStats overflow = { .loss = 3, .norm = 1e25, .loss_limit = INFINITY, .norm_limit = INFINITY };
    EXPECT(spike_detector_update(&g, &overflow) == NONFINITE,
           "a finite norm whose square f32 does not hold is no spike");
}

/* A steep place, or a level that has changed for good: one step in eleven is applied, and soon all are. */
TEST(there_is_a_way_out) {
    SpikeDetector g = quiet(3, 128);
    int applied = 0, last_refused = 0;
    for (int i = 0; i < 300; i++) {
        StepResult j = step(&g, 6, 5 + 0.05 * normal(4, i), 2);
        if (i <= SPIKE_STEPS_MAX)
            EXPECT((j == APPLIED) == (i == SPIKE_STEPS_MAX), "step %d: result %d", i, j);
        if (j != APPLIED) last_refused = i;
        applied += j == APPLIED;
    }
    EXPECT(last_refused < 5 * (SPIKE_STEPS_MAX + 1), "step %d is refused still", last_refused);
    EXPECT(applied > 250, "%d of 300 applied", applied);

    SpikeDetector s = quiet(3, 128);
    for (int i = 0; i < 5; i++) step(&s, 6, NAN, NAN);
    EXPECT(s.nonfinite == 5, "%d non-finite", s.nonfinite);
    step(&s, 6, 3, 0.5);
    EXPECT(s.nonfinite == 0, "an update between them ends the count");
}

enum { B = 2, T = 16 };

/* Whichever tensor has a NaN, in its last element. */
TEST(a_nonfinite_tensor_is_named) {
    GPTConfig config = { .L = 2, .NH = 2, .C = 16, .T = T, .V = 50, .dtype = F32, .untied = 1 };
    static const int32_t tokens[B * T], targets[B * T];
    const float nan = NAN;
    float had;
    char name[96], want[96];
    gpt_check(&config);
    GPT *m = new_model(config, "auto", B, T, TRAIN);
    gpt_init(m, 1);
    gpt_load(m, tokens, targets, NULL);
    train_pass(m, 1.0f / (B * T), OVERWRITE);
    EXPECT(!gpt_find_nonfinite(m, name), "%s, before there was a NaN", name);
    const struct { const char *what; const TensorTable *table; } tables[] = {
        { "parameter", &m->master.table }, { "gradient of", &m->grads.table } };
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < tables[k].table->count; i++) {
            const TensorEntry *entry = &tables[k].table->entry[i];
            float *last = (float *)entry->field->data + tensor_count(*entry->field) - 1;
            snprintf(want, sizeof want, "%s %s", tables[k].what, entry->name);
            device_download(&had, last, sizeof had);
            device_upload(last, &nan, sizeof nan);
            EXPECT(gpt_find_nonfinite(m, name) && !strcmp(name, want), "%s is not found", want);
            device_upload(last, &had, sizeof had);
        }
    const SpikeDetector none = {0};
    const StepStats step_stats = { .loss = NAN, .norm = NAN };
    device_upload((float *)m->params.lnfb.data + 15, &nan, sizeof nan);
    char *text = test_keep(skipped_step_text(&none, 7, NONFINITE, &step_stats, m));
    EXPECT(strstr(text, "step 7: loss nan, ") && strstr(text, ": parameter transformer.ln_f.bias"), "%s", text);
}

/* ---- Memory */

TEST(out_of_memory_says_what_helps) {
    static const char *const parts[] = { "out of memory: a great many tensors: 17179869184.00 GiB wanted", "are free",
                                         "a smaller --batch, --context or --model, or --attention flash, needs less" };
    for (int i = 0; i < COUNT(parts); i++) EXPECT_FAILS(parts[i], device_alloc(SIZE_MAX, "a great many tensors"));
}

int main(void) {
    test_device_open((DeviceOptions){ .threads = 1 });
    return test_all();
}
