#include "../gelu.h"
#include "../check_ops.h"
#include "../gemm.h"
#include "../profile.h"
#include "vecmath.h"

/* Elements that a thread takes at a time, a fixed number: where the compiler changes from vectors to single elements,
   which may round differently, does not depend on the number of threads. */
enum { BLOCK = 4096 };

static const float SCALE = 0.7978845608028654f, CUBE = 0.044715f;     /* sqrt(2/pi) */

void gelu_forward(Tensor y_tensor, Tensor x_tensor) {
    check_gelu("gelu", y_tensor, x_tensor);
    op_begin("gelu", op_bytes(2, y_tensor, x_tensor), 0);
    float *y = y_tensor.data;
    const float *x = x_tensor.data;
    int64_t count = tensor_count(x_tensor);
    #pragma omp parallel for schedule(static, BLOCK)
    for (int64_t i = 0; i < count; i++) {
        float u = SCALE * (x[i] + CUBE * x[i] * x[i] * x[i]);
        y[i] = 0.5f * x[i] * (1.0f + vec_tanh(u));
    }
    op_end();
}

void gelu_backward(Tensor dx_tensor, Tensor dy_tensor, Tensor x_tensor, Tensor dx_sum, Into sum_into) {
    check_gelu_backward(dx_tensor, dy_tensor, x_tensor, dx_sum);
    op_begin("gelu backward", op_bytes(3, dx_tensor, dy_tensor, x_tensor), 0);
    float *dx = dx_tensor.data;
    const float *dy = dy_tensor.data, *x = x_tensor.data;
    int64_t count = tensor_count(x_tensor);
    #pragma omp parallel for schedule(static, BLOCK)
    for (int64_t i = 0; i < count; i++) {
        float square = x[i] * x[i];
        float t = vec_tanh(SCALE * (x[i] + CUBE * square * x[i]));
        float du = SCALE * (1.0f + 3.0f * CUBE * square);
        float tail = (1.0f - t) * (1.0f + t);       /* 1 - t^2; 0 where |x| is large, and du may overflow there */
        float slope = tail > 0.0f ? tail * du : 0.0f;
        dx[i] = dy[i] * (0.5f * (1.0f + t) + 0.5f * x[i] * slope);
    }
    if (dx_sum.data) column_sums(dx_sum, dx_tensor, sum_into);
    op_end();
}

void gemm_gelu(Gemm g, void *out) {
    gemm(g);
    gelu_forward(tensor_of(out, g.dtype, 2, g.M, g.N), tensor_of(g.c, g.dtype, 2, g.M, g.N));
}
