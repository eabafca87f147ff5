/* profile.h - Where the time of a step goes: milliseconds of each op on the device, beside a lower bound. */
#pragma once
#include "tensor.h"

/* Calls around the work of an op: bytes that it must read and write at least, FLOP that it must compute. Ops of one
   name, which is copied, are one row; an op inside of another is part of that. No effect outside of a profile. */
void op_begin(const char *name, double bytes, double flop);
void op_end(void);

/* Bytes of count operands of type Tensor, absent ones 0; outside of a profile 0. */
double op_bytes(int count, ...);

extern int profile_is_on;

/* Bytes: read and written by copies of a large matrix. FLOP: the largest rate of square GEMMs from 512 to 8192, up to
   one that takes 2 ms. */
typedef struct { double bytes_per_ms, flop_per_ms; } Rates;
Rates rates_measure(DType dtype);

void profile_begin(void);

/* Ends the profile and prints the table: by op, milliseconds beside the larger of bytes / copy rate and FLOP / GEMM
   rate. steps: how many were profiled; step_ms: of one step without a profile. Fails where an op_end is missing. */
void profile_end(Rates rates, int steps, double step_ms);
