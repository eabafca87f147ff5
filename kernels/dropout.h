/* dropout.h - Dropout (Srivastava et al. 2014) with masks that are drawn again where they are needed, never
   stored: whether an element is kept is a function of its place, the same on every backend, for every tiling, split of
   the batch and number of ranks. */
#pragma once
#include "philox.h"
#include "tensor.h"

typedef struct {
    float           rate;       /* share of elements set to 0, 0 .. 0.95; others are multiplied by dropout_scale */
    uint32_t        site;       /* which matrix of the model: no two of them share one */
    uint64_t        seed;
    const uint64_t *sequence;   /* device address of the number of sequence 0 of the batch; b has that + b. NULL = 0 */
} Dropout;

/* The mask of one matrix: rows and columns of one head of one sequence at one site. */
typedef Random64 DropoutMask;

PHILOX_FUNCTION DropoutMask dropout_mask(uint64_t seed, uint32_t site, uint64_t sequence, uint32_t head) {
    const Random128 counter = {{ (uint32_t)sequence, (uint32_t)(sequence >> 32), head, site }};
    const Random128 r = philox4x32(counter, seed);
    return (DropoutMask){{ r.word[0], r.word[1] }};
}

/* An element has a random number of DROPOUT_DIGITS binary digits and is kept where that is not below the threshold. The
   rate is rounded to a multiple of 1/4096; the scale is that of the rounded rate. The elements of a block of 8 x 8 have
   the lowest DROPOUT_SHARED digits in common: two of them correlate by at most 2^-18 / (rate (1 - rate)), 4e-5 at a
   rate of 0.1. */
enum { DROPOUT_DIGITS = 12, DROPOUT_SHARED = 4 };

PHILOX_FUNCTION uint32_t dropout_threshold(float rate) { return (uint32_t)(rate * (1 << DROPOUT_DIGITS) + 0.5f); }

PHILOX_FUNCTION float dropout_scale(float rate) {
    return (float)(1 << DROPOUT_DIGITS) / (float)((1 << DROPOUT_DIGITS) - (int)dropout_threshold(rate));
}

/* The threshold for dropout_draw: its shared digits at the top of a word, and for each other digit, from the lowest
   on, all ones where it is 0. */
typedef struct { uint32_t shared, either[DROPOUT_DIGITS - DROPOUT_SHARED]; } DropoutDigits;

PHILOX_FUNCTION DropoutDigits dropout_digits(uint32_t threshold) {
    DropoutDigits d = { threshold << (32 - DROPOUT_SHARED), {0} };
    PHILOX_UNROLL
    for (int i = 0; i < DROPOUT_DIGITS - DROPOUT_SHARED; i++)
        d.either[i] = (threshold >> (DROPOUT_SHARED + i) & 1) - 1;
    return d;
}

/* The mask of a block of 8 x 8 elements: bit 8 i + j, from the lowest of word 0 on, is 1 where element
   (8 row_block + i, 8 column_block + j) is kept.

   64 random bits are one digit of all 64 numbers: the states of two Philox2x32 after 7, 9, 11 and 13 rounds, in turn.
   (Bits of states 1 round apart correlate, 2 apart no pair and no triple did in 5e8 draws.) The shared digits are the
   highest of the first generator's state after 5. The round keys are constants, those of a key of 0; the matrix is in
   the counter, as 64 random bits. The numbers are compared with the threshold from the lowest digit on: where the
   threshold has a 1, an element is kept that has a 1 and is kept so far; where it has a 0, one for which either holds.
   That is the majority of digit, result so far and the threshold's inverted digit, one LOP3. A block takes 78
   instructions, 26 of them IMAD.WIDE: 1.2 an element. */
PHILOX_FUNCTION Random64 dropout_draw(DropoutMask mask, uint32_t row_block, uint32_t column_block,
                                      DropoutDigits threshold) {
    Random64 kept = {{ 0, 0 }}, state[2];
    uint32_t key = 0;
    for (uint32_t i = 0; i < 2; i++)
        state[i] = (Random64){{ (row_block << 1 | i) ^ mask.word[0], column_block ^ mask.word[1] }};
    PHILOX_UNROLL
    for (int round = 1; round <= 13; round++, key += philox2x32_key_step) {
        for (int i = 0; i < 2; i++) state[i] = philox2x32_round(state[i], key);
        if (round == 5) kept.word[0] = kept.word[1] = state[0].word[0] >= threshold.shared ? ~0u : 0;
        if (round < PHILOX2X32_ROUNDS || round % 2 == 0) continue;
        for (int i = 0; i < 4; i++) {
            const uint32_t x = state[i / 2].word[i % 2], either = threshold.either[round - PHILOX2X32_ROUNDS + i / 2];
            kept.word[i % 2] = (x & kept.word[i % 2]) | (either & (x | kept.word[i % 2]));
        }
    }
    return kept;
}

/* Whether element (i,j) of a block is kept. */
PHILOX_FUNCTION int dropout_bit(Random64 kept, int i, int j) { return kept.word[i >> 2] >> (8 * (i & 3) + j) & 1; }

/* out, x (B,T,C), packed: out = x * scale where the mask of row t, column c, head 0 keeps the element, else 0. out may
   be x. It is its own backward pass: dx = dropout(dout). */
void dropout(Tensor out, Tensor x, const Dropout *d);
