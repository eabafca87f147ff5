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

/* 16 bits for each of the four elements {row, row + 8} x {column, column + 8}, of a row and a column whose bit 3 is 0:
   a unit that one thread has in the fragments of tensor cores, whether the matrix or its transpose is computed. Element
   (row + 8 i, column + 8 j) has half j, the low one first, of word i. */
PHILOX_FUNCTION Random64 dropout_bits(DropoutMask mask, uint32_t row, uint32_t column) {
    const Random64 counter = {{ (row >> 4 << 3 | (row & 7)) ^ mask.word, column >> 4 << 3 | (column & 7) }};
    return philox2x32(counter, mask.key);
}

/* An element is kept where the lower 15 of its bits are not below this. At most 0x7c00, infinity in half precision: the
   comparison may be one of halves, in which NaN is never below. */
PHILOX_FUNCTION uint32_t dropout_threshold(float rate) { return (uint32_t)(rate * 32768 + 0.5f); }

PHILOX_FUNCTION float dropout_scale(float rate) { return 32768.0f / (float)(32768 - dropout_threshold(rate)); }

PHILOX_FUNCTION int dropout_keeps(DropoutMask mask, uint32_t row, uint32_t column, uint32_t threshold) {
    const Random64 bits = dropout_bits(mask, row & ~8u, column & ~8u);
    return (bits.word[row >> 3 & 1] >> (column >> 3 & 1) * 16 & 0x7fff) >= threshold;
}

/* out, x (B,T,C), packed: out = x * scale where the mask of row t, column c, head 0 keeps the element, else 0. out may
   be x. It is its own backward pass: dx = dropout(dout). */
void dropout(Tensor out, Tensor x, const Dropout *d);

#endif
