/* kernels/cuda/hopper.h - What sm_90a has of its own, one small function per instruction, named as in the PTX manual:
   asynchronous barriers, the copy engine (TMA), the products of a warpgroup (wgmma), registers that move between warps.

   The shared-memory tile that all of them share: panels of 64 columns, R rows of 128 bytes, 1024-byte aligned, in which
   the 16-byte chunk c of row r lies at chunk c ^ r % 8 (CU_TENSOR_MAP_SWIZZLE_128B). Head size 128 is two panels. */
#ifndef KERNELS_CUDA_DEVICE_H
#define KERNELS_CUDA_DEVICE_H
#include <cuda.h>
#include "ptx.cuh"

/* ---- mbarrier: counts arrivals and bytes of a phase; then the phase changes parity. A fresh one has "completed" the
   phase of parity 1. ---- */

DEVICE void mbarrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again_%=;\n}" :: "r"(barrier), "r"(parity) : "memory");
}

/* ---- barriers of some of the block's warps ---- */

DEVICE void bar_sync(int id, int threads)   { asm volatile("bar.sync %0, %1;"   :: "r"(id), "r"(threads) : "memory"); }
DEVICE void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

/* ---- the copy engine. One thread starts a copy; shared memory written by threads needs fence_proxy_async in each
   of them before the barrier that lets that one go. ---- */

DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* between copies and other accesses to global memory */
DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

DEVICE void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

DEVICE void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

/* What lies outside the tensor is left out. */
DEVICE void tensor_store(const CUtensorMap *map, uint32_t from, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 :: "l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

/* Addresses and bytes are multiples of 16. */
DEVICE void bulk_load(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}

DEVICE void bulk_reduce_add(float *to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(from), "r"(bytes) : "memory");
}

DEVICE void bulk_store(float *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(from), "r"(bytes) : "memory");
}

DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Of this thread's groups all but the last PENDING have read their source (_read), or are done and can be seen. */
template<int PENDING> DEVICE void bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}
template<int PENDING> DEVICE void bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
}

/* ---- wgmma: d (64,N) f32 += a (64,16) b (16,N), bf16, by 128 threads ----

   Thread t of the warpgroup, g = t % 32 / 4, c = t % 4, holds d[4j + 2i + e] = (16 (t/32) + g + 8i, 8j + 2c + e), and
   of an A in registers a[2x + i] = (16 (t/32) + g + 8i, 8x + 2c .. 2c+1): so two neighbouring 8-column groups of one
   product, packed to bf16, are an A of the next one. */

/* An operand in shared memory, in the layout above, from `address` on: the low word of its descriptor; the high word is
   the same for all (the swizzle, and 1024 bytes from 8 rows to the next 8). panel_bytes: from one panel to the next; of
   use only where the operand is read across its rows and is wider than a panel. */
typedef uint32_t Operand;
DEVICE Operand operand(uint32_t address, int panel_bytes = 0) { return address >> 4 | (uint32_t)panel_bytes << 12; }
DEVICE Operand advanced(Operand x, int bytes) { return x + (uint32_t)(bytes >> 4); }
DEVICE uint64_t descriptor(Operand x) { return 0x4000004000000000u | x; }

DEVICE void wgmma_fence()        { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template<int PENDING> DEVICE void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

/* What a finished product wrote: keeps the compiler from reading it before the wait. */
template<int N> DEVICE void ready(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

#define D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define NAMES_32 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define NAMES_64 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

/* Where an operand lies along its rows, k is the column; ACROSS: k is the row. add 0: d = a b. */
enum { ALONG = 0, ACROSS = 1 };

/* a and b from shared memory */
template<int A, int B> DEVICE void wgmma(float (&d)[32], Operand a, Operand b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " NAMES_32 ", %32, %33, p, 1, 1, %35, %36;\n}"
                 : D16(0), D16(16) : "l"(descriptor(a)), "l"(descriptor(b)), "r"(add), "n"(A), "n"(B));
}

template<int A, int B> DEVICE void wgmma(float (&d)[64], Operand a, Operand b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " NAMES_64 ", %64, %65, p, 1, 1, %67, %68;\n}"
                 : D16(0), D16(16), D16(32), D16(48)
                 : "l"(descriptor(a)), "l"(descriptor(b)), "r"(add), "n"(A), "n"(B));
}

/* a from registers */
template<int B> DEVICE void wgmma(float (&d)[32], const uint32_t *a, Operand b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " NAMES_32
                 ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                 : D16(0), D16(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b)), "r"(add), "n"(B));
}

template<int B> DEVICE void wgmma(float (&d)[64], const uint32_t *a, Operand b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " NAMES_64
                 ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                 : D16(0), D16(16), D16(32), D16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor(b)), "r"(add), "n"(B));
}

#undef D4
#undef D16
#undef NAMES_32
#undef NAMES_64

/* ---- flags in global memory ---- */

DEVICE int load_acquire(const int *flag) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
    return value;
}

DEVICE int cas_acquire(int *flag, int expected, int desired) {
    int was;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(was) : "l"(__cvta_generic_to_global(flag)), "r"(expected), "r"(desired) : "memory");
    return was;
}

DEVICE void add_release(int *flag, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" :: "l"(__cvta_generic_to_global(flag)), "r"(x) : "memory");
}

/* ---- registers ---- */

/* All four warps of a warpgroup; multiples of 8. The block's sum must not exceed what it was at the launch. */
template<int N> DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template<int N> DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

/* Two floats in an even and the next odd register. What reads them in turn, as the exponentials of the forward pass do
   with the references of two rows, finds both in the operand reuse cache: 1 to 3 % of that pass. Left to ptxas both
   were even, or both odd, and drove each other out. */
struct Pair {
    uint64_t both;

    __device__ __forceinline__ Pair(float x, float y) {
        asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "f"(x), "f"(y));
    }
    __device__ __forceinline__ float operator[](int i) const {
        float x, y;
        asm("mov.b64 {%0, %1}, %2;" : "=f"(x), "=f"(y) : "l"(both));
        return i ? y : x;
    }
};

DEVICE void stmatrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

#endif
