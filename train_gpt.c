/* train_gpt - Trains GPT-2 models, evaluates them, and generates text. The options: llmc/options/settings.h. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/check.h"
#include "kernels/choices.h"
#include "kernels/comm.h"
#include "kernels/device.h"
#include "llmc/text/bpe_files.h"
#include "llmc/checkpoint/resume.h"
#include "llmc/checkpoint/saver.h"
#include "llmc/train/choice_cache.h"
#include "llmc/train/evaluate.h"
#include "llmc/base/files.h"
#include "llmc/use/generate.h"
#include "llmc/ranks/launch.h"
#include "llmc/model/model_config.h"
#include "llmc/base/os.h"
#include "llmc/ranks/ranks.h"
#include "llmc/ranks/rendezvous.h"
#include "llmc/options/settings.h"
#include "llmc/use/tasks.h"
#include "llmc/train/train_step.h"
#include "llmc/train/warnings.h"

typedef struct {
    Settings       settings;
    Option         options[SETTINGS_ROWS];      /* each points into settings */
    char          *command;                     /* the command line */
    DeviceInfo     device;
    RunInfo        info;
    Corpus         corpus;
    Tokenizer      tokenizer;
    TokenizerFiles tokenizer_files;             /* copied into every checkpoint */
    GPTConfig      config;
    GPT            gpt;
    Optimizer      optimizer;
    Schedule       schedule;
    int64_t        sequences;                   /* of an update */
    TrainStep      step;
    const char    *from;                        /* checkpoint that gives model and weights; NULL = neither */
    char          *checkpoint;                  /* the same if a resume continues from it; NULL = the run begins */
    char          *changes;                     /* options that the resume changes; NULL = none */
    char          *note;                        /* which checkpoint of a run --eval or --sample takes; NULL = no run */
    TrainState     state;                       /* after the steps that are complete */
    double         step_ms, stops;              /* a recent maximum; ranks that want to stop */
    int            save;                        /* whether a rank wants to save */
    RunDir         dir;                         /* --out */
    Report         report;
    Saver          saver;
} Run;

/* ---- Preparing a run */

/* DIR of --tokenizer has its files, or is a run directory: then those of its newest model. */
static Tokenizer open_tokenizer(const char *dir) {
    char *newest = bpe_has_files(dir) ? NULL : run_dir_newest(dir);
    char *resolved = newest ? run_dir_resolve(dir) : NULL;
    Tokenizer tokenizer = tokenizer_open(resolved ? resolved : dir);
    free(resolved);
    free(newest);
    return tokenizer;
}

/* Also where a file of --config has another value. Before resume_adopt_options, which sets options as a user does. */
static int is_typed(Run *run, const char *name) {
    return (options_find(run->options, name)->given & ON_COMMAND_LINE) != 0;
}

/* That of the checkpoint; if it has none, that of --tokenizer; NULL if there is neither. A resume does not need the
   directory of --tokenizer any more. */
static Tokenizer choose_tokenizer(const Settings *s, int is_given, const char *from, int V) {
    Tokenizer own = from ? checkpoint_tokenizer(from, V) : NULL;
    int is_bpe = own && tokenizer_bpe(own);
    if (!s->tokenizer || (is_bpe && !is_given)) return own;
    REQUIRE(own != TOKENIZER_BYTES, "--tokenizer %s: the tokens of %s are bytes; want no --tokenizer", s->tokenizer,
            from);
    Tokenizer named = open_tokenizer(s->tokenizer);
    REQUIRE(!is_bpe || bpe_fingerprint(tokenizer_bpe(own)) == bpe_fingerprint(tokenizer_bpe(named)),
            "--tokenizer %s: not the one of %s; want no --tokenizer: a checkpoint has its own", s->tokenizer, from);
    if (is_bpe) tokenizer_close(named);
    else if (from) tokenizer_warn(named, V);
    return is_bpe ? own : named;
}

