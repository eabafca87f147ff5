/* The masks of dropout (kernels/dropout.h): known answers, that a block is the comparison of 64 numbers with the
   threshold, and statistics of 10^8 elements: the correlation of elements that a weak generator would couple. Every
   statistic is a sum of independent terms, in units of its standard deviation. */
#include "../oracle.h"
#include "../test.h"

enum { SIDE = 2048, MASKS = 6, NUMBERS = 1 << DROPOUT_DIGITS, OWN = DROPOUT_DIGITS - DROPOUT_SHARED };
static const double SIGMAS_MAX = 6;         /* one time in 10^9 by chance; 400 statistics a run */

typedef struct { uint8_t kept[SIDE][2 * SIDE]; } Matrix;        /* every row twice, for a shift of columns */
static Matrix matrix[MASKS];

TEST(known_answers) {
    Random64 r = {{ 0, 0 }};
    for (uint32_t i = 0; i < PHILOX2X32_ROUNDS; i++) r = philox2x32_round(r, i * philox2x32_key_step);
    EXPECT(r.word[0] == 0x257a3673 && r.word[1] == 0xcd26be2a, "philox2x32-7: %08x %08x", r.word[0], r.word[1]);
    const DropoutMask mask = dropout_mask(1, 2, 3, 4);
    EXPECT(mask.word[0] == 0x486b6bf8 && mask.word[1] == 0x2585ce58, "mask: %08x %08x", mask.word[0], mask.word[1]);
    static const uint32_t blocks[][3] = {
        { 410, 0xedfffffd, 0xff7fbbf3 }, { 819, 0xedfffffd, 0xfd7fb3f3 }, { 2048, 0x4dc76f51, 0x7553b231 }
    };
    for (int i = 0; i < COUNT(blocks); i++) {
        r = dropout_draw(mask, 5, 6, dropout_digits(blocks[i][0]));
        EXPECT(r.word[0] == blocks[i][1] && r.word[1] == blocks[i][2], "block at %u: %08x %08x", blocks[i][0],
               r.word[0], r.word[1]);
    }
    for (int i = 0; i <= 950; i++) {
        float rate = (float)i / 1000;
        uint32_t threshold = dropout_threshold(rate);
        EXPECT(fabs((double)threshold / NUMBERS - rate) <= 0.5 / NUMBERS + 1e-7, "rate %g: threshold %u", rate,
               threshold);
        EXPECT(fabs(dropout_scale(rate) * (1 - (double)threshold / NUMBERS) - 1) < 1e-7, "rate %g: scale %g", rate,
               dropout_scale(rate));
    }
}

static Random64 state_of(DropoutMask mask, uint32_t row, uint32_t column, uint32_t generator, uint32_t rounds) {
    Random64 r = {{ (2 * row + generator) ^ mask.word[0], column ^ mask.word[1] }};
    for (uint32_t i = 0; i < rounds; i++) r = philox2x32_round(r, i * philox2x32_key_step);
    return r;
}

/* The numbers of a block, from their digits. */
TEST(blocks) {
    DropoutMask mask = dropout_mask(5, 7, 1ull << 40, 3);
    for (int n = 0; n < 10000; n++) {
        uint32_t row = (uint32_t)uniform_int(0, 1 << 20), column = (uint32_t)uniform_int(0, 1 << 20);
        uint32_t threshold = (uint32_t)uniform_int(0, NUMBERS - 1), number[64];
        for (int i = 0; i < 64; i++) number[i] = state_of(mask, row, column, 0, 5).word[0] >> 28;
        for (uint32_t digit = 0; digit < OWN; digit++) {
            Random64 r = state_of(mask, row, column, digit % 2, 7 + 2 * (digit / 2));
            for (int i = 0; i < 64; i++) number[i] |= (r.word[i / 32] >> i % 32 & 1) << (DROPOUT_SHARED + digit);
        }
        Random64 kept = dropout_draw(mask, row, column, dropout_digits(threshold));
        for (uint32_t i = 0; i < 64; i++) {
            EXPECT(dropout_bit(kept, (int)i / 8, (int)i % 8) == (number[i] >= threshold),
                   "block (%u,%u), threshold %u, element (%u,%u)", row, column, threshold, i / 8, i % 8);
        }
    }
}

