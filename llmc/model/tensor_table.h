/* tensor_table.h - Named tensors in one allocation. Every entry starts at a multiple of 128 elements (256 bytes of
   BF16): its offset in elements is the same in tables of any type. The gaps between parameters, gradients and moments
   are zero. */
#ifndef LLMC_TENSOR_TABLE_H
#define LLMC_TENSOR_TABLE_H
#include "../../kernels/tensor.h"

typedef enum {
    AS_IS,      /* the file holds what memory holds */
    CONV1D,     /* memory (out, in), file (in, out): HuggingFace's Conv1D */
    VOCABULARY, /* memory Vp rows, file V rows */
    POSITIONS   /* memory T rows; a file with fewer rows is repeated */
} FileLayout;

typedef enum {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL,    /* N(0, 0.02) */
    INIT_RESIDUAL   /* N(0, 0.02 / sqrt(2 L)): outputs to the residual stream */
} Init;

typedef struct {
    char       name[64];    /* the key in a checkpoint */
    Tensor    *field;       /* the struct member of this entry */
    FileLayout layout;
    Init       init;
    int        decay;       /* weight decay applies */
    int        matrices;    /* for Muon, of equal size, one below the other; 0 = none */
    int        watched;     /* included in the search for non-finite values */
    unsigned   phases;      /* shared memory: a bit for each phase with a value in it; 0 = not shared */
    int        same;        /* uses the memory of the entry before */
    size_t     bytes;       /* size in memory, rounded up */
    size_t     offset;      /* bytes from the start of the memory */
} TensorEntry;

typedef struct {
    TensorEntry *entry;
    int    count;
    size_t bytes;           /* the whole allocation */
    void  *memory;          /* device address; NULL until placed */
} TensorTable;

/* Appends an entry named prefix + name; *entry.field = shape, its data is set by tensor_table_place. */
void tensor_table_add(TensorTable *table, const char *prefix, const char *name, Tensor shape, TensorEntry entry);

/* The next entry starts at a multiple of so many elements, itself a multiple of 128. */
void tensor_table_align(TensorTable *table, int64_t elements, DType dtype);

/* Places the entries with phases behind all others; two share memory only if they have no common phase. Call once,
   after the last tensor_table_add. Returns the bytes of that memory. */
size_t tensor_table_overlap(TensorTable *table);

/* Copies the offsets of another table with the same entries, of larger tensors. Fails where one is too small; what: for
   the message. */
void tensor_table_reuse(TensorTable *table, const TensorTable *larger, const char *what);

/* Sets the addresses of all tensors in memory, which has at least table->bytes; empty ones are absent. */
void tensor_table_place(TensorTable *table, void *memory);
Tensor tensor_table_flat(const TensorTable *table, DType dtype);    /* the whole memory as one tensor */
void tensor_table_free(TensorTable *table);                         /* the entries, not the memory */

#endif
