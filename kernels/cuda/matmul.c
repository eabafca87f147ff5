/* kernels/cuda/matmul.c - The linear layer: three products and the sum of columns. */
#include "../matmul.h"
#include "../check_ops.h"
#include "gemm.h"

void matmul_forward(Tensor out, Tensor x, Tensor weight, Tensor bias) {
    check_matmul_forward(out, x, weight, bias);
    gemm((Gemm){
        .M = tensor_rows(x), .N = tensor_columns(out), .K = tensor_columns(x), .dtype = x.dtype,
        .a = { x.data, x.pitch, BY_ROWS }, .b = { weight.data, weight.pitch, TRANSPOSED },
        .bias = bias.data, .c = out.data, .c_dtype = out.dtype, .c_pitch = out.pitch, .into = OVERWRITE
    });
}

void matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dout, Tensor x, Tensor weight, Into dweight_into) {
    check_matmul_backward(dx, dweight, dbias, dout, x, weight);
    REQUIRE(dweight.dtype == F32, "matmul backward: dweight is %s, want f32", dtype_name(dweight.dtype));
    const int64_t rows = tensor_rows(x), N = tensor_columns(dout), K = tensor_columns(x);
    if (dbias.data) column_sums(dbias, dout, dweight_into);
    if (dx.data)
        gemm((Gemm){
            .M = rows, .N = K, .K = N, .dtype = x.dtype,
            .a = { dout.data, dout.pitch, BY_ROWS }, .b = { weight.data, weight.pitch, BY_ROWS },
            .c = dx.data, .c_dtype = dx.dtype, .c_pitch = dx.pitch, .into = OVERWRITE
        });
    gemm((Gemm){
        .M = N, .N = K, .K = rows, .dtype = x.dtype,
        .a = { dout.data, dout.pitch, TRANSPOSED }, .b = { x.data, x.pitch, BY_ROWS },
        .c = dweight.data, .c_dtype = F32, .c_pitch = dweight.pitch, .into = dweight_into
    });
}
