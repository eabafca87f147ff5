/* bench_comm.c - Bus bandwidth of the collectives, f32, one process per GPU (make bench-comm): what communication
   costs at least. Bus bandwidth: bytes that each rank must send, over the time; n ranks, S bytes: 2 (n-1)/n S for an
   all-reduce, (n-1)/n S for the others. On the CPU: smaller tensors, 2 ranks or --ranks N. */
#include "bench.h"
#include "../ranks/ranks.h"
#include "../../kernels/comm_backend.h"

enum { ROUNDS = 20, WARMUP = 3 };
static const int sizes_mib[] = { 1, 16, 64, 256, 1024 };
static const int gpu_batch = 10;        /* operations per measurement: starting and waiting cost little of it */

/* Seconds per operation, median of the rounds; all ranks start a round together. */
static double seconds_of(CommOp (*operation)(Tensor), Tensor t, Tensor barrier, int batch) {
    double seconds[ROUNDS];
    for (int round = -WARMUP; round < ROUNDS; round++) {
        CommOp op = {0};
        comm_wait(comm_all_reduce(barrier));
        device_wait();
        const double start = comm_now();
        for (int i = 0; i < batch; i++) op = operation(t);
        comm_wait(op);
        device_wait();
        if (round >= 0) seconds[round] = (comm_now() - start) / batch;
    }
    return median(seconds, ROUNDS);
}

static void bench(void *largest) {
    const int most = *(int *)largest, batch = device_count() ? gpu_batch : 1;
    const double share = (comm_size - 1.0) / comm_size;
    void *memory = device_alloc((size_t)most << 20, "the tensor"), *slices = comm_alloc((size_t)most << 20, "slices");
    Tensor barrier = tensor_of(device_alloc(4, "the barrier"), F32, 1, 1);
    if (!comm_rank)
        printf("%s, %d ranks; GB/s on the bus (us), f32, medians of %d rounds of %d\n\n"
               "| MiB | all-reduce | reduce-scatter | all-gather |\n| --- | --- | --- | --- |\n", device_info().name,
               comm_size, ROUNDS, batch);
    for (int i = 0; i < COUNT(sizes_mib) && sizes_mib[i] <= most; i++) {
        const double bytes = (double)sizes_mib[i] * (1 << 20);
        Tensor t = tensor_of(memory, F32, 1, (int64_t)sizes_mib[i] << 18);
        t.dim[0] = t.pitch = t.dim[0] / comm_size * comm_size;
        const double reduce = seconds_of(comm_all_reduce, t, barrier, batch);
        t.data = slices;
        device_zero(slices, tensor_bytes(t));       /* sums of sums would become infinite */
        const double scatter = seconds_of(comm_reduce_scatter, t, barrier, batch);
        device_zero(slices, tensor_bytes(t));
        const double gather = seconds_of(comm_all_gather, t, barrier, batch);
        if (!comm_rank)
            printf("| %d | %.1f (%.0f) | %.1f (%.0f) | %.1f (%.0f) |\n", sizes_mib[i], 2e-9 * share * bytes / reduce,
                   1e6 * reduce, 1e-9 * share * bytes / scatter, 1e6 * scatter, 1e-9 * share * bytes / gather,
                   1e6 * gather);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    int64_t count;
    Option options[] = {
        { .name = "ranks", .type = OPTION_INTEGER, .value = &count, .min = 2, .max = RANKS_MAX, .argument = "N",
          .help = "processes; without it one per GPU, 2 on the CPU" },
        BENCH_HELP
    };
    bench_parse("bench_comm times the collectives, one process per GPU.", options, argc, argv);
    int largest = strcmp(backend_name, "cpu") ? 1024 : 16;
    return ranks_bench("bench_comm", count, bench, &largest);
}
