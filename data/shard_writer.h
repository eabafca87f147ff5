/* shard_writer.h - A directory of token shards, and that of a tokenizer. */
#ifndef DATA_SHARD_WRITER_H
#define DATA_SHARD_WRITER_H
#include "../llmc/text/texts.h"

/* Writes dir/train_000000.bin, ..., dir/val_000000.bin, ... and the tokenizer (bpe_write). val_fraction: the last part
   of all texts, in bytes, for validation. Fails where dir has complete shards. */
void shards_write(Tokenizer *bpe, Texts *texts, const char *dir, int64_t shard_tokens, double val_fraction);

/* Writes tokenizer.json and tokenizer_config.json, each completely or not at all. A directory with the same tokenizer
   stays as it is; fails where it has another one, or a part of one. */
void bpe_write(const Tokenizer *bpe, const char *dir);
void bpe_require_none(const char *dir);             /* fails where the directory has a file of a tokenizer */

#endif
