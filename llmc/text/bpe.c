#include "bpe.h"
#include "unicode_table.h"

enum {
    CACHE_BITS = 17,                /* 2^17 words of a core: 8 MiB */
    KEY = 24, IDS = 9,              /* longer words and words of more tokens are not in the cache */
    SHORT = 48,                     /* a longer word has its pairs in allocated memory */
};

typedef struct Pair { int32_t left, right, rank, merged; } Pair;     /* slot of a hash table; rank -1: empty */
typedef struct { uint64_t key[KEY / 8]; int16_t size, count; int32_t id[IDS]; } CacheEntry;   /* a cache line */

static uint64_t mix(uint64_t x) { return x * 0x9e3779b97f4a7c15; }

/* ---- Vocabulary */

static Pair *find_pair(const Tokenizer *b, int32_t left, int32_t right) {
    size_t mask = ((size_t)1 << (64 - b->pair_shift)) - 1;
    size_t slot = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right) >> b->pair_shift;
    while (b->pair[slot].rank >= 0 && (b->pair[slot].left != left || b->pair[slot].right != right))
        slot = (slot + 1) & mask;
    return &b->pair[slot];
}

Tokenizer *bpe_create(BpeVocabulary v, const char *where) {
    static int64_t created;
    Tokenizer *b = host_alloc(sizeof *b, "a tokenizer");
    *b = (Tokenizer){ .v = v, .name = "bpe", .is_bpe = 1, .number = ++created,
                      .special = host_alloc((size_t)v.V * sizeof *b->special, "a tokenizer") };
    size_t size = 1;
    for (int32_t id = 0; id < v.V; id++) size += (size_t)v.token[id].size;
    unsigned char *to = b->memory = host_alloc(size, "a vocabulary");
    memset(b->byte_id, -1, sizeof b->byte_id);
    for (int32_t id = 0; id < v.V; id++) {
        BpeToken *t = &v.token[id];
        if (!t->size) continue;
        t->bytes = memcpy(to, t->bytes, (size_t)t->size);
        to += t->size;
        if (t->size == 1 && !t->is_special) b->byte_id[*t->bytes] = id;
        if (t->is_special) b->special[b->special_count++] = id;
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

void bpe_free(Tokenizer *b) {
    if (!b || !b->is_bpe) return;
    free(b->dir);
    free(b->v.token);
    free(b->v.merge);
    free(b->v.warning);
    free(b->special);
    free(b->memory);
    free(b->pair);
    free(b);
}

uint64_t bpe_fingerprint(const Tokenizer *b) {
    uint64_t hash = b->v.merge_count ? xxh64(b->v.merge, (size_t)b->v.merge_count * sizeof *b->v.merge) : 0;
    for (int id = 0; id < b->v.V; id++) {
        const BpeToken *t = &b->v.token[id];
        hash = mix(hash + (uint64_t)t->size) ^ (t->size ? xxh64(t->bytes, (size_t)t->size) : 0);
    }
    return mix(hash + (uint64_t)b->v.end_of_text);
}

/* ---- Words */

/* OTHER is 0, so that most pages of the table stay untouched. LEAD: the first byte of a longer character, or none. */
enum { OTHER, LETTER, NUMBER, SPACE, LEAD };

static unsigned char class_of_code[0x110000], class_of_byte[256];

static void set_class(const uint16_t *range, size_t count, int class) {
    unsigned char *code = class_of_code;
    for (size_t i = 0; i < count; code += range[i + 1], i += 2) memset(code += range[i], class, range[i + 1]);
}

/* Before main: 0.1 ms. */
__attribute__((constructor)) static void set_classes(void) {
    set_class(unicode_letters, sizeof unicode_letters / sizeof *unicode_letters, LETTER);
    set_class(unicode_numbers, sizeof unicode_numbers / sizeof *unicode_numbers, NUMBER);
    set_class(unicode_spaces, sizeof unicode_spaces / sizeof *unicode_spaces, SPACE);
    memcpy(class_of_byte, class_of_code, 0x80);
    memset(class_of_byte + 0x80, LEAD, 0x80);
}

/* The class of the character at text, and its length. */
static int class_at(const unsigned char *text, size_t size, size_t *length) {
    *length = 1;
    if (class_of_byte[*text] != LEAD) return class_of_byte[*text];
    size_t bytes = utf8_length(text, size);
    if (bytes == 0) return OTHER;
    uint32_t code = *text & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) code = code << 6 | (text[i] & 0x3f);
    *length = bytes;
    return class_of_code[code];
}

size_t bpe_space(const unsigned char *text, size_t size) {
    size_t length;
    return class_at(text, size, &length) == SPACE || (*text >= 0x1c && *text <= 0x1f) ? length : 0;
}

/* The end of the ASCII letters, eight at a time: a byte's top bit marks a letter; |0x20 makes lower case. */
static const unsigned char *skip_ascii_letters(const unsigned char *text, const unsigned char *end) {
    const uint64_t ones = 0x0101010101010101, tops = 0x80 * ones;
    for (uint64_t word; end - text >= 8; text += 8) {
        memcpy(&word, text, 8);
        uint64_t lower = (word | 0x20 * ones) & ~tops;
        uint64_t from_a = lower + (0x80 - 'a') * ones, above_z = lower + (0x80 - 'z' - 1) * ones;
        uint64_t others = ~(from_a & ~above_z & ~word) & tops;
        if (others) return text + __builtin_ctzll(others) / 8;
    }
    return text;
}

/* The end of the characters of a class from text on. */
static const unsigned char *skip(const unsigned char *text, const unsigned char *end, int class) {
    size_t length;
    if (class == LETTER) text = skip_ascii_letters(text, end);
    for (;;) {
        while (text < end && class_of_byte[*text] == class) text++;
        if (text == end || class_of_byte[*text] != LEAD || class_at(text, (size_t)(end - text), &length) != class)
            return text;
        text += length;
    }
}

size_t bpe_word(const unsigned char *text, size_t size) {
    const unsigned char *end = text + size, *from = text;
    size_t length;
    if (size >= 2 && *text == '\'' && memchr("stmd", text[1], 4)) return 2;
    if (size >= 3 && (!memcmp(text, "'re", 3) || !memcmp(text, "'ve", 3) || !memcmp(text, "'ll", 3))) return 3;
    if (*text == ' ' && size > 1) from++;
    int class = class_at(from, (size_t)(end - from), &length);
    if (class != SPACE) return (size_t)(skip(from + length, end, class) - text);
    /* \s+(?!\S): all white space up to the end of the text, else all but its last character, if there are several */
    const unsigned char *next = text, *last = text;
    while (next < end && class_at(next, (size_t)(end - next), &length) == SPACE) {
        last = next;
        next += length;
    }
    return (size_t)((next == end || last == text ? next : last) - text);
}

size_t bpe_words_cut(const unsigned char *text, size_t size, size_t from) {
    size_t at = from ? from : 1, length, start;
    while (at < size && (text[at] & 0xc0) == 0x80) at++;        /* any other byte begins a character */
    if (at >= size) return size;
    for (start = at - 1; start > 0 && at - start < 4 && (text[start] & 0xc0) == 0x80; ) start--;
    int before = class_at(text + start, at - start, &length);
    if (length != at - start) before = OTHER;                   /* invalid bytes */
    for (; at < size; at += length) {
        int class = class_at(text + at, size - at, &length);
        if (before != SPACE && before != class && text[at - 1] != '\'') return at;
        before = class;
    }
    return size;
}

/* ---- The tokens of a word */

static uint32_t rank_of(const Pair *pair) { return (uint32_t)pair->rank; }     /* UINT32_MAX for an empty one */

/* pair: room for as many as ids, (i, i + 1) at i. A pass over the word merges all pairs of the lowest rank, and around
   a new token those of lower ones first: as if the lowest were merged one by one, the leftmost first. There are at most
   as many passes as ranks that occur: a few for a word of one letter, hundreds for a long one of a gene's four. */
static size_t merge(const Tokenizer *b, const unsigned char *word, size_t n, int32_t *ids, const Pair **pair) {
    for (size_t i = 0; i < n; i++) ids[i] = b->byte_id[word[i]];
    for (size_t i = 0; i + 1 < n; i++) pair[i] = find_pair(b, ids[i], ids[i + 1]);
    for (;;) {
        uint32_t lowest = UINT32_MAX;
        size_t kept = 0;
        for (size_t i = 0; i + 1 < n; i++) if (rank_of(pair[i]) < lowest) lowest = rank_of(pair[i]);
        if (lowest == UINT32_MAX) return n;
        for (size_t i = 0, next; i < n; i = next, kept++) {
            next = i + 1;
            ids[kept] = ids[i];
            if (kept) pair[kept - 1] = pair[i - 1];
            uint32_t left = UINT32_MAX, right = next < n ? rank_of(pair[next - 1]) : UINT32_MAX;
            while (left <= lowest || right <= lowest) {
                const Pair *first = left <= right ? pair[--kept] : pair[next++ - 1];
                ids[kept] = first->merged;
                left = !kept ? UINT32_MAX : rank_of(pair[kept - 1] = find_pair(b, ids[kept - 1], ids[kept]));
                right = next == n ? UINT32_MAX : rank_of(pair[next - 1] = find_pair(b, ids[kept], ids[next]));
            }
        }
        n = kept;
    }
}

/* ---- A text */

/* A word that may be in the cache: its bytes, then zeros; entry NULL: too long for it. */
typedef struct { const unsigned char *text; size_t size; uint64_t key[KEY / 8]; CacheEntry *entry; } Word;

static Word next_word(CacheEntry *cache, const unsigned char *text, size_t size) {
    static const uint64_t mask[9] = { 0, 0xff, 0xffff, 0xffffff, 0xffffffff, 0xffffffffff, 0xffffffffffff,
                                      0xffffffffffffff, UINT64_MAX };
    Word w = { .text = text, .size = bpe_word(text, size) };
    if (w.size > KEY) return w;
    if (size >= KEY) {                  /* a copy of constant size and masks: 1.1 times the speed */
        memcpy(w.key, text, KEY);
        w.key[0] &= mask[w.size < 8 ? w.size : 8];
        w.key[1] &= mask[w.size < 8 ? 0 : w.size < 16 ? w.size - 8 : 8];
        w.key[2] &= mask[w.size < 16 ? 0 : w.size - 16];
    } else {
        memcpy(w.key, text, w.size);
    }
    uint64_t hash = mix(w.key[0] ^ mix(w.key[1] ^ mix(w.key[2] + w.size) >> 7) >> 7);
    w.entry = &cache[hash >> (64 - CACHE_BITS)];
    __builtin_prefetch(w.entry);
    return w;
}

static size_t encode_word(const Tokenizer *b, const Word *w, int32_t *ids) {
    CacheEntry *e = w->entry;
    const uint64_t *key = w->key;
    if (e && e->size == (int16_t)w->size && e->key[0] == key[0] && e->key[1] == key[1] && e->key[2] == key[2]) {
        for (int i = 0; i < e->count; i++) ids[i] = e->id[i];
        return (size_t)e->count;
    }
    const Pair *few[SHORT], **pair = few;
    if (w->size > SHORT) pair = host_alloc(w->size * sizeof *pair, "a word without white space");
    const size_t count = merge(b, w->text, w->size, ids, pair);
    if (pair != few) free(pair);
    if (!e || count > IDS) return count;
    *e = (CacheEntry){ .key = { key[0], key[1], key[2] }, .size = (int16_t)w->size, .count = (int16_t)count };
    memcpy(e->id, ids, count * sizeof *ids);
    return count;
}

/* The words of the tokenizer that this thread has used last. */
static CacheEntry *cache_of(const Tokenizer *b) {
    static _Thread_local CacheEntry *cache;
    static _Thread_local int64_t owner;
    if (owner == b->number) return cache;
    CacheEntry *empty = host_alloc(sizeof *cache << CACHE_BITS, "the words of a tokenizer");
    free(cache);
    owner = b->number;
    return cache = empty;
}

/* A batch of words at a time, so that their cache entries arrive together: 1.3 times as fast as one by one. */
size_t bpe_encode(const Tokenizer *b, const void *text, size_t size, int32_t *ids) {
    enum { BATCH = 16 };
    const unsigned char *bytes = text;
    Word word[BATCH];
    int32_t *out = ids;
    for (size_t i = 0; !b->v.merge_count && i < size; i++) ids[i] = b->byte_id[bytes[i]];
    if (!b->v.merge_count) return size;
    CacheEntry *cache = cache_of(b);
    for (size_t at = 0; at < size; ) {
        int count = 0;
        for (; count < BATCH && at < size; at += word[count++].size)
            word[count] = next_word(cache, bytes + at, size - at);
        for (int i = 0; i < count; i++) out += encode_word(b, &word[i], out);
    }
    return (size_t)(out - ids);
}

size_t bpe_encode_special(const Tokenizer *b, const void *text, size_t size, int32_t *ids) {
    const unsigned char *bytes = text;
    size_t count = 0, start = 0;
    for (size_t at = 0, length; at < size; at += length ? length : 1) {
        int32_t found = -1;
        length = 0;
        for (int i = 0; i < b->special_count; i++) {
            const BpeToken *t = &b->v.token[b->special[i]];
            const size_t want = (size_t)t->size;
            if (want <= length || want > size - at || memcmp(t->bytes, bytes + at, want)) continue;
            found = b->special[i];
            length = want;
        }
        if (!length) continue;
        count += bpe_encode(b, bytes + start, at - start, ids + count);
        ids[count++] = found;
        start = at + length;
    }
    return count + bpe_encode(b, bytes + start, size - start, ids + count);
}
