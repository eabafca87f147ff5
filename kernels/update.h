/* update.h - The end of a training step: loss, gradient norm, clipping, AdamW (Loshchilov and Hutter 2019,
   arXiv 1711.05101). Its inputs and results are one struct in device memory: a step does not wait for the host, and a
   non-finite gradient is detected before it reaches the weights. */
#pragma once
#include "tensor.h"

typedef struct {
    /* written by the host before each step */
    float   learning_rate, beta1, beta2, eps, weight_decay;
    float   correction1, correction2;   /* 1 - beta^t of this step's count t */
    float   max_norm;                   /* clip the global norm to this; 0 = never */
    double  loss_limit, norm_limit;     /* an update beyond one of them is not applied; +inf = every finite one is */
    double  stop, save;                 /* 1 = requested on this rank; after the step, the number of such ranks */
    /* written by the device; the host zeroes both sums before each step */
    double  loss;                       /* mean over the step's targets */
    double  square_sum;                 /* sum of the squares of all gradients */
    double  norm;                       /* sqrt(square_sum): before clipping */
    float   clip;                       /* min(1, max_norm / norm) */
    int32_t apply;                      /* 1 when loss, norm and (clip * norm)^2 in f32 are finite and within limits */
} StepStats;

/* One tensor of the flat parameter memory, or the part of it in a slice (ZeRO-1); gaps between them are zero and are
   never touched. */
typedef struct {
    int64_t first, count;               /* elements */
    int64_t v_shift;                    /* element i has its second moment at v[i - v_shift] */
    int32_t decay;                      /* whether weight decay applies */
} UpdateRow;

/* stats->loss += scale * sum(losses) */
void loss_add(StepStats *stats, Tensor losses, float scale);

/* stats->square_sum += sum(grads^2), in double. grads: a flat range of gradients, gaps zero. */
void gradient_square_sum(StepStats *stats, Tensor grads);

/* From loss and square_sum: norm, clip and apply. Ranks reduce both sums before. */
void update_decide(StepStats *stats);

/* In the rows, where stats->apply, in f32: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2 with g = clip *
   grad; param -= learning_rate (m/correction1 / (sqrt(v/correction2) + eps) + decay * weight_decay * param). param, m,
   grad: flat F32 memory of one shape; v: F32, at most as long (v_shift). param_bf16: BF16 of the same shape that gets
   param rounded (=), or absent. rows, stats: device addresses. On a GPU first and count are multiples of 4. */
void adamw_update(Tensor param, Tensor param_bf16, Tensor m, Tensor v, Tensor grad,
                  const UpdateRow *rows, int row_count, const StepStats *stats);

/* to = from, and to = sum + from, rounded to nearest even where to is narrower. F32 or BF16; sum F32, or BF16 where
   both others are; it may be to. All packed with as many elements, or with as many rows and columns and any pitch. */
void tensor_convert(Tensor to, Tensor from);
void tensor_add    (Tensor to, Tensor sum, Tensor from);

/* Range of the finite elements, and how many are not. Waits for the device. */
typedef struct { int64_t nan_count, inf_count; double min, max; } TensorStats;
TensorStats tensor_stats(Tensor t);
