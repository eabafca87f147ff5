/* oracle.h - Every op of kernels/ in double, as plain as its formula: the reference of the tests.
   Finite differences check it (test_oracle.c); it checks the ops of either backend (test_ops.c, test_attention.c).
   All arrays are host memory, packed, with the shapes of the op's own header; rows stands for B*T. Every output is
   written (=), gradients too: where an op accumulates, the caller adds. */
#pragma once
#include "../kernels/attention.h"
#include "../kernels/update.h"

double round_bf16(double x);                    /* to the nearest bf16, ties to even */
double round_bf16_shifted(double x, double shift);      /* to the grid of bf16, moved down by shift steps */
double round_e4m3(double x);                    /* the same of E4M3, to at most 448 */
double e4m3_value(uint8_t bits);

/* 0: exact. Else: the intermediate values that an op in bf16 has to keep in bf16 (the residual sum, P, dS, dout . out
   of the stored out, logits, dlogits) are rounded to it; P, dS and dlogits oracle_stores times as large, 1 to 2, for an
   implementation may keep a multiple of them and is as good; attention's out, of dout . out, with oracle_shift. Outputs
   are not rounded. */
extern double oracle_stores, oracle_shift;      /* one for each thread: heads may be computed side by side */
#pragma omp threadprivate(oracle_stores, oracle_shift)

/* Random inputs. The seed is the environment's TEST_SEED, or the clock, and is printed: a failure can be repeated. */
void   random_open(void);
double uniform(void);                           /* in [-1, 1), a multiple of 2^-23: exact in f32 */
int    uniform_int(int min, int max);

/* dwte (Vp,C); dwpe (positions,C) with positions >= T. */
void oracle_embedding_forward(double *x, const int *tokens, const double *wte, const double *wpe, int B, int T, int C);
void oracle_embedding_backward(double *dwte, double *dwpe, const double *dx, const int *tokens,
                               int B, int T, int C, int Vp, int positions);

/* branch may be NULL: zero. */
void oracle_residual_layernorm_forward(double *sum, double *normed, double *mean, double *rstd,
                                       const double *x, const double *branch, const double *weight, const double *bias,
                                       int rows, int C);
void oracle_layernorm_backward(double *dx, double *dweight, double *dbias, const double *dnormed, const double *x,
                               const double *mean, const double *rstd, const double *weight, int rows, int C);

/* bias may be NULL: zero. */
void oracle_matmul_forward(double *out, const double *x, const double *weight, const double *bias,
                           int rows, int N, int K);
void oracle_matmul_backward(double *dx, double *dweight, double *dbias, const double *dout, const double *x,
                            const double *weight, int rows, int N, int K);

void oracle_gelu_forward(double *y, const double *x, int count);
void oracle_gelu_backward(double *dx, const double *dy, const double *x, int count);

/* first: the number of sequence 0 (d->sequence is not read). */
void oracle_dropout(double *out, const double *x, const Dropout *d, uint64_t first, int B, int T, int C);

/* wte, dwte (Vp,C), targets in [-1, V); dx, dwte: the gradients of dloss * sum(losses). */
void oracle_head_loss(double *losses, double *dx, double *dwte, const double *x, const double *wte, const int *targets,
                      int rows, int C, int V, int Vp, double dloss);

/* q, out (B,Tq,NH*HS); k, v (B,Tk,NH*HS); lse (B,NH,Tq) = log(sum(exp(scores))), from which backward recomputes P. Uses
   all threads; the results do not depend on their number. */
int  oracle_keys_seen(const AttentionSpec *spec, int i);        /* by query row i: the first so many */
/* What P is multiplied by: 1 without dropout, else 0 or dropout_scale. dropout.sequence is an address of the host. */
double oracle_p_factor(const AttentionSpec *spec, int b, int h, int i, int j);
extern int oracle_head;                         /* number of the spec's head 0 */
void oracle_attention_forward(const AttentionSpec *spec, double *out, double *lse,
                              const double *q, const double *k, const double *v);
void oracle_attention_backward(const AttentionSpec *spec, double *dq, double *dk, double *dv, const double *dout,
                               const double *lse, const double *q, const double *k, const double *v);

double oracle_norm(const double *grad, int64_t count);
double oracle_clip(double norm, double max_norm);      /* max_norm 0: never */

/* One row of AdamW, in place; clip, learning rate and the rest from stats. */
void oracle_adamw(double *param, double *m, double *v, const double *grad, int64_t count, int decay,
                  const StepStats *stats);

/* Muon by the formulas of its paper, for a matrix; with oracle_stores every product is rounded to bf16. */
void oracle_muon(double *param, double *m, const double *grad, int rows, int columns, const StepStats *stats);

/* x = H(u) x H(v) with the reflections H(u) = 1 - 2 u u^T / (u^T u): keeps the singular values; its own inverse. */
void oracle_reflect(double *x, const double *u, const double *v, int rows, int columns);
