#include "xxh64.h"
#include <string.h>

/* The specification's primes 1 to 5; little-endian words, as everywhere here. */
static const uint64_t P1 = 0x9e3779b185ebca87, P2 = 0xc2b2ae3d27d4eb4f, P3 = 0x165667b19e3779f9,
                      P4 = 0x85ebca77c2b2ae63, P5 = 0x27d4eb2f165667c5;

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
static uint64_t turn(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

static uint64_t word_at(const unsigned char *bytes, size_t size) {
    uint64_t word = 0;
    memcpy(&word, bytes, size);
    return word;
}

static void add_stripe(XXH64 *sum, const unsigned char *stripe) {
    for (int i = 0; i < 4; i++) sum->lane[i] = turn(sum->lane[i], word_at(stripe + 8 * i, 8));
}

XXH64 xxh64_begin(void) { return (XXH64){ .lane = { P1 + P2, P2, 0, -P1 } }; }

void xxh64_add(XXH64 *sum, const void *bytes, size_t size) {
    const unsigned char *next = bytes, *end = next + size;
    size_t filled = sum->bytes % 32, fits = 32 - filled;
    sum->bytes += size;
    if (filled) {
        memcpy(sum->rest + filled, next, size < fits ? size : fits);
        if (size < fits) return;
        add_stripe(sum, sum->rest);
        next += fits;
    }
    for (; end - next >= 32; next += 32) add_stripe(sum, next);
    memcpy(sum->rest, next, (size_t)(end - next));
}

uint64_t xxh64_end(const XXH64 *sum) {
    const uint64_t *lane = sum->lane;
    const unsigned char *next = sum->rest, *end = next + sum->bytes % 32;
    uint64_t h = P5;
    if (sum->bytes >= 32) {
        h = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ turn(0, lane[i])) * P1 + P4;
    }
    h += sum->bytes;
    for (; end - next >= 8; next += 8) h = rotate(h ^ turn(0, word_at(next, 8)), 27) * P1 + P4;
    for (; end - next >= 4; next += 4) h = rotate(h ^ word_at(next, 4) * P1, 23) * P2 + P3;
    for (; next < end; next++)         h = rotate(h ^ *next * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}
