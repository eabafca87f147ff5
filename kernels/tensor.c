#include "tensor.h"
#include <stdio.h>
#include "check.h"

Tensor tensor_packed(void *data, DType dtype, int ndim, const int64_t dim[4]) {
    Tensor t = { .data = data, .dtype = dtype, .ndim = ndim };
    REQUIRE(ndim >= 1 && ndim <= 4, "tensor: %d dimensions, want 1 .. 4", ndim);
    for (int i = 0; i < ndim; i++) t.dim[i] = dim[i];
    t.pitch = t.dim[ndim - 1];
    return t;
}

int64_t tensor_rows(Tensor t) {
    int64_t rows = 1;
    for (int i = 0; i < t.ndim - 1; i++) rows *= t.dim[i];
    return rows;
}

int64_t tensor_columns(Tensor t)  { return t.ndim ? t.dim[t.ndim - 1] : 0; }
int64_t tensor_count(Tensor t)    { return tensor_rows(t) * tensor_columns(t); }
size_t  tensor_bytes(Tensor t)    { return (size_t)tensor_count(t) * dtype_bytes(t.dtype); }
int     tensor_is_packed(Tensor t){ return t.pitch == tensor_columns(t) || tensor_rows(t) <= 1; }

static const struct { const char *name; size_t bytes; } dtypes[] = {
    [F32] = { "f32", 4 }, [BF16] = { "bf16", 2 }, [I32] = { "i32", 4 }, [F64] = { "f64", 8 },
    [E4M3] = { "e4m3", 1 } };

static int is_dtype(DType dtype) { return (size_t)dtype < sizeof dtypes / sizeof *dtypes; }

size_t dtype_bytes(DType dtype) {
    REQUIRE(is_dtype(dtype), "tensor: unknown data type %d", (int)dtype);
    return dtypes[dtype].bytes;
}

const char *dtype_name(DType dtype) { return is_dtype(dtype) ? dtypes[dtype].name : "?"; }

const char *tensor_shape(Tensor t, char text[80]) {
    int n = snprintf(text, 80, "(");
    for (int i = 0; i < t.ndim && n < 60; i++)
        n += snprintf(text + n, 80 - (size_t)n, "%s%lld", i ? "," : "", (long long)t.dim[i]);
    snprintf(text + n, 80 - (size_t)n, ")");
    return text;
}

Tensor tensor_flat(Tensor t) {
    return (Tensor){ t.data, t.dtype, 2, { tensor_rows(t), tensor_columns(t) }, t.pitch, t.max };
}

Tensor tensor_row_range(Tensor t, int64_t first, int64_t count) {
    Tensor flat = tensor_flat(t);
    REQUIRE(first >= 0 && count >= 0 && first + count <= flat.dim[0], "tensor: rows %lld .. %lld, want 0 .. %lld",
            (long long)first, (long long)(first + count), (long long)flat.dim[0]);
    flat.data = (char *)t.data + (size_t)(first * t.pitch) * dtype_bytes(t.dtype);
    flat.dim[0] = count;
    return flat;
}

Tensor tensor_column_range(Tensor t, int64_t first, int64_t count) {
    REQUIRE(first >= 0 && count >= 0 && first + count <= tensor_columns(t),
            "tensor: columns %lld .. %lld, want 0 .. %lld", (long long)first, (long long)(first + count),
            (long long)tensor_columns(t));
    t.data = (char *)t.data + (size_t)first * dtype_bytes(t.dtype);
    t.dim[t.ndim - 1] = count;
    return t;
}
