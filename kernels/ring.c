/* kernels/ring.c - Ring attention: host code over any attention, with either backend. */
#include "ring.h"
#include <string.h>
#include "check_ops.h"
#include "comm.h"
#include "profile.h"
#include "update.h"

/* ---- Which rank has which tokens */

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static RingRange chunk_of(const RingSplit *s, int chunks, int index) {
    const int size = ceil_div(s->T, chunks);
    const int64_t first = (int64_t)size * index, left = s->T - first;
    return (RingRange){ (int)(left > 0 ? first : s->T), 1, (int)(left < 0 ? 0 : left < size ? left : size) };
}

int ring_ranges(const RingSplit *s, int rank, RingRange range[2]) {
    const int N = s->size;
    int count = 0;
    range[0] = s->order == RING_ZIGZAG && N > 1 ? chunk_of(s, 2 * N, rank)
             : s->order == RING_STRIPED ? (RingRange){ rank, N, rank < s->T ? ceil_div(s->T - rank, N) : 0 }
             : chunk_of(s, N, rank);
    count += range[0].count > 0;
    if (s->order != RING_ZIGZAG || N == 1) return count;
    range[count] = chunk_of(s, 2 * N, 2 * N - 1 - rank);        /* empty where the first is */
    return count + (range[count].count > 0);
}

int ring_tokens(const RingSplit *s, int rank) {
    RingRange range[2];
    int tokens = 0;
    for (int i = ring_ranges(s, rank, range) - 1; i >= 0; i--) tokens += range[i].count;
    return tokens;
}

void ring_take(const RingSplit *s, int32_t *own, const int32_t *whole) {
    RingRange range[2];
    const int ranges = ring_ranges(s, s->rank, range);
    for (int i = 0; i < ranges; i++)
        for (int t = 0; t < range[i].count; t++) *own++ = whole[range[i].first + t * range[i].step];
}

/* What number rank computes with the block of number from: its query rows from row on with the first keys. Row i sees
   all of these, or key j <= i - row where causal: then there are as many rows as keys. rows or keys 0: nothing. */
typedef struct { int row, rows, keys, causal; } Part;

static Part part_of(const RingSplit *s, int rank, int from) {
    const int own = ring_tokens(s, rank), other = ring_tokens(s, from);
    RingRange range[2] = {0};
    if (from == rank) return (Part){ 0, own, own, 1 };
    if (s->order == RING_STRIPED) {             /* row i sees key j <= i of an earlier rank, j < i of a later one */
        const int row = from > rank, rows = own > row ? own - row : 0;
        return (Part){ row, rows, rows < other ? rows : other, 1 };
    }
    if (s->order == RING_CONTIGUOUS) return (Part){ 0, own, from < rank ? other : 0, 0 };
    ring_ranges(s, from < rank ? from : rank, range);
    return from < rank ? (Part){ 0, own, range[0].count, 0 } : (Part){ range[0].count, own - range[0].count, other, 0 };
}

static int is_empty(Part p) { return !p.rows || !p.keys; }

/* ---- Steps */

static AttentionSpec spec_of(const Ring *r, Part p, DType out_dtype) {
    AttentionSpec spec = r->spec;
    spec.B = 1;
    spec.Tq = p.rows;
    spec.Tk = p.keys;
    spec.causal = p.causal;
    spec.out_dtype = out_dtype;
    return spec;
}

/* Of the results of the steps: to be merged, where there are several. */
static DType part_type(const Ring *r) { return r->split.size > 1 ? F32 : r->spec.dtype; }

Ring ring_create(RingSplit split, const char *attention, AttentionSpec spec) {
    REQUIRE(split.size >= 1 && split.rank >= 0 && split.rank < split.size && split.T >= 1,
            "ring: rank %d of %d, %d tokens", split.rank, split.size, split.T);
    spec.Tq = spec.Tk = ring_tokens(&split, split.rank);
    spec.causal = 1;
    spec.q0 = 0;
    spec.position = NULL;
    spec.out_dtype = spec.dtype;
    spec.dqkv_into = OVERWRITE;
    return (Ring){ split, attention, spec };
}

const char *ring_refuse(const Ring *r) {
    const Attention *own = attention_pick(r->attention, &r->spec);
    if (own->kept_bytes(&r->spec)) return "attention over several ranks needs one that keeps no memory: want flash";
    if (r->spec.dropout.rate > 0)  return "attention over several ranks has no dropout";
    return NULL;
}

/* Blocks of keys and values are (tokens,2C): K beside V. With N - 1 transfers of a pass beside the attention. */
typedef struct {
    Tensor kv;              /* (B,own,2C): this rank's */
    Tensor in[2];           /* (most,2C): of other ranks, one received while the other is read */
    Tensor sum;             /* forward: out in F32 (B,own,C), absent where out is */
    Tensor part, part_lse;  /* forward: the result of a step, F32 */
    Tensor lse;             /* (NH,own): of the rows of a step */
    Tensor dq;              /* backward: of a step (own,C) */
    Tensor dkv[2];          /* (most,2C): of a step; one sent while the other is written */
    Tensor back;            /* (own,2C): the gradients of this rank's keys and values in a step of another */
    void  *attention;       /* its workspace */
} Work;

