/* kernels/cpu/attention_flash.c - Attention in tiles of the cache with online softmax (Dao et al. 2022, arXiv
   2205.14135): memory O(T), only the log-sum-exp of each query row is kept. A tile of scores is stored transposed, a
   row per key: maximum and sum over the keys then run in all lanes at once. The loops go over all QUERIES, a constant,
   also where fewer rows are left: half the time for a short loop is its choices, and idle lanes hold finite numbers. */
#include "attention_cpu.h"
#include "tile.h"
#include "vecmath.h"

enum { QUERIES = 32, KEYS = 96 };      /* two tiles of 12 KiB; more queries would waste more above the diagonal */

static size_t row_bytes(const AttentionSpec *s) {      /* one float per query row: log-sum-exp, delta */
    return sizeof(float) * (size_t)s->B * (size_t)s->NH * (size_t)s->Tq;
}

/* c (M,N) = or += a b */
static void product(Head c, int64_t M, int64_t N, int64_t K, Operand a, Operand b, Into into) {
    tile_gemm((Gemm){ .M = M, .N = N, .K = K, .a = a, .b = b, .c = c.data, .c_pitch = c.pitch, .into = into });
}

/* The first of count query rows from i0 on that sees key j. */
static inline int64_t first_to_see(const AttentionSpec *s, int64_t j, int64_t i0, int64_t count) {
    const int64_t i = j - s->q0 - i0;
    return i < 0 ? 0 : min64(i, count);
}

/* out and lse of the query rows i0 .. i0 + rows - 1 of one head. */
static void forward_tile(const AttentionSpec *s, Head out, float *lse, Head q, Head k, Head v,
                         int64_t i0, int64_t rows) {
    float S[KEYS * QUERIES] __attribute__((aligned(64))), sums[QUERIES * HS_MAX] __attribute__((aligned(64)));
    float greatest[QUERIES], total[QUERIES], shrink[QUERIES];
    const Head scores = { S, QUERIES }, weighted = { sums, HS_MAX };
    const int64_t HS = s->HS, seen = s->q0 + i0 + rows;
    if (rows < QUERIES) memset(S, 0, sizeof S);
    for (int i = 0; i < QUERIES; i++) { greatest[i] = -INFINITY; total[i] = 0.0f; }
    for (int64_t j0 = 0; j0 < seen; j0 += KEYS) {
        const int64_t keys = min64(KEYS, seen - j0);
        float before[QUERIES], partial[QUERIES] = {0};
        memcpy(before, greatest, sizeof before);
        product(scores, keys, rows, HS, by_rows(head_from(k, j0)), transposed(head_from(q, i0)), OVERWRITE);
        for (int64_t j = 0; j < keys; j++) {
            float *row = S + j * QUERIES;
            const int64_t first = first_to_see(s, j0 + j, i0, rows);
            for (int i = 0; i < QUERIES; i++) row[i] *= s->scale;
            for (int64_t i = 0; i < first; i++) row[i] = -INFINITY;
            for (int i = 0; i < QUERIES; i++) greatest[i] = row[i] > greatest[i] ? row[i] : greatest[i];
        }
        for (int64_t j = 0; j < keys; j++) {
            float *row = S + j * QUERIES;
            for (int i = 0; i < QUERIES; i++) partial[i] += row[i] = vec_exp(row[i] - greatest[i]);
        }
        for (int i = 0; i < QUERIES; i++) {
            shrink[i] = vec_exp(before[i] - greatest[i]);
            total[i] = total[i] * shrink[i] + partial[i];
        }
        if (j0 > 0)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < HS; c++) sums[i * HS_MAX + c] *= shrink[i];
        product(weighted, rows, HS, keys, transposed(scores), by_rows(head_from(v, j0)), j0 ? ACCUMULATE : OVERWRITE);
    }
    for (int64_t i = 0; i < rows; i++) {
        float *row = head_from(out, i0 + i).data;
        const float normalise = 1.0f / total[i];
        for (int64_t c = 0; c < HS; c++) row[c] = sums[i * HS_MAX + c] * normalise;
        lse[i0 + i] = greatest[i] + logf(total[i]);
    }
}

static void forward(const AttentionSpec *s, Tensor out, void *state, Tensor q, Tensor k, Tensor v, void *work) {
    (void)work;
    attention_check(&attention_flash, s, out, q, k, v);
    const int64_t Tq = s->Tq, tiles = (Tq + QUERIES - 1) / QUERIES;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t task = 0; task < (int64_t)s->B * s->NH * tiles; task++) {
        const int64_t head = task / tiles, i0 = (tiles - 1 - task % tiles) * QUERIES;     /* the longest first */
        forward_tile(s, head_of(out, s, head), (float *)state + head * Tq, head_of(q, s, head), head_of(k, s, head),
                     head_of(v, s, head), i0, min64(QUERIES, Tq - i0));
    }
}

