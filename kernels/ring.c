/* kernels/ring.c - Ring attention: host code over any attention, with either backend. */
#include "ring.h"
#include "check_ops.h"
#include "comm.h"
#include "device.h"
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

/* Its own block in three parts of the backward pass: the first half, the second with the first, the second. */
static void own_parts(int own, Part part[3]) {
    const int half = own / 2, rest = own - half;
    part[0] = (Part){ 0, half, 0, half, 1 };
    part[1] = (Part){ half, rest, 0, half, 0 };
    part[2] = (Part){ half, rest, half, rest, 1 };
}

/* ---- A ring */

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

/* Of B sequences, with results in F32. */
static AttentionSpec spec_of(const Ring *r, Part p, int B, Into into) {
    AttentionSpec spec = r->spec;
    spec.B = B;
    spec.Tq = p.rows;
    spec.Tk = p.keys;
    spec.causal = p.causal;
    spec.out_dtype = F32;
    spec.dqkv_into = into;
    return spec;
}

/* Blocks of keys and values, and of their gradients, are (tokens,2C): K beside V. */
typedef struct {
    Tensor kv;              /* (B own,2C): this rank's */
    Tensor in[2];           /* (most,2C): of other ranks, one received while the other is read */
    Tensor sum;             /* F32 (B own,C): out or dq over the steps so far; forward: absent where out is F32 */
    Tensor part;            /* F32 (own,C): the out or dq of a step */
    Tensor part_lse;        /* forward: its lse (NH,own) */
    Tensor dkv_sum;         /* backward: F32 (B own,2C), of this rank's keys and values */
    Tensor dkv;             /* F32 (most,2C): of a step */
    Tensor sent, returned;  /* (most,2C), (own,2C): the same on its way to its rank; of this rank's, from another */
    void  *attention;       /* its workspace */
} Work;

static size_t place(Tensor *t, char *base, size_t at, DType dtype, int64_t rows, int64_t columns) {
    *t = tensor_of(base ? base + at : NULL, dtype, 2, rows, columns);
    return at + (tensor_bytes(*t) + 255) / 256 * 256;
}

static void add_workspace(const Ring *r, Part p, int B, size_t *bytes) {
    if (is_empty(p)) return;
    const AttentionSpec spec = spec_of(r, p, B, OVERWRITE);
    const size_t wanted = attention_pick(r->attention, &spec)->workspace_bytes(&spec);
    if (wanted > *bytes) *bytes = wanted;
}

/* Returns the bytes of a pass. */
static size_t place_work(const Ring *r, int is_backward, void *memory, Work *w) {
    const AttentionSpec *s = &r->spec;
    const int64_t C = (int64_t)s->NH * s->HS, own = s->Tq;
    Part halves[3];
    int most = 0;
    size_t at = 0;
    for (int rank = 0; rank < r->split.size; rank++) {
        const int tokens = ring_tokens(&r->split, rank);
        if (tokens > most) most = tokens;
        add_workspace(r, part_of(&r->split, r->split.rank, rank), rank == r->split.rank ? s->B : 1, &at);
    }
    own_parts(s->Tq, halves);
    for (int i = 0; i < 3; i++) add_workspace(r, halves[i], 1, &at);
    at = (at + 255) / 256 * 256;
    *w = (Work){ .attention = memory };
    at = place(&w->kv, memory, at, s->dtype, s->B * own, 2 * C);
    for (int i = 0; i < 2; i++) at = place(&w->in[i], memory, at, s->dtype, most, 2 * C);
    if (is_backward || s->dtype != F32) at = place(&w->sum, memory, at, F32, s->B * own, C);
    at = place(&w->part, memory, at, F32, own, C);
    if (!is_backward) return place(&w->part_lse, memory, at, F32, s->NH, own);
    at = place(&w->dkv_sum, memory, at, F32, s->B * own, 2 * C);
    at = place(&w->dkv, memory, at, F32, most, 2 * C);
    at = place(&w->sent, memory, at, s->dtype, most, 2 * C);
    return place(&w->returned, memory, at, s->dtype, own, 2 * C);
}

size_t ring_workspace_bytes(const Ring *r) {
    Work w;
    if (r->split.size == 1) return attention_pick(r->attention, &r->spec)->workspace_bytes(&r->spec);
    const size_t forward = place_work(r, 0, NULL, &w), backward = place_work(r, 1, NULL, &w);
    return forward > backward ? forward : backward;
}

