/* kernels/ring.c - Ring attention: host code over any attention, with either backend. */
#include "ring.h"
#include "check_ops.h"
#include "comm.h"
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

/* Query rows from `row` on with keys from `key` on: all of them, or, where causal, key j of row i if j <= i, of as many
   keys as rows. rows or keys 0: nothing. */
typedef struct { int row, rows, key, keys, causal; } Part;

/* What number rank computes with the block of number from. */
static Part part_of(const RingSplit *s, int rank, int from) {
    const int own = ring_tokens(s, rank), other = ring_tokens(s, from);
    RingRange range[2] = {0};
    if (from == rank) return (Part){ 0, own, 0, own, 1 };
    if (s->order == RING_STRIPED) {             /* row i sees key j <= i of an earlier rank, j < i of a later one */
        const int row = from > rank, rows = own > row ? own - row : 0;
        return (Part){ row, rows, 0, rows < other ? rows : other, 1 };
    }
    if (s->order == RING_CONTIGUOUS) return (Part){ 0, own, 0, from < rank ? other : 0, 0 };
    ring_ranges(s, from < rank ? from : rank, range);
    return from < rank ? (Part){ 0, own, 0, range[0].count, 0 }
                       : (Part){ range[0].count, own - range[0].count, 0, other, 0 };
}

static int is_empty(Part p) { return !p.rows || !p.keys; }

/* Its own block in three parts of the backward pass: the first half, the second, the second with the first. */
static void own_parts(int own, Part part[3]) {
    const int half = own / 2, rest = own - half;
    part[0] = (Part){ 0, half, 0, half, 1 };
    part[1] = (Part){ half, rest, half, rest, 1 };
    part[2] = (Part){ half, rest, 0, half, 0 };
}

/* ---- A ring */

static int units_of(const Ring *r) { return r->spec.B * r->spec.NH / r->heads; }

/* As few heads at a time as have 2^19 rows on a rank, which are 4096 tiles of the kernels; of gathered keys not all, if
   fewer have 2^16, since the first ones come and the last gradients return while nothing is computed. The same on all
   ranks. */
Ring ring_create(RingSplit split, const char *attention, AttentionSpec spec) {
    REQUIRE(split.size >= 1 && split.rank >= 0 && split.rank < split.size && split.T >= 1,
            "ring: rank %d of %d, %d tokens", split.rank, split.size, split.T);
    spec.Tq = spec.Tk = ring_tokens(&split, split.rank);
    spec.causal = 1;
    spec.q0 = 0;
    spec.position = NULL;
    spec.out_dtype = spec.dtype;
    spec.dq_into = spec.dkv_into = OVERWRITE;
    const int gathers = split.order == RING_ZIGZAG && split.size == 2 && ceil_div(split.T, 4) % 128 == 0;
    const int64_t rows = 1 << 19, rows_gathered = 1 << 16, tokens = split.T / split.size;
    int heads = 1;
    while (heads < spec.NH && (spec.NH % heads || heads * tokens < rows)) heads++;
    for (int fewer = spec.NH / 2; gathers && heads == spec.NH && fewer * tokens >= rows_gathered; fewer--)
        if (spec.NH % fewer == 0) heads = fewer;
    return (Ring){ split, attention, spec, heads, gathers };
}

const char *ring_refuse(const Ring *r) {
    const Attention *own = attention_pick(r->attention, &r->spec);
    if (own->kept_bytes(&r->spec)) return "naive attention runs on one rank only; want flash";
    if (r->spec.dropout.rate > 0)  return "attention over several ranks has no dropout";
    return NULL;
}

static AttentionSpec spec_of(const Ring *r, Part p, Into dq_into, Into dkv_into) {
    AttentionSpec spec = r->spec;
    spec.B = 1;
    spec.NH = r->heads;
    spec.Tq = p.rows;
    spec.Tk = p.keys;
    spec.causal = p.causal;
    spec.out_dtype = F32;
    spec.dq_into = dq_into;
    spec.dkv_into = dkv_into;
    return spec;
}

