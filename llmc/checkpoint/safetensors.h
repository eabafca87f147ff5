/* llmc/checkpoint/safetensors.h - HuggingFace's safetensors: 8 bytes of length, a JSON header, the tensors' bytes;
   one file, or
   several with an index, NAME.safetensors.index.json, whose "weight_map" says in which file beside it a tensor lies.
   A small strict reader: every name, size and offset is checked before any of it is used. */
#ifndef LLMC_SAFETENSORS_H
#define LLMC_SAFETENSORS_H
#include "../../kernels/tensor.h"
#include "../files.h"

typedef struct {
    const char *name;
    const char *path;           /* of its file */
    const char *dtype;          /* as in the file: "F32", "BF16", "F16", "F64", "I64", ... */
    int         ndim;
    int64_t     dim[8];
    const unsigned char *data;  /* in the mapped file; little-endian, of any alignment */
    int64_t     bytes;
} SafeTensor;

typedef struct SafeFile {
    char       *path;
    FileMap     map;
    int         count;
    SafeTensor *tensor;         /* sorted by name; of an index, those of all its files */
    struct Json *header;        /* or the index */
    struct SafeFile *shard;     /* the files of an index */
    int         shards;
} SafeFile;

/* A file, or an index, whose files hold the tensors that it names and no others. Fails in a line: what, got, want. */
SafeFile          safetensors_open(const char *path);
void              safetensors_close(SafeFile *file);
const SafeTensor *safetensors_find(const SafeFile *file, const char *name);    /* NULL when there is none */

/* "F32 (50257,768)", for messages; returns text. */
const char *safetensors_shape(const char *dtype, int ndim, const int64_t *dim, char text[256]);

/* Writing: a file is the header of all names and shapes (dtype F32, F64, BF16 or I32), then the bytes of each. */
typedef struct { const char *name; DType dtype; int ndim; int64_t dim[4]; } SafeEntry;
const char *safetensors_dtype(DType dtype);                      /* the file's word: "F32" */
int64_t     safetensors_bytes(const SafeEntry *entry);
char       *safetensors_header(const SafeEntry *entry, int count, size_t *size);     /* start of the file; new memory */

#endif