/* ---- Steps */

/* Step `index` of the B (N - 1) of a pass: sequence b, with the block of number `from`; `to` has this rank's. */
typedef struct { int b, from, to; Part part, others; } Step;    /* others: what `to` computes with this rank's block */

static int step_count(const Ring *r) { return r->spec.B * (r->split.size - 1); }

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

/* The transfer in which the keys and values of a step come. */
static CommTransfer fetch(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return (CommTransfer){ tensor_row_range(w->kv, (int64_t)s.b * r->spec.Tk, keys_of(s.others)),
                           rank_of_run(r, s.to), tensor_row_range(w->in[index % 2], 0, keys_of(s.part)),
                           rank_of_run(r, s.from) };
}

/* The one in which the gradients of these return to their rank. */
static CommTransfer give_back(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    return (CommTransfer){ tensor_row_range(w->sent, 0, keys_of(s.part)), rank_of_run(r, s.from),
                           tensor_row_range(w->returned, 0, keys_of(s.others)), rank_of_run(r, s.to) };
}

/* (1,count,columns): rows of sequence b, of which there are `tokens`, from `first` on. */
static Tensor rows_of(Tensor t, int64_t tokens, int b, int64_t first, int64_t count) {
    Tensor rows = tensor_row_range(t, b * tokens + first, count);
    rows.ndim = 3;
    rows.dim[2] = rows.dim[1];
    rows.dim[1] = count;
    rows.dim[0] = 1;
    return rows;
}

static Tensor first_rows(Tensor t, int64_t count) { return rows_of(t, 0, 0, 0, count); }

/* The left or right half of the columns: K or V. */
static Tensor half(Tensor t, int which) {
    return tensor_column_range(t, which * tensor_columns(t) / 2, tensor_columns(t) / 2);
}

/* The log-sum-exps (1,NH,rows) of a part's rows in those of sequence b. */
static Tensor lse_of(const Ring *r, Tensor lse, int b, Part p) {
    return rows_of(tensor_column_range(lse, p.row, p.rows), r->spec.NH, b, 0, r->spec.NH);
}

static void pack(const Ring *r, const Work *w, Tensor k, Tensor v) {
    if (!r->spec.Tk) return;
    tensor_convert(half(w->kv, 0), k);
    tensor_convert(half(w->kv, 1), v);
}

/* ---- Passes */

void ring_forward(const Ring *r, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, void *work) {
    const int own = r->spec.Tq;
    Work w;
    if (r->split.size == 1) {
        attention_pick(r->attention, &r->spec)->forward(&r->spec, out, lse, NULL, q, k, v, work);
        return;
    }
    place_work(r, 0, work, &w);
    pack(r, &w, k, v);
    CommTransfer transfer = fetch(r, &w, 0);
    CommOp fetched = comm_exchange(&transfer, 1);
    const Tensor sum = out.dtype == F32 ? out : tensor_of(w.sum.data, F32, 3, r->spec.B, own, tensor_columns(out));
    if (own) {
        const AttentionSpec spec = spec_of(r, part_of(&r->split, r->split.rank, r->split.rank), r->spec.B, OVERWRITE);
        attention_pick(r->attention, &spec)->forward(&spec, sum, lse, NULL, q, k, v, w.attention);
    }
    for (int i = 0; i < step_count(r); i++) {
        const Step s = step_of(r, i);
        const Part p = s.part;
        comm_wait(fetched);
        if (i + 1 < step_count(r)) {
            transfer = fetch(r, &w, i + 1);
            fetched = comm_exchange(&transfer, 1);
        }
        if (is_empty(p)) continue;
        const AttentionSpec spec = spec_of(r, p, 1, OVERWRITE);
        const Tensor kv = first_rows(w.in[i % 2], p.keys), part = first_rows(w.part, p.rows);
        const Tensor part_lse = tensor_of(w.part_lse.data, F32, 3, 1, spec.NH, p.rows);
        attention_pick(r->attention, &spec)->forward(&spec, part, part_lse, NULL, rows_of(q, own, s.b, p.row, p.rows),
                                                     half(kv, 0), half(kv, 1), w.attention);
        attention_merge(rows_of(sum, own, s.b, p.row, p.rows), lse_of(r, lse, s.b, p), part, part_lse);
    }
    if (own && sum.data != out.data) tensor_convert(out, sum);
}

typedef struct { Tensor dout, out, lse, q; } Rows;      /* what a part reads of this rank's rows */

