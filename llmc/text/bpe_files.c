#include "bpe_files.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "bpe.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"

enum { MAX_ID = 1 << 24, MERGE_MAX = 1 << 14 };     /* bytes of a line of merges.txt */

/* ---- Letters */

int bpe_letter(int byte) {
    int is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    int others_below = byte <= 0x20 ? byte : byte < 0xa1 ? 0x21 + byte - 0x7f : 0x43;
    return is_printable ? byte : 0x100 + others_below;
}

/* Writes the bytes of a string of letters and returns their number, -1 when it holds another character. */
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
        bytes[count++] = (unsigned char)(byte_of[c] - 1);
    }
    return count;
}

/* ---- Reading */

typedef struct {
    BpeVocabulary  v;
    unsigned char *next;                /* where the bytes of the next token go */
    int32_t       *slot;                /* hash table of ids by bytes; -1 = empty */
    size_t         mask, merge_room;
    char          *made;                /* by id: 1 = a byte, or made by a merge */
    const char    *vocabulary_path;
    char           where[4200];         /* file and line of the current merge */
} Reader;

static void make_special(Reader *r, int32_t id) {
    r->v.token[id].is_special = 1;
    r->v.special[r->v.special_count++] = id;
}

static void add_token(Reader *r, int32_t id, const char *text, const char *where) {
    BpeToken *t = &r->v.token[id];
    REQUIRE(!t->size, "%s: '%.80s' has the id %d of another token", where, text, id);
    size_t length = strlen(text);
    REQUIRE(length > 0, "%s: token %d is empty", where, id);
    int size = bytes_of_letters(text, length, r->next);
    if (size < 0) memcpy(r->next, text, (size_t)(size = (int)length));      /* special ones are not in letters */
    *t = (BpeToken){ .bytes = r->next, .size = size };
    r->next += size;
}

/* The place of a token in the table: its id, or -1. */
static int32_t *find_token(const Reader *r, const unsigned char *bytes, int size) {
    size_t slot = xxh64(bytes, (size_t)size) & r->mask;
    for (; r->slot[slot] >= 0; slot = (slot + 1) & r->mask) {
        const BpeToken *t = &r->v.token[r->slot[slot]];
        if (t->size == size && !memcmp(t->bytes, bytes, (size_t)size)) break;
    }
    return &r->slot[slot];
}

static int32_t id_of(const Json *token, int is_added) {
    return (int32_t)json_integer(is_added ? json_member(token, "id", JSON_NUMBER) : token, 0, MAX_ID);
}

static void add_added_token(Reader *r, const Json *added) {
    const int32_t id = id_of(added, 1);
    const char *text = json_string(added, "content");
    const Json *special = json_find(added, "special");
    BpeToken *token = &r->v.token[id];
    if (special && special->type != JSON_TRUE) json_refuse(special, "true: only special tokens can be added");
    REQUIRE(!token->is_special, "%s: two added tokens have the id %d", added->where, id);
    if (token->size) {                  /* HuggingFace lists tokens of the vocabulary again */
        int size = bytes_of_letters(text, strlen(text), r->next);
        int same = size < 0 || (size == token->size && !memcmp(r->next, token->bytes, (size_t)size));
        REQUIRE(same, "%s: '%.80s' has the id %d of another token", added->where, text, id);
        token->size = 0;
    }
    add_token(r, id, text, added->where);
    make_special(r, id);
}

/* Tokens of an object {"token": id} and of added tokens, an array or NULL. size: a bound of their bytes together, and
   of a merge's. */
static void read_vocabulary(Reader *r, const Json *vocabulary, const Json *added, size_t size) {
    const Json *first_added = added ? added->child : NULL;
    const int count = vocabulary->count + (added ? added->count : 0);
    int32_t max = -1;
    for (const Json *t = vocabulary->child; t; t = t->next) if (id_of(t, 0) > max) max = id_of(t, 0);
    for (const Json *t = first_added; t; t = t->next)       if (id_of(t, 1) > max) max = id_of(t, 1);
    REQUIRE(max >= 0, "%s: the vocabulary is empty", vocabulary->where);
    REQUIRE(max < 2 * (int64_t)count + 1024, "%s: ids up to %d for %d tokens: want ids from 0 without large gaps",
            vocabulary->where, max, count);
    r->v.V = max + 1;
    r->v.token = host_alloc((size_t)r->v.V * sizeof *r->v.token, "a vocabulary");
    r->made = host_alloc((size_t)r->v.V, "a vocabulary");
    r->v.special = host_alloc((size_t)r->v.V * sizeof *r->v.special, "a vocabulary");
    r->v.memory = r->next = host_alloc(size, "a vocabulary");
    for (const Json *t = vocabulary->child; t; t = t->next) add_token(r, id_of(t, 0), t->key, vocabulary->where);
    for (const Json *t = first_added; t; t = t->next)       add_added_token(r, t);
    size_t slots = 16;
    while (slots < 2 * (size_t)r->v.V) slots *= 2;
    r->mask = slots - 1;
    r->slot = host_alloc(slots * sizeof *r->slot, "a vocabulary");
    memset(r->slot, -1, slots * sizeof *r->slot);
    for (int32_t id = 0; id < r->v.V; id++)
        if (r->v.token[id].size) *find_token(r, r->v.token[id].bytes, r->v.token[id].size) = id;
}

