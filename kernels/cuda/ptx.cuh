/* ptx.cuh - PTX instructions of sm_80, one function each, named as in the PTX ISA. Those of sm_90a are in
   ptx_sm90.cuh. */
#pragma once
#include "common.cuh"

#define DEVICE __device__ __forceinline__

static constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

DEVICE int lane_id() { return threadIdx.x % 32; }
/* x of lane 0. ptxas knows the result to be uniform: what is computed from it can stay in uniform registers. */
DEVICE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

DEVICE float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four bytes of the eight of low and high, chosen by the digits of `bytes`; with 8 added to a digit the byte's highest
   bit, eight times. */
DEVICE uint32_t prmt(uint32_t low, uint32_t high, uint32_t bytes) {
    uint32_t x;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(low), "r"(high), "r"(bytes));
    return x;
}

/* Over the four lanes of a quad, which share a row of an accumulator of mma and wgmma. */
DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Four 8x8 matrices of b16; lane 8m + r passes the address of row r of matrix m. */
DEVICE void ldmatrix(uint32_t *d, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(address) : "memory");
}
DEVICE void ldmatrix_trans(uint32_t *d, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(address) : "memory");
}

/* c (16,8) f32 += a (16,16) b (16,8), bf16 */
DEVICE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 or 4 bytes; where not `valid`, zeros are written and nothing is read: the address may be any. */
DEVICE void cp_async_16(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0) : "memory");
}
DEVICE void cp_async_4(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(valid ? 4 : 0) : "memory");
}
DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* All but the last PENDING groups of this thread have arrived, for this thread to read. */
template <int PENDING> DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}
DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
