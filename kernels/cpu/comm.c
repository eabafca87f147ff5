/* comm.c - Collectives over the sockets of comm_open, through rank 0: for tests and a few processes, not for speed. An
   operation copies the tensor when it is issued and is exchanged in comm_wait, so that a missing wait and an early
   write show in the results. Sums are in rank order: the same bits in every run. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../check.h"
#include "../comm_backend.h"
#include "../device.h"

/* Sent before the data of an operation, and compared: every rank must issue the same ones. sends, receives: elements of
   this rank. to, from: the ranks of an exchange. */
typedef struct { int64_t id, sends, receives; int32_t kind, dtype, to, from; } Header;

typedef struct Operation {
    Header header;
    char  *sent;                        /* copy of the data to send */
    char  *result;                      /* destination of the received data */
    struct Operation *next;
} Operation;

static const int *peers;                /* the sockets of comm_open */
static _Atomic int peer_count;
static Operation *oldest, **newest = &oldest;
static _Atomic int64_t issued, completed;
static _Atomic double waiting_since;    /* 0 = not in comm_wait */
static double waited_seconds;
static _Atomic int aborted;

const int   comm_uses_sockets = 1;
const char *comm_refuse(void)    { return NULL; }
const char *comm_error(void)     { return NULL; }     /* comm_wait fails */
double      comm_waited_ms(void) { return 1e3 * waited_seconds; }
void        comm_make_id(char id[COMM_ID_BYTES]) { memset(id, 0, COMM_ID_BYTES); }

void *comm_alloc(size_t bytes, const char *what) { return device_alloc(bytes, what); }
void  comm_free(void *memory)                    { device_free(memory); }
size_t comm_scratch_bytes(size_t bytes)          { (void)bytes; return 0; }
void   comm_reserve(size_t bytes)                { (void)bytes; }

static void *allocate(size_t bytes, CommKind kind) {
    void *memory = malloc(bytes + 1);
    REQUIRE(memory, "out of memory: %s, %zu bytes", comm_kind_name(kind), bytes);
    return memory;
}

/* ---- Sockets */

void comm_connect(const char id[COMM_ID_BYTES], const int *sockets) {
    (void)id;
    peers = sockets;
    peer_count = comm_rank ? 1 : comm_size;             /* last: comm_abort may come from another thread */
}

static void lost(int rank, const Header *h) {
    while (aborted) pause();
    fail("comm: rank %d closed its connection before %s %lld was complete (%s)", rank,
         comm_kind_name((CommKind)h->kind), (long long)h->id, comm_where());
}

/* EAGAIN: the socket has a timeout; a watchdog decides how long is too long. */
static void put(int rank, const Header *h, const void *data, size_t bytes) {
    for (ssize_t n; bytes; data = (const char *)data + n, bytes -= (size_t)n)
        while ((n = send(peers[rank], data, bytes, MSG_NOSIGNAL)) <= 0)
            if (errno != EINTR && errno != EAGAIN) lost(rank, h);
}

static void get(int rank, const Header *h, void *data, size_t bytes) {
    for (ssize_t n; bytes; data = (char *)data + n, bytes -= (size_t)n)
        while ((n = recv(peers[rank], data, bytes, 0)) <= 0) if (!n || errno != EINTR) lost(rank, h);
}

/* ---- Operations */

static size_t bytes_of(const Header *h, int64_t count) { return (size_t)count * dtype_bytes((DType)h->dtype); }

static CommOp issue(Header header, const void *data, void *result) {
    const size_t bytes = bytes_of(&header, header.sends);
    Operation *op = allocate(sizeof *op, (CommKind)header.kind);
    char *copy = allocate(bytes, (CommKind)header.kind);
    if (bytes) memcpy(copy, data, bytes);
    header.id = ++issued;
    *op = (Operation){ header, copy, result, NULL };
    *newest = op;
    newest = &op->next;
    return (CommOp){ header.id };
}

CommOp comm_start(CommKind kind, Tensor t) {
    const int64_t count = tensor_count(t), slice = count / comm_size;
    char *local_slice = (char *)t.data + slice * comm_rank * (int64_t)dtype_bytes(t.dtype);
    const Header header = { .kind = kind, .dtype = t.dtype, .sends = kind == ALL_GATHER ? slice : count,
                            .receives = kind == REDUCE_SCATTER ? slice : count };
    return issue(header, kind == ALL_GATHER ? local_slice : t.data, kind == REDUCE_SCATTER ? local_slice : t.data);
}

/* An operation for each transfer. */
CommOp comm_start_exchange(const CommTransfer *transfers, int count) {
    CommOp last = {0};
    for (int i = 0; i < count; i++) {
        const CommTransfer *t = &transfers[i];
        last = issue((Header){ .kind = EXCHANGE, .dtype = t->send.dtype, .to = t->to, .from = t->from,
                     .sends = tensor_count(t->send), .receives = tensor_count(t->receive) }, t->send.data,
                     t->receive.data);
    }
    return last;
}

