#include "tokenizer.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "bpe_files.h"
#include "../base/files.h"
#include "../base/os.h"
#include "../base/terminal.h"

struct TokenizerKind { const char *name; char *dir; Bpe *bpe; };
const struct TokenizerKind tokenizer_bytes = { .name = "bytes" }, tokenizer_ids = { .name = "ids" };

Tokenizer tokenizer_open(const char *dir) {
    struct TokenizerKind *tokenizer = host_alloc(sizeof *tokenizer, "a tokenizer");
    *tokenizer = (struct TokenizerKind){ .name = "bpe", .bpe = bpe_open(dir), .dir = format_string("%s", dir) };
    const char *warning = bpe_vocabulary(tokenizer->bpe)->warning;
    if (warning && !comm_rank) print_line(stderr, "warning: %s", warning);
    return tokenizer;
}

typedef struct { const char *dir; Tokenizer tokenizer; } Opened;

static void open_tokenizer(void *argument) {
    Opened *opened = argument;
    opened->tokenizer = tokenizer_open(opened->dir);
}

Tokenizer tokenizer_find(const char *dir) {
    Opened opened = { dir, NULL };
    char why[FAIL_LENGTH];
    if (!bpe_has_files(dir)) return TOKENIZER_IDS;
    if (!fails(open_tokenizer, &opened, why)) return opened.tokenizer;
    print_line(stdout, "the tokenizer of %s is not used: %s", dir, why);
    return TOKENIZER_IDS;
}

void tokenizer_close(Tokenizer tokenizer) {
    if (!tokenizer || !tokenizer->bpe) return;
    bpe_free(tokenizer->bpe);
    free(tokenizer->dir);
    free((void *)tokenizer);
}

Bpe *tokenizer_bpe(Tokenizer tokenizer) { return tokenizer->bpe; }
const char *tokenizer_name(Tokenizer tokenizer) { return tokenizer->name; }

int tokenizer_vocabulary(Tokenizer tokenizer) {
    return tokenizer->bpe ? bpe_vocabulary(tokenizer->bpe)->V : tokenizer == TOKENIZER_BYTES ? 256 : 50257;
}

void tokenizer_check(Tokenizer tokenizer, int V) {
    int ids = tokenizer->bpe ? bpe_vocabulary(tokenizer->bpe)->V : 0;
    REQUIRE(ids <= V, "%s: a tokenizer of %d tokens, the model has %d; want the model's own tokenizer, or for a new "
            "model --vocab %d or more", tokenizer->dir, ids, V, ids);
}

/* Shards without a tokenizer: 50257 rows, padded to multiples of up to 128 or so, are taken as GPT-2's, other sizes as
   unknown. */
int32_t tokenizer_end_of_text(Tokenizer tokenizer, int V) {
    if (tokenizer->bpe) return bpe_vocabulary(tokenizer->bpe)->end_of_text;
    return tokenizer == TOKENIZER_IDS && V >= 50257 && V <= 50432 ? 50256 : -1;
}

int32_t tokenizer_start(Tokenizer tokenizer, int V) {
    const int32_t end = tokenizer_end_of_text(tokenizer, V);
    int32_t start = end >= 0 ? end : tokenizer == TOKENIZER_IDS ? V - 1 : '\n';
    if (end < 0 && tokenizer->bpe) bpe_encode(tokenizer->bpe, "\n", 1, &start);
    return start;
}

