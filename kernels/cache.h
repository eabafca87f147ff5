/* cache.h - The key/value cache of generation. */
#ifndef KERNELS_CACHE_H
#define KERNELS_CACHE_H
#include "tensor.h"

/* Rows position .. position + n - 1 of each sequence of cache (B,T,C) = rows (B,n,C), which may have a pitch.
   position: I32 (1). A row outside the cache fails on the CPU, and ends the program by an assertion on a GPU. */
void cache_append(Tensor cache, Tensor rows, Tensor position);

#endif
