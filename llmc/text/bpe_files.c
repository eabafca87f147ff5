#include "bpe_files.h"

/* ---- Letters */

int bpe_letter(int byte) {
    int is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    int others_below = byte <= 0x20 ? byte : byte < 0xa1 ? 0x21 + byte - 0x7f : 0x43;
    return is_printable ? byte : 0x100 + others_below;
}

/* Writes the bytes of a string of letters (NULL: nowhere) and returns their number, -1 when it holds another
   character. bytes may be text: a letter is a byte or two. */
static int bytes_of_letters(const char *text, unsigned char *bytes) {
    static short byte_of[BPE_LETTERS];          /* + 1; 0 = none */
    if (!byte_of['!'])
        for (int byte = 0; byte < 256; byte++) byte_of[bpe_letter(byte)] = (short)(byte + 1);
    int count = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++, count++) {
        int code = *c;
        if (code >= 0xe0) return -1;
        if (code >= 0xc0) code = (code & 0x1f) << 6 | (*++c & 0x3f);
        if (code >= BPE_LETTERS || !byte_of[code]) return -1;
        if (bytes) bytes[count] = (unsigned char)(byte_of[code] - 1);
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
    Path          vocabulary, merges;   /* files */
    const char   *unit;                 /* the current merge: "line", "merge" */
    int64_t       number;
} Reader;

static int is_off(const Json *value) {
    const char *text = json_text(value);
    return !*text || !strcmp(text, "null") || !strcmp(text, "false");
}

/* What gives the ids of GPT-2's rules: known has the members of the object that may be there, "key=value", or "key" for
   any value. Other members ask for something more and must be null, false or "". */