static TextFormat text_format(const Settings *s, Tokenizer tokenizer) {
    TextFormat format = { .bpe = tokenizer ? tokenizer_bpe(tokenizer) : NULL, .field = s->field,
                          .documents = choice_index(DOCUMENT_NAMES, s->documents) };
    document_check_field(format.documents, s->field);
    REQUIRE(format.bpe || format.documents == DOCUMENT_FILE, "--documents %s: want --tokenizer DIR; without one, the "
            "bytes of a text are its tokens", s->documents);
    return format;
}

/* Sets data, model and schedule, whose options must agree. */
static void prepare_run(Run *run) {
    Settings *s = &run->settings;
    const int is_given = is_typed(run, "tokenizer");
    if (s->resume) run->checkpoint = resume_find(s, &run->dir);
    if (run->checkpoint) run->changes = resume_adopt_options(run->options, run->checkpoint);
    REQUIRE(!run->checkpoint || checkpoint_load_state(run->checkpoint).step <= s->steps, "--steps %lld: %s has more: "
            "want --steps N above that, to train longer", (long long)s->steps, run->checkpoint);
    run->from = run->checkpoint ? run->checkpoint : s->init ? run_dir_resolve(s->init) : NULL;
    GPTConfig saved = run->from ? checkpoint_config(run->from) : (GPTConfig){0};
    if (run->from && !run->checkpoint && s->context > saved.T)
        saved.T = (int)s->context;                                  /* --init: more rows of wpe */
    run->tokenizer = choose_tokenizer(s, is_given, run->from, saved.V);
    const TextFormat format = text_format(s, run->tokenizer);
    run->corpus = corpus_open(s->data, s->val_data, s->val_fraction, &format);
    if (!s->resume && !comm_rank) run->dir = run_dir_choose(s->out, s->data, 0, s->dry_run);
    if (s->resume && !run->checkpoint)
        printf("--resume: no checkpoint in %s: the run starts from step 0\n", run->dir.path);
    int bytes = tokens_are_bytes(run->corpus.train);
    if (!format.bpe) run->tokenizer = bytes ? TOKENIZER_BYTES : TOKENIZER_IDS;
    if (!run->from && !s->model) s->model = "d4";
    run->config = model_config(s, run->from, &saved, bytes ? 256 : format.bpe ? bpe_vocabulary(format.bpe)->V : 50257);
    run->config.dropout = dropout_rates(s, run->options);
    run->config.dropout_seed = (uint64_t)s->seed;
    tokenizer_check(run->tokenizer, run->config.V);
    REQUIRE(!bytes || run->config.V == 256, "%s %d: want 256, the tokens of a text are bytes; or --tokenizer DIR",
            run->from ? format_string("%s: a vocabulary of", run->from) : "--vocab", run->config.V);
    if (s->sample_every) run->config.cache_tokens = sample_cache_tokens(&run->config, run->tokenizer, s);
    batch_choose(s, &run->config, TRAIN);
    run->sequences = update_sequences(s, run->config.T, run->checkpoint != NULL);
    run->schedule = schedule_of(s, run->options);
    if (run->checkpoint) resume_require_same_data(run->checkpoint, &run->corpus, run->options, !s->out);
}

static void print_banner(Run *run) {
    const Settings *s = &run->settings;
    const Corpus *corpus = &run->corpus;
    run->device = device_info();
    MemoryPlan plan = memory_plan_check(&run->config, s->attention, (int)s->batch, TRAIN);
    run->info = (RunInfo){
        .version = VERSION, .command = run->command, .out = run->dir.path, .data = corpus_text(corpus),
        .memory = memory_plan_text(&plan, &run->device), .attention = plan.attention, .device = &run->device,
        .config = &run->config, .options = run->options, .val_floor = corpus->val_floor,
        .validates = corpus->val != NULL, .steps = s->steps, .log_every = s->log_every, .log_jsonl = s->log_jsonl };
    report_banner(&run->info);
    if (s->dry_run || (double)plan.total > 0.8 * (double)run->device.free_bytes) {
        memory_plan_print(&plan, &run->device, run->dir.path ? saver_host_bytes(&run->config) : 0);
        recompute_plan_print(&run->config, s->attention, (int)s->batch);
    }
    if (run->changes) printf("changed: %s\n", run->changes);
    if (s->dry_run && !comm_rank) warn_of_mistakes(&run->report, s, corpus, run->config.T, run->sequences);
}

