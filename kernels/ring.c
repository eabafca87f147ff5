/* ring.c - Ring attention: host code over any attention, with either backend. */
#include "ring.h"
#include <string.h>
#include "check_ops.h"
#include "comm.h"
#include "device.h"
#include "update.h"

/* ---- Which rank has which tokens */

static int chunk_size(const RingSplit *s) { return (s->T + 2 * s->size - 1) / (2 * s->size); }

/* Tokens of one of the 2N chunks. */
static int chunk_tokens(const RingSplit *s, int index) {
    const int size = chunk_size(s);
    const int64_t left = s->T - (int64_t)size * index;
    return left < 0 ? 0 : left < size ? (int)left : size;
}

int ring_tokens(const RingSplit *s, int rank) {
    return chunk_tokens(s, rank) + chunk_tokens(s, 2 * s->size - 1 - rank);
}

/* Rows from a chunk's size on are of the second chunk, which is empty where the first has fewer. */
void ring_copy_local(const RingSplit *s, int32_t *local, const int32_t *whole) {
    const int tokens = ring_tokens(s, s->rank), size = chunk_size(s);
    const int32_t *first = whole + (int64_t)size * s->rank;
    const int32_t *second = whole + (int64_t)size * (2 * s->size - 1 - s->rank);
    for (int i = 0; i < tokens; i++) local[i] = i < size ? first[i] : second[i - size];
}

/* Query rows from `row` on with keys 0 .. keys - 1: all of them, or, where causal, row i with keys j <= i. keys 0:
   nothing. */
typedef struct { int row, rows, keys, causal; } Part;

/* What rank `rank` computes with the keys of rank `from`. */
static Part part_of(const RingSplit *s, int rank, int from) {
    const int local = ring_tokens(s, rank), other = ring_tokens(s, from);
    const int first = chunk_tokens(s, from < rank ? from : rank);
    if (from == rank) return (Part){ 0, local, local, 1 };
    const Part part = from < rank ? (Part){ 0, local, first, 0 } : (Part){ first, local - first, other, 0 };
    return part.rows ? part : (Part){0};
}

/* ---- A ring */

/* heads: the fewest that have 2^19 rows on a rank, 4096 tiles of the kernels. The same on all ranks. */
Ring ring_create(RingSplit split, const char *attention, AttentionSpec spec) {
    REQUIRE(split.size >= 1 && split.rank >= 0 && split.rank < split.size && split.T >= 1,
            "ring: rank %d of %d, %d tokens", split.rank, split.size, split.T);
    spec.Tq = spec.Tk = ring_tokens(&split, split.rank);
    spec.causal = 1;
    spec.q0 = 0;
    spec.position = NULL;
    spec.out_dtype = spec.dtype;
    spec.out_into = spec.dq_into = spec.dkv_into = OVERWRITE;
    const int64_t rows = 1 << 19, tokens = split.T / split.size;
    int heads = 1;
    while (heads < spec.NH && (spec.NH % heads || heads * tokens < rows)) heads++;
    return (Ring){ split, attention, spec, heads };
}

const char *ring_refuse(const Ring *r) {
    const Attention *attention = attention_pick(r->attention, &r->spec);
    if (attention->kept_bytes(&r->spec))
        return strcmp(r->attention, "naive") ? "flash attention refuses this head size, and naive runs on one rank only"
                                             : "naive attention runs on one rank only; want flash";
    if (r->spec.dropout.rate > 0)  return "attention over several ranks has no dropout";
    return NULL;
}

/* The data type of a step's results: the operands' where N = 2, with a single step. */
static DType sum_dtype(const Ring *r) { return r->split.size == 2 ? r->spec.dtype : F32; }

static Part local_part(const Ring *r) { return part_of(&r->split, r->split.rank, r->split.rank); }

static AttentionSpec spec_of(const Ring *r, Part p, int heads, DType out_dtype) {
    AttentionSpec spec = r->spec;
    spec.B = 1;
    spec.NH = heads;
    spec.Tq = p.rows;
    spec.Tk = p.keys;
    spec.causal = p.causal;
    spec.out_dtype = out_dtype;
    return spec;
}

/* ---- Steps */

/* Step `index` from 0: this rank has the keys of rank `from`; rank `to` has those of this rank. */
typedef struct { int from, to; Part part, others; } Step;       /* others: what `to` computes */

static Step step_of(const Ring *r, int index) {
    const int N = r->split.size, rank = r->split.rank;
    Step step = { .from = (rank + N - index - 1) % N, .to = (rank + index + 1) % N };
    step.part = part_of(&r->split, rank, step.from);
    step.others = part_of(&r->split, step.to, rank);
    return step;
}

