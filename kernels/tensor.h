/* tensor.h - A view of device memory. Owns nothing, is passed by value. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* E4M3: FP8 with 4 bits of exponent and 3 of mantissa (Micikevicius et al. 2022, arXiv 2209.05433), up to E4M3_MAX. An
   element stands for its value * *max / E4M3_MAX. */
typedef enum { F32, BF16, I32, F64, E4M3 } DType;
#define E4M3_MAX 448.0f

typedef struct {
    void   *data;      /* device address; NULL = absent operand, e.g. no bias */
    DType   dtype;
    int     ndim;
    int64_t dim[4];    /* outermost first: (B, T, C) is {B, T, C} */
    int64_t pitch;     /* elements from one row (last dimension) to the next; = dim[ndim-1] when packed */
    float  *max;       /* device address: the largest magnitude of the elements, at least 4.3e-31, NaN where one is NaN.
                          Ops on a GPU write it where their headers say so; NULL = not wanted */
} Tensor;

/* Whether a result overwrites the output (=) or is added to it (+=). */
typedef enum { OVERWRITE, ACCUMULATE } Into;

#define ABSENT ((Tensor){0})

/* A packed tensor: tensor_of(p, F32, 3, B, T, C). The sizes may be int or int64_t. */
#define tensor_of(data, dtype, ndim, ...) tensor_packed(data, dtype, ndim, (const int64_t[4]){__VA_ARGS__})
Tensor  tensor_packed(void *data, DType dtype, int ndim, const int64_t dim[4]);

int64_t     tensor_count(Tensor t);            /* elements, without the gaps of a pitch */
int64_t     tensor_rows(Tensor t);             /* all dimensions but the last, multiplied */
int64_t     tensor_columns(Tensor t);          /* the last dimension */
size_t      tensor_bytes(Tensor t);            /* size when packed */
int         tensor_is_packed(Tensor t);
size_t      dtype_bytes(DType dtype);
const char *dtype_name(DType dtype);           /* "f32", ... */
const char *tensor_shape(Tensor t, char text[80]);   /* "(3,64,128)"; returns text */

Tensor tensor_flat(Tensor t);                                            /* (rows, columns) of the same memory */
Tensor tensor_row_range   (Tensor t, int64_t first, int64_t count);      /* flat rows: (count, columns) */
Tensor tensor_column_range(Tensor t, int64_t first, int64_t count);      /* q of qkv: the pitch stays */
