/* comm_nccl.c - Collectives over NCCL, on a stream of their own, ordered against compute by events. The
   communicator is non-blocking: a call that waits for another rank returns ncclInProgress, so that the other thread,
   the watchdog, can abort it. API: docs.nvidia.com/deeplearning/nccl/user-guide. */
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../comm_backend.h"
#include "../device.h"
#include "cuda.h"

/* Operations and waits whose events are kept. That of an older operation has been recorded again by a later one: who
   waits for it waits longer than needed. Two steps of ZeRO-1 with 48 blocks issue about 200, of ring attention over 8
   ranks 2 L B (N - 1) 3: 500 of 12 blocks. */
enum { EVENTS = 2048 };

static ncclComm_t comm;
static pthread_mutex_t comm_lock = PTHREAD_MUTEX_INITIALIZER;  /* held during each call of NCCL with comm */
static int device;
static cudaStream_t stream;
static cudaEvent_t ready[EVENTS], done[EVENTS];                /* by operation: compute before it, its end */
static cudaEvent_t exchange_start;                             /* one for all: a wait takes the last record before it */
static _Atomic int64_t issued, enqueued;                       /* enqueued: done has been recorded */
static cudaEvent_t wait_begin[EVENTS], wait_end[EVENTS];       /* by call of comm_wait */
static int64_t waits, waits_measured;
static double waited_ms, open_deadline;                        /* 0 = none: a watchdog decides how long is too long */

/* ---- Errors */

static const struct { const char *in_text, *hint; } hints[] = {
    { "duplicate gpu",      "two ranks use the same GPU: start one rank per GPU" },
    { "nccl version",       "all ranks need the same version of NCCL" },
    { "ibv_",               "NCCL_IB_DISABLE=1 goes without InfiniBand, NCCL_IB_HCA selects an adapter" },
    { "net/ib",             "NCCL_IB_DISABLE=1 goes without InfiniBand, NCCL_IB_HCA selects an adapter" },
    { "shm",                "a container needs more shared memory: docker run --shm-size=1g, or --ipc=host" },
    { "shared memory",      "a container needs more shared memory: docker run --shm-size=1g, or --ipc=host" },
    { "no space left",      "a container needs more shared memory: docker run --shm-size=1g, or --ipc=host" },
    { "socket",             "NCCL_SOCKET_IFNAME=NAME selects the network interface, a firewall may block it" },
    { "connect",            "NCCL_SOCKET_IFNAME=NAME selects the network interface, a firewall may block it" },
    { "",                   "NCCL_DEBUG=INFO prints what NCCL does" },
};

/* "nccl: WHAT: unhandled system error: TEXT; HINT (rank 1 of 2 on HOST, NVIDIA H200 0000:17:00.0, NCCL 2.28.9)" */
static const char *describe(char text[2048], const char *what, ncclResult_t result) {
    const char *last = result == ncclInProgress ? NULL : ncclGetLastError(NULL);
    int version = 0, row = 0;
    char detail[1024] = "";
    if (last) snprintf(detail, sizeof detail, "%s", last);
    detail[strcspn(detail, "\n")] = 0;
    while (!strcasestr(detail, hints[row].in_text)) row++;
    ncclGetVersion(&version);
    snprintf(text, 2048, "nccl: %s: %s%s%s; %s (%s, NCCL %d.%d.%d)", what,
             result == ncclInProgress ? "no answer of all ranks in time" : ncclGetErrorString(result),
             *detail ? ": " : "", detail, hints[row].hint, comm_where(), version / 10000, version / 100 % 100,
             version % 100);
    return text;
}

static void check(const char *what, ncclResult_t result) {
    char text[2048];
    if (result != ncclSuccess) fail("%s", describe(text, what, result));
}

const int comm_uses_sockets = 0;

const char *comm_refuse(void) {
    static char text[200];
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess && version >= NCCL_VERSION_CODE) return NULL;
    snprintf(text, sizeof text, "this program was built with NCCL %d.%d.%d and loads the older %d.%d.%d: `ldd` shows "
             "which file; remove it, or build with it (NCCL_HOME)", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
             version / 10000, version / 100 % 100, version % 100);
    return text;
}

/* ---- Calls of the communicator, from the main thread. After comm_abort they do not return. */

static void lock(void) {
    pthread_mutex_lock(&comm_lock);
    if (!cuda_aborted) return;
    pthread_mutex_unlock(&comm_lock);
    for (;;) pause();
}

/* The result of a call that has returned result: NCCL enqueues a kernel, or connects ranks, in a thread of its own. */
static ncclResult_t settle(ncclResult_t result) {
    for (int polls = 0; result == ncclInProgress; polls++) {
        if (open_deadline > 0 && comm_now() > open_deadline) break;
        if (polls < 1000) sched_yield(); else usleep(500);
        ncclResult_t state = ncclInProgress;
        lock();
        result = ncclCommGetAsyncError(comm, &state);
        pthread_mutex_unlock(&comm_lock);
        if (result == ncclSuccess) result = state;
    }
    return result;
}