/* ---- Memory of a pass */

/* The tensors of a unit: r->heads heads of one sequence, C columns. Keys with values, and their gradients, are
   (tokens,2C): K beside V. D: sum_dtype. send_keys, recv_keys: maximum over the steps. */
typedef struct {
    Tensor kv;              /* (send_keys,2C): local keys and values */
    Tensor in[2];           /* (recv_keys,2C): those of other ranks; one is received while the other is read */
    Tensor out;             /* forward: D (local,C), over the steps so far; absent where D is the operands' type */
    Tensor dq;              /* backward: D (local,C), sum over the steps */
    Tensor dkv;             /* D (recv_keys,2C): a step's; the memory of `sent` where N = 2 */
    Tensor sent;            /* (recv_keys,2C): dkv on its way to its rank */
    Tensor returned;        /* (send_keys,2C): local keys' gradients from another rank; in kv's memory where N = 2 */
    Tensor dkv_sum;         /* F32 (local,2C): sum of those returned, where N > 2 */
} Work;                     /* behind the workspace of attention */

static size_t place(Tensor *t, char *base, size_t at, DType dtype, int64_t rows, int64_t columns) {
    *t = tensor_of(base ? base + at : NULL, dtype, 2, rows, columns);
    return at + (tensor_bytes(*t) + 255) / 256 * 256;
}

static void add_workspace(const Ring *r, Part p, DType out_dtype, size_t *bytes) {
    if (!p.keys) return;
    AttentionSpec spec = spec_of(r, p, r->heads, out_dtype);
    spec.out_into = ACCUMULATE;
    const size_t wanted = attention_workspace_bytes(attention_pick(r->attention, &spec), &spec);
    if (wanted > *bytes) *bytes = wanted;
}

/* Returns the bytes of a pass. */
static size_t place_work(const Ring *r, int is_backward, void *memory, Work *w) {
    const int64_t C = r->heads * r->spec.HS, local = r->spec.Tq;
    const DType dtype = r->spec.dtype, D = sum_dtype(r);
    const int steps = r->split.size - 1;
    int64_t send_keys = 0, recv_keys = 0;
    size_t at = 0;
    for (int i = 0; i < steps; i++) {
        const Step s = step_of(r, i);
        if (s.others.keys > send_keys) send_keys = s.others.keys;
        if (s.part.keys > recv_keys)   recv_keys = s.part.keys;
        add_workspace(r, s.part, D, &at);
    }
    add_workspace(r, local_part(r), D, &at);
    add_workspace(r, local_part(r), dtype, &at);
    at = (at + 255) / 256 * 256;
    *w = (Work){0};
    at = place(&w->kv, memory, at, dtype, send_keys, 2 * C);
    for (int i = 0; i < 2 && i < steps; i++) at = place(&w->in[i], memory, at, dtype, recv_keys, 2 * C);
    if (!is_backward) return D == dtype ? at : place(&w->out, memory, at, D, local, C);
    at = place(&w->dq, memory, at, D, local, C);
    at = place(&w->sent, memory, at, dtype, recv_keys, 2 * C);
    w->returned = w->kv;
    w->dkv = w->sent;
    if (steps == 1) return at;
    at = place(&w->returned, memory, at, dtype, send_keys, 2 * C);
    at = place(&w->dkv, memory, at, D, recv_keys, 2 * C);           /* a step's, while those before it are sent */
    return place(&w->dkv_sum, memory, at, F32, local, 2 * C);
}

/* The maximum over the ranks. */
size_t ring_workspace_bytes(const Ring *r) {
    size_t max = 0;
    if (r->split.size == 1) return attention_workspace_bytes(attention_pick(r->attention, &r->spec), &r->spec);
    for (int i = 0; i < 2 * r->split.size; i++) {
        Ring of_rank = *r;
        Work w;
        of_rank.split.rank = i / 2;
        of_rank.spec.Tq = of_rank.spec.Tk = ring_tokens(&r->split, i / 2);
        const size_t bytes = place_work(&of_rank, i % 2, NULL, &w);
        if (bytes > max) max = bytes;
    }
    return max;
}

/* ---- Views */

/* (1,count,columns) of the flat rows. */
static Tensor rows_of(Tensor t, int64_t first, int64_t count) {
    const Tensor rows = tensor_row_range(t, first, count);
    return (Tensor){ rows.data, rows.dtype, 3, { 1, count, rows.dim[1] }, rows.pitch, rows.max };
}

