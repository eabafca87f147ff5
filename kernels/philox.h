/* philox.h - Philox4x32-10 and Philox2x32-7 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
   3"): random words as a function of a counter and a key, without a state. The same in host code and CUDA kernels. */
#pragma once
#include <stdint.h>

#ifdef __CUDACC__         /* also for kernels/normal.h and kernels/dropout.h */
#define PHILOX_FUNCTION __host__ __device__ static inline
#else
#define PHILOX_FUNCTION static inline
#endif

#if defined __CUDA_ARCH__           /* gcc needs it as well, to compute several blocks of a mask at once */
#define PHILOX_UNROLL _Pragma("unroll")
#elif defined __CUDACC__
#define PHILOX_UNROLL
#else
#define PHILOX_UNROLL _Pragma("GCC unroll 16")
#endif

typedef struct { uint32_t word[4]; } Random128;
typedef struct { uint32_t word[2]; } Random64;

PHILOX_FUNCTION Random128 philox4x32(Random128 counter, uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * counter.word[0], p1 = (uint64_t)0xCD9E8D57u * counter.word[2];
        const uint32_t word0 = (uint32_t)(p1 >> 32) ^ counter.word[1] ^ k0;
        const uint32_t word2 = (uint32_t)(p0 >> 32) ^ counter.word[3] ^ k1;
        counter.word[0] = word0;
        counter.word[1] = (uint32_t)p1;
        counter.word[2] = word2;
        counter.word[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;      /* the golden ratio */
        k1 += 0xBB67AE85u;      /* sqrt(3) - 1 */
    }
    return counter;
}

enum { PHILOX2X32_ROUNDS = 7 };          /* the fewest that pass every test of BigCrush */

static const uint32_t philox2x32_key_step = 0x9E3779B9u;         /* added to the key after each round */

PHILOX_FUNCTION Random64 philox2x32_round(Random64 state, uint32_t key) {
#ifdef __CUDA_ARCH__            /* ptxas 13.0 needs one more instruction a round for the shift */
    const uint32_t high = __umulhi(0xD256D193u, state.word[0]);
#else
    const uint32_t high = (uint32_t)((uint64_t)0xD256D193u * state.word[0] >> 32);
#endif
    return (Random64){{ high ^ state.word[1] ^ key, 0xD256D193u * state.word[0] }};
}
