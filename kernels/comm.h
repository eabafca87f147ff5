/* comm.h - Collectives over the ranks of a run, one process per rank. Over NCCL on GPUs; over sockets on the
   CPU, for tests. Counts are elements. Errors of NCCL come with rank, host, device and a hint. */
#pragma once
#include "tensor.h"

extern int comm_rank, comm_size;        /* 0 and 1 when alone */

const char *comm_refuse(void);          /* NULL, or why several ranks cannot run, and what to do */

/* The id by which ranks find each other over NCCL, made on rank 0. */
enum { COMM_ID_BYTES = 128 };
void comm_make_id(char id[COMM_ID_BYTES]);

/* Called on all ranks, after device_open, with rank 0's id. Returns when they are connected, fails after two minutes.
   sockets: for a backend that uses them, the CPU's: connected stream sockets, which comm closes; on rank 0 those to all
   ranks by rank ([0] is unused), elsewhere that to rank 0; the array stays. size 1: no work, both may be NULL. */
extern const int comm_uses_sockets;
void comm_open(int rank, int size, const char id[COMM_ID_BYTES], const int *sockets);
void comm_close(void);                  /* on all ranks; completes pending operations */

/* Zeroed memory for the operands of reduce-scatter and all-gather, not of all-reduce: on GPUs of one host copy engines
   then move them, and no SM (NCCL 2.28 or newer; otherwise it is that of device_alloc). All ranks allocate and free the
   same sizes in the same order, and free before comm_close. */
void *comm_alloc(size_t bytes, const char *what);
void  comm_free(void *memory);                  /* also memory of device_alloc */
/* Scratch of reduce-scatter for a tensor of `bytes` in memory of comm_alloc: as many bytes, 0 above 512 MiB, which
   NCCL's kernel reduces in place; before comm_open an upper bound. comm_reserve allocates it in advance, on all
   ranks. */
size_t comm_scratch_bytes(size_t bytes);
void   comm_reserve(size_t bytes);

/* Operations start after the compute issued so far and run beside the compute issued next. The tensor is packed and not
   used until comm_wait; on the CPU a write before it is lost, a read sees the old data. All ranks issue the same
   operations in the same order. One rank, or an empty tensor: no work, and the result is {0}, which is complete. */
typedef struct { int64_t id; } CommOp;
CommOp comm_all_reduce    (Tensor t);   /* F32, F64: t = sum over ranks, the same bits on every rank */
CommOp comm_reduce_scatter(Tensor t);   /* F32, F64: slice comm_rank of t = its sum, the others keep their values */
CommOp comm_all_gather    (Tensor t);   /* any type: slice r of t = slice r of rank r; slices are count / comm_size */
/* Each of count transfers: receive = what rank `from` sends in the same one, any type, as many elements. Either may
   be empty; a rank that sends and receives nothing issues the operation, too. The compute issued next starts when the
   operations before this one are complete: a kernel that fills the GPU would otherwise keep it from starting. */
typedef struct { Tensor send; int to; Tensor receive; int from; } CommTransfer;
CommOp comm_exchange(const CommTransfer *transfers, int count);
void   comm_wait(CommOp op);            /* compute issued from here on sees the results of op and of all before it */
double comm_waited_ms(void);            /* time that compute has waited in completed calls of comm_wait */

/* For a watchdog, from any thread: */

/* Number of pending operations; seconds: how long the oldest has been waiting for other ranks, 0 while compute that it
   depends on is running. */
int comm_pending(double *seconds);
/* NULL, or the error of a pending operation. A dead or stopped rank may not show here. */
const char *comm_error(void);
/* Ends pending operations (copies between windows end with the process). Their results are undefined and never seen:
   other threads do not return from comm_wait, device_wait and device_download. The process exits next. This call can
   hang: the caller limits its time. */
void comm_abort(void);
