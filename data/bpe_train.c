#include "bpe_train.h"
#include "../llmc/text/bpe_files.h"

enum { MIN_FREQUENCY = 2 };

#define WHAT "the training of a tokenizer"

/* ---- Words and their counts */

typedef struct { const unsigned char *text; uint32_t size; int64_t count; } WordCount;

typedef struct Words {
    struct Words *next;             /* in the list of a trainer */
    WordCount    *slot;             /* hash table; text NULL = empty */
    size_t        mask, count;
} Words;

static WordCount *find_word(const Words *w, const unsigned char *text, size_t size) {
    size_t slot = xxh64(text, size) & w->mask;
    while (w->slot[slot].text && (w->slot[slot].size != size || memcmp(w->slot[slot].text, text, size)))
        slot = (slot + 1) & w->mask;
    return &w->slot[slot];
}

static void set_slots(Words *w, size_t slots) {
    Words grown = { .slot = host_alloc(slots * sizeof *grown.slot, "the words of a text"), .mask = slots - 1 };
    for (size_t i = 0; w->slot && i <= w->mask; i++)
        if (w->slot[i].text) *find_word(&grown, w->slot[i].text, w->slot[i].size) = w->slot[i];
    free(w->slot);
    w->slot = grown.slot;
    w->mask = grown.mask;
}

static void add_word(Words *w, const unsigned char *text, size_t size, int64_t count) {
    REQUIRE(size < INT32_MAX, "a word of %zu bytes without white space, want fewer than 2^31: is this a text?", size);
    if (!w->slot || 2 * w->count > w->mask) set_slots(w, w->slot ? 2 * (w->mask + 1) : 1 << 16);
    WordCount *word = find_word(w, text, size);
    if (!word->text) {
        *word = (WordCount){ memcpy(host_alloc(size, "a word"), text, size), (uint32_t)size, 0 };
        w->count++;
    }
    word->count += count;
}

static void free_words(Words *w) {
    for (size_t i = 0; w->slot && i <= w->mask; i++) free((void *)w->slot[i].text);
    free(w->slot);
    free(w);
}

static Words *take_words(BpeTrainer *t) {
    Words *words;
    #pragma omp critical
    if ((words = t->words)) t->words = words->next;
    return words ? words : host_alloc(sizeof *words, "the words of a text");
}

void bpe_trainer_add(BpeTrainer *t, const BpeSpan *span, size_t count) {
    #pragma omp parallel
    {
        Words *words = take_words(t);
        #pragma omp for schedule(dynamic, 4)
        for (size_t i = 0; i < count; i++)
            for (size_t at = 0, length; at < span[i].size; at += length) {
                length = bpe_word(span[i].text + at, span[i].size - at);
                add_word(words, span[i].text + at, length, 1);
            }
        #pragma omp critical
        {
            words->next = t->words;
            t->words = words;
        }
    }
}

/* ---- Pairs */

typedef struct { int32_t *word; size_t count, room; } Places;

typedef struct {
    int32_t left, right;
    int64_t count;
    Places  places;                 /* words in which the pair has appeared since it was queued last */
    int     is_changed;             /* it is in the list of changed pairs */
    int     is_used;
} PairCount;

/* In the queue, as HuggingFace keeps it: a pair that gets new places is queued again, with these alone. */
typedef struct { int64_t count; int32_t left, right; Places places; } Candidate;

typedef struct {
    int64_t   count;
    int32_t  *id;
    int       length;
} Word;

typedef struct {
    Word      *word;
    int32_t   *ids;                 /* all words' */
    PairCount *pair;                /* hash table */
    size_t     mask, pair_count;
    Candidate *heap;
    size_t     heap_count, heap_room;
    int64_t   *changed;             /* keys of pairs that got places */
    size_t     changed_count, changed_room;
} Training;

static int precedes(const Candidate *a, const Candidate *b) {
    return a->count != b->count ? a->count > b->count : a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void push(Training *t, Candidate c) {
    t->heap = host_grow(t->heap, t->heap_count, &t->heap_room, sizeof *t->heap, WHAT);
    size_t at = t->heap_count++;
    for (; at > 0 && precedes(&c, &t->heap[(at - 1) / 2]); at = (at - 1) / 2) t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = c;
}

static Candidate pop(Training *t) {
    Candidate top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->heap_count; at = child) {
        if (child + 1 < t->heap_count && precedes(&t->heap[child + 1], &t->heap[child])) child++;
        if (!precedes(&t->heap[child], &last)) break;
        t->heap[at] = t->heap[child];
    }
    t->heap[at] = last;
    return top;
}

