/* ptx_sm90.cuh - PTX instructions of Hopper, one function each, named as in the PTX ISA: mbarriers, TMA
   copies (cp.async.bulk), GEMMs of a warpgroup (wgmma), setmaxnreg. The last two assemble for sm_90a only.

   Tiles in shared memory have the layout CU_TENSOR_MAP_SWIZZLE_128B: panels of 64 columns, 128 bytes a row, 1024-byte
   aligned; the 16-byte chunk c of row r is stored at chunk c ^ r % 8. Head size 128 takes two panels. */
#pragma once
#include <cuda.h>
#include "ptx.cuh"

/* ---- mbarrier: a phase completes when the expected arrivals and bytes have arrived; the next phase has the opposite
   parity. The first phase has parity 0; a wait for parity 1 on a fresh barrier returns at once. ---- */

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

/* ---- named barriers ---- */

DEVICE void bar_sync(int id, int threads)   { asm volatile("bar.sync %0, %1;"   :: "r"(id), "r"(threads) : "memory"); }
DEVICE void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory"); }

/* ---- TMA: one thread issues a copy. Threads that wrote its source in shared memory call fence_proxy_async before the
   barrier that precedes the copy. ---- */

DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Orders TMA copies and other accesses to global memory. */
DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
DEVICE void prefetch_tensormap(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}
DEVICE void cp_async_bulk_tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                      int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
/* Elements outside the tensor are not written. */
DEVICE void cp_async_bulk_tensor_store(const CUtensorMap *map, uint32_t from, int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 :: "l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
/* Addresses and bytes are multiples of 16. */
DEVICE void cp_async_bulk_load(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void cp_reduce_async_bulk_add(float *to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(from), "r"(bytes) : "memory");
}
DEVICE void cp_async_bulk_store(float *to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(from), "r"(bytes) : "memory");
}
DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* All but the last PENDING groups of this thread have read their source (_read), or are complete and visible. */
template<int PENDING> DEVICE void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}
template<int PENDING> DEVICE void cp_async_bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
}

/* ---- clusters: blocks that run at the same time and reach each other's shared memory ---- */

DEVICE int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* All threads of all blocks */
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* The address that `address` of this block has in block `rank` of the cluster */
DEVICE uint32_t map_to_block(uint32_t address, int rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}
DEVICE void mbarrier_arrive_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}
/* 16 bytes, which complete at `barrier` of the same block */
DEVICE void st_async(uint32_t to, int a, int b, int c, int d, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier) : "memory");
}
/* To the same address of each block in the mask `blocks`, and completes at the same barrier of each */
DEVICE void cp_async_bulk_tensor_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int blocks,
                                           int c0, int c1, int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"((uint16_t)blocks)
                 : "memory");
}

/* ---- wgmma: d (64,N) f32 += a (64,16) b (16,N), bf16, by 128 threads ----

   Thread t of the warpgroup, g = t % 32 / 4, c = t % 4, holds d[4j + 2i + e] = (16 (t/32) + g + 8i, 8j + 2c + e), and
   of an A in registers a[2x + i] = (16 (t/32) + g + 8i, 8x + 2c .. 2c+1): 16 columns of an accumulator, packed to bf16,
   are an A fragment of the next GEMM. */

/* Low word of the descriptor of an operand in shared memory; the high word is a constant (128-byte swizzle, 1024 bytes
   from 8 rows to the next 8). panel_bytes, the distance of panels, is for an MN-major operand of several panels. */
typedef uint32_t Descriptor;
DEVICE Descriptor make_descriptor(uint32_t address, int panel_bytes = 0) {
    return (address & 0x3ffff) >> 4 | (uint32_t)panel_bytes << 12;      /* above them: the block of the cluster */
}
DEVICE Descriptor advance(Descriptor x, int bytes) { return x + (uint32_t)(bytes >> 4); }
DEVICE uint64_t full_descriptor(Descriptor x) { return 0x4000004000000000u | x; }

DEVICE void wgmma_fence()        { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template<int PENDING> DEVICE void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

/* Keeps the compiler from reading d before the wait for the wgmma that writes it. */
template<int N> DEVICE void wgmma_fence_operand(float (&d)[N]) {
    #pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

#define D4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* K_MAJOR: a row of the tile runs along k; MN_MAJOR: along m or n. add = 0: d = a b. */
enum { K_MAJOR = 0, MN_MAJOR = 1 };

/* a and b from shared memory */
template<int A, int B> DEVICE void wgmma(float (&d)[32], Descriptor a, Descriptor b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
                 : D16(0), D16(16) : "l"(full_descriptor(a)), "l"(full_descriptor(b)), "r"(add), "n"(A), "n"(B));
}

template<int A, int B> DEVICE void wgmma(float (&d)[64], Descriptor a, Descriptor b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
                 : D16(0), D16(16), D16(32), D16(48)
                 : "l"(full_descriptor(a)), "l"(full_descriptor(b)), "r"(add), "n"(A), "n"(B));
}

/* a from registers */
template<int B> DEVICE void wgmma(float (&d)[32], const uint32_t *a, Descriptor b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                 : D16(0), D16(16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(full_descriptor(b)), "r"(add), "n"(B));
}

template<int B> DEVICE void wgmma(float (&d)[64], const uint32_t *a, Descriptor b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                 : D16(0), D16(16), D16(32), D16(48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(full_descriptor(b)), "r"(add), "n"(B));
}

#undef D4
#undef D16
#undef NAMES_32
#undef NAMES_64

/* ---- synchronization through global memory ---- */

DEVICE int ld_acquire(const int *flag) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(flag)) : "memory");
    return value;
}
DEVICE int atom_cas_acquire(int *flag, int expected, int desired) {
    int was;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(was) : "l"(__cvta_generic_to_global(flag)), "r"(expected), "r"(desired) : "memory");
    return was;
}
DEVICE void red_add_release(int *flag, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" :: "l"(__cvta_generic_to_global(flag)), "r"(x) : "memory");
}

/* Each of two floats, on 8 bytes, is added atomically. */
DEVICE void red_add(float *to, float x0, float x1) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};"
                 :: "l"(__cvta_generic_to_global(to)), "f"(x0), "f"(x1) : "memory");
}

/* ---- registers ---- */

/* Executed by all warps of a warpgroup; N is a multiple of 8; the block's total must not exceed that of the launch. */
template<int N> DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template<int N> DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

/* Two floats in an even register and the odd one after it. The exponentials of the forward pass read the maxima of two
   rows alternately and find both in the operand reuse cache: that pass is 1 to 3 % faster. Without this, ptxas put both
   in even or both in odd registers, which evict each other. */
struct Pair {
    uint64_t both;

    Pair() = default;
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
