/* bpe_files.h - The files of a byte-level BPE: a directory with tokenizer.json (HuggingFace's), or else vocab.json and
   merges.txt, or encoder.json and vocab.bpe, these with added_tokens.json; tokenizer_config.json or
   special_tokens_map.json name the end-of-text token. llmc/README.md, Tokenizers: what is refused, what is special. */
#pragma once
#include "bpe.h"

Tokenizer *bpe_open(const char *dir);       /* fails with file and line; v.warning is not printed */
int bpe_has_files(const char *dir);

/* tokenizer.json or tokenizer_config.json, which AutoTokenizer reads, as a new string; NULL for ids. T: the model's
   context, of which transformers warns with longer texts; 0 = unknown. For bytes, tokenizer.json has GPT-2's letter for
   each byte, with the byte as its id, and no merges. */
char *bpe_file_text(const Tokenizer *tokenizer, const char *name, int T);

/* The code point of the letter that stands for a byte in these files: the printable bytes of Latin-1 for themselves,
   the others, in their order, U+0100, U+0101, ... */
enum { BPE_LETTERS = 0x144 };
int bpe_letter(int byte);
