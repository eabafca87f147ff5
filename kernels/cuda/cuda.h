/* kernels/cuda/cuda.h - The stream, and the check of every call of the CUDA runtime, for C and C++. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H
#include <cuda_runtime.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "../check.h"

extern cudaStream_t cuda_stream;        /* all work is issued to this one stream */

int cuda_arch(void);                    /* compute capability times ten: 80, 90 */
#ifdef __cplusplus
}
#endif

#define CUDA(call) do { \
    cudaError_t error_ = (call); \
    REQUIRE(error_ == cudaSuccess, "cuda: %s: %s", #call, cudaGetErrorString(error_)); \
} while (0)

#endif
