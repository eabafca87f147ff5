/* llmc/dataloader.h - Token streams: the bytes of a text, or shards in the format of llm.c and modded-nanogpt (256
   int32
   of header: magic 20240520, version 1, count; then uint16; or magic 20240801, version 7 or 1, count; then uint32; all
   little-endian, the count read as unsigned). Files are mapped, not read; several files are one stream in the order of
   their names.

   A stream of N tokens has M = N-1 targets: target j is token j+1, seen after token j. For training, the stream is a
   ring: epoch e cuts the targets into ceil(M/T) windows, starting at a place that depends on (seed, e), and a
   permutation of (seed, e) orders them. So every target is read once an epoch, sequence g of the endless order is a
   function of (seed, g) alone, and ranks that read disjoint g share the text without overlap. The last window of an
   epoch is short: its missing targets are -1, which the loss ignores, and the tokens before them 0. */
#ifndef LLMC_TOKENS_H
#define LLMC_TOKENS_H
#include <stdint.h>

typedef struct Tokens Tokens;

/* A path or a glob pattern. A file that ends in .bin or starts with a shard's magic is a shard; anything else is a
   text, unless it is known to be something else (a pickle, ...). Fails in a line: nothing matches, truncated, empty,
   of two kinds. */
Tokens *tokens_open(const char *pattern);
void    tokens_close(Tokens *tokens);

/* Tokens first .. first + count - 1, at least 2, as a stream of their own; shares the files, which the original must
   outlive. */
Tokens *tokens_slice(const Tokens *tokens, int64_t first, int64_t count);

int64_t     tokens_count(const Tokens *tokens);
int         tokens_are_bytes(const Tokens *tokens);      /* a text: V = 256, a token is a byte */
const char *tokens_name(const Tokens *tokens);           /* the pattern */

/* Fails naming file and place when an id is >= V. Reads all of it once (4 GB/s or so), of a slice only its part. */
void tokens_check(const Tokens *tokens, int V);

/* A hash of the count and of 1024 stretches of 16 tokens, of the whole where that is short: tells other data of the
   same length. */
uint64_t tokens_fingerprint(const Tokens *tokens);

int64_t tokens_windows(const Tokens *tokens, int T);     /* ceil((N-1)/T): sequences of an epoch */

/* Sequence g of the training order: T inputs and targets. Returns how many targets are not -1. */
int tokens_train_window(const Tokens *tokens, uint64_t seed, uint64_t g, int T, int32_t *input, int32_t *target);

/* Targets in the sequences g .. g + count - 1, without reading them. */
int64_t tokens_train_targets(const Tokens *tokens, uint64_t seed, uint64_t g, uint64_t count, int T);

/* Window i of 0 .. tokens_windows - 1 in the order of the text, for evaluation. Returns as above. */
int tokens_eval_window(const Tokens *tokens, int64_t i, int T, int32_t *input, int32_t *target);

#endif
