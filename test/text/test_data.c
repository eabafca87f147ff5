/* test_data.c - Random numbers, schedules and token streams. */
#include "../../kernels/normal.h"
#include "../../llmc/train/schedule.h"
#include "../../llmc/tokens/dataloader.h"
#include "../scratch.h"

#define SEED 20240520

/* ---- random */

/* From Random123's kat_vectors. */
TEST(philox_known_answers) {
    static const struct { Random128 counter; uint64_t key; Random128 want; } known[] = {
        { {{ 0, 0, 0, 0 }}, 0, {{ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }} },
        { {{ ~0u, ~0u, ~0u, ~0u }}, ~0ull, {{ 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd }} },
        { {{ 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }}, 0x299f31d0a4093822,
          {{ 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 }} },
    };
    for (int i = 0; i < COUNT(known); i++) {
        Random128 got = philox4x32(known[i].counter, known[i].key);
        EXPECT(!memcmp(&got, &known[i].want, sizeof got), "vector %d: %08x %08x %08x %08x", i,
               got.word[0], got.word[1], got.word[2], got.word[3]);
    }
    Random128 got = philox(7, RANDOM_TEST, 0, 5, 0x123456789abcdef0);      /* the map in random.h */
    Random128 want = philox4x32((Random128){{ 0x9abcdef0, 0x12345678, 5, RANDOM_TEST }}, 7);
    EXPECT(!memcmp(&got, &want, sizeof got), "the counter is not laid out as random.h says");
}

TEST(permute_is_a_bijection) {
    static const uint64_t sizes[] = { 1, 2, 3, 5, 6, 64, 1000, 4097 };
    for (int s = 0; s < COUNT(sizes); s++) {
        uint64_t n = sizes[s];
        int moved = 0;
        char *seen = new_array((int64_t)n, 1);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = random_permute(SEED, RANDOM_TEST, 3, i, n);
            EXPECT(p < n && !seen[p], "n %d: %d comes twice or is out of range", (int)n, (int)p);
            if (p < n) seen[p] = 1;
            moved += p != random_permute(SEED, RANDOM_TEST, 4, i, n);
        }
        EXPECT(n < 64 || moved > (int)n * 9 / 10, "n %d: steps 3 and 4 differ in %d places only", (int)n, moved);
    }
    /* every index maps to every position: 20000 permutations of 5, 25 cells of 4000 +- 57 */
    int cell[5][5] = { 0 };
    for (uint32_t step = 0; step < 20000; step++)
        for (uint64_t i = 0; i < 5; i++) cell[i][random_permute(SEED, RANDOM_TEST, step, i, 5)]++;
    for (int i = 0; i < 25; i++)
        EXPECT(abs(cell[i / 5][i % 5] - 4000) < 4 * 57, "%d goes to %d %d times", i / 5, i % 5, cell[i / 5][i % 5]);
    /* the last index of the largest domain */
    EXPECT(random_permute(SEED, RANDOM_TEST, 0, UINT64_MAX - 1, UINT64_MAX) < UINT64_MAX, "out of range");
}

/* That normal_of is the formula of Box and Muller: test_ops. */
TEST(moments) {
    enum { N = 1000000 };
    double u1 = 0, u2 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = random_uniform(SEED, RANDOM_TEST, 0, i);
        EXPECT(u >= 0 && u < 1, "uniform %g", u);
        u1 += u / N;
        u2 += u * u / N;
    }
    double sigma = 1 / sqrt(N);     /* standard deviation of the mean of numbers of variance 1 */
    EXPECT(fabs(u1 - 1 / 2.0) < 4 * sigma * sqrt(1 / 12.0), "uniform mean %g", u1);
    EXPECT(fabs(u2 - 1 / 3.0) < 4 * sigma * sqrt(4 / 45.0), "uniform second moment %g", u2);
}

TEST(below_is_unbiased) {
    enum { N = 30000 };
    /* bits * n >> 64 alone would give multiples of 3 twice as often at 3 * 2^62 */
    static const uint64_t sizes[] = { 1, 3, 6, 1000, 3ull << 62, UINT64_MAX };
    for (int s = 0; s < COUNT(sizes); s++) {
        uint64_t n = sizes[s];
        int third[3] = { 0 }, half = 0;
        for (uint64_t i = 0; i < N; i++) {
            uint64_t x = random_below(SEED, RANDOM_TEST, 2, i, n);
            EXPECT(x < n, "%llu of [0,%llu)", (unsigned long long)x, (unsigned long long)n);
            third[x % 3]++;
            half += x < n / 2;
        }
        for (int i = 0; i < 3 && n % 3 == 0; i++)
            EXPECT(abs(third[i] - N / 3) < 4 * 82, "%llu: %d mod 3 comes %d times", (unsigned long long)n, i, third[i]);
        EXPECT(n % 2 || abs(half - N / 2) < 4 * 87, "%llu: the lower half comes %d times", (unsigned long long)n, half);
    }
}

