/* llmc/tokenizer.h - Text to tokens and back. Bytes are their own tokens; for shards, whose tokenizer is not at hand,
   a text is a list of ids: "15496 995". */
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H
#include <stdint.h>
#include <stdio.h>

typedef enum { TOKENIZER_BYTES, TOKENIZER_IDS } Tokenizer;

const char *tokenizer_name(Tokenizer tokenizer);                          /* "bytes", "ids" */
Tokenizer   tokenizer_named(const char *name, const char *where);         /* fails in a line */

/* Returns the tokens (new memory) and their number; fails in a line on an id that is no number or not in [0,V). */
int32_t *tokenizer_encode(Tokenizer tokenizer, const char *text, int V, int *count);

/* A tokenizer of bytes in HuggingFace's form, for who loads a model of bytes there: tokenizer.json, a new string, has
   GPT-2's letter for each byte, with the byte as its id, and no merges; tokenizer_config.json says how to read it. */
char *tokenizer_bytes_json(void);
extern const char tokenizer_bytes_config_json[];

/* Writes one token; bytes of an unfinished or invalid UTF-8 sequence and control characters must not harm a terminal:
   they come out as the replacement character or escaped when the file is a terminal, raw otherwise. */
void tokenizer_print(Tokenizer tokenizer, int32_t token, FILE *file);

/* Ends a text: a UTF-8 sequence that waits for its last bytes waits no longer. */
void tokenizer_print_end(Tokenizer tokenizer, FILE *file);

#endif
