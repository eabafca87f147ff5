/* bench_ops.c - Every memory-bound op alone, at the shapes of a training step of GPT-2 124M and of d4 (make
   bench-ops): microseconds, GB/s by the bytes that the op must read and write at least, and their ratio to the copy
   rate, which is measured first. Operands rotate through 4 GiB, far more than an L2 cache. On a CPU a small shape.

   A round issues two copies of 2 GiB, which keep the GPU busy while the host issues CALLS calls behind them, and takes
   the time of all less that of the copies: what the host needs to launch a kernel does not count. */
#include "../../kernels/check.h"
#include "../../kernels/device.h"
#include "../../kernels/dropout.h"
#include "../../kernels/embedding.h"
#include "../../kernels/gelu.h"
#include "../../kernels/gemm.h"
#include "../../kernels/layernorm.h"
#include "../../kernels/head.h"
#include "../../llmc/model/gpt.h"
#include "../../llmc/base/os.h"
#include "../../llmc/base/random.h"
#include "bench.h"

enum { CALLS = 50, ROUNDS = 15, SETS_MAX = 64 };

typedef struct { const char *name, *model; int B, V; } Shape;
static const Shape gpu_shapes[] = { { "124M, B = 64", "d12", 64, 50257 }, { "d4, B = 16", "d4", 16, 256 } };
static const Shape cpu_shapes[] = { { "d2, B = 2", "d2", 2, 256 } };

static DType     dtype;
static GPTConfig config;
static int       B, T, distinct;                /* distinct: how many different tokens the batch has */
static char     *memory;
static int64_t   memory_bytes, memory_used;
static Tensor    tokens;
static UpdateRow *rows;
static int       row_count;
static StepStats *stats;

/* ---- operands */

static Tensor place(DType type, int ndim, const int64_t dim[4]) {
    Tensor t = tensor_packed(memory + memory_used, type, ndim, dim);
    memory_used += ((int64_t)tensor_bytes(t) + 255) / 256 * 256;
    REQUIRE(memory_used <= memory_bytes, "bench_ops: operands of %lld bytes, want at most %lld",
            (long long)memory_used, (long long)memory_bytes);
    return t;
}
#define DIMS(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[4]){__VA_ARGS__}
#define OF(type, ...) place(type, DIMS(__VA_ARGS__))

/* In every half of a word a bf16 in [0.5, 2): numbers of that size as bf16 and as f32. bytes: a multiple of 4 MiB. */
static void memory_open(int64_t bytes) {
    enum { CHUNK = 1 << 20 };
    static uint32_t words[CHUNK];
    memory = device_alloc((size_t)bytes, "the operands");
    memory_bytes = bytes;
    for (uint64_t i = 0; i < CHUNK; i += 4) {
        Random128 r = philox(1, RANDOM_TEST, 0, 0, i);
        for (int k = 0; k < 4; k++) words[i + (uint64_t)k] = (r.word[k] & 0x00ff00ff) | 0x3f003f00;
    }
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof words) device_upload(memory + at, words, sizeof words);
}

/* Tokens as unevenly distributed as in text: half of them are the first eighth of the vocabulary. */
static void tokens_open(void) {
    const int64_t count = (int64_t)B * T;
    int32_t *host = malloc((size_t)count * sizeof *host);
    char *seen = calloc((size_t)config.V, 1);
    distinct = 0;
    for (int64_t i = 0; i < count; i++) {
        const double u = random_uniform(1, RANDOM_TEST, 1, (uint64_t)i);
        host[i] = (int32_t)(u * u * u * config.V);
        distinct += !seen[host[i]];
        seen[host[i]] = 1;
    }
    tokens = tensor_of(device_alloc((size_t)count * sizeof *host, "the tokens"), I32, 2, B, T);
    device_upload(tokens.data, host, (size_t)count * sizeof *host);
    free(host);
    free(seen);
}

/* The tensors of the model, for AdamW. Returns the elements of its memory. */
static int64_t rows_open(void) {
    Params params;
    params_create(&params, &config, F32, "the parameters");
    const TensorTable *table = &params.table;
    UpdateRow *host = calloc((size_t)table->count, sizeof *host);
    row_count = table->count;
    for (int i = 0; i < row_count; i++)
        host[i] = (UpdateRow){ .first = (int64_t)(table->entry[i].offset / sizeof(float)),
                               .count = tensor_count(*table->entry[i].field), .decay = table->entry[i].decay };
    rows = device_alloc((size_t)row_count * sizeof *rows, "the rows of AdamW");
    device_upload(rows, host, (size_t)row_count * sizeof *rows);
    const int64_t elements = (int64_t)(table->bytes / sizeof(float));
    free(host);
    params_free(&params);
    return elements;
}