/* ---- schedule */

TEST(schedules_at_their_corners) {
    static const char COSINE[] = "cosine", LINEAR[] = "linear", WSD[] = "wsd", CONSTANT[] = "constant";
    static const struct { const char *kind; int warmup, total, decay, step; double want; } at[] = { /* from 1 to 0.1 */
        { COSINE, 9, 109, 0,   0, 0.1  }, { COSINE, 9, 109, 0,   8, 0.9  }, { COSINE, 9, 109, 0,   9, 1    },
        { COSINE, 9, 109, 0,  59, 0.55 }, { COSINE, 9, 109, 0, 109, 0.1  }, { COSINE, 9, 109, 0, 999, 0.1  },
        { COSINE, 9, 109, 0, 108, 0.1 + 0.9 * 0.000246719817 },             /* (1 + cos(0.99 pi)) / 2 */
        { COSINE, 0, 100, 0,   0, 1    }, { COSINE, 0, 1,   0,   0, 1    }, { COSINE, 0, 1,   0,   1, 0.1  },
        { LINEAR, 9, 109, 0,   8, 0.9  }, { LINEAR, 9, 109, 0,   9, 1    }, { LINEAR, 9, 109, 0,  34, 0.775 },
        { LINEAR, 9, 109, 0, 108, 0.109}, { LINEAR, 9, 109, 0, 109, 0.1  }, { LINEAR, 0, 1,   0,   0, 1    },
        { WSD,    9, 109, 20,  8, 0.9  }, { WSD,    9, 109, 20,  9, 1    }, { WSD,    9, 109, 20, 88, 1    },
        { WSD,    9, 109, 20, 89, 1    }, { WSD,    9, 109, 20, 99, 0.55 }, { WSD,    9, 109, 20, 108, 0.145 },
        { WSD,    9, 109, 20, 109, 0.1 }, { WSD,    9, 109, 0, 88, 1     }, { WSD,    9, 109, 0, 109, 0.1  },
        { WSD,    9, 109, 500, 9, 1    }, { WSD,    9, 109, 500, 59, 0.55 }, { WSD,   0, 1,   1,   0, 1    },
        { WSD,    9, 109, 105, 59, 0.55 },                                  /* a decay that begins in the warm-up */
        { CONSTANT, 9, 109, 0, 8, 0.9  }, { CONSTANT, 9, 109, 0, 108, 1 }, { CONSTANT, 9, 109, 0, 109, 1 },
        { COSINE, 9, 5,   0,   4, 0.5  }, { COSINE, 9, 5,   0,   5, 0.1  },     /* a run shorter than its warm-up */
    };
    for (int i = 0; i < COUNT(at); i++) {
        Settings s = { .lr = 1, .min_lr = i % 2 ? NAN : 0.1, .schedule = at[i].kind, .warmup = at[i].warmup,
                       .steps = at[i].total, .decay = at[i].decay };
        double got = schedule_learning_rate(&s, at[i].step);
        EXPECT(fabs(got - at[i].want) < 1e-12, "row %d: %s, step %d of %d: %.15g, want %.15g", i, at[i].kind,
               at[i].step, at[i].total, got, at[i].want);
    }
}

