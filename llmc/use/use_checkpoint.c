#include "use_checkpoint.h"
#include "../checkpoint/resume.h"
#include "../model/model_config.h"
#include "generate.h"
#include "tasks.h"

/* Prints the loss on the text or shards of `path`, with a BPE also per byte of its text, and the floor. */
static void print_loss(GPT *model, Tokenizer *tokenizer, const Settings *s, const Corpus *corpus, const char *path,
                       int64_t max_tokens) {
    const int are_bytes = corpus->val->tokenizer == TOKENIZER_BYTES;
    char text[192], part[48] = "all";
    REQUIRE(are_bytes == (tokenizer == TOKENIZER_BYTES), "%s: %s, the model %s was trained on %s%s", path,
            are_bytes ? "this is a text" : "these are token shards", s->eval, tokenizer->name,
            are_bytes ? "; want --tokenizer DIR" : "");
    tokens_check(corpus->val, model->config.V);
    const double start = seconds_now();
    const Evaluation e = evaluate(model, corpus->val, tokenizer, max_tokens, (int)s->batch);
    REQUIRE(isfinite(e.loss), "%s: the loss is %g: the weights are finite, but the activations overflow", s->eval,
            e.loss);
    const double floor = e.first ? NAN : corpus->val_floor;
    if (e.first) snprintf(part, sizeof part, "the first %lld", (long long)e.first);
    print_line(stdout, "%s: loss %s, %s of %s%lld tokens, %.1f s", path, loss_text(e.loss, e.targets_per_byte, text),
               part, corpus->train ? "the last " : "", (long long)corpus->val->count, seconds_now() - start);
    if (!isnan(floor)) printf("the floor, this text's entropy under the grammar that wrote it, is %.4f\n", floor);
    REQUIRE(!(e.loss < floor), "the loss is below the floor: the model must have been trained on %s", path);
}

/* --eval alone: data and, where the device has it, precision are those of the run. Returns the DataId; NULL = options
   change them. */
static const char *adopt_val_data(const Settings *s, Option *options, const char *checkpoint) {
    static const char names[] = "dtype|data|val-data|val-fraction|val-tokens|documents|field";
    Json *json = dir_has_file(checkpoint, "state.json") ? checkpoint_open_state(checkpoint) : NULL;
    const char *val = json ? json_string(json, "val") : "none";
    REQUIRE(strcmp(val, "none"), "--eval %s: is not of a run with validation data: want a text, too: --data FILE or "
            "--val-data FILE", s->eval);
    const char *only = device_refuse_dtype(BF16) ? names + strlen("dtype|") : names;
    return resume_adopt_options(options, json, only) ? NULL : val;
}

int use_checkpoint(Settings *s, Option *options) {
    static GPT gpt;                         /* these live until the process ends */
    static Task task;
    static Corpus corpus;
    static Tokenizer *tokenizer;
    static char *checkpoint, *note, *prompt;
    if (s->sample) s->batch = 1;
    checkpoint = run_dir_resolve(s->eval ? s->eval : s->sample, &note);
    if (note) make_printable(note);
    const char *had = s->eval && !s->data && !s->val_data ? adopt_val_data(s, options, checkpoint) : NULL;
    const int is_val = s->val_data && (option_is_typed(options, "val-data") || !option_is_typed(options, "data"));
    const int is_part = !is_val && option_is_typed(options, "val-fraction");
    const char *path = is_val ? s->val_data : s->data;
    GPTConfig config = checkpoint_config(checkpoint);
    config = model_config(s, checkpoint, &config, config.V);
    tokenizer = tokenizer_choose(s, option_is_typed(options, "tokenizer"), checkpoint, config.V);
    tokenizer_check(tokenizer, config.V);
    const Purpose purpose = s->sample ? GENERATE : EVALUATE;
    if (s->task) task = task_read(s->task, path, tokenizer, &config);
    s->data     = s->eval && !s->task && is_part ? path : NULL;
    s->val_data = s->eval && !s->task && !is_part ? path : NULL;
    corpus = corpus_open(s, tokenizer);
    REQUIRE(!s->eval || s->task || corpus.val, "--val-fraction %g with --eval: want a text, and more than 0",
            s->val_fraction);
    REQUIRE(!had || data_is(corpus.val, had), "%s: has changed since %s was made: it is %s, was %s; restore it, or "
            "give the data: --data FILE or --val-data FILE", path, checkpoint, data_id(corpus.val).text, had);
    batch_choose(s, &config, purpose);
    const int B = (int)s->batch;
    const MemoryPlan plan = memory_plan(&config, s->attention, B, purpose);
    if (s->dry_run) memory_plan_print(&plan);
    memory_plan_check(&plan, B, purpose);
    if (s->dry_run) return stdio_flush();
    if (s->sample) prompt = sample_prompt(s, tokenizer, &config);
    gpt_create(&gpt, config, s->attention, B, config.T, purpose);
    checkpoint_load_model(checkpoint, &gpt);
    if (note) fprintf(stderr, "checkpoint %s\n", note);
    if (!options_find(options, "seed")->given) s->seed = (int64_t)(1e9 * seconds_now()) % 1000000000;
    if (s->sample && s->temperature > 0) fprintf(stderr, "seed %lld\n", (long long)s->seed);
    const int64_t max_tokens = option_is_typed(options, "val-tokens") ? s->val_tokens : 0;
    if (s->task)      task_evaluate(&task, &gpt, B, s->out);
    else if (s->eval) print_loss(&gpt, tokenizer, s, &corpus, path, max_tokens);
    else              sample_text(&gpt, tokenizer, s, prompt, NULL, 0, stdout);
    return stdio_flush();
}