/* ---- the ops */

static int64_t elements;                        /* of the parameters */

typedef enum {
    NONE, X, X3, X4, ROWS, COLUMNS, COLUMNS_F32, COLUMNS3_F32, COLUMNS4_F32, WTE, WTE_F32, WPE, WPE_F32, CHUNK,
    CHUNK_ROWS, CHUNK_TARGETS, PARAMS, PARAMS_BF16
} OperandKind;

static Tensor operand(OperandKind kind) {
    const int64_t C = config.C, R = B * T < 5120 ? B * T : 5120;        /* R: rows of a chunk of the head */
    switch (kind) {
    case X:             return OF(dtype, B, T, C);
    case X3:            return OF(dtype, B, T, 3 * C);
    case X4:            return OF(dtype, B, T, 4 * C);
    case ROWS:          return OF(F32, B, T);
    case COLUMNS:       return OF(dtype, C);
    case COLUMNS_F32:   return OF(F32, C);
    case COLUMNS3_F32:  return OF(F32, 3 * C);
    case COLUMNS4_F32:  return OF(F32, 4 * C);
    case WTE:           return OF(dtype, config.Vp, C);
    case WTE_F32:       return OF(F32, config.Vp, C);
    case WPE:           return OF(dtype, T, C);
    case WPE_F32:       return OF(F32, T, C);
    case CHUNK:         return OF(dtype, R, config.Vp);
    case CHUNK_ROWS:    return OF(F32, R);
    case CHUNK_TARGETS: return tensor_of(tokens.data, I32, 1, R);
    case PARAMS:        return OF(F32, elements);
    case PARAMS_BF16:   return dtype == BF16 ? OF(BF16, elements) : ABSENT;
    default:            return ABSENT;
    }
}

static void call_embed(Tensor *t)          { embedding_forward(t[0], tokens, t[1], t[2], ABSENT); }
static void call_embed_backward(Tensor *t) {
    embedding_sort(tokens, t[0].dim[0]);
    embedding_backward(t[0], t[1], t[2], tokens, ABSENT, OVERWRITE);
}
static void call_layernorm(Tensor *t) {
    residual_layernorm_forward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
}
static void call_layernorm_back(Tensor *t) {
    layernorm_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], ACCUMULATE, OVERWRITE);
}
static void call_qkv_bias(Tensor *t)  { column_sums(t[0], t[1], OVERWRITE); }
static void call_gelu(Tensor *t)      { gelu_forward(t[0], t[1]); }
static void call_gelu_back(Tensor *t) { gelu_backward(t[0], t[0], t[1], t[2], OVERWRITE); }
static void call_drop(Tensor *t)      { dropout(t[0], t[1], &(Dropout){ .rate = 0.2f, .seed = 1 }); }
static void call_softmax(Tensor *t)   { softmax_cross_entropy(t[0], t[1], t[1], t[2], config.V, 1e-3f); }
static void call_loss(Tensor *t)      { loss_add(stats, t[0], 1e-9f); }
static void call_norm(Tensor *t)      { gradient_square_sum(stats, t[0]); }
static void call_adamw(Tensor *t)     { adamw_update(t[0], t[4], t[1], t[2], t[3], rows, row_count, stats); }

/* moved: how often each operand must be read or written. token_bytes: of each token that occurs and channel; 1 stands
   for an element of dtype. */
static const struct {
    const char *name;
    void      (*call)(Tensor *t);
    OperandKind operand[9];
    double      moved[9];
    int         token_bytes;
} ops[] = {
    { "embedding forward",  call_embed, { X, WTE, WPE }, { 1, 0, 1 }, 1 },
    { "embedding backward", call_embed_backward, { WTE_F32, WPE_F32, X }, { 0, 1, 1 }, 8 },
    { "residual + layernorm forward", call_layernorm, { X, X, ROWS, ROWS, X, X, COLUMNS, COLUMNS },
      { 1, 1, 1, 1, 1, 1 }, 0 },
    { "layernorm backward, with dx_sum", call_layernorm_back,
      { X, COLUMNS_F32, COLUMNS_F32, COLUMNS_F32, X, X, ROWS, ROWS, COLUMNS }, { 2, 0, 0, 0, 1, 1, 1, 1 }, 0 },
    { "column sums of dqkv", call_qkv_bias, { COLUMNS3_F32, X3 }, { 0, 1 }, 0 },
    { "gelu forward",  call_gelu, { X4, X4 }, { 1, 1 }, 0 },
    { "gelu backward", call_gelu_back, { X4, X4, COLUMNS4_F32 }, { 2, 1 }, 0 },
    { "dropout",       call_drop, { X, X }, { 1, 1 }, 0 },
    { "softmax, a chunk of the head", call_softmax, { CHUNK_ROWS, CHUNK, CHUNK_TARGETS }, { 0, 2 }, 0 },
    { "sum of the losses", call_loss, { ROWS }, { 1 }, 0 },
    { "gradient norm", call_norm, { PARAMS }, { 1 }, 0 },
    { "AdamW", call_adamw, { PARAMS, PARAMS, PARAMS, PARAMS, PARAMS_BF16 }, { 2, 2, 2, 1, 1 }, 0 },
};