/* The checkpoint of another host may have another config.json, or other options in its state.json. */
static void require_same_model(const Run *run) {
    const GPTConfig *c = &run->config;
    const int64_t sizes[] = { c->L, c->NH, c->C, c->T, c->V, c->untied, c->dtype, run->settings.batch, run->sequences };
    char *options = settings_signature(run->options);
    ranks_require_same(xxh64(sizes, sizeof sizes), run->from ? "the model, config.json of the checkpoint,"
                                                             : "the vocabulary, of --tokenizer,");
    ranks_require_same(xxh64(options, strlen(options)), "an option, in state.json of the checkpoint,");
    free(options);
}

/* Model, optimizer and batch, with the weights of a checkpoint or initial ones. */
static void create_model(Run *run) {
    const Settings *s = &run->settings;
    corpus_check(&run->corpus, run->config.V);
    require_same_model(run);
    gpt_create(&run->gpt, run->config, s->attention, (int)s->batch, gpt_own_tokens(&run->config), TRAIN);
    optimizer_create(&run->optimizer, &run->gpt, adamw_of(s));
    run->optimizer.halts = !strcmp(s->on_nan, "stop") && s->skip_spikes == 0;
    run->step = (TrainStep){ .model = &run->gpt, .optimizer = &run->optimizer, .tokens = run->corpus.train,
                             .seed = (uint64_t)s->seed, .B = (int)s->batch, .sequences = run->sequences };
    train_step_create(&run->step);
    run->state = (TrainState){ .val_loss = NAN, .val_step = -1 };
    if (run->checkpoint) checkpoint_load_choices(run->checkpoint);
    if (!s->deterministic) choice_cache_load();
    if (run->checkpoint) {
        run->state = resume_load(run->checkpoint, &run->gpt, &run->optimizer);
        printf("resumed from %s\n", run->checkpoint);
        resume_check_best(run->checkpoint, &run->state, &run->corpus, run->options);
        ranks_copy_from_first(&run->state.val, sizeof run->state.val);     /* not all hosts may have the best */
    } else if (run->from) {
        checkpoint_load_model(run->from, &run->gpt);
        printf("started from %s\n", run->from);
    } else {
        gpt_init(&run->gpt, (uint64_t)s->seed);
    }
    if (s->perturb && !run->checkpoint) gpt_perturb(&run->gpt);
    if (!run->checkpoint) optimizer_scatter(&run->optimizer, STATE_PARAM);
    ranks_require_same_tensor(tensor_table_flat(&run->gpt.params.table, run->config.dtype), "the value of the weights");
    const char *dir = tokenizer_dir(run->tokenizer);
    run->tokenizer_files = checkpoint_load_tokenizer_files(dir ? dir : run->from, run->tokenizer, run->config.T);
}

/* ---- Validation */

static int is_due(int64_t step, int64_t every) { return every && step % every == 0; }

/* Whether a step wants a validation that it has not had. */
static int validation_due(const Run *run, int64_t step) {
    return run->corpus.val && step > 0 && step != run->state.val_step &&
           (step == run->settings.steps || is_due(step, run->settings.val_every));
}

/* NaN = this step was not validated. */
static double val_loss_of(const TrainState *state) { return state->val_step == state->step ? state->val_loss : NAN; }

