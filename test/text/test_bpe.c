/* test_bpe.c - Byte-level BPE: words, ids, files, training. reference/bpe is by HuggingFace's tokenizers and
   tiktoken (scripts/make_tokenizer_reference.py). */
#include "../../llmc/text/bpe_files.h"
#include "../../data/bpe_train.h"
#include "../scratch.h"

#define REFERENCE "test/reference/bpe"
enum { SEED = 17, V = 500, END_OF_TEXT = 499 };

static Tokenizer *reference;
static char *no_map_dir;                /* vocab.json and merges.txt alone */

static void free_bpe(void *bpe) { bpe_free(bpe); }

/* Until the test ends. */
static Tokenizer *kept(Tokenizer *bpe) { return test_keep_by(free_bpe, bpe); }

/* A new directory with tokenizer.json of the reference, or its other two files, one of them edited. */
static char *edited_reference(const char *name, const char *file, const char *old, const char *new) {
    char *dir = IN_SCRATCH("%s", name);
    static const char *const names[] = { "tokenizer.json", "vocab.json", "merges.txt" };
    const int is_json = !strcmp(file, names[0]);
    directory_make(dir);
    for (int f = !is_json; f < (is_json ? 1 : 3); f++) {
        const int is_edited = !strcmp(names[f], file);
        edit(STRING(REFERENCE "/%s", names[f]), STRING("%s/%s", dir, names[f]), is_edited ? old : "",
             is_edited ? new : "");
    }
    return dir;
}

static uint32_t draw(uint64_t i, uint32_t below) { return (uint32_t)random_below(SEED, RANDOM_TEST, 1, i, below); }

/* Encodes; returns the number of ids, which must decode to the text. */
static size_t encode(const void *text, size_t size, int32_t *ids) {
    const size_t count = bpe_encode(reference, text, size, ids);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        REQUIRE(ids[i] >= 0 && ids[i] < V, "id %d", ids[i]);
        const BpeToken *t = &reference->v.token[ids[i]];
        if (at + (size_t)t->size <= size && !memcmp((const char *)text + at, t->bytes, (size_t)t->size))
            at += (size_t)t->size;
    }
    EXPECT(at == size, "%zu bytes of %zu are those of the text", at, size);
    return count;
}

/* ---- Words and ids of other libraries */

TEST(words_and_ids) {
    Json *json = json_open(REFERENCE "/cases.json");
    int count = 0;
    for (const Json *c = json_member(json, "cases", JSON_ARRAY)->child; c; c = c->next, count++) {
        const char *text = json_string(c, "text");
        const Json *word = json_member(c, "words", JSON_ARRAY)->child, *id = json_member(c, "ids", JSON_ARRAY)->child;
        const size_t size = strlen(text);
        int32_t ids[1024];
        size_t at = 0, i = 0, n = encode(text, size, ids);
        for (size_t length; at < size && word; at += length, word = word->next) {
            length = bpe_word((const unsigned char *)text + at, size - at);
            if ((int64_t)length != json_integer(word, 1, 1 << 20)) break;
        }
        EXPECT(at == size && !word, "'%s': another word at %zu", text, at);
        for (; i < n && id && ids[i] == json_integer(id, 0, V); i++) id = id->next;
        EXPECT(i == n && !id, "'%s': %zu ids, the first %zu are right", text, n, i);
    }
    EXPECT(count > 40, "%d cases", count);
    json_free(json);
}

TEST(special_tokens) {
    static const char text[] = "the<|endoftext|> ba<|endoftext|><|endoftext|>";
    int32_t ids[64], want[64];
    size_t n = encode("the", 3, want);
    want[n++] = END_OF_TEXT;
    n += encode(" ba", 3, want + n);
    want[n] = want[n + 1] = END_OF_TEXT;
    n += 2;
    size_t got = bpe_encode_special(reference, text, strlen(text), ids);
    EXPECT(got == n && !memcmp(ids, want, n * sizeof *ids), "%zu ids", got);
    const char *dir = edited_reference("longest", "vocab.json", "", "");
    put_text(STRING("%s/added_tokens.json", dir), "{\"<s>\": 499, \"<s\": 500}");
    got = bpe_encode_special(kept(bpe_open(dir)), "<s><s", 5, ids);
    EXPECT(got == 2 && ids[0] == 499 && ids[1] == 500, "%zu ids: the longest that fits", got);
}

