/* kernels/matmul.c - The linear layer: checks, three GEMMs and the column sums. */
#include "matmul.h"
#include "check_ops.h"
#include "gemm.h"

/* c = or += a b + bias; COLUMN_MAJOR: the tensor is the transpose of the operand. */
static void multiply(Tensor c, Tensor a, Layout a_layout, Tensor b, Layout b_layout, Tensor bias, Into into) {
    gemm((Gemm){
        .M = tensor_rows(c), .N = tensor_columns(c), .K = a_layout == ROW_MAJOR ? tensor_columns(a) : tensor_rows(a),
        .dtype = a.dtype, .a = { a.data, a.pitch, a_layout }, .b = { b.data, b.pitch, b_layout }, .bias = bias.data,
        .c = c.data, .c_dtype = c.dtype, .c_pitch = c.pitch, .into = into
    });
}

void matmul_forward(Tensor out, Tensor x, Tensor weight, Tensor bias) {
    check_matmul_forward(out, x, weight, bias);
    multiply(out, x, ROW_MAJOR, weight, COLUMN_MAJOR, bias, OVERWRITE);
}

void matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dout, Tensor x, Tensor weight, Into dweight_into) {
    check_matmul_backward(dx, dweight, dbias, dout, x, weight);
    if (dbias.data) column_sums(dbias, dout, dweight_into);
    if (dx.data) multiply(dx, dout, ROW_MAJOR, weight, ROW_MAJOR, ABSENT, OVERWRITE);
    multiply(dweight, dout, COLUMN_MAJOR, x, ROW_MAJOR, ABSENT, dweight_into);
}
