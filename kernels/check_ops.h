/* kernels/check_ops.h - The operands of an op must fit together. Host code, the first line of the op in every
   backend. */
#ifndef KERNELS_CHECK_OPS_H
#define KERNELS_CHECK_OPS_H
#include "check.h"

void check_embedding(const char *op, Tensor x, Tensor tokens, Tensor wte, Tensor wpe);
void check_residual_layernorm(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                              Tensor x, Tensor branch, Tensor weight, Tensor bias);
void check_layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dnormed,
                              Tensor x, Tensor mean, Tensor rstd, Tensor weight);
void check_matmul_forward(Tensor out, Tensor x, Tensor weight, Tensor bias);
void check_matmul_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dout, Tensor x, Tensor weight);
void check_gelu(const char *op, Tensor y, Tensor x);
void check_head_loss(Tensor losses, Tensor dx, Tensor dwte, Tensor x, Tensor wte, Tensor targets, int V, Tensor work);
void check_head_logits(Tensor logits, Tensor x, Tensor wte);
void check_adamw_update(Tensor param, Tensor param_bf16, Tensor m, Tensor v, Tensor grad);
void check_convert(Tensor to, Tensor from);

#endif
