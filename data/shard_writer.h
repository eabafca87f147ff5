/* shard_writer.h - The tokens of texts, as a directory of shards or one shard, and the directory of a tokenizer. */
#pragma once
#include "texts.h"

/* shards_write and shard_write_all end the process with EXIT_TRY_AGAIN when a stop is requested (llmc/base/os.h), and
   fail on empty texts and on DOCUMENT_MARK without an end-of-text token. */

/* Writes dir/train_000000.bin, ..., dir/val_000000.bin, ... and the tokenizer (bpe_write). val_fraction: the last part
   of all texts, in bytes, for validation. Fails where dir has complete shards. */
void shards_write(Tokenizer *bpe, Texts *texts, const char *dir, int64_t shard_tokens, double val_fraction);

/* Writes all tokens to the file path, unless it is intact; waits for another process that writes it. Fails, and removes
   the file if it has a lock, on more than 2^32 - 1 tokens, and where the tokens_hash of the texts is not hash at the
   end: they changed. Ends the process also when the pipe errors (-1 = none) has no reader. */
void shard_write_all(Tokenizer *bpe, Texts *texts, const char *path, uint64_t hash, int errors);

/* Writes tokenizer.json and tokenizer_config.json, each completely or not at all. A directory with the same tokenizer
   stays as it is; fails where it has another one, or a part of one. */
void bpe_write(const Tokenizer *bpe, const char *dir);
void bpe_require_none(const char *dir);             /* fails where the directory has a file of a tokenizer */
