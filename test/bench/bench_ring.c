/* bench_ring.c - Ring attention, forward and backward, one process per GPU, against flash attention of one GPU
   with as many FLOP (make bench-ring). Each loss is measured by leaving out a part, with the same operands:

     kernels         the attention calls of the mean rank alone, against one GPU's flash of the same FLOP
     imbalance       these calls of the slowest rank, against the mean
     merging         with packing, merging, adding and conversion, without transfers
     communication   everything

   bf16, head size 128, 16 heads, one sequence; the CPU: f32, and small. Time of the slowest rank, medians of rounds in
   which the variants take turns, each round in another order, so that not always the same one comes before. The
   contiguous order has rounds of its own after the others: a rank waits in it, and its cooler GPU would be faster in
   what comes next. */
#include "../../kernels/fill.h"
#include "../../kernels/ring.h"
#include "../../kernels/update.h"
#include "bench.h"
#include "../ranks/ranks.h"

enum { ROUNDS_MAX = 200, WARMUP = 2, ORDERS = 3, REFERENCE = ORDERS };
enum { ALL, WITHOUT_TRANSFERS, ATTENTION_ALONE, VARIANTS, MEASUREMENTS = ORDERS * VARIANTS + 1 };
static const char *const order_name[] = { "zigzag", "striped", "contiguous" };
static int64_t rounds, tokens_given;
static int     variant, NH, HS;
static DType   dtype;

/* ---- What the variants leave out: the linker gives their calls to these (-Wl,--wrap) */

CommOp __real_comm_exchange(const CommTransfer *transfers, int count);
CommOp __wrap_comm_exchange(const CommTransfer *transfers, int count) {
    return variant == ALL ? __real_comm_exchange(transfers, count) : (CommOp){0};
}
void __real_attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse);
void __wrap_attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse) {
    if (variant != ATTENTION_ALONE) __real_attention_merge(merged, lse, out, part, part_lse);
}
void __real_tensor_convert(Tensor to, Tensor from);
void __wrap_tensor_convert(Tensor to, Tensor from) {
    if (variant != ATTENTION_ALONE) __real_tensor_convert(to, from);
}
void __real_tensor_add(Tensor to, Tensor sum, Tensor from);
void __wrap_tensor_add(Tensor to, Tensor sum, Tensor from) {
    if (variant != ATTENTION_ALONE) __real_tensor_add(to, sum, from);
}

/* ---- Operands, of up to T tokens */

typedef struct { Tensor qkv, dqkv, out, dout, lse; void *work[2]; } Operands;

static Tensor random_tensor(int64_t T, int64_t C, uint32_t number) {
    const Tensor t = tensor_of(device_alloc((size_t)(T * C) * dtype_bytes(dtype), "the operands"), dtype, 3, 1, T, C);
    const Tensor values = tensor_of(device_alloc((size_t)(T * C) * 4, "the operands"), F32, 3, 1, T, C);
    fill_normal(tensor_flat(values), 0, 1, 1, number, (uint32_t)comm_rank);
    tensor_convert(t, values);
    device_free(values.data);
    return t;
}

/* Each pass has its own workspace, so that a pass without transfers finds the operands of the one before. */
static Operands operands(int64_t T, size_t work_bytes) {
    const int64_t C = (int64_t)NH * HS;
    Operands o = { .qkv = random_tensor(T, 3 * C, 1), .dqkv = random_tensor(T, 3 * C, 2),
                   .out = random_tensor(T, C, 3), .dout = random_tensor(T, C, 4),
                   .lse = tensor_of(device_alloc((size_t)(NH * T) * 4, "lse"), F32, 3, 1, NH, T) };
    for (int i = 0; i < 2; i++) o.work[i] = device_alloc(work_bytes + 256, "the workspace");
    return o;
}

static void operands_free(Operands o) {
    void *all[] = { o.qkv.data, o.dqkv.data, o.out.data, o.dout.data, o.lse.data, o.work[0], o.work[1] };
    for (int i = 0; i < COUNT(all); i++) device_free(all[i]);
}

static Tensor third(Tensor t, int which) { return tensor_column_range(t, (int64_t)which * NH * HS, (int64_t)NH * HS); }

static AttentionSpec spec_of(int64_t T) {
    return (AttentionSpec){ .B = 1, .Tq = (int)T, .Tk = (int)T, .NH = NH, .HS = HS, .causal = 1,
                            .scale = 1 / sqrtf((float)HS), .dtype = dtype, .out_dtype = dtype };
}

static void run_ring(const Ring *r, Operands o) {
    const Tensor q = third(o.qkv, 0), k = third(o.qkv, 1), v = third(o.qkv, 2);
    ring_forward(r, o.out, o.lse, q, k, v, o.work[0]);
    ring_backward(r, third(o.dqkv, 0), third(o.dqkv, 1), third(o.dqkv, 2), o.dout, o.out, o.lse, q, k, v, o.work[1]);
}

/* ---- Time */

static double ms_of(const Ring *r, Operands o, int which, Tensor barrier) {
    DeviceMark begin = {0}, end = {0};
    comm_wait(comm_all_reduce(barrier));
    device_wait();
    variant = which;
    device_mark(&begin);
    run_ring(r, o);
    device_mark(&end);
    const double ms = device_mark_ms(&begin, &end);
    variant = ALL;
    device_mark_free(&begin);
    device_mark_free(&end);
    return ms;
}

typedef struct { double slowest, mean; } Ms;

