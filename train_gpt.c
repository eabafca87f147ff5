/* train_gpt - Trains GPT-2 models. Below: the options, then main as a table of contents. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "kernels/check.h"
#include "kernels/device.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/model_config.h"
#include "llmc/corpus.h"
#include "llmc/evaluate.h"
#include "llmc/files.h"
#include "llmc/gpt.h"
#include "llmc/spike_detector.h"
#include "llmc/optimizer.h"
#include "llmc/options.h"
#include "llmc/plan.h"
#include "llmc/report.h"
#include "llmc/checkpoint/resume.h"
#include "llmc/generate.h"
#include "llmc/checkpoint/saver.h"
#include "llmc/schedule.h"
#include "llmc/checkpoint/run_dir.h"
#include "llmc/stop.h"
#include "llmc/tokenizer.h"
#include "llmc/dataloader.h"
#include "llmc/units.h"

#define VERSION "train_gpt 0.1"

/* ---- Options */

static const char *data, *val_data, *out, *init, *eval, *sample, *attention, *schedule, *prompt;
static const char *on_nan, *time_limit;
static double val_fraction, lr, min_lr, weight_decay, beta1, beta2, eps, clip, skip_spikes, temperature;
static int64_t batch, total_batch, steps, warmup, decay, seed, threads;
static int64_t val_every, val_tokens, sample_every, sample_tokens, top_k, save_every, keep, keep_every;
static int resume, dry_run, version, help;
static ModelOptions model;

#define ROW(n, t, variable, ...)                { .name = n, .type = t, .value = &variable, __VA_ARGS__ }
#define GROUP(title)                            { .help = title }
#define FLAG(n, variable, h)                    ROW(n, OPTION_FLAG, variable, .help = h)
#define SWITCH(n, variable, r, h)               ROW(n, OPTION_FLAG, variable, .fallback = "no", \
                                                    .resume = r##_ON_RESUME, .help = h)
#define TEXT(n, variable, a, d, r, h)           ROW(n, OPTION_TEXT, variable, .argument = a, .fallback = d, \
                                                    .resume = r##_ON_RESUME, .help = h)
#define CHOICE(n, variable, c, d, r, h)         ROW(n, OPTION_CHOICE, variable, .choices = c, .argument = "NAME", \
                                                    .fallback = d, .resume = r##_ON_RESUME, .help = h)
#define NUMBER(n, t, variable, lo, hi, d, r, h) ROW(n, t, variable, .least = lo, .most = hi, .argument = "N", \
                                                    .fallback = d, .resume = r##_ON_RESUME, .help = h)
#define INTEGER(n, variable, lo, hi, d, r, h)   NUMBER(n, OPTION_INTEGER, variable, lo, hi, d, r, h)
#define REAL(n, variable, lo, hi, d, r, h)      NUMBER(n, OPTION_REAL, variable, lo, hi, d, r, h)

