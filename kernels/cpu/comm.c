/* comm.c - Collectives over TCP, through rank 0: for tests and a few processes, not for speed. An operation
   copies the tensor when it is issued and is exchanged in comm_wait, so that a missing wait and an early write show in
   the results. Sums are in rank order: the same bits in every run. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../check.h"
#include "../comm_backend.h"
#include "../device.h"

enum { HELLO_SECONDS = 2, GRACE_SECONDS = 5 };

/* Sent before the data of an operation, and compared: every rank must issue the same ones. to, from, receives: of an
   exchange, whose count is what it sends. */
typedef struct { int64_t id, count; int32_t kind, dtype; int32_t to, from; int64_t receives; } Header;

typedef struct Operation {
    Header  header;
    Tensor  t;                          /* of an exchange: what it receives */
    char   *copy;                       /* of t, of this rank's slice for an all-gather, of what an exchange sends */
    struct Operation *next;
} Operation;

typedef struct { char token[33]; int32_t rank; } Hello;

static int listener = -1;
static int *peers;                      /* rank 0: the sockets of all ranks; others: that of rank 0 in peers[0] */
static _Atomic int peer_count;
static Operation *oldest, **newest = &oldest;
static _Atomic int64_t issued, completed;
static _Atomic double waiting_since;    /* 0 = not in comm_wait */
static double waited_seconds;
static _Atomic int aborted;
static char error_text[1024];
static const char *_Atomic error;

const char *comm_refuse(void)    { return NULL; }
const char *comm_error(void)     { return error; }
CommWaits   comm_waits(void)     { return (CommWaits){ .ms = 1e3 * waited_seconds }; }
double      comm_waited_ms(CommWaits w) { return w.ms; }

void *comm_alloc(size_t bytes, const char *what) { return device_alloc(bytes, what); }
void  comm_free(void *memory)                    { device_free(memory); }
size_t comm_scratch_bytes(size_t bytes)          { (void)bytes; return 0; }
void   comm_reserve(size_t bytes)                { (void)bytes; }

/* ---- Connections */

static void set_timeout(int fd, int option, int seconds) {
    const struct timeval t = { .tv_sec = seconds };
    setsockopt(fd, SOL_SOCKET, option, &t, sizeof t);
}

/* Headers and small tensors are sent at once. */
static void set_no_delay(int fd) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); }

/* The first address of host at which use, bind or connect, succeeds; -1 with errno. */
static int open_socket(const char *host, const char *port, int (*use)(int, const struct sockaddr *, socklen_t)) {
    struct addrinfo *list, hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    const int status = getaddrinfo(host, port, &hints, &list);
    REQUIRE(!status, "comm: host %s: %s", host, gai_strerror(status));
    int fd = -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0) set_timeout(fd, SO_SNDTIMEO, COMM_OPEN_SECONDS);
        if (fd < 0 || !use(fd, a->ai_addr, a->ai_addrlen)) continue;
        const int why = errno;
        close(fd);
        errno = why;
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

void comm_make_id(char id[COMM_ID_BYTES], const char *host) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    unsigned long long token[2];
    char port[16];
    listener = open_socket(host, "0", bind);
    REQUIRE(listener >= 0 && !listen(listener, 128) && !getsockname(listener, (struct sockaddr *)&address, &size),
            "comm: cannot listen on %s: %s", host, strerror(errno));
    REQUIRE(getrandom(token, sizeof token, 0) == sizeof token, "comm: no random numbers: %s", strerror(errno));
    getnameinfo((struct sockaddr *)&address, size, NULL, 0, port, sizeof port, NI_NUMERICSERV);
    const int length = snprintf(id, COMM_ID_BYTES, "%s %016llx%016llx %s", port, token[0], token[1], host);
    REQUIRE(length < COMM_ID_BYTES, "comm: host %s: its name is too long", host);
}

/* Until every rank has joined. A connection without the token is closed; one that says nothing costs two seconds. */
static void accept_ranks(const char *token) {
    const double deadline = comm_now() + COMM_OPEN_SECONDS;
    for (int joined = 1; joined < comm_size; ) {
        const double left = deadline - comm_now();
        if (left <= 0) {
            char missing[256] = "";
            for (int r = 1, n = 0; r < comm_size && n < 240; r++)
                if (peers[r] < 0) n += snprintf(missing + n, sizeof missing - (size_t)n, " %d", r);
            fail("comm: missing after %d s: ranks%s", COMM_OPEN_SECONDS, missing);
        }
        if (poll(&(struct pollfd){ .fd = listener, .events = POLLIN }, 1, (int)(1e3 * left) + 1) <= 0) continue;
        Hello hello;
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) continue;
        set_timeout(fd, SO_RCVTIMEO, HELLO_SECONDS);
        if (recv(fd, &hello, sizeof hello, MSG_WAITALL) == sizeof hello && !memcmp(hello.token, token, 33) &&
            hello.rank > 0 && hello.rank < comm_size && peers[hello.rank] < 0) {
            set_timeout(fd, SO_RCVTIMEO, 0);
            set_no_delay(fd);
            peers[hello.rank] = fd;
            joined++;
        } else close(fd);
    }
    close(listener);
    listener = -1;
}