/* Of a unit: r->heads heads of one sequence, C columns. Blocks of keys and values, and of their gradients, are
   (tokens,2C): K beside V. */
typedef struct {
    Tensor kv;              /* (own,2C): this rank's, as far as another needs them */
    Tensor in[2];           /* (most,2C): of other ranks, one received while the other is read */
    Tensor sum;             /* F32 (own,C): out or dq over the steps so far */
    Tensor part;            /* forward: F32 (own,C), the out of a step */
    Tensor part_lse;        /* forward: its lse (NH,own) */
    Tensor dkv_sum;         /* backward: F32 (own,2C), of this rank's keys and values */
    Tensor dkv;             /* F32 (most,2C): of a step */
    Tensor sent, returned;  /* (most,2C), (own,2C): the same on its way to its rank; of this rank's, from another */
    void  *attention;       /* its workspace */
} Work;

static size_t place(Tensor *t, char *base, size_t at, DType dtype, int64_t rows, int64_t columns) {
    *t = tensor_of(base ? base + at : NULL, dtype, 2, rows, columns);
    return at + (tensor_bytes(*t) + 255) / 256 * 256;
}

static void add_workspace(const Ring *r, Part p, size_t *bytes) {
    if (is_empty(p)) return;
    const AttentionSpec spec = spec_of(r, p, OVERWRITE, OVERWRITE);
    const size_t wanted = attention_pick(r->attention, &spec)->workspace_bytes(&spec);
    if (wanted > *bytes) *bytes = wanted;
}

/* Returns the bytes of a pass. */
static size_t place_work(const Ring *r, int is_backward, void *memory, Work *w) {
    const int64_t NH = r->heads, C = NH * r->spec.HS, own = r->spec.Tq;
    const DType dtype = r->spec.dtype;
    Part halves[3];
    int most = 0;
    size_t at = 0;
    for (int rank = 0; rank < r->split.size; rank++) {
        const int tokens = ring_tokens(&r->split, rank);
        if (tokens > most) most = tokens;
        add_workspace(r, part_of(&r->split, r->split.rank, rank), &at);
    }
    own_parts((int)own, halves);
    for (int i = 0; i < 3; i++) add_workspace(r, halves[i], &at);
    at = (at + 255) / 256 * 256;
    *w = (Work){ .attention = memory };
    at = place(&w->kv, memory, at, dtype, own, 2 * C);
    for (int i = 0; i < 2; i++) at = place(&w->in[i], memory, at, dtype, most, 2 * C);
    at = place(&w->sum, memory, at, F32, own, C);
    if (!is_backward) {
        at = place(&w->part, memory, at, F32, own, C);
        return place(&w->part_lse, memory, at, F32, NH, own);
    }
    at = place(&w->dkv_sum, memory, at, F32, own, 2 * C);
    at = place(&w->dkv, memory, at, F32, most, 2 * C);
    at = place(&w->sent, memory, at, dtype, most, 2 * C);
    return place(&w->returned, memory, at, dtype, own, 2 * C);
}

/* ---- Views */

/* (1,count,columns) of the flat rows. */
static Tensor rows_of(Tensor t, int64_t first, int64_t count) {
    Tensor rows = tensor_row_range(t, first, count);
    rows.ndim = 3;
    rows.dim[2] = rows.dim[1];
    rows.dim[1] = count;
    rows.dim[0] = 1;
    return rows;
}

/* The left or right half of the columns: K or V. */
static Tensor half(Tensor t, int which) {
    return tensor_column_range(t, which * tensor_columns(t) / 2, tensor_columns(t) / 2);
}

/* The operands of a unit: (1,own,C), lse (1,NH,own). */
typedef struct { Tensor dq, dk, dv, dout, out, lse, q, k, v; } Operands;

static Tensor unit_of(const Ring *r, Tensor t, int b, int head) {
    if (!t.data) return t;
    return tensor_column_range(rows_of(t, (int64_t)b * r->spec.Tq, r->spec.Tq), (int64_t)head * r->spec.HS,
                               (int64_t)r->heads * r->spec.HS);
}

