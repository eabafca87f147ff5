/* shards.h - Texts to token shards (their format: llmc/tokens/dataloader.h). */
#ifndef LLMC_SHARDS_H
#define LLMC_SHARDS_H
#include <stdio.h>
#include "../text/texts.h"

enum { SHARD_UINT16 = 20240520, SHARD_UINT32 = 20240801 };   /* magic: the type of the tokens */
enum { SHARD_HEADER_BYTES = 1024 };                          /* a ShardHeader, then zeros */
/* sum: xxh64 of the bytes of the tokens; 0 = unknown, as in shards of other programs. */
typedef struct { uint32_t magic, version, count, zero; uint64_t sum; } ShardHeader;

ShardHeader shard_header(FileMap map);      /* zeros where the file is shorter */

/* A file beside shards that are not complete: tokens_open refuses them, tokenize replaces them. */
#define SHARDS_INCOMPLETE "tokenize.incomplete"

/* Writes the tokens of texts into one file after the other; each gets its header when it is complete. */
typedef struct {
    Tokenizer  *bpe;
    Texts      *texts;
    const char *path;               /* the current file */
    FILE       *file;               /* NULL = none is open */
    int64_t     count, total;       /* tokens: of the file, of all batches so far */
    int         width;              /* bytes of a token */
    int32_t    *ids;                /* tokens of a batch */
    size_t      room;
    double      start_s;
    uint64_t    hash;               /* of the texts; for shards_cached alone */
} ShardWriter;

ShardWriter shard_writer(Tokenizer *bpe, Texts *texts);   /* fails on DOCUMENT_MARK without an end-of-text token */
/* Sets ids to the tokens of the next batch and returns their number, 0 = the end. <|endoftext|> goes in front of every
   document; with DOCUMENT_MARK it replaces every mark. Fails on empty texts. */
size_t shard_next_ids(ShardWriter *writer);
void   shard_begin(ShardWriter *writer, const char *path, FILE *file);
void   shard_write(ShardWriter *writer, int32_t *ids, size_t count);     /* changes the ids */
void   shard_end(ShardWriter *writer);
void   shard_print(const ShardWriter *writer, const char *to);           /* a line of figures; frees ids */

/* Ends the process with EXIT_TRY_AGAIN if a stop is requested; removes the incomplete file, NULL = none. */
void   shard_stop(const char *incomplete);

/* The path of a shard of the texts, a new string: TEXT.tokens-HASH.bin beside the first, or where that directory is
   read-only in `spare`, which is made; NULL = none. Written unless an intact one of the same texts, tokenizer and kind
   of documents exists; another process that writes it is waited for, with is_waiting also one that has not begun.
   in_memory, or both directories read-only: a file without a name, until the process ends. Fails on more than 2^32 - 1
   tokens, which tokenize splits. */
char *shards_cached(Tokenizer *bpe, Texts *texts, const char *spare, int in_memory, int is_waiting);

/* Whether the name is that of a file written by shards_cached, complete or not. */
int shards_is_cache(const char *path);

#endif