static void require_known(const Json *object, const char *const *known) {
    for (const Json *m = object->child; m; m = m->next) {
        const size_t length = strlen(m->key);
        const char *const *k = known;
        while (*k && (strncmp(*k, m->key, length) || ((*k)[length] && (*k)[length] != '='))) k++;
        const char *value = *k && (*k)[length] ? *k + length + 1 : NULL;
        if (value ? strcmp(json_text(m), value) : !*k && !is_off(m))
            json_refuse(m, value ? value : "as in GPT-2's tokenizer, a byte-level BPE");
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
    REQUIRE(size && !t->size, "%s: '%.80s' has the id %d of another token or is empty", number->where, text, id);
    REQUIRE(*slot < 0, "%s: '%.80s' has two ids, %d and %d", number->where, text, *slot, id);
    *t = (BpeToken){ .bytes = (const unsigned char *)text, .size = (int)size };
    *slot = id;
    if (id >= r->v.V) r->v.V = id + 1;
    if (!strcmp(text, r->end_of_text)) r->v.end_of_text = id;
    return t;
}

/* { "<s>": 7 }, [{ "id": 7, "content": "<s>" }] or { "7": { "content": "<s>" } }. */
static void add_special_token(Reader *r, const Json *token) {
    static const char *const known[] = { "single_word=true", "id", "content", "special=true", "normalized", NULL };
    const Json key = { .type = JSON_NUMBER, .key = token->key, .text = token->key, .where = token->where };
    const int is_name = token->key && token->type != JSON_OBJECT;
    const char *text = is_name ? token->key : json_string(token, "content");
    const Json *number = is_name ? token : token->key ? &key : json_member(token, "id", JSON_NUMBER);
    const int is_byte = bytes_of_letters(text, NULL) == 1;          /* the pad token of bytes, see write_config */
    require_known(token, known + !is_byte);
    add_token(r, text, number)->is_special = !is_byte;
}

static void read_tokens(Reader *r, const Json *vocabulary, const Json *added) {
    r->limit = 2 * (vocabulary->count + added->count) + 1024;   /* no large gaps: a model has a row for each id */
    r->v.token = host_alloc((size_t)r->limit * sizeof *r->v.token, "a vocabulary");
    while (r->mask < (size_t)r->limit) r->mask = 2 * r->mask + 1;
    r->slot = host_alloc((r->mask + 1) * sizeof *r->slot, "a vocabulary");
    memset(r->slot, -1, (r->mask + 1) * sizeof *r->slot);
    for (const Json *t = added->child; t; t = t->next)      add_special_token(r, t);
    for (const Json *t = vocabulary->child; t; t = t->next) add_token(r, t->key, t);
}

static int32_t require_token(const Reader *r, const char *text, size_t size) {
    const int32_t id = *find_token(r, text, size);
    REQUIRE(id >= 0 && r->v.token[id].is_special <= 0, "%s: %s %lld: '%.*s' is %s %s: want the merges of this "
            "vocabulary", r->merges.text, r->unit, (long long)r->number, size < 80 ? (int)size : 80, text,
            id < 0 ? "not in" : "an added token of", r->vocabulary.text);
    return id;
}

/* line: "left right", in letters. */
static void add_merge(Reader *r, const char *line, size_t size) {
    const char *space = memchr(line, ' ', size);
    const size_t left = space ? (size_t)(space - line) : 0, right = space ? size - left - 1 : 0;
    REQUIRE(left && right && !memchr(space + 1, ' ', right), "%s: %s %lld: '%.*s', want two tokens, one space between "
            "them", r->merges.text, r->unit, (long long)r->number, size < 80 ? (int)size : 80, line);
    char *both = format_string("%.*s%.*s", (int)left, line, (int)right, space + 1);
    const BpeMerge m = { require_token(r, line, left), require_token(r, space + 1, right),
                         require_token(r, both, left + right) };
    free(both);
    r->v.merge = host_grow(r->v.merge, (size_t)r->v.merge_count, &r->merge_room, sizeof m, "merges");
    r->v.merge[r->v.merge_count++] = m;
    r->v.token[m.merged].is_special = -1;
}

static void read_merges_txt(Reader *r) {
    const FileMap map = file_map(r->merges.text);
    r->unit = "line";
    for (FileLine line = {0}; file_next_line(map, &line); ) {
        r->number = line.number;
        const int is_version = line.size >= 8 && !memcmp(line.text, "#version", 8);
        if (line.size && !is_version) add_merge(r, line.text, line.size);
    }
    file_unmap(map);
}

static void read_tokenizer_json(Reader *r, const Json *json) {
    const Json *model = json_member(json, "model", JSON_OBJECT), *added = json_find(json, "added_tokens");
    const Json *splitter = json_member(json, "pre_tokenizer", JSON_OBJECT), *after = json_find(json, "post_processor");
    const Json *adds = after ? json_find(after, "special_tokens") : NULL;      /* a template: what it adds to a text */
    require_known(json, (const char *const[]){ "version", "truncation", "padding", "added_tokens", "pre_tokenizer",
                                               "post_processor", "decoder", "model", NULL });
    json_member(splitter, "type", JSON_STRING);
    require_known(splitter, (const char *const[]){ "type=ByteLevel", "use_regex=true", "trim_offsets", NULL });
    require_known(model, (const char *const[]){ "type=BPE", "unk_token", "fuse_unk", "vocab", "merges", NULL });
    if (after && (!adds || adds->count))
        require_known(after, (const char *const[]){ "type=ByteLevel", "add_prefix_space", "use_regex", "trim_offsets",
                                                    NULL });
    read_tokens(r, json_member(model, "vocab", JSON_OBJECT), added ? json_member(json, "added_tokens", JSON_ARRAY)
                                                                  : &(Json){0});
    r->unit = "merge";
    for (const Json *m = json_member(model, "merges", JSON_ARRAY)->child; m; m = m->next, r->number++) {
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
        const int size = bytes_of_letters(text, NULL), is_made = size == 1 || t->is_special < 0;
        const int is_framed = t->size > 2 && ((*text == '<' && last == '>') || (*text == '[' && last == ']'));
        REQUIRE(size > 0 || !is_made, "%s: '%.80s' is not in GPT-2's letters for bytes", r->merges.text, text);
        t->is_special = !is_made && (t->is_special || id == r->v.end_of_text || is_framed || size < 0);
        if (t->is_special) continue;
        count += size > 1;
        if (!is_made && !missing++) snprintf(example, sizeof example, "%s", text);
        t->size = bytes_of_letters(text, (unsigned char *)text);
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
    if (!token || token->type == JSON_NULL) return NULL;
    return token->type == JSON_OBJECT ? json_string(token, "content") : json_string(json, "eos_token");
}

Tokenizer *bpe_open(const char *dir) {
    static const char *const asked[] = { "add_prefix_space", "add_bos_token", "add_eos_token", "tokenizer_class" };
    const int format = find_format(dir);
    REQUIRE(format >= 0 || file_is_dir(dir), "%s: %s, want a directory with a tokenizer (scripts/download_gpt2.sh "
            "downloads GPT-2's to data/gpt2)", dir, file_exists(dir) ? "is a file" : "no such directory");
    REQUIRE(format >= 0, "%s: no tokenizer: want tokenizer.json, vocab.json and merges.txt, or encoder.json and "
            "vocab.bpe (of a run: its step-N or best; GPT-2's: start scripts/download_gpt2.sh again)", dir);
    Json *const file[] = { open_object(dir, formats[format][0]), open_object(dir, "tokenizer_config.json"),
                           open_object(dir, "special_tokens_map.json"), open_object(dir, "added_tokens.json") };
    const Json *config = file[1], *added = json_find(config, "added_tokens_decoder");
    const char *end = end_of_text_of(config) ? end_of_text_of(config) : end_of_text_of(file[2]);
    Reader r = { .v.end_of_text = -1, .mask = 15, .end_of_text = end ? end : "<|endoftext|>",
                 .vocabulary = path_of(dir, formats[format][0]), .merges = path_of(dir, formats[format][1]) };
    for (int i = 0; i < 3 + (format > 0); i++) {        /* tokenizer.json says all that a class does */
        const Json *value = json_find(config, asked[i]);
        if (value && !is_off(value) && strncmp(json_text(value), "GPT2Tokenizer", 13))
            json_refuse(value, "as in GPT-2's tokenizer, a byte-level BPE");
    }
    if (format == 0) {
        read_tokenizer_json(&r, file[0]);
    } else {
        read_tokens(&r, file[0], added ? added : file[3]);
        read_merges_txt(&r);
    }
    REQUIRE(!end || r.v.end_of_text >= 0, "%s: \"eos_token\" is '%.80s', want a token of %s", dir, end,
            r.vocabulary.text);
    find_special_tokens(&r);
    Tokenizer *bpe = bpe_create(r.v, r.vocabulary.text);
    bpe->dir = format_string("%s", dir);
    for (int i = 0; i < 4; i++) json_free(file[i]);
    free(r.slot);
    return bpe;
}

/* ---- The text of files that are written */

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

/* Writes a string between before and after, and frees it. */
static void write_string(FILE *file, const char *before, char *text, const char *after) {
    fputs(before, file);
    json_write_string(file, text);
    fputs(after, file);
    free(text);
}

static void write_tokenizer_json(FILE *file, const BpeVocabulary *v) {
    static const char level[] = "{ \"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                "\"use_regex\": true }";
    fputs("{\n  \"version\": \"1.0\",\n  \"added_tokens\": [", file);
    const char *separator = "";
    for (int32_t id = 0; id < v->V; id++) {
        if (!v->token[id].is_special) continue;
        fprintf(file, "%s\n    { \"id\": %d", separator, id);
        write_string(file, ", \"content\": ", token_text(&v->token[id]), ", \"single_word\": false, \"lstrip\": false, "
                     "\"rstrip\": false, \"normalized\": false, \"special\": true }");
        separator = ",";
    }
    fprintf(file, "\n  ],\n  \"pre_tokenizer\": %s,\n  \"decoder\": %s,\n  \"model\": {\n    \"type\": \"BPE\",\n"
            "    \"vocab\": {", level, level);
    separator = "";
    for (int32_t id = 0; id < v->V; id++) {
        if (!v->token[id].size) continue;
        write_string(file, separator, token_text(&v->token[id]), ": ");
        fprintf(file, "%d", id);
        separator = ", ";
    }
    fputs("},\n    \"merges\": [", file);
    for (int i = 0; i < v->merge_count; i++) {
        char *left = token_text(&v->token[v->merge[i].left]), *right = token_text(&v->token[v->merge[i].right]);
        write_string(file, i ? ",\n      " : "\n      ", format_string("%s %s", left, right), "");
        free(left);
        free(right);
    }
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
        write_string(file, "", token_text(&v->token[v->end_of_text]), ",\n");
    }
    if (v->end_of_text < 0)
        fputs("  \"pad_token\": { \"__type\": \"AddedToken\", \"content\": \"\\u0100\", \"single_word\": true },\n",
              file);
    if (T) fprintf(file, "  \"model_max_length\": %d,\n", T);
    fputs("  \"padding_side\": \"right\",\n  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n"
          "  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false\n}\n", file);
}

char *bpe_file_text(const Tokenizer *tokenizer, const char *name, int T) {
    char *text;
    size_t size;
    if (!tokenizer->v.token) return NULL;
    FILE *file = string_open(&text, &size, name);
    if (!strcmp(name, "tokenizer.json")) write_tokenizer_json(file, &tokenizer->v);
    else                                 write_config(file, &tokenizer->v, T);
    REQUIRE(!fclose(file), "out of memory: %s", name);
    return text;
}
