/* tensor_map.cuh - Descriptors of tensors for TMA copies. */
#pragma once
#include <cudaTypedefs.h>
#include "ptx_sm90.cuh"

/* A bf16 tensor of four dimensions, innermost first and contiguous. stride: bytes between elements of the other
   three. box: elements that one copy moves, 64 of the innermost, in shared memory in the layout of ptx_sm90.cuh.
   Outside of the tensor zeros are read, nothing is written. Fails unless data and strides are multiples of 16 bytes. */
static inline CUtensorMap tensor_map_of(const char *name, void *data, const int64_t (&dim)[4],
                                        const int64_t (&stride)[3], const int (&box)[4]) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode;        /* from the runtime: no link to libcuda */
    if (!encode) {
        cudaDriverEntryPointQueryResult found;
        CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault,
                                              &found));
        REQUIRE(encode, "TMA: the driver has no cuTensorMapEncodeTiled, want one for CUDA 12.0 or newer");
    }
    const cuuint32_t step[] = { 1, 1, 1, 1 };
    CUtensorMap map;
    const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, data, (const cuuint64_t *)dim,
                                   (const cuuint64_t *)stride, (const cuuint32_t *)box, step,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    REQUIRE(result == CUDA_SUCCESS, "TMA refuses %s, (%lld,%lld,%lld,%lld) with strides of %lld, %lld and %lld bytes "
            "at %p: CUDA error %d", name, (long long)dim[3], (long long)dim[2], (long long)dim[1], (long long)dim[0],
            (long long)stride[2], (long long)stride[1], (long long)stride[0], data, (int)result);
    return map;
}
