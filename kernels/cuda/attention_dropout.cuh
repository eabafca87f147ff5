/* kernels/cuda/attention_dropout.cuh - The mask of P (kernels/dropout.h) in the fragments of mma and wgmma. On Ampere
   it is the sign of P, negative where the element is dropped: relu(P) then is the masked P, at no cost where it is
   converted to bf16, and |P| the whole one. On Hopper it is a bit an element, drawn while the tensor cores work.

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

/* The mask of a row of squares, drawn before P is there, a bit an element: of two squares in each step of a loop, since
   ptxas would move straight code behind the next wait for wgmma. Pair n of squares has four bits in each byte of
   dropped[n % COUNT], the high ones if it is the last there: that of square x, unit e, word and half is bit
   7 - 2 (x % 2) - word of byte 2 half + e. Draws `pairs` of them, from query_unit and key_unit on; what was in dropped
   is gone when all 2 COUNT are drawn. */
template<bool TRANSPOSED, int COUNT> DEVICE void draw_dropped(uint32_t (&dropped)[COUNT], DropoutMask mask,
                                                              uint32_t thresholds, uint32_t query_unit,
                                                              uint32_t key_unit, int pairs = 2 * COUNT) {
    uint32_t &unit = TRANSPOSED ? query_unit : key_unit;
    #pragma unroll 1
    for (const uint32_t end = unit + 16 * pairs; unit != end; unit += 16) {
        uint32_t next = dropped[0] >> 4 & 0x0f0f0f0fu;
        #pragma unroll
        for (int x = 0; x < 2; x++)
            #pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t step = 8 * x | e;
                const Random64 bits = philox2x32({{ query_unit ^ (TRANSPOSED ? step : 0) ^ mask.word,
                                                    key_unit ^ (TRANSPOSED ? 0 : step) }}, mask.key);
                #pragma unroll
                for (int word = 0; word < 2; word++) {
                    uint32_t below;         /* all bits of a half set: as numbers in half precision, two at once */
                    asm("{\n.reg .b32 x;\nabs.f16x2 x, %1;\nset.lt.u32.f16x2 %0, x, %2;\n}"
                        : "=r"(below) : "r"(bits.word[word]), "r"(thresholds));
                    next |= below & 0x00010001u << (7 - 2 * x - word + 8 * e);
                }
            }
        dropped[0] = dropped[COUNT - 1];
        dropped[COUNT - 1] = next;
    }
}

/* By how much to shift left, so that the bits of a square and word are the signs of bytes */
template<int COUNT> DEVICE constexpr int dropped_shift(int square, int word) {
    return (square / 2 < COUNT ? 4 : 0) + square % 2 * 2 + word;
}

template<int COUNT> DEVICE bool is_dropped(const uint32_t (&dropped)[COUNT], int square, int word, int half, int e) {
    return dropped[square / 2 % COUNT] >> (16 * half + 8 * e + 7 - dropped_shift<COUNT>(square, word)) & 1;
}

/* A pair in bf16, e = 0 and 1, without what is dropped: two instructions, and one of four bits */
template<int COUNT> DEVICE uint32_t kept_pair(uint32_t pair, const uint32_t (&dropped)[COUNT], int square, int word,
                                              int half) {
    const uint32_t signs = dropped[square / 2 % COUNT] << dropped_shift<COUNT>(square, word);
    uint32_t mask;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(signs), "r"(half ? 0xbbaa : 0x9988));  /* eight times a sign */
    return pair & ~mask;
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