int32_t *tokenizer_encode(Tokenizer tokenizer, const char *text, int V, int *count) {
    size_t length = strlen(text);
    REQUIRE(length < INT32_MAX, "prompt: %zu bytes, want fewer than 2^31", length);
    int32_t *tokens = host_alloc((length + 1) * sizeof *tokens, "the tokens of a prompt");     /* <= 1 per byte */
    int n = 0;
    if (tokenizer->bpe) {
        n = (int)bpe_encode_special(tokenizer->bpe, text, length, tokens);
    } else if (tokenizer == TOKENIZER_BYTES) {
        for (; text[n]; n++) tokens[n] = (unsigned char)text[n];
    } else {
        const char *space = " \t\r\n";
        char *end;
        for (text += strspn(text, space); *text; text = end + strspn(end, space)) {
            unsigned long long id = strtoull(text, &end, 10);        /* ULLONG_MAX when it overflows */
            int size = (int)strcspn(text, space), shown = size < 40 ? size : 40;
            REQUIRE(isdigit((unsigned char)*text) && end == text + size,
                    "prompt: '%.*s' is not a token id: want numbers such as \"15496 995\", or --tokenizer DIR", shown,
                    text);
            REQUIRE(id < (unsigned long long)V, "prompt: token id %.*s, want 0 to %d", shown, text, V - 1);
            tokens[n++] = (int32_t)id;
        }
    }
    for (int i = 0; i < n; i++)
        REQUIRE(tokens[i] < V, "prompt: token %d is id %d, want below %d, the model's vocabulary", i, tokens[i], V);
    *count = n;
    return tokens;
}

/* A BPE without merges, whose ids are the bytes. */
static Bpe *bpe_of_bytes(void) {
    static unsigned char bytes[256];
    BpeVocabulary v = { .V = 256, .token = host_alloc(256 * sizeof *v.token, "a vocabulary"), .end_of_text = -1 };
    for (int i = 0; i < 256; i++) {
        bytes[i] = (unsigned char)i;
        v.token[i] = (BpeToken){ .bytes = &bytes[i], .size = 1 };
    }
    return bpe_create(v, "bytes");
}

char *tokenizer_file_text(Tokenizer tokenizer, const char *name, int T) {
    if (tokenizer->bpe) return bpe_file_text(tokenizer->bpe, name, T);
    if (tokenizer == TOKENIZER_IDS) return NULL;
    Bpe *bpe = bpe_of_bytes();
    char *text = bpe_file_text(bpe, name, T);
    bpe_free(bpe);
    return text;
}

/* The bytes of a character are held until it is complete or a byte arrives that does not continue it. */
static struct { unsigned char byte[4]; size_t have, want; } held;

void tokenizer_print_end(FILE *file) {
    unsigned char c = held.byte[0], last = held.byte[held.have ? held.have - 1 : 0];
    int control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F || (c == 0xC2 && last < 0xA0);
    if (held.have == 0)                                      { /* nothing */ }
    else if (utf8_length(held.byte, held.have) != held.have) fputs("\xEF\xBF\xBD", file);     /* U+FFFD */
    else if (control)                                        fprintf(file, "\\x%02x", last);
    else                                                     fwrite(held.byte, 1, held.have, file);
    held.have = held.want = 0;
}

static void print_byte(unsigned char byte, FILE *file) {
    int continues = (byte & 0xC0) == 0x80;
    if (held.have && !continues) tokenizer_print_end(file);
    if (!held.have) held.want = byte < 0x80 ? 1 : continues || byte >= 0xF8 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    held.byte[held.have++] = byte;
    if (held.have >= held.want) tokenizer_print_end(file);       /* want 0: no first byte of a character */
}

void tokenizer_print(Tokenizer tokenizer, int32_t token, FILE *file, int is_raw) {
    const unsigned char byte = (unsigned char)token;
    BpeToken text = { .bytes = &byte, .size = 1 };
    if (tokenizer == TOKENIZER_IDS) {
        fprintf(file, "%d ", token);
        return;
    }
    if (tokenizer->bpe) {           /* a model may have more tokens than its tokenizer */
        const BpeVocabulary *v = bpe_vocabulary(tokenizer->bpe);
        text = token < v->V ? v->token[token] : (BpeToken){ .bytes = (const unsigned char *)"\xEF\xBF\xBD", .size = 3 };
    }
    if (is_raw) fwrite(text.bytes, 1, (size_t)text.size, file);
    else        for (int i = 0; i < text.size; i++) print_byte(text.bytes[i], file);
}
