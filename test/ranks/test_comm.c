/* test_comm.c - Collectives of the linked backend over 2, 3 and 4 ranks, on GPUs over as many as there are: results,
   order, overlap, and faults. */
#include "ranks.h"
#include <pthread.h>
#include "../../kernels/comm_backend.h"
#include "../../llmc/ranks/ranks.h"

static int on_cpu, ranks_max;

/* ---- Data of a rank. WHOLE: small integers, whose sums are exact in any order; FRACTION: sums are rounded. */

enum Data { WHOLE, FRACTION };

static double element(enum Data data, int rank, int64_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + 12345u;
    x = (x ^ x >> 15) * 2246822519u;
    x ^= x >> 13;
    return data == WHOLE ? (double)(x % 2001) - 1000 : (float)((double)x / 4294967296.0 - 0.5);
}

static double value(const void *host, DType dtype, int64_t i) {
    return dtype == F32 ? (double)((const float *)host)[i] : ((const double *)host)[i];
}

/* A tensor on the device with the data of this rank, in memory of device_alloc or comm_alloc. */
typedef void *Alloc(size_t bytes, const char *what);
static Alloc *const allocs[] = { device_alloc, comm_alloc };

static Tensor make_in(Alloc *alloc, DType dtype, int64_t count, enum Data data) {
    Tensor t = tensor_of(alloc((size_t)count * dtype_bytes(dtype), "test"), dtype, 1, count);
    void *host = new_array(count, dtype_bytes(dtype));
    for (int64_t i = 0; i < count; i++)
        if (dtype == F32) ((float *)host)[i] = (float)element(data, comm_rank, i);
        else              ((double *)host)[i] = element(data, comm_rank, i);
    device_upload(t.data, host, tensor_bytes(t));
    return t;
}

static Tensor make(DType dtype, int64_t count, enum Data data) { return make_in(device_alloc, dtype, count, data); }

/* Row i of t, of count rows. */
static Tensor row_of(Tensor t, int64_t count, int64_t i) {
    return tensor_row_range(tensor_of(t.data, t.dtype, 2, count, tensor_count(t) / count), i, 1);
}

static void *fetch(Tensor t) {
    void *host = new_array(tensor_count(t), dtype_bytes(t.dtype));
    device_download(host, t.data, tensor_bytes(t));
    return host;
}

/* Elements first .. last - 1 of t are the sums over the ranks: in rank order on the CPU, in any order otherwise. */
static void expect_sums(const char *what, Tensor t, enum Data data, int64_t first, int64_t last) {
    void *host = fetch(t);
    int64_t wrong = 0, where = 0;
    for (int64_t i = first; i < last; i++) {
        double sum = 0, size = 0, got = value(host, t.dtype, i);
        float in_order = 0;
        for (int r = 0; r < comm_size; r++) {
            sum += element(data, r, i);
            in_order += (float)element(data, r, i);
            size += fabs(element(data, r, i));
        }
        if (on_cpu && t.dtype == F32) sum = (double)in_order;
        const double rounding = data == WHOLE || on_cpu ? 0 : t.dtype == F32 ? 0x1p-24 : 0x1p-53;
        if (!(fabs(got - sum) <= (comm_size - 1) * size * rounding) && !wrong++) where = i;
    }
    EXPECT(!wrong, "%s of %lld %s, rank %d of %d: %lld of %lld wrong, the first is element %lld, %g", what,
           (long long)tensor_count(t), dtype_name(t.dtype), comm_rank, comm_size, (long long)wrong,
           (long long)(last - first), (long long)where, value(host, t.dtype, where));
}

/* ---- Tests on 2, 3 and 4 ranks, if there are as many */

static void (*of_a_rank)(void);
static void reserved_memory_is_enough(void), early_writes_are_lost(void);

static void call_of_a_rank(void *unused) { (void)unused; of_a_rank(); }

