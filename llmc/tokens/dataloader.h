/* dataloader.h - Token streams: the bytes of a text, or shards in the format of llm.c and modded-nanogpt (256
   int32 of header: magic 20240520, version 1, count; then uint16; or magic 20240801, version 7 or 1, count; then
   uint32; all little-endian, the count unsigned). Files are mapped, not read; several files are one stream in the order
   of their names.

   A stream of N tokens has N-1 targets: target j is token j+1, its input token j. For training, the targets wrap
   around: epoch e cuts them into ceil((N-1)/T) windows, starting at an offset that depends on (seed, e), and orders the
   windows by a permutation of (seed, e). So an epoch reads every target once, sequence g of the endless order is a
   function of (seed, g) alone, and ranks that read disjoint g share the text without overlap. The last window of an
   epoch is short: its missing targets are -1, which the loss ignores, with inputs of 0. */
#ifndef LLMC_DATALOADER_H
#define LLMC_DATALOADER_H
#include <stdint.h>
#include "../text/texts.h"
#include "../text/tokenizer.h"

typedef struct Tokens Tokens;

/* A path or a glob pattern. A file that ends in .bin or starts with a shard's magic is a shard; any other is a text,
   unless its first bytes are those of another format (a pickle, ...). Fails when nothing matches, on a truncated or
   empty file, and on files of two kinds. A pattern without ".tokens-" leaves out what tokens_open_text has written. */
Tokens *tokens_open(const char *pattern);
void    tokens_close(Tokens *tokens);

/* How a text becomes tokens: its bytes, or those of a BPE, kept as shards_cached (llmc/tokens/shards.h) says. */
typedef struct { Tokenizer tokenizer; DocumentKind documents; const char *field, *spare; int in_memory; } TextFormat;

/* As tokens_open; texts become tokens of the BPE, in a shard. Fails on shards beside which there is another BPE than
   the format's. */
Tokens *tokens_open_text(const char *pattern, const TextFormat *format);

/* Tokens first .. first + count - 1, at least 2, as a stream that shares the files of the original, which must outlive
   it. Not checked. */
Tokens *tokens_slice(const Tokens *tokens, int64_t first, int64_t count);

int64_t tokens_count(const Tokens *tokens);
int     tokens_are_bytes(const Tokens *tokens);          /* a text: V = 256, a token is a byte */
int     tokens_are_text(const Tokens *tokens);           /* bytes, or tokens made of a text by tokens_open_text */
Tokenizer tokens_tokenizer(const Tokens *tokens);       /* bytes; a BPE, the format's or that beside shards; ids */

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

/* Opens --data and --val-data, as in tokens_open_text, where they are not NULL. Without val_data the last val_fraction
   of a text is for validation; shards have none. Fails on a text with shards, and on too few bytes to split. */
Corpus corpus_open(const char *data, const char *val_data, double val_fraction, const TextFormat *format);
/* "DIR/val_*.bin" for "DIR/train_*.bin", a new string, where tokenize has made such shards; else NULL. */
char  *corpus_val_beside(const char *data);
void   corpus_check(Corpus *corpus, int V);    /* tokens_check of both; fails on ranks with other data */
char  *corpus_text(const Corpus *corpus);       /* "book.txt, 90000 bytes to train on, 10000 to validate on"; "none" */

#endif
