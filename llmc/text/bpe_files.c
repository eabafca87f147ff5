#include "bpe_files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "bpe.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"

/* ---- Letters */

int bpe_letter(int byte) {
    int is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    int others_below = byte <= 0x20 ? byte : byte < 0xa1 ? 0x21 + byte - 0x7f : 0x43;
    return is_printable ? byte : 0x100 + others_below;
}

/* Writes the bytes of a string of letters (NULL: nowhere) and returns their number, -1 when it holds another
   character. bytes may be text: a letter is a byte or two. */
static int bytes_of_letters(const char *text, size_t length, unsigned char *bytes) {
    static short byte_of[BPE_LETTERS];
    if (!byte_of['!'])
        for (int byte = 0; byte < 256; byte++) byte_of[bpe_letter(byte)] = (short)(byte + 1);
    int count = 0;
    for (size_t i = 0; i < length; i++) {
        int c = (unsigned char)text[i];
        if (c >= 0xc0) {
            if (c >= 0xe0 || ++i == length) return -1;
            c = (c & 0x1f) << 6 | ((unsigned char)text[i] & 0x3f);
        }
        if (c >= BPE_LETTERS || !byte_of[c]) return -1;
        if (bytes) bytes[count] = (unsigned char)(byte_of[c] - 1);
        count++;
    }
    return count;
}

/* ---- Reading */

typedef struct {
    BpeVocabulary v;                    /* tokens have their text in the JSON; is_special -1: a merge makes it */
    int           limit;                /* ids are below it */
    int32_t      *slot;                 /* hash table of ids by text; -1 = empty */
    size_t        mask, merge_room;
    const char   *end_of_text;          /* its text */
    Path          vocabulary, merges;
    char          where[4200];          /* file and line of the current merge */
} Reader;

/* A tokenizer can ask for more than GPT-2's does, which would give other ids: members that are there must have the
   value want; NULL: null, false or "". keys end with NULL. */
static void require_values(const Json *object, const char *want, const char *const *keys) {
    for (; *keys; keys++) {
        const Json *value = json_find(object, *keys);
        const char *text = value ? json_text(value) : "null";
        const int is_off = !*text || !strcmp(text, "null") || !strcmp(text, "false");
        if (want ? value && strcmp(text, want) : !is_off)
            json_refuse(value, want ? want : "as in GPT-2's tokenizer, a byte-level BPE");
    }
}

/* The place of a token in the table: its id, or -1. */
static int32_t *find_token(const Reader *r, const char *text, size_t size) {
    size_t slot = xxh64(text, size) & r->mask;
    for (; r->slot[slot] >= 0; slot = (slot + 1) & r->mask) {
        const BpeToken *t = &r->v.token[r->slot[slot]];
        if ((size_t)t->size == size && !memcmp(t->bytes, text, size)) break;
    }
    return &r->slot[slot];
}

static BpeToken *add_token(Reader *r, const char *text, const Json *number) {
    const int32_t id = (int32_t)json_integer(number, 0, r->limit - 1);
    const size_t size = strlen(text);
    int32_t *slot = find_token(r, text, size);
    BpeToken *t = &r->v.token[id];
    if (*slot == id) return t;          /* HuggingFace lists added tokens in the vocabulary again */
    REQUIRE(size, "%s: token %d is empty", number->where, id);
    REQUIRE(!t->size, "%s: '%.80s' has the id %d of another token", number->where, text, id);
    REQUIRE(*slot < 0, "%s: '%.80s' has two ids, %d and %d", number->where, text, *slot, id);
    *t = (BpeToken){ .bytes = (const unsigned char *)text, .size = (int)size };
    *slot = id;
    if (id >= r->v.V) r->v.V = id + 1;
    if (!strcmp(text, r->end_of_text)) r->v.end_of_text = id;
    return t;
}

