/* cuda.h - The stream, and the checks of calls of the CUDA runtime and of cuBLAS, for C and C++. */
#pragma once
#include <cuda_runtime.h>
#ifdef __cplusplus
extern "C" {
#endif
#include "../check.h"
#include "../tensor.h"

extern cudaStream_t cuda_stream;        /* all work is issued to this stream */
extern int cuda_side;                   /* 1 between device_side_begin and _end, where it is the side stream: scratch
                                           memory of ops that run there is a second one. Else 0 */
extern int cuda_frozen;                 /* by device_freeze_weights */
extern int cuda_early_reads;            /* and a kernel was launched since that waits for all before it: those behind it
                                           may read weights early */
extern int64_t cuda_joins;              /* how often device_overlap_wait has waited */
extern volatile int cuda_aborted;       /* by comm_abort: results are undefined, so device_wait does not return */

int    cuda_arch(void);                 /* compute capability times ten: 80, 90 */
int    cuda_sm_count(void);
size_t cuda_smem_bytes(void);           /* shared memory that a block can have */

/* For gemm.c: a GEMM of a few rows, as in generation, bound by reading b once. Returns 0, having done nothing, unless M
   is at most 4, or 2 for many columns, the columns of b are contiguous (weights in a forward pass) and rows begin on 16
   bytes. gelu: as in gemm_gelu; NULL = none. */
struct Gemm;
int gemv(const struct Gemm *g, void *gelu);

/* For comm_nccl.c, on its stream: sum (count) = parts (part_count, count) added up in their order. Device memory. */
void sum_parts(float *sum, const float *parts, int64_t count, int part_count, cudaStream_t stream);

static inline cudaDataType_t cuda_type(DType dtype) {
    return dtype == BF16 ? CUDA_R_16BF : dtype == E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_32F;
}
#ifdef __cplusplus
}
#endif

#define CUDA(call) do { \
    cudaError_t error_ = (call); \
    REQUIRE(error_ == cudaSuccess, "cuda: %s: %s", #call, cudaGetErrorString(error_)); \
} while (0)

#define CUBLAS(call) do { \
    cublasStatus_t status_ = (call); \
    REQUIRE(status_ == CUBLAS_STATUS_SUCCESS, "cublas: %s: %s", #call, cublasGetStatusString(status_)); \
} while (0)