/* dq, dkv = or += the part's, with the keys and values of kv; all (1,tokens,columns). */
static void part_backward(const Ring *r, const Work *w, Rows x, int b, Part p, Tensor dq, Tensor dkv, Tensor kv,
                          Into into) {
    const int own = r->spec.Tq;
    if (is_empty(p)) return;
    const AttentionSpec spec = spec_of(r, p, 1, into);
    attention_pick(r->attention, &spec)->backward(&spec, dq, half(dkv, 0), half(dkv, 1),
        rows_of(x.dout, own, b, p.row, p.rows), rows_of(x.out, own, b, p.row, p.rows), lse_of(r, x.lse, b, p), NULL,
        rows_of(x.q, own, b, p.row, p.rows), half(kv, 0), half(kv, 1), w->attention);
}

static void own_part_backward(const Ring *r, const Work *w, Rows x, int b, Part p, Into into) {
    const int own = r->spec.Tq;
    part_backward(r, w, x, b, p, rows_of(w->sum, own, b, p.row, p.rows), rows_of(w->dkv_sum, own, b, p.key, p.keys),
                  rows_of(w->kv, own, b, p.key, p.keys), into);
}

/* The gradients of this rank's keys and values in step `index` of another have come. */
static void add_returned(const Ring *r, const Work *w, int index) {
    const Step s = step_of(r, index);
    const int64_t keys = keys_of(s.others);
    if (keys) tensor_add(rows_of(w->dkv_sum, r->spec.Tk, s.b, 0, keys), first_rows(w->returned, keys));
}

static void step_backward(const Ring *r, const Work *w, Rows x, int index) {
    const Step s = step_of(r, index);
    const Part p = s.part;
    if (is_empty(p)) return;
    const Tensor dq = first_rows(w->part, p.rows);
    part_backward(r, w, x, s.b, p, dq, first_rows(w->dkv, p.keys), first_rows(w->in[index % 2], p.keys), OVERWRITE);
    tensor_add(rows_of(w->sum, r->spec.Tq, s.b, p.row, p.rows), dq);
}

/* The own block comes first and last: its first half while the first keys come, the rest while the last gradients
   return. Beside step i the keys of step i + 1 come, and the gradients of step i - 1 return. */
void ring_backward(const Ring *r, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                   Tensor q, Tensor k, Tensor v, void *work) {
    const int own = r->spec.Tq, steps = step_count(r);
    const Rows x = { dout, out, lse, q };
    Part halves[3];
    Work w;
    if (r->split.size == 1) {
        attention_pick(r->attention, &r->spec)->backward(&r->spec, dq, dk, dv, dout, out, lse, NULL, q, k, v, work);
        return;
    }
    place_work(r, 1, work, &w);
    own_parts(own, halves);
    pack(r, &w, k, v);
    CommTransfer transfers[2] = { fetch(r, &w, 0) };
    CommOp moved = comm_exchange(transfers, 1);
    for (int b = 0; b < r->spec.B && own; b++) {
        const Tensor rest[] = { rows_of(w.sum, own, b, halves[2].row, halves[2].rows),
                                rows_of(w.dkv_sum, own, b, halves[2].key, halves[2].keys) };
        for (int i = 0; i < 2; i++) device_zero(rest[i].data, tensor_bytes(rest[i]));
        own_part_backward(r, &w, x, b, halves[0], OVERWRITE);
    }
    for (int i = 0; i <= steps; i++) {
        int count = 0;
        comm_wait(moved);
        if (i > 1) add_returned(r, &w, i - 2);
        if (i > 0) {
            const int64_t keys = keys_of(step_of(r, i - 1).part);
            if (keys) tensor_convert(first_rows(w.sent, keys), first_rows(w.dkv, keys));
            transfers[count++] = give_back(r, &w, i - 1);
        }
        if (i + 1 < steps) transfers[count++] = fetch(r, &w, i + 1);
        moved = comm_exchange(transfers, count);
        if (i < steps) step_backward(r, &w, x, i);
        else for (int b = 0; b < r->spec.B; b++)
            for (int h = 1; h < 3; h++) own_part_backward(r, &w, x, b, halves[h], ACCUMULATE);
    }
    comm_wait(moved);
    add_returned(r, &w, steps - 1);
    if (!own) return;
    tensor_convert(dq, w.sum);
    tensor_convert(dk, half(w.dkv_sum, 0));
    tensor_convert(dv, half(w.dkv_sum, 1));
}
