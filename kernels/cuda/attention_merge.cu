/* kernels/cuda/attention_merge.cu - Merge of two partial attentions: a warp per row of lse. */
#include "attention_cuda.h"
#include "common.cuh"

enum { WARPS = 8 };

static __global__ void merge_kernel(Tensor out, Tensor lse, Tensor part, Tensor part_lse) {
    const int64_t NH = lse.dim[1], T = lse.dim[2], HS = out.dim[2] / NH;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;         /* (b, h, t) */
    if (row >= lse.dim[0] * NH * T) return;
    const int64_t h = row / T % NH, i = row / T / NH * T + row % T;
    float *o = (float *)out.data + i * out.pitch + h * HS, *l = (float *)lse.data + row;
    const float *p = (const float *)part.data + i * part.pitch + h * HS;
    const float before = *l, part_l = ((const float *)part_lse.data)[row];
    if (part_l == -INFINITY) return;
    const float row_max = fmaxf(before, part_l), weight = expf(before - row_max), part_weight = expf(part_l - row_max);
    const float total = weight + part_weight;
    for (int64_t c = threadIdx.x % 32; c < HS; c += 32) o[c] = (weight * o[c] + part_weight * p[c]) / total;
    __syncwarp();
    if (threadIdx.x % 32 == 0) *l = row_max + logf(total);
}

void attention_merge(Tensor out, Tensor lse, Tensor part, Tensor part_lse) {
    attention_check_merge(out, lse, part, part_lse);
    LAUNCH(merge_kernel, (unsigned)ceil_div(tensor_count(lse), WARPS), 32 * WARPS, 0, out, lse, part, part_lse);
}
