/* kernels/cpu/matmul.c - The linear layer: three products and the sum of columns. */
#include "../matmul.h"
#include "../check_ops.h"
#include "gemm.h"

void matmul_forward(Tensor out, Tensor x, Tensor weight, Tensor bias) {
    check_matmul_forward(out, x, weight, bias);
    gemm((Gemm){
        .M = tensor_rows(x), .N = tensor_columns(out), .K = tensor_columns(x),
        .a = { x.data, x.pitch, BY_ROWS }, .b = { weight.data, weight.pitch, TRANSPOSED },
        .bias = bias.data, .c = out.data, .c_pitch = out.pitch, .into = OVERWRITE
    });
}

/* sum = or += the sums of t's columns. A thread takes 64 columns; 64 rows are added before they join the total, so
   that the error grows with the square root of the rows. */
static void sum_columns(float *sum, Tensor t, Into into) {
    enum { COLUMNS = 64, ROWS = 64 };
    const int64_t row_count = tensor_rows(t), column_count = tensor_columns(t);
    const float *data = t.data;
    #pragma omp parallel for schedule(static) if (row_count * column_count > 1 << 14)
    for (int64_t first = 0; first < column_count; first += COLUMNS) {
        const int columns = (int)(column_count - first < COLUMNS ? column_count - first : COLUMNS);
        float total[COLUMNS] = {0};
        for (int64_t block = 0; block < row_count; block += ROWS) {
            const int64_t last = block + ROWS < row_count ? block + ROWS : row_count;
            float partial[COLUMNS] = {0};
            for (int64_t i = block; i < last; i++)
                for (int j = 0; j < columns; j++) partial[j] += data[i * t.pitch + first + j];
            for (int j = 0; j < columns; j++) total[j] += partial[j];
        }
        for (int j = 0; j < columns; j++) sum[first + j] = into == ACCUMULATE ? sum[first + j] + total[j] : total[j];
    }
}

void matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dout, Tensor x, Tensor weight, Into dweight_into) {
    check_matmul_backward(dx, dweight, dbias, dout, x, weight);
    const int64_t rows = tensor_rows(x), N = tensor_columns(dout), K = tensor_columns(x);
    if (dbias.data) sum_columns(dbias.data, dout, dweight_into);
    if (dx.data)
        gemm((Gemm){
            .M = rows, .N = K, .K = N,
            .a = { dout.data, dout.pitch, BY_ROWS }, .b = { weight.data, weight.pitch, BY_ROWS },
            .c = dx.data, .c_pitch = dx.pitch, .into = OVERWRITE
        });
    gemm((Gemm){
        .M = N, .N = K, .K = rows,
        .a = { dout.data, dout.pitch, TRANSPOSED }, .b = { x.data, x.pitch, BY_ROWS },
        .c = dweight.data, .c_pitch = dweight.pitch, .into = dweight_into
    });
}