static Option options[] = {
    GROUP("What to do (without --eval or --sample: train)"),
    TEXT   ("data",        data,        "FILE", NULL, KEPT,
            "a text (its bytes are the tokens), or token shards: 'dir/train_*.bin'"),
    TEXT   ("val-data",    val_data,    "FILE", NULL, KEPT,
            "text or shards to validate on; without it a text gives its last part"),
    REAL   ("val-fraction",val_fraction,0, 0.9, "0.1", FIXED, "how much of a text is kept for validation"),
    TEXT   ("out",         out,         "DIR",  NULL, FREE,
            "folder of log.csv and of the checkpoints, step-00001000 and so on"),
    FLAG   ("resume",      resume,
            "go on from the newest checkpoint of --out, with the options it was made with; begin where there is none"),
    TEXT   ("init",        init,        "CHECKPOINT", NULL, FREE,
            "start from these weights instead of random ones; the model is theirs"),
    TEXT   ("eval",        eval,        "CHECKPOINT", NULL, FREE,
            "only print the loss on --val-data, or else on all of --data"),
    TEXT   ("sample",      sample,      "CHECKPOINT", NULL, FREE, "only print text that starts with --prompt"),
    FLAG   ("dry-run",     dry_run,     "print settings and memory plan, and end"),
    FLAG   ("version",     version,     "print the version, and end"),
    FLAG   ("help",        help,        "print this, and end"),

    GROUP("Model"),
    TEXT   ("model",         model.model,         "NAME", "d4", FIXED, GPT_NAMES),
    INTEGER("layers",        model.layers,        0, 1000,  "0", KEPT, "blocks; 0 = as --model says"),
    INTEGER("heads",         model.heads,         0, 65536, "0", KEPT, "attention heads; 0 = as --model says"),
    INTEGER("channels",      model.channels,      0, 65536, "0", KEPT, "width; 0 = as --model says"),
    INTEGER("context",       model.context,       0, 1 << 24, "0", KEPT,
            "longest sequence, in tokens; 0 = 256, or 1024 from d12 up"),
    INTEGER("vocab",         model.vocab,         0, 1 << 24, "0", KEPT,
            "vocabulary; 0 = 256 for a text, 50257 (GPT-2) for shards"),
    CHOICE ("dtype",         model.dtype,         "f32|bf16", "f32", FIXED, "precision of the computation"),
    SWITCH ("deterministic", model.deterministic, KEPT,
            "the same bits every run, where a GPU's flash attention would add in the order in which things happen"),
    CHOICE ("attention",     attention,           "auto|flash|naive", "auto", FIXED,
            "flash keeps O(T) for the backward pass, naive all of P; auto = the best that can run"),

    GROUP("Training"),
    INTEGER("steps",       steps,       0, 1e12, "2000", FIXED, "updates"),
    INTEGER("batch",       batch,       1, 1 << 20, "16", FIXED, "sequences computed at a time"),
    INTEGER("total-batch", total_batch, 0, 1e12, "0",    FIXED,
            "tokens of an update, gathered over batches; 0 = one batch"),
    REAL   ("lr",          lr,          0, 1e6,  "0.001", FIXED,
            "peak learning rate; 6e-4 is usual for d12, less for more"),
    REAL   ("min-lr",      min_lr,      0, 1e6,  NULL,   FIXED,
            "learning rate at the end; a tenth of --lr where it is not given"),
    CHOICE ("schedule",    schedule,    "cosine|linear|wsd", "cosine", FIXED,
            "how it falls; wsd = stays, then falls over the last --decay steps"),
    INTEGER("warmup",      warmup,      0, 1e12, "100",  FIXED, "steps over which the learning rate rises"),
    INTEGER("decay",       decay,       0, 1e12, "0",    FIXED, "steps of the fall of wsd; 0 = a fifth of all"),
    REAL   ("weight-decay",weight_decay,0, 1e3,  "0.1",  FIXED, "of AdamW, on matrices only"),
    REAL   ("beta1",       beta1,       0, 0.999999, "0.9",   FIXED, "of AdamW"),
    REAL   ("beta2",       beta2,       0, 0.999999, "0.95",  FIXED, "of AdamW"),
    REAL   ("eps",         eps,         1e-12, 1,  "1e-8", FIXED, "of AdamW"),
    REAL   ("clip",        clip,        0, 1e9,  "1",    FIXED,
            "largest gradient norm, longer ones are scaled down to it; 0 = no clipping"),
    CHOICE ("on-nan",      on_nan,      "stop|skip", "stop", KEPT,
            "on a loss or gradient that is not finite, which is never applied: stop, or skip the step (10 in a row "
            "stop)"),
    REAL   ("skip-spikes", skip_spikes, 0, 1e6,  "0",    KEPT,
            "do not apply an update whose loss or gradient norm lies so many standard deviations above the last 128; 6 "
            "is usual, 0 = apply all"),
    INTEGER("seed",        seed,        0, 9e15, "1",    FIXED, "of weights, order of the data and samples"),
    INTEGER("threads",     threads,     0, 4096, "0",    FREE,
            "CPU threads, the results do not depend on it; 0 = one per core"),

    GROUP("Along the way"),
    INTEGER("val-every",   val_every,   0, 1e12, "250",  KEPT, "steps between validations; 0 = only at the end"),
    INTEGER("val-tokens",  val_tokens,  0, 1e15, "1048576", KEPT, "validate on the first so many tokens; 0 = all"),
    INTEGER("save-every",  save_every,  0, 1e12, "1000", KEPT, "steps between checkpoints; 0 = only at the end"),
    CHOICE ("save-dtype",  model.save_dtype,  "f32|bf16", "f32", KEPT,
            "of model.safetensors; with bf16 the exact f32 lie in optimizer.safetensors"),
    INTEGER("keep",        keep,        0, 1e12, "0",    KEPT,
            "newest checkpoints that stay, older ones are removed; 0 = all stay"),
    INTEGER("keep-every",  keep_every,  0, 1e12, "0",    KEPT,
            "checkpoints of steps that are a multiple of it stay, too; 0 = none"),
    TEXT   ("time-limit",  time_limit,  "TIME", NULL, FREE,
            "save and exit with code 75 before so much time has passed: 3h50m, 90s (until a save was timed it is "
            "expected to take twice as long as at 200 MB/s); SIGTERM and SIGINT do it at once, SIGUSR1 saves and goes "
            "on"),
    INTEGER("sample-every",sample_every,0, 1e12, "0",    KEPT, "steps between samples; 0 = none"),
    TEXT   ("prompt",      prompt,      "TEXT", NULL,    KEPT,
            "start of a sample; for a model not trained on bytes, ids: '15496 995'"),
    INTEGER("sample-tokens",sample_tokens,1, 1e9, "256", KEPT, "length of a sample"),
    REAL   ("temperature", temperature, 0, 100,  "0.8",  KEPT, "of sampling; 0 = always the most likely token"),
    INTEGER("top-k",       top_k,       0, 1 << 24, "0", KEPT, "sample among the k most likely tokens; 0 = all"),
    {0}
};

