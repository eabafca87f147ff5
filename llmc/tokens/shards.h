/* shards.h - Texts to token shards (their format: llmc/tokens/dataloader.h), with the progress on stdout. Shards are
   written under other names, synced and renamed, so that each exists completely or not at all. */
#ifndef LLMC_SHARDS_H
#define LLMC_SHARDS_H
#include "../text/texts.h"

enum { SHARD_UINT16 = 20240520, SHARD_UINT32 = 20240801 };   /* magic: the type of the tokens */
enum { SHARD_HEADER_BYTES = 1024 };                          /* three numbers, then zeros */
typedef struct { uint32_t magic, version, count; } ShardHeader;

ShardHeader shard_header(FileMap map);      /* zeros where the file is shorter */

typedef struct {
    const char *dir;                /* gets train_000000.bin, ..., val_000000.bin, ...; there must be none yet */
    int64_t     shard_tokens;
    double      val_fraction;       /* the last part of all texts, in bytes; 0 = no validation */
} ShardSettings;

/* <|endoftext|> goes in front of every document; with DOCUMENT_MARK it replaces every mark. Returns the number of val's
   tokens. */
int64_t shards_write(Bpe *bpe, Texts *texts, const ShardSettings *settings);

/* The shard of texts beside the first, TEXT.tokens-HASH.bin, a new string. Written unless a complete one of the same
   texts, tokenizer and kind of documents exists; wait: another process writes it. Fails on more than 2^32 - 1 tokens,
   which shards_write splits. */
char *shards_cached(Bpe *bpe, Texts *texts, int wait);

/* Whether the name is that of a file written by shards_cached, complete or left by a kill. */
int shards_is_cache(const char *path);

#endif
