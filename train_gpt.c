/* train_gpt - Trains GPT-2 models, evaluates them, and generates text. The options: llmc/options/settings.h. */
#include "llmc/checkpoint/resume.h"
#include "llmc/checkpoint/saver.h"
#include "llmc/model/model_config.h"
#include "llmc/ranks/launch.h"
#include "llmc/ranks/ranks.h"
#include "llmc/train/autotune_cache.h"
#include "llmc/train/schedule.h"
#include "llmc/train/train_step.h"
#include "llmc/use/generate.h"
#include "llmc/use/use_checkpoint.h"

typedef struct {
    Settings       settings;
    Option         options[SETTINGS_ROWS];      /* each points into settings */
    char          *command;                     /* the command line */
    const char    *from;                        /* checkpoint that gives model and weights; NULL = neither */
    Resume         resume;                      /* zeros where no run continues; else its checkpoint is from */
    Corpus         corpus;
    Tokenizer     *tokenizer;
    char          *prompt;                      /* for samples during the training */
    GPTConfig      config;
    GPT            gpt;
    Optimizer      optimizer;
    TrainStep      step;
    TrainState     state;                       /* after the steps that are complete */
    double         val_loss;                    /* measured at state.val_step */
    DeviceInfo     device;
    RunInfo        info;
    RunDir         dir;                         /* --out */
    Report         report;
    Saver          saver;
    int            save_requested;              /* by SIGUSR1 */
} Run;

/* ---- Preparing a run */

/* Sets data, model and schedule, whose options must agree. */
static void prepare_run(Run *run) {
    Settings *s = &run->settings;
    const int tokenizer_is_given = option_is_typed(run->options, "tokenizer");     /* not adopted from the checkpoint */
    if (s->resume) run->resume = resume_find(s, run->options, &run->dir);
    run->from = run->resume.checkpoint ? run->resume.checkpoint : s->init ? run_dir_resolve(s->init, NULL) : NULL;
    GPTConfig saved = run->from ? checkpoint_config(run->from) : (GPTConfig){0};
    if (run->from && !run->resume.checkpoint && s->context)
        saved.T = (int)s->context;                                  /* --init: more rows of wpe, or fewer */
    run->tokenizer = tokenizer_choose(s, tokenizer_is_given, run->from, saved.V);
    REQUIRE(s->data || s->dry_run, "nothing to train on: want a text or token shards, such as ./train_gpt book.txt; "
            "see --help");
    if (s->data && !run->resume.checkpoint && !s->val_data) s->val_data = corpus_val_beside(s->data);
    run->corpus = corpus_open(s, run->tokenizer);
    if (!s->resume && !comm_rank) run->dir = run_dir_choose(s->out, s->data ? s->data : "NAME", 0, s->dry_run);
    if (s->resume && !run->resume.checkpoint)
        print_line(stdout, "--resume: no checkpoint in %s: the run starts from step 0", run->dir.path);
    if (!run->from && !s->model) s->model = "d4";
    if (s->data) run->tokenizer = run->corpus.train->tokenizer;
    else if (!run->tokenizer)               /* a plan of GPT-2's sizes is one of its tokens */
        run->tokenizer = s->vocab || (gpt_named(s->model, &saved) && saved.L >= 12) ? TOKENIZER_IDS : TOKENIZER_BYTES;
    const int bytes = run->tokenizer == TOKENIZER_BYTES;
    run->config = model_config(s, run->from, &saved, run->tokenizer->v.V);
    tokenizer_check(run->tokenizer, run->config.V);
    REQUIRE(!bytes || run->config.V == 256, "%s %d: want 256, the tokens of a text are bytes; or --tokenizer DIR",
            run->from ? format_string("%s: a vocabulary of", run->from) : "--vocab", run->config.V);
    if (s->sample_every) run->prompt = sample_prompt(s, run->tokenizer, &run->config);
    if (run->dir.path && !comm_rank) run->config.host_bytes = saver_host_bytes(&run->config);
    if (!run->from && !s->profile) run->info.recipe = recipe_choose(s, run->options, &run->config);
    batch_choose(s, &run->config, TRAIN);
    run->step.sequences = update_sequences(s, run->config.T, run->resume.checkpoint != NULL);
    REQUIRE(!(s->min_lr > s->lr), "--min-lr %g: want at most --lr %g", s->min_lr, s->lr);
    const int64_t had = run->resume.settings.early_stop;        /* earlier versions took it without validations */
    REQUIRE(!s->early_stop || s->early_stop == had || !s->data || (run->corpus.val && s->val_every),
            "--early-stop %lld: want validations, by --val-every N and --val-data FILE or --val-fraction N",
            (long long)s->early_stop);
    if (run->resume.checkpoint) resume_check_data(&run->resume, &run->corpus, s);
}