static PairCount *search_pair(const Training *t, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t slot = (size_t)((key ^ key >> 29) * 0x9e3779b97f4a7c15 >> 20) & t->mask;
    while (t->pair[slot].is_used && (t->pair[slot].left != left || t->pair[slot].right != right))
        slot = (slot + 1) & t->mask;
    return &t->pair[slot];
}

static void set_pair_slots(Training *t, size_t slots) {
    Training old = *t;
    t->pair = host_alloc(slots * sizeof *t->pair, "the pairs of a text");
    t->mask = slots - 1;
    for (size_t i = 0; old.pair && i <= old.mask; i++)
        if (old.pair[i].is_used) *search_pair(t, old.pair[i].left, old.pair[i].right) = old.pair[i];
    free(old.pair);
}

/* Adds to the count of a pair; where that is positive, word is one of its places. */
static void count_pair(Training *t, int32_t left, int32_t right, int64_t count, int32_t word) {
    if (2 * t->pair_count > t->mask) set_pair_slots(t, 2 * (t->mask + 1));
    PairCount *p = search_pair(t, left, right);
    if (!p->is_used) {
        *p = (PairCount){ .left = left, .right = right, .is_used = 1 };
        t->pair_count++;
    }
    p->count += count;
    if (count <= 0) return;
    if (!p->is_changed) {
        p->is_changed = 1;
        t->changed = host_grow(t->changed, t->changed_count, &t->changed_room, sizeof *t->changed, WHAT);
        t->changed[t->changed_count++] = (int64_t)left << 32 | right;
    }
    Places *places = &p->places;
    if (places->count && places->word[places->count - 1] == word) return;
    places->word = host_grow(places->word, places->count, &places->room, sizeof *places->word, WHAT);
    places->word[places->count++] = word;
}

static void queue_changed(Training *t) {
    for (size_t i = 0; i < t->changed_count; i++) {
        PairCount *p = search_pair(t, (int32_t)(t->changed[i] >> 32), (int32_t)t->changed[i]);
        if (p->count > 0) push(t, (Candidate){ p->count, p->left, p->right, p->places });
        else              free(p->places.word);
        p->places = (Places){0};
        p->is_changed = 0;
    }
    t->changed_count = 0;
}

/* Merges every occurrence in a word, from left to right, and counts its new neighbours. */
static void merge_in_word(Training *t, int32_t index, BpeMerge m) {
    Word *w = &t->word[index];
    int32_t *id = w->id;
    int from = 0, to = 0;
    while (from + 1 < w->length && (id[from] != m.left || id[from + 1] != m.right)) from++;
    for (to = from; from < w->length; from++) {
        if (from + 1 == w->length || id[from] != m.left || id[from + 1] != m.right) {
            id[to++] = id[from];
            continue;
        }
        if (to > 0) {
            count_pair(t, id[to - 1], m.left, -w->count, index);
            count_pair(t, id[to - 1], m.merged, w->count, index);
        }
        if (from + 2 < w->length) {
            count_pair(t, m.right, id[from + 2], -w->count, index);
            count_pair(t, m.merged, id[from + 2], w->count, index);
        }
        id[to++] = m.merged;
        from++;
    }
    w->length = to;
}

/* ---- Training */

static Words *unite_words(BpeTrainer *t) {
    Words *all = take_words(t);
    for (Words *other; (other = t->words); free_words(other)) {
        t->words = other->next;
        for (size_t i = 0; other->slot && i <= other->mask; i++)
            if (other->slot[i].text) add_word(all, other->slot[i].text, other->slot[i].size, other->slot[i].count);
    }
    return all;
}

static Training start_training(const Words *words, const int32_t id_of_byte[256]) {
    Training t = {0};
    size_t bytes = 0;
    int32_t count = 0;
    REQUIRE(words->count < INT32_MAX, "%zu words, want fewer than 2^31", words->count);
    for (size_t i = 0; words->slot && i <= words->mask; i++) bytes += words->slot[i].text ? words->slot[i].size : 0;
    t.word = host_alloc(words->count * sizeof *t.word + 1, "the words of a text");
    int32_t *id = t.ids = host_alloc(bytes * sizeof *t.ids + 1, "the words of a text");
    set_pair_slots(&t, 1 << 16);
    for (size_t i = 0; words->slot && i <= words->mask; i++) {
        const WordCount *w = &words->slot[i];
        if (!w->text) continue;
        t.word[count++] = (Word){ w->count, id, (int)w->size };
        for (uint32_t j = 0; j < w->size; j++) *id++ = id_of_byte[w->text[j]];
    }
    for (int32_t w = 0; w < count; w++)
        for (int i = 0; i + 1 < t.word[w].length; i++)
            count_pair(&t, t.word[w].id[i], t.word[w].id[i + 1], t.word[w].count, w);
    queue_changed(&t);
    return t;
}