/* ---- Any bytes */

/* The definition: of all pairs merges one of the lowest rank, the leftmost, again and again. */
static size_t encode_by_definition(const Tokenizer *bpe, const unsigned char *word, size_t n, int32_t *ids) {
    static const BpeVocabulary *v;
    static int rank[V][V];                  /* 0: not merged */
    for (int i = 0; v != &bpe->v && i < V * V; i++) rank[i / V][i % V] = 0;
    for (int i = bpe->v.merge_count; v != &bpe->v && i > 0; i--)
        rank[bpe->v.merge[i - 1].left][bpe->v.merge[i - 1].right] = i;
    v = &bpe->v;
    for (size_t i = 0; i < n; i++)
        for (int32_t id = v->V - 1; id >= 0; id--)
            if (v->token[id].size == 1 && *v->token[id].bytes == word[i]) ids[i] = id;
    for (size_t at = 0; at < n; n--) {
        at = n;
        for (size_t i = 0; i + 1 < n; i++) {
            const int of = rank[ids[i]][ids[i + 1]];
            if (of && (at == n || of < rank[ids[at]][ids[at + 1]])) at = i;
        }
        if (at == n) break;
        ids[at] = v->merge[rank[ids[at]][ids[at + 1]] - 1].merged;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
    }
    return n;
}

/* Also with merges in an odd order, where a pair that a merge makes can have a lower rank than it: those of the
   reference, backwards. Every third word has 16 letters in common with others, as the cache of words may confuse. */
TEST(words_by_definition) {
    static const char letters[] = "thenigbakoraso", alike[] = "ingsotheingsothe";
    char *text = STRING("%s", text_of(REFERENCE "/merges.txt")), *back = "", *dir = edited_reference("backwards",
                 "vocab.json", "", "");
    for (char *line; (line = strrchr(text, '\n')); *line = 0) if (line[1]) back = STRING("%s%s\n", back, line + 1);
    put_text(STRING("%s/merges.txt", dir), STRING("#version: 0.2\n%s", back));
    Tokenizer *const bpes[] = { reference, kept(bpe_open(dir)) };
    for (uint64_t c = 0; c < 6000; c++) {
        unsigned char word[400];
        int32_t ids[400], want[400];
        Tokenizer *bpe = bpes[c / 3000];
        size_t size = c % 3 == 1 ? 24 : 1 + draw(c, c % 20 ? 24 : 400);
        for (size_t i = 0; i < size; i++) word[i] = (unsigned char)letters[draw(1000 * c + i, sizeof letters - 1)];
        if (c % 3 == 1) memcpy(word, alike, 16);
        size_t n = bpe_encode(bpe, word, size, ids), m = encode_by_definition(bpe, word, size, want);
        EXPECT(n == m && !memcmp(ids, want, n * sizeof *ids), "word %d of %zu bytes: %zu ids, want %zu", (int)c,
               size, n, m);
    }
}

/* Random characters of all kinds, random bytes among them. */
static size_t random_text(uint64_t seed, unsigned char *text, size_t size) {
    static const char *const parts[] = {
        " ", " ", "  ", "\n", "\t", "'s", "'", "'ll", "a", "the", "Z", "7", "12", "!", "-", "é", "ß", "ж", "你",
        "한", "\u00a0", "\u3000", "\u2028", "٣", "½", "👋", "e\u0301", "\xc3", "\x80", "\xe4\xbd",
        "\xff", "\xed\xa0\x80", "\xf0\x9f", "\xc0\x80",
    };
    size_t at = 0;
    for (uint64_t i = 0; at + 8 < size; i++) {
        const char *part = parts[draw(seed * 100003 + i, COUNT(parts))];
        if (draw(seed * 100003 + i + 50000, 9) == 0) text[at++] = (unsigned char)draw(seed + i, 256);    /* also NUL */
        else at = (size_t)((unsigned char *)stpcpy((char *)text + at, part) - text);
    }
    return at;
}

