#include "settings.h"
#include <string.h>
#include "../kernels/check.h"

void settings_options(Settings *settings, Option table[SETTINGS_ROWS]) {
    static char names[SETTINGS_ROWS][32];
#define ARGUMENT(name)  .argument = name
#define RANGE(low, high) .min = low, .max = high
#define CHOICES(names)  .choices = names
#define NO_ARGUMENT     .argument = NULL
#define TITLE(title)    { .help = title },
#define ROW(kind, field, default_text, values, on_resume, help_text) \
    { .name = #field, .type = OPTION_##kind, .value = &settings->field, .fallback = default_text, values, \
      .resume = on_resume##_ON_RESUME, .help = help_text },
    const Option rows[SETTINGS_ROWS] = { SETTINGS(TITLE, ROW) {0} };
    memcpy(table, rows, sizeof rows);
    for (int i = 0; i < SETTINGS_ROWS; i++) {
        if (!rows[i].name) continue;
        table[i].name = strcpy(names[i], rows[i].name);
        for (char *c = names[i]; (c = strchr(c, '_')); ) *c = '-';
    }
}

void settings_help(FILE *file, const Option *table) {
    fputs("train_gpt trains GPT-2 models.\n\n"
          "  train_gpt --data book.txt --out runs/book           train on any text\n"
          "  train_gpt --out runs/book --resume                  continue after a stop\n"
          "  train_gpt --sample runs/book --prompt 'Once '       generate text\n"
          "  train_gpt --eval runs/book --data other.txt         loss on another text\n\n", file);
    options_help(file, table);
    fputs("\nmfu, model FLOP utilisation, is (6 N + 12 L C T) FLOP per token x tokens/s / the device's peak in\n"
          "the chosen precision, with N parameters, L layers, C channels, context T (PaLM, arXiv 2204.02311,\n"
          "appendix B). It is left out for a device that is not in the table of peaks.\n", file);
}

void settings_check(const Settings *s) {
    REQUIRE(!s->eval || !s->sample, "--eval and --sample: want one of them");
    REQUIRE(!(s->eval || s->sample) || !(s->resume || s->init),
            "--eval and --sample do not train: want no --resume and no --init");
    REQUIRE(!s->eval || s->data || s->val_data, "--eval: want --data FILE or --val-data FILE to evaluate on");
}

int64_t settings_micro_batches(const Settings *s, int T) {
    int64_t micro_batch = s->batch * T;
    REQUIRE(s->total_batch % micro_batch == 0, "--total-batch %lld: want a multiple of --batch x --context = %lld",
            (long long)s->total_batch, (long long)micro_batch);
    return s->total_batch ? s->total_batch / micro_batch : 1;
}

AdamW settings_adamw(const Settings *s) {
    return (AdamW){ .beta1 = (float)s->beta1, .beta2 = (float)s->beta2, .eps = (float)s->eps,
                    .weight_decay = (float)s->weight_decay, .max_norm = (float)s->clip };
}

Schedule settings_schedule(const Settings *s, Option *table) {
    REQUIRE(s->min_lr <= s->lr, "--min-lr %g: want at most --lr %g", s->min_lr, s->lr);
    return (Schedule){ .kind = schedule_named(s->schedule), .peak = s->lr, .warmup = s->warmup, .total = s->steps,
                       .final = options_find(table, "min-lr")->given ? s->min_lr : s->lr / 10,
                       .decay = s->decay ? s->decay : s->steps / 5 };
}