static const char about[] =
    "train_gpt trains GPT-2 models.\n\n"
    "  train_gpt --data book.txt --out runs/book           train on any text\n"
    "  train_gpt --out runs/book --resume                  go on where it stopped\n"
    "  train_gpt --sample runs/book --prompt 'Once '       let it write\n"
    "  train_gpt --eval runs/book --data other.txt         loss on another text\n\n";

static const char mfu_formula[] =
    "\nmfu, model FLOP utilisation, is (6 N + 12 L C T) FLOP per token x tokens/s / the device's peak in\n"
    "the chosen precision, with N parameters, L layers, C channels, context T (PaLM, arXiv 2204.02311,\n"
    "appendix B). It is \"unknown\" where the table of peaks does not have the device.\n";

/* ---- The run: everything that the sections below share */

static Corpus corpus;
static Tokenizer tokenizer;
static TokenizerFiles tokenizer_files;      /* that the model came with, or those of bytes */
static GPTConfig config;
static GPT gpt;
static Optimizer optimizer;
static TrainState state = { .val_loss = NAN, .val_step = -1 }, state_before;      /* before the current step */
static Report report;
static RunDir run_dir;                      /* if there is an --out */
static Saver saver;
static int32_t *inputs, *targets;           /* a batch of training, on the host */

/* ---- Banner, plan and log */

static void print_settings(const DeviceInfo *device) {
    printf("%s on %s: %s, %s\n", VERSION, backend_name, device->name, device->detail);
    if (device->advice[0]) printf("%s\n", device->advice);
    printf("model: %d layers, %d heads, %d channels, context %d, vocabulary %d: %.2f M parameters\n", config.L,
           config.NH, config.C, config.T, config.V, 1e-6 * (double)gpt_parameter_count(&config));
    printf("options:");
    options_print_changed(stdout, options);
    printf(" (all others as in --help)\n");
}

