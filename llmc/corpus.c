#include "corpus.h"
#include <math.h>
#include "../kernels/check.h"
#include "evaluate.h"

Corpus corpus_open(const char *data, const char *val_data, double val_fraction) {
    REQUIRE(data, "nothing to train on: want --data FILE (any text, or token shards); see --help");
    Corpus c = { .train = tokens_open(data), .val_floor = NAN };
    int are_bytes = tokens_are_bytes(c.train);
    if (val_data) {
        c.val = tokens_open(val_data);
        REQUIRE(are_bytes == tokens_are_bytes(c.val), "--data %s and --val-data %s: one is a text and the other are "
                "shards, want both of a kind", data, val_data);
        if (are_bytes) c.val_floor = text_floor(val_data);
    } else if (are_bytes && val_fraction > 0) {
        int64_t count = tokens_count(c.train), kept = (int64_t)((double)count * (1 - val_fraction));
        REQUIRE(kept >= 2 && count - kept >= 2, "%s: %lld bytes are too few for --val-fraction %g, want 2 in each part",
                data, (long long)count, val_fraction);
        c.whole = c.train;
        c.train = tokens_slice(c.whole, 0, kept);
        c.val = tokens_slice(c.whole, kept, count - kept);
    }
    return c;
}

void corpus_print(FILE *file, const Corpus *c) {
    const char *unit = tokens_are_bytes(c->train) ? "bytes" : "tokens";
    fprintf(file, "data: %s, %lld %s to train on", tokens_name(c->train), (long long)tokens_count(c->train), unit);
    if (c->val)
        fprintf(file, ", %lld to validate on (%s)", (long long)tokens_count(c->val), tokens_name(c->val));
    fprintf(file, "\n");
}

void corpus_check(const Corpus *c, int V) {
    tokens_check(c->train, V);
    if (c->val) tokens_check(c->val, V);
}
