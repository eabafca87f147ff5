/* logits.c - logits CHECKPOINT ID ID ID ...: prints the V logits after each of these tokens, a line per token, for
   test/run/check_roundtrip.py. */
#include "../../llmc/checkpoint/run_dir.h"

int main(int argc, char **argv) {
    REQUIRE(argc > 2, "logits: want a checkpoint and token ids");
    int T = argc - 2;
    device_open((DeviceOptions){ .threads = 1 });
    char *checkpoint = run_dir_resolve(argv[1], NULL);
    GPTConfig config = checkpoint_config(checkpoint);
    static GPT m;
    gpt_create(&m, config, "auto", 1, T, EVALUATE);
    checkpoint_load_model(checkpoint, &m);
    int32_t *tokens = calloc((size_t)T, sizeof *tokens);
    float *logits = calloc((size_t)config.V, sizeof *logits);
    REQUIRE(tokens && logits, "logits: out of memory");
    for (int t = 0; t < T; t++) {
        tokens[t] = atoi(argv[2 + t]);
        REQUIRE(tokens[t] >= 0 && tokens[t] < config.V, "logits: token %s, want 0 .. %d", argv[2 + t], config.V - 1);
        gpt_set_batch(&m, 1, t + 1);
        gpt_load(&m, tokens, NULL, NULL);
        gpt_forward(&m);
        device_download(logits, gpt_last_logits(&m).data, (size_t)config.V * sizeof *logits);
        for (int i = 0; i < config.V; i++) printf("%.9g%c", (double)logits[i], i == config.V - 1 ? '\n' : ' ');
    }
    free(tokens);
    free(logits);
    free(checkpoint);
    return 0;
}
