/* ring.h - Causal self-attention over sequences whose tokens are split over N ranks: ring attention (Liu et al.
   2023, arXiv 2310.01889). Each rank has the queries, keys and values of its tokens. In step s of 1 .. N-1 it attends
   to the keys and values of the rank s before it, which arrive while it computes the step before; each step merges its
   result into those before. In the backward pass the gradients of these keys and values return to their rank, which
   adds them, in the data type of the keys. A step computes and transfers only what the mask leaves.

   A sequence is cut into 2N chunks of ceil(T/2N) tokens, the last ones with fewer, or none. Rank r has chunks r and
   2N-1-r ("zigzag", Llama 3, arXiv 2407.21783): N/2 (T/N)^2 pairs of a query and a key on every rank. */
#pragma once
#include "attention.h"

/* `size` ranks share a sequence; this one is number `rank` of them, and their comm_ranks are consecutive. size 1: the
   whole sequence, no communication. */
typedef struct { int size, rank, T; } RingSplit;

int  ring_tokens(const RingSplit *split, int rank);     /* number of a sequence's tokens on rank `rank` of it */
void ring_copy_local(const RingSplit *split, int32_t *local, const int32_t *whole);    /* this rank's tokens of whole */

/* spec: B, NH, HS, scale, dtype and deterministic; the rest is set: causal, gradients overwritten, the tokens of this
   rank as Tq and Tk. attention: the name for attention_pick in every step; one that keeps memory, as naive does, is
   refused, and so is dropout. */
typedef struct {
    RingSplit     split;
    const char   *attention;
    AttentionSpec spec;
    int           heads;        /* heads of one sequence computed at a time; the workspace is theirs */
} Ring;
Ring        ring_create(RingSplit split, const char *attention, AttentionSpec spec);
const char *ring_refuse(const Ring *ring);          /* NULL, or why it cannot run here */
size_t      ring_workspace_bytes(const Ring *ring);

/* As Attention's, with this rank's T tokens: q, k, v, out, dq, dk, dv, dout (B,T,NH*HS), all of one data type; lse
   (B,NH,T), over all keys. All ranks of the run call them together, with the same B, split.T and N. */
void ring_forward (const Ring *ring, const AttentionOperands *o);
void ring_backward(const Ring *ring, const AttentionOperands *o);