typedef struct { Head dq, dk, dv, dout, q, k, v; } BackwardHeads;

/* What the query rows i0 .. i0 + rows - 1 and the keys j0 .. j0 + keys - 1 give to each other. dk and dv are
   added to, and dq too but for the first keys, which every query sees. */
static void backward_tile(const AttentionSpec *s, const BackwardHeads *h, const float *lse, const float *delta,
                          int64_t i0, int64_t rows, int64_t j0, int64_t keys) {
    float P[KEYS * QUERIES] __attribute__((aligned(64))), dS[KEYS * QUERIES] __attribute__((aligned(64)));
    const Head p = { P, QUERIES }, ds = { dS, QUERIES };
    const Head q = head_from(h->q, i0), dout = head_from(h->dout, i0), k = head_from(h->k, j0), v = head_from(h->v, j0);
    const int64_t HS = s->HS;
    float lse_tile[QUERIES] = {0}, delta_tile[QUERIES] = {0};
    memcpy(lse_tile, lse + i0, sizeof(float) * (size_t)rows);
    memcpy(delta_tile, delta + i0, sizeof(float) * (size_t)rows);
    if (rows < QUERIES) { memset(P, 0, sizeof P); memset(dS, 0, sizeof dS); }
    product(p,  keys, rows, HS, by_rows(k), transposed(q),    OVERWRITE);
    product(ds, keys, rows, HS, by_rows(v), transposed(dout), OVERWRITE);
    for (int64_t j = 0; j < keys; j++) {
        const int64_t first = first_to_see(s, j0 + j, i0, rows);
        float *p_row = P + j * QUERIES, *ds_row = dS + j * QUERIES;
        for (int i = 0; i < QUERIES; i++) {
            p_row[i] = vec_exp(s->scale * p_row[i] - lse_tile[i]);
            ds_row[i] = s->scale * p_row[i] * (ds_row[i] - delta_tile[i]);
        }
        for (int64_t i = 0; i < first; i++) p_row[i] = ds_row[i] = 0.0f;
    }
    product(head_from(h->dv, j0), keys, HS, rows, by_rows(p),  by_rows(dout), ACCUMULATE);
    product(head_from(h->dk, j0), keys, HS, rows, by_rows(ds), by_rows(q),    ACCUMULATE);
    product(head_from(h->dq, i0), rows, HS, keys, transposed(ds), by_rows(k), j0 ? ACCUMULATE : OVERWRITE);
}

static void backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                     Tensor out, const void *state, Tensor q, Tensor k, Tensor v, void *work) {
    attention_check(&attention_flash, s, out, q, k, v);
    attention_check(&attention_flash, s, dout, dq, dk, dv);
    const int64_t Tq = s->Tq, Tk = s->Tk, HS = s->HS;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < (int64_t)s->B * s->NH; head++) {
        const float *lse = (const float *)state + head * Tq;
        float *delta = (float *)work + head * Tq;       /* rowsum(P dP) = rowsum(dout out) */
        const BackwardHeads h = {
            head_of(dq, s, head), head_of(dk, s, head), head_of(dv, s, head), head_of(dout, s, head),
            head_of(q, s, head), head_of(k, s, head), head_of(v, s, head)
        };
        const Head o = head_of(out, s, head);
        for (int64_t i = 0; i < Tq; i++) delta[i] = vec_dot(h.dout.data + i * h.dout.pitch, o.data + i * o.pitch, HS);
        for (int64_t j0 = 0; j0 < Tk; j0 += KEYS) {
            const int64_t first = first_to_see(s, j0, 0, Tq) / QUERIES * QUERIES;
            for (int64_t j = j0; j < min64(j0 + KEYS, Tk); j++) {
                memset(head_from(h.dk, j).data, 0, sizeof(float) * (size_t)HS);
                memset(head_from(h.dv, j).data, 0, sizeof(float) * (size_t)HS);
            }
            for (int64_t i0 = first; i0 < Tq; i0 += QUERIES) {
                const int64_t rows = min64(QUERIES, Tq - i0), keys = min64(KEYS, s->q0 + i0 + rows - j0);
                backward_tile(s, &h, lse, delta, i0, rows, j0, keys);
            }
        }
    }
}

const Attention attention_flash = {
    .name = "flash", .refuse = attention_refuse_on_cpu,
    .state_bytes = row_bytes, .workspace_bytes = row_bytes,
    .forward = forward, .backward = backward
};