/* The log of a run whose checkpoints are not there (any more): it is kept beside. */
static void set_aside(const char *log) {
    char *aside = format_string("%s.old", log);
    for (int n = 2; file_exists(aside); n++) {
        free(aside);
        aside = format_string("%s.old.%d", log, n);
    }
    file_rename(log, aside);
    printf("%s is of a run without a checkpoint: it is now %s\n", log, aside);
    free(aside);
}

/* keep_step: of the checkpoint that the run goes on from; -1 = it begins. */
static void open_log(int argc, char **argv, const DeviceInfo *device, int64_t keep_step) {
    if (!out) {
        report_open(&report, NULL, NULL, -1);
        return;
    }
    run_dir_open(&run_dir);
    char *path = format_string("%s/log.csv", out), *head = NULL, *command = command_line(argc, argv);
    if (keep_step < 0 && file_exists(path)) set_aside(path);
    size_t size;
    FILE *memory = open_memstream(&head, &size);
    REQUIRE(memory, "out of memory: the head of the log");
    fprintf(memory, "# command: %s\n# version: %s\n# device: %s, %s, %s\n# settings:", command, VERSION, backend_name,
            device->name, device->detail);
    options_print(memory, options);
    fprintf(memory, "\n# model: %d layers, %d heads, %d channels, context %d, vocabulary %d, %lld parameters\n",
            config.L, config.NH, config.C, config.T, config.V, (long long)gpt_parameter_count(&config));
    if (!isnan(corpus.val_floor)) fprintf(memory, "# floor: %.6f\n", corpus.val_floor);
    fclose(memory);
    report_open(&report, path, head, keep_step);
    free(command);
    free(head);
    free(path);
}

/* ---- Evaluation and samples */

static int validation_is_due(void) {
    return corpus.val && state.step > 0 && (state.step == steps || (val_every && state.step % val_every == 0));
}

static void show_progress(int64_t done, int64_t all) { report_progress(&report, done, all); }

/* Returns whether the loss is below the floor, which only a leak can do. A validation that a stop cut short is made up
   for by the resume. */
static int validate(void) {
    int all;
    char text[96];
    double loss = evaluate(&gpt, corpus.val, val_tokens, (int)batch, &all, show_progress);
    if (isnan(loss) && stop_wanted()) return 0;
    state.val_loss = loss;
    state.val_step = state.step;
    report_line(&report, "step %lld: val loss %s%s", (long long)state.step,
                loss_text(loss, tokens_are_bytes(corpus.val), text), all ? "" : ", on the first --val-tokens");
    if (isnan(corpus.val_floor) || !all) return 0;
    static int told;
    if (told++)
        report_line(&report, "          floor %.4f", corpus.val_floor);
    else
        report_line(&report, "          floor %.4f: the entropy of this text under the grammar that wrote it. It "
                    "remembers whole tales;\n          a context of %d bytes does not reach it.", corpus.val_floor,
                    config.T);
    return state.val_loss < corpus.val_floor;
}

static void print_sample(void) {
    Sample s = { .prompt = prompt ? prompt : "", .count = (int)sample_tokens, .temperature = temperature,
                 .top_k = (int)top_k, .seed = (uint64_t)seed };
    sample_text(&gpt, tokenizer, &s, state.step, stdout);
}

/* Of a resume whose checkpoint was written when a stop had cut the validation short: also its row of the log gets the
   loss. */
static void make_up_for_validation(void) {
    if (!validation_is_due() || state.val_step == state.step) return;
    REQUIRE(!validate(), "val loss %.4f is below the floor: the validation text must have leaked into the training",
            state.val_loss);
    if (state.val_step != state.step) {         /* stopped again: by the clock, it would be so at every start */
        const char *stop = stop_wanted();
        REQUIRE(strncmp(stop, "--", 2), "%s: the validation of step %lld alone takes longer; want more time, or less "
                "of it by --val-tokens N", stop, (long long)state.step);
        return;
    }
    char *log = format_string("%s/log.csv", out);
    report_val_loss(log, state.step, state.val_loss);
    free(log);
}

/* ---- Training */

/* What a step that was not applied has left as it was: no step before it is lost. Nothing is pruned for it: where the
   weights were on their way to no good, an older checkpoint is wanted. */
