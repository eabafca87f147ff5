/* comm_backend.h - What comm.c and the backends' part of the collectives (cpu/comm.c, cuda/comm_nccl.c,
   cuda/comm_none.c) need from each other. */
#pragma once
#include "comm.h"

typedef enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, EXCHANGE } CommKind;
enum { COMM_OPEN_SECONDS = 120 };

/* Defined by the backend. Called with several ranks only; t is packed, not empty, and its slices are whole. */
void   comm_connect(const char id[COMM_ID_BYTES], const int *sockets);
CommOp comm_start(CommKind kind, Tensor t);
CommOp comm_start_exchange(const CommTransfer *transfers, int count);   /* packed; count >= 1 */

const char *comm_kind_name(CommKind kind);     /* "all-reduce" */
const char *comm_where(void);                  /* "rank 1 of 4 on HOST, NVIDIA H200 0000:17:00.0" */
double      comm_now(void);                    /* seconds, monotonic */
