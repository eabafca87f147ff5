/* kernels/attention.h - Causal self-attention: several implementations, one contract, chosen at run time.
   out = softmax(scale q k^T, causal) v, per sequence and head (Vaswani et al. 2017, arXiv 1706.03762).

   q, out, dq, dout (B,Tq,NH*HS); k, v, dk, dv (B,Tk,NH*HS): a head is HS columns. They may be column views of one
   packed (B,T,3C) qkv: only the pitch differs. All outputs are written (=), never read. Query row i sees the keys
   0 .. q0 + i; a NaN or an infinity in k or v may also reach rows before its own, through a product with 0. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H
#include "tensor.h"

typedef struct {
    int   B, Tq, Tk, NH, HS;
    int   q0;               /* position of query row 0 among the keys: 0 in training */
    float scale;            /* 1 / sqrt(HS) in GPT-2 */
    float dropout;          /* on the probabilities */
    int   deterministic;    /* the same bits every time, even where that costs */
    DType dtype, out_dtype; /* F32 out with bf16 in: a partial result that somebody will merge */
} AttentionSpec;

typedef struct {
    const char *name;                                      /* what --attention says: "flash", "naive" */
    const char *(*refuse)(const AttentionSpec *);          /* NULL, or why it cannot run here */
    size_t (*state_bytes)(const AttentionSpec *);          /* kept for backward: the log-sum-exp, or all of P; opaque */
    size_t (*workspace_bytes)(const AttentionSpec *);      /* scratch of either pass */
    void (*forward) (const AttentionSpec *, Tensor out, void *state, Tensor q, Tensor k, Tensor v, void *work);
    void (*backward)(const AttentionSpec *, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                     Tensor out, const void *state, Tensor q, Tensor k, Tensor v, void *work);
} Attention;

extern const Attention *const attention_list[];             /* the linked backend's, best first, NULL-terminated */

/* "auto": the first that does not refuse. Fails with the reason when the named one refuses or does not exist. */
const Attention *attention_pick(const char *name, const AttentionSpec *spec);

/* Shared checks of both passes: shapes, data types. */
void attention_check(const Attention *attention, const AttentionSpec *spec, Tensor out, Tensor q, Tensor k, Tensor v);

#endif