static void save_before_step(void) {
    state = state_before;
    saver.keep = 0;
    if (saver.saved_step != state.step) saver_save(&saver, &state);
    saver_finish(&saver);
}

/* A step that is not finite, with the first tensor to blame: reported, and the end of the run unless it is to skip. */
static void report_nonfinite(const StepStats *stats, int64_t step) {
    saver_finish(&saver);
    char name[96] = "none any more", what[512];
    int sick = state.spikes.sick, stop = !strcmp(on_nan, "stop"), over = stop || sick >= NONFINITE_STEPS_MAX;
    Tensor tensor;
    TensorStats health = {0};
    if (gpt_find_nonfinite(&gpt, name, &tensor)) health = tensor_stats(tensor);
    nonfinite_text(stats, name, &health, what);
    if (over) save_before_step();
    char *last = out ? run_dir_latest(out) : NULL;
    char *text = format_string("step %lld: %s. Last good checkpoint: %s", (long long)step, what, last ? last : "none");
    if (stop) fail("%s. A lower --lr or --clip may help%s", text,
                   last ? "; --resume --on-nan skip goes on without this step" : "");
    REQUIRE(!over, "%s. %d such steps without an update between them: --on-nan skip does not help, a lower --lr or "
            "--clip may", text, sick);
    report_line(&report, "%s", text);
    free(text);
    free(last);
}

static void report_update(const StepStats *stats, int64_t step) {
    StepOutcome j = spike_detector_update(&state.spikes, stats);
    if (j.verdict == NONFINITE)  report_nonfinite(stats, step);
    if (j.verdict == SPIKE) {
        char text[256];
        report_line(&report, "step %lld: %s", (long long)step, spike_detector_text(&state.spikes, stats, &j, text));
    }
}

/* Once a second at most: each of four queries can take a millisecond, and what is written a row later is no other
   number (power is a mean over a second or so). */
static DeviceHealth ask_health(void) {
    static double asked_s = -1e9;
    if (seconds_now() - asked_s < 1) return (DeviceHealth){0};
    asked_s = seconds_now();
    return device_health();
}

static StepStats train_step(double learning_rate, int64_t batches, DeviceHealth *health) {
    int B = (int)batch, T = config.T;
    int64_t count = tokens_train_targets(corpus.train, (uint64_t)seed, state.sequences_seen, (uint64_t)(B * batches),
                                         T);
    float share = 1.0f / (float)count;
    state_before = state;
    gpt_set_batch(&gpt, B, T);
    spike_detector_limits(&state.spikes, skip_spikes, &optimizer.loss_limit, &optimizer.norm_limit);
    optimizer_begin(&optimizer, learning_rate);
    for (int64_t i = 0; i < batches; i++) {
        for (int b = 0; b < B; b++) {
            size_t place = (size_t)b * (size_t)T;
            tokens_train_window(corpus.train, (uint64_t)seed, state.sequences_seen++, T, inputs + place, targets +
                                place);
        }
        gpt_load(&gpt, inputs, targets);
        gpt_forward(&gpt);
        gpt_backward(&gpt, share, i ? ACCUMULATE : OVERWRITE);
        loss_add(optimizer.stats, gpt.acts.losses, share);
    }
    *health = ask_health();         /* while a GPU works on what was issued: seen at work, and not kept waiting */
    StepStats stats = optimizer_update(&optimizer, &gpt);
    state.tokens += count;
    return stats;
}

