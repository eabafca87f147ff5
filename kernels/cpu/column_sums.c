#include "../gemm.h"
#include "../profile.h"
#include "vecmath.h"

/* A thread takes 64 columns; 64 rows are added before they join the total, so that the error grows with the square root
   of the rows. */
void column_sums(Tensor sum_tensor, Tensor t, Into into) {
    op_begin("column sums", op_bytes(2, sum_tensor, t), 0);
    enum { COLUMNS = 64, ROWS = 64 };
    const int64_t row_count = tensor_rows(t), column_count = tensor_columns(t);
    const float *data = t.data;
    float *sum = sum_tensor.data;
    #pragma omp parallel for schedule(static) if (row_count * column_count > 1 << 14)
    for (int64_t first = 0; first < column_count; first += COLUMNS) {
        const int columns = (int)min64(COLUMNS, column_count - first);
        float total[COLUMNS] = {0};
        for (int64_t block = 0; block < row_count; block += ROWS) {
            const int64_t last = min64(block + ROWS, row_count);
            float partial[COLUMNS] = {0};
            for (int64_t i = block; i < last; i++)
                for (int j = 0; j < columns; j++) partial[j] += data[i * t.pitch + first + j];
            for (int j = 0; j < columns; j++) total[j] += partial[j];
        }
        for (int j = 0; j < columns; j++) sum[first + j] = into == ACCUMULATE ? sum[first + j] + total[j] : total[j];
    }
    op_end();
}
