/* matmul.c - The linear layer: checks, three GEMMs and the column sums, with either backend. */
#include "matmul.h"
#include <inttypes.h>
#include <stdio.h>
#include "check_ops.h"
#include "device.h"
#include "gelu.h"
#include "gemm.h"
#include "profile.h"

/* c = or += a b + bias; COLUMN_MAJOR: the tensor is the transpose of the operand. */
static Gemm gemm_of(Tensor c, Tensor a, Layout a_layout, Tensor b, Layout b_layout, Tensor bias, Into into) {
    return (Gemm){
        .M = tensor_rows(c), .N = tensor_columns(c), .K = a_layout == ROW_MAJOR ? tensor_columns(a) : tensor_rows(a),
        .dtype = a.dtype, .a = { a.data, a.pitch, a_layout }, .b = { b.data, b.pitch, b_layout }, .bias = bias.data,
        .c = c.data, .c_dtype = c.dtype, .c_pitch = c.pitch, .into = into, .a_max = a.max, .b_max = b.max
    };
}

/* A row of a profile for each shape of the weight: "matmul dx 768x3072". */
static void gemm_begin(const char *name, Tensor weight, double bytes, double flop) {
    char text[48] = "";
    if (profile_is_on) snprintf(text, sizeof text, "%s %" PRId64 "x%" PRId64, name, weight.dim[0], weight.dim[1]);
    op_begin(text, bytes, flop);
}

void matmul_forward(Tensor out, Tensor pre_gelu, Tensor x, Tensor weight, Tensor bias) {
    const char *op = "matmul";
    check_float(op, "out", out, 2);
    check_float(op, "x", x, 2);
    const int64_t N = tensor_columns(out), K = tensor_columns(x);
    const int is_f32 = out.dtype == F32 && !bias.data && !pre_gelu.data;
    check_like(op, "out", out, is_f32 ? F32 : x.dtype, x, N);
    check_tensor(op, "weight", weight, x.dtype, 2, N, K);
    if (bias.data) check_tensor(op, "bias", bias, x.dtype, 1, N);
    if (pre_gelu.data) {
        check_like(op, "pre_gelu", pre_gelu, x.dtype, x, N);
        check_packed(op, "pre_gelu", pre_gelu);
        check_packed(op, "out", out);
    }

    const double flop = 2.0 * (double)(tensor_count(x) * N);
    gemm_begin(pre_gelu.data ? "matmul + gelu" : "matmul", weight, op_bytes(5, x, weight, bias, pre_gelu, out), flop);
    const Gemm g = gemm_of(pre_gelu.data ? pre_gelu : out, x, ROW_MAJOR, weight, COLUMN_MAJOR, bias, OVERWRITE);
    if (pre_gelu.data) gemm_gelu(g, out.data);
    else               gemm(g);
    op_end();
}

void matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_bias, Tensor dout, Tensor x, Tensor x_pre_gelu,
                     Tensor weight, Into into) {
    const char *op = "matmul backward";
    check_float(op, "dout", dout, 2);
    check_float(op, "x", x, 2);
    const int64_t N = tensor_columns(dout), K = tensor_columns(x);
    check_like(op, "dout", dout, x.dtype, x, N);
    check_tensor(op, "weight", weight, x.dtype, 2, N, K);
    check_tensor(op, "dweight", dweight, F32, 2, N, K);
    if (dx.data) check_like(op, "dx", dx, x.dtype, x, K);
    if (dbias.data) check_tensor(op, "dbias", dbias, F32, 1, N);
    if (x_pre_gelu.data) {
        check_like(op, "x_pre_gelu", x_pre_gelu, x.dtype, x, K);
        check_packed(op, "x_pre_gelu", x_pre_gelu);
        check_packed(op, "dx", dx);
    }
    if (dx_bias.data) check_tensor(op, "dx_bias", dx_bias, F32, 1, K);
    REQUIRE(!dx_bias.data || (dx.data && x_pre_gelu.data), "%s: dx_bias without dx or x_pre_gelu, want both", op);

    const double flop = 2.0 * (double)(tensor_count(x) * N);
    const int beside = dx.data && dx.data != x.data;
    if (beside) device_side_begin();
    if (dbias.data) column_sums(dbias, dout, into);
    gemm_begin(into == ACCUMULATE ? "matmul dweight +=" : "matmul dweight", weight,
               op_bytes(into == ACCUMULATE ? 4 : 3, dout, x, dweight, dweight), flop);
    gemm(gemm_of(dweight, dout, COLUMN_MAJOR, x, ROW_MAJOR, ABSENT, into));         /* before dx, which may be x */
    op_end();
    if (beside) device_side_end();
    if (!dx.data) return;
    gemm_begin("matmul dx", weight, op_bytes(3, dout, weight, dx), flop);
    gemm(gemm_of(dx, dout, ROW_MAJOR, weight, ROW_MAJOR, ABSENT, OVERWRITE));
    op_end();
    if (x_pre_gelu.data) gelu_backward(dx, dx, x_pre_gelu, dx_bias, into);
}

void matmul_fp8_forward(Tensor out, Tensor x, Tensor weight, Tensor bias) {
    const char *op = "matmul fp8";
    const int64_t rows = tensor_rows(x), N = tensor_columns(out), K = tensor_columns(x);
    check_e4m3(op, "x", x, rows, K);
    check_e4m3(op, "weight", weight, N, K);
    check_tensor(op, "out", tensor_flat(out), BF16, 2, rows, N);
    if (bias.data) check_tensor(op, "bias", bias, BF16, 1, N);
    gemm_begin(op, weight, op_bytes(4, x, weight, bias, out), 2.0 * (double)(tensor_count(x) * N));
    gemm(gemm_of(out, x, ROW_MAJOR, weight, COLUMN_MAJOR, bias, OVERWRITE));
    op_end();
}

void matmul_fp8_backward(Tensor dx, Tensor dweight, Tensor dout, Tensor doutt, Tensor xt, Tensor weightt, Into into) {
    const char *op = "matmul fp8 backward";
    const int64_t rows = tensor_rows(dout), N = tensor_columns(dout), K = xt.dim[0];
    const double flop = 2.0 * (double)(rows * N * K);
    check_e4m3(op, "dout", dout, rows, N);
    check_e4m3(op, "doutt", doutt, N, rows);
    check_e4m3(op, "xt", xt, K, rows);
    check_e4m3(op, "weightt", weightt, K, N);
    check_tensor(op, "dweight", dweight, F32, 2, N, K);
    if (dx.data) check_tensor(op, "dx", tensor_flat(dx), BF16, 2, rows, K);
    gemm_begin(into == ACCUMULATE ? "matmul fp8 dweight +=" : "matmul fp8 dweight", dweight,
               op_bytes(into == ACCUMULATE ? 4 : 3, doutt, xt, dweight, dweight), flop);
    gemm(gemm_of(dweight, doutt, ROW_MAJOR, xt, COLUMN_MAJOR, ABSENT, into));
    op_end();
    if (!dx.data) return;
    gemm_begin("matmul fp8 dx", dweight, op_bytes(3, dout, weightt, dx), flop);
    gemm(gemm_of(dx, dout, ROW_MAJOR, weightt, COLUMN_MAJOR, ABSENT, OVERWRITE));
    op_end();
}
