/* program.c - train_gpt's own table of options, and the options and the model that a resume reads. */
#include <string.h>
#include "fuzz.h"
#include "program.h"
#include "../../llmc/checkpoint/resume.h"
#include "../../llmc/model/model_config.h"
#include "../../llmc/options/settings.h"

static Settings settings;
static Option options[SETTINGS_ROWS];

typedef struct { int argc; char **argv; } Words;

static void parse(void *argument) {
    Words *words = argument;
    settings_parse(&settings, options, words->argc, words->argv);
    free(command_line(words->argc, words->argv));
}

/* Every value as text sets the same value again, and lies within its range. */
static void claim_values(void) {
    for (Option *o = options; o->name || o->help; o++) {
        char text[256], again[256];
        if (!o->name) continue;
        const char *was = option_text(o, text);
        option_set(o, was);
        CLAIM(!strcmp(option_text(o, again), was), "--%s: %s became %s", o->name, was, option_text(o, again));
        if (!*was) continue;
        if (o->type == OPTION_INTEGER) {
            int64_t value = *(int64_t *)o->value;
            CLAIM((o->choices && value == 0) || (double)value >= o->min, "--%s %lld", o->name, (long long)value);
            CLAIM((double)value <= o->max, "--%s %lld", o->name, (long long)value);
        }
        if (o->type == OPTION_REAL) {
            double value = *(double *)o->value;
            CLAIM(value >= o->min && value <= o->max, "--%s %g", o->name, value);
        }
    }
}

void program_read_options(int argc, char **argv) {
    Words words = { argc, argv };
    if (fuzz_try(parse, &words, FREES_ALL, "")) claim_values();
}

/* The model and the batch that a resume reads from config.json and state.json, and its memory plan. */
static void plan_resume(void *argument) {
    (void)argument;
    resume_adopt_options(options, checkpoint_open_state("C"));
    claim_values();
    GPTConfig config = checkpoint_config("C");
    config = model_config(&settings, "C", &config, 0);
    if (config.L > 10) return;                     /* the tables of 1000 layers take time */
    batch_choose(&settings, &config, TRAIN);
    MemoryPlan plan = memory_plan(&config, settings.attention, (int)settings.batch, TRAIN);
    double stream = 4.0 * (double)settings.batch * config.T * config.C;
    double weights = 4.0 * (double)gpt_parameter_count(&config);
    CLAIM((double)plan.parameters >= weights && (double)plan.activations >= (config.recompute ? 1 : 9) * stream &&
          plan.total > plan.activations && plan.total > plan.parameters,
          "%zu bytes of parameters, %zu of activations, %zu in all, for %g and 1 or 9 times %g at least",
          plan.parameters, plan.activations, plan.total, weights, stream);
}

void program_read_settings(void) {
    static char *nothing[] = { "train_gpt" };
    settings_parse(&settings, options, 1, nothing);
    fuzz_try(plan_resume, NULL, KEEPS, "");
}