void comm_connect(const char id[COMM_ID_BYTES]) {
    Hello hello = { .rank = comm_rank };
    char port[16], host[COMM_ID_BYTES];
    REQUIRE(memchr(id, 0, COMM_ID_BYTES) && sscanf(id, "%15s %32s %127s", port, hello.token, host) == 3,
            "comm: this is not an id of comm_make_id");
    const int count = comm_rank ? 1 : comm_size;
    peers = malloc(sizeof *peers * (size_t)count);
    REQUIRE(peers, "out of memory: sockets of %d ranks", comm_size);
    for (int r = 0; r < count; r++) peers[r] = -1;
    peer_count = count;                 /* last: comm_abort may come from another thread */
    if (!comm_rank) {
        accept_ranks(hello.token);
        return;
    }
    peers[0] = open_socket(host, port, connect);
    REQUIRE(peers[0] >= 0, "comm: rank 0 at %s, port %s: %s", host, port, strerror(errno));
    set_timeout(peers[0], SO_SNDTIMEO, 0);
    set_no_delay(peers[0]);
    REQUIRE(send(peers[0], &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello, "comm: rank 0 at %s, port %s: %s", host,
            port, strerror(errno));
}

/* A watchdog has some seconds to end the process, with a message that names the cause. */
static void lost(int rank, const Header *h) {
    while (aborted) pause();
    snprintf(error_text, sizeof error_text, "comm: rank %d closed its connection before %s %lld was complete (%s)",
             rank, comm_kind_name((CommKind)h->kind), (long long)h->id, comm_where());
    error = error_text;
    sleep(GRACE_SECONDS);
    while (aborted) pause();
    fail("%s", error_text);
}

static void put(int rank, const Header *h, const void *data, size_t bytes) {
    for (ssize_t n; bytes; data = (const char *)data + n, bytes -= (size_t)n)
        while ((n = send(peers[rank], data, bytes, MSG_NOSIGNAL)) <= 0) if (errno != EINTR) lost(rank, h);
}

static void get(int rank, const Header *h, void *data, size_t bytes) {
    for (ssize_t n; bytes; data = (char *)data + n, bytes -= (size_t)n)
        while ((n = recv(peers[rank], data, bytes, 0)) <= 0) if (!n || errno != EINTR) lost(rank, h);
}

/* ---- Operations */

/* The operation with a copy of `bytes` bytes of data. */
static CommOp issue(Header header, Tensor t, const void *data, size_t bytes) {
    Operation *op = malloc(sizeof *op);
    char *copy = malloc(bytes + 1);
    REQUIRE(op && copy, "out of memory: a copy for %s, %zu bytes", comm_kind_name((CommKind)header.kind), bytes);
    if (bytes) memcpy(copy, data, bytes);
    header.id = ++issued;
    *op = (Operation){ header, t, copy, NULL };
    *newest = op;
    newest = &op->next;
    return (CommOp){ op->header.id };
}

CommOp comm_start(CommKind kind, Tensor t) {
    const size_t bytes = tensor_bytes(t), slice = bytes / (size_t)comm_size;
    const Header header = { .count = tensor_count(t), .kind = kind, .dtype = t.dtype };
    return kind == ALL_GATHER ? issue(header, t, (char *)t.data + slice * (size_t)comm_rank, slice)
                              : issue(header, t, t.data, bytes);
}

/* An operation for each transfer. */
CommOp comm_start_exchange(const CommTransfer *transfers, int count) {
    CommOp last = {0};
    for (int i = 0; i < count; i++) {
        const CommTransfer *t = &transfers[i];
        const Header header = { .count = tensor_count(t->send), .kind = EXCHANGE, .dtype = t->send.dtype, .to = t->to,
                                .from = t->from, .receives = tensor_count(t->receive) };
        last = issue(header, t->receive, t->send.data, tensor_bytes(t->send));
    }
    return last;
}

static void add(void *sum, const void *x, DType dtype, int64_t count) {
    if (dtype == F32) for (int64_t i = 0; i < count; i++) ((float *)sum)[i] += ((const float *)x)[i];
    else              for (int64_t i = 0; i < count; i++) ((double *)sum)[i] += ((const double *)x)[i];
}

static void check_same(int rank, const Header *h, const Header *other) {
    if (!memcmp(h, other, sizeof *h) || (h->kind == EXCHANGE && other->kind == EXCHANGE)) return;
    fail("comm: operation %lld of rank %d is %s of %lld %s, that of rank 0 is %s of %lld %s: all ranks must issue the "
         "same operations in the same order", (long long)h->id, rank, comm_kind_name((CommKind)other->kind),
         (long long)other->count, dtype_name((DType)other->dtype), comm_kind_name((CommKind)h->kind),
         (long long)h->count, dtype_name((DType)h->dtype));
}

/* Rank 0 receives the data of each rank in turn and sends each its result; t has that of rank 0 afterwards. */
static void exchange_as_root(Operation *op) {
    const Header *h = &op->header;
    const size_t bytes = tensor_bytes(op->t), slice = bytes / (size_t)comm_size;
    char *data = op->t.data;
    char *incoming = h->kind == ALL_GATHER ? NULL : malloc(bytes);
    REQUIRE(incoming || h->kind == ALL_GATHER, "out of memory: %s, %zu bytes", comm_kind_name((CommKind)h->kind),
            bytes);
    for (int r = 1; r < comm_size; r++) {
        Header other;
        get(r, h, &other, sizeof other);
        check_same(r, h, &other);
        if (h->kind == ALL_GATHER) get(r, h, data + slice * (size_t)r, slice);
        else {
            get(r, h, incoming, bytes);
            add(op->copy, incoming, op->t.dtype, h->count);
        }
    }
    free(incoming);
    memcpy(data, op->copy, h->kind == ALL_REDUCE ? bytes : slice);
    for (int r = 1; r < comm_size; r++)
        if (h->kind == REDUCE_SCATTER) put(r, h, op->copy + slice * (size_t)r, slice);
        else                           put(r, h, data, bytes);
}

static size_t sent_bytes(const Header *h) { return (size_t)h->count * dtype_bytes((DType)h->dtype); }

/* Rank 0 has what all ranks send before it hands out the first part. */
static void route_as_root(Operation *op) {
    const Header *h = &op->header;
    Header *of = calloc((size_t)comm_size, sizeof *of);
    char **data = calloc((size_t)comm_size, sizeof *data);
    REQUIRE(of && data, "out of memory: an exchange of %d ranks", comm_size);
    of[0] = *h;
    data[0] = op->copy;
    for (int r = 1; r < comm_size; r++) {
        get(r, h, &of[r], sizeof *of);
        check_same(r, h, &of[r]);
        data[r] = malloc(sent_bytes(&of[r]) + 1);
        REQUIRE(data[r], "out of memory: an exchange, %zu bytes", sent_bytes(&of[r]));
        get(r, h, data[r], sent_bytes(&of[r]));
    }
    for (int r = 0; r < comm_size; r++) {
        const Header *sender = &of[of[r].from];
        REQUIRE(sender->to == r && sender->count == of[r].receives, "comm: in exchange %lld rank %d wants %lld "
                "elements of rank %d, which sends %lld to rank %d", (long long)h->id, r, (long long)of[r].receives,
                of[r].from, (long long)sender->count, sender->to);
        if (!sender->count) continue;
        if (r) put(r, h, data[of[r].from], sent_bytes(sender));
        else   memcpy(op->t.data, data[of[r].from], sent_bytes(sender));
    }
    for (int r = 1; r < comm_size; r++) free(data[r]);
    free(data);
    free(of);
}

static void exchange(Operation *op) {
    const Header *h = &op->header;
    const size_t bytes = tensor_bytes(op->t), slice = bytes / (size_t)comm_size;
    char *data = op->t.data;
    put(0, h, h, sizeof *h);
    put(0, h, op->copy, h->kind == EXCHANGE ? sent_bytes(h) : h->kind == ALL_GATHER ? slice : bytes);
    if (h->kind == REDUCE_SCATTER) get(0, h, data + slice * (size_t)comm_rank, slice);
    else                           get(0, h, data, bytes);
}

void comm_wait(CommOp wanted) {
    if (wanted.id <= completed) return;
    const double start = comm_now();
    while (completed < wanted.id) {
        Operation *op = oldest;
        waiting_since = comm_now();
        if (comm_rank)                        exchange(op);
        else if (op->header.kind == EXCHANGE) route_as_root(op);
        else                                  exchange_as_root(op);
        if (!(oldest = op->next)) newest = &oldest;
        free(op->copy);
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
    for (int r = 0; r < peer_count; r++) if (peers[r] >= 0) close(peers[r]);
    free(peers);
    peers = NULL;
    peer_count = 0;
}
