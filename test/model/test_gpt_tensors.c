/* The model's tensors: initial weights, their noise twin, sizes, and what gpt_create and gpt_set_batch refuse. Runs
   where the repository's root is the working directory. */
#include "models.h"

/* That fill_normal draws normal numbers: test_ops. The deviation of N of them is right within 5 standard errors. */
TEST(initial_weights) {
    GPTConfig config = { .L = 3, .NH = 2, .C = 64, .T = 48, .V = 1001, .deterministic = 1 };
    GPT *m = new_model(config, "auto", 1, 1, EVALUATE), *again = new_model(config, "auto", 1, 1, EVALUATE);
    GPT *other = new_model(config, "auto", 1, 1, EVALUATE);
    gpt_init(m, 7);
    gpt_init(other, 8);
    device_open((DeviceOptions){ .threads = 1 });
    gpt_init(again, 7);
    device_open((DeviceOptions){0});
    EXPECT(same_params(&m->params, &again->params), "one seed twice");
    EXPECT(outside_nonzero(&m->params, config.V) == 0, "padding is not zero");
    double z_before = 0;
    for (int i = 0; i < m->params.table.count; i++) {
        const TensorEntry *row = &m->params.table.entry[i];
        float *value = download(*row->field), *different = download(*other->params.table.entry[i].field);
        int64_t count = row->layout == VOCABULARY ? config.V * config.C : tensor_count(*row->field);
        int is_bias = strstr(row->name, "bias") != NULL, is_gain = strstr(row->name, "ln_") && !is_bias;
        if (is_bias || is_gain) {
            int64_t wrong = 0;
            for (int64_t j = 0; j < count; j++) wrong += value[j] != is_gain;
            EXPECT(wrong == 0, "%s: %lld elements are not %d", row->name, (long long)wrong, is_gain);
        } else {
            double deviation = strstr(row->name, "c_proj") ? 0.02 / sqrt(2.0 * config.L) : 0.02;
            double z = value[0] / deviation, second = 0;
            for (int64_t j = 0; j < count; j++) second += pow(value[j] / deviation, 2) / (double)count;
            EXPECT(fabs(second - 1) <= 5 * sqrt(2 / (double)count), "%s: deviation %g times the right one", row->name,
                   sqrt(second));
            EXPECT(fabs(z - z_before) > 1e-4, "%s begins as the tensor drawn before it", row->name);
            EXPECT(value[0] != different[0], "%s begins as with another seed", row->name);
            z_before = z;
        }
    }
}

/* The parameters, which are of config.dtype: as bf16 an ulp is one of its upper half. */
TEST(a_twin_is_one_ulp_away) {
    for (int d = 0; d < 2; d++) {
        const DType dtype = d ? BF16 : F32;
        if (device_refuse_dtype(dtype)) continue;
        GPTConfig config = { .L = 2, .NH = 2, .C = 64, .T = 16, .V = 101, .dtype = dtype };
        GPT *m = new_model(config, "auto", 1, 16, EVALUATE);
        gpt_init(m, 3);
        float *before = download_params(&m->params);
        gpt_perturb(m);
        float *after = download_params(&m->params);
        int64_t away = 0, nearer = 0, moved_zeros = 0, others = 0;
        for (int64_t i = 0; i < tensor_count(flat_params(&m->params)); i++) {
            int32_t was, is;
            memcpy(&was, &before[i], 4);
            memcpy(&is, &after[i], 4);
            int32_t ulps = dtype == F32 ? is - was : (is - was) / (1 << 16);
            if (before[i] == 0) moved_zeros += is != was;
            else if (ulps == 1) away++;
            else if (ulps == -1) nearer++;
            else others++;
        }
        EXPECT(!moved_zeros && !others, "%s: %lld zeros moved, %lld others not by one ulp", dtype_name(dtype),
               (long long)moved_zeros, (long long)others);
        int64_t want = dtype == F32 ? 0 : away;         /* number of weights nearer to zero */
        EXPECT(away > 0 && nearer == want, "%s: %lld away from zero, %lld nearer", dtype_name(dtype),
               (long long)away, (long long)nearer);
        EXPECT(outside_nonzero(&m->params, config.V) == 0, "padding is not zero");
    }
}