static void draw(Matrix *to, DropoutMask mask, uint32_t threshold) {
    #pragma omp parallel for
    for (uint32_t row = 0; row < SIDE; row++)
        for (uint32_t column = 0; column < 2 * SIDE; column += 8) {
            const Random64 block = dropout_draw(mask, row / 8, column % SIDE / 8, dropout_digits(threshold));
            for (int j = 0; j < 8; j++) to->kept[row][column + (uint32_t)j] = (uint8_t)dropout_bit(block, row % 8, j);
        }
}

/* Sum of (x - p)(y - p) over all elements x of a and y of b, so many rows and columns behind x, around the ends; not
   SIDE / 2, which has each pair twice; p: the probability to be kept. */
static void expect_uncorrelated(const Matrix *a, const Matrix *b, int rows, int columns, const char *what, double rate,
                                double p) {
    int both = 0, either = 0;
    for (int row = 0; row < SIDE; row++) {
        const uint8_t *x = a->kept[row], *y = b->kept[(row + rows) % SIDE] + columns;
        for (int i = 0; i < SIDE; i++) {
            both += x[i] & y[i];
            either += x[i] + y[i];
        }
    }
    const double n = (double)SIDE * SIDE, sigmas = (both - p * either + p * p * n) / (p * (1 - p) * sqrt(n));
    EXPECT(fabs(sigmas) < SIGMAS_MAX, "rate %g, %s: %.2f standard deviations", rate, what, sigmas);
}

TEST(statistics) {
    static const float rates[] = { 0.1f, 0.2f, 0.5f, 0.9f };
    static const struct { const char *what; int rows, columns; } moves[] = {
        { "next column", 0, 1 }, { "next row", 1, 0 }, { "next row and column", 1, 1 }, { "column + 2", 0, 2 },
        { "row + 1, column - 1", 1, SIDE - 1 }, { "row + 2", 2, 0 }, { "column + 4", 0, 4 }, { "row + 4", 4, 0 },
        { "column + 8", 0, 8 }, { "row + 8", 8, 0 }, { "row + 8 and column + 8", 8, 8 },
        { "row + 8, column - 8", 8, SIDE - 8 }, { "column + 16", 0, 16 }, { "row + 16", 16, 0 },
        { "column + 64", 0, 64 }, { "row + 64", 64, 0 }, { "column + 512", 0, 512 }, { "row + 512", 512, 0 },
    };
    static const char *const other[MASKS] = { "", "next sequence", "next head", "next block", "next seed",
                                              "sequence + 2^32" };
    for (int n = 0; n < COUNT(rates); n++) {
        const uint32_t threshold = dropout_threshold(rates[n]), site = (uint32_t)uniform_int(0, 255) << 8 | 9;
        const uint64_t seed = (uint64_t)uniform_int(0, INT32_MAX), sequence = (uint64_t)uniform_int(0, INT32_MAX);
        const uint32_t head = (uint32_t)uniform_int(0, 24);
        const double p = 1 - (double)threshold / NUMBERS;
        const DropoutMask mask[MASKS] = {
            dropout_mask(seed, site, sequence, head),           dropout_mask(seed, site, sequence + 1, head),
            dropout_mask(seed, site, sequence, head + 1),       dropout_mask(seed, site + (3 << 8), sequence, head),
            dropout_mask(seed + 1, site, sequence, head),       dropout_mask(seed, site, sequence + (1ull << 32), head)
        };
        for (int m = 0; m < MASKS; m++) draw(&matrix[m], mask[m], threshold);
        for (int m = 1; m < MASKS; m++) expect_uncorrelated(&matrix[0], &matrix[m], 0, 0, other[m], rates[n], p);
        for (int m = 0; m < MASKS; m++)
            for (int i = 0; i < COUNT(moves); i++)
                expect_uncorrelated(&matrix[m], &matrix[m], moves[i].rows, moves[i].columns, moves[i].what, rates[n],
                                    p);
    }
}

int main(void) {
    random_open();
    return test_all();
}