static ncclDataType_t nccl_type(DType dtype) {
    return dtype == F32 ? ncclFloat32 : dtype == F64 ? ncclFloat64 : dtype == BF16 ? ncclBfloat16 : ncclInt32;
}

static void unlock(const char *what, ncclResult_t result) {
    pthread_mutex_unlock(&comm_lock);
    check(what, settle(result));
}

/* The stream waits for the compute issued so far; the lock is held until unlock. */
static void begin(void) {
    const int64_t id = issued + 1;
    CUDA(cudaEventRecord(ready[id % EVENTS], cuda_stream));
    CUDA(cudaStreamWaitEvent(stream, ready[id % EVENTS], 0));
    issued = id;
    lock();
}

static CommOp finish(void) {
    const int64_t id = issued;
    CUDA(cudaEventRecord(done[id % EVENTS], stream));
    enqueued = id;
    return (CommOp){ id };
}

/* ---- Windows (NCCL 2.28): memory that the GPUs of one host copy to each other by copy engines. NCCL's kernels would
   take SMs that the GEMMs beside them wait for. Where GPUs have no access to each other NCCL uses kernels here, too. */

enum { WINDOWS = 8 };
/* Tensors of more bytes, as the gradients of a million positions (3 GiB at 124M), are reduced by NCCL in place: copies
   need a buffer of as many. */
enum { COPIED_MAX = 512 << 20 };
typedef struct { void *memory; size_t bytes; void *handle; } Window;
static Window windows[WINDOWS], incoming;       /* incoming: slices of all ranks before they are added */
static int has_windows;

#ifdef NCCL_CTA_POLICY_ZERO
static void prefer_copies(ncclConfig_t *config) { config->CTAPolicy = NCCL_CTA_POLICY_ZERO; }

/* Whether NCCL sees one host: the same NCCL_HOSTID, or name, of the same start of the system. NCCL_WIN_ENABLE=0, on any
   rank, goes without windows. */
static int is_one_host(void) {
    enum { BYTES = 64, HALF = BYTES / 2 };
    const char *id = getenv("NCCL_HOSTID"), *enable = getenv("NCCL_WIN_ENABLE");
    const size_t bytes = (size_t)comm_size * BYTES;
    char *all = calloc(1, bytes), *own = all + comm_rank * BYTES;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");
    REQUIRE(all, "out of memory: names of %d hosts", comm_size);
    if (id) snprintf(own, HALF, "%s", id); else gethostname(own, HALF - 1);
    if (boot && !fgets(own + HALF, HALF, boot)) own[HALF] = 0;
    if (boot) fclose(boot);
    if (enable && !strcmp(enable, "0")) snprintf(own, BYTES, "rank %d", comm_rank);
    Tensor t = tensor_of(device_alloc(bytes, "names of hosts"), I32, 1, (int64_t)bytes / 4);
    device_upload(t.data, all, bytes);
    comm_wait(comm_all_gather(t));
    device_download(all, t.data, bytes);
    device_free(t.data);
    int same = 1;
    for (int r = 1; r < comm_size; r++) same &= !memcmp(all, all + r * BYTES, BYTES);
    free(all);
    return same;
}

/* On all ranks. The allocation before fails with a message where memory is short. */
static void open_window(Window *w, size_t bytes, const char *what) {
    device_free(device_alloc(bytes, what));
    check(what, ncclMemAlloc(&w->memory, bytes));
    w->bytes = bytes;
    lock();
    const ncclResult_t result = ncclCommWindowRegister(comm, w->memory, bytes, (ncclWindow_t *)&w->handle,
                                                       NCCL_WIN_COLL_SYMMETRIC);
    unlock(what, result == ncclSuccess ? ncclInProgress : result);
    device_zero(w->memory, bytes);
}

static void close_window(Window *w) {
    CUDA(cudaStreamSynchronize(stream));
    device_wait();
    lock();
    unlock("ncclCommWindowDeregister", comm ? ncclCommWindowDeregister(comm, w->handle) : ncclSuccess);
    check("ncclMemFree", ncclMemFree(w->memory));
    *w = (Window){0};
}

size_t comm_scratch_bytes(size_t bytes) {
    if (comm && !has_windows) return 0;
    return bytes <= COPIED_MAX ? bytes : 0;
}

