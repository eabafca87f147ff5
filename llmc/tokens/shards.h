/* shards.h - Texts to token shards (their format: llmc/tokens/dataloader.h), with a line of figures on stdout. */
#ifndef LLMC_SHARDS_H
#define LLMC_SHARDS_H
#include "../text/texts.h"

enum { SHARD_UINT16 = 20240520, SHARD_UINT32 = 20240801 };   /* magic: the type of the tokens */
enum { SHARD_HEADER_BYTES = 1024 };                          /* a ShardHeader, then zeros */
/* sum: xxh64 of the bytes of the tokens; 0 = unknown, as in shards of other programs. */
typedef struct { uint32_t magic, version, count, zero; uint64_t sum; } ShardHeader;

ShardHeader shard_header(FileMap map);      /* zeros where the file is shorter */

/* A file beside shards that are not complete: tokens_open refuses them, shards_write replaces them. */
#define SHARDS_INCOMPLETE "tokenize.incomplete"

/* Writes dir/train_000000.bin, ..., dir/val_000000.bin, ... and the tokenizer (bpe_write). <|endoftext|> goes in front
   of every document; with DOCUMENT_MARK it replaces every mark. val_fraction: the last part of all texts, in bytes, for
   validation. Fails where dir has complete shards. */
void shards_write(Bpe *bpe, Texts *texts, const char *dir, int64_t shard_tokens, double val_fraction);

/* The path of a shard of the texts, a new string: TEXT.tokens-HASH.bin beside the first, or where that directory is
   read-only in `spare`, which is made; NULL = none. Written unless an intact one of the same texts, tokenizer and kind
   of documents exists; wait: another process writes it. in_memory, or both directories read-only: a file without a
   name, until the process ends. Fails on more than 2^32 - 1 tokens, which shards_write splits. */
char *shards_cached(Bpe *bpe, Texts *texts, const char *spare, int in_memory, int wait);

/* Whether the name is that of a file written by shards_cached, complete or left by a kill. */
int shards_is_cache(const char *path);

#endif
