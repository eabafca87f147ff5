/* attention_dropout.cuh - The mask of P (kernels/dropout.h) in the kernels of attention. */
#pragma once
#include <type_traits>
#include "attention_cuda.h"
#include "ptx.cuh"

struct AttentionDropout {
    uint64_t seed;
    const uint64_t *sequence;
    uint32_t site;
    float    scale, inverse_scale;
    DropoutDigits digits;

    AttentionDropout(const Dropout &d)
        : seed(d.seed), sequence(d.sequence), site(d.site), scale(dropout_scale(d.rate)), inverse_scale(1 / scale),
          digits(dropout_digits(dropout_threshold(d.rate))) {}
    /* The mask of head h of sequence b */
    DEVICE DropoutMask mask(int b, int h) const {
        return dropout_mask(seed, site, (sequence ? *sequence : 0) + (uint64_t)b, h);
    }
};

/* ---- mma.sync and wgmma: a warp draws the mask of 2048 elements, a block a lane, into shared memory, where each
   thread finds the bits of its fragments */

enum { WARP_MASK_BYTES = 256 };

/* mask[QUERIES][KEYS / 8] = the block in this row and column of blocks: a bit for each key */
template<int KEYS, int QUERIES = 2048 / KEYS>
DEVICE void store_block(uint8_t *mask, Random64 kept, int row, int column) {
    constexpr int WIDTH = KEYS / 8;
    __syncwarp();               /* all lanes have read what was there */
    if (KEYS * QUERIES == 2048 || 8 * row < QUERIES)
        for (int i = 0; i < 8; i++) mask[(8 * row + i) * WIDTH + column] = kept.word[i / 4] >> 8 * (i % 4);
    __syncwarp();
}

/* The mask of the elements from this query and key on */
template<int KEYS> DEVICE void draw_mask(uint8_t *mask, const AttentionDropout &dropout, DropoutMask of_head, int query,
                                         int key) {
    constexpr int WIDTH = KEYS / 8;
    const int row = lane_id() / WIDTH, column = lane_id() % WIDTH;
    store_block<KEYS>(mask, dropout_draw(of_head, query / 8 + row, key / 8 + column, dropout.digits), row, column);
}

/* x, or 0 where bit 7 of the byte is 0 */
DEVICE float keep_by_bit(float x, uint32_t bits, int byte) {
    return __uint_as_float(__float_as_uint(x) & prmt(bits, bits, 0x8888 + 0x1111 * byte));
}

/* What is kept of the elements of accumulators: all of them. */
struct KeepAll {
    template<class... Any> DEVICE KeepAll(const Any &...) {}
    DEVICE uint32_t pair(int, int, int) const { return ~0u; }
    DEVICE float keep(float x, int, int, int) const { return x; }
};

/* What the mask keeps of MT x N accumulators (16,8), whose rows are queries or, TRANSPOSED, keys: element
   (16 m + 8 h + g, 8 n + 2 c + e) has bit 7 of byte byte_of(m, n, h) of word[word_of(m, n, h)][e]. */
template<bool TRANSPOSED, int MT, int N> struct KeepDrawn {
    static constexpr int WORDS = TRANSPOSED ? N : 2 * MT * (N / 4);
    uint32_t word[WORDS][2];

    static DEVICE constexpr int word_of(int m, int n, int h) { return TRANSPOSED ? n : (2 * m + h) * (N / 4) + n / 4; }
    static DEVICE constexpr int byte_of(int m, int n, int h) { return TRANSPOSED ? 2 * m + h : n % 4; }

    /* Reads a mask that draw_mask<64> has written, from its key `first` on; TRANSPOSED one of draw_mask<16 * MT>, from
       its query `first` on. */
    DEVICE KeepDrawn(const uint8_t *mask, int first, int g, int c) {
        if constexpr (TRANSPOSED) {
            #pragma unroll
            for (int n = 0; n < N; n++) {
                const uint8_t *rows = mask + (first + 8 * n + 2 * c) * 2 * MT;
                uint32_t even, odd;
                if constexpr (MT == 2) { even = ((const uint2 *)rows)->x; odd = ((const uint2 *)rows)->y; }
                else                   { even = *(const uint32_t *)rows; odd = even >> 16; }
                word[n][0] = even << (7 - g);
                word[n][1] = odd << (7 - g);
            }
        } else {
            #pragma unroll
            for (int i = 0; i < 2 * MT; i++)
                #pragma unroll
                for (int w = 0; w < N / 4; w++) {
                    const uint32_t bits = *(const uint32_t *)(mask + (8 * i + g) * 8 + first / 8 + 4 * w);
                    word[i * (N / 4) + w][0] = bits << (7 - 2 * c);
                    word[i * (N / 4) + w][1] = bits << (6 - 2 * c);
                }
        }
    }
    /* All ones where the elements e = 0 and 1, in bf16, are kept. */
    DEVICE uint32_t pair(int m, int n, int h) const {
        const uint32_t (&w)[2] = word[word_of(m, n, h)];
        return prmt(w[0], w[1], 0xcc88 + 0x1111 * byte_of(m, n, h));
    }
    /* x, or 0 where the element is dropped. */
    DEVICE float keep(float x, int m, int n, int e) const {
        return keep_by_bit(x, word[word_of(m, n, e / 2)][e % 2], byte_of(m, n, e / 2));
    }
};

template<bool DROPOUT, bool TRANSPOSED, int MT, int N>
using FragmentMask = std::conditional_t<DROPOUT, KeepDrawn<TRANSPOSED, MT, N>, KeepAll>;
