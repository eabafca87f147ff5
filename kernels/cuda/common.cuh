/* common.cuh - Shared by the kernels: launches, 16-byte accesses, reductions in a fixed order.
   nvcc unrolls an innermost loop of up to 8 iterations by itself: it needs no #pragma unroll. */
#pragma once
#include <initializer_list>
#include <type_traits>
#include <cuda_bf16.h>
#include "cuda.h"
extern "C" {
#include "../check_ops.h"
#include "../device.h"
#include "../profile.h"
}

typedef __nv_bfloat16 bf16;

/* More than 48 KiB of shared memory must be allowed; a kernel with 24 KiB or more gets as much of it as the SM has,
   rather than L1, so that several blocks fit. */
template <class... P> static void allow_smem(void (*kernel)(P...), size_t smem_bytes) {
    if (smem_bytes < 24 << 10) return;
    CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_bytes));
    CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
}

/* A kernel's pointer gets a tensor's address. */
template <class P, class A> static P argument_of(const A &x) {
    if constexpr (std::is_same_v<A, Tensor> && std::is_pointer_v<P>) return (P)x.data;
    else                                                             return x;
}

template <class... P, class... A>
static void launch_kernel(const char *name, bool is_early, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t smem_bytes, const A &...arguments) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    const unsigned attributes = is_early && cuda_arch() == 90;
    const cudaLaunchConfig_t config = { grid, block, smem_bytes, cuda_stream, &attribute, attributes };
    allow_smem(kernel, smem_bytes);
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, argument_of<P>(arguments)...);
    REQUIRE(error == cudaSuccess, "cuda: %s: %s", name, cudaGetErrorString(error));
    if (!is_early) cuda_early_reads = cuda_frozen;
}

/* Starts a kernel on cuda_stream. Parentheses keep a template's commas together:
   LAUNCH((norm_kernel<float, 4>), grid, block, smem_bytes, arguments...)
   Sizes of 64 bits become a kernel's int. */
#define LAUNCH(kernel, ...) launch_kernel(#kernel, false, kernel, __VA_ARGS__)

/* For a kernel that waits for the one before it by a function below: on compute capability 9.0 its blocks take their
   places while that one still runs (programmatic dependent launch). */
#define LAUNCH_EARLY(kernel, ...) launch_kernel(#kernel, true, kernel, __VA_ARGS__)

/* Lets the next kernel take its places. */
__device__ inline void launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until all kernels before this one have ended and their writes are visible. Before it a thread writes nothing,
   and reads only what no kernel that may still run writes: constants, frozen weights (device_freeze_weights), what was
   complete when the kernel before called this in front of launch_next. */
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Both: the next kernel takes its places while this one still waits. */
__device__ inline void wait_for_previous() {
    launch_next();
    griddepcontrol_wait();
}

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Rows can be accessed 16 bytes at a time: address, pitch and length are multiples of 16 bytes. */
static inline bool rows_aligned(Tensor t) {
    const size_t bytes = dtype_bytes(t.dtype), row_bytes = (size_t)tensor_columns(t) * bytes;
    return (uintptr_t)t.data % 16 == 0 && (size_t)t.pitch * bytes % 16 == 0 && row_bytes % 16 == 0;
}

/* Fails unless the rows of all tensors that are present can be. Those of a model can: device_refuse_channels. */
static inline void require_aligned_rows(const char *op, std::initializer_list<Tensor> tensors) {
    for (const Tensor &t : tensors)
        REQUIRE(!t.data || rows_aligned(t), "%s: rows of %lld elements of %s at %p with pitch %lld, want address, "
                "length and pitch on 16 bytes", op, (long long)tensor_columns(t), dtype_name(t.dtype), t.data,
                (long long)t.pitch);
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x)  { return __bfloat162float(x); }
template <class T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16  from_float<bf16>(float x)  { return __float2bfloat16_rn(x); }

/* 16 bytes of T: 4 floats or 8 bf16. Addresses are multiples of 16 bytes.
       Pack<T>::load(x + i).to_float(f);  ...  Pack<T>::from_float(f).store(y + i); */
template <class T> struct Pack {
    static constexpr int SIZE = 16 / (int)sizeof(T);
    uint4 bits;

    static __device__ inline Pack load(const T *address)      { return { *(const uint4 *)address }; }
    /* for data that is not read again soon: evicted first from the cache */
    static __device__ inline Pack load_once(const T *address) { return { __ldcs((const uint4 *)address) }; }
    /* for data that is read once: not kept in the L1; a token of 124M 1 us faster than with load_once in gemv.cu */
    static __device__ inline Pack load_no_allocate(const T *address) {
        Pack x;
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.bits.x), "=r"(x.bits.y), "=r"(x.bits.z), "=r"(x.bits.w)
                     : "l"(__cvta_generic_to_global(address)));
        return x;
    }
    __device__ inline void store(T *address) const            { *(uint4 *)address = bits; }
    __device__ inline void to_float(float (&f)[SIZE]) const;
    static __device__ inline Pack from_float(const float (&f)[SIZE]);
    /* to_float is computed again afterwards: the compiler keeps the pack in registers, not its floats */
    __device__ inline void forget_floats() { asm("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w)); }
};

template <> __device__ inline void Pack<float>::to_float(float (&f)[4]) const {
    f[0] = __uint_as_float(bits.x);
    f[1] = __uint_as_float(bits.y);
    f[2] = __uint_as_float(bits.z);
    f[3] = __uint_as_float(bits.w);
}

template <> __device__ inline Pack<float> Pack<float>::from_float(const float (&f)[4]) {
    return { make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3])) };
}