static void on_ranks(void) {
    if (of_a_rank == reserved_memory_is_enough && !comm_scratch_bytes(1))
        test_skip_reason = "this backend reserves nothing";
    if (of_a_rank == early_writes_are_lost && !on_cpu) test_skip_reason = "undefined on a GPU";
    ranks_each(ranks_max, call_of_a_rank);
}

static void run_on_ranks(const char *name, void (*test)(void)) {
    of_a_rank = test;
    test_run(name, on_ranks);
}
#define TEST_ON_RANKS(name) TEST_RUN_BY(run_on_ranks, name)

/* ---- Results */

static const int64_t counts[] = { 0, 1, 2, 7, 63, 64, 65, 1000, 4099, 300007 };

/* Twice, with the same bits: every slice of an all-reduce, the local slice of a reduce-scatter. An empty tensor is no
   work. */
TEST_ON_RANKS(all_reduce_and_reduce_scatter) {
    for (int i = 0; i < COUNT(counts); i++)
        for (int d = 0; d < 2; d++)
            for (enum Data data = WHOLE; data <= FRACTION; data++) {
                const DType dtype = d ? F64 : F32;
                const int64_t part = counts[i], n = part * comm_size;
                Tensor t = make(dtype, part, data), again = make(dtype, part, data), s[COUNT(allocs)];
                EXPECT(!comm_all_reduce(t).id == !part, "an all-reduce of %lld", (long long)part);
                for (int a = 0; a < COUNT(allocs); a++) {
                    s[a] = make_in(allocs[a], dtype, n, data);
                    EXPECT(!comm_reduce_scatter(s[a]).id == !part, "a reduce-scatter of %lld", (long long)n);
                }
                comm_wait(comm_all_reduce(again));
                expect_sums("all-reduce", t, data, 0, part);
                for (int a = 0; a < COUNT(allocs); a++) {
                    expect_sums("reduce-scatter", s[a], data, part * comm_rank, part * (comm_rank + 1));
                    comm_free(s[a].data);
                }
                EXPECT(!memcmp(fetch(t), fetch(again), tensor_bytes(t)), "two sums of %lld differ in bits",
                       (long long)part);
            }
}

/* Bytes of a rank's slice and element; bytes of the other slices must be overwritten. */
static unsigned char byte_of(int rank, size_t i) { return (unsigned char)(31 * (unsigned)rank + 7 * i + i / 251); }

TEST_ON_RANKS(all_gather_of_every_type) {
    for (DType dtype = F32; dtype <= F64; dtype++)
        for (int i = 0; i < COUNT(counts); i++) {
            const size_t slice = (size_t)counts[i] * dtype_bytes(dtype), all = slice * (size_t)comm_size;
            unsigned char *host = new_array((int64_t)all, 1);
            memset(host, 0xee, all);
            for (size_t b = 0; b < slice; b++) host[slice * (size_t)comm_rank + b] = byte_of(comm_rank, b);
            Tensor t = tensor_of(allocs[i % 2](all, "test"), dtype, 2, comm_size, counts[i]);
            device_upload(t.data, host, all);
            const CommOp op = comm_all_gather(t);
            EXPECT(!op.id == !all, "an all-gather of %zu bytes", all);
            comm_wait(op);
            device_download(host, t.data, all);
            size_t wrong = 0;
            for (size_t b = 0; b < all; b++) wrong += host[b] != byte_of((int)(b / slice), b % slice);
            EXPECT(!wrong, "all-gather of %lld %s: %zu bytes wrong", (long long)counts[i], dtype_name(dtype), wrong);
            comm_free(t.data);
        }
}

static void exchange_with_itself(void *unused) {
    (void)unused;
    Tensor t = tensor_of(new_device_memory(8), F32, 1, 2);
    comm_exchange(&(CommTransfer){ t, comm_rank, t, (comm_rank + 1) % comm_size }, 1);
}

