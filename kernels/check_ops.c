#include "check_ops.h"
#include <string.h>
#include "device.h"

/* t has the shape of like, its last dimension replaced by columns. */
static void check_like(const char *op, const char *name, Tensor t, DType dtype, Tensor like, int64_t columns) {
    int64_t dim[4] = { like.dim[0], like.dim[1], like.dim[2], like.dim[3] };
    dim[like.ndim - 1] = columns;
    check_shape(op, name, t, dtype, like.ndim, dim);
}

/* One number a row of like: (B,T) of (B,T,C). */
static void check_per_row(const char *op, const char *name, Tensor t, DType dtype, Tensor like) {
    check_shape(op, name, t, dtype, like.ndim - 1, like.dim);
    check_packed(op, name, t);
}

/* There, of floating point that this backend computes in, and not a scalar where rows are wanted. */
static void check_float(const char *op, const char *name, Tensor t, int ndim) {
    char shape[80];
    REQUIRE(t.data && t.ndim >= ndim, "%s: %s %s is absent or has too few dimensions, want %d or more", op, name,
            tensor_shape(t, shape), ndim);
    REQUIRE(t.dtype == F32 || t.dtype == BF16, "%s: %s is %s, want f32 or bf16", op, name, dtype_name(t.dtype));
    const char *refusal = device_refuse_dtype(t.dtype);
    REQUIRE(!refusal, "%s: %s is %s: %s", op, name, dtype_name(t.dtype), refusal);
}

void check_embedding(const char *op, Tensor x, Tensor tokens, Tensor wte, Tensor wpe) {
    const int backward = strstr(op, "backward") != NULL;        /* x, wte and wpe are gradients then */
    const char *x_name = backward ? "dx" : "x", *wte_name = backward ? "dwte" : "wte";
    const char *wpe_name = backward ? "dwpe" : "wpe";
    check_float(op, x_name, x, 3);
    int64_t C = tensor_columns(x);
    check_packed(op, x_name, x);
    check_per_row(op, "tokens", tokens, I32, x);
    check_float(op, wte_name, wte, 2);
    check_float(op, wpe_name, wpe, 2);
    check_tensor(op, wte_name, wte, backward ? F32 : x.dtype, 2, wte.dim[0], C);
    check_tensor(op, wpe_name, wpe, wte.dtype, 2, wpe.dim[0], C);
    REQUIRE(wpe.dim[0] >= x.dim[1], "%s: %lld positions, the table %s has %lld", op, (long long)x.dim[1], wpe_name,
            (long long)wpe.dim[0]);
}

void check_residual_layernorm(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                              Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    const char *op = "layernorm";
    check_float(op, "x", x, 2);
    int64_t C = tensor_columns(x);
    check_packed(op, "x", x);
    check_like(op, "normed", normed, x.dtype, x, C);
    check_packed(op, "normed", normed);
    check_per_row(op, "mean", mean, F32, x);
    check_per_row(op, "rstd", rstd, F32, x);
    check_tensor(op, "weight", weight, x.dtype, 1, C);
    check_tensor(op, "bias", bias, x.dtype, 1, C);
    if (branch.data) {
        check_like(op, "branch", branch, x.dtype, x, C);
        check_packed(op, "branch", branch);
        check_like(op, "sum", sum, x.dtype, x, C);
        check_packed(op, "sum", sum);
    }
}

void check_layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dnormed,
                              Tensor x, Tensor mean, Tensor rstd, Tensor weight) {
    const char *op = "layernorm backward";
    check_float(op, "x", x, 2);
    int64_t C = tensor_columns(x);
    check_packed(op, "x", x);
    check_like(op, "dx", dx, x.dtype, x, C);
    check_packed(op, "dx", dx);
    check_like(op, "dnormed", dnormed, x.dtype, x, C);
    check_packed(op, "dnormed", dnormed);
    check_per_row(op, "mean", mean, F32, x);
    check_per_row(op, "rstd", rstd, F32, x);
    check_tensor(op, "weight", weight, x.dtype, 1, C);
    check_tensor(op, "dweight", dweight, F32, 1, C);
    check_tensor(op, "dbias", dbias, F32, 1, C);
}