static void print_banner(Run *run) {
    const Settings *s = &run->settings;
    run->device = device_info();
    const MemoryPlan plan = memory_plan(&run->config, s->attention, (int)s->batch, TRAIN);
    run->info = (RunInfo){
        .settings = s, .options = run->options, .config = &run->config, .device = &run->device,
        .command = run->command, .out = run->dir.path, .data = corpus_text(&run->corpus),
        .memory = plan.total, .attention = plan.attention, .recipe = run->info.recipe,
        .val_floor = run->corpus.val_floor, .changes = run->resume.changes,
        .resumed_step = run->resume.checkpoint ? run->resume.state.step : -1 };
    log_describe(stdout, &run->info, 0);
    if (s->dry_run || (double)plan.total > 0.8 * (double)run->device.free_bytes) {
        memory_plan_print(&plan);
        recompute_plan_print(&run->config, s->attention, (int)s->batch);
    }
    memory_plan_check(&plan, (int)s->batch, TRAIN);
    if (run->resume.changes) print_line(stdout, "changed: %s", run->resume.changes);
}

/* Model, optimizer and batch, with the weights of a checkpoint or initial ones. */
static void create_model(Run *run) {
    const Settings *s = &run->settings;
    corpus_check(&run->corpus, run->config.V);
    model_require_same(&run->config, s, run->options, run->from, run->step.sequences);
    gpt_create(&run->gpt, run->config, s->attention, (int)s->batch, gpt_local_tokens(&run->config), TRAIN);
    optimizer_create(&run->optimizer, &run->gpt);
    run->step = (TrainStep){ .model = &run->gpt, .optimizer = &run->optimizer, .tokens = run->corpus.train,
                             .settings = s, .B = (int)s->batch, .sequences = run->step.sequences };
    train_step_create(&run->step);
    run->state = (TrainState){ .val_step = -1 };
    if (run->resume.checkpoint) checkpoint_load_choices(run->resume.checkpoint);
    if (!s->deterministic) autotune_cache_load();
    if (run->resume.checkpoint) {
        resume_load(&run->resume, &run->gpt, &run->optimizer);
        print_line(stdout, "resumed from %s", run->resume.checkpoint);
        run->state = run->resume.state;
        ranks_copy_from_first(&run->state.best, sizeof run->state.best);     /* not all hosts may have the best */
    } else {
        if (run->from) checkpoint_load_model(run->from, &run->gpt);
        else           gpt_init(&run->gpt, (uint64_t)s->seed);
        if (run->from) print_line(stdout, "started from %s", run->from);
        if (s->perturb) gpt_perturb(&run->gpt);
        optimizer_scatter(&run->optimizer, STATE_PARAM);
    }
    /* initial ones differ where libraries do; the sums of files leave out those that an index names */
    ranks_require_same_tensor(tensor_table_flat(&run->gpt.params.table, run->config.dtype), "the value of the weights");
}

/* ---- Validation and saves */

static int is_due(int64_t step, int64_t every) { return every && step % every == 0; }

/* Whether the step wants a validation that it has not had. */
static int validation_due(const Run *run) {
    const int64_t step = run->state.step;
    return run->corpus.val && step > 0 && step != run->state.val_step &&
           (step == run->settings.steps || is_due(step, run->settings.val_every));
}

static int save_due(const Run *run) {
    return run->state.step == run->settings.steps || is_due(run->state.step, run->settings.save_every) ||
           run->save_requested;
}

/* Validates, and sets val_step; or returns the stop that cut it short: a resume then validates this step. */
static const char *validate(Run *run) {
    const Settings *s = &run->settings;
    TrainState *state = &run->state;
    Corpus *corpus = &run->corpus;
    const Evaluation e = evaluate(&run->gpt, corpus->val, run->tokenizer, s->val_tokens, (int)s->batch);
    if (e.first < 0) return ranks_stop(1);
    BestLoss *best = &state->best;
    ranks_copy_from_first(best, sizeof *best);          /* the one before, if its save has failed */
    best_loss_add(best, state->step, e.loss);
    if (best->step == state->step) best->is_extra = !save_due(run) && run->saver.saved != state->step;
    run->val_loss = e.loss;
    state->val_step = state->step;
    if (e.first) corpus->val_floor = NAN;    /* that of the whole text */
    report_validation(&run->report, state->step, &e, corpus->val_floor);
    return NULL;
}

/* Fails when the val loss is below the floor, once the running save is complete. */
static void require_no_leak(Run *run) {
    const TrainState *state = &run->state;
    if (state->val_step != state->step || !(run->val_loss < run->corpus.val_floor)) return;
    ranks_leave_to_first();
    saver_finish(&run->saver);
    fail("val loss %.4f is below %.4f, the entropy of %s under the grammar that wrote it: the validation text must "
         "have leaked into the training data", run->val_loss, run->corpus.val_floor, run->settings.val_data);
}

/* After --early-stop validations without a new best. */
static int stops_early(const Run *run) {
    return run->settings.early_stop && run->state.best.since >= run->settings.early_stop;
}