TEST_ON_RANKS(bytes_are_copied_from_rank_0) {
    for (size_t size = 1; size <= 9; size++) {
        unsigned char bytes[16];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = byte_of(comm_rank, i);
        ranks_copy_from_first(bytes, size);
        for (size_t i = 0; i < sizeof bytes; i++)
            EXPECT(bytes[i] == byte_of(i < size ? 0 : comm_rank, i), "byte %zu of %zu", i, size);
    }
}

/* Two transfers each, to both sides, between all-reduces; waits are late and in another order. Other sizes, also of
   nothing: test_ring. */
TEST_ON_RANKS(exchanges_keep_the_order) {
    enum { N = 40, PART = 1000 };
    const int to = (comm_rank + 1) % comm_size, from = (comm_rank + comm_size - 1) % comm_size;
    CommOp op[N], last = {0};
    Tensor sums = make(F32, N * PART, WHOLE), sent = make(F32, N * PART, WHOLE);
    Tensor got[2] = { make(F32, N * PART, WHOLE), make(F32, N * PART, WHOLE) };
    for (int i = 0; i < N; i++) {
        const Tensor part = row_of(sent, N, i);
        op[i] = comm_exchange((CommTransfer[]){ { part, to, row_of(got[0], N, i), from },
                                                { part, from, row_of(got[1], N, i), to } }, 2);
        last = comm_all_reduce(row_of(sums, N, i));
    }
    comm_wait(last);
    for (int i = N - 1; i >= 0; i--) comm_wait(op[i]);
    expect_sums("all-reduce between exchanges", sums, WHOLE, 0, N * PART);
    for (int d = 0; d < 2; d++) {
        float *host = fetch(got[d]);
        int64_t wrong = 0;
        for (int64_t i = 0; i < N * PART; i++) wrong += host[i] != (float)element(WHOLE, d ? to : from, i);
        EXPECT(!wrong, "%lld of %d elements of rank %d wrong", (long long)wrong, N * PART, d ? to : from);
    }
}

static void scatter_part(void *unused) {
    (void)unused;
    comm_reduce_scatter(tensor_of(new_device_memory(4 * 13), F32, 1, 13));        /* 13: no multiple of 2, 3, 4 */
}

/* In one rank alone. */
TEST_ON_RANKS(wrong_arguments_of_a_rank_fail) {
    char message[FAIL_LENGTH] = "";
    EXPECT(fails(exchange_with_itself, NULL, message) && strstr(message, "want others of 0"), "%s", message);
    EXPECT(fails(scatter_part, NULL, message) && strstr(message, "reduce-scatter: (13) is 13 elements, want a multiple "
           "of the "), "%s", message);
}

/* ---- Order. An operation changes a range of a larger tensor, not its neighbours. */

/* More operations than there are events; waits are late, the last operation first. */
TEST_ON_RANKS(many_operations_under_way) {
    enum { N = 2100, PART = 37 };
    CommOp op[N];
    double seconds;
    Tensor whole = make(F32, N * PART, WHOLE);
    for (int i = 0; i < N; i++) op[i] = comm_all_reduce(row_of(whole, N, i));
    for (int i = 1; i < N; i++) EXPECT(op[i].id > op[i - 1].id, "operation %d", i);
    comm_wait(op[N - 1]);
    for (int i = 0; i < N; i++) comm_wait(op[i]);
    expect_sums("all-reduce of parts", whole, WHOLE, 0, N * PART);
    EXPECT(comm_pending(&seconds) == 0 && seconds == 0, "%d pending, %g s", comm_pending(&seconds), seconds);

    whole = make(F64, 300, WHOLE);
    comm_wait(comm_all_reduce(row_of(whole, 3, 1)));
    expect_sums("all-reduce of the middle", whole, WHOLE, 100, 200);
    double *host = fetch(whole);
    for (int i = 0; i < 300; i += i == 99 ? 101 : 1)
        EXPECT(host[i] == element(WHOLE, comm_rank, i), "element %d changed", i);
}

static void *longest_wait(void *longest) {
    for (double seconds; ; usleep(5000)) {
        comm_pending(&seconds);
        if (seconds > *(_Atomic double *)longest) *(_Atomic double *)longest = seconds;
    }
    return NULL;
}