static void free_training(Training *t) {
    for (size_t i = 0; i < t->heap_count; i++) free(t->heap[i].places.word);
    free(t->heap);
    free(t->changed);
    free(t->pair);
    free(t->word);
    free(t->ids);
}

/* A vocabulary that grows. The bytes of a token are those of its two parts. */
typedef struct {
    BpeVocabulary v;
    Words        *texts;            /* token by its bytes, with its id + 1 as the count */
} Growing;

/* The id of the bytes of two tokens together. */
static int32_t add_token(Growing *g, BpeToken left, BpeToken right) {
    const size_t size = (size_t)left.size + (size_t)right.size;
    unsigned char *bytes = host_alloc(size, "a token");
    memcpy(bytes, left.bytes, (size_t)left.size);
    memcpy(bytes + left.size, right.bytes, (size_t)right.size);
    add_word(g->texts, bytes, size, 0);
    WordCount *token = find_word(g->texts, bytes, size);
    free(bytes);
    if (!token->count) {
        g->v.token[g->v.V] = (BpeToken){ .bytes = token->text, .size = (int)size };
        token->count = ++g->v.V;
    }
    return (int32_t)token->count - 1;
}

/* HuggingFace keeps a pair that was merged twice (its token had an id already, which made the pair again) at its last
   rank alone. */
static void keep_last_of_equal(Training *t, BpeVocabulary *v) {
    int kept = v->merge_count;
    for (int i = v->merge_count - 1; i >= 0; i--) {
        PairCount *p = search_pair(t, v->merge[i].left, v->merge[i].right);
        if (p->count != INT64_MIN) v->merge[--kept] = v->merge[i];
        p->count = INT64_MIN;
    }
    v->merge_count -= kept;
    memmove(v->merge, v->merge + kept, (size_t)v->merge_count * sizeof *v->merge);
}

Tokenizer *bpe_train(BpeTrainer *trainer, int vocab_size) {
    static const unsigned char end_of_text[] = "<|endoftext|>";
    REQUIRE(vocab_size > 256, "--vocab-size %d: want 257 or more: the bytes and <|endoftext|>", vocab_size);
    Words *words = unite_words(trainer);
    Growing g = { .texts = host_alloc(sizeof *g.texts, "a vocabulary") };
    size_t merge_room = 0;
    g.v.token = host_alloc((size_t)vocab_size * sizeof *g.v.token, "a vocabulary");
    g.v.merge = host_grow(NULL, 0, &merge_room, sizeof *g.v.merge, WHAT);
    int32_t id_of_byte[256];
    for (int letter = 0; letter < BPE_LETTERS; letter++)
        for (int byte = 0; byte < 256; byte++)
            if (bpe_letter(byte) == letter)
                id_of_byte[byte] = add_token(&g, (BpeToken){ &(unsigned char){ (unsigned char)byte }, 1, 0 },
                                             (BpeToken){ (const unsigned char *)"", 0, 0 });

    Training t = start_training(words, id_of_byte);
    free_words(words);
    while (g.v.V < vocab_size - 1 && t.heap_count) {
        Candidate top = pop(&t);
        int64_t count = search_pair(&t, top.left, top.right)->count;
        if (top.count != count) {           /* it is lower now */
            top.count = count;
            if (count >= MIN_FREQUENCY) push(&t, top);
            else                        free(top.places.word);
            continue;
        }
        if (count < MIN_FREQUENCY) {
            free(top.places.word);
            break;
        }
        BpeMerge m = { top.left, top.right, add_token(&g, g.v.token[top.left], g.v.token[top.right]) };
        g.v.merge = host_grow(g.v.merge, (size_t)g.v.merge_count, &merge_room, sizeof *g.v.merge, WHAT);
        g.v.merge[g.v.merge_count++] = m;
        for (size_t i = 0; i < top.places.count; i++) merge_in_word(&t, top.places.word[i], m);
        free(top.places.word);
        queue_changed(&t);
    }
    keep_last_of_equal(&t, &g.v);
    free_training(&t);

    g.v.end_of_text = g.v.V;
    g.v.token[g.v.V++] = (BpeToken){ .bytes = end_of_text, .size = sizeof end_of_text - 1, .is_special = 1 };
    Tokenizer *bpe = bpe_create(g.v, "the trained tokenizer");
    free_words(g.texts);
    return bpe;
}
