#include "tokenizer.h"
#include "bpe_files.h"

Tokenizer tokenizer_ids = { .name = "ids", .v.V = 50257 }, tokenizer_bytes;

__attribute__((constructor)) static void open_bytes(void) {
    BpeVocabulary v = { .V = 256, .token = host_alloc(256 * sizeof *v.token, "a vocabulary"), .end_of_text = -1 };
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (unsigned char)i;
        v.token[i] = (BpeToken){ .bytes = &bytes[i], .size = 1 };
    }
    Tokenizer *bpe = bpe_create(v, "bytes");
    tokenizer_bytes = *bpe;
    free(bpe);
    tokenizer_bytes.name = "bytes";
    tokenizer_bytes.is_bpe = 0;
}

Tokenizer *tokenizer_open(const char *dir) {
    Tokenizer *t = bpe_open(dir);
    if (t->v.warning && !comm_rank) print_line(stderr, "warning: %s", t->v.warning);
    return t;
}

typedef struct { const char *dir; Tokenizer *tokenizer; } Found;

static void open_found(void *argument) {
    Found *found = argument;
    found->tokenizer = tokenizer_open(found->dir);
}

Tokenizer *tokenizer_find(const char *dir) {
    char why[FAIL_LENGTH];
    Found found = { .dir = dir };
    if (!bpe_has_files(dir)) return TOKENIZER_IDS;
    if (!fails(open_found, &found, why)) return found.tokenizer;
    print_line(stdout, "the tokenizer of %s is not used: %s", dir, why);
    return TOKENIZER_IDS;
}

void tokenizer_check(const Tokenizer *tokenizer, int V) {
    const int ids = tokenizer->v.V;
    REQUIRE(!tokenizer->is_bpe || ids <= V, "%s: a tokenizer of %d tokens, the model has %d; want the model's own "
            "tokenizer, or for a new model --vocab %d or more", tokenizer->dir, ids, V, ids);
}

/* Shards without a tokenizer: 50257 rows, padded to multiples of up to 128 or so, are taken as GPT-2's, other sizes as
   unknown. */
int32_t tokenizer_end_of_text(const Tokenizer *tokenizer, int V) {
    if (tokenizer != TOKENIZER_IDS) return tokenizer->v.end_of_text;
    return V >= 50257 && V <= 50432 ? 50256 : -1;
}

int32_t tokenizer_start(const Tokenizer *tokenizer, int V) {
    int32_t start = tokenizer_end_of_text(tokenizer, V);
    if (start < 0 && tokenizer != TOKENIZER_IDS) bpe_encode(tokenizer, "\n", 1, &start);
    return start < 0 ? V - 1 : start;
}

/* text: "15496 995". Returns the number of ids. */
static int parse_ids(const char *text, int V, int32_t *ids) {
    const char *space = " \t\r\n";
    int n = 0;
    char *end;
    for (text += strspn(text, space); *text; text = end + strspn(end, space)) {
        unsigned long long id = strtoull(text, &end, 10);        /* ULLONG_MAX when it overflows */
        int size = (int)strcspn(text, space), shown = size < 40 ? size : 40;
        REQUIRE(isdigit((unsigned char)*text) && end == text + size, "prompt: '%.*s' is not a token id: want numbers "
                "such as \"15496 995\", or --tokenizer DIR", shown, text);
        REQUIRE(id < (unsigned long long)V, "prompt: token id %.*s, want 0 to %d", shown, text, V - 1);
        ids[n++] = (int32_t)id;
    }
    return n;
}

int32_t *tokenizer_encode(const Tokenizer *tokenizer, const char *text, int V, int *count) {
    size_t length = strlen(text);
    REQUIRE(length < INT32_MAX, "prompt: %zu bytes, want fewer than 2^31", length);
    int32_t *tokens = host_alloc((length + 1) * sizeof *tokens, "the tokens of a prompt");     /* <= 1 per byte */
    *count = tokenizer == TOKENIZER_IDS ? parse_ids(text, V, tokens)
                                        : (int)bpe_encode_special(tokenizer, text, length, tokens);
    for (int i = 0; i < *count; i++)
        REQUIRE(tokens[i] < V, "prompt: token %d is id %d, want below %d, the model's vocabulary", i, tokens[i], V);
    return tokens;
}

void tokenizer_print(const Tokenizer *tokenizer, int32_t token, FILE *file) {
    const BpeVocabulary *v = &tokenizer->v;
    if (tokenizer == TOKENIZER_IDS) fprintf(file, "%d ", token);
    else if (token >= v->V)         fputs("\xEF\xBF\xBD", file);        /* a model may have more tokens */
    else                            fwrite(v->token[token].bytes, 1, (size_t)v->token[token].size, file);
}

size_t text_print(const char *text, size_t size, int is_end, FILE *file) {
    size_t at = 0;
    for (size_t n = 1; at < size; at += n, n = 1) {     /* a first byte, and those that continue the character */
        const unsigned char *c = (const unsigned char *)text + at;
        const size_t want = *c < 0xC0 || *c >= 0xF8 ? 1 : *c < 0xE0 ? 2 : *c < 0xF0 ? 3 : 4;
        while (n < want && at + n < size && (c[n] & 0xC0) == 0x80) n++;
        if (n < want && at + n == size && !is_end) break;
        if (utf8_length(c, n) != n)
            fputs("\xEF\xBF\xBD", file);                /* U+FFFD */
        else if ((*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7F || (*c == 0xC2 && c[n - 1] < 0xA0))
            fprintf(file, "\\x%02x", c[n - 1]);
        else
            fwrite(c, 1, n, file);
    }
    return at;
}
