/* check_ops.h - Checks of an op's operands: data types, shapes and layout. Host code, called first in an op. */
#pragma once
#include "check.h"
#include "tensor.h"

/* "matmul: weight is f32 (5,3), want f32 (5,4)". Compares data type and shape; an absent tensor fails. */
#define check_tensor(op, name, t, dtype, ndim, ...) \
    check_shape(op, name, t, dtype, ndim, (const int64_t[4]){__VA_ARGS__})
void check_shape(const char *op, const char *name, Tensor t, DType dtype, int ndim, const int64_t dim[4]);

/* The shape of like, the last dimension replaced by columns. */
void check_like(const char *op, const char *name, Tensor t, DType dtype, Tensor like, int64_t columns);

/* One number a row of like, packed: (B,T) of (B,T,C). */
void check_per_row(const char *op, const char *name, Tensor t, DType dtype, Tensor like);

/* "layernorm: x has pitch 10, want it packed". */
void check_packed(const char *op, const char *name, Tensor t);

/* Present, of a floating-point type that this backend computes in, with min_ndim dimensions or more. */
void check_float(const char *op, const char *name, Tensor t, int min_ndim);

/* E4M3 with a max, (rows,columns) when flat, packed; rows and columns are multiples of 16. */
void check_e4m3(const char *op, const char *name, Tensor t, int64_t rows, int64_t columns);

void check_vocabulary(const char *op, int V, int64_t Vp);       /* V in 1 .. Vp */

/* Check all operands of an op that each backend implements. */
void check_embedding(const char *op, Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position);
void check_cache_append(Tensor cache, Tensor rows, Tensor position);
void check_residual_layernorm(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                              Tensor x, Tensor branch, Tensor weight, Tensor bias);
void check_layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_sum, Tensor dnormed,
                              Tensor x, Tensor mean, Tensor rstd, Tensor weight);
void check_gelu(const char *op, Tensor y, Tensor x);
void check_gelu_backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum);
void check_quantize(Tensor q, Tensor qt, Tensor x);
void check_dropout(Tensor out, Tensor x, float rate);
void check_softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V);
void check_sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V);
void check_update(const char *op, Tensor param, Tensor param_bf16, Tensor m, Tensor grad, int64_t rows);
void check_convert(const char *op, Tensor to, Tensor from);
void check_add(Tensor to, Tensor sum, Tensor from);
void check_fill(Tensor t);
void check_attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse);