/* Returns why it stopped before the last step, or NULL. */
static const char *train(int64_t batches, double peak_flops) {
    Schedule s = { .kind = schedule_named(schedule), .peak = lr, .warmup = warmup, .total = steps,
                   .final = options_find(options, "min-lr")->given ? min_lr : lr / 10,
                   .decay = decay ? decay : steps / 5 };
    const char *stop = NULL;
    double next_ms = 0;     /* the longest of the last steps, to be done with before --time-limit */
    device_health();                        /* opens the driver's library, before the clock of the first step runs */
    while (state.step < steps && !(stop = stop_wanted())) {
        DeviceHealth health;
        double start = seconds_now(), rate = schedule_learning_rate(&s, state.step);
        int64_t tokens_before = state.tokens;
        StepStats stats = train_step(rate, batches, &health);
        double elapsed = seconds_now() - start, speed = (double)(state.tokens - tokens_before) / elapsed;
        report_update(&stats, state.step + 1);
        state.step++;
        next_ms = fmax(1e3 * elapsed, 0.9 * next_ms);
        stop_reserve(1.5e-3 * next_ms + 2 * saver.seconds);       /* the save under way, and one more */
        int last = state.step == steps, leak = validation_is_due() && validate();
        report_step(&report, &(StepReport){
            .step = state.step, .total = steps, .tokens = state.tokens, .loss = stats.loss, .norm = stats.norm,
            .learning_rate = rate, .ms = 1e3 * elapsed, .tokens_per_second = speed,
            .mfu = peak_flops > 0 ? speed * gpt_flops_per_token(&config, config.T) / peak_flops : 0,
            .val_loss = state.val_step == state.step ? state.val_loss : NAN, .health = health });
        if (stop_save_wanted() || last || (save_every && state.step % save_every == 0)) saver_save(&saver, &state);
        if (sample_every && (last || state.step % sample_every == 0)) {
            report_line(&report, "step %lld: a sample", (long long)state.step);
            print_sample();
        }
        saver_poll(&saver, state.step < steps);
        if (leak) saver_finish(&saver);
        REQUIRE(!leak, "val loss %.4f is below %.4f, the entropy of %s under the grammar that wrote it: the validation "
                "text must have leaked into the training", state.val_loss, corpus.val_floor, val_data);
    }
    if ((stop || state.step == steps) && saver.saved_step != state.step) saver_save(&saver, &state);
    if (validation_is_due() && state.val_step != state.step) stop = stop_wanted();     /* that one was cut short */
    return stop;
}

/* ---- The three things it can do */

static void plan_run(Purpose purpose) {
    const char *refusal = device_refuse_dtype(config.dtype);
    REQUIRE(!refusal, "--dtype %s: %s", model.dtype, refusal);
    Plan plan = plan_make(&config, attention, (int)batch, config.T, purpose);
    DeviceInfo device = device_info();
    if (purpose == TRAIN || dry_run) plan_print(stdout, &plan, device.free_bytes, device.total_bytes);
    char text[32];
    if (purpose == TRAIN && out)
        printf("  %-18s %12s of the host's\n", "checkpoint", bytes_text((double)saver_host_bytes(&config), text));
    plan_require(&plan, device.free_bytes, &config, attention, (int)batch, config.T, purpose);
}

/* From here on a signal stops the run as it should be. */
static void open_stop(void) {
    double limit = time_limit ? duration_seconds(time_limit) : 0;
    REQUIRE(!time_limit || limit > 0, "--time-limit %s: want a duration such as 3h50m, 90s or 2d", time_limit);
    char *limit_text = format_string("--time-limit %s", time_limit ? time_limit : "");
    stop_open(limit, limit_text);
    free(limit_text);
}

static void lock_out(void) {
    if (!dry_run) run_dir_lock(&run_dir);
}

/* The checkpoint that the run goes on from, whose options it takes over; NULL = it begins. */
static char *take_up(void) {
    REQUIRE(out, "--resume goes on with a run of --out, want --out DIR");
    lock_out();
    char *checkpoint = resume_find(out, data);
    if (!checkpoint) return NULL;
    resume_adopt_options(options, checkpoint);
    init = NULL;                            /* where the run came from */
    return checkpoint;
}

/* What the options say must make sense together, before anything is computed. Returns the batches of an update. */
static int64_t check_options(void) {
    if (sample_every) {                     /* a prompt that is no good is told now, not in the middle of the run */
        int count;
        free(tokenizer_encode(tokenizer, prompt ? prompt : "", config.V, &count));
    }
    int64_t one_batch = batch * config.T;
    REQUIRE(!total_batch || (total_batch >= one_batch && total_batch % one_batch == 0),
            "--total-batch %lld is no multiple of --batch x --context = %lld", (long long)total_batch,
            (long long)one_batch);
    REQUIRE(min_lr <= lr, "--min-lr %g: want at most --lr %g", min_lr, lr);
    return total_batch ? total_batch / one_batch : 1;
}

