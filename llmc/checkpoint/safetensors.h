/* safetensors.h - HuggingFace's safetensors: 8 bytes of length, a JSON header, the tensors' bytes; one
   file, or several with an index, NAME.safetensors.index.json, whose "weight_map" gives the file of each tensor.
   Files are untrusted: every name, size and offset is checked before it is used. */
#pragma once
#include "../base/base.h"

typedef struct {
    const char *name;
    const char *path;           /* the file that has it */
    const char *dtype;          /* as in the file: "F32", "BF16", "F16", "F64", "I64", ... */
    int         ndim;
    int64_t     dim[8];
    int64_t     begin, bytes;   /* position in the file's data */
    const unsigned char *data;  /* in the mapped file; little-endian, of any alignment */
} SafeTensor;

typedef struct { char *path; FileMap map; Json *header; } SafeShard;

typedef struct {
    const char *path;           /* the argument of safetensors_open */
    int         shards, count;
    SafeShard  *shard;          /* without an index: the file itself */
    SafeTensor *tensor;         /* tensors of all shards, sorted by name */
} SafeFile;

/* Reads and checks the header of a file, or of all files of an index, which hold the tensors that it names and no
   others. */
SafeFile          safetensors_open(const char *path);
void              safetensors_close(SafeFile *file);
const SafeTensor *safetensors_find(const SafeFile *file, const char *name);    /* NULL = none */
int               safetensors_same_shape(const SafeTensor *a, const SafeTensor *b);
const char       *safetensors_shape(const SafeTensor *tensor, char text[256]); /* "F32 (50257,768)"; returns text */

/* The header of a file to be written, {0} at first: text, of size bytes, after safetensors_end; the bytes of the
   tensors follow it in the same order. Uses name, dtype, ndim, dim and bytes. */
typedef struct { FILE *file; char *text; size_t size; int64_t end; } SafeHeader;
void safetensors_add(SafeHeader *header, SafeTensor tensor);
void safetensors_end(SafeHeader *header);