/* The rule for invalid bytes: words are those of the text with U+FFFD in their place. */
TEST(invalid_bytes_are_symbols) {
    for (uint64_t c = 0; c < 200; c++) {
        unsigned char text[300], valid[900];
        size_t size = random_text(c, text, sizeof text), place[301], count = 0;
        for (size_t i = 0, length; i < size; i += length ? length : 1) {
            length = utf8_length(text + i, size - i);
            memcpy(valid + count, length ? text + i : (const unsigned char *)"\xEF\xBF\xBD", length ? length : 3);
            for (size_t j = 0; j < (length ? length : 1); j++) place[i + j] = count;
            count += length ? length : 3;
        }
        place[size] = count;
        for (size_t a = 0, b = 0; a < size && b < count; ) {
            a += bpe_word(text + a, size - a);
            b += bpe_word(valid + b, count - b);
            EXPECT(place[a] == b, "text %d: a word ends at %zu, want %zu", (int)c, a, b);
            if (place[a] != b) break;
        }
    }
}

/* Words of a megabyte, which would take minutes in quadratic time; test_fuzz encodes other bytes. */
TEST(long_words) {
    enum { SIZE = 1000000 };
    static const char *const letters[] = { "a", " ", "thenigbako" };
    unsigned char *text = new_array(SIZE, 1);
    int32_t *ids = new_array(SIZE, sizeof *ids);
    double start = seconds_now();
    for (int k = 0; k < COUNT(letters); k++) {
        for (size_t i = 0; i < SIZE; i++) text[i] = (unsigned char)letters[k][draw(i, (uint32_t)strlen(letters[k]))];
        encode(text, SIZE, ids);
    }
    EXPECT(seconds_now() - start < 60, "%.1f s", seconds_now() - start);
}

/* Both parts of a cut text have the words of the whole. */
TEST(cuts_keep_the_words) {
    for (uint64_t c = 0; c < 120; c++) {
        unsigned char text[240], is_end[241] = { 0 };
        size_t size = random_text(c, text, sizeof text), cuts = 0;
        for (size_t at = 0; at < size; is_end[at] = 1) at += bpe_word(text + at, size - at);
        for (size_t from = 0; from < size; from++) {
            size_t cut = bpe_words_cut(text, size, from);
            EXPECT(cut >= from && cut > 0 && cut <= size, "text %d: %zu from %zu", (int)c, cut, from);
            if (cut == size) continue;
            cuts++;
            for (size_t at = 0, end; at < size; at = end) {
                end = at + bpe_word(text + at, (at < cut ? cut : size) - at);
                EXPECT(is_end[end], "text %d, cut at %zu: a word ends at %zu", (int)c, cut, end);
                if (!is_end[end]) return;
            }
        }
        EXPECT(cuts > 50, "text %d: %zu cuts", (int)c, cuts);
    }
}

/* ---- Files */

TEST(files_come_back) {
    static const char *const names[][2] = { { "vocab.json", "merges.txt" }, { "encoder.json", "vocab.bpe" } };
    char *text = test_keep(bpe_file_text(reference, "tokenizer.json", 0));
    for (int s = 0; s < 3; s++) {
        char *dir = IN_SCRATCH("files-%d", s);
        const char *json = STRING("%s/tokenizer.json", dir);
        directory_make(dir);
        EXPECT(!bpe_has_files(dir), "files where there are none");
        if (s == 2) {
            put_text(json, text);
            edit(json, json, "\"pre_tokenizer\":", "\"post_processor\": {\"special_tokens\": {}}, \"pre_tokenizer\":");
        } else {
            edit(REFERENCE "/vocab.json", path_of(dir, names[s][0]).text, "{", "{\"<|endoftext|>\":499,");
            edit(REFERENCE "/merges.txt", path_of(dir, names[s][1]).text, "", "");
        }
        Tokenizer *bpe = kept(bpe_open(dir));
        EXPECT(bpe_has_files(dir) && bpe_fingerprint(bpe) == bpe_fingerprint(reference), "%s: another tokenizer", dir);
        EXPECT(bpe->v.end_of_text == END_OF_TEXT, "%d", bpe->v.end_of_text);
    }
    Tokenizer *bpe = kept(bpe_open(no_map_dir));         /* HuggingFace's vocabulary alone has no <|endoftext|> */
    const BpeVocabulary *v = &bpe->v;
    EXPECT(v->end_of_text == -1 && v->V == V - 1 && v->merge_count == reference->v.merge_count,
           "%d, %d merges", v->end_of_text, v->merge_count);
    char *config = test_keep(bpe_file_text(bpe, "tokenizer_config.json", 0));
    EXPECT(!strstr(config, "eos_token") && strstr(config, "pad_token") && strstr(config, "model_input_names") &&
           !strstr(config, "max_length"), "%s", config);
}