void check_matmul_forward(Tensor out, Tensor x, Tensor weight, Tensor bias) {
    const char *op = "matmul";
    check_float(op, "out", out, 2);
    check_float(op, "x", x, 2);
    int64_t N = tensor_columns(out), K = tensor_columns(x);
    check_like(op, "out", out, x.dtype, x, N);
    check_tensor(op, "weight", weight, x.dtype, 2, N, K);
    if (bias.data) check_tensor(op, "bias", bias, x.dtype, 1, N);
}

void check_matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dout, Tensor x, Tensor weight) {
    const char *op = "matmul backward";
    check_float(op, "dout", dout, 2);
    check_float(op, "x", x, 2);
    int64_t N = tensor_columns(dout), K = tensor_columns(x);
    check_like(op, "dout", dout, x.dtype, x, N);
    check_tensor(op, "weight", weight, x.dtype, 2, N, K);
    check_tensor(op, "dweight", dweight, F32, 2, N, K);
    if (dx.data) check_like(op, "dx", dx, x.dtype, x, K);
    if (dbias.data) check_tensor(op, "dbias", dbias, F32, 1, N);
}

void check_gelu(const char *op, Tensor y, Tensor x) {
    check_float(op, "x", x, 1);
    check_packed(op, "x", x);
    check_like(op, "y", y, x.dtype, x, tensor_columns(x));
    check_packed(op, "y", y);
}

void check_head_logits(Tensor logits, Tensor x, Tensor wte) {
    const char *op = "head";
    check_float(op, "x", x, 2);
    check_float(op, "wte", wte, 2);
    check_tensor(op, "wte", wte, x.dtype, 2, wte.dim[0], tensor_columns(x));
    check_float(op, "logits", logits, 2);
    check_like(op, "logits", logits, logits.dtype, x, wte.dim[0]);
}

void check_head_loss(Tensor losses, Tensor dx, Tensor dwte, Tensor x, Tensor wte, Tensor targets, int V, Tensor work) {
    const char *op = "head";
    check_float(op, "x", x, 3);
    check_float(op, "wte", wte, 2);
    int64_t C = tensor_columns(x), Vp = wte.dim[0];
    check_packed(op, "x", x);
    check_tensor(op, "wte", wte, x.dtype, 2, Vp, C);
    check_per_row(op, "losses", losses, F32, x);
    check_per_row(op, "targets", targets, I32, x);
    REQUIRE(V >= 1 && V <= Vp, "head: V is %d, want 1 .. %lld, the rows of wte", V, (long long)Vp);
    check_float(op, "work", work, 2);
    check_tensor(op, "work", work, work.dtype, 2, work.dim[0], Vp);
    REQUIRE(work.dim[0] >= 1, "head: work has no row, want 1 or more");
    REQUIRE(!dx.data == !dwte.data, "head: one of dx and dwte is absent, want both or none");
    if (dx.data) {
        check_like(op, "dx", dx, x.dtype, x, C);
        check_packed(op, "dx", dx);
        check_tensor(op, "dwte", dwte, F32, 2, Vp, C);
    }
}

void check_adamw_update(Tensor param, Tensor param_bf16, Tensor m, Tensor v, Tensor grad) {
    const char *op = "adamw";
    check_float(op, "param", param, 1);
    int64_t count = tensor_columns(param);
    check_tensor(op, "param", param, F32, 1, count);
    check_tensor(op, "m", m, F32, 1, count);
    check_tensor(op, "v", v, F32, 1, count);
    check_tensor(op, "grad", grad, F32, 1, count);
    if (param_bf16.data) check_tensor(op, "param_bf16", param_bf16, BF16, 1, count);
}

void check_convert(Tensor to, Tensor from) {
    check_float("convert", "from", from, 1);
    check_float("convert", "to", to, 1);
    check_packed("convert", "from", from);
    check_packed("convert", "to", to);
    REQUIRE(tensor_count(to) == tensor_count(from), "convert: to has %lld elements, from %lld",
            (long long)tensor_count(to), (long long)tensor_count(from));
}
