/* comm_none.c - Collectives of a program built without NCCL: one rank, no work. */
#include "../check.h"
#include "../comm_backend.h"
#include "../device.h"

const int comm_uses_sockets = 0;

const char *comm_refuse(void) {
    return "this program was built without NCCL: install it (libnccl-dev of NVIDIA's repository; or `pip install "
           "nvidia-nccl-cu13`, for CUDA 12 -cu12, and NCCL_HOME=.../site-packages/nvidia/nccl), then `make`";
}

CommOp comm_start(CommKind kind, Tensor t) {
    (void)t;
    fail("%s: %s", comm_kind_name(kind), comm_refuse());
}

CommOp comm_start_exchange(const CommTransfer *transfers, int count) {
    (void)count;
    return comm_start(EXCHANGE, transfers->send);
}

void       *comm_alloc(size_t bytes, const char *what) { return device_alloc(bytes, what); }
void        comm_free(void *memory)                    { device_free(memory); }
size_t      comm_scratch_bytes(size_t bytes)           { (void)bytes; return 0; }
void        comm_reserve(size_t bytes)                 { (void)bytes; }
void        comm_make_id(char id[COMM_ID_BYTES])       { *id = 0; }
void        comm_connect(const char id[COMM_ID_BYTES], const int *sockets) { (void)id; (void)sockets; }
void        comm_wait(CommOp op)                       { (void)op; }
double      comm_waited_ms(void)                       { return 0; }
int         comm_pending(double *seconds)              { *seconds = 0; return 0; }
const char *comm_error(void)                           { return NULL; }
void        comm_abort(void)                           { }
void        comm_close(void)                           { }
