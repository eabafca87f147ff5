/* kernels/cuda/attention_dropout.cuh - The mask of P (kernels/dropout.h) in the fragments of mma and wgmma: the sign of
   P, negative where the element is dropped. relu(P) then is the masked P, at no cost where it is converted to bf16, and
   |P| the whole one.

   In a square of 16 x 16 elements a thread has the eight (g + 8i, 8j + 2c + e), as x[4j + 2i + e]; i, j, e = 0, 1;
   g = lane / 4, c = lane % 4. They are two units of dropout_bits, whether the rows are queries or, TRANSPOSED, keys. */
#ifndef KERNELS_CUDA_ATTENTION_DROPOUT_CUH
#define KERNELS_CUDA_ATTENTION_DROPOUT_CUH
#include "attention_cuda.h"
#include "ptx.cuh"

struct AttentionDropout {
    uint64_t seed;
    const uint64_t *sequence;
    uint32_t site, thresholds;      /* dropout_threshold in both halves */
    float    scale, inverse_scale;

    AttentionDropout(const Dropout &d)
        : seed(d.seed), sequence(d.sequence), site(d.site), thresholds(dropout_threshold(d.rate) * 0x10001u),
          scale(dropout_scale(d.rate)), inverse_scale(1 / scale) {}
    /* Of head h of sequence b */
    DEVICE DropoutMask mask(int b, int h) const {
        return dropout_mask(seed, site, (sequence ? *sequence : 0) + (uint64_t)b, h);
    }
};

/* In uniform registers, where the keys of the seven rounds then are, too. */
DEVICE DropoutMask uniform(DropoutMask m) {
    return { __reduce_or_sync(0xffffffffu, m.key), __reduce_or_sync(0xffffffffu, m.word) };
}

/* p = -p where the mask drops it: a thread's eight elements of a square, p >= 0. query_unit, key_unit: of the element
   i = j = e = 0, in units of dropout_bits, 8 a square: row r has unit r / 16 * 8 + r % 8. The sign of p is that of
   |bits| - threshold, computed as numbers in half precision, two at once. */
template<bool TRANSPOSED> DEVICE void negate_dropped(float *p, DropoutMask mask, uint32_t thresholds,
                                                     uint32_t query_unit, uint32_t key_unit) {
    #pragma unroll
    for (int e = 0; e < 2; e++) {
        const Random64 bits = philox2x32({{ query_unit ^ (TRANSPOSED ? e : 0) ^ mask.word,
                                            key_unit ^ (TRANSPOSED ? 0 : e) }}, mask.key);
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const int word = n / 2, half = n % 2, i = TRANSPOSED ? half : word, j = TRANSPOSED ? word : half;
            uint32_t sign;
            asm("{\n.reg .b32 x;\nabs.f16x2 x, %1;\nsub.rn.f16x2 %0, x, %2;\n}"
                : "=r"(sign) : "r"(bits.word[word]), "r"(thresholds));
            float &x = p[4 * j + 2 * i + e];
            x = __uint_as_float(__float_as_uint(x) | ((half ? sign : sign << 16) & 0x80000000u));
            asm("" : "+f"(x));      /* the compiler would keep |x| as well, in another register */
        }
    }
}

/* relu(p) */
DEVICE uint32_t bf16_pair_kept(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* dS, without the scale of the mask, which delta is divided by */
DEVICE float masked_ds(float p, float dp, float delta) { return fmaxf(p, 0) * dp - fabsf(p) * delta; }

#endif