static ncclResult_t send_slices(Tensor t, size_t part) {
    return ncclAlltoAll(t.data, incoming.memory, part, nccl_type(t.dtype), comm, stream);
}
#else
static void prefer_copies(ncclConfig_t *config)                          { (void)config; }
static int  is_one_host(void)                                            { return 0; }
static void open_window(Window *w, size_t bytes, const char *what)       { (void)w; (void)bytes; (void)what; }
static void close_window(Window *w)                                      { (void)w; }
size_t comm_scratch_bytes(size_t bytes)                                 { (void)bytes; return 0; }
static ncclResult_t send_slices(Tensor t, size_t part) { (void)t; (void)part; return ncclInvalidUsage; }
#endif

static Window *window_of(const void *memory) {
    for (Window *w = windows; w < windows + WINDOWS; w++)
        if ((uintptr_t)memory - (uintptr_t)w->memory < w->bytes) return w;
    return NULL;
}

void *comm_alloc(size_t bytes, const char *what) {
    for (Window *w = windows; has_windows && bytes && w < windows + WINDOWS; w++)
        if (!w->bytes) {
            open_window(w, bytes, what);
            return w->memory;
        }
    return device_alloc(bytes, what);
}

void comm_free(void *memory) {
    Window *w = window_of(memory);
    if (w) close_window(w); else device_free(memory);
}

void comm_reserve(size_t bytes) {
    bytes = comm_scratch_bytes(bytes);
    if (!has_windows || incoming.bytes >= bytes) return;
    if (incoming.bytes) close_window(&incoming);
    open_window(&incoming, bytes, "the gradients of other ranks");
}

/* ---- Operations */

CommOp comm_start(CommKind kind, Tensor t) {
    const ncclDataType_t type = nccl_type(t.dtype);
    const size_t count = (size_t)tensor_count(t), part = count / (size_t)comm_size;
    char *slice = (char *)t.data + part * (size_t)comm_rank * dtype_bytes(t.dtype);
    REQUIRE(kind != ALL_REDUCE || !window_of(t.data), "all-reduce: of memory of comm_alloc, want that of device_alloc");
    const int copies = kind == REDUCE_SCATTER && t.dtype == F32 && window_of(t.data) && tensor_bytes(t) <= COPIED_MAX;
    if (copies) comm_reserve(tensor_bytes(t));
    begin();
    unlock(comm_kind_name(kind),
        copies                 ? send_slices(t, part) :
        kind == ALL_REDUCE     ? ncclAllReduce    (t.data, t.data, count, type, ncclSum, comm, stream) :
        kind == REDUCE_SCATTER ? ncclReduceScatter(t.data, slice, part, type, ncclSum, comm, stream) :
                                 ncclAllGather    (slice, t.data, part, type, comm, stream));
    if (copies) sum_parts((float *)slice, incoming.memory, (int64_t)part, comm_size, stream);
    return finish();
}

/* In a group all transfers are one kernel; an error in one shows in ncclGroupEnd, too. The compute issued next waits
   for an event right before that kernel, which so gets its SMs first: attention's persistent blocks fill all of them
   and leave none until they end. */
CommOp comm_start_exchange(const CommTransfer *transfers, int count) {
    begin();
    CUDA(cudaEventRecord(exchange_start, stream));
    ncclGroupStart();
    for (int i = 0; i < count; i++) {
        const CommTransfer *t = &transfers[i];
        const size_t sent = (size_t)tensor_count(t->send), received = (size_t)tensor_count(t->receive);
        if (sent)     ncclSend(t->send.data, sent, nccl_type(t->send.dtype), t->to, comm, stream);
        if (received) ncclRecv(t->receive.data, received, nccl_type(t->receive.dtype), t->from, comm, stream);
    }
    unlock(comm_kind_name(EXCHANGE), ncclGroupEnd());
    CUDA(cudaStreamWaitEvent(cuda_stream, exchange_start, 0));
    return finish();
}

double comm_waited_ms(void) {
    for (; waits_measured < waits; waits_measured++) {
        const int64_t slot = waits_measured % EVENTS;
        float ms = 0;
        if (cudaEventQuery(wait_end[slot]) != cudaSuccess) {
            cudaGetLastError();             /* "not ready" must not look like the error of a launch */
            break;
        }
        CUDA(cudaEventElapsedTime(&ms, wait_begin[slot], wait_end[slot]));
        waited_ms += (double)ms;
    }
    return waited_ms;
}

void comm_wait(CommOp op) {
    if (!op.id) return;
    while (cuda_aborted) pause();
    if (waits - waits_measured == EVENTS) comm_waited_ms();
    if (waits - waits_measured == EVENTS) waits_measured++;       /* far behind: one wait is not measured */
    const int64_t slot = waits++ % EVENTS;
    CUDA(cudaEventRecord(wait_begin[slot], cuda_stream));
    CUDA(cudaStreamWaitEvent(cuda_stream, done[op.id % EVENTS], 0));
    CUDA(cudaEventRecord(wait_end[slot], cuda_stream));
}

