/* dropout_cpu.h - The mask of dropout for neighbouring rows. */
#ifndef KERNELS_CPU_DROPOUT_CPU_H
#define KERNELS_CPU_DROPOUT_CPU_H
#include "../dropout.h"

/* Rows row .. row + rows - 1 of a matrix, row a multiple of 8 and at most 8 of them: out = x times dropout_scale where
   the mask keeps, else 0. Both have pitch elements from row to row. out may be x. */
void dropout_rows(float *out, const float *x, int64_t pitch, int64_t row, int64_t rows, int64_t columns,
                  DropoutMask mask, float rate);

#endif
