/* muon.h - Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for matrices: momentum whose update is nearly
   orthogonalised by Newton-Schulz. Its scale is Moonlight's (Liu et al. 2025, arXiv 2502.16982), which gives it the RMS
   of AdamW's updates: learning rate and weight decay are AdamW's. */
#pragma once
#include "update.h"

#define MUON_MOMENTUM 0.95f
#define MUON_A 3.4445f
#define MUON_B (-4.7750f)
#define MUON_C 2.0315f
enum { MUON_ITERATIONS = 5 };       /* odd */

/* Where stats->apply: m = 0.95 m + g, x = g + 0.95 m with g = clip * grad; x = x / (|x| + 1e-7), Frobenius norm; five
   times x = A x + B G x + C G^2 x with G = x x^T, in bf16 on a GPU: most singular values end in 0.7 .. 1.2; param -=
   learning_rate (0.2 sqrt(max(rows, columns)) x + weight_decay param). param, m, grad: F32 (count, rows * columns) of
   any pitch, a row is a matrix. param_bf16 as in adamw_update. stats, scratch (muon_scratch_bytes): device addresses.
   On a GPU rows and columns are multiples of 8. */
void   muon_update(Tensor param, Tensor param_bf16, Tensor m, Tensor grad, int64_t rows, void *scratch,
                   const StepStats *stats);
size_t muon_scratch_bytes(int64_t rows, int64_t columns, int count);