TEST(sizes_are_those_of_gpt2) {
    static const struct { const char *name; int64_t count; } known[] = {
        { "d12", 124439808 }, { "d24", 354823168 }, { "d36", 774030080 }, { "d48", 1557611200 },
        { "gpt2", 124439808 }, { "gpt2-medium", 354823168 }, { "gpt2-large", 774030080 }, { "gpt2-xl", 1557611200 } };
    for (int i = 0; i < COUNT(known); i++) {
        GPTConfig config;
        EXPECT(gpt_named(known[i].name, &config), "%s", known[i].name);
        config.V = 50257;
        gpt_check(&config);
        EXPECT(gpt_parameter_count(&config) == known[i].count, "%s: %lld parameters, want %lld", known[i].name,
               (long long)gpt_parameter_count(&config), (long long)known[i].count);
        double padding = (double)gpt_param_bytes(&config, F32) / (4.0 * (double)known[i].count) - 1;
        EXPECT(padding >= 0 && padding < 1e-3, "%s: %g of the memory is padding", known[i].name, padding);
    }
    GPTConfig config;
    EXPECT(!gpt_named("d13", &config) && !gpt_named("", &config), "a model that there is not");
}

/* Each asks one thing too much of a model of 24 channels, 3 heads, context 8 and batches of 2 sequences. */
static void demand(int C, int T, int B, const char *attention, const char *file) {
    const GPTConfig config = { .L = 1, .NH = 3, .C = C, .T = 8, .V = 5 };
    GPT *m = new_model(config, attention, 2, T, EVALUATE);
    gpt_set_batch(m, B, T);
    params_read(file, &m->params, 5);
}

TEST(what_does_not_fit_is_refused) {
    const char *weights = "test/reference/plain.model.safetensors";
    EXPECT_FAILS("16 channels, want a multiple of the 3 heads", demand(16, 8, 2, "auto", weights));
    EXPECT_FAILS("a batch of 2 x 9 tokens",                   demand(24, 9, 2, "auto", weights));
    EXPECT_FAILS("a batch of 3 x 8 tokens",                   demand(24, 8, 3, "auto", weights));
    EXPECT_FAILS("none",                                      demand(24, 8, 2, "none", weights));
    EXPECT_FAILS("transformer.wte.weight",                    demand(24, 8, 2, "auto", weights));
    EXPECT_FAILS("no-such-file",                              demand(24, 8, 2, "auto", "no-such-file"));
}

/* Generation computes the logits of the last tokens alone: fewer tokens need no more memory, also where a batch of them
   has a larger chunk, 512 rows of 1 MiB where 513 have two of 384. */
TEST(shorter_prompts_fit) {
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const GPTConfig config = { .L = 1, .NH = 1, .C = 8, .T = 513, .V = 1 << 18, .Vp = 1 << 18 };
        bytes[i] = gpt_act_plan(&config, "auto", 1, 512 + i, GENERATE).bytes;
    }
    EXPECT(bytes[0] <= bytes[1], "512 tokens need %zu bytes, 513 need %zu", bytes[0], bytes[1]);
    EXPECT(bytes[1] < 4 << 20, "513 tokens need %zu bytes", bytes[1]);
}

/* Any number of tokens anywhere in the cache, as lines of --interactive come. */
TEST(windows_of_a_short_context_fit) {
    for (int T = 1; T <= 9; T++) {
        GPT *m = new_model((GPTConfig){ .L = 1, .NH = 4, .C = 8, .T = T, .V = 5 }, "auto", 2, T, GENERATE);
        for (int first = 0; first < T; first++)
            for (int n = 1; first + n <= T; n++) gpt_set_window(m, first, n);
        EXPECT(m->acts.table.bytes <= m->act_bytes, "context %d: %zu bytes of %zu", T, m->acts.table.bytes,
               m->act_bytes);
    }
}

int main(void) {
    test_device_open((DeviceOptions){0});
    return test_all();
}
