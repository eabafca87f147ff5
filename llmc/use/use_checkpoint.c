#include "use_checkpoint.h"
#include <stdio.h>
#include "../../kernels/device.h"
#include "../base/os.h"
#include "../../kernels/check.h"
#include "../checkpoint/run_dir.h"
#include "../checkpoint/tokenizer_choice.h"
#include "../model/model_config.h"
#include "../train/evaluate.h"
#include "generate.h"
#include "tasks.h"

int use_checkpoint(Settings *s, Option *options) {
    static GPT gpt;                         /* these live until the process ends */
    static Task task;
    static Corpus corpus;
    static Tokenizer tokenizer;
    static char *checkpoint, *note;
    const int is_val = s->val_data && (option_is_typed(options, "val-data") || !option_is_typed(options, "data"));
    const int is_part = !is_val && option_is_typed(options, "val-fraction");
    const char *path = is_val ? s->val_data : s->data;
    if (s->sample) s->batch = s->num_samples;
    checkpoint = run_dir_resolve(s->eval ? s->eval : s->sample, &note);
    if (note) make_printable(note);
    GPTConfig config = checkpoint_config(checkpoint);
    config = model_config(s, checkpoint, &config, config.V);
    tokenizer = tokenizer_choose(s, option_is_typed(options, "tokenizer"), checkpoint, config.V);
    tokenizer_check(tokenizer, config.V);
    const TextFormat format = text_format(s, tokenizer);
    const Purpose purpose = s->sample ? GENERATE : EVALUATE;
    if (s->task)      task = task_read(s->task, path, tokenizer, &config);
    else if (s->eval) corpus = corpus_open(is_part ? path : NULL, is_part ? NULL : path, s->val_fraction, &format);
    REQUIRE(!s->eval || s->task || corpus.val, "--val-fraction %g with --eval: want a text, and more than 0",
            s->val_fraction);
    batch_choose(s, &config, purpose);
    const int B = (int)s->batch;
    MemoryPlan plan = memory_plan_check(&config, s->attention, B, purpose);
    if (s->dry_run) {
        DeviceInfo device = device_info();
        memory_plan_print(&plan, &device);
        return stdio_flush();
    }
    gpt_create(&gpt, config, s->attention, B, config.T, purpose);
    checkpoint_load_model(checkpoint, &gpt);
    if (note && s->eval) fprintf(stderr, "checkpoint %s\n", note);
    if (!options_find(options, "seed")->given) s->seed = (int64_t)(1e9 * seconds_now()) % 1000000000;
    const int64_t max_tokens = option_is_typed(options, "val-tokens") ? s->val_tokens : 0;
    if (s->task)      task_evaluate(&task, &gpt, B, s->out);
    else if (s->eval) evaluate_file(&gpt, tokenizer, s->eval, &corpus, path, max_tokens, B);
    else              sample_checkpoint(&gpt, tokenizer, s, note);
    task_free(&task);
    return stdio_flush();
}