static size_t place(Tensor *t, char *base, size_t at, DType dtype, int64_t rows, int64_t columns) {
    *t = tensor_of(base ? base + at : NULL, dtype, 2, rows, columns);
    return at + (tensor_bytes(*t) + 255) / 256 * 256;
}

/* Returns the bytes of a pass. */
static size_t place_work(const Ring *r, int is_backward, void *memory, Work *w) {
    const AttentionSpec *s = &r->spec;
    const int64_t C = (int64_t)s->NH * s->HS, own = s->Tq;
    const DType type = s->dtype;
    int most = 0;
    size_t at = 0, attention = 0;
    for (int rank = 0; rank < r->split.size; rank++) {
        const int tokens = ring_tokens(&r->split, rank);
        const Part p = part_of(&r->split, r->split.rank, rank);
        if (tokens > most) most = tokens;
        if (is_empty(p)) continue;
        AttentionSpec spec = spec_of(r, p, is_backward ? type : part_type(r));
        if (rank == r->split.rank) spec.B = s->B;
        const size_t bytes = attention_pick(r->attention, &spec)->workspace_bytes(&spec);
        if (bytes > attention) attention = bytes;
    }
    *w = (Work){ .attention = memory };
    at += (attention + 255) / 256 * 256;
    at = place(&w->kv, memory, at, type, s->B * own, 2 * C);
    for (int i = 0; i < 2; i++) at = place(&w->in[i], memory, at, type, most, 2 * C);
    at = place(&w->lse, memory, at, F32, s->NH, own);
    if (is_backward) {
        at = place(&w->dq, memory, at, type, own, C);
        for (int i = 0; i < 2; i++) at = place(&w->dkv[i], memory, at, type, most, 2 * C);
        return place(&w->back, memory, at, type, own, 2 * C);
    }
    if (type != F32) at = place(&w->sum, memory, at, F32, s->B * own, C);
    at = place(&w->part, memory, at, F32, own, C);
    return place(&w->part_lse, memory, at, F32, s->NH, own);
}

size_t ring_workspace_bytes(const Ring *r) {
    Work w;
    const size_t forward = place_work(r, 0, NULL, &w), backward = place_work(r, 1, NULL, &w);
    return forward > backward ? forward : backward;
}

/* Step `index` of the B (N - 1) of a pass: sequence b, with the block of number `from`; `to` has this rank's. */
typedef struct { int b, from, to; Part part, others; } Step;    /* others: what `to` computes with this rank's block */

static Step step_of(const Ring *r, int index) {
    const int N = r->split.size, rank = r->split.rank, s = 1 + index % (N - 1);
    Step step = { .b = index / (N - 1), .from = (rank + N - s) % N, .to = (rank + s) % N };
    step.part = part_of(&r->split, rank, step.from);
    step.others = part_of(&r->split, step.to, rank);
    return step;
}

static int rank_of_run(const Ring *r, int number) { return comm_rank - r->split.rank + number; }

/* Keys of a step that are needed: none where no row sees them. */
static int64_t keys_of(Part p) { return is_empty(p) ? 0 : p.keys; }

/* The keys and values of a step come. */
static CommOp fetch(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return comm_exchange(tensor_row_range(w->kv, (int64_t)s.b * r->spec.Tk, keys_of(s.others)), rank_of_run(r, s.to),
                         tensor_row_range(w->in[index % 2], 0, keys_of(s.part)), rank_of_run(r, s.from));
}

/* (1,count,columns) of row `first` on of sequence b. */
static Tensor rows_of(Tensor t, int64_t tokens, int b, int64_t first, int64_t count) {
    Tensor rows = tensor_row_range(t, b * tokens + first, count);
    rows.ndim = 3;
    rows.dim[2] = rows.dim[1];
    rows.dim[1] = count;
    rows.dim[0] = 1;
    return rows;
}

static Tensor first_rows(Tensor t, int64_t count) { return rows_of(t, 0, 0, 0, count); }

/* A packed lse (1,NH,rows) at the address of t. */
static Tensor lse_at(const Ring *r, Tensor t, Part p) { return tensor_of(t.data, F32, 3, 1, r->spec.NH, p.rows); }

/* The log-sum-exps of a part's rows in those of sequence b: (NH,rows) with a pitch. */
static Tensor lse_rows(const Ring *r, Tensor lse, int b, Part p) {
    return tensor_column_range(tensor_row_range(lse, (int64_t)b * r->spec.NH, r->spec.NH), p.row, p.rows);
}

/* The same, packed: in place where the part has all rows, else a copy. */
static Tensor lse_packed(const Ring *r, const Work *w, Tensor lse, int b, Part p) {
    const Tensor rows = lse_rows(r, lse, b, p);
    if (p.rows == r->spec.Tq) return lse_at(r, rows, p);
    tensor_convert(lse_at(r, w->lse, p), rows);
    return lse_at(r, w->lse, p);
}

