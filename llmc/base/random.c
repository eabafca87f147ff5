#include "random.h"
#include "base.h"
#include "../../kernels/normal.h"

Random128 philox(uint64_t seed, RandomPurpose purpose, uint32_t block, uint32_t step, uint64_t position) {
    Random128 counter = {{ (uint32_t)position, (uint32_t)(position >> 32), step, (uint32_t)purpose | block << 8 }};
    return philox4x32(counter, seed);
}

static uint64_t low_half(Random128 r) { return r.word[0] | (uint64_t)r.word[1] << 32; }

double random_uniform(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position) {
    Random128 r = philox(seed, purpose, 0, step, position);
    return uniform_of(r.word[0], r.word[1]);
}

/* Lemire 2019, "Fast random integer generation in an interval": the high half of bits * n, rejecting the few low halves
   that would bias it. */
uint64_t random_below(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t position, uint64_t n) {
    REQUIRE(n > 0, "random_below: n is 0, want 1 or more");
    uint64_t rejected = -n % n;      /* 2^64 mod n */
    for (uint32_t block = 0; ; block++) {
        unsigned __int128 wide = (unsigned __int128)low_half(philox(seed, purpose, block, step, position)) * n;
        if ((uint64_t)wide >= rejected) return (uint64_t)(wide >> 64);
    }
}

uint64_t random_permute(uint64_t seed, RandomPurpose purpose, uint32_t step, uint64_t index, uint64_t n) {
    REQUIRE(index < n, "random_permute: index %" PRIu64 ", want one below %" PRIu64, index, n);
    /* index = left * b + right with left in [0,a), right in [0,b). As ab - n < a, about sqrt(n), the walk below almost
       never takes a second step, and any a >= 1 keeps it right, however sqrt rounds. */
    uint64_t a = (uint64_t)ceil(sqrt((double)n));
    uint64_t b = n / a + (n % a != 0);
    do {
        uint64_t left = index / b, right = index % b;
        for (uint32_t round = 0; round < 8; round++) {
            uint64_t *digit = round % 2 ? &right : &left;
            uint64_t other  = round % 2 ?  left  :  right;
            uint64_t size   = round % 2 ?  b     :  a;
            uint64_t bits   = low_half(philox(seed, purpose, round, step, other));
            *digit = (*digit + (uint64_t)((unsigned __int128)bits * size >> 64)) % size;
        }
        index = left * b + right;
    } while (index >= n);
    return index;
}