static int32_t require_token(const Reader *r, const char *text, int length, unsigned char *bytes, int *size) {
    *size = bytes_of_letters(text, (size_t)length, bytes);
    REQUIRE(*size > 0, "%s: '%.*s' is not in GPT-2's letters for bytes", r->where, length < 80 ? length : 80, text);
    int32_t id = *find_token(r, bytes, *size);
    REQUIRE(id >= 0, "%s: '%.*s' is not in %s: want the merges of this vocabulary", r->where,
            length < 80 ? length : 80, text, r->vocabulary_path);
    return id;
}

/* "left right", in letters. */
static void add_merge(Reader *r, const char *line, size_t length) {
    const char *space = memchr(line, ' ', length);
    const int left = space ? (int)(space - line) : 0, right = space ? (int)length - left - 1 : 0;
    REQUIRE(left && right && !memchr(space + 1, ' ', (size_t)right), "%s: '%.*s', want two tokens, one space between "
            "them", r->where, length < 80 ? (int)length : 80, line);
    unsigned char *bytes = r->next;
    int left_size, right_size;
    BpeMerge m = { .left  = require_token(r, line, left, bytes, &left_size),
                   .right = require_token(r, space + 1, right, bytes + left_size, &right_size) };
    m.merged = *find_token(r, bytes, left_size + right_size);
    REQUIRE(m.merged >= 0, "%s: '%.*s' + '%.*s' is not in %s: want the merges of this vocabulary", r->where,
            left < 40 ? left : 40, line, right < 40 ? right : 40, space + 1, r->vocabulary_path);
    r->made[m.merged] = 1;
    r->v.merge = host_grow(r->v.merge, (size_t)r->v.merge_count, &r->merge_room, sizeof m, "merges");
    r->v.merge[r->v.merge_count++] = m;
}

static void read_merges(Reader *r, const char *path) {
    FileMap map = file_map(path);
    for (FileLine line = {0}; file_next_line(map, &line); ) {
        snprintf(r->where, sizeof r->where, "%s: line %lld", path, (long long)line.number);
        REQUIRE(line.size <= MERGE_MAX, "%s: %zu bytes, want a merge of two tokens", r->where, line.size);
        const int is_version = line.size >= 8 && !memcmp(line.text, "#version", 8);
        if (line.size && !is_version) add_merge(r, line.text, line.size);
    }
    file_unmap(map);
}

/* A description of a tokenizer can ask for more than GPT-2's does; all else would give other ids. */
static void read_tokenizer_json(Reader *r, const Json *json, size_t size) {
    const Json *model = json_member(json, "model", JSON_OBJECT), *kind = json_find(model, "type");
    const Json *splitter = json_member(json, "pre_tokenizer", JSON_ANY), *regex = json_find(splitter, "use_regex");
    static const char want[] = "as in GPT-2's tokenizer, a byte-level BPE";
    if (kind && (kind->type != JSON_STRING || strcmp(kind->text, "BPE"))) json_refuse(kind, "BPE, byte-level");
    if (splitter->type != JSON_OBJECT) json_refuse(splitter, "an object of type ByteLevel");
    const Json *level = json_member(splitter, "type", JSON_STRING);
    if (strcmp(level->text, "ByteLevel")) json_refuse(level, "ByteLevel, as in GPT-2's tokenizer");
    if (regex && regex->type != JSON_TRUE) json_refuse(regex, "true");
    const struct { const Json *object; const char *key; } absent[] = {
        { json, "normalizer" }, { model, "dropout" }, { model, "continuing_subword_prefix" },
        { model, "end_of_word_suffix" }, { model, "byte_fallback" }, { model, "ignore_merges" },
        { splitter, "add_prefix_space" },
    };
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        const Json *value = json_find(absent[i].object, absent[i].key);
        int is_absent = !value || value->type == JSON_NULL || value->type == JSON_FALSE ||
                        (value->type == JSON_STRING && !*value->text);
        if (!is_absent) json_refuse(value, want);
    }
    const Json *added = json_find(json, "added_tokens"), *merges = json_member(model, "merges", JSON_ARRAY);
    if (added && added->type != JSON_ARRAY) json_refuse(added, "an array");
    read_vocabulary(r, json_member(model, "vocab", JSON_OBJECT), added, size);
    int number = 0;
    for (const Json *m = merges->child; m; m = m->next, number++) {
        snprintf(r->where, sizeof r->where, "%s: merge %d", json->where, number);
        const Json *left = m->type == JSON_ARRAY && m->count == 2 ? m->child : NULL;
        const int is_pair = left && left->type == JSON_STRING && left->next->type == JSON_STRING;
        if (m->type != JSON_STRING && !is_pair) json_refuse(m, "\"left right\" or [\"left\", \"right\"]");
        char *line = is_pair ? format_string("%s %s", left->text, left->next->text) : format_string("%s", m->text);
        add_merge(r, line, strlen(line));
        free(line);
    }
}