static void pack(const Ring *r, const Work *w, Tensor k, Tensor v) {
    const int64_t C = tensor_columns(k);
    if (!r->spec.Tk || r->split.size == 1) return;
    tensor_convert(tensor_column_range(w->kv, 0, C), k);
    tensor_convert(tensor_column_range(w->kv, C, C), v);
}

void ring_forward(const Ring *r, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, void *work) {
    const int64_t C = tensor_columns(q), own = r->spec.Tq;
    const int steps = r->spec.B * (r->split.size - 1);
    Work w;
    place_work(r, 0, work, &w);
    pack(r, &w, k, v);
    CommOp fetched = steps ? fetch(r, &w, 0) : (CommOp){0};
    AttentionSpec spec = r->spec;
    spec.out_dtype = part_type(r);
    const Tensor sum = out.dtype == spec.out_dtype ? out : tensor_of(w.sum.data, F32, 3, spec.B, own, C);
    if (own) attention_pick(r->attention, &spec)->forward(&spec, sum, lse, NULL, q, k, v, w.attention);
    for (int i = 0; i < steps; i++) {
        const Step s = step_of(r, i);
        const Part p = s.part;
        comm_wait(fetched);
        if (i + 1 < steps) fetched = fetch(r, &w, i + 1);
        if (is_empty(p)) continue;
        const Tensor kv = first_rows(w.in[i % 2], p.keys), part = first_rows(w.part, p.rows);
        const Tensor part_lse = lse_at(r, w.part_lse, p);
        spec = spec_of(r, p, F32);
        attention_pick(r->attention, &spec)->forward(&spec, part, part_lse, NULL, rows_of(q, own, s.b, p.row, p.rows),
            tensor_column_range(kv, 0, C), tensor_column_range(kv, C, C), w.attention);
        const Tensor sum_lse = lse_packed(r, &w, lse, s.b, p);
        attention_merge(rows_of(sum, own, s.b, p.row, p.rows), sum_lse, part, part_lse);
        if (p.rows < own) tensor_convert(lse_rows(r, lse, s.b, p), sum_lse);
    }
    if (own && sum.data != out.data) tensor_convert(out, sum);
}

/* The gradients of this rank's keys and values in step `index` of number `to` have come: dk, dv += . */
static void add_returned(const Ring *r, const Work *w, int index, Tensor dk, Tensor dv) {
    const Step s = step_of(r, index);
    const int64_t C = tensor_columns(dk), own = r->spec.Tk, keys = keys_of(s.others);
    if (!keys) return;
    tensor_add(rows_of(dk, own, s.b, 0, keys), tensor_column_range(first_rows(w->back, keys), 0, C));
    tensor_add(rows_of(dv, own, s.b, 0, keys), tensor_column_range(first_rows(w->back, keys), C, C));
}

void ring_backward(const Ring *r, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                   Tensor q, Tensor k, Tensor v, void *work) {
    const int64_t C = tensor_columns(q), own = r->spec.Tq;
    const int steps = r->spec.B * (r->split.size - 1);
    CommOp fetched = {0}, returned = {0};
    Work w;
    place_work(r, 1, work, &w);
    pack(r, &w, k, v);
    if (steps) fetched = fetch(r, &w, 0);
    if (own) attention_pick(r->attention, &r->spec)->backward(&r->spec, dq, dk, dv, dout, out, lse, NULL, q, k, v,
                                                              w.attention);
    for (int i = 0; i < steps; i++) {
        const Step s = step_of(r, i);
        const Part p = s.part;
        comm_wait(fetched);
        if (i + 1 < steps) fetched = fetch(r, &w, i + 1);
        if (!is_empty(p)) {
            const AttentionSpec spec = spec_of(r, p, r->spec.dtype);
            const Tensor kv = first_rows(w.in[i % 2], p.keys), dkv = first_rows(w.dkv[i % 2], p.keys);
            const Tensor part_dq = first_rows(w.dq, p.rows), part_lse = lse_packed(r, &w, lse, s.b, p);
            attention_pick(r->attention, &spec)->backward(&spec, part_dq, tensor_column_range(dkv, 0, C),
                tensor_column_range(dkv, C, C), rows_of(dout, own, s.b, p.row, p.rows),
                rows_of(out, own, s.b, p.row, p.rows), part_lse, NULL, rows_of(q, own, s.b, p.row, p.rows),
                tensor_column_range(kv, 0, C), tensor_column_range(kv, C, C), w.attention);
            tensor_add(rows_of(dq, own, s.b, p.row, p.rows), part_dq);
        }
        if (i) {
            comm_wait(returned);
            add_returned(r, &w, i - 1, dk, dv);
        }
        returned = comm_exchange(tensor_row_range(w.dkv[i % 2], 0, keys_of(p)), rank_of_run(r, s.from),
                                 tensor_row_range(w.back, 0, keys_of(s.others)), rank_of_run(r, s.to));
    }
    comm_wait(returned);
    if (steps) add_returned(r, &w, steps - 1, dk, dv);
}
