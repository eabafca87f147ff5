/* llmc/random.h - Random numbers without a state: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy
   as 1, 2, 3"). A number is a function of (seed, purpose, step, position): nothing to save, the same on any number of
   ranks, and sampling cannot disturb training.

   The key is the seed, low word first. The counter is
       word 0, 1   position, low word first
       word 2      step
       word 3      purpose in the low byte; above it the number of the draw, for what needs more than one block
   so that two draws which differ in any of these never share a block. */
#ifndef LLMC_RANDOM_H
#define LLMC_RANDOM_H
#include <stdint.h>

typedef enum { RANDOM_INIT = 1, RANDOM_SHUFFLE, RANDOM_PHASE, RANDOM_SAMPLE, RANDOM_TEXT, RANDOM_TEST } RandomPurpose;

typedef struct { uint32_t word[4]; } Random128;

Random128 philox4x32(Random128 counter, uint64_t key);      /* the bare function, as in the paper */

Random128 philox(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position);           /* draw 0 */
double    random_uniform(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position);   /* [0,1), 53 bits */
double    random_normal (uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position);   /* Box-Muller */
/* [0,n), each as likely as the other. */
uint64_t  random_below  (uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position, uint64_t n);

/* A bijection of [0,n), one for each (seed, purpose, step): a Feistel network over two digits (Black and Rogaway 2002,
   "Ciphers with arbitrary finite domains"), walked until it lands below n. */
uint64_t  random_permute(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t index, uint64_t n);

#endif
