#include "train_step.h"
#include "../../kernels/autotune.h"
#include "../../kernels/profile.h"

void train_step_create(TrainStep *s) {
    const size_t bytes = (size_t)s->B * (size_t)gpt_local_tokens(&s->model->config) * 2 * sizeof **s->batch;
    s->window = host_alloc(2 * (size_t)s->model->config.T * sizeof *s->window, "a sequence");
    for (int i = 0; i < 2; i++) s->batch[i] = device_host_alloc(bytes + sizeof(uint64_t), "a batch");
}

/* Prepares the micro-batch from sequence `first` on in the host buffer of two micro-steps ago, and issues its upload.
   No work if it was uploaded last: after a validation model->loaded is another buffer. */
static void load_batch(TrainStep *s, uint64_t first) {
    const RingSplit split = gpt_split(&s->model->config);
    const int T = split.T, local = ring_tokens(&split, split.rank);
    const uint64_t seed = (uint64_t)s->settings->seed;
    if (s->model->loaded == s->batch[s->slot] && s->loaded_first == first) return;
    int32_t *inputs = s->batch[s->slot ^= 1], *targets = inputs + s->B * local;
    uint64_t *sequence = (uint64_t *)(targets + s->B * local);
    device_wait_mark(&s->copied[s->slot]);
    for (int b = 0; b < s->B; b++) {
        tokens_train_window(s->tokens, seed, first + (uint64_t)b, T, s->window, s->window + T);
        ring_copy_local(&split, inputs + b * local, s->window);
        ring_copy_local(&split, targets + b * local, s->window + T);
    }
    *sequence = s->loaded_first = first;
    gpt_load(s->model, inputs, targets, sequence);
    device_mark(&s->copied[s->slot]);
}

int64_t train_step_targets(const TrainStep *s, uint64_t first) {
    return tokens_train_targets(s->tokens, (uint64_t)s->settings->seed, first, (uint64_t)s->sequences,
                                s->model->config.T);
}

static int64_t micro_steps(const TrainStep *s) { return s->sequences / s->B / gpt_groups(&s->model->config); }

/* A micro-step that overwrites the gradients and, where a step has it, one that adds to them. */
void train_step_measure(TrainStep *s, uint64_t first) {
    const float dloss = 1.0f / (float)train_step_targets(s, first);
    gpt_set_batch(s->model, s->B, gpt_local_tokens(&s->model->config));
    load_batch(s, first);
    autotune_enable(1);
    for (int64_t i = 0; i < 2 && i < micro_steps(s); i++) {
        gpt_forward(s->model);
        gpt_backward(s->model, dloss, i ? ACCUMULATE : OVERWRITE, NULL, NULL);
    }
    autotune_enable(0);
}

void train_step(TrainStep *s, uint64_t first, double learning_rate) {
    GPT *model = s->model;
    Optimizer *optimizer = s->optimizer;
    const int64_t groups = gpt_groups(&model->config), group = comm_rank / gpt_split(&model->config).size;
    const int64_t last = micro_steps(s) - 1;
    const int records = gpt_split(&model->config).size == 1;    /* ring attention has transfers inside of ops */
    const float dloss = 1.0f / (float)train_step_targets(s, first);
    gpt_set_batch(model, s->B, gpt_local_tokens(&model->config));
    optimizer_begin(optimizer, s->settings, learning_rate);
    autotune_enable(!s->settings->deterministic);      /* else the default algorithms */
    for (int64_t i = 0; i <= last; i++) {
        const Into into = i ? ACCUMULATE : OVERWRITE;
        const int reduces = i == last && comm_size > 1;
        DeviceGraph *graph = records ? &s->graph[into][reduces] : NULL;
        load_batch(s, first + (uint64_t)((i * groups + group) * s->B));     /* the groups share a micro-step */
        model->weights_kept = i > 0;
        if (!graph || device_graph_begin(graph, dloss)) {
            gpt_forward(model);
            gpt_backward(model, dloss, into, reduces ? optimizer_reduce : NULL, optimizer);
            loss_add(optimizer->stats, model->acts.losses, dloss);
        }
        if (graph) device_graph_end(graph);
    }
    model->weights_kept = 0;
    autotune_enable(0);
    optimizer_update(optimizer);
    load_batch(s, first + (uint64_t)(s->sequences + group * s->B));     /* the next step's first */
}

void train_step_profile(TrainStep *s, uint64_t first, double learning_rate, int64_t steps) {
    enum { WARM_UP = 5 };
    const Rates rates = rates_measure(s->model->config.dtype);
    DeviceMark begin = {0}, end = {0};
    for (int64_t i = 0; i < WARM_UP + 2 * steps; i++) {
        if (i == WARM_UP) device_mark(&begin);
        if (i == WARM_UP + steps) {
            device_mark(&end);
            profile_begin();
        }
        train_step(s, first + (uint64_t)(i * s->sequences), learning_rate);
        optimizer_result(s->optimizer);
    }
    profile_end(rates, (int)steps, device_mark_ms(&begin, &end) / (double)steps);
}
