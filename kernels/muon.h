/* muon.h - Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): momentum whose update is orthogonalised, for
   matrices. The update's scale is that of Moonlight (Liu et al. 2025, arXiv 2502.16982, 0.2 sqrt(max(rows, columns)),
   the RMS of AdamW's updates), with which learning rate and weight decay are AdamW's. */
#ifndef KERNELS_MUON_H
#define KERNELS_MUON_H
#include "update.h"

#define MUON_MOMENTUM 0.95f
#define MUON_A 3.4445f
#define MUON_B (-4.7750f)
#define MUON_C 2.0315f
enum { MUON_ITERATIONS = 5 };       /* odd */

extern const DType muon_dtype;      /* type of updates and of x below: BF16 on a GPU, F32 on the CPU */

/* FLOP of muon_orthogonalize for a matrix. */
static inline double muon_flop(double rows, double columns) {
    const double S = rows < columns ? rows : columns;
    return MUON_ITERATIONS * 2 * (2 * rows * columns * S + S * S * S);
}

/* In the rows with a scale, where stats->apply: m = 0.95 m + g, update = g + 0.95 m (Nesterov), g = clip * grad.
   m, grad: flat F32, update: flat muon_dtype, of one shape. rows, stats: device addresses. */
void muon_momentum(Tensor update, Tensor m, Tensor grad, const UpdateRow *rows, int row_count, const StepStats *stats);

/* x = nearly U V^T for x = U S V^T, by Newton-Schulz: from x/(|x| + 1e-7), |x| the Frobenius norm, five times
   x = A x + B G x + C G^2 x with G = x x^T; singular values end in 0.7 .. 1.2, but for tiny ones. x (rows, columns) of
   muon_dtype, packed, is the first of `count` matrices, each `stride` elements after the one before. scratch: device
   memory of muon_scratch_bytes for as many. */
void   muon_orthogonalize(Tensor x, int count, int64_t stride, void *scratch);
size_t muon_scratch_bytes(int64_t rows, int64_t columns, int count);

/* In the rows with a scale, where stats->apply: param -= learning_rate (scale update + decay weight_decay param).
   param: flat F32; param_bf16 as in adamw_update; update as above. */
void muon_apply(Tensor param, Tensor param_bf16, Tensor update, const UpdateRow *rows, int row_count,
                const StepStats *stats);

#endif
