#include "bpe.h"
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "bpe_words.h"
#include "../base/files.h"
#include "../base/os.h"

enum {
    CACHE_BITS = 17,                /* 2^17 words of a core: 8 MiB */
    KEY = 24, IDS = 9,              /* longer words and words of more tokens are not in the cache */
    SHORT = 48,                     /* a longer word has a heap: 2 n^2 comparisons beside n log n cache misses */
};

typedef struct { int32_t left, right, rank, merged; } Pair;     /* slot of a hash table; rank -1: empty */
typedef struct { uint64_t key[KEY / 8]; int16_t size, count; int32_t id[IDS]; } CacheEntry;   /* a cache line */
typedef struct { void *next; CacheEntry entry[1 << CACHE_BITS]; } Cache;

struct Bpe {
    BpeVocabulary v;
    int32_t  byte_id[256];
    Pair    *pair;
    int      pair_shift;            /* 64 - bits of the table */
    void    *idle;                  /* unused caches */
    void    *memory;                /* the bytes of all tokens */
    int32_t  first_special[256], *next_special;     /* by first byte, and by id: special tokens; -1 = no more */
};

static uint64_t mix(uint64_t x) { return x * 0x9e3779b97f4a7c15; }

/* ---- Vocabulary */

static Pair *find_pair(const Bpe *b, int32_t left, int32_t right) {
    size_t mask = ((size_t)1 << (64 - b->pair_shift)) - 1;
    size_t slot = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) >> b->pair_shift;
    while (b->pair[slot].rank >= 0 && (b->pair[slot].left != left || b->pair[slot].right != right))
        slot = (slot + 1) & mask;
    return &b->pair[slot];
}

Bpe *bpe_create(BpeVocabulary v, const char *where) {
    Bpe *b = host_alloc(sizeof *b, "a tokenizer");
    *b = (Bpe){ .v = v, .next_special = host_alloc((size_t)v.V * sizeof *b->next_special, "a tokenizer") };
    size_t size = 1;
    for (int32_t id = 0; id < v.V; id++) size += (size_t)v.token[id].size;
    unsigned char *to = b->memory = host_alloc(size, "a vocabulary");
    memset(b->byte_id, -1, sizeof b->byte_id);
    memset(b->first_special, -1, sizeof b->first_special);
    for (int32_t id = 0; id < v.V; id++) {
        BpeToken *t = &v.token[id];
        if (!t->size) continue;
        t->bytes = memcpy(to, t->bytes, (size_t)t->size);
        to += t->size;
        if (t->size == 1 && !t->is_special) b->byte_id[*t->bytes] = id;
        if (t->is_special) {
            b->next_special[id] = b->first_special[*t->bytes];
            b->first_special[*t->bytes] = id;
        }
    }
    for (int i = 0; i < 256; i++) REQUIRE(b->byte_id[i] >= 0, "%s: no token for byte 0x%02x: want all 256", where, i);

    int bits = 4;
    while (1 << bits < 2 * v.merge_count) bits++;
    b->pair_shift = 64 - bits;
    b->pair = host_alloc(sizeof *b->pair << bits, "the merges of a tokenizer");
    for (int i = 0; i < 1 << bits; i++) b->pair[i].rank = -1;
    for (int i = 0; i < v.merge_count; i++) {
        Pair *pair = find_pair(b, v.merge[i].left, v.merge[i].right);   /* the last of equal pairs, as HuggingFace */
        *pair = (Pair){ v.merge[i].left, v.merge[i].right, i, v.merge[i].merged };
    }
    return b;
}

void bpe_free(Bpe *b) {
    if (!b) return;
    for (Cache *cache = b->idle, *next; cache; cache = next) {
        next = cache->next;
        free(cache);
    }
    free(b->v.token);
    free(b->v.merge);
    free(b->v.warning);
    free(b->next_special);
    free(b->memory);
    free(b->pair);
    free(b);
}

const BpeVocabulary *bpe_vocabulary(const Bpe *b) { return &b->v; }

uint64_t bpe_fingerprint(const Bpe *b) {
    uint64_t hash = b->v.merge_count ? xxh64(b->v.merge, (size_t)b->v.merge_count * sizeof *b->v.merge) : 0;
    for (int id = 0; id < b->v.V; id++) {
        const BpeToken *t = &b->v.token[id];
        hash = mix(hash + (uint64_t)t->size) ^ (t->size ? xxh64(t->bytes, (size_t)t->size) : 0);
    }
    return mix(hash + (uint64_t)b->v.end_of_text);
}

/* ---- A word */

