/* llmc/tensor_table.h - Named tensors in one allocation. Every row starts on a multiple of 128 elements
   (256 bytes of BF16), so that a row has the same place, in elements, in tables of any type;
   the gaps between the rows of parameters, gradients and moments are zero and stay zero. */
#ifndef LLMC_TABLE_H
#define LLMC_TABLE_H
#include "../kernels/tensor.h"

typedef enum {
    AS_IS,      /* the file holds what memory holds */
    CONV1D,     /* memory (out, in), file (in, out): HuggingFace's Conv1D */
    VOCABULARY  /* memory Vp rows, file V rows */
} FileLayout;

typedef enum {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL,    /* N(0, 0.02) */
    INIT_RESIDUAL   /* N(0, 0.02 / sqrt(2 L)): what adds to the residual stream */
} Init;

typedef struct {
    char       name[64];    /* the key in a checkpoint */
    Tensor    *field;       /* the struct member that this row fills */
    FileLayout layout;
    Init       init;
    int        decay;       /* weight decay applies */
    int        watched;     /* searched for the first NaN of a sick step */
    size_t     offset;      /* bytes from the start of the memory */
} TensorEntry;

typedef struct {
    TensorEntry *entry;
    int    count;
    size_t bytes;           /* of the whole allocation */
    void  *memory;          /* device address; NULL until placed */
} TensorTable;

/* Appends a row: *field gets shape now and its data when the table is placed. The row's other members may be set
   after. */
TensorEntry *tensor_table_add(TensorTable *table, Tensor *field, const char *name, Tensor shape);

/* Gives every row its address in memory, which holds at least table->bytes. */
void tensor_table_place(TensorTable *table, void *memory);

Tensor tensor_table_flat(const TensorTable *table, DType dtype);    /* all of it as one tensor of one row */
void tensor_table_free(TensorTable *table);                         /* the rows, not the memory */

#endif
