/* dataloader.h - Token streams: the bytes of a text, or shards in the format of llm.c and modded-nanogpt (256
   int32 of header: magic 20240520, version 1, count; then uint16; or magic 20240801, version 7 or 1, count; then
   uint32; all little-endian, the count unsigned). Files are mapped, not read; several files are one stream in the order
   of their names.

   A stream of N tokens has N-1 targets: target j is token j+1, its input token j. For training, the targets wrap
   around: epoch e cuts them into ceil((N-1)/T) windows, starting at an offset that depends on (seed, e), and orders the
   windows by a permutation of (seed, e). So an epoch reads every target once, sequence g of the endless order is a
   function of (seed, g) alone, and ranks that read disjoint g share the text without overlap. The last window of an
   epoch is short: its missing targets are -1, which the loss ignores, with inputs of 0. */
#pragma once
#include "../options/settings.h"
#include "../text/tokenizer.h"

typedef struct {
    char       *name;               /* the path or pattern */
    Tokenizer  *tokenizer;          /* bytes; the BPE of the text, or that beside shards; ids */
    int         is_text;            /* bytes, or tokens made of a text; 0: shards */
    int64_t     count;
    /* for dataloader.c alone */
    struct TokenFile *file;
    int         file_count, width;  /* bytes per token: 1 a text, 2 or 4 shards */
    int         is_slice;           /* name, files and tokenizer belong to another stream */
    Tokenizer  *beside;             /* the one beside shards, NULL = not looked for */
    uint64_t    fingerprint;        /* 0 = not known yet */
    int64_t     first;              /* within the stream of all files */
} Tokens;

/* A path or a glob pattern. A file that ends in .bin or starts with a shard's magic is a shard; any other is a text,
   unless its first bytes are those of another format (a pickle, ...). With a BPE, texts become its tokens, in a shard
   that ./tokenize writes, as --documents, --field, --out and --eval say; NULL, NULL: bytes. Fails when nothing matches,
   on a truncated or empty file, on files of two kinds, and on shards beside which there is another BPE. A pattern
   without ".tokens-" leaves out the tokens of texts. */
Tokens *tokens_open(const char *pattern, const Settings *settings, Tokenizer *tokenizer);
void    tokens_close(Tokens *tokens);

/* Tokens first .. first + count - 1, at least 2, as a stream that shares the files of the original, which must outlive
   it. Not checked. */
Tokens *tokens_slice(const Tokens *tokens, int64_t first, int64_t count);

/* Fails with the file when it is damaged, or an id is >= V. Reads the whole stream. */
void tokens_check(Tokens *tokens, int V);

/* A hash of all tokens, file by file, to recognise other data. The first call reads them, at 8 GB/s from memory. */
uint64_t tokens_fingerprint(Tokens *tokens);

int64_t tokens_windows(const Tokens *tokens, int T);     /* ceil((N-1)/T): sequences of an epoch */

/* Sequence g of the training order: T inputs and targets. Returns how many targets are not -1. */
int tokens_train_window(const Tokens *tokens, uint64_t seed, uint64_t g, int T, int32_t *input, int32_t *target);

/* Targets in the sequences g .. g + count - 1, without reading them. */
int64_t tokens_train_targets(const Tokens *tokens, uint64_t seed, uint64_t g, uint64_t count, int T);

/* Window i of 0 .. tokens_windows - 1 in the order of the text, for evaluation. Returns as above. */
int tokens_eval_window(const Tokens *tokens, int64_t i, int T, int32_t *input, int32_t *target);

/* ---- What a run trains on and validates on */

typedef struct {
    Tokens *train, *val;       /* val NULL = no validation; it may be a slice of the files of train */
    double  val_floor;         /* entropy of --val-data in nats per byte: no model has a lower loss; NaN = unknown */
} Corpus;

/* Opens --data and --val-data where they are given. Without the second the last --val-fraction of a text is for
   validation; shards have none. Fails on a text with shards, on too few bytes to split, and on options that need a BPE
   where the tokenizer is none. */
Corpus corpus_open(const Settings *settings, Tokenizer *tokenizer);
/* "DIR/val_*.bin" for "DIR/train_*.bin", a new string, where tokenize has made such shards; else NULL. */
char  *corpus_val_beside(const char *data);
void   corpus_check(Corpus *corpus, int V);    /* tokens_check of both; fails on ranks with other data */
char  *corpus_text(const Corpus *corpus);       /* "book.txt, 90000 bytes to train on, 10000 to validate on"; "none" */