/* Each rank in turn is late, before the first operation and between the second and the wait. */
TEST_ON_RANKS(a_delayed_rank_changes_nothing) {
    static _Atomic double longest;
    pthread_t thread;
    pthread_create(&thread, NULL, longest_wait, &longest);
    Tensor first = make_in(comm_alloc, F32, 5000 * comm_size, WHOLE);
    comm_wait(comm_reduce_scatter(first));              /* allocates, which synchronizes the ranks */
    for (int late = 0; late < comm_size; late++) {
        Tensor a = make(F32, 5000, WHOLE), b = make_in(allocs[late % 2], F32, 5000 * comm_size, WHOLE);
        if (comm_rank == late) usleep(100000);
        CommOp sum = comm_all_reduce(a), scatter = comm_reduce_scatter(b);
        if (comm_rank == late) usleep(50000);
        comm_wait(sum);
        comm_wait(scatter);
        comm_wait(comm_all_gather(b));
        expect_sums("all-reduce", a, WHOLE, 0, 5000);
        expect_sums("reduce-scatter and all-gather", b, WHOLE, 0, 5000 * comm_size);
        comm_free(b.data);
    }
    /* a rank is late by 100 to 150 ms, and the others wait for it; a busy machine makes that longer */
    EXPECT(comm_waited_ms() > 50 * (comm_size - 1), "%g ms", comm_waited_ms());
    EXPECT(longest > 0.05 && longest < 10, "%g s", (double)longest);
}

/* A reduce-scatter in memory of comm_alloc allocates nothing after comm_reserve. The second tensor is larger than the
   reserve, if the backend has one. */
TEST_ON_RANKS(reserved_memory_is_enough) {
    int64_t max = 1 << 20;
    while (comm_scratch_bytes((size_t)max * 2)) max *= 2;
    const int64_t parts[] = { 8 << 20, max / (int64_t)sizeof(float) / comm_size + 4096 };
    for (int i = 0; i < (comm_scratch_bytes((size_t)max) ? 2 : 1); i++) {
        Tensor t = make_in(comm_alloc, F32, parts[i] * comm_size, WHOLE);
        comm_reserve(tensor_bytes(t));
        const int64_t before = device_info().free_bytes;
        comm_wait(comm_reduce_scatter(t));
        const int64_t after = device_info().free_bytes;
        EXPECT(before - after < (int64_t)tensor_bytes(t) / 2, "%lld bytes of %lld are allocated",
               (long long)(before - after), (long long)tensor_bytes(t));
        comm_wait(comm_all_gather(t));
        expect_sums("reduce-scatter and all-gather", t, WHOLE, 0, tensor_count(t));
        comm_free(t.data);
    }
}

/* As the gradients of blocks: parts of one memory, of two sizes, also at odd offsets, pending at the same time,
   repeatedly, while another rank is late. */
TEST_ON_RANKS(many_reduce_scatters_under_way) {
    enum { N = 30, ROUNDS = 4 };
    const int64_t part = (on_cpu ? 1004 : 300004) * comm_size, small = 5 * comm_size;
    for (int round = 0; round < ROUNDS; round++) {
        Tensor whole = make_in(comm_alloc, F32, N * (part + small) + round, WHOLE);
        CommOp op = {0};
        for (int gathers = 0; gathers < 2; gathers++) {
            for (int i = 0; i < 2 * N; i++) {
                const int64_t first = round + i / 2 * (part + small) + i % 2 * part;
                Tensor t = tensor_of((float *)whole.data + first, F32, 1, i % 2 ? small : part);
                op = gathers ? comm_all_gather(t) : comm_reduce_scatter(t);
                if (i == N && comm_rank == round % comm_size) usleep(20000);
            }
            comm_wait(op);
        }
        expect_sums("parts of one memory", whole, WHOLE, round, tensor_count(whole));
        comm_free(whole.data);
    }
}