static Operands unit(const Ring *r, Operands x, int index) {
    const int first = index * r->heads, b = first / r->spec.NH, head = first % r->spec.NH;
    return (Operands){ unit_of(r, x.dq, b, head), unit_of(r, x.dk, b, head), unit_of(r, x.dv, b, head),
                       unit_of(r, x.dout, b, head), unit_of(r, x.out, b, head),
                       rows_of(x.lse, (int64_t)b * r->spec.NH + head, r->heads),
                       unit_of(r, x.q, b, head), unit_of(r, x.k, b, head), unit_of(r, x.v, b, head) };
}

/* ---- Steps */

/* Step `index` from 0, with the block of number `from`; `to` has this rank's. */
typedef struct { int from, to; Part part, others; } Step;       /* others: what `to` computes with this rank's block */

static Step step_of(const Ring *r, int index) {
    const int N = r->split.size, rank = r->split.rank;
    Step step = { .from = (rank + N - index - 1) % N, .to = (rank + index + 1) % N };
    step.part = part_of(&r->split, rank, step.from);
    step.others = part_of(&r->split, step.to, rank);
    return step;
}

static int rank_of_run(const Ring *r, int number) { return comm_rank - r->split.rank + number; }

/* Keys of a step that are needed: none where no row sees them. */
static int64_t keys_of(Part p) { return is_empty(p) ? 0 : p.keys; }

/* The transfer in which the keys and values of a step come. */
static CommTransfer fetch(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return (CommTransfer){ tensor_row_range(w->kv, 0, keys_of(s.others)), rank_of_run(r, s.to),
                           tensor_row_range(w->in[index % 2], 0, keys_of(s.part)), rank_of_run(r, s.from) };
}

/* The one in which the gradients of these return to their rank. */
static CommTransfer give_back(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return (CommTransfer){ tensor_row_range(w->sent, 0, keys_of(s.part)), rank_of_run(r, s.from),
                           tensor_row_range(w->returned, 0, keys_of(s.others)), rank_of_run(r, s.to) };
}

/* Copies the keys and values that other ranks need to where they are sent from. */
static void pack(const Ring *r, const Work *w, const Operands *x) {
    int64_t keys = 0;
    for (int i = 0; i < r->split.size - 1; i++) {
        const int64_t needed = keys_of(step_of(r, i).others);
        if (needed > keys) keys = needed;
    }
    if (!keys) return;
    tensor_convert(half(rows_of(w->kv, 0, keys), 0), rows_of(x->k, 0, keys));
    tensor_convert(half(rows_of(w->kv, 0, keys), 1), rows_of(x->v, 0, keys));
}

/* ---- Forward */

static void part_forward(const Ring *r, const Work *w, const Operands *x, Part p, Tensor out, Tensor lse,
                         Tensor k, Tensor v) {
    if (is_empty(p)) return;
    const AttentionSpec spec = spec_of(r, p, OVERWRITE, OVERWRITE);
    attention_pick(r->attention, &spec)->forward(&spec, out, lse, NULL, rows_of(x->q, p.row, p.rows), k, v,
                                                 w->attention);
}

/* The number of the last step that computes something, -1: none. */
static int last_step(const Ring *r) {
    int last = r->split.size - 2;
    while (last >= 0 && is_empty(step_of(r, last).part)) last--;
    return last;
}