/* The run directory, its log and the saver. */
static void open_outputs(Run *run) {
    const Settings *s = &run->settings;
    TrainState *state = &run->state;
    if (comm_rank) run->dir.path = NULL;        /* rank 0 writes for all */
    if (run->dir.path) run_dir_open(&run->dir);
    const char *out = run->dir.path;
    run->info.out = out;
    report_open(&run->report, &run->info);
    run->saver = (Saver){ .dir = out ? &run->dir : NULL, .optimizer = &run->optimizer, .report = &run->report,
                          .keep = s->keep, .best = &state->best,
                          .saved = run->resume.checkpoint ? state->step : -1,
                          .snapshot = { .model = &run->gpt, .options = run->options, .tokenizer = run->tokenizer,
                                        .train = data_id(run->corpus.train), .val = data_id(run->corpus.val) } };
    if (validation_due(run)) {                  /* a stop had cut it short */
        validate(run);
        require_no_leak(run);
    }
    saver_open(&run->saver, state);
    if (out && run->resume.checkpoint && state->step >= s->steps)
        print_line(stdout, "all %lld steps are done; to train longer: --resume %s --steps N", (long long)s->steps,
                   shell_word(out));
}

/* ---- Training */

/* Returns why it stopped before the last step, or NULL. */
static const char *train(Run *run) {
    const Settings *s = &run->settings;
    TrainState *state = &run->state;
    const char *stop = ranks_stop(ranks_stops());
    if (!s->deterministic && comm_size > 1) {   /* the first step then has the same bits as in a run with a cache */
        train_step_measure(&run->step, state->sequences_seen);
        autotune_agree();
    }
    double began = seconds_now();
    for (const int64_t first = state->step; state->step < s->steps && !stops_early(run) && !stop; ) {
        const TrainState before = *state;
        const double learning_rate = schedule_learning_rate(s, state->step);
        spike_detector_limits(&state->spikes, s->skip_spikes, run->optimizer.result);
        train_step(&run->step, state->sequences_seen, learning_rate);       /* forward, backward, update; next batch */
        report_background(&run->report);            /* rows of log.csv to disk, while a GPU computes */
        saver_poll(&run->saver);
        const StepStats update = optimizer_result(&run->optimizer);         /* waits for the device */
        const double ms = 1e3 * (seconds_now() - began);
        began += 1e-3 * ms;
        state->step++;
        state->sequences_seen += (uint64_t)run->step.sequences;
        state->tokens += train_step_targets(&run->step, before.sequences_seen);
        if (before.step == first) autotune_cache_save();      /* all is measured */
        const StepResult result = spike_detector_update(&state->spikes, &update);  /* NONFINITE may end the run */
        if (result != APPLIED) report_skipped_step(&run->saver, s, &before, state, &update, result);

        report_step(&run->report, &(LogRow){
            .step = (double)state->step, .tokens = (double)state->tokens, .loss = update.loss,
            .norm = update.norm, .lr = learning_rate, .ms = ms, .comm_wait_ms = run->optimizer.comm_wait_ms,
            .tokens_per_s = 1e3 * (double)(state->tokens - before.tokens) / ms });

        run->save_requested = update.save > 0;
        const int validates = validation_due(run);
        stop = validates ? validate(run) : NULL;
        const int is_last = state->step == s->steps || stops_early(run);
        const int saves = is_last || save_due(run) || state->best.step == state->step;
        if (saves) saver_save(&run->saver, state);
        const int samples = s->sample_every && (is_last || is_due(state->step, s->sample_every));
        if (samples) print_sample(&run->gpt, run->tokenizer, s, run->prompt, &run->report, state->step);
        require_no_leak(run);
        if (validates || saves || samples) began = seconds_now();

        if (!stop) stop = ranks_stop(update.stop);
    }
    if (run->saver.saved != state->step) saver_save(&run->saver, state);
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
    const int training = !s->eval && !s->sample;
    if (training) launch_start(s);              /* returns in each rank: --gpus forks */
    else          signal(SIGINT, SIG_DFL);      /* a background shell starts its jobs with SIGINT ignored */
    run.command = command_line(argc, argv);
    device_open((DeviceOptions){ .threads = (int)s->threads, .index = launch_local_rank });
    if (!training) return use_checkpoint(s, run.options);
    rendezvous_join(run.options);
    heartbeat_busy(1);                          /* another host may tokenize or load for longer than --comm-timeout */

    prepare_run(&run);
    print_banner(&run);
    if (s->dry_run) return stdio_flush();
    create_model(&run);
    heartbeat_busy(0);
    const char *stop = ranks_stop(ranks_stops());
    int code = EXIT_TRY_AGAIN;
    if (s->profile) {
        train_step_profile(&run.step, run.state.sequences_seen, s->lr, s->profile);
        code = stdio_flush();
    } else if (stop) {
        printf("%s: before the first step, nothing was written; the same command with --resume %s\n", stop,
               run.resume.checkpoint ? "continues" : "begins");
    } else {
        open_outputs(&run);
        code = run_end(&run.saver, s, &run.state, train(&run));
    }
    heartbeat_end();
    return code;
}