static const char *const pairs[][2] = { { "vocab.json", "merges.txt" }, { "encoder.json", "vocab.bpe" } };

/* 0 or 1: the pair of files that the directory has; -1 = none. */
static int find_pair_of_files(const char *dir) {
    for (int i = 0; i < 2; i++)
        if (dir_has_file(dir, pairs[i][0]) && dir_has_file(dir, pairs[i][1])) return i;
    return -1;
}

int bpe_has_files(const char *dir) { return dir_has_file(dir, "tokenizer.json") || find_pair_of_files(dir) >= 0; }

Bpe *bpe_open(const char *dir) {
    int both = find_pair_of_files(dir), is_json = dir_has_file(dir, "tokenizer.json");
    REQUIRE(is_json || both >= 0 || file_is_dir(dir), "%s: %s, want a directory with a tokenizer", dir,
            file_exists(dir) ? "is a file" : "no such directory");
    REQUIRE(is_json || both >= 0, "%s: no tokenizer: want tokenizer.json, vocab.json and merges.txt, or encoder.json "
            "and vocab.bpe", dir);
    Path path = path_of(dir, is_json ? "tokenizer.json" : pairs[both][0]);
    Reader r = { .vocabulary_path = path.text };
    Json *json = json_open(path.text);
    FileMap map = file_map(path.text);
    size_t size = 3 * (size_t)map.size + MERGE_MAX;     /* tokens, added ones, and a merge */
    file_unmap(map);
    if (json->type != JSON_OBJECT) json_refuse(json, "an object");
    if (is_json) {
        read_tokenizer_json(&r, json, size);
    } else {
        read_vocabulary(&r, json, NULL, size);
        read_merges(&r, path_of(dir, pairs[both][1]).text);
        for (int32_t id = 0; id < r.v.V; id++)
            if (r.v.token[id].size > 1 && !r.made[id]) make_special(&r, id);
    }
    json_free(json);
    free(r.slot);
    free(r.made);
    return bpe_create(r.v, path.text);
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
    for (int i = 0; i < v->special_count; i++) {
        fprintf(file, "%s\n    { \"id\": %d, \"content\": ", i ? "," : "", v->special[i]);
        write_token(file, &v->token[v->special[i]]);
        fputs(", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
              "\"special\": true }", file);
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

/* Without the class, AutoTokenizer takes GPT2Tokenizer, which splits and adds tokens on its own. */
static void write_config(FILE *file, int has_end, int T) {
    fputs("{\n", file);
    if (has_end) fputs("  \"bos_token\": \"<|endoftext|>\",\n  \"eos_token\": \"<|endoftext|>\",\n"
                       "  \"unk_token\": \"<|endoftext|>\",\n", file);
    if (T) fprintf(file, "  \"model_max_length\": %d,\n", T);
    fputs("  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false\n}\n", file);
}

char *bpe_file_text(const Bpe *bpe, const char *name, int T) {
    const BpeVocabulary *v = bpe_vocabulary(bpe);
    char *text;
    size_t size;
    FILE *file = string_open(&text, &size, name);
    if (!strcmp(name, "tokenizer.json"))             write_tokenizer_json(file, v);
    else if (!strcmp(name, "tokenizer_config.json")) write_config(file, bpe_end_of_text(bpe) >= 0, T);
    else if (!strcmp(name, "vocab.json"))            write_vocabulary(file, v);
    else if (!strcmp(name, "merges.txt")) {
        fputs("#version: 0.2\n", file);
        write_merges(file, v, 0);
    }
    REQUIRE(!fclose(file), "out of memory: %s", name);
    return text;
}