/* The last merge writes x->out; the rows before the first that it merges are complete earlier. */
static void unit_forward(const Ring *r, const Work *w, const Operands *x) {
    const int own = r->spec.Tq, steps = r->split.size - 1, last = last_step(r);
    const int complete = last < 0 ? own : step_of(r, last).part.row;
    pack(r, w, x);
    CommTransfer transfer = fetch(r, w, 0);
    CommOp fetched = comm_exchange(&transfer, 1);
    part_forward(r, w, x, part_of(&r->split, r->split.rank, r->split.rank), rows_of(w->sum, 0, own), x->lse,
                 x->k, x->v);
    for (int i = 0; i < steps; i++) {
        const Part p = step_of(r, i).part;
        comm_wait(fetched);
        if (i + 1 < steps) {
            transfer = fetch(r, w, i + 1);
            fetched = comm_exchange(&transfer, 1);
        }
        if (is_empty(p)) continue;
        const Tensor sum = rows_of(w->sum, p.row, p.rows), part = rows_of(w->part, 0, p.rows);
        const Tensor part_lse = tensor_of(w->part_lse.data, F32, 3, 1, x->lse.dim[1], p.rows);
        const Tensor kv = rows_of(w->in[i % 2], 0, p.keys);
        part_forward(r, w, x, p, part, part_lse, half(kv, 0), half(kv, 1));
        attention_merge(i == last ? rows_of(x->out, p.row, p.rows) : sum, tensor_column_range(x->lse, p.row, p.rows),
                        sum, part, part_lse);
    }
    if (complete) tensor_convert(rows_of(x->out, 0, complete), rows_of(w->sum, 0, complete));
}

/* ---- Backward */

/* w->sum = or += the part's dq, dkv = or += its dk and dv. */
static void part_backward(const Ring *r, const Work *w, const Operands *x, Part p, Into dq_into, Tensor dkv,
                          Into dkv_into, Tensor k, Tensor v) {
    const AttentionSpec spec = spec_of(r, p, dq_into, dkv_into);
    attention_pick(r->attention, &spec)->backward(&spec, rows_of(w->sum, p.row, p.rows), half(dkv, 0), half(dkv, 1),
        rows_of(x->dout, p.row, p.rows), rows_of(x->out, p.row, p.rows), tensor_column_range(x->lse, p.row, p.rows),
        NULL, rows_of(x->q, p.row, p.rows), k, v, w->attention);
}

static void own_part_backward(const Ring *r, const Work *w, const Operands *x, Part p, Into into) {
    if (is_empty(p)) return;
    part_backward(r, w, x, p, into, rows_of(w->dkv_sum, p.key, p.keys), into, rows_of(x->k, p.key, p.keys),
                  rows_of(x->v, p.key, p.keys));
}

static void step_backward(const Ring *r, const Work *w, const Operands *x, int index) {
    const Part p = step_of(r, index).part;
    if (is_empty(p)) return;
    const Tensor kv = rows_of(w->in[index % 2], 0, p.keys);
    part_backward(r, w, x, p, ACCUMULATE, rows_of(w->dkv, 0, p.keys), OVERWRITE, half(kv, 0), half(kv, 1));
}

/* The gradients of this rank's keys and values in step `index` of another have come. */
static void add_returned(const Ring *r, const Work *w, int index) {
    const int64_t keys = keys_of(step_of(r, index).others);
    const Tensor sum = rows_of(w->dkv_sum, 0, keys);
    if (keys) tensor_add(sum, sum, rows_of(w->returned, 0, keys));
}

/* to = the left or right half of the sums, with the gradients that came last. */
static void write_sum(const Ring *r, const Work *w, Tensor to, int which) {
    const int64_t own = r->spec.Tk, keys = keys_of(step_of(r, r->split.size - 2).others);
    if (keys)       tensor_add(rows_of(to, 0, keys), half(rows_of(w->dkv_sum, 0, keys), which),
                               half(rows_of(w->returned, 0, keys), which));
    if (own > keys) tensor_convert(rows_of(to, keys, own - keys), half(rows_of(w->dkv_sum, keys, own - keys), which));
}

/* The own block comes first and last: the squares of its halves while the first keys come, the rectangle between them
   while the last gradients return. Beside step i the keys of step i + 1 come, and the gradients of step i - 1 return.
   The squares write all sums, the rest adds to them. */