/* Sets val_loss and val_step, unless a stop cuts it short: then a resume does it. */
static void validate(Run *run) {
    const Settings *s = &run->settings;
    Corpus *corpus = &run->corpus;
    int64_t first;
    double loss = evaluate(&run->gpt, corpus->val, s->val_tokens, (int)s->batch, &run->report, &first);
    if (first < 0) return;
    ValHistory *history = &run->state.val;
    history->best = saver_best(&run->saver, history->best);     /* of rank 0 */
    ranks_copy_from_first(&history->best, sizeof history->best);
    const int is_rise = val_history_add(history, run->state.step, loss, run->state.val_loss);
    run->state.val_loss = loss;
    run->state.val_step = run->state.step;
    if (first) corpus->val_floor = NAN;      /* that of the whole text */
    const double rate = targets_per_byte(corpus->val, run->tokenizer, s->val_tokens, run->config.T);
    report_validation(&run->report, &(ValidationReport){ .step = run->state.step, .loss = loss, .first = first,
                      .floor = corpus->val_floor, .targets_per_byte = rate });
    if (is_rise && !comm_rank) warn_of_rise(&run->report, loss, &history->best);
}

static void require_no_leak(Run *run) {
    if (!(val_loss_of(&run->state) < run->corpus.val_floor)) return;
    ranks_leave_to_first();
    saver_finish(&run->saver);
    fail("val loss %.4f is below %.4f, the entropy of %s under the grammar that wrote it: the validation text must "
         "have leaked into the training data", run->state.val_loss, run->corpus.val_floor, run->settings.val_data);
}

/* Saves when it is due, and when the val loss of this step is the best so far. */
static void save_step(Run *run, int due) {
    BestLoss *best = &run->state.val.best;
    const int is_best = best->step && best->step == run->state.step;
    if (is_best) best->is_extra = !due;
    if (due || is_best) saver_save(&run->saver, &run->state);
}

/* After --early-stop validations without a new best. */
static int stops_early(const Run *run) {
    return run->settings.early_stop && run->state.val.since_best >= run->settings.early_stop;
}

/* A resumed run repeats a validation that a stop cut short. */
static void repeat_validation(Run *run) {
    validate(run);
    require_no_leak(run);
    const char *stop = validation_due(run, run->state.step) ? ranks_stop(1) : NULL;
    REQUIRE(!stop || strncmp(stop, "--", 2), "%s: the validation of step %lld alone takes longer; want more time, or "
            "fewer --val-tokens", stop, (long long)run->state.step);
}

/* ---- The outputs of a run */

/* The run directory, its log and the saver. */
static void open_outputs(Run *run) {
    const Settings *s = &run->settings;
    const TrainState *state = &run->state;
    const BestLoss best = state->val.best;
    int is_saved = run->checkpoint && !validation_due(run, run->state.step);
    if (run->checkpoint && !is_saved) repeat_validation(run);
    char text[32];
    if (comm_rank) run->dir.path = NULL;        /* rank 0 writes for all */
    if (run->dir.path) run_dir_open(&run->dir);
    const char *out = run->dir.path;
    if (out != run->info.out) printf("output  %s: %s exists by now\n", out, run->info.out);
    run->info.out = out;
    ResumeInfo resume = { .step = state->step, .changes = run->changes, .val_loss = val_loss_of(state) };
    report_open(&run->report, out, &run->info, run->checkpoint ? &resume : NULL);
    if (!comm_rank) warn_of_mistakes(&run->report, s, &run->corpus, run->config.T, run->sequences);
    run->saver = (Saver){ .dir = out ? &run->dir : NULL, .model = &run->gpt, .optimizer = &run->optimizer,
                          .report = &run->report, .keep = s->keep, .keep_every = s->keep_every,
                          .snapshot = { .options = run->options, .tokenizer = run->tokenizer,
                                        .tokenizer_files = &run->tokenizer_files, .train = data_id(run->corpus.train),
                                        .val = data_id(run->corpus.val) } };
    saver_open(&run->saver);
    if (run->checkpoint) saver_resume(&run->saver, is_saved ? state->step : -1, best);
    if (run->checkpoint && !is_saved)
        save_step(run, state->step == s->steps || is_due(state->step, s->save_every));
    if (run->checkpoint && state->step >= s->steps)
        printf("all %lld steps are done; to train longer: --resume %s --steps N\n", (long long)s->steps, out);
    if (out && s->time_limit)
        printf("--time-limit %s: %.1f s are reserved for the last checkpoint of %s until a save has been timed\n",
               s->time_limit, 2 * run->saver.seconds, bytes_text(saver_file_bytes(&run->config), text));
}

