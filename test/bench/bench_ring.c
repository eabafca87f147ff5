/* bench_ring.c - Ring attention, forward and backward, one process per GPU, against flash attention of one GPU
   with as many FLOP (make bench-ring). Each loss is measured by leaving out a part, with the same operands:

     kernels         the attention calls of the mean rank alone, against one GPU's flash of the same FLOP
     imbalance       these calls of the slowest rank, against the mean
     merging         with packing, merging, adding and conversion, without transfers
     communication   everything

   bf16, head size 128, 16 heads, one sequence; the CPU: f32, and small. Time of the slowest rank, medians of rounds in
   which the variants take turns, each round in another order, so that not always the same one comes before. */
#include "../../kernels/normal.h"
#include "../../kernels/ring.h"
#include "../../kernels/update.h"
#include "bench.h"
#include "../ranks/ranks.h"

enum { ROUNDS = 30, WARMUP = 2 };
enum { ALL, WITHOUT_TRANSFERS, ATTENTION_ALONE, ONE_GPU, MEASUREMENTS };
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

typedef struct { AttentionOperands forward, backward; } Operands;

static Tensor random_tensor(int64_t T, int64_t C, uint32_t number) {
    const Tensor t = tensor_of(device_alloc((size_t)(T * C) * dtype_bytes(dtype), "the operands"), dtype, 3, 1, T, C);
    const Tensor values = tensor_of(device_alloc((size_t)(T * C) * 4, "the operands"), F32, 3, 1, T, C);
    fill_normal(tensor_flat(values), 0, 1, 1, number, (uint32_t)comm_rank);
    tensor_convert(t, values);
    device_free(values.data);
    return t;
}

static Tensor third(Tensor t, int which) { return tensor_column_range(t, (int64_t)which * NH * HS, (int64_t)NH * HS); }

/* Not freed. Each pass has its own workspace, so that a pass without transfers finds the operands of the one before. */
static Operands operands(int64_t T, size_t work_bytes) {
    const int64_t C = (int64_t)NH * HS;
    const Tensor qkv = random_tensor(T, 3 * C, 1), dqkv = random_tensor(T, 3 * C, 2);
    const Tensor lse = tensor_of(device_alloc((size_t)(NH * T) * 4, "lse"), F32, 3, 1, NH, T);
    Operands o = { .forward = { third(qkv, 0), third(qkv, 1), third(qkv, 2), random_tensor(T, C, 3), lse,
                                random_tensor(T, C, 4), third(dqkv, 0), third(dqkv, 1), third(dqkv, 2), NULL,
                                device_alloc(work_bytes + 256, "the workspace") } };
    o.backward = o.forward;
    o.backward.work = device_alloc(work_bytes + 256, "the workspace");
    return o;
}

static AttentionSpec spec_of(int64_t T) {
    return (AttentionSpec){ .B = 1, .Tq = (int)T, .Tk = (int)T, .NH = NH, .HS = HS, .causal = 1,
                            .scale = 1 / sqrtf((float)HS), .dtype = dtype, .out_dtype = dtype };
}

/* ---- Time */

static double ms_of(const Ring *r, Operands o, int which, Tensor barrier) {
    DeviceMark begin = {0}, end = {0};
    comm_wait(comm_all_reduce(barrier));
    device_wait();
    variant = which;
    device_mark(&begin);
    ring_forward(r, &o.forward);
    ring_backward(r, &o.backward);
    device_mark(&end);
    const double ms = device_mark_ms(&begin, &end);
    variant = ALL;
    device_mark_free(&begin);
    device_mark_free(&end);
    return ms;
}

typedef struct { double slowest, mean; } Ms;

/* Maximum and mean of the ranks' medians. */
static Ms over_ranks(double *ms) {
    double host[RANKS_MAX] = {0};
    const Tensor t = tensor_of(device_alloc(sizeof host, "times"), F64, 1, RANKS_MAX);
    Ms result = {0};
    host[comm_rank] = median(ms, ROUNDS);
    device_upload(t.data, host, sizeof host);
    comm_wait(comm_all_reduce(t));
    device_download(host, t.data, sizeof host);
    for (int i = 0; i < comm_size; i++) {
        result.mean += host[i] / comm_size;
        if (host[i] > result.slowest) result.slowest = host[i];
    }
    return result;
}

