/* ranks.h - Decisions that all ranks take together. Every rank makes the same calls in the same order; with one rank
   they do nothing. */
#pragma once
#include "../base/base.h"

enum { RANKS_SUM_MAX = 8 };
void ranks_sum(double *values, int count);          /* host values, over the ranks; waits for all */
void ranks_copy_from_first(void *bytes, size_t size);       /* rank 0's to all; size is the same on all */

/* Why the run should stop now, NULL = it should not. One rank asks stop_requested, several stop if stops > 0. */
double      ranks_stops(void);                  /* number of ranks with a stop request */
const char *ranks_stop(double stops);

/* Called before a failure of all ranks: ranks 1 and up wait here until rank 0 has reported it and ended the run. Not a
   collective: rank 0 may take longer than --comm-timeout to finish a save. */
void ranks_leave_to_first(void);

/* Fails with "WHAT differs from that of rank 0" unless all ranks have the same hash, or the same range of values. */
void ranks_require_same(uint64_t hash, const char *what);
void ranks_require_same_tensor(Tensor t, const char *what);