static void unit_backward(const Ring *r, const Work *w, const Operands *x) {
    const int own = r->spec.Tq, steps = r->split.size - 1;
    Part halves[3];
    own_parts(own, halves);
    pack(r, w, x);
    CommTransfer transfers[2] = { fetch(r, w, 0) };
    CommOp moved = comm_exchange(transfers, 1);
    for (int i = 0; i < 2; i++) own_part_backward(r, w, x, halves[i], OVERWRITE);
    for (int i = 0; i <= steps; i++) {
        int count = 0;
        comm_wait(moved);
        if (i > 1) add_returned(r, w, i - 2);
        if (i > 0) {
            const int64_t keys = keys_of(step_of(r, i - 1).part);
            if (keys) tensor_convert(rows_of(w->sent, 0, keys), rows_of(w->dkv, 0, keys));
            transfers[count++] = give_back(r, w, i - 1);
        }
        if (i + 1 < steps) transfers[count++] = fetch(r, w, i + 1);
        moved = comm_exchange(transfers, count);
        if (i < steps) step_backward(r, w, x, i);
        else own_part_backward(r, w, x, halves[2], ACCUMULATE);
    }
    if (own) tensor_convert(x->dq, w->sum);
    comm_wait(moved);
    if (!own) return;
    write_sum(r, w, x->dk, 0);
    write_sum(r, w, x->dv, 1);
}

/* ---- Two ranks in zigzag order: each gathers the keys of the other that its queries see. Its attention is then causal
   with q0 = their position, in whole calls whose results have the data type of the keys: no part is merged, and no sum
   is in f32. The keys of a unit come and its gradients return while the units beside it are computed. */

typedef struct {
    Tensor kv[2];           /* (position,2C): all keys of a unit, and of the next */
    Tensor dkv[2];          /* backward: their gradients; those of the unit before, on their way to the other rank */
    Tensor returned[2];     /* (rows,2C): of this rank's keys, from the other */
    void  *attention;       /* its workspace */
} GatherWork;

/* The tokens of a rank: chunks 0 and 3 of 4, or 1 and 2 as one. */
typedef struct { int count; RingRange at[2]; } Spans;

static Spans spans_of(const RingSplit *s, int rank) {
    Spans spans = {0};
    spans.count = ring_ranges(s, rank, spans.at);
    if (spans.count == 2 && spans.at[0].first + spans.at[0].count == spans.at[1].first) {
        spans.at[0].count += spans.at[1].count;
        spans.count = 1;
    }
    return spans;
}

static Spans own_spans(const Ring *r) { return spans_of(&r->split, r->split.rank); }

static int end_of(const Spans *s) { return s->count ? s->at[s->count - 1].first + s->at[s->count - 1].count : 0; }

/* The other rank's tokens that queries of a rank see: of its spans the first. */
static RingRange needed_by(const RingSplit *s, int rank) {
    const Spans own = spans_of(s, rank), other = spans_of(s, 1 - rank);
    RingRange needed = other.at[0];
    if (needed.first >= end_of(&own)) needed.count = 0;
    return needed;
}

static AttentionSpec spec_of_span(const Ring *r, RingRange span) {
    AttentionSpec spec = r->spec;
    spec.B = 1;
    spec.NH = r->heads;
    spec.Tq = span.count;
    spec.Tk = span.first + span.count;
    spec.q0 = span.first;
    return spec;
}

static size_t place_gather(const Ring *r, int is_backward, void *memory, GatherWork *w) {
    const int64_t C = 2 * r->heads * r->spec.HS;
    const Spans spans = own_spans(r);
    size_t at = 0;
    for (int i = 0; i < spans.count; i++) {
        const AttentionSpec spec = spec_of_span(r, spans.at[i]);
        const size_t wanted = attention_pick(r->attention, &spec)->workspace_bytes(&spec);
        at = wanted > at ? wanted : at;
    }
    at = (at + 255) / 256 * 256;
    *w = (GatherWork){ .attention = memory };
    for (int i = 0; i < 2; i++) {
        at = place(&w->kv[i], memory, at, r->spec.dtype, end_of(&spans), C);
        if (!is_backward) continue;
        at = place(&w->dkv[i], memory, at, r->spec.dtype, end_of(&spans), C);
        at = place(&w->returned[i], memory, at, r->spec.dtype, needed_by(&r->split, 1 - r->split.rank).count, C);
    }
    return at;
}

