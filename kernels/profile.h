/* profile.h - Where the time of a step goes: milliseconds of each op on the device, beside a lower bound. */
#ifndef KERNELS_PROFILE_H
#define KERNELS_PROFILE_H
#include "tensor.h"

/* Around the work of an op: bytes that it must read and write at least, and FLOP that it must compute. Ops of the same
   name, which is copied, bytes and FLOP are one row. An op may contain others: they are listed after its name, and the
   rest of the work is its own. Does nothing unless a profile is being taken. */
void op_begin(const char *name, double bytes, double flop);
void op_end(void);

/* Of count operands of type Tensor; an absent one has 0. Returns 0 unless a profile is being taken. */
double op_bytes(int count, ...);

extern int profile_is_on;

/* Measures the rates of the lower bounds, of a copy and of a GEMM in dtype, and takes a profile from here on. */
void profile_begin(DType dtype);

/* Ends it and prints the table. steps: how many were profiled; step_ms: of one step without a profile. Fails, with the
   name of the op, where an op_end is missing. */
void profile_end(int steps, double step_ms);

#endif