/* stop: why it ended early, or NULL. Returns the exit code. */
static int finish_run(Run *run, const char *stop) {
    const char *out = run->dir.path;
    long long step = run->state.step, all = run->settings.steps;
    saver_finish(&run->saver);
    const BestLoss best = saver_best(&run->saver, run->state.val.best);
    char early[192] = "";
    if (!stop && step < all && stops_early(run))
        snprintf(early, sizeof early, "--early-stop %lld: ended at step %lld of %lld, the best val loss is %.4f at "
                 "step %lld%s", (long long)run->settings.early_stop, step, all, best.loss, (long long)best.step,
                 out ? "; --resume with --early-stop 0 continues" : "");
    report_close(&run->report, run->saver.failed ? "the last checkpoint could not be written" : stop ? stop :
                 *early ? early : "done");
    saver_close(&run->saver);
    if (*early) puts(early);
    if (out) {
        printf("log %s, curves %s, checkpoint %s", path_of(out, "log.csv").text, path_of(out, "report.html").text,
               run_dir_checkpoint(&run->dir, step).text);
        if (best.step && best.step != step)
            printf(", best %s (val loss %.4f)", run_dir_checkpoint(&run->dir, best.step).text, best.loss);
        putchar('\n');
    }
    if (!stop) return 0;
    const char *gpus = run->settings.gpus;
    const int is_one = !strcmp(gpus, "1");
    char shared[96] = "";
    if (run->config.context_parallel > 1)
        snprintf(shared, sizeof shared, " --context-parallel %d --ring-order %s", run->config.context_parallel,
                 run->settings.ring_order);
    if (out) printf("%s: saved at step %lld of %lld; --resume %s%s%s%s continues\n", stop, step, all, out,
                    is_one ? "" : " --gpus ", is_one ? "" : gpus, shared);
    else     printf("%s: stopped at step %lld of %lld; --out none: nothing is saved\n", stop, step, all);
    return EXIT_TRY_AGAIN;
}

/* ---- Without training */

/* --eval and --sample. Returns the exit code. */
static int use_checkpoint(Run *run) {
    Settings *s = &run->settings;
    const int is_val = s->val_data && (is_typed(run, "val-data") || !is_typed(run, "data"));
    const int is_part = !is_val && is_typed(run, "val-fraction");
    const char *path = is_val ? s->val_data : s->data;
    if (s->sample) s->batch = s->num_samples;
    const char *checkpoint = run->checkpoint = run_dir_pick(s->eval ? s->eval : s->sample, s->checkpoint, &run->note);
    GPTConfig saved = checkpoint_config(checkpoint);
    run->config = model_config(s, checkpoint, &saved, saved.V);
    run->tokenizer = choose_tokenizer(s, is_typed(run, "tokenizer"), checkpoint, run->config.V);
    tokenizer_check(run->tokenizer, run->config.V);
    const TextFormat format = text_format(s, run->tokenizer);
    const Purpose purpose = s->sample ? GENERATE : EVALUATE;
    Task task = {0};
    if (s->task)      task = task_read(s->task, path, run->tokenizer, &run->config);
    else if (s->eval) run->corpus = corpus_open_eval(path, is_part ? s->val_fraction : 1, &format);
    batch_choose(s, &run->config, purpose);
    MemoryPlan plan = memory_plan_check(&run->config, s->attention, (int)s->batch, purpose);
    if (s->dry_run) {
        run->device = device_info();
        memory_plan_print(&plan, &run->device, 0);
        return stdio_flush();
    }
    gpt_create(&run->gpt, run->config, s->attention, (int)s->batch, run->config.T, purpose);
    checkpoint_load_model(checkpoint, &run->gpt);
    if (run->note && s->eval) fprintf(stderr, "checkpoint %s\n", run->note);
    if (!options_find(run->options, "seed")->given) s->seed = (int64_t)random_seed();
    int64_t max_tokens = is_typed(run, "val-tokens") ? s->val_tokens : 0;
    int B = (int)s->batch;
    if (s->task)      task_evaluate(&task, &run->gpt, B, s->log_jsonl);
    else if (s->eval) evaluate_file(&run->gpt, run->tokenizer, s->eval, &run->corpus, path, max_tokens, B);
    else              sample_checkpoint(&run->gpt, run->tokenizer, s, run->note);
    task_free(&task);
    return stdio_flush();
}