/* Searches all neighbours for the lowest rank before each merge. */
static size_t merge_short(const Bpe *b, const unsigned char *word, size_t size, int32_t *ids) {
    const Pair *pair[SHORT];        /* ids i and i + 1 */
    size_t n = size;
    for (size_t i = 0; i < n; i++) ids[i] = b->byte_id[word[i]];
    for (size_t i = 0; i + 1 < n; i++) pair[i] = find_pair(b, ids[i], ids[i + 1]);
    for (;;) {
        size_t best = 0;
        uint32_t rank = UINT32_MAX;                 /* as an empty pair's -1 */
        for (size_t i = 0; i + 1 < n; i++)
            if ((uint32_t)pair[i]->rank < rank) rank = (uint32_t)pair[best = i]->rank;
        if (rank == UINT32_MAX) return n;
        ids[best] = pair[best]->merged;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) memmove(pair + best + 1, pair + best + 2, (n - best - 2) * sizeof *pair);
        if (best + 1 < n) pair[best] = find_pair(b, ids[best], ids[best + 1]);
        if (best > 0) pair[best - 1] = find_pair(b, ids[best - 1], ids[best]);
    }
}

/* A heap of rank << 32 | position: the root is the lowest rank, leftmost first. */
static void sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static void sift_up(uint64_t *heap, size_t at) {
    uint64_t value = heap[at];
    for (; at > 0 && heap[(at - 1) / 2] > value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
}

/* n log n, for words of any length. A merge removes a token and makes at most two pairs, so that the heap never has
   more entries than pairs at the start and two per merge: 3 n. */
static size_t merge_long(const Bpe *b, const unsigned char *word, size_t size, int32_t *ids) {
    REQUIRE(size < INT32_MAX, "a word of %zu bytes without white space, want fewer than 2^31: is this a text?", size);
    const int32_t n = (int32_t)size;
    uint64_t *heap = malloc(3 * size * sizeof *heap);
    int32_t *next = malloc(2 * size * sizeof *next), *before = next + size;
    REQUIRE(heap && next, "out of memory: a word of %zu bytes without white space", size);
    size_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        ids[i] = b->byte_id[word[i]];
        next[i] = i + 1;
        before[i] = i - 1;
    }
    for (int32_t i = 0; i + 1 < n; i++) {
        const Pair *pair = find_pair(b, ids[i], ids[i + 1]);
        if (pair->rank >= 0) heap[count++] = (uint64_t)pair->rank << 32 | (uint32_t)i;
    }
    for (size_t i = count / 2; i-- > 0; ) sift_down(heap, count, i);
    while (count) {
        const int32_t rank = (int32_t)(heap[0] >> 32), at = (int32_t)(uint32_t)heap[0], right = next[at];
        heap[0] = heap[--count];
        if (count) sift_down(heap, count, 0);
        if (ids[at] < 0 || right >= n) continue;                 /* already merged */
        const Pair *pair = find_pair(b, ids[at], ids[right]);
        if (pair->rank != rank) continue;
        ids[at] = pair->merged;
        ids[right] = -1;
        next[at] = next[right];
        if (next[at] < n) before[next[at]] = at;
        const int32_t left[2] = { before[at], at };
        for (int i = 0; i < 2; i++) {
            if (left[i] < 0 || next[left[i]] >= n) continue;
            pair = find_pair(b, ids[left[i]], ids[next[left[i]]]);
            if (pair->rank < 0) continue;
            heap[count] = (uint64_t)pair->rank << 32 | (uint32_t)left[i];
            sift_up(heap, count++);
        }
    }
    size_t kept = 0;
    for (int32_t i = 0; i < n; i = next[i]) ids[kept++] = ids[i];
    free(heap);
    free(next);
    return kept;
}

static size_t merge_word(const Bpe *b, const unsigned char *word, size_t size, int32_t *ids) {
    return size > SHORT ? merge_long(b, word, size, ids) : merge_short(b, word, size, ids);
}

/* ---- A text */

/* A word that may be in the cache: its bytes, then zeros; entry NULL: too long for it. */
typedef struct { const unsigned char *text; size_t size; uint64_t key[KEY / 8]; CacheEntry *entry; } Word;

