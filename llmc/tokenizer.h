/* llmc/tokenizer.h - Text to tokens and back. Bytes are their own tokens; for token shards, whose tokenizer is unknown,
   a text is a list of ids: "15496 995". */
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H
#include <stdint.h>
#include <stdio.h>

typedef enum { TOKENIZER_BYTES, TOKENIZER_IDS } Tokenizer;

const char *tokenizer_name(Tokenizer tokenizer);                          /* "bytes", "ids" */
Tokenizer   tokenizer_named(const char *name, const char *where);         /* where: for the message when it fails */

/* Returns the tokens (new memory) and their number; fails on an id that is no number or not in [0,V). */
int32_t *tokenizer_encode(Tokenizer tokenizer, const char *text, int V, int *count);

/* HuggingFace's files for a tokenizer of bytes: tokenizer.json (a new string) has GPT-2's letter for each byte, with
   the byte as its id, and no merges. */
char *tokenizer_bytes_json(void);
extern const char tokenizer_bytes_config_json[];

/* The token that ends a text, -1 where none does; and the one from which a text without a prompt starts. */
int32_t tokenizer_end_of_text(Tokenizer tokenizer, int V);
int32_t tokenizer_start(Tokenizer tokenizer, int V);

/* Writes one token. On a terminal, invalid UTF-8 is written as U+FFFD and control characters are escaped. */
void tokenizer_print(Tokenizer tokenizer, int32_t token, FILE *file);

/* Ends a text: writes an incomplete UTF-8 sequence as U+FFFD. */
void tokenizer_print_end(Tokenizer tokenizer, FILE *file);

#endif
