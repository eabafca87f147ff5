/* tokenizer.h - Text to tokens and back. Three kinds: bytes are their own tokens; ids stand for token shards whose
   tokenizer is unknown, a text is a list of them: "15496 995"; BPE is GPT-2's (llmc/text/bpe.h). */
#pragma once
#include "bpe.h"

extern Tokenizer tokenizer_bytes, tokenizer_ids;
#define TOKENIZER_BYTES (&tokenizer_bytes)
#define TOKENIZER_IDS   (&tokenizer_ids)        /* 50257 ids, as GPT-2 */

Tokenizer *tokenizer_open(const char *dir);     /* bpe_open, and prints its warning */
/* The BPE of a directory; ids where it has none, or one that is refused, which is printed. */
Tokenizer *tokenizer_find(const char *dir);

/* Fails on a tokenizer with ids that a model of V tokens does not have. */
void tokenizer_check(const Tokenizer *tokenizer, int V);

/* Returns the tokens (new memory, with room for one more) and their number. Fails on an id that is not a number in
   [0,V). The text of a special token of a BPE is that token. */
int32_t *tokenizer_encode(const Tokenizer *tokenizer, const char *text, int V, int *count);

/* The first token of an empty prompt: that which ends a text; without one a newline, or the last id of the model for
   unknown tokens. */
int32_t tokenizer_start(const Tokenizer *tokenizer, int V);
/* The token that ends a text, -1 = none. */
int32_t tokenizer_end_of_text(const Tokenizer *tokenizer, int V);

void tokenizer_print(const Tokenizer *tokenizer, int32_t token, FILE *file);   /* the bytes of a token; of ids "995 " */

/* Writes a text for a terminal: invalid UTF-8 as U+FFFD, control characters escaped. Returns the bytes that were
   written: all at the end of the text, else those before an incomplete character. */
size_t text_print(const char *text, size_t size, int is_end, FILE *file);