/* On the CPU: no result before comm_wait; a write before it does not change the operation and is overwritten. */
TEST_ON_RANKS(early_writes_are_lost) {
    Tensor t = make(F32, 100, WHOLE);
    float *x = t.data;
    double seconds = 1;
    CommOp op = comm_all_reduce(t);
    usleep(1000);
    EXPECT(comm_pending(&seconds) == 1 && seconds == 0, "%d pending, %g s", comm_pending(&seconds), seconds);
    for (int i = 0; i < 100; i++) EXPECT(x[i] == (float)element(WHOLE, comm_rank, i), "element %d came early", i);
    for (int i = 0; i < 100; i++) x[i] = 1e9f;
    comm_wait(op);
    expect_sums("all-reduce, written early", t, WHOLE, 0, 100);
    t = make(F32, 100 * comm_size, WHOLE);
    x = t.data;
    comm_wait(comm_reduce_scatter(t));
    for (int i = 0; i < 100 * comm_size; i++)
        EXPECT(i / 100 == comm_rank || x[i] == (float)element(WHOLE, comm_rank, i), "element %d of another slice is %g",
               i, (double)x[i]);
    op = comm_all_gather(t);
    const float sum = x[100 * comm_rank];
    x[100 * comm_rank] = 1e9f;
    comm_wait(op);
    EXPECT(x[100 * comm_rank] == sum, "an all-gather leaves %g, which was written early", (double)x[100 * comm_rank]);
}

/* ---- Faults. The watchdog of a rank waits for an error or half a second without progress, aborts and ends the
   process; on the CPU the call that waits for a dead rank fails. */

enum { WATCHDOG_ENDED = 42, CONTINUED = 7 };

static void *watch(void *unused) {
    double seconds = 0;
    while (!comm_error() && (comm_pending(&seconds), seconds < 0.5)) usleep(10000);
    char *text = ranks->text[comm_rank];
    snprintf(text, sizeof ranks->text[0], "%s", comm_error() ? comm_error() : "no progress");
    comm_abort();
    usleep(100000);                             /* the other thread must not continue */
    _exit(WATCHDOG_ENDED);
    return unused;
}

static void keep_message(const char *message) {
    snprintf(ranks->text[comm_rank], sizeof ranks->text[0], "%s", message);
    _exit(WATCHDOG_ENDED);
}

static int scatters;            /* the blocked operation: a reduce-scatter, or an all-reduce */

static void end_of_a_rank(void *unused) {
    (void)unused;
    pthread_t thread;
    CommOp (*operation)(Tensor) = scatters ? comm_reduce_scatter : comm_all_reduce;
    fail_hook = keep_message;
    Tensor t = make_in(allocs[scatters], F32, 1000 * comm_size, WHOLE);
    comm_wait(operation(t));
    device_wait();
    if (comm_rank == comm_size - 1) raise(SIGKILL);
    pthread_create(&thread, NULL, watch, NULL);
    for (int i = 0; i < 3; i++) comm_wait(operation(t));
    device_wait();
    _exit(CONTINUED);
}

TEST(a_rank_that_dies_is_noticed) {
    if (ranks_max < 2) { test_skip_reason = "fewer than two ranks"; return; }
    for (int size = 2; size <= ranks_max; size += scatters, scatters = !scatters) {
        const double start = comm_now();
        ranks_run(size, end_of_a_rank, NULL);
        EXPECT(WIFSIGNALED(ranks_status[size - 1]), "status %#x", ranks_status[size - 1]);
        for (int r = 0; r < size - 1; r++)
            EXPECT(WIFEXITED(ranks_status[r]) && WEXITSTATUS(ranks_status[r]) == WATCHDOG_ENDED,
                   "rank %d of %d: status %#x, %s", r, size, ranks_status[r], ranks->text[r]);
        char want[80];
        snprintf(want, sizeof want, "comm: rank %d closed its connection before %s 2", size - 1,
                 scatters ? "reduce-scatter" : "all-reduce");
        const char *text = ranks->text[0];
        EXPECT(!on_cpu || (strstr(text, want) && strstr(text, "(rank 0 of ")), "%s", text);
        EXPECT(comm_now() - start < 30, "%g s", comm_now() - start);
    }
}