/* [{ "id": 7, "content": "<s>" }], { "7": { "content": "<s>" } } or { "<s>": 7 }. */
static void add_special_token(Reader *r, const Json *token) {
    const Json key = { .type = JSON_NUMBER, .key = token->key, .text = token->key, .where = token->where };
    const Json *special = json_find(token, "special"), *number = token;
    const char *text = token->key && token->type != JSON_OBJECT ? token->key : json_string(token, "content");
    if (token->type == JSON_OBJECT) number = token->key ? &key : json_member(token, "id", JSON_NUMBER);
    if (special && special->type != JSON_TRUE) json_refuse(special, "true: only special tokens can be added");
    if (bytes_of_letters(text, strlen(text), NULL) != 1)        /* as is the pad token of a model of bytes */
        require_values(token, NULL, (const char *[]){ "lstrip", "rstrip", "single_word", NULL });
    add_token(r, text, number)->is_special = 1;
}

static void read_tokens(Reader *r, const Json *vocabulary, const Json *added) {
    size_t slots = 16;
    r->limit = 2 * (vocabulary->count + added->count) + 1024;   /* no large gaps: a model has a row for each id */
    r->v.token = host_alloc((size_t)r->limit * sizeof *r->v.token, "a vocabulary");
    while (slots < (size_t)r->limit) slots *= 2;
    r->mask = slots - 1;
    r->slot = host_alloc(slots * sizeof *r->slot, "a vocabulary");
    memset(r->slot, -1, slots * sizeof *r->slot);
    for (const Json *t = added->child; t; t = t->next)      add_special_token(r, t);
    for (const Json *t = vocabulary->child; t; t = t->next) add_token(r, t->key, t);
}

static int32_t require_token(const Reader *r, const char *text, size_t size) {
    const int32_t id = *find_token(r, text, size);
    REQUIRE(id >= 0, "%s: '%.*s' is not in %s: want the merges of this vocabulary", r->where,
            size < 80 ? (int)size : 80, text, r->vocabulary.text);
    return id;
}

/* line: "left right", in letters. */
static void add_merge(Reader *r, const char *line, size_t size) {
    const char *space = memchr(line, ' ', size);
    const size_t left = space ? (size_t)(space - line) : 0, right = space ? size - left - 1 : 0;
    REQUIRE(left && right && !memchr(space + 1, ' ', right), "%s: '%.*s', want two tokens, one space between them",
            r->where, size < 80 ? (int)size : 80, line);
    BpeMerge m = { .left = require_token(r, line, left), .right = require_token(r, space + 1, right) };
    char *both = format_string("%.*s%.*s", (int)left, line, (int)right, space + 1);
    m.merged = require_token(r, both, left + right);
    free(both);
    r->v.merge = host_grow(r->v.merge, (size_t)r->v.merge_count, &r->merge_room, sizeof m, "merges");
    r->v.merge[r->v.merge_count++] = m;
    r->v.token[m.merged].is_special = -1;
}

static void read_merges_txt(Reader *r) {
    const FileMap map = file_map(r->merges.text);
    for (FileLine line = {0}; file_next_line(map, &line); ) {
        snprintf(r->where, sizeof r->where, "%s: line %lld", r->merges.text, (long long)line.number);
        const int is_version = line.size >= 8 && !memcmp(line.text, "#version", 8);
        if (line.size && !is_version) add_merge(r, line.text, line.size);
    }
    file_unmap(map);
}

