/* attention_merge.cu - Merge of two partial attentions: one pass at the speed of memory. */
#include "attention_cuda.h"
#include "common.cuh"

enum { THREADS_MAX = 256 };

/* A block per row of out; 2^log_lanes threads of one warp per head, SIZE elements each at a time. */
template <class T, class Out, int SIZE>
static __global__ void __launch_bounds__(THREADS_MAX)
merge_kernel(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse, int log_lanes) {
    const int NH = (int)lse.dim[1], rows = (int)lse.dim[2], HS = (int)out.dim[2] / NH;
    const int b = blockIdx.x / rows, t = blockIdx.x % rows, lanes = 1 << log_lanes;
    T *merged_row = (T *)merged.data + blockIdx.x * merged.pitch;
    const Out *out_row = (const Out *)out.data + blockIdx.x * out.pitch;
    const float *part_row = (const float *)part.data + blockIdx.x * part.pitch;
    for (int slot = threadIdx.x; slot < (NH * lanes + 31) / 32 * 32; slot += blockDim.x) {      /* whole warps */
        const int h = min(slot >> log_lanes, NH - 1), lane = slot & (lanes - 1);
        float *l = (float *)lse.data + ((int64_t)b * NH + h) * lse.pitch + t;
        const float part_l = ((const float *)part_lse.data)[((int64_t)b * NH + h) * part_lse.pitch + t], before = *l;
        __syncwarp();                                                   /* all lanes have read lse */
        if (slot >> log_lanes >= NH) continue;
        if (part_l == -INFINITY) {
            for (int c = h * HS + lane; c < (h + 1) * HS; c += lanes)
                merged_row[c] = from_float<T>(to_float(out_row[c]));
            continue;
        }
        const float row_max = fmaxf(before, part_l);
        const float weight = expf(before - row_max), part_weight = expf(part_l - row_max);
        const float total = weight + part_weight, factor = weight / total, part_factor = part_weight / total;
        for (int c = lane * SIZE; c < HS; c += lanes * SIZE) {
            float o[SIZE], p[SIZE];
            load_floats(o, out_row + h * HS + c);
            load_floats(p, part_row + h * HS + c);
            for (int i = 0; i < SIZE; i++) o[i] = factor * o[i] + part_factor * p[i];
            store_floats(merged_row + h * HS + c, o);
        }
        if (lane == 0) *l = row_max + logf(total);
    }
}

void attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse) {
    check_attention_merge(merged, lse, out, part, part_lse);
    const int64_t NH = lse.dim[1], HS = out.dim[2] / NH, rows = tensor_rows(out);
    REQUIRE(rows <= INT32_MAX, "attention_merge: %lld rows, want at most %d", (long long)rows, INT32_MAX);
    const int size = HS % 4 == 0 && rows_aligned(merged) && rows_aligned(out) && rows_aligned(part) ? 4 : 1;
    int log_lanes = 0;
    while (log_lanes < 5 && size << log_lanes < HS) log_lanes++;
    const int64_t threads = ceil_div(NH << log_lanes, 32) * 32;
    const auto kernel = merged.dtype == F32 ? size == 4 ? merge_kernel<float, float, 4> : merge_kernel<float, float, 1>
                      : out.dtype == F32    ? size == 4 ? merge_kernel<bf16, float, 4>  : merge_kernel<bf16, float, 1>
                                            : size == 4 ? merge_kernel<bf16, bf16, 4>   : merge_kernel<bf16, bf16, 1>;
    LAUNCH(kernel, (unsigned)rows, (unsigned)(threads < THREADS_MAX ? threads : (int64_t)THREADS_MAX), 0, merged, lse,
           out, part, part_lse, log_lanes);
}