/* The last span sees all gathered keys; the one before it is the first chunk of the sequence, its keys are its own. */
static void attend(const Ring *r, const GatherWork *w, Operands all, int u, int is_last, int is_backward) {
    const Spans spans = own_spans(r);
    const int i = is_last ? spans.count - 1 : spans.count - 2, row = i > 0 ? spans.at[0].count : 0;
    if (i < 0) return;
    const Operands x = unit(r, all, u);
    const AttentionSpec spec = spec_of_span(r, spans.at[i]);
    const Attention *a = attention_pick(r->attention, &spec);
    const Tensor q = rows_of(x.q, row, spec.Tq), out = rows_of(x.out, row, spec.Tq);
    const Tensor lse = tensor_column_range(x.lse, row, spec.Tq), kv = rows_of(w->kv[u % 2], 0, spec.Tk);
    const Tensor k = is_last ? half(kv, 0) : rows_of(x.k, 0, spec.Tk);
    const Tensor v = is_last ? half(kv, 1) : rows_of(x.v, 0, spec.Tk);
    if (!is_backward) {
        a->forward(&spec, out, lse, NULL, q, k, v, w->attention);
        return;
    }
    const Tensor dkv = rows_of(w->dkv[u % 2], 0, spec.Tk);
    a->backward(&spec, rows_of(x.dq, row, spec.Tq), is_last ? half(dkv, 0) : rows_of(x.dk, 0, spec.Tk),
                is_last ? half(dkv, 1) : rows_of(x.dv, 0, spec.Tk), rows_of(x.dout, row, spec.Tq), out, lse, NULL,
                q, k, v, w->attention);
}

static CommTransfer gather(const Ring *r, const GatherWork *w, Operands all, int u) {
    const int other = 1 - r->split.rank;
    const RingRange sent = needed_by(&r->split, other), needed = needed_by(&r->split, r->split.rank);
    const Spans spans = own_spans(r);
    const Operands x = unit(r, all, u);
    for (int i = 0, row = 0; i < spans.count; row += spans.at[i++].count) {
        const Tensor kv = rows_of(w->kv[u % 2], spans.at[i].first, spans.at[i].count);
        tensor_convert(half(kv, 0), rows_of(x.k, row, spans.at[i].count));
        tensor_convert(half(kv, 1), rows_of(x.v, row, spans.at[i].count));
    }
    return (CommTransfer){ tensor_row_range(w->kv[u % 2], sent.count ? sent.first : 0, sent.count),
                           rank_of_run(r, other),
                           tensor_row_range(w->kv[u % 2], needed.count ? needed.first : 0, needed.count),
                           rank_of_run(r, other) };
}

static CommTransfer scatter(const Ring *r, const GatherWork *w, int u) {
    const int other = 1 - r->split.rank;
    const RingRange needed = needed_by(&r->split, r->split.rank);
    return (CommTransfer){ tensor_row_range(w->dkv[u % 2], needed.count ? needed.first : 0, needed.count),
                           rank_of_run(r, other), w->returned[u % 2], rank_of_run(r, other) };
}

/* dk and dv of a unit. The first chunk's have those of its own queries. */
static void take_own(const Ring *r, const GatherWork *w, Operands all, int u) {
    const Spans spans = own_spans(r);
    const Operands x = unit(r, all, u);
    const int is_returned = w->returned[u % 2].dim[0] > 0;
    for (int i = 0, row = 0; i < spans.count; row += spans.at[i++].count)
        for (int which = 0; which < 2; which++) {
            const Tensor to = rows_of(which ? x.dv : x.dk, row, spans.at[i].count);
            const Tensor from = half(rows_of(w->dkv[u % 2], spans.at[i].first, spans.at[i].count), which);
            if (i < spans.count - 1)        tensor_add(to, to, from);
            else if (i > 0 || !is_returned) tensor_convert(to, from);
        }
}

