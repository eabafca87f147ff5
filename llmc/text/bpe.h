/* bpe.h - Byte-level byte pair encoding as in GPT-2 (Sennrich et al. 2016; Radford et al. 2019): the text is split
   into words, and in each word the neighbours with the lowest rank are merged, the leftmost first, until no pair has a
   rank. Any bytes can be encoded, and decode to themselves. llmc/text/bpe_files.h reads and writes the files. */
#pragma once
#include "../base/base.h"

/* size 0: no token has this id. Special tokens are made by bpe_encode_special only, from their text. */
typedef struct { const unsigned char *bytes; int size, is_special; } BpeToken;
typedef struct { int32_t left, right, merged; } BpeMerge;

typedef struct {
    int       V;                    /* ids are 0 .. V - 1 */
    BpeToken *token;                /* array of V */
    int       merge_count;
    BpeMerge *merge;                /* by rank, lowest first */
    int32_t   end_of_text;          /* the id in front of each document, -1 = none */
    char     *warning;              /* what seems wrong with the files, NULL = nothing */
} BpeVocabulary;

/* A tokenizer. Bytes are a BPE without merges; ids have a size alone. */
typedef struct Tokenizer {
    BpeVocabulary v;
    const char   *name;             /* "bytes", "ids", "bpe" */
    char         *dir;              /* directory of the files of a BPE */
    int           is_bpe;
    /* for bpe.c alone */
    struct Pair  *pair;             /* hash table */
    int           pair_shift;       /* 64 - bits of the table */
    int64_t       number;           /* differs in all tokenizers */
    void         *memory;           /* the bytes of all tokens */
    int32_t       byte_id[256];
    int32_t      *special;          /* ids */
    int           special_count;
} Tokenizer;

/* Takes ownership of the arrays of the vocabulary, and copies the bytes of tokens. Fails, with where in front, when a
   single byte has no token. */
Tokenizer *bpe_create(BpeVocabulary vocabulary, const char *where);
void       bpe_free(Tokenizer *tokenizer);       /* bytes, ids and NULL are ignored */

uint64_t bpe_fingerprint(const Tokenizer *tokenizer);        /* a hash of the vocabulary */

/* Writes the ids of a text, at most one per byte, and returns their number. Special tokens are text as any other. Keeps
   words and their ids in memory, up to 8 MiB per thread. */
size_t bpe_encode(const Tokenizer *tokenizer, const void *text, size_t size, int32_t *ids);

/* As bpe_encode, where the text of a special token becomes its id, the longest at each place. */
size_t bpe_encode_special(const Tokenizer *tokenizer, const void *text, size_t size, int32_t *ids);

/* ---- Words: GPT-2's split of a text (Radford et al. 2019, encoder.py),

     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

   over UTF-8 with the classes of Unicode 16.0.0. A byte that is not part of a UTF-8 character is a character of its
   own, neither letter, number nor white space, as U+FFFD is. */

/* Bytes of the first word of text, which has size >= 1 bytes. */
size_t bpe_word(const unsigned char *text, size_t size);

/* Bytes of the white space character at the start of text, which has size >= 1 bytes; 0 = another character. As
   Python's str.isspace(): White_Space and U+001C to U+001F. */
size_t bpe_space(const unsigned char *text, size_t size);

/* The first position >= max(from, 1) where a cut leaves the words as they are, size = none: after a character other
   than white space or an apostrophe, before one of another class. */
size_t bpe_words_cut(const unsigned char *text, size_t size, size_t from);
