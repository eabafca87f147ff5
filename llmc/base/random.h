/* random.h - Random numbers without a state, from Philox4x32-10. A number is a function of (seed, purpose, step,
   position): nothing to save, the same on any number of ranks, and sampling cannot affect training.

   The key is the seed, low word first. The counter is
       word 0, 1   position, low word first
       word 2      step
       word 3      purpose in the low byte; above it the number of the block, where one result needs several
   so that two numbers which differ in any of these never share a block. */
#pragma once
#include "../../kernels/philox.h"

typedef enum { RANDOM_INIT = 1, RANDOM_SHUFFLE, RANDOM_PHASE, RANDOM_SAMPLE, RANDOM_TEXT, RANDOM_TEST,
               RANDOM_DROPOUT } RandomPurpose;

Random128 philox(uint64_t seed, RandomPurpose purpose, uint32_t block, uint32_t step, uint64_t position);
double    random_uniform(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position);   /* [0,1), 53 bits */
/* Uniform in [0,n). */
uint64_t  random_below  (uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position, uint64_t n);

/* A bijection of [0,n), one for each (seed, purpose, step): a Feistel network over two digits (Black and Rogaway 2002,
   "Ciphers with arbitrary finite domains"), walked until it lands below n. */
uint64_t  random_permute(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t index, uint64_t n);
