/* ranks.h - Runs a function in several processes, the ranks of a communicator: on the CPU any number of them, on
   GPUs one each. The process that calls ranks_run must not have opened the device. */
#pragma once
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include "../../kernels/comm.h"
#include "../test.h"

enum { RANKS_MAX = 8, RANKS_SECONDS = 120 };

static struct Ranks {                   /* shared memory of all processes */
    _Atomic int has_id;
    char id[COMM_ID_BYTES], text[RANKS_MAX][4096];
} *ranks;
static int ranks_status[RANKS_MAX];     /* from waitpid */

/* GPUs, counted in a child, since CUDA does not survive a fork; 0 on the CPU. */
static inline int ranks_devices(void) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(device_count());
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* pairs[r]: the sockets of rank 0 and rank r. Closes all others, which would stay open when a rank dies. */
static inline void ranks_open(int rank, int size, int pairs[][2]) {
    static int sockets[RANKS_MAX];
    for (int r = 1; r < size; r++) {
        sockets[rank ? 0 : r] = pairs[rank ? rank : r][rank != 0];
        for (int end = 0; end < 2; end++) if (end != (rank != 0) || (rank && r != rank)) close(pairs[r][end]);
    }
    device_open((DeviceOptions){ .threads = 1, .index = rank });
    if (rank == 0) {
        comm_make_id(ranks->id);
        ranks->has_id = 1;
    }
    while (!ranks->has_id) usleep(1000);
    comm_open(rank, size, ranks->id, sockets);
}

/* Runs f(argument) in size processes; each ends with exit code 0, 1 after a failed EXPECT, or as f ends it. */
static inline void ranks_run(int size, void (*f)(void *), void *argument) {
    pid_t child[RANKS_MAX];
    int pairs[RANKS_MAX][2];
    if (!ranks) ranks = mmap(NULL, sizeof *ranks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks == MAP_FAILED) fail("no shared memory");
    memset(ranks, 0, sizeof *ranks);
    for (int r = 1; r < size; r++) if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[r])) fail("no sockets");
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        child[r] = fork();
        if (child[r]) continue;
        alarm(RANKS_SECONDS);
        test_errors = 0;
        ranks_open(r, size, pairs);
        f(argument);
        comm_close();
        fflush(NULL);
        _exit(test_errors != 0);
    }
    for (int r = 1; r < size; r++) close(pairs[r][0]), close(pairs[r][1]);
    for (int r = 0; r < size; r++) waitpid(child[r], &ranks_status[r], 0);
}

/* As many ranks as tests run on, at most 4: on GPUs one each, 0 without NCCL. */
static inline int ranks_available(void) {
    const int count = !strcmp(backend_name, "cpu") ? 4 : comm_refuse() ? 0 : ranks_devices();
    return count < 4 ? count : 4;
}

/* Runs f on size ranks, which must end with exit code 0. */
static inline void ranks_expect(int size, void (*f)(void *)) {
    ranks_run(size, f, NULL);
    for (int r = 0; r < size; r++)
        EXPECT(ranks_status[r] == 0, "rank %d of %d ended with status %#x", r, size, ranks_status[r]);
}

/* On 2 to max ranks, on GPUs on 2 and max: NCCL starts in seconds. A reason to skip the test where there are fewer. */
static inline void ranks_each(int max, void (*f)(void *)) {
    if (max < 2) test_skip_reason = comm_refuse() ? "built without NCCL" : "fewer than two GPUs";
    const int step = strcmp(backend_name, "cpu") && max > 2 ? max - 2 : 1;
    for (int size = 2; size <= max && !test_skip_reason; size += step) ranks_expect(size, f);
}

/* Runs a benchmark in count processes; 0: one per GPU, on the CPU 2. Returns the exit code. Fails where they cannot
   run. */
static inline int ranks_bench(const char *name, int64_t count, void (*f)(void *), void *argument) {
    REQUIRE(!comm_refuse(), "%s: %s", name, comm_refuse());
    const int on_cpu = !strcmp(backend_name, "cpu"), gpus = ranks_devices();
    const int size = count ? (int)count : on_cpu ? 2 : gpus < RANKS_MAX ? gpus : RANKS_MAX;
    int failed = 0;
    REQUIRE(on_cpu || (size > 1 && size <= gpus), "%s: %d GPUs are visible, want %d", name, gpus, size > 1 ? size : 2);
    ranks_run(size, f, argument);
    for (int r = 0; r < size; r++) failed |= ranks_status[r] != 0;
    return failed;
}