/* Of this rank's median, over the ranks. */
static Ms over_ranks(double *ms) {
    double host[RANKS_MAX] = {0};
    const Tensor t = tensor_of(device_alloc(sizeof host, "times"), F64, 1, RANKS_MAX);
    Ms result = {0};
    host[comm_rank] = median(ms, rounds);
    device_upload(t.data, host, sizeof host);
    comm_wait(comm_all_reduce(t));
    device_download(host, t.data, sizeof host);
    for (int i = 0; i < comm_size; i++) {
        result.mean += host[i] / comm_size;
        if (host[i] > result.slowest) result.slowest = host[i];
    }
    device_free(t.data);
    return result;
}

/* Rows of the table: own tokens on each rank. One GPU's flash has sqrt(N) as many, which are as many FLOP. */
static void bench_tokens(int64_t own, Tensor barrier) {
    static double ms[ORDERS + 1][VARIANTS][ROUNDS_MAX];
    const int64_t alone = (int64_t)((double)own * sqrt(comm_size) / 128 + 0.5) * 128;
    const double pairs = (double)own * (double)own * comm_size / 2;         /* of the mean rank */
    Ring ring[ORDERS + 1];
    Operands o[ORDERS + 1];
    for (int i = 0; i <= ORDERS; i++) {
        const RingSplit split = { (RingOrder)(i % ORDERS), comm_size, comm_rank, (int)own * comm_size };
        const RingSplit whole = { .size = 1, .T = (int)alone };
        ring[i] = ring_create(i == REFERENCE ? whole : split, "flash", spec_of(i == REFERENCE ? alone : own));
        o[i] = operands(i == REFERENCE ? alone : own, ring_workspace_bytes(&ring[i]));
    }
    /* the contiguous order's rounds come after the others': a GPU of it waits, and cools */
    for (int64_t round = -WARMUP; round < rounds + WARMUP + rounds; round++)
        for (int n = 0; n < MEASUREMENTS; n++) {
            static const int steps[] = { 1, 3, 7, 9 };      /* coprime to MEASUREMENTS */
            const int which = (n * steps[(round + WARMUP) % COUNT(steps)] + (int)round + WARMUP) % MEASUREMENTS;
            const int i = which / VARIANTS, v = which % VARIANTS, contiguous = i == RING_CONTIGUOUS;
            const int64_t own_round = contiguous ? round - WARMUP - rounds : round;
            if (contiguous != (round >= rounds)) continue;
            const double time = ms_of(&ring[i], o[i], v, barrier);
            if (own_round >= 0) ms[i][v][own_round] = time;
        }
    const double rate = 3.5 * 4 * NH * HS * (double)alone * (double)alone / 2 / over_ranks(ms[REFERENCE][ALL]).mean;
    const double ideal = 3.5 * 4 * NH * HS * pairs / rate;
    if (!comm_rank) printf("| %lld | one GPU | %.2f | %.3g | | | | | |\n", (long long)own, ideal, 1e-9 * rate);
    for (int i = 0; i < ORDERS; i++) {
        const Ms all = over_ranks(ms[i][ALL]), quiet = over_ranks(ms[i][WITHOUT_TRANSFERS]);
        const Ms attention = over_ranks(ms[i][ATTENTION_ALONE]);
        if (comm_rank) continue;
        printf("| %lld | %s | %.2f | %.3g | %.1f %% | %.2f | %.2f | %.2f | %.2f |\n", (long long)own, order_name[i],
               all.slowest, 1e-9 * rate * ideal / all.slowest, 100 * ideal / all.slowest, attention.mean - ideal,
               attention.slowest - attention.mean, quiet.slowest - attention.slowest, all.slowest - quiet.slowest);
        fflush(stdout);
    }
    for (int i = 0; i <= ORDERS; i++) operands_free(o[i]);
}

static void bench(void *unused) {
    (void)unused;
    const int on_cpu = !strcmp(backend_name, "cpu");
    const Tensor barrier = tensor_of(device_alloc(4, "the barrier"), F32, 1, 1);
    NH = on_cpu ? 2 : 16;
    HS = on_cpu ? 64 : 128;
    dtype = on_cpu ? F32 : BF16;
    if (!comm_rank)
        printf("%s, %d ranks; %d heads of %d, %s, forward and backward, medians of %lld rounds; ms of the slowest\n"
               "rank, and what of it is lost to\n\n| tokens per GPU | order | ms | TFLOP/s per GPU | of one GPU | "
               "kernels | imbalance | merging | communication |\n| --- | --- | --- | --- | --- | --- | --- | --- | "
               "--- |\n", device_info().name, comm_size, NH, HS, dtype_name(dtype), (long long)rounds);
    if (tokens_given) bench_tokens(tokens_given, barrier);
    else for (int64_t own = on_cpu ? 256 : 8192; own <= (on_cpu ? 1024 : 32768); own *= 4) bench_tokens(own, barrier);
}

int main(int argc, char **argv) {
    int64_t count;
    Option options[] = {
        { .name = "ranks", .type = OPTION_INTEGER, .value = &count, .min = 2, .max = RANKS_MAX, .argument = "N",
          .help = "processes; without it one per GPU, 2 on the CPU" },
        { .name = "tokens", .type = OPTION_INTEGER, .value = &tokens_given, .min = 256, .max = 1 << 20, .argument = "N",
          .help = "on each GPU; without it 8192 and 32768" },
        { .name = "rounds", .type = OPTION_INTEGER, .value = &rounds, .min = 1, .max = ROUNDS_MAX, .argument = "N",
          .fallback = "30", .help = "of each measurement" },
        BENCH_HELP
    };
    bench_parse("bench_ring times ring attention beside flash attention of one GPU.", options, argc, argv);
    return ranks_bench("bench_ring", count, bench, NULL);
}
