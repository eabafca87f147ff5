/* kernels/cpu/head.c - The head, a chunk of rows at a time: the logits become the probabilities and then the gradient
   in place. */
#include "../head.h"
#include "../check_ops.h"
#include "../gemm.h"
#include "vecmath.h"

/* logits (R,columns) = x wte^T for the first columns rows of wte */
static void table_product(Tensor logits, Tensor x, Tensor wte, int64_t columns) {
    gemm((Gemm){
        .M = tensor_rows(x), .N = columns, .K = tensor_columns(x),
        .a = { x.data, x.pitch, ROW_MAJOR }, .b = { wte.data, wte.pitch, COLUMN_MAJOR },
        .c = logits.data, .c_pitch = logits.pitch, .into = OVERWRITE
    });
}

void head_logits(Tensor logits, Tensor x, Tensor wte) {
    check_head_logits(logits, x, wte);
    table_product(logits, x, wte, wte.dim[0]);
}

/* Returns the loss of one row of logits, which becomes dloss * (softmax - one at target). */
static float softmax_row(float *logit, int V, int32_t target, float dloss) {
    if (target < 0) {
        memset(logit, 0, sizeof(float) * (size_t)V);
        return 0.0f;
    }
    const float greatest = vec_max(logit, V), at_target = logit[target];
    const float sum = vec_exp_row(logit, V, greatest), scale = dloss / sum;
    for (int i = 0; i < V; i++) logit[i] *= scale;
    logit[target] -= dloss;
    return logf(sum) + (greatest - at_target);
}

void head_loss(Tensor losses, Tensor dx, Tensor dwte, Tensor x, Tensor wte, Tensor targets,
               int V, float dloss, Into dwte_into, Tensor work) {
    check_head_loss(losses, dx, dwte, x, wte, targets, V, work);
    const int64_t rows = tensor_rows(x), C = tensor_columns(x), chunk = work.dim[0];
    const int32_t *target = targets.data;
    float *loss = losses.data;
    for (int64_t i = 0; i < rows; i++)
        REQUIRE(target[i] >= -1 && target[i] < V, "head: target %d in row %lld, want -1 .. %d",
                target[i], (long long)i, V - 1);
    if (dx.data && dwte_into == OVERWRITE)                  /* the products leave the padding out */
        for (int64_t i = V; i < dwte.dim[0]; i++)
            memset((float *)dwte.data + i * dwte.pitch, 0, sizeof(float) * (size_t)C);
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t count = rows - first < chunk ? rows - first : chunk;
        const Tensor logits = tensor_row_range(work, 0, count), x_chunk = tensor_row_range(x, first, count);
        float *logit = logits.data;
        table_product(logits, x_chunk, wte, V);
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; i++)
            loss[first + i] = softmax_row(logit + i * logits.pitch, V, target[first + i], dloss);
        if (!dx.data) continue;
        gemm((Gemm){
            .M = count, .N = C, .K = V,
            .a = { logits.data, logits.pitch, ROW_MAJOR }, .b = { wte.data, wte.pitch, ROW_MAJOR },
            .c = tensor_row_range(dx, first, count).data, .c_pitch = dx.pitch, .into = OVERWRITE
        });
        gemm((Gemm){
            .M = V, .N = C, .K = count,
            .a = { logits.data, logits.pitch, COLUMN_MAJOR }, .b = { x_chunk.data, x.pitch, ROW_MAJOR },
            .c = dwte.data, .c_pitch = dwte.pitch, .into = first ? ACCUMULATE : dwte_into
        });
    }
}
