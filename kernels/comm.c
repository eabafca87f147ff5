/* comm.c - Collectives: ranks and checks, with any backend. */
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "check_ops.h"
#include "comm_backend.h"
#include "device.h"

int comm_rank, comm_size = 1;
static char where[512] = "one rank";

const char *comm_where(void) { return where; }

const char *comm_kind_name(CommKind kind) {
    return kind == ALL_REDUCE ? "all-reduce" : kind == REDUCE_SCATTER ? "reduce-scatter"
         : kind == ALL_GATHER ? "all-gather" : "exchange";
}

double comm_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void comm_open(int rank, int size, const char id[COMM_ID_BYTES], const int *sockets) {
    char host[256] = "?";
    REQUIRE(size >= 1 && rank >= 0 && rank < size, "comm: rank %d of %d, want 0 .. %d", rank, size, size - 1);
    if (size == 1) return;
    const char *why = comm_refuse();
    REQUIRE(!why, "%d ranks: %s", size, why);
    const DeviceInfo device = device_info();
    gethostname(host, sizeof host - 1);
    comm_rank = rank;
    comm_size = size;
    snprintf(where, sizeof where, "rank %d of %d on %s, %s%s%s", rank, size, host, device.name,
             *device.pci_bus_id ? " " : "", device.pci_bus_id);
    comm_connect(id, sockets);
}

static CommOp start(CommKind kind, Tensor t) {
    const char *op = comm_kind_name(kind);
    char shape[80];
    REQUIRE(kind == ALL_GATHER || t.dtype == F32 || t.dtype == F64, "%s: %s, want f32 or f64", op, dtype_name(t.dtype));
    REQUIRE(kind == ALL_REDUCE || tensor_count(t) % comm_size == 0, "%s: %s is %lld elements, want a multiple of the "
            "%d ranks", op, tensor_shape(t, shape), (long long)tensor_count(t), comm_size);
    check_packed(op, "the tensor", t);
    return comm_size == 1 || !tensor_count(t) ? (CommOp){0} : comm_start(kind, t);
}

CommOp comm_all_reduce(Tensor t)     { return start(ALL_REDUCE, t); }
CommOp comm_reduce_scatter(Tensor t) { return start(REDUCE_SCATTER, t); }
CommOp comm_all_gather(Tensor t)     { return start(ALL_GATHER, t); }

CommOp comm_exchange(const CommTransfer *transfers, int count) {
    for (int i = 0; i < count; i++) {
        const CommTransfer *t = &transfers[i];
        const int is_self = comm_size > 1 && (t->to == comm_rank || t->from == comm_rank);
        REQUIRE(t->to >= 0 && t->to < comm_size && t->from >= 0 && t->from < comm_size && !is_self,
                "exchange: to rank %d, from rank %d, want others of 0 .. %d", t->to, t->from, comm_size - 1);
        check_packed("exchange", "send", t->send);
        check_packed("exchange", "receive", t->receive);
    }
    return comm_size == 1 || !count ? (CommOp){0} : comm_start_exchange(transfers, count);
}
