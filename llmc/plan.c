#include "plan.h"
#include <string.h>
#include "../kernels/check.h"
#include "optimizer.h"
#include "units.h"

/* The sizes that options and a config.json may ask for multiply to 2^96 bytes, which 64 bits would take for few. A
   token has at most 16 C + 8 numbers in a block, as many in the scratch of training, and the rows of naive
   attention. */
static void check_countable(const GPTConfig *config, int B, int T) {
    double numbers = (config->L + 2.0) * (16.0 * config->C + 8 + (double)config->NH * T);
    REQUIRE(4.0 * B * T * numbers < 0x1p63,
            "out of memory: --batch %d of %d tokens each needs more than any device has: "
            "want a smaller one, a shorter --context or a smaller model", B, T);
}

Plan plan_make(const GPTConfig *config, const char *attention, int B, int T, Purpose purpose) {
    check_countable(config, B, T);
    Plan plan = { .parameters = gpt_param_bytes(config, config->dtype) };
    if (config->dtype != F32) plan.parameters += gpt_param_bytes(config, F32);
    size_t acts = gpt_act_bytes(config, attention, B, T, purpose, &plan.workspace);
    plan.activations = acts - plan.workspace;
    if (purpose == TRAIN) {
        plan.gradients = gpt_param_bytes(config, F32);
        plan.optimizer = optimizer_bytes(config);
    }
    plan.total = plan.parameters + plan.gradients + plan.optimizer + acts;
    return plan;
}

void plan_print(FILE *file, const Plan *plan, int64_t free_bytes, int64_t total_bytes) {
    const struct { const char *what; size_t bytes; } rows[] = {
        { "parameters", plan->parameters }, { "gradients", plan->gradients }, { "optimizer (AdamW)", plan->optimizer },
        { "activations", plan->activations }, { "workspace", plan->workspace }, { "total", plan->total },
    };
    char text[32], whole[32];
    fprintf(file, "memory plan\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fprintf(file, "  %-18s %12s\n", rows[i].what, bytes_text((double)rows[i].bytes, text));
    fprintf(file, "  %-18s %12s of %s\n", "free", bytes_text((double)free_bytes, text),
            bytes_text((double)total_bytes, whole));
}

void plan_require(const Plan *plan, int64_t free_bytes, const GPTConfig *config, const char *attention, int B, int T,
                  Purpose purpose) {
    if (plan->total <= (size_t)free_bytes) return;
    int fits = 0, too_many = B;             /* the largest batch lies between them */
    while (too_many - fits > 1) {
        int middle = fits + (too_many - fits) / 2;
        if (plan_make(config, attention, middle, T, purpose).total <= (size_t)free_bytes) fits = middle;
        else too_many = middle;
    }
    int flash_fits = strcmp(attention, "naive") == 0 &&
                     plan_make(config, "auto", B, T, purpose).total <= (size_t)free_bytes;
    char need[32], have[32];
    bytes_text((double)plan->total, need);
    bytes_text((double)free_bytes, have);
    REQUIRE(!flash_fits, "out of memory: --batch %d needs %s, %s are free; with --attention flash instead of naive "
            "it fits", B, need, have);
    REQUIRE(fits, "out of memory: --batch %d needs %s, %s are free, and not even --batch 1 fits: want a smaller "
            "--model or a shorter --context", B, need, have);
    fail("out of memory: --batch %d needs %s, %s are free; the largest that fits is --batch %d, and a smaller --model "
         "or --context needs less", B, need, have, fits);
}
