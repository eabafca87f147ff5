/* fill.h - Random initial values, made on the device. */
#ifndef KERNELS_FILL_H
#define KERNELS_FILL_H
#include "tensor.h"

/* t F32, packed: element i = mean + deviation * normal_of(Philox4x32-10 of the counter { i, i >> 32, word2, word3 } and
   the key), in double, rounded once: the same bits on every backend (kernels/normal.h). */
void fill_normal(Tensor t, double mean, double deviation, uint64_t key, uint32_t word2, uint32_t word3);

#endif
