/* attention.h - Multi-head attention: several implementations, one contract, chosen at run time.
   out = softmax(scale q k^T) v per sequence and head (Vaswani et al. 2017, arXiv 1706.03762).

   q, out, dq, dout (B,Tq,NH*HS); k, v, dk, dv (B,Tk,NH*HS): a head is HS columns. They may be column views of one
   packed (B,T,3C) qkv: only the pitch differs. lse (B,NH,Tq) F32: the log-sum-exp of each row's scaled scores; it may
   be columns of a longer (B,NH,T). Of one sequence, B = 1, all operands may thus be ranges of rows of a longer one.
   Query row i sees key j if j <= q0 + i, or always if not causal. A row that sees no key has out = 0, lse = -INFINITY
   and gradients of 0. A NaN or an infinity in q, k or v may also reach rows and keys that the mask separates from it.

   With dropout, out = c (M o P) v: M is 0 or 1, c = dropout_scale(rate), both as in dropout.h. The mask M is a function
   of the sequence, h, i and j: the same for every implementation, in both passes, however a batch is split. */
#pragma once
#include "dropout.h"
#include "tensor.h"

enum { HS_MAX = 128 };      /* maximum head size of every implementation */

typedef struct {
    int   B, Tq, Tk, NH, HS;
    int   q0;               /* position of query row 0 relative to key 0, may be negative: 0 in training */
    const int32_t *position;    /* device address of a number >= 0 added to q0; NULL = 0, as in a backward pass */
    int   causal;           /* 0: every query sees every key, q0 has no meaning */
    float scale;            /* 1 / sqrt(HS) in GPT-2 */
    int   deterministic;    /* the same bits every run, even where that costs time */
    DType dtype;            /* q, k, v, dout */
    DType out_dtype;        /* out, or dq, dk and dv: dtype, or F32 to sum the results of bf16 operands in f32 */
    Into  out_into;         /* ACCUMULATE: out, lse = the merge of what they hold with these keys' (attention_merge) */
    Into  dq_into, dkv_into;    /* dq is = or +=, dk and dv are */
    Dropout dropout;        /* drops elements of P after the softmax: row i, column j, head h, sequence *sequence + b;
                               lse is over all scores. Rate 0: none */
} AttentionSpec;

/* out, lse: written by forward, read by backward; dout, dq, dk, dv: backward only. kept: memory of kept_bytes that
   forward writes and backward reads, all of P where an implementation does not recompute it. Where kept_bytes is 0,
   backward may be given the out and lse of attention_merge: dq, dk and dv then are the shares of these keys in the
   gradients over all keys. The out that backward reads has dtype, whatever out_dtype: a merged one is rounded to it.
   work: scratch of either pass. kept and work are on 16 bytes. */
typedef struct {
    Tensor q, k, v, out, lse, dout, dq, dk, dv;
    void  *kept, *work;
} AttentionOperands;

/* An implementation. Its passes get checked operands, and q0 within -Tq (no key is seen) .. Tk (all are, as without a
   mask). */
typedef struct {
    const char *name;                                      /* value of --attention: "flash", "naive" */
    const char *(*refuse)(const AttentionSpec *);          /* NULL, or why it cannot run here */
    size_t (*kept_bytes)(const AttentionSpec *);
    size_t (*workspace_bytes)(const AttentionSpec *);
    void   (*forward) (const AttentionSpec *, const AttentionOperands *);
    void   (*backward)(const AttentionSpec *, const AttentionOperands *);
    int    (*merges)(const AttentionSpec *);               /* whether forward itself does ACCUMULATE; NULL = never */
} Attention;

extern const Attention *const attention_list[];             /* the linked backend's, best first, NULL-terminated */

/* "auto": the first that does not refuse. Fails with the reason when the named one refuses or does not exist. */
const Attention *attention_pick(const char *name, const AttentionSpec *spec);

/* Fail where an operand has another shape or data type than the spec. work: attention_workspace_bytes. */
void   attention_forward (const Attention *a, const AttentionSpec *s, const AttentionOperands *o);
void   attention_backward(const Attention *a, const AttentionSpec *s, const AttentionOperands *o);
size_t attention_workspace_bytes(const Attention *a, const AttentionSpec *s);

/* merged, lse = the softmax-weighted merge of two partial results over disjoint keys, out with lse and part with
   part_lse; exact where one of them saw no key. out (B,T,NH*HS) F32 or BF16; part: the same, F32; lse, part_lse
   (B,NH,T) F32. merged: as out, which it may be; or BF16, rounded. */
void attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse);

/* The key/value cache of generation: rows position .. position + n - 1 of each sequence of cache (B,T,C) = rows
   (B,n,C), which may have a pitch. position: I32 (1). A row outside the cache fails on the CPU, and ends the program by
   an assertion on a GPU. */
void cache_append(Tensor cache, Tensor rows, Tensor position);

/* ---- for the implementations */

size_t attention_row_bytes(const AttentionSpec *s);         /* a float per query row: lse, or delta */
size_t attention_no_bytes (const AttentionSpec *s);         /* 0 */