/* Rows of the table: `local` tokens on each rank. One GPU's flash has sqrt(N) as many, which are as many FLOP. */
static void bench_tokens(int64_t local, Tensor barrier) {
    static double ms[MEASUREMENTS][ROUNDS];
    const int64_t alone = (int64_t)((double)local * sqrt(comm_size) / 128 + 0.5) * 128;
    const double pairs = (double)local * (double)local * comm_size / 2;         /* per rank, on average */
    const RingSplit split = { comm_size, comm_rank, (int)local * comm_size }, whole = { .size = 1, .T = (int)alone };
    const Ring ring = ring_create(split, "flash", spec_of(local)), one = ring_create(whole, "flash", spec_of(alone));
    const Operands o = operands(local, ring_workspace_bytes(&ring));
    const Operands o_one = operands(alone, ring_workspace_bytes(&one));
    for (int round = -WARMUP; round < ROUNDS; round++)
        for (int n = 0; n < MEASUREMENTS; n++) {
            const int which = (n * (round % 2 ? 3 : 1) + round + WARMUP) % MEASUREMENTS;
            const double time = which == ONE_GPU ? ms_of(&one, o_one, ALL, barrier) : ms_of(&ring, o, which, barrier);
            if (round >= 0) ms[which][round] = time;
        }
    const double rate = 3.5 * 4 * NH * HS * (double)alone * (double)alone / 2 / over_ranks(ms[ONE_GPU]).mean;
    const double ideal = 3.5 * 4 * NH * HS * pairs / rate;
    const Ms all = over_ranks(ms[ALL]), quiet = over_ranks(ms[WITHOUT_TRANSFERS]);
    const Ms attention = over_ranks(ms[ATTENTION_ALONE]);
    if (!comm_rank) {
        printf("| %lld | one GPU | %.2f | %.3g | | | | | |\n", (long long)local, ideal, 1e-9 * rate);
        printf("| %lld | %d | %.2f | %.3g | %.1f %% | %.2f | %.2f | %.2f | %.2f |\n", (long long)local, comm_size,
               all.slowest, 1e-9 * rate * ideal / all.slowest, 100 * ideal / all.slowest, attention.mean - ideal,
               attention.slowest - attention.mean, quiet.slowest - attention.slowest, all.slowest - quiet.slowest);
        fflush(stdout);
    }
}

static void bench(void *unused) {
    (void)unused;
    const int on_cpu = !strcmp(backend_name, "cpu");
    const Tensor barrier = tensor_of(device_alloc(4, "the barrier"), F32, 1, 1);
    NH = on_cpu ? 2 : 16;
    HS = on_cpu ? 64 : 128;
    dtype = on_cpu ? F32 : BF16;
    if (!comm_rank)
        printf("%s, %d ranks; %d heads of %d, %s, forward and backward, medians of %d rounds; ms of the slowest\n"
               "rank, and what of it is lost to\n\n| tokens per GPU | GPUs | ms | TFLOP/s per GPU | of one GPU | "
               "kernels | imbalance | merging | communication |\n| --- | --- | --- | --- | --- | --- | --- | --- | "
               "--- |\n", device_info().name, comm_size, NH, HS, dtype_name(dtype), ROUNDS);
    for (int64_t n = on_cpu ? 256 : 8192; n <= (on_cpu ? 1024 : 32768); n *= 4) bench_tokens(n, barrier);
}

int main(int argc, char **argv) {
    int64_t count;
    Option options[] = {
        { .name = "ranks", .type = OPTION_INTEGER, .value = &count, .min = 2, .max = RANKS_MAX, .argument = "N",
          .help = "processes; without it one per GPU, 2 on the CPU" },
        BENCH_HELP
    };
    bench_parse("bench_ring times ring attention beside flash attention of one GPU.", options, argc, argv);
    return ranks_bench("bench_ring", count, bench, NULL);
}