static void create_training(void) {
    size_t count = (size_t)batch * (size_t)config.T;
    gpt_create(&gpt, config, attention, (int)batch, config.T, TRAIN);
    inputs = calloc(count, sizeof *inputs);
    targets = calloc(count, sizeof *targets);
    REQUIRE(inputs && targets, "out of memory: a batch on the host");
    corpus_check(&corpus, config.V);
    optimizer_create(&optimizer, &gpt, (AdamW){ .beta1 = (float)beta1, .beta2 = (float)beta2, .eps = (float)eps,
                                                .weight_decay = (float)weight_decay, .max_norm = (float)clip });
}

/* sequences: of an update. */
static void load_weights(const char *checkpoint, int64_t sequences) {
    if (checkpoint) {
        state = resume_load(checkpoint, &gpt, &optimizer, sequences);
        printf("resumed from %s\n", checkpoint);
    } else if (init) {
        checkpoint_load_model(init, &gpt);
    } else {
        gpt_init(&gpt, (uint64_t)seed);
    }
    tokenizer_files = checkpoint_load_tokenizer_files(checkpoint ? checkpoint : init, tokenizer);
}

static void open_saver(int64_t saved_step) {
    char text[32];
    saver_open(&saver, out ? &run_dir : NULL, &gpt, &optimizer, &tokenizer_files, options, &corpus, tokenizer, keep,
               keep_every, &report);
    saver.saved_step = saved_step;
    if (time_limit && out)
        printf("--time-limit %s: until a save was timed, %.1f s of it are kept for the last one, of %s\n",
               time_limit, 2 * saver.seconds, bytes_text(saver_file_bytes(&config), text));
}

static void close_saver(void) {
    saver_close(&saver);
    if (out) printf("log %s/log.csv, checkpoint %s/step-%08lld\n", out, out, (long long)state.step);
}

static void tell_stopped_early(const char *stop, const char *checkpoint) {
    printf("%s: before the first step: nothing was written", stop);
    if (out) printf("; the same command with --resume %s%s", checkpoint ? "goes on from " : "begins",
                    checkpoint ? checkpoint : "");
    printf("\n");
}

static void tell_stopped(const char *stop) {
    long long step = state.step, all = steps;
    if (out) printf("%s: saved at step %lld of %lld; --out %s --resume goes on\n", stop, step, all, out);
    else     printf("%s: stopped at step %lld of %lld; without --out nothing is saved\n", stop, step, all);
}

/* Returns the exit code. */
static int run_training(int argc, char **argv) {
    run_dir.path = out;
    char *checkpoint = resume ? take_up() : NULL;
    if (init) init = run_dir_resolve(init);
    corpus = corpus_open(data, val_data, val_fraction);
    tokenizer = tokens_are_bytes(corpus.train) ? TOKENIZER_BYTES : TOKENIZER_IDS;
    config = model_to_train(&model, checkpoint ? checkpoint : init, tokenizer == TOKENIZER_BYTES);
    int64_t batches = check_options();
    if (checkpoint) resume_require_same_data(checkpoint, &corpus, data, val_data);
    if (!resume && out) {
        lock_out();
        run_dir_require_new(&run_dir);
    }

    DeviceInfo device = device_info();
    print_settings(&device);
    corpus_print(stdout, &corpus);
    plan_run(TRAIN);
    if (dry_run) {
        free(checkpoint);
        return 0;
    }
    create_training();
    load_weights(checkpoint, batch * batches);
    const char *stop = stop_wanted();
    if (stop) {
        tell_stopped_early(stop, checkpoint);
        free(checkpoint);
        return EXIT_TRY_AGAIN;
    }
    if (checkpoint && state.step >= steps)
        printf("all %lld steps are done; to train longer: --init %s/step-%08lld --steps N --out ANOTHER\n",
               (long long)steps, out, (long long)state.step);
    int64_t validated = state.val_step, saved = checkpoint ? state.step : -1;
    if (checkpoint) make_up_for_validation();
    if (state.val_step != validated) saved = -1;         /* the checkpoint gets the loss, too */
    open_log(argc, argv, &device, checkpoint ? state.step : -1);
    free(checkpoint);
    open_saver(saved);
    if (!out) printf("no --out: neither log nor checkpoint will be written\n");

    if (steps == 0) saver_save(&saver, &state);
    stop = train(batches, device.peak_flops[config.dtype]);
    saver_finish(&saver);
    report_close(&report);
    close_saver();
    if (stop) tell_stopped(stop);
    return stop ? EXIT_TRY_AGAIN : 0;
}