static Word next_word(Cache *cache, const unsigned char *text, size_t size) {
    static const uint64_t mask[9] = { 0, 0xff, 0xffff, 0xffffff, 0xffffffff, 0xffffffffff, 0xffffffffffff,
                                      0xffffffffffffff, UINT64_MAX };
    Word w = { .text = text, .size = bpe_word(text, size) };
    if (w.size > KEY) return w;
    if (size >= KEY) {
        memcpy(w.key, text, KEY);
        w.key[0] &= mask[w.size < 8 ? w.size : 8];
        w.key[1] &= mask[w.size < 8 ? 0 : w.size < 16 ? w.size - 8 : 8];
        w.key[2] &= mask[w.size < 16 ? 0 : w.size - 16];
    } else {
        memcpy(w.key, text, w.size);
    }
    uint64_t hash = mix(w.key[0] ^ mix(w.key[1] ^ mix(w.key[2] + w.size) >> 7) >> 7);
    w.entry = &cache->entry[hash >> (64 - CACHE_BITS)];
    __builtin_prefetch(w.entry);
    return w;
}

static size_t encode_word(const Bpe *b, const Word *w, int32_t *ids) {
    CacheEntry *e = w->entry;
    if (!e) return merge_word(b, w->text, w->size, ids);
    if (e->size == (int16_t)w->size && e->key[0] == w->key[0] && e->key[1] == w->key[1] && e->key[2] == w->key[2]) {
        for (int i = 0; i < e->count; i++) ids[i] = e->id[i];
        return (size_t)e->count;
    }
    size_t count = merge_word(b, w->text, w->size, ids);
    if (count > IDS) return count;
    *e = (CacheEntry){ .key = { w->key[0], w->key[1], w->key[2] }, .size = (int16_t)w->size, .count = (int16_t)count };
    memcpy(e->id, ids, count * sizeof *ids);
    return count;
}

/* A batch of words at a time, so that their cache entries arrive together: 1.3 times as fast as one by one. */
static size_t encode_chunk(const Bpe *b, Cache *cache, const unsigned char *text, size_t size, int32_t *ids) {
    enum { BATCH = 16 };
    Word word[BATCH];
    int32_t *out = ids;
    for (size_t at = 0; at < size; ) {
        int count = 0;
        for (; count < BATCH && at < size; at += word[count++].size)
            word[count] = next_word(cache, text + at, size - at);
        for (int i = 0; i < count; i++) out += encode_word(b, &word[i], out);
    }
    return (size_t)(out - ids);
}

/* The ids of a span are written where it could begin at the latest, then all are moved together. */
size_t bpe_encode_spans(Bpe *b, const BpeSpan *span, size_t spans, int32_t *ids) {
    size_t *start = host_alloc((2 * spans + 1) * sizeof *start, "the parts of a text"), *count = start + spans + 1;
    for (size_t i = 0; i < spans; i++) start[i + 1] = start[i] + span[i].size + 1;
    #pragma omp parallel if (spans > 1)
    {
        Cache *cache = idle_take(&b->idle, sizeof *cache, "the words of a tokenizer");
        #pragma omp for schedule(dynamic, 4)
        for (size_t i = 0; i < spans; i++) {
            int32_t *to = ids + start[i];
            count[i] = span[i].begins && b->v.end_of_text >= 0;
            if (count[i]) *to = b->v.end_of_text;
            count[i] += encode_chunk(b, cache, span[i].text, span[i].size, to + count[i]);
        }
        idle_return(&b->idle, cache);
    }
    size_t total = 0;
    for (size_t i = 0; i < spans; i++) {
        memmove(ids + total, ids + start[i], count[i] * sizeof *ids);
        total += count[i];
    }
    free(start);
    return total;
}

size_t bpe_encode(Bpe *b, const void *text, size_t size, int32_t *ids) {
    return bpe_encode_spans(b, &(BpeSpan){ .text = text, .size = size }, 1, ids);
}

/* The longest special token at the start of the text, -1 = none. */
static int32_t special_at(const Bpe *b, const unsigned char *text, size_t size) {
    int32_t found = -1, longest = 0;
    for (int32_t id = b->first_special[*text]; id >= 0; id = b->next_special[id]) {
        const BpeToken *t = &b->v.token[id];
        if (t->size <= longest || (size_t)t->size > size || memcmp(t->bytes, text, (size_t)t->size)) continue;
        longest = t->size;
        found = id;
    }
    return found;
}

size_t bpe_encode_special(Bpe *b, const void *text, size_t size, int32_t *ids) {
    const unsigned char *bytes = text;
    size_t count = 0, start = 0;
    for (size_t at = 0; at < size; ) {
        const int32_t id = special_at(b, bytes + at, size - at);
        if (id < 0) {
            at++;
            continue;
        }
        count += bpe_encode(b, bytes + start, at - start, ids + count);
        ids[count++] = id;
        start = at += (size_t)b->v.token[id].size;
    }
    return count + bpe_encode(b, bytes + start, size - start, ids + count);
}