static void read_tokenizer_json(Reader *r, const Json *json) {
    static const char *const type[] = { "type", NULL };
    const Json *model = json_member(json, "model", JSON_OBJECT), *added = json_find(json, "added_tokens");
    const Json *splitter = json_member(json, "pre_tokenizer", JSON_OBJECT), *after = json_find(json, "post_processor");
    const Json *adds = after ? json_find(after, "special_tokens") : NULL;
    json_member(splitter, "type", JSON_STRING);
    require_values(splitter, "ByteLevel", type);
    require_values(splitter, "true", (const char *[]){ "use_regex", NULL });
    require_values(splitter, NULL, (const char *[]){ "add_prefix_space", NULL });
    if (after && (!adds || adds->count)) require_values(after, "ByteLevel", type);      /* which adds no tokens */
    require_values(json, NULL, (const char *[]){ "normalizer", NULL });
    require_values(model, "BPE", type);
    require_values(model, NULL, (const char *[]){ "dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                                  "byte_fallback", "ignore_merges", NULL });
    if (added && added->type != JSON_ARRAY) json_refuse(added, "an array");
    read_tokens(r, json_member(model, "vocab", JSON_OBJECT), added ? added : &(Json){0});
    int number = 0;
    for (const Json *m = json_member(model, "merges", JSON_ARRAY)->child; m; m = m->next, number++) {
        snprintf(r->where, sizeof r->where, "%s: merge %d", json->where, number);
        const Json *left = m->type == JSON_ARRAY && m->count == 2 ? m->child : NULL;
        const int is_pair = left && left->type == JSON_STRING && left->next->type == JSON_STRING;
        if (m->type != JSON_STRING && !is_pair) json_refuse(m, "\"left right\" or [\"left\", \"right\"]");
        char *line = is_pair ? format_string("%s %s", left->text, left->next->text) : format_string("%s", m->text);
        add_merge(r, line, strlen(line));
        free(line);
    }
}

/* Special are tokens that no merge makes, if they are added, end a text, look like <s> or [PAD], or are not in letters.
   The texts of all others become bytes. */
static void find_special_tokens(Reader *r) {
    int missing = 0, count = 0;
    char example[81] = "";
    for (int32_t id = 0; id < r->v.V; id++) {
        BpeToken *t = &r->v.token[id];
        if (!t->size) continue;
        char *text = (char *)t->bytes, last = text[t->size - 1];
        const int size = bytes_of_letters(text, (size_t)t->size, NULL), is_made = size == 1 || t->is_special < 0;
        const int is_framed = t->size > 2 && ((*text == '<' && last == '>') || (*text == '[' && last == ']'));
        REQUIRE(size > 0 || !is_made, "%s: '%.80s' is not in GPT-2's letters for bytes", r->merges.text, text);
        t->is_special = !is_made && (t->is_special || id == r->v.end_of_text || is_framed || size < 0);
        if (t->is_special) continue;
        count += size > 1;
        if (!is_made && !missing++) snprintf(example, sizeof example, "%s", text);
        t->size = bytes_of_letters(text, (size_t)t->size, (unsigned char *)text);
    }
    if (!missing) return;
    r->v.warning = format_string("%s: makes %d of %d tokens of %s, not '%s': is it cut?", r->merges.text,
                                 count - missing, count, r->vocabulary.text, example);
    REQUIRE(100 * (int64_t)missing <= count, "%s", r->v.warning);
}

static const char *const formats[][2] = {       /* vocabulary and merges */
    { "tokenizer.json", "tokenizer.json" }, { "vocab.json", "merges.txt" }, { "encoder.json", "vocab.bpe" } };

/* The first format whose files the directory has; -1 = none. */
static int find_format(const char *dir) {
    for (int i = 0; i < 3; i++)
        if (dir_has_file(dir, formats[i][0]) && dir_has_file(dir, formats[i][1])) return i;
    return -1;
}

int bpe_has_files(const char *dir) { return find_format(dir) >= 0; }

/* An object, without members where there is no such file. */
static Json *open_object(const char *dir, const char *name) {
    Json *json = dir_has_file(dir, name) ? json_open(path_of(dir, name).text) : json_parse("{}", 2, name);
    if (json->type != JSON_OBJECT) json_refuse(json, "an object");
    return json;
}

/* "eos_token": a string, or an object with "content"; NULL = none. */
static const char *end_of_text_of(const Json *json) {
    const Json *token = json_find(json, "eos_token");
    if (token && token->type == JSON_OBJECT) token = json_member(token, "content", JSON_STRING);
    if (token && token->type != JSON_STRING && token->type != JSON_NULL) json_refuse(token, "a string");
    return token ? token->text : NULL;
}

Bpe *bpe_open(const char *dir) {
    const int format = find_format(dir);
    REQUIRE(format >= 0 || file_is_dir(dir), "%s: %s, want a directory with a tokenizer", dir,
            file_exists(dir) ? "is a file" : "no such directory");
    REQUIRE(format >= 0, "%s: no tokenizer: want tokenizer.json, vocab.json and merges.txt, or encoder.json and "
            "vocab.bpe", dir);
    Json *const file[] = { open_object(dir, formats[format][0]), open_object(dir, "tokenizer_config.json"),
                           open_object(dir, "special_tokens_map.json"), open_object(dir, "added_tokens.json") };
    const Json *config = file[1], *added = json_find(config, "added_tokens_decoder");
    const char *end = end_of_text_of(config) ? end_of_text_of(config) : end_of_text_of(file[2]);
    Reader r = { .v.end_of_text = -1, .end_of_text = end ? end : "<|endoftext|>",
                 .vocabulary = path_of(dir, formats[format][0]), .merges = path_of(dir, formats[format][1]) };
    require_values(config, NULL, (const char *[]){ "add_prefix_space", "add_bos_token", "add_eos_token", NULL });
    if (format == 0) {
        read_tokenizer_json(&r, file[0]);
    } else {
        read_tokens(&r, file[0], added ? added : file[3]);
        read_merges_txt(&r);
    }
    REQUIRE(!end || r.v.end_of_text >= 0, "%s: \"eos_token\" is '%.80s', want a token of %s", dir, end,
            r.vocabulary.text);
    find_special_tokens(&r);
    Bpe *bpe = bpe_create(r.v, r.vocabulary.text);
    for (int i = 0; i < 4; i++) json_free(file[i]);
    free(r.slot);
    return bpe;
}

/* ---- Writing */

/* A new string of letters; special tokens stand as they are. */
static char *token_text(const BpeToken *t) {
    char *text = host_alloc(2 * (size_t)t->size + 1, "a token"), *to = text;
    for (int i = 0; i < t->size; i++) {
        const int c = t->is_special ? t->bytes[i] : bpe_letter(t->bytes[i]);
        if (c >= 0x80 && !t->is_special) *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(c < 0x80 || t->is_special ? c : 0x80 | (c & 0x3f));
    }
    return text;
}

static void write_token(FILE *file, const BpeToken *t) {
    char *text = token_text(t);
    json_write_string(file, text);
    free(text);
}

static void write_vocabulary(FILE *file, const BpeVocabulary *v) {
    const char *separator = "{";
    for (int32_t id = 0; id < v->V; id++) {
        if (!v->token[id].size) continue;
        fputs(separator, file);
        write_token(file, &v->token[id]);
        fprintf(file, ": %d", id);
        separator = ", ";
    }
    fputs("}", file);
}

static void write_merges(FILE *file, const BpeVocabulary *v, int as_json) {
    if (!as_json) fputs("#version: 0.2\n", file);
    for (int i = 0; i < v->merge_count; i++) {
        char *left = token_text(&v->token[v->merge[i].left]), *right = token_text(&v->token[v->merge[i].right]);
        char *text = format_string("%s %s", left, right);
        if (as_json) fputs(i ? ",\n      " : "\n      ", file), json_write_string(file, text);
        else         fprintf(file, "%s\n", text);
        free(text);
        free(left);
        free(right);
    }
}

static void write_tokenizer_json(FILE *file, const BpeVocabulary *v) {
    static const char level[] = "{ \"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                "\"use_regex\": true }";
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [", file);
    const char *separator = "";
    for (int32_t id = 0; id < v->V; id++) {
        if (!v->token[id].is_special) continue;
        fprintf(file, "%s\n    { \"id\": %d, \"content\": ", separator, id);
        write_token(file, &v->token[id]);
        fputs(", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
              "\"special\": true }", file);
        separator = ",";
    }
    fprintf(file, "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n  \"post_processor\": null,\n"
            "  \"decoder\": %s,\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
            "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
            "    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": ",
            level, level);
    write_vocabulary(file, v);
    fputs(",\n    \"merges\": [", file);
    write_merges(file, v, 1);
    fputs("\n    ]\n  }\n}\n", file);
}

/* Without the class, AutoTokenizer takes GPT2Tokenizer, which splits and adds tokens on its own. Without the names of
   inputs, transformers 4 makes token_type_ids, for which GPT-2 adds a row of the token table at every position. Byte 0
   pads where no token ends a text; with single_word, for its letter is one of Latvian. */
static void write_config(FILE *file, const BpeVocabulary *v, int T) {
    static const char *const uses[] = { "bos_token", "eos_token", "unk_token", "pad_token" };
    fputs("{\n", file);
    for (int i = 0; i < 4 && v->end_of_text >= 0; i++) {
        fprintf(file, "  \"%s\": ", uses[i]);
        write_token(file, &v->token[v->end_of_text]);
        fputs(",\n", file);
    }
    if (v->end_of_text < 0)
        fputs("  \"pad_token\": { \"__type\": \"AddedToken\", \"content\": \"\\u0100\", \"single_word\": true },\n",
              file);
    if (T) fprintf(file, "  \"model_max_length\": %d,\n", T);
    fputs("  \"padding_side\": \"right\",\n  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n"
          "  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false\n}\n", file);
}

char *bpe_file_text(const Bpe *bpe, const char *name, int T) {
    const BpeVocabulary *v = bpe_vocabulary(bpe);
    char *text;
    size_t size;
    FILE *file = string_open(&text, &size, name);
    if (!strcmp(name, "tokenizer.json"))             write_tokenizer_json(file, v);
    else if (!strcmp(name, "tokenizer_config.json")) write_config(file, v, T);
    else if (!strcmp(name, "vocab.json"))            write_vocabulary(file, v);
    else if (!strcmp(name, "merges.txt"))            write_merges(file, v, 0);
    REQUIRE(!fclose(file), "out of memory: %s", name);
    return text;
}

enum { FILES = 4, NAMES = 8 };      /* files that are written, and those of any tokenizer */
static const char *const files[NAMES] = { "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt",
                                          "special_tokens_map.json", "added_tokens.json", "encoder.json", "vocab.bpe" };

void bpe_require_none(const char *dir) {
    for (int i = 0; i < NAMES; i++)
        REQUIRE(!dir_has_file(dir, files[i]), "%s/%s exists: want another --out", dir, files[i]);
}

int bpe_is_in(const Bpe *bpe, const char *dir) {
    if (bpe_has_files(dir)) {
        Bpe *other = bpe_open(dir);
        REQUIRE(bpe_fingerprint(other) == bpe_fingerprint(bpe), "%s: has another tokenizer: want another --out", dir);
        bpe_free(other);
        return 1;
    }
    for (int i = 0; i < FILES; i++) {
        const Path path = path_of(dir, files[i]);
        if (!file_exists(path.text)) continue;
        char *text = bpe_file_text(bpe, files[i], 0);
        const FileMap had = file_map(path.text);
        REQUIRE(had.size == (int64_t)strlen(text) && !memcmp(had.bytes, text, strlen(text)),
                "%s exists: want another --out", path.text);
        file_unmap(had);
        free(text);
    }
    return 0;
}

typedef struct { const Bpe *bpe; const char *dir; char *partial[FILES]; } Written;

static void write_files(void *argument) {
    Written *w = argument;
    for (int i = 0; i < FILES; i++) {
        char *text = bpe_file_text(w->bpe, files[i], 0);
        w->partial[i] = format_string("%s.new-%d", path_of(w->dir, files[i]).text, (int)getpid());  /* maybe no lock */
        file_write_text(w->partial[i], text);
        free(text);
    }
}

void bpe_write(const Bpe *bpe, const char *dir) {
    Written w = { .bpe = bpe, .dir = dir };
    char why[FAIL_LENGTH];
    if (bpe_is_in(bpe, dir)) return;
    if (fails(write_files, &w, why)) {
        for (int i = 0; i < FILES && w.partial[i]; i++) unlink(w.partial[i]);
        fail("%s", why);
    }
    for (int i = FILES; i-- > 0; free(w.partial[i]))        /* last the first, which suffices alone */
        file_rename(w.partial[i], path_of(dir, files[i]).text);
}