typedef struct { Tensor t[9]; double bytes; } Operands;

static Operands operands(int op) {
    const int token_bytes = ops[op].token_bytes == 1 ? (int)dtype_bytes(dtype) : ops[op].token_bytes;
    Operands o = { .bytes = (double)token_bytes * distinct * config.C };
    for (int i = 0; i < 9; i++) {
        o.t[i] = operand(ops[op].operand[i]);
        if (o.t[i].data) o.bytes += ops[op].moved[i] * (double)tensor_bytes(o.t[i]);
    }
    return o;
}

/* ---- time */

/* Of one half of the memory to the other: as many bytes are read and written as the memory has. */
static void copy(void) {
    const int64_t half = memory_bytes / 8;
    tensor_convert(tensor_of(memory, F32, 1, half), tensor_of(memory + 4 * half, F32, 1, half));
}

/* Seconds of a call; call NULL: of a copy. */
static double seconds_of(void (*call)(Tensor *), Operands *set, int sets) {
    double seconds[ROUNDS];
    for (int round = -2; round < ROUNDS; round++) {
        device_wait();
        const double start = seconds_now();
        copy();
        copy();
        device_wait();
        const double middle = seconds_now();
        copy();
        if (call) {
            copy();
            for (int i = 0; i < CALLS; i++) call(set[i % sets].t);
        }
        device_wait();
        const double end = seconds_now();
        if (round >= 0) seconds[round] = call ? ((end - middle) - (middle - start)) / CALLS
                                              : (middle - start) - (end - middle);
    }
    return median(seconds, ROUNDS);
}

static void bench(const Shape *shape, double copy_rate) {
    gpt_named(shape->model, &config);
    config.V = shape->V;
    config.dtype = dtype;
    gpt_check(&config);
    B = shape->B;
    T = config.T;
    tokens_open();
    elements = rows_open();
    printf("\n%s: T = %d, C = %d, %s\n\n| op | MB | us | GB/s | of the copy rate |\n| --- | --- | --- | --- | --- |\n",
           shape->name, T, config.C, dtype_name(dtype));
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        Operands set[SETS_MAX];
        int sets = 0;
        memory_used = 0;
        do {
            set[sets++] = operands((int)i);
        } while (sets < SETS_MAX && memory_used + memory_used / sets <= memory_bytes);
        const double seconds = seconds_of(ops[i].call, set, sets), rate = set->bytes / seconds;
        printf("| %s | %.4g | %.1f | %.0f | %.0f %% |\n", ops[i].name, set->bytes / 1e6, 1e6 * seconds, rate / 1e9,
               100 * rate / copy_rate);
        fflush(stdout);
    }
    device_free(tokens.data);
    device_free(rows);
}

int main(int argc, char **argv) {
    Option options[] = { BENCH_HELP };
    bench_parse("bench_ops times every memory-bound op of this backend.", options, argc, argv);
    device_open((DeviceOptions){0});
    const int on_cpu = device_refuse_dtype(BF16) != NULL;
    dtype = on_cpu ? F32 : BF16;
    const StepStats begin = { .learning_rate = 1e-6f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .correction1 = 1,
                              .correction2 = 1, .clip = 1, .apply = 1 };
    stats = device_alloc(sizeof *stats, "the statistics of a step");
    device_upload(stats, &begin, sizeof begin);
    memory_open(on_cpu ? (int64_t)1 << 28 : (int64_t)1 << 32);
    const double copy_rate = (double)memory_bytes / seconds_of(NULL, NULL, 0);
    printf("%s, %s; medians of %d rounds of %d calls; copy %.0f GB/s, read and written\n", device_info().name,
           device_info().detail, ROUNDS, CALLS, copy_rate / 1e9);
    if (on_cpu) bench(&cpu_shapes[0], copy_rate);
    else for (int i = 0; i < 2; i++) bench(&gpu_shapes[i], copy_rate);
    return 0;
}