/* Rank 1 issues another operation than rank 0, or expects more from an exchange than rank 0 sends. */
static void mismatch(void *is_exchange) {
    pthread_t thread;
    const int other = 1 - comm_rank;
    Tensor t = make(F32, 120, WHOLE), part = tensor_row_range(tensor_of(t.data, F32, 2, 120, 1), 0, 100 + comm_rank);
    fail_hook = keep_message;
    if (comm_rank == 1) pthread_create(&thread, NULL, watch, NULL);
    const CommTransfer transfer = { tensor_row_range(part, 0, 100), other, part, other };
    comm_wait(*(int *)is_exchange ? comm_exchange(&transfer, 1) : comm_rank ? comm_all_gather(t) : comm_all_reduce(t));
}

TEST(operations_that_do_not_match_are_named) {
    static const char *const want[] = {
        "comm: operation 1 of rank 1 is all-gather (f32: 60 sent, 120 received), that of rank 0 is all-reduce (f32: "
        "120 sent, 120 received): all ranks must issue the same operations in the same order",
        "comm: in exchange 1 rank 1 wants 101 elements of rank 0, which sends 100 to rank 1" };
    if (!on_cpu) { test_skip_reason = "NCCL does not compare operations"; return; }
    for (int is_exchange = 0; is_exchange < 2; is_exchange++) {
        ranks_run(2, mismatch, &is_exchange);
        EXPECT(!strcmp(ranks->text[0], want[is_exchange]), "%s", ranks->text[0]);
        EXPECT(strstr(ranks->text[1], "comm: rank 0 closed its connection"), "%s", ranks->text[1]);
    }
}

/* ---- One rank, behind the others, which fork */

static Tensor numbers(DType dtype, int64_t count) {
    static double memory[8];            /* never read: one rank does no work */
    return tensor_of(memory, dtype, 1, count);
}

TEST(one_rank_does_no_work) {
    double seconds = 1;
    comm_open(0, 1, NULL, NULL);
    EXPECT(comm_rank == 0 && comm_size == 1, "rank %d of %d", comm_rank, comm_size);
    EXPECT(!comm_all_reduce(numbers(F32, 3)).id && !comm_reduce_scatter(numbers(F64, 3)).id &&
           !comm_all_gather(numbers(BF16, 3)).id, "an operation is under way");
    comm_wait((CommOp){0});
    EXPECT(comm_pending(&seconds) == 0 && seconds == 0 && !comm_error() && comm_waited_ms() == 0, "%g s",
           seconds);
    comm_abort();
    comm_close();
}

TEST(wrong_arguments_fail) {
    const Tensor rows = tensor_flat(tensor_of(numbers(F32, 8).data, F32, 2, 2, 4));
    EXPECT_FAILS("all-reduce: bf16, want f32 or f64", comm_all_reduce(numbers(BF16, 4)));
    EXPECT_FAILS("reduce-scatter: i32, want f32 or f64", comm_reduce_scatter(numbers(I32, 4)));
    EXPECT_FAILS("all-reduce: the tensor (2,2) has pitch 4, want it packed",
                 comm_all_reduce(tensor_column_range(rows, 0, 2)));
    EXPECT_FAILS("comm: rank 2 of 2, want 0 .. 1", comm_open(2, 2, NULL, NULL));
}

TEST(without_nccl_it_says_what_to_install) {
    if (!comm_refuse()) { test_skip_reason = "several ranks can run"; return; }
    EXPECT_FAILS("2 ranks: this program was built without NCCL: install it", comm_open(0, 2, NULL, NULL));
}

int main(void) {
    on_cpu = !strcmp(backend_name, "cpu");
    ranks_max = ranks_available();
    return test_all();
}