static void add(void *sum, const void *x, const Header *h) {
    if (h->dtype == F32) for (int64_t i = 0; i < h->sends; i++) ((float *)sum)[i] += ((const float *)x)[i];
    else                 for (int64_t i = 0; i < h->sends; i++) ((double *)sum)[i] += ((const double *)x)[i];
}

static void check_same(int rank, const Header *h, const Header *other) {
    if (!memcmp(h, other, sizeof *h) || (h->kind == EXCHANGE && other->kind == EXCHANGE)) return;
    fail("comm: operation %lld of rank %d is %s (%s: %lld sent, %lld received), that of rank 0 is %s (%s: %lld sent, "
         "%lld received): all ranks must issue the same operations in the same order", (long long)h->id, rank,
         comm_kind_name((CommKind)other->kind), dtype_name((DType)other->dtype), (long long)other->sends,
         (long long)other->receives, comm_kind_name((CommKind)h->kind), dtype_name((DType)h->dtype),
         (long long)h->sends, (long long)h->receives);
}

/* The operation of the rank that sends to rank r. Fails unless it has rank r and as many elements. */
static const Operation *sender_to(int r, const Operation *ops) {
    const Header *h = &ops[r].header, *sender = &ops[h->from].header;
    REQUIRE(sender->to == r && sender->sends == h->receives, "comm: in exchange %lld rank %d wants %lld elements of "
            "rank %d, which sends %lld to rank %d", (long long)h->id, r, (long long)h->receives, h->from,
            (long long)sender->sends, sender->to);
    return &ops[h->from];
}

/* Rank 0 receives the data of all ranks before it sends the first result. */
static void exchange_as_root(const Operation *op) {
    const CommKind kind = (CommKind)op->header.kind;
    Operation *ops = allocate(sizeof *ops * (size_t)comm_size, kind);
    const size_t slice = bytes_of(&op->header, op->header.receives) / (kind == ALL_GATHER ? (size_t)comm_size : 1);
    ops[0] = *op;
    for (int r = 1; r < comm_size; r++) {
        Operation *other = &ops[r];
        get(r, &op->header, &other->header, sizeof other->header);
        check_same(r, &op->header, &other->header);
        const size_t bytes = bytes_of(&other->header, other->header.sends);
        other->sent = allocate(bytes, kind);
        get(r, &op->header, other->sent, bytes);
        if (kind == ALL_REDUCE || kind == REDUCE_SCATTER) add(op->sent, other->sent, &op->header);
        if (kind == ALL_GATHER) memcpy(op->result + slice * (size_t)r, other->sent, slice);
    }
    if (kind == ALL_GATHER) memcpy(op->result, op->sent, slice);
    for (int r = 0; r < comm_size; r++) {
        const size_t bytes = bytes_of(&ops[r].header, ops[r].header.receives);
        const char *result = kind == EXCHANGE       ? sender_to(r, ops)->sent
                           : kind == ALL_GATHER     ? op->result
                           : kind == REDUCE_SCATTER ? op->sent + slice * (size_t)r : op->sent;
        if (r) put(r, &op->header, result, bytes);
        else if (result != op->result && bytes) memcpy(op->result, result, bytes);
    }
    for (int r = 1; r < comm_size; r++) free(ops[r].sent);
    free(ops);
}

static void exchange(const Operation *op) {
    const Header *h = &op->header;
    put(0, h, h, sizeof *h);
    put(0, h, op->sent, bytes_of(h, h->sends));
    get(0, h, op->result, bytes_of(h, h->receives));
}

void comm_wait(CommOp wanted) {
    if (wanted.id <= completed) return;
    const double start = comm_now();
    while (completed < wanted.id) {
        Operation *op = oldest;
        waiting_since = comm_now();
        if (comm_rank) exchange(op); else exchange_as_root(op);
        if (!(oldest = op->next)) newest = &oldest;
        free(op->sent);
        free(op);
        completed++;
    }
    waiting_since = 0;
    waited_seconds += comm_now() - start;
    while (aborted) pause();
}

int comm_pending(double *seconds) {
    const double since = waiting_since;
    *seconds = since > 0 ? comm_now() - since : 0;
    return (int)(issued - completed);
}

void comm_abort(void) {
    if (comm_size == 1) return;
    aborted = 1;
    for (int r = 0; r < peer_count; r++) shutdown(peers[r], SHUT_RDWR);
}

void comm_close(void) {
    if (comm_size == 1) return;
    comm_wait((CommOp){ issued });
    for (int r = 0; r < peer_count; r++) close(peers[r]);
    peer_count = 0;
}
