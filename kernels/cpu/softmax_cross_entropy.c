#include "../head.h"
#include "../check_ops.h"
#include "../profile.h"
#include "vecmath.h"

/* Returns the loss of one row of logits, which becomes dloss * (softmax - one at target). */
static float softmax_row(float *logit, int V, int32_t target, float dloss) {
    if (target < 0) {
        memset(logit, 0, sizeof(float) * (size_t)V);
        return 0.0f;
    }
    const float max = vec_max(logit, V), at_target = logit[target];
    const float sum = vec_exp_row(logit, V, max), scale = dloss / sum;
    for (int i = 0; i < V; i++) logit[i] *= scale;
    logit[target] -= dloss;
    return logf(sum) + (max - at_target);
}

void softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V, float dloss) {
    check_softmax_cross_entropy(losses, dlogits, logits, targets, V);
    op_begin("softmax cross-entropy", op_bytes(2, logits, dlogits), 0);
    const int64_t rows = tensor_rows(logits), Vp = tensor_columns(logits);
    const int32_t *target = targets.data;
    float *loss = losses.data;
    for (int64_t i = 0; i < rows; i++)
        REQUIRE(target[i] >= -1 && target[i] < V, "head: target %d, want -1 .. %d", target[i], V - 1);
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        float *logit = (float *)logits.data + i * logits.pitch;
        loss[i] = softmax_row(logit, V, target[i], dloss);
        memset(logit + V, 0, sizeof(float) * (size_t)(Vp - V));
    }
    op_end();
}