/* The left or right half of the columns: K or V. */
static Tensor half(Tensor t, int which) {
    return tensor_column_range(t, which * tensor_columns(t) / 2, tensor_columns(t) / 2);
}

/* Some rows and heads of sequence b of (B,local,NH*HS), lse (B,NH,local), as operands of one sequence. */
static AttentionOperands range_of(const Ring *r, const AttentionOperands *all, int b, int row, int rows, int head,
                                  int heads) {
    const int HS = r->spec.HS;
    AttentionOperands x = *all;
    Tensor *matrices[] = { &x.q, &x.k, &x.v, &x.out, &x.dout, &x.dq, &x.dk, &x.dv };
    x.lse = tensor_column_range(rows_of(x.lse, b * x.lse.dim[1] + head, heads), row, rows);
    for (int i = 0; i < 8; i++) {
        Tensor *t = matrices[i];
        if (t->data) *t = tensor_column_range(rows_of(*t, b * t->dim[1] + row, rows), head * HS, heads * HS);
    }
    return x;
}

/* ---- Transfers */

static int rank_of_run(const Ring *r, int number) { return comm_rank - r->split.rank + number; }

/* The transfer of a step's keys and values. */
static CommTransfer fetch(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return (CommTransfer){ tensor_row_range(w->kv, 0, s.others.keys), rank_of_run(r, s.to),
                           tensor_row_range(w->in[index % 2], 0, s.part.keys), rank_of_run(r, s.from) };
}

/* The transfer of their gradients back to their rank. */
static CommTransfer return_grads(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return (CommTransfer){ tensor_row_range(w->sent, 0, s.part.keys), rank_of_run(r, s.from),
                           tensor_row_range(w->returned, 0, s.others.keys), rank_of_run(r, s.to) };
}

/* Copies the keys and values that other ranks need into the send buffer. */
static void pack(const Work *w, const AttentionOperands *x) {
    const int64_t keys = tensor_rows(w->kv);
    if (!keys) return;
    tensor_convert(half(rows_of(w->kv, 0, keys), 0), rows_of(x->k, 0, keys));
    tensor_convert(half(rows_of(w->kv, 0, keys), 1), rows_of(x->v, 0, keys));
}

/* ---- Forward */

/* k, v: (1,p.keys,C). */
static void part_forward(const Ring *r, const Work *w, const AttentionOperands *x, Part p, Into into, Tensor k,
                         Tensor v) {
    if (!p.keys) return;
    AttentionSpec spec = spec_of(r, p, r->heads, sum_dtype(r));
    AttentionOperands o = range_of(r, x, 0, p.row, p.rows, 0, r->heads);
    spec.out_into = into;
    if (w->out.data) o.out = rows_of(w->out, p.row, p.rows);
    o.k = k;
    o.v = v;
    attention_forward(attention_pick(r->attention, &spec), &spec, &o);
}

static void unit_forward(const Ring *r, const Work *w, const AttentionOperands *x) {
    const int local = r->spec.Tq, steps = r->split.size - 1;
    pack(w, x);
    CommTransfer transfer = fetch(r, w, 0);
    CommOp fetched = comm_exchange(&transfer, 1);
    part_forward(r, w, x, local_part(r), OVERWRITE, x->k, x->v);
    for (int i = 0; i < steps; i++) {
        const Part p = step_of(r, i).part;
        const Tensor kv = rows_of(w->in[i % 2], 0, p.keys);
        comm_wait(fetched);
        if (i + 1 < steps) {
            transfer = fetch(r, w, i + 1);
            fetched = comm_exchange(&transfer, 1);
        }
        part_forward(r, w, x, p, ACCUMULATE, half(kv, 0), half(kv, 1));
    }
    if (w->out.data && local) tensor_convert(x->out, rows_of(w->out, 0, local));
}

/* ---- Backward */

/* This rank's block, some of the heads. */
static void local_backward(const Ring *r, const AttentionOperands *x, int head, int heads) {
    const Part p = local_part(r);
    const AttentionSpec spec = spec_of(r, p, heads, r->spec.dtype);
    if (!p.keys || !heads) return;
    const AttentionOperands o = range_of(r, x, 0, 0, p.rows, head, heads);
    attention_backward(attention_pick(r->attention, &spec), &spec, &o);
}