/* Returns 0 when the plan was all that was wanted. */
static int open_checkpoint(const char *path) {
    char *checkpoint = run_dir_resolve(path);
    config = model_to_use(&model, checkpoint);
    tokenizer = checkpoint_tokenizer(checkpoint, config.V);
    plan_run(EVALUATE);
    if (!dry_run) {
        gpt_create(&gpt, config, attention, (int)batch, config.T, EVALUATE);
        checkpoint_load_model(checkpoint, &gpt);
    }
    free(checkpoint);
    return !dry_run;
}

static void run_evaluation(void) {
    REQUIRE(data || val_data, "--eval wants --data FILE or --val-data FILE to evaluate on");
    const char *path = val_data ? val_data : data;
    Tokens *tokens = tokens_open(path);
    if (!open_checkpoint(eval)) return;
    int are_bytes = tokens_are_bytes(tokens);
    REQUIRE(are_bytes == (tokenizer == TOKENIZER_BYTES), "%s: this is %s, the model %s was trained on %s", path,
            are_bytes ? "a text" : "token shards", eval, tokenizer_name(tokenizer));
    tokens_check(tokens, config.V);
    int all, all_wanted = !options_find(options, "val-tokens")->given;
    char text[96];
    double start = seconds_now();
    double loss = evaluate(&gpt, tokens, all_wanted ? 0 : val_tokens, (int)batch, &all, show_progress);
    REQUIRE(isfinite(loss), "%s: the loss is %g: the weights are finite, but too large to compute with", eval, loss);
    double floor = are_bytes && all ? text_floor(path) : NAN;
    printf("%s: loss %s, %s of %lld tokens, %.1f s\n", path, loss_text(loss, are_bytes, text),
           all ? "all" : "the first --val-tokens", (long long)tokens_count(tokens), seconds_now() - start);
    if (!isnan(floor)) printf("the floor, this text's entropy under the grammar that wrote it, is %.4f\n", floor);
    REQUIRE(isnan(floor) || loss >= floor, "the loss is below the floor: the model must have been trained on %s", path);
    tokens_close(tokens);
}

static void run_sampling(void) {
    batch = 1;
    if (open_checkpoint(sample)) print_sample();
}

int main(int argc, char **argv) {
    for (int fd = 0; fd <= 2; fd++)         /* a file that we open must not become a closed stdout */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return 1;
    options_parse(options, argc, argv);
    if (version) { printf("%s (%s)\n", VERSION, backend_name); return 0; }
    if (help)    { fputs(about, stdout); options_help(stdout, options); fputs(mfu_formula, stdout); return 0; }
    REQUIRE(!eval || !sample, "--eval and --sample: want one of them");
    REQUIRE(!(eval || sample) || !(resume || init), "--eval and --sample do not train: want no --resume and no --init");
    if (!eval && !sample) open_stop();
    device_open((DeviceOptions){ .threads = (int)threads });
    if (!eval && !sample) return run_training(argc, argv);
    if (eval) run_evaluation();
    else      run_sampling();
    REQUIRE(!fflush(stdout) && !ferror(stdout), "cannot write to stdout: %s", strerror(errno));
    return 0;
}