TEST(refused_files) {
    static const struct { const char *file, *old, *new, *want; } cases[] = {
        { "tokenizer.json", "\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "\"model.type\" is \"WordPiece\", want BPE" },
        { "tokenizer.json", "\"ByteLevel\",\"add_prefix_space\":false", "\"Metaspace\",\"add_prefix_space\":false",
          "\"pre_tokenizer.type\" is \"Metaspace\", want ByteLevel" },
        { "tokenizer.json", "\"add_prefix_space\":false", "\"add_prefix_space\":true",
          "\"pre_tokenizer.add_prefix_space\" is true" },
        { "tokenizer.json", "\"use_regex\":true", "\"use_regex\":false",
          "\"pre_tokenizer.use_regex\" is false, want true" },
        { "tokenizer.json", "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}",
          "\"normalizer\" is an object, want as in GPT-2" },
        { "tokenizer.json", "\"trim_offsets\":true", "\"trim_offsets\":true,\"pattern\":\"\\\\d\"",
          "\"pre_tokenizer.pattern\" is \"\\d\", want as in GPT-2" },
        { "tokenizer.json", "\"version\":\"1.0\"", "\"version\":\"1.0\",\"rules\":{}",
          "\"rules\" is an object, want as in GPT-2" },
        { "tokenizer.json", "\"ignore_merges\":false", "\"ignore_merges\":true", "\"model.ignore_merges\" is true" },
        { "tokenizer.json", "\"special\":true", "\"special\":false", "\"special\" is false, want true" },
        { "tokenizer.json", "\"lstrip\":false", "\"lstrip\":true", "\"lstrip\" is true, want as in GPT-2" },
        { "tokenizer.json", "\"rstrip\":false", "\"rstrip\":true", "\"rstrip\" is true" },
        { "tokenizer.json", "\"id\":499", "\"id\":0,\"content\":\"!\",\"single_word\":false},{\"id\":499",
          "\"single_word\" is false, want true" },
        { "tokenizer.json", "\"id\":499", "\"id\":270,\"content\":\"the\"},{\"id\":499",
          "merge 14: 'the' is an added token of" },
        { "tokenizer.json", "\"single_word\":false", "\"single_word\":true", "\"single_word\" is true" },
        { "tokenizer.json", "\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
          "\"post_processor.type\" is \"TemplateProcessing\", want ByteLevel" },
        { "tokenizer.json", "\"merges\":[", "\"merges\":[],\"fuse_unk\":[", "makes 0 of 243 tokens" },
        { "tokenizer.json", "\"id\":499", "\"id\":498", "has the id 498 of another token" },
        { "tokenizer.json", "\"id\":499", "\"id\":16000000", "\"id\" is 16000000, want an integer from 0 to 2023" },
        { "tokenizer.json", "\"!\":0", "\"!\":1", "has the id 1 of another token" },
        { "tokenizer.json", "\"$\":3", "\"$$$\":3", "no token for byte 0x24: want all 256" },
        { "tokenizer.json", "\"!\":0", "\"!\":-1", "is -1, want an integer from 0" },
        { "tokenizer.json", "[\"Ð\",\"¾\"]", "[\"Ð\",\"¾\",\"a\"]", "want \"left right\"" },
        { "tokenizer.json", "[\"Ð\",\"¾\"]", "[\"Ð\",\"zzz\"]", "merge 1: 'zzz' is not in" },
        { "tokenizer.json", "[\"Ð\",\"¾\"]", "[\"Ð\",\"a\"]", "merge 1: 'Ða' is not in" },
        { "merges.txt", "Ð ¾", "Ð ¾ a", "merges.txt: line 3: 'Ð ¾ a', want two tokens, one space" },
        { "merges.txt", "Ð ¾", "Ð¾", "line 3: 'Ð¾', want two tokens" },
        { "merges.txt", "Ð ¾", "Ð z", "line 3: 'Ðz' is not in" },
        { "vocab.json", "\"!\":0", "\"!\":\"0\"", "vocab.json: \"!\" is \"0\", want an integer" },
        { "vocab.json", "{", "[", "vocab.json: byte" },
        { "vocab.json", "\"!\":0", "\"\":0", "'' has the id 0 of another token or is empty" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char *dir = edited_reference(STRING("refused-%d", i), cases[i].file, cases[i].old, cases[i].new);
        EXPECT_FAILS(cases[i].want, bpe_open(dir));
    }
    EXPECT_FAILS("no tokenizer: want tokenizer.json, vocab.json and merges.txt", bpe_open(scratch));
    EXPECT_FAILS("no such directory", bpe_open(IN_SCRATCH("nowhere")));
}

/* vocab.json has the reference's tokens and as 499 one more, which another file names or adds. What is written of it
   is the same. */
TEST(which_tokens_are_special) {
    static const struct { const char *token, *file, *content, *text; int is_end; } cases[] = {
        { "\"</s>\":499,", "special_tokens_map.json", "{\"eos_token\": \"</s>\"}", "</s>", 1 },
        { "\"</s>\":499,", "tokenizer_config.json", "{\"eos_token\": {\"content\": \"</s>\"}}", "</s>", 1 },
        { "\"EOS\":499,", "tokenizer_config.json", "{\"eos_token\": \"EOS\", \"tokenizer_class\": \"GPT2Tokenizer\"}",
          "EOS", 1 },
        { "\"<|endoftext|>\":499,", "tokenizer_config.json", "{\"eos_token\": null}", "<|endoftext|>", 1 },
        { "\"[PAD]\":499,", "none.json", "", "[PAD]", 0 }, { "\"«文»\":499,", "none.json", "", "«文»", 0 },
        { "\"«sep»\":499,", "added_tokens.json", "{\"«sep»\": 499}", "«sep»", 0 },
        { "", "added_tokens.json", "{\"«sep»\": 499}", "«sep»", 0 },
        { "", "tokenizer_config.json", "{\"added_tokens_decoder\": {\"499\": {\"content\": \"<s>\"}}}", "<s>", 0 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char *dirs[] = { edited_reference(STRING("special-%d", i), "vocab.json", "{", STRING("{%s", cases[i].token)),
                         IN_SCRATCH("special-%d-again", i) };
        const int size = (int)strlen(cases[i].text);
        directory_make(dirs[1]);
        put_text(STRING("%s/%s", dirs[0], cases[i].file), cases[i].content);
        for (int d = 0; d < 2; d++) {
            int32_t ids[32];
            Tokenizer *bpe = kept(bpe_open(dirs[d]));
            const BpeToken *t = &bpe->v.token[499];
            EXPECT(bpe->v.end_of_text == (cases[i].is_end ? 499 : -1), "case %d: the end of text", i);
            EXPECT(t->size == size && !memcmp(t->bytes, cases[i].text, (size_t)size), "case %d: another name", i);
            EXPECT(bpe_encode_special(bpe, t->bytes, (size_t)size, ids) == 1 && *ids == 499, "case %d: as text", i);
            EXPECT(bpe_encode(bpe, t->bytes, (size_t)size, ids) > 1, "case %d: not as text", i);
            for (int f = 0; f < 2; f++) {
                const char *name = f ? "tokenizer_config.json" : "tokenizer.json";
                char *text = test_keep(bpe_file_text(bpe, name, 0));
                put_text(STRING("%s/%s", dirs[1], name), text);
            }
        }
    }
    put_text(IN_SCRATCH("special-0/tokenizer_config.json"), "{\"eos_token\": \"<end>\"}");
    EXPECT_FAILS("\"eos_token\" is '<end>', want a token of", bpe_open(IN_SCRATCH("special-0")));
    put_text(IN_SCRATCH("special-0/tokenizer_config.json"), "{\"eos_token\": 5}");     /* "5" is a token */
    EXPECT_FAILS("\"eos_token\" is 5, want a string", bpe_open(IN_SCRATCH("special-0")));
    put_text(IN_SCRATCH("special-0/tokenizer_config.json"), "[]");
    EXPECT_FAILS("tokenizer_config.json: this is an array, want an object", bpe_open(IN_SCRATCH("special-0")));
    put_text(IN_SCRATCH("special-0/tokenizer_config.json"), "{\"tokenizer_class\": \"CLIPTokenizer\"}");
    EXPECT_FAILS("\"tokenizer_class\" is \"CLIPTokenizer\", want as in GPT-2", bpe_open(IN_SCRATCH("special-0")));
    put_text(IN_SCRATCH("special-0/tokenizer_config.json"), "{\"add_prefix_space\": true}");
    EXPECT_FAILS("\"add_prefix_space\" is true, want as in GPT-2", bpe_open(IN_SCRATCH("special-0")));
}

/* A warning from one token on that no merge makes, an error above 1 %; the reference has 243 merges. */
TEST(cut_merges) {
    char *dir = edited_reference("cut", "vocab.json", "", ""), *merges = STRING("%s", text_of(REFERENCE "/merges.txt"));
    for (int left = 242; left >= 240; left--) {
        const char *want = STRING("cut/merges.txt: makes %d of 243 tokens of", left);
        merges[strlen(merges) - 1] = 0;
        strrchr(merges, '\n')[1] = 0;
        put_text(IN_SCRATCH("cut/merges.txt"), merges);
        if (left == 240) {
            EXPECT_FAILS(want, bpe_open(dir));
        } else {
            Tokenizer *bpe = kept(bpe_open(dir));
            EXPECT(bpe->v.warning && strstr(bpe->v.warning, want), "%d left", left);
        }
    }
}

/* ---- Training */

static Tokenizer *trained(const char *path, int vocab_size, size_t part) {
    FileMap map = file_map(path);
    BpeTrainer trainer = {0};
    for (size_t at = 0, end; at < (size_t)map.size; at = end) {
        end = bpe_words_cut(map.bytes, (size_t)map.size, at + part);
        bpe_trainer_add(&trainer, &(BpeSpan){ .text = map.bytes + at, .size = end - at }, 1);
    }
    file_unmap(map);
    return kept(bpe_train(&trainer, vocab_size));
}

TEST(merges_of_huggingface) {
    for (size_t part = 10; part <= 1000000; part *= 100) {
        Tokenizer *bpe = trained(REFERENCE "/train.txt", V, part);
        EXPECT(bpe_fingerprint(bpe) == bpe_fingerprint(reference), "in parts of %zu: another tokenizer", part);
    }
    put_text(IN_SCRATCH("bc.txt"), "abc ab ab xbc xbc");            /* "bc" occurs twice without the "ab" before it */
    const BpeToken *second = &trained(IN_SCRATCH("bc.txt"), 1000, 1 << 20)->v.token[257];
    EXPECT(second->size == 2 && !memcmp(second->bytes, "bc", 2), "'%.*s'", second->size, second->bytes);
    put_text(IN_SCRATCH("ab.txt"), "ab ab b a b");
    Tokenizer *bpe = trained(IN_SCRATCH("ab.txt"), 1000, 1 << 20);        /* only "ab" and " a" or " b" occur twice */
    const BpeVocabulary *v = &bpe->v;
    EXPECT(v->V == 259 && v->merge_count == 2 && v->end_of_text == 258, "%d tokens, %d merges", v->V, v->merge_count);
    bpe = trained(REFERENCE "/train.txt", 257, 1000);
    v = &bpe->v;
    EXPECT(v->merge_count == 0 && v->end_of_text == 256, "%d merges, %d", v->merge_count, v->end_of_text);
    BpeTrainer trainer = {0};
    EXPECT_FAILS("--vocab-size 256: want 257 or more", bpe_train(&trainer, 256));
    bpe_free(bpe_train(&trainer, 257));
}

int main(void) {
    scratch_open();
    reference = kept(bpe_open(REFERENCE));
    no_map_dir = edited_reference("no-map", "merges.txt", "#version: 0.2\nà ¤\n",     /* Windows' */
                                  "\xEF\xBB\xBF#version: 0.2\r\nà ¤\r\n");
    return test_all();
}