/* ---- Training */

/* A step whose update was not applied. A non-finite one ends the run, unless --on-nan skip allows some. The state
   before the step is saved first, so that no step is lost; no older checkpoint is removed, which may be needed. */
static void report_skipped_step(Run *run, const TrainState *before, const StepStats *stats, StepResult result) {
    const Settings *s = &run->settings;
    int skip = !strcmp(s->on_nan, "skip");
    char *text = skipped_step_text(&run->state.spikes, run->state.step, result, stats, &run->gpt);
    if (result == SPIKE || (skip && run->state.spikes.nonfinite < NONFINITE_STEPS_MAX)) {
        report_line(stdout, "%s", text);
        free(text);
        return;
    }
    run->saver.keep = 0;
    if (run->saver.saved_step != before->step) saver_save(&run->saver, before);
    ranks_leave_to_first();
    saver_finish(&run->saver);
    char *last = run->dir.path ? run_dir_latest(run->dir.path, NULL) : NULL;
    REQUIRE(!skip, "%s. %d such steps without an update between them. Last good checkpoint: %s. A lower --lr or --clip "
            "may help", text, NONFINITE_STEPS_MAX, last ? last : "none");
    fail("%s. Last good checkpoint: %s. A lower --lr or --clip may help%s", text, last ? last : "none",
         last ? "; --resume --on-nan skip continues without this step" : "");
}

/* Whether the result of a step is read before the next step is issued, also the first, whose time --time-limit needs.
   Otherwise the host runs one step ahead: the device applies no update after one that was not applied. */
static int is_awaited(const Run *run, int64_t step) {
    const Settings *s = &run->settings;
    return run->step_ms == 0 || !run->optimizer.halts || run->save || step == s->steps || validation_due(run, step) ||
           is_due(step, s->save_every) || is_due(step, s->sample_every);
}

/* under_way: steps after state that were issued. */
static void begin_step(Run *run, int under_way) {
    Optimizer *optimizer = &run->optimizer;
    const TrainState *state = &run->state;
    spike_detector_limits(&state->spikes, run->settings.skip_spikes, &optimizer->loss_limit, &optimizer->norm_limit);
    choices_measuring = !run->settings.deterministic;       /* --deterministic: the defaults */
    train_step(&run->step, state->sequences_seen + (uint64_t)(under_way * run->sequences),
               schedule_learning_rate(&run->schedule, state->step + under_way));
    choices_measuring = 0;
    report_health(&run->report);        /* while a GPU computes */
}

/* Waits for the step after state. under_way: steps after it that were issued. */
static void end_step(Run *run, int under_way) {
    TrainState *state = &run->state;
    const TrainState before = *state;
    double learning_rate = schedule_learning_rate(&run->schedule, state->step);
    UpdateResult update = optimizer_result(&run->optimizer);
    update.stats.loss = fabs(update.stats.loss);            /* the NaN of x86 is negative */
    update.stats.norm = fabs(update.stats.norm);
    state->sequences_seen += (uint64_t)run->sequences;
    state->tokens += train_step_targets(&run->step, before.sequences_seen);
    state->step++;
    heartbeat_note(state->step);
    StepResult result = spike_detector_update(&state->spikes, &update.stats);
    if (result != APPLIED && under_way) {           /* its activations are overwritten: repeat it */
        optimizer_result(&run->optimizer);
        train_step(&run->step, before.sequences_seen, learning_rate);
        optimizer_result(&run->optimizer);
    }
    if (result != APPLIED) report_skipped_step(run, &before, &update.stats, result);
    run->step_ms = fmax(update.ms, 0.9 * run->step_ms);
    /* for the step under way and the next, the save under way and one more, and with several ranks for the two steps in
       which they agree */
    stop_reserve((comm_size > 1 ? 4.5e-3 : 2.5e-3) * run->step_ms + 2 * run->saver.seconds);
    if (validation_due(run, state->step)) validate(run);
    report_step(&run->report, &(StepReport){
        .step = state->step, .tokens = state->tokens, .loss = update.stats.loss, .norm = update.stats.norm,
        .learning_rate = learning_rate, .ms = update.ms, .comm_wait_ms = update.comm_wait_ms,
        .tokens_per_second = 1e3 * (double)(state->tokens - before.tokens) / update.ms,
        .val_loss = val_loss_of(state) });
    run->stops = validation_due(run, state->step) ? 1 : update.stats.stop;   /* due still: a stop has cut it short */
    run->save |= update.stats.save > 0;
}

