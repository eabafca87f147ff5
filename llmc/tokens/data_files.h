/* data_files.h - What the files of --data are: texts, token shards (their format: llmc/tokens/dataloader.h), and the
   tokens of texts that tokenize keeps. */
#pragma once
#include "../base/base.h"

/* What a document is: a file; a line, without its end; what lies between two <|endoftext|>; or the string of a field in
   each line of JSONL. Empty lines and files are not documents. */
typedef enum { DOCUMENT_FILE, DOCUMENT_LINE, DOCUMENT_MARK, DOCUMENT_JSONL } DocumentKind;
#define DOCUMENT_END "<|endoftext|>"
void document_check_field(DocumentKind kind, const char *field);     /* fails on a --field that would be ignored */

/* Prints a line when the first MiB has a NUL, or a byte order mark or CR LF that stays text, when it looks like JSONL,
   and when all of it, read at 7 GB/s from memory, has an <|endoftext|> that will not be the token. Fails where NULs at
   even or at odd places look like UTF-16. Where more bytes of the first MiB are not UTF-8 than are part of longer
   characters, it fails; for bytes as tokens it prints that. */
void text_check(FileMap map, const char *path, DocumentKind kind, int is_bytes);

enum { SHARD_UINT16 = 20240520, SHARD_UINT32 = 20240801 };   /* magic: the type of the tokens */
enum { SHARD_HEADER_BYTES = 1024 };                          /* a ShardHeader, then zeros */
/* sum: xxh64 of the bytes of the tokens; 0 = unknown, as in shards of other programs. */
typedef struct { uint32_t magic, version, count, zero; uint64_t sum; } ShardHeader;

ShardHeader shard_header(FileMap map);      /* zeros where the file is shorter */
/* The header of a file that has count tokens, of 2 or 4 bytes, behind the place of a header. */
ShardHeader shard_header_of(FileMap map, int64_t count, int width);
int         shard_is_whole(const char *path);   /* complete, of this version, with the sum of its tokens */

/* A file beside shards that are not complete: tokens_open refuses them, tokenize replaces them. */
#define SHARDS_INCOMPLETE "tokenize.incomplete"

/* The tokens of texts are in TEXT.tokens-HASH.bin. The hash begins with (bpe_fingerprint, DocumentKind, the field of
   JSONL), and continues with (the hash before, size, bytes) of every text. */
uint64_t tokens_hash(uint64_t before, int64_t number, const void *bytes, size_t size);
int      shards_is_cache(const char *path);     /* has such a name; also the incomplete ones of earlier versions */