/* With those of the other rank's queries, which see the first span only. */
static void add_gathered(const Ring *r, const GatherWork *w, Operands all, int u) {
    const Spans spans = own_spans(r);
    const Operands x = unit(r, all, u);
    const RingRange first = spans.at[0];
    for (int which = 0; which < 2 && w->returned[u % 2].dim[0]; which++) {
        const Tensor to = rows_of(which ? x.dv : x.dk, 0, first.count);
        const Tensor own = half(rows_of(w->dkv[u % 2], first.first, first.count), which);
        tensor_add(to, spans.count > 1 ? to : own, half(rows_of(w->returned[u % 2], 0, first.count), which));
    }
}

/* The calls of the first span need no other keys: those of the first unit come meanwhile. */
static void gathered_forward(const Ring *r, Operands all, void *memory) {
    GatherWork w;
    place_gather(r, 0, memory, &w);
    CommTransfer transfer = gather(r, &w, all, 0);
    CommOp moved = comm_exchange(&transfer, 1);
    for (int u = 0; u < units_of(r); u++) {
        if (u == 0) attend(r, &w, all, u, 0, 0);
        comm_wait(moved);
        if (u + 1 < units_of(r)) {
            transfer = gather(r, &w, all, u + 1);
            moved = comm_exchange(&transfer, 1);
        }
        if (u > 0) attend(r, &w, all, u, 0, 0);
        attend(r, &w, all, u, 1, 0);
    }
}

/* Beside unit u the keys of u + 1 come and the gradients of u - 1 return. */
static void gathered_backward(const Ring *r, Operands all, void *memory) {
    const int units = units_of(r);
    GatherWork w;
    place_gather(r, 1, memory, &w);
    CommTransfer transfers[2] = { gather(r, &w, all, 0) };
    CommOp moved = comm_exchange(transfers, 1);
    for (int u = 0; u <= units; u++) {
        int count = 0;
        if (u == 0) attend(r, &w, all, u, 0, 1);
        comm_wait(moved);
        if (u > 0)         transfers[count++] = scatter(r, &w, u - 1);
        if (u + 1 < units) transfers[count++] = gather(r, &w, all, u + 1);
        moved = comm_exchange(transfers, count);
        if (u > 0) take_own(r, &w, all, u - 1);
        if (u > 1) add_gathered(r, &w, all, u - 2);
        if (u > 0 && u < units) attend(r, &w, all, u, 0, 1);
        if (u < units) attend(r, &w, all, u, 1, 1);
    }
    comm_wait(moved);
    add_gathered(r, &w, all, units - 1);
}

/* ---- Both passes */

size_t ring_workspace_bytes(const Ring *r) {
    Work w;
    GatherWork g;
    if (r->split.size == 1) return attention_pick(r->attention, &r->spec)->workspace_bytes(&r->spec);
    const size_t forward  = r->gathers ? place_gather(r, 0, NULL, &g) : place_work(r, 0, NULL, &w);
    const size_t backward = r->gathers ? place_gather(r, 1, NULL, &g) : place_work(r, 1, NULL, &w);
    return forward > backward ? forward : backward;
}

void ring_forward(const Ring *r, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, void *work) {
    const Operands all = { .out = out, .lse = lse, .q = q, .k = k, .v = v };
    Work w;
    if (r->split.size == 1) {
        attention_pick(r->attention, &r->spec)->forward(&r->spec, out, lse, NULL, q, k, v, work);
        return;
    }
    if (r->gathers) {
        gathered_forward(r, all, work);
        return;
    }
    place_work(r, 0, work, &w);
    for (int u = 0; u < units_of(r); u++) {
        const Operands x = unit(r, all, u);
        unit_forward(r, &w, &x);
    }
}

void ring_backward(const Ring *r, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                   Tensor q, Tensor k, Tensor v, void *work) {
    const Operands all = { dq, dk, dv, dout, out, lse, q, k, v };
    Work w;
    if (r->split.size == 1) {
        attention_pick(r->attention, &r->spec)->backward(&r->spec, dq, dk, dv, dout, out, lse, NULL, q, k, v, work);
        return;
    }
    if (r->gathers) {
        gathered_backward(r, all, work);
        return;
    }
    place_work(r, 1, work, &w);
    for (int u = 0; u < units_of(r); u++) {
        const Operands x = unit(r, all, u);
        unit_backward(r, &w, &x);
    }
}