/* Several ranks measure, and agree on the choices of rank 0, before the first step, so that its bits are those of a run
   which finds them in the cache. */
static void agree_on_choices(Run *run) {
    if (comm_size == 1 || run->settings.deterministic) return;
    choices_measuring = 1;
    train_step_measure(&run->step, run->state.sequences_seen);
    choices_measuring = 0;
    choices_agree();
}

/* Returns why it stopped before the last step, or NULL. */
static const char *train(Run *run) {
    const Settings *s = &run->settings;
    TrainState *state = &run->state;
    const char *stop = NULL;
    const int64_t first = state->step;
    int under_way = 0;
    run->stops = ranks_stops();
    agree_on_choices(run);
    while (state->step + under_way < s->steps && !stops_early(run) && !(stop = ranks_stop(run->stops))) {
        begin_step(run, under_way++);
        if (state->step == first && under_way == 1) choice_cache_save();    /* all is measured */
        if (under_way > 1) end_step(run, --under_way);
        saver_poll(&run->saver);
        if (!is_awaited(run, state->step + 1)) continue;
        end_step(run, --under_way);
        int last = state->step == s->steps || stops_early(run);
        save_step(run, run->save || last || is_due(state->step, s->save_every));
        run->save = 0;
        if (s->sample_every && (last || is_due(state->step, s->sample_every)))
            print_sample(&run->gpt, run->tokenizer, s, &run->report, state->step);
        require_no_leak(run);
    }
    if (under_way) end_step(run, 0);
    if (run->saver.saved_step != state->step) saver_save(&run->saver, state);
    if (validation_due(run, state->step)) stop = ranks_stop(1);      /* it was cut short */
    return stop;
}

int main(int argc, char **argv) {
    static Run run;
    Settings *s = &run.settings;
    device_start(argv);
    stdio_open();
    settings_parse(s, run.options, argc, argv);
    if (s->version)   printf("%s (%s)\n", VERSION, backend_name);
    else if (s->help) settings_help(stdout, run.options);
    if (s->version || s->help) return stdio_flush();
    settings_check(s);
    int training = !s->eval && !s->sample;
    if (training) launch_start(s);
    else          signal(SIGINT, SIG_DFL);      /* a background shell starts its jobs with SIGINT ignored */
    run.command = command_line(argc, argv);     /* without the secret, which launch_start has removed */
    device_open((DeviceOptions){ .threads = (int)s->threads, .index = launch_local_rank });
    if (!training) return use_checkpoint(&run);
    launch_join(s, run.options);

    prepare_run(&run);
    print_banner(&run);
    if (s->dry_run) return stdio_flush();
    create_model(&run);
    const char *stop = ranks_stop(ranks_stops());
    int code = EXIT_TRY_AGAIN;
    if (s->profile) {
        choices_measuring = !s->deterministic;      /* as in training: the profile is of the GEMMs that it uses */
        train_step_profile(&run.step, run.state.sequences_seen, s->lr, s->profile);
        code = stdio_flush();
    } else if (stop) {
        printf("%s: before the first step, nothing was written; the same command with --resume %s\n", stop,
               run.checkpoint ? "continues" : "begins");
    } else {
        open_outputs(&run);
        code = finish_run(&run, train(&run));
    }
    launch_end();
    return code;
}