/* ---- Opening and closing */

void comm_make_id(char id[COMM_ID_BYTES]) {
    _Static_assert(sizeof(ncclUniqueId) == COMM_ID_BYTES, "ncclUniqueId");
    check("ncclGetUniqueId", ncclGetUniqueId((ncclUniqueId *)(void *)id));
}

/* NCCL connects GPUs at their first operation: done here, where an error is expected and has a deadline. */
static void first_operation(void) {
    float sum = 1;
    Tensor t = tensor_of(device_alloc(sizeof sum, "NCCL's first operation"), F32, 1, 1);
    device_upload(t.data, &sum, sizeof sum);
    const CommOp op = comm_all_reduce(t);
    while (cudaEventQuery(done[op.id % EVENTS]) == cudaErrorNotReady) {
        if (comm_error()) fail("%s", comm_error());
        check("the first all-reduce", comm_now() > open_deadline ? ncclInProgress : ncclSuccess);
        usleep(500);
    }
    cudaGetLastError();
    comm_wait(op);
    device_download(&sum, t.data, sizeof sum);
    REQUIRE(sum == (float)comm_size, "nccl: the first all-reduce gives %g, want %d; NCCL_P2P_DISABLE=1 goes without "
            "direct access between GPUs (%s)", (double)sum, comm_size, comm_where());
    device_free(t.data);
}

void comm_connect(const char id[COMM_ID_BYTES], const int *sockets) {
    ncclUniqueId unique;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int lowest, highest;
    (void)sockets;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
    CUDA(cudaEventCreateWithFlags(&exchange_start, cudaEventDisableTiming));
    for (int i = 0; i < EVENTS; i++) {
        CUDA(cudaEventCreateWithFlags(&ready[i], cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
        CUDA(cudaEventCreate(&wait_begin[i]));
        CUDA(cudaEventCreate(&wait_end[i]));
    }
    config.blocking = 0;
    prefer_copies(&config);
    memcpy(&unique, id, sizeof unique);
    open_deadline = comm_now() + COMM_OPEN_SECONDS;
    lock();
    unlock("connecting the ranks", ncclCommInitRankConfig(&comm, comm_size, unique, comm_rank, &config));
    first_operation();
    has_windows = is_one_host();
    open_deadline = 0;
}

void comm_close(void) {
    if (!comm) return;
    open_deadline = comm_now() + COMM_OPEN_SECONDS;
    CUDA(cudaStreamSynchronize(stream));
    if (incoming.bytes) close_window(&incoming);
    lock();
    unlock("closing", ncclCommFinalize(comm));
    lock();
    ncclCommDestroy(comm);
    comm = NULL;
    pthread_mutex_unlock(&comm_lock);
}

/* ---- From any thread */

int comm_pending(double *seconds) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int64_t completed, waiting;      /* waiting: the operation that has waited for other ranks since .. */
    static double since;
    *seconds = 0;
    if (!stream) return 0;
    pthread_mutex_lock(&mutex);
    const int64_t last = issued, last_enqueued = enqueued;
    cudaSetDevice(device);                  /* a property of the thread: CUDA must not open GPU 0 */
    if (completed < last - EVENTS) completed = last - EVENTS;
    while (completed < last_enqueued && cudaEventQuery(done[(completed + 1) % EVENTS]) == cudaSuccess) completed++;
    const int64_t first = completed + 1;
    if (first <= last && waiting != first && cudaEventQuery(ready[first % EVENTS]) == cudaSuccess) {
        waiting = first;
        since = comm_now();
    }
    if (first <= last && waiting == first) *seconds = comm_now() - since;
    pthread_mutex_unlock(&mutex);
    cudaGetLastError();
    return (int)(last - completed);
}

/* The main thread may hold the lock for long: in a launch that waits for the GPU. */
const char *comm_error(void) {
    static char text[2048];
    if (pthread_mutex_trylock(&comm_lock)) return NULL;
    ncclResult_t state = ncclSuccess;
    if (comm && !*text) {
        const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
        if (result != ncclSuccess) state = result;
        if (state != ncclSuccess && state != ncclInProgress) describe(text, "an operation under way", state);
    }
    pthread_mutex_unlock(&comm_lock);
    return *text ? text : NULL;
}

/* Where the lock is not free within a second, the end of the process ends the kernels. It ends copies, too: the stream
   waits for a flag of another rank, and ncclCommAbort would wait for the stream. */
void comm_abort(void) {
    struct timespec limit;
    if (comm_size == 1) return;
    cuda_aborted = 1;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec++;
    if (pthread_mutex_timedlock(&comm_lock, &limit)) return;
    if (comm && !has_windows) ncclCommAbort(comm);
    comm = NULL;
    pthread_mutex_unlock(&comm_lock);
}
