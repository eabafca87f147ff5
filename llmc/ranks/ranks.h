/* ranks.h - Decisions that all ranks take together. Every rank makes the same calls in the same order; alone they
   do nothing. */
#ifndef LLMC_RANKS_H
#define LLMC_RANKS_H
#include <stddef.h>
#include <stdint.h>
#include "../../kernels/tensor.h"

enum { RANKS_SUM_MAX = 8 };
void ranks_sum(double *values, int count);          /* host values, over the ranks; waits for all */
void ranks_copy_from_first(void *bytes, size_t size);       /* those of rank 0 to all; size is the same on all */

/* Why the run should stop now (stop_requested), NULL = not: alone at once, else when `stops`, how many ranks want to,
   is not 0. */
double      ranks_stops(void);                  /* how many want to now */
const char *ranks_stop(double stops);

/* Before a failure of all ranks: those from 1 on wait here until rank 0, which reports it, has ended the run. That is
   no collective: rank 0 may take longer than --comm-timeout to finish a save. */
void ranks_leave_to_first(void);

/* Fails with "WHAT differs from that of rank 0" unless all ranks have the same hash, or the same range of values. */
void ranks_require_same(uint64_t hash, const char *what);
void ranks_require_same_tensor(Tensor t, const char *what);

#endif