/* A run of 1000 steps with a peak of 0.5: the final rate and the decay of wsd follow from these unless given. */
TEST(schedules_from_options) {
    static const struct { const char *option, *value; double final, at_900; } cases[] = {
        { "batch", "3", 0.05, 0.275 }, { "min-lr", "0.4", 0.4, 0.45 }, { "min-lr", "0", 0, 0.25 },
        { "decay", "3", 0.05, 0.5 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Settings s = {0};
        Option options[SETTINGS_ROWS];
        char *arguments[] = { "train_gpt", "--lr", "0.5", "--steps", "1000", "--warmup", "7", "--schedule", "wsd",
                              STRING("--%s=%s", cases[i].option, cases[i].value), NULL };
        settings_parse(&s, options, COUNT(arguments) - 1, arguments);
        const double final = schedule_learning_rate(&s, 1000), at_900 = schedule_learning_rate(&s, 900);
        EXPECT(schedule_learning_rate(&s, 7) == 0.5 && schedule_learning_rate(&s, 0) == 0.5 / 8, "%s", arguments[9]);
        EXPECT(fabs(final - cases[i].final) < 1e-15 && fabs(at_900 - cases[i].at_900) < 1e-15, "%s: final %g, 900: %g",
               arguments[9], final, at_900);
    }
}

/* ---- tokens: in a folder of its own, which main makes the current one */

static void close_tokens(void *tokens) { tokens_close(tokens); }

/* Until the test ends. */
static Tokens *kept(Tokens *tokens) { return test_keep_by(close_tokens, tokens); }

/* Tokens first .. first + count - 1 of the stream in which token j is j. */
static void write_shard(const char *name, int width, int first, int count) {
    char *bytes = new_array(1024 + count * width, 1);
    int32_t head[3] = { width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7, count };
    memcpy(bytes, head, sizeof head);
    for (int i = 0; i < count; i++) {
        int id = first + i;
        memcpy(bytes + 1024 + i * width, &id, (size_t)width);
    }
    put(name, bytes, 1024 + (size_t)count * (size_t)width);
}

/* Inputs and targets follow each other, then padding. Counts the targets in seen. */
static void expect_window(const int *input, const int *target, int count, int T, int *seen, const char *where) {
    for (int k = 0; k < T; k++) {
        int right = k < count ? input[k] == target[k] - 1 : input[k] == 0 && target[k] == -1;
        EXPECT(right, "%s: place %d: %d then %d", where, k, input[k], target[k]);
        if (right && k < count) seen[target[k]]++;
    }
}

TEST(every_target_once_an_epoch) {
    static const struct { int N, T; } cases[] = {
        { 2, 64 }, { 2, 1 }, { 3, 1 }, { 65, 64 }, { 66, 64 }, { 129, 64 }, { 130, 64 }, { 128, 64 }, { 1000, 7 },
        { 1001, 1 }, { 4097, 64 }, { 5000, 1000 },
    };
    for (int c = 0; c < COUNT(cases); c++) {
        const int N = cases[c].N, T = cases[c].T;
        const char *where = STRING("N %d T %d", N, T);
        int input[1000], target[1000];
        write_shard("ring.bin", 2 + c % 2 * 2, 0, N);
        Tokens *t = kept(tokens_open("ring.bin", NULL, NULL));
        int64_t windows = tokens_windows(t, T);
        EXPECT(windows == (N - 1 + T - 1) / T, "%s: %lld windows", where, (long long)windows);
        EXPECT(tokens_train_targets(t, SEED, 0, 3 * (uint64_t)windows, T) == 3 * (N - 1), "%s", where);
        for (int epoch = 0; epoch < 4; epoch++) {           /* the last: evaluation, in the order of the text */
            int *seen = new_array(N, sizeof *seen), next = 1;
            for (int64_t i = 0; i < windows; i++) {
                uint64_t g = (uint64_t)(epoch * windows + i);
                memset(input, 0xAB, sizeof input);
                memset(target, 0xAB, sizeof target);
                int count = epoch < 3 ? tokens_train_window(t, SEED, g, T, input, target)
                                      : tokens_eval_window(t, i, T, input, target);
                EXPECT(epoch == 3 ? target[0] == next : count == tokens_train_targets(t, SEED, g, 1, T), "%s", where);
                expect_window(input, target, count, T, seen, where);
                next += count;
            }
            for (int j = 1; j < N; j++) EXPECT(seen[j] == 1, "%s: target %d comes %d times", where, j, seen[j]);
            EXPECT(next == N, "%s: %d targets", where, next - 1);
        }
    }
}

static int same_window(const Tokens *a, const Tokens *b, uint64_t g_a, uint64_t g_b, uint64_t seed_b, int T) {
    int32_t *w = new_array(4 * T, sizeof *w);
    tokens_train_window(a, SEED,   g_a, T, w,         w + T);
    tokens_train_window(b, seed_b, g_b, T, w + 2 * T, w + 3 * T);
    return !memcmp(w, w + 2 * T, 2 * (size_t)T * sizeof *w);
}

/* Where sequence g starts in a stream in which token j is j. */
static int start_of(const Tokens *t, uint64_t seed, uint64_t g) {
    int32_t input[64], target[64];
    tokens_train_window(t, seed, g, 64, input, target);
    return input[0];
}

TEST(order_depends_on_seed_and_place_alone) {
    enum { N = 6400, EPOCHS = 64 };
    write_shard("one.bin", 2, 0, N + 1);
    Tokens *a = kept(tokens_open("one.bin", NULL, NULL)), *b = kept(tokens_open("one.bin", NULL, NULL));
    for (uint64_t g = 300; g-- > 0; )        /* backwards in a: earlier reads do not matter */
        EXPECT(same_window(a, b, g, g, SEED, 64), "sequence %d differs when it is read again", (int)g);
    /* the cut and the order change with epoch and seed: windows do not all move alike */
    for (int other = 0; other < 2; other++) {
        int moved_alike = 0, cut_alike = 0, move = 0;
        for (uint64_t g = 0; g < 100; g++) {
            int from = start_of(a, SEED, g), to = other ? start_of(a, SEED + 1, g) : start_of(a, SEED, g + 100);
            if (g == 0) move = (to - from + N) % N;
            moved_alike += (to - from + N) % N == move;
            cut_alike   += to % 64 == from % 64;
        }
        EXPECT(moved_alike < 10 && cut_alike < 10, "other %s: %d of 100 windows move alike, %d are cut alike",
               other ? "seed" : "epoch", moved_alike, cut_alike);
    }
    /* The short window of an epoch ends where its first one starts: anywhere in the stream. The mean of 64 uniform
       numbers has a standard deviation of 1 / sqrt(12 * 64); 6 of them are allowed. */
    write_shard("cut.bin", 2, 0, N + 33);
    a = kept(tokens_open("cut.bin", NULL, NULL));
    double mean = 0;
    for (uint64_t g = 0; g < EPOCHS * (uint64_t)tokens_windows(a, 64); g++)
        if (tokens_train_targets(a, SEED, g, 1, 64) < 64)
            mean += (double)((start_of(a, SEED, g) + 32) % (N + 32)) / (N + 32) / EPOCHS;
    EXPECT(fabs(mean - 0.5) < 6 / sqrt(12 * EPOCHS), "the first windows of %d epochs start at %.3f of the stream",
           EPOCHS, mean);
}

TEST(files_are_one_stream) {
    static const int size[] = { 1, 700, 3, 1, 64, 231 };        /* 1000 in all, written last to first */
    for (int width = 2; width <= 4; width += 2) {
        for (int i = COUNT(size) - 1, end = 1000; i >= 0; end -= size[i--]) {
            char name[32];
            snprintf(name, sizeof name, "part%d_%02d.bin", width, i);
            write_shard(name, width, end - size[i], size[i]);
        }
        write_shard("whole.bin", width, 0, 1000);
        Tokens *whole = kept(tokens_open("whole.bin", NULL, NULL));
        Tokens *parts = kept(tokens_open(width == 2 ? "part2_*.bin" : "part4_*.bin", NULL, NULL));
        EXPECT(parts->count == 1000, "%lld tokens", (long long)parts->count);
        static const int lengths[] = { 1, 64, 700, 998, 1500 };     /* the last two cross files and the ring's end */
        for (int k = 0; k < COUNT(lengths); k++) {
            for (uint64_t g = 0; g < 50; g++) {
                int same = same_window(whole, parts, g, g, SEED, lengths[k]);
                EXPECT(same, "width %d T %d g %d", width, lengths[k], (int)g);
            }
        }
        /* a slice is the stream of its tokens */
        Tokens *slice = kept(tokens_slice(parts, 690, 80)), *inner = kept(tokens_slice(slice, 10, 70));
        int32_t input[69], target[69];
        int count = tokens_eval_window(inner, 0, 69, input, target);
        EXPECT(count == 69 && tokens_windows(inner, 69) == 1 && inner->count == 70, "%d targets", count);
        for (int i = 0; i < 69; i++)
            EXPECT(input[i] == 700 + i && target[i] == 701 + i, "%d: %d %d", i, input[i], target[i]);
    }
}

TEST(texts_are_bytes) {
    put("b[1].txt", "a\xff\0b", 4);       /* the name of a file before a pattern, any byte */
    Tokens *t = kept(tokens_open("b[1].txt", NULL, NULL));
    int32_t input[4], target[4];
    int count = tokens_eval_window(t, 0, 4, input, target);
    EXPECT(t->tokenizer == TOKENIZER_BYTES && count == 3 && input[0] == 'a' && input[1] == 255 && input[2] == 0 &&
           target[2] == 'b', "%d: %d %d %d", count, input[0], input[1], input[2]);
    tokens_check(t, 256);
}

static void check_slice(const char *pattern, int V, int64_t first, int64_t count) {
    tokens_check(tokens_slice(tokens_open(pattern, NULL, NULL), first, count), V);
}

/* One case for each message; test_fuzz damages any byte of a shard. */
TEST(malformed_files) {
    static const struct { const char *name; uint32_t magic, version, count; int bytes; const char *part; } shards[] = {
        { "short3.bin",     20240520, 1, 10, 3,         "short3.bin: magic 3463304, want 20240520" },
        { "short1023.bin",  20240520, 1, 10, 1023,      "truncated: the header promises 10 tokens, 1044 bytes" },
        { "magic.bin",      12345,    1, 10, 1044,      "20240801: not a token shard (nanoGPT's .bin files have no "
                                                        "header: train on the text itself)" },
        { "model.bin",      20240326, 3, 10, 1044,      "this is an llm.c checkpoint, want a text or a token shard" },
        { "version7.bin",   20240520, 7, 10, 1044,      "version7.bin: shard version 7, want 1" },
        { "version2_4.bin", 20240801, 2, 10, 1064,      "shard version 2, want 1 or 7" },
        { "huge_4.bin",     20240801, 7, 0x80000000, 1044, "promises 2147483648 tokens, 8589935616 bytes" },
        { "small.bin",      20240520, 1, 9,  1044,      "too long: the header promises 9 tokens, 1042 bytes" },
        { "zero.bin",       20240520, 1, 0,  1024,      "zero.bin: no tokens: want a file with some" },
        { "single.bin",     20240520, 1, 1,  1026,      "want 2 tokens or more" },
        { "magic.txt",      20240520, 1, 11, 1044,      "promises 11 tokens, 1046 bytes" },   /* known by its magic */
    };
    for (int i = 0; i < COUNT(shards); i++) {
        unsigned char bytes[1100] = { 0 };
        memcpy(bytes, (uint32_t[3]){ shards[i].magic, shards[i].version, shards[i].count }, 12);
        put(shards[i].name, bytes, (size_t)shards[i].bytes);
        EXPECT_FAILS(shards[i].part, tokens_open(shards[i].name, NULL, NULL));
    }
    static const struct { const char *name, *text, *part; } files[] = {
        { "empty.txt",  "",                 "empty.txt: no tokens: want a file with some" },
        { "one.txt",    "x",                "want 2 tokens or more" },
        { "text.bin",   "once upon a time", "magic 1701015151, want" },
        { "pickle.bin", "\x80\x02}qX",      "pickle.bin: this is a Python pickle, want a text or a token shard" },
    };
    for (int i = 0; i < COUNT(files); i++) {
        put_text(files[i].name, files[i].text);
        EXPECT_FAILS(files[i].part, tokens_open(files[i].name, NULL, NULL));
    }
    mkdir("folder", 0755);
    write_shard("folder/a2.bin", 2, 0, 10);
    write_shard("folder/b4.bin", 4, 0, 10);
    put("folder/c.txt", "a text", 6);
    static const struct { const char *pattern, *part; } patterns[] = {
        { "folder/*.bin",    "folder/b4.bin: this is a shard of uint32, but folder/a2.bin is a shard of uint16" },
        { "folder/[ac]*",    "folder/c.txt: this is a text, but folder/a2.bin is a shard of uint16" },
        { "folder",          "folder: is a directory, want a file" },
        { "folder/*.shard",  "no such file, and no file matches it as a pattern" },
        { "no_folder/*.bin", "no such file" },
        { "",                "no such file" },
    };
    for (int i = 0; i < COUNT(patterns); i++)
        EXPECT_FAILS(patterns[i].part, tokens_open(patterns[i].pattern, NULL, NULL));
    chmod("folder", 0);
    const int is_root = geteuid() == 0;         /* root may read everything */
    if (is_root && setresuid(65534, 65534, 0)) return;
    EXPECT_FAILS("Permission denied: cannot look for data there", tokens_open("folder/*.bin", NULL, NULL));
    EXPECT_FAILS("folder/a2.bin: Permission denied: cannot look for data there",
                 tokens_open("folder/a2.bin", NULL, NULL));
    if (is_root) EXPECT(!setresuid(0, 0, 0), "root again");
    chmod("folder", 0755);
}

TEST(a_changed_token_changes_the_fingerprint) {
    static const int at[] = { -1, 0, 20, 49999, 50000, 99999 };     /* -1: none */
    static char text[100000];
    uint64_t seen[COUNT(at)];
    for (int i = 0; i < COUNT(at); i++) {
        memset(text, 'a', sizeof text);
        if (at[i] >= 0) text[at[i]] = 'b';
        put("hashed-0.txt", text, 50000);
        put("hashed-1.txt", text + 50000, 50000);
        Tokens *t = kept(tokens_open("hashed-?.txt", NULL, NULL));
        seen[i] = tokens_fingerprint(t);
        for (int k = 0; k < i; k++) EXPECT(seen[k] != seen[i], "places %d and %d look alike", at[k], at[i]);
    }
}

TEST(ids_beyond_the_vocabulary) {
    write_shard("ids_0.bin", 2, 0, 100);
    write_shard("ids_1.bin", 2, 0, 9000);
    Tokens *t = kept(tokens_open("ids_?.bin", NULL, NULL));
    tokens_check(t, 9000);
    tokens_check(t, 50257);
    write_shard("late_0.bin", 2, 0, 10);
    write_shard("late_1.bin", 2, 500, 10);
    static const struct { const char *pattern; int V; int64_t first, count; const char *part; } cases[] = {
        { "ids_?.bin", 8999, 0, 9100,   "ids_1.bin: token 8999 is id 8999, want below 8999" },
        { "ids_?.bin", 50, 0, 9100,     "ids_0.bin: token 50 is id 50, want below 50" },
        { "ids_?.bin", 5000, 200, 8900, "ids_1.bin: token 5000 is id 5000" },
        { "late_?.bin", 500, 0, 20,     "late_1.bin: token 0 is id 500" },
    };
    for (int i = 0; i < COUNT(cases); i++)
        EXPECT_FAILS(cases[i].part, check_slice(cases[i].pattern, cases[i].V, cases[i].first, cases[i].count));
    t = kept(tokens_open("ids_?.bin", NULL, NULL));
    Tokens *good = kept(tokens_slice(t, 0, 100 + 4000));
    tokens_check(good, 4000);       /* other ids are behind the slice */
    unsigned char bytes[1032] = { 0 };
    memcpy(bytes, (uint32_t[3]){ 20240801, 7, 2 }, 12);
    memcpy(bytes + 1028, &(uint32_t){ 0x80000000 }, 4);
    put("negative.bin", bytes, sizeof bytes);
    EXPECT_FAILS("negative.bin: token 1 is id 2147483648, want below 128256",
                 check_slice("negative.bin", 128256, 0, 2));
    EXPECT_FAILS("the vocabulary; want --vocab 128256 for Llama 3's tokens", check_slice("negative.bin", 50257, 0, 2));
}

TEST(beyond_four_gigabytes) {
    const int64_t count = (INT64_C(1) << 31) + 500;     /* more than an int32 holds, in more than 4 GiB */
    const uint16_t last[4] = { 11, 12, 13, 14 };
    write_shard("sparse.bin", 2, 0, 10);
    int fd = open("sparse.bin", O_WRONLY);
    int wrote = !ftruncate(fd, 1024 + 2 * count) && pwrite(fd, &(uint32_t){ (uint32_t)count }, 4, 8) == 4 &&
                pwrite(fd, last, sizeof last, 1024 + 2 * count - (int64_t)sizeof last) == sizeof last;
    close(fd);
    if (!wrote) test_skip_reason = "the disk has no room for a sparse file of 4 GiB";
    else {
        Tokens *t = kept(tokens_open("sparse.bin", NULL, NULL)), *end = kept(tokens_slice(t, count - 4, 4));
        int32_t input[3], target[3];
        EXPECT(t->count == count, "%lld tokens", (long long)t->count);
        tokens_eval_window(end, 0, 3, input, target);
        EXPECT(input[0] == 11 && target[0] == 12 && target[2] == 14, "%d %d %d", input[0], target[0], target[2]);
        int targets = tokens_eval_window(t, tokens_windows(t, 3) - 1, 3, input, target);
        EXPECT(targets > 0 && target[targets - 1] == 14, "%d targets", targets);
    }
    unlink("sparse.bin");
}

int main(void) {
    scratch_open();
    if (chdir(scratch)) fail("%s: cannot go there", scratch);
    return test_all();
}