/* dq: the first step overwrites it, its rows include those of all later steps. */
static void step_backward(const Ring *r, const Work *w, const AttentionOperands *x, int index) {
    const Part p = step_of(r, index).part;
    if (!p.keys) return;
    AttentionSpec spec = spec_of(r, p, r->heads, sum_dtype(r));
    const Tensor kv = rows_of(w->in[index % 2], 0, p.keys), dkv = rows_of(w->dkv, 0, p.keys);
    AttentionOperands o = range_of(r, x, 0, p.row, p.rows, 0, r->heads);
    o.k = half(kv, 0);
    o.v = half(kv, 1);
    o.dq = rows_of(w->dq, p.row, p.rows);
    o.dk = half(dkv, 0);
    o.dv = half(dkv, 1);
    spec.dq_into = index ? ACCUMULATE : OVERWRITE;
    attention_backward(attention_pick(r->attention, &spec), &spec, &o);
}

/* Packs the gradients of step `index`; those before it have been sent. */
static void convert_to_send(const Ring *r, const Work *w, int index) {
    const Part p = step_of(r, index).part;
    if (!p.keys || w->dkv.data == w->sent.data) return;
    tensor_convert(rows_of(w->sent, 0, p.keys), rows_of(w->dkv, 0, p.keys));
}

/* dk and dv += from. */
static void add_to_keys(const AttentionOperands *x, Tensor from, int64_t keys) {
    const Tensor dk = rows_of(x->dk, 0, keys), dv = rows_of(x->dv, 0, keys);
    tensor_add(dk, half(rows_of(from, 0, keys), 0), dk);
    tensor_add(dv, half(rows_of(from, 0, keys), 1), dv);
}

/* Adds the gradients of local keys and values that another rank's step `index` has returned. */
static void add_returned(const Ring *r, const Work *w, const AttentionOperands *x, int index) {
    const int64_t local = r->spec.Tk, keys = step_of(r, index).others.keys;
    if (!w->dkv_sum.data) {
        if (keys) add_to_keys(x, w->returned, keys);
        return;
    }
    const Tensor sum = rows_of(w->dkv_sum, 0, keys);
    if (keys) tensor_add(sum, sum, rows_of(w->returned, 0, keys));
    if (local && index == r->split.size - 2) add_to_keys(x, w->dkv_sum, local);
}

/* The local block is computed first, while the first keys arrive; a quarter of its heads last, while the last gradients
   return. During step i the keys of step i + 1 arrive and the gradients of step i - 1 return. */
static void unit_backward(const Ring *r, const Work *w, const AttentionOperands *x) {
    const int steps = r->split.size - 1, late = r->heads / 4, early = r->heads - late;
    const Part rows = step_of(r, 0).part;
    pack(w, x);
    CommTransfer transfers[2] = { fetch(r, w, 0) };
    CommOp moved = comm_exchange(transfers, 1);
    local_backward(r, x, 0, early);
    if (w->dkv_sum.data) device_zero(w->dkv_sum.data, tensor_bytes(w->dkv_sum));
    for (int i = 0; i <= steps; i++) {
        int count = 0;
        comm_wait(moved);
        if (i > 1)         add_returned(r, w, x, i - 2);
        if (i > 0)         convert_to_send(r, w, i - 1);
        if (i > 0)         transfers[count++] = return_grads(r, w, i - 1);
        if (i + 1 < steps) transfers[count++] = fetch(r, w, i + 1);
        moved = comm_exchange(transfers, count);
        if (i < steps) step_backward(r, w, x, i);
        else           local_backward(r, x, early, late);
    }
    if (rows.keys) {
        const Tensor dq = rows_of(x->dq, rows.row, rows.rows);
        tensor_add(dq, rows_of(w->dq, rows.row, rows.rows), dq);
    }
    comm_wait(moved);
    add_returned(r, w, x, steps - 1);
}

/* ---- The passes */

static void each_unit(const Ring *r, const AttentionOperands *all, int is_backward,
                      void (*compute)(const Ring *, const Work *, const AttentionOperands *)) {
    Work w;
    place_work(r, is_backward, all->work, &w);
    for (int b = 0; b < r->spec.B; b++)
        for (int head = 0; head < r->spec.NH; head += r->heads) {
            const AttentionOperands x = range_of(r, all, b, 0, r->spec.Tq, head, r->heads);
            compute(r, &w, &x);
        }
}

void ring_forward(const Ring *r, const AttentionOperands *all) {
    if (r->split.size > 1) each_unit(r, all, 0, unit_forward);
    else                   attention_forward(attention_pick(r->attention, &r->spec), &r->spec, all);
}

void ring_backward(const Ring *r, const AttentionOperands *all) {
    if (r->split.size > 1) each_unit(r, all, 1, unit_backward);
    else                   attention_backward(attention_pick(r->attention, &r->spec), &r->spec, all);
}