/* A bf16 is the upper half of a float; the lower of a pair has the lower address. */
__device__ inline float low_of(unsigned pair)  { return __uint_as_float(pair << 16); }
__device__ inline float high_of(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline unsigned bf16_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const unsigned *)&pair;
}

template <> __device__ inline void Pack<bf16>::to_float(float (&f)[8]) const {
    const unsigned pair[4] = { bits.x, bits.y, bits.z, bits.w };
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i]     = low_of(pair[i]);
        f[2 * i + 1] = high_of(pair[i]);
    }
}

template <> __device__ inline Pack<bf16> Pack<bf16>::from_float(const float (&f)[8]) {
    return { make_uint4(bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]), bf16_pair(f[4], f[5]), bf16_pair(f[6], f[7])) };
}

/* 4 bf16 */
struct HalfPack {
    uint2 bits;
    __device__ inline void to_float(float (&f)[4]) const {
        f[0] = low_of(bits.x);
        f[1] = high_of(bits.x);
        f[2] = low_of(bits.y);
        f[3] = high_of(bits.y);
    }
};

/* SIZE consecutive elements as floats, in one access: a pack, a single element, or 4 bf16. ONCE: as load_once. */
template <bool ONCE = false, class T, int SIZE> __device__ inline void load_floats(float (&f)[SIZE], const T *from) {
    if constexpr (SIZE == 1)                  f[0] = to_float(*from);
    else if constexpr (SIZE == Pack<T>::SIZE) (ONCE ? Pack<T>::load_once(from) : Pack<T>::load(from)).to_float(f);
    else HalfPack{ ONCE ? __ldcs((const uint2 *)from) : *(const uint2 *)from }.to_float(f);
}

template <class T, int SIZE> __device__ inline void store_floats(T *to, const float (&f)[SIZE]) {
    if constexpr (SIZE == 1)                    *to = from_float<T>(f[0]);
    else if constexpr (SIZE == Pack<T>::SIZE)   Pack<T>::from_float(f).store(to);
    else                                        *(uint2 *)to = { bf16_pair(f[0], f[1]), bf16_pair(f[2], f[3]) };
}

/* Over the lanes of a warp, or of each group of LANES neighbours; every lane gets the same bits. */
template <int LANES = 32, class T> __device__ inline T warp_sum(T x) {
    #pragma unroll
    for (int i = LANES / 2; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

template <int LANES = 32> __device__ inline float warp_max(float x) {
    #pragma unroll
    for (int i = LANES / 2; i; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* The largest magnitude in bits and a pack, as the bits of a float: ordered as the floats are, NaN above all. */
template <class T> __device__ inline unsigned max_magnitude(unsigned bits, Pack<T> pack) {
    float f[Pack<T>::SIZE];
    pack.to_float(f);
    for (int k = 0; k < Pack<T>::SIZE; k++) bits = max(bits, __float_as_uint(f[k]) & 0x7fffffffu);
    return bits;
}

/* Tensor.max, NULL: not wanted. The host sets it to the least value, 4.3e-31, so that E4M3_MAX over it is finite; each
   warp of a kernel then raises it. The load, from the L1, spares most of the atomics. */
static inline void max_begin(float *max) { if (max) CUDA(cudaMemsetAsync(max, 0x0d, sizeof *max, cuda_stream)); }
__device__ inline void max_raise(float *max, unsigned bits) {
    if (!max) return;
    bits = __reduce_max_sync(0xffffffffu, bits);
    if (threadIdx.x % 32 == 0 && bits > *(const unsigned *)max) atomicMax((unsigned *)max, bits);
}

template <class T, T over_warp(T)> __device__ inline T block_reduce(T x, T identity) {
    __shared__ T partial[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = over_warp(x);
    __syncthreads();
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return over_warp(lane < warps ? partial[lane] : identity);
}

/* Over all threads of a block of whole warps, in a fixed order; every thread calls it and gets the same bits. It may
   be called again at once. */
template <class T> __device__ inline T block_sum(T x) { return block_reduce<T, warp_sum<32, T>>(x, T(0)); }
__device__ inline float block_max(float x) { return block_reduce<float, warp_max<32>>(x, -INFINITY); }
