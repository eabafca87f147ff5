/* kernels/dropout.h - Dropout (Srivastava et al. 2014) with masks that are drawn again where they are needed, never
   stored: whether an element is kept is a function of its place, the same on every backend, for every tiling, split of
   the batch and number of ranks. */
#ifndef KERNELS_DROPOUT_H
#define KERNELS_DROPOUT_H
#include "philox.h"
#include "tensor.h"

typedef struct {
    float           rate;       /* of elements set to 0, 0 .. 0.95; the others are multiplied by dropout_scale */
    uint32_t        site;       /* which matrix of the model: no two of them share one */
    uint64_t        seed;
    const uint64_t *sequence;   /* device address of the number of sequence 0 of the batch; b has that + b. NULL = 0 */
} Dropout;

/* The mask of one matrix: rows and columns of one head of one sequence at one site. */
typedef struct { uint32_t key, word; } DropoutMask;

PHILOX_FUNCTION DropoutMask dropout_mask(uint64_t seed, uint32_t site, uint64_t sequence, uint32_t head) {
    const Random128 counter = {{ (uint32_t)sequence, (uint32_t)(sequence >> 32), head, site }};
    const Random128 r = philox4x32(counter, seed);
    return (DropoutMask){ r.word[0], r.word[1] };
}

/* An element has a random number of DROPOUT_DIGITS binary digits and is kept where that is not below the threshold. The
   rate is rounded to a multiple of 1/4096; the scale is that of the rounded rate. */
enum { DROPOUT_DIGITS = 12 };

PHILOX_FUNCTION uint32_t dropout_threshold(float rate) { return (uint32_t)(rate * (1 << DROPOUT_DIGITS) + 0.5f); }

PHILOX_FUNCTION float dropout_scale(float rate) {
    return (float)(1 << DROPOUT_DIGITS) / (float)((1 << DROPOUT_DIGITS) - (int)dropout_threshold(rate));
}

/* The mask of a block of 8 x 8 elements: bit 8 i + j, from the lowest of word 0 on, is 1 where element
   (8 row_block + i, 8 column_block + j) is kept.

   64 random bits are one digit of all 64 numbers. Four digits are the state of one Philox2x32 after 7, 10, 13 and 16
   rounds: bits of states 1 round apart correlate, 2 apart no pair and no triple did in 5e8 draws. The numbers are
   compared with the threshold from the lowest digit on: where the threshold has a 1, an element is kept that has a 1
   and is kept so far; where it has a 0, one for which either holds. That is the majority of digit, result so far and
   the threshold's inverted digit, one LOP3. A block takes 79 LOP3 and 48 IMAD.WIDE: 2 instructions an element. */
PHILOX_FUNCTION Random64 dropout_block(DropoutMask mask, uint32_t row_block, uint32_t column_block,
                                       uint32_t threshold) {
    Random64 kept = {{ ~0u, ~0u }}, state = kept;
    uint32_t key = mask.key;
    PHILOX_UNROLL
    for (uint32_t digit = 0; digit < DROPOUT_DIGITS; digit++) {
        if (digit % 4 == 0) {
            state = (Random64){{ (row_block << 2 | digit / 4) ^ mask.word, column_block }};
            key = mask.key;
        }
        PHILOX_UNROLL
        for (int round = digit % 4 ? 3 : PHILOX2X32_ROUNDS; round > 0; round--, key += philox2x32_key_step)
            state = philox2x32_round(state, key);
        const uint32_t either = (threshold >> digit & 1) - 1;
        PHILOX_UNROLL
        for (int i = 0; i < 2; i++)
            kept.word[i] = (state.word[i] & kept.word[i]) | (either & (state.word[i] | kept.word[i]));
    }
    return kept;
}

/* Whether element (i,j) of a block is kept. */
PHILOX_FUNCTION int dropout_bit(Random64 kept, int i, int j) { return kept.word[i >> 2] >> (8 * (i & 3) + j) & 1; }

PHILOX_FUNCTION int dropout_keeps(DropoutMask mask, uint32_t row, uint32_t column, uint32_t threshold) {
    return dropout_bit(dropout_block(mask, row / 8, column / 8, threshold), row % 8, column % 8);
}

/* out, x (B,T,C), packed: out = x * scale where the mask of row t, column c, head 0 keeps the element, else 0. out may
   be x. It is its own backward pass: dx = dropout(dout). */
void dropout(Tensor out, Tensor x, const Dropout *d);

#endif
