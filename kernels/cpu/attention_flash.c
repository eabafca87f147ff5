/* attention_flash.c - Attention in tiles with online softmax (Dao et al. 2022, arXiv 2205.14135): memory
   O(T), the backward pass recomputes P from lse. A tile of scores is stored transposed, a row per key: maximum and sum
   over the keys then run in all lanes at once. The loops go over all QUERIES, a constant, also where fewer rows are
   left: the branches of a short loop would take half of its time, and idle lanes hold finite numbers. */
#include "attention_cpu.h"

enum { QUERIES = 32, KEYS = 96 };      /* two tiles of 12 KiB; more queries would waste more above the diagonal */

/* The first of count query rows from i0 on that sees key j. */
static inline int64_t first_to_see(const AttentionSpec *s, int64_t j, int64_t i0, int64_t count) {
    const int64_t i = j - diagonal_of(s) - i0;
    return i < 0 ? 0 : min64(i, count);
}

/* Multiplies a tile of scores by the mask of P, which begins at query i0 and key j0, both multiples of 8: by
   dropout_scale or by 0. */
static void drop(const AttentionSpec *s, DropoutMask mask, float *tile, int64_t i0, int64_t j0, int64_t keys) {
    const uint32_t threshold = dropout_threshold(s->dropout.rate);
    const float scale = dropout_scale(s->dropout.rate);
    Random64 kept[QUERIES / 8][KEYS / 8];
    for (uint32_t i = 0; i < QUERIES / 8; i++)
        for (uint32_t j = 0; j < (keys + 7) / 8; j++)
            kept[i][j] = dropout_draw(mask, (uint32_t)i0 / 8 + i, (uint32_t)j0 / 8 + j, dropout_digits(threshold));
    for (int64_t j = 0; j < keys; j += 8) {
        uint32_t bits[QUERIES];                 /* one bit per key, 8 keys */
        for (int i = 0; i < QUERIES; i++) bits[i] = kept[i / 8][j / 8].word[i / 4 % 2] >> 8 * (i % 4);
        for (int key = 0; key < 8; key++)
            for (int i = 0; i < QUERIES; i++) tile[(j + key) * QUERIES + i] *= bits[i] >> key & 1 ? scale : 0.0f;
    }
}

/* out and lse of the query rows i0 .. i0 + rows - 1 of one head. */
static void forward_tile(const AttentionSpec *s, DropoutMask mask, Head out, float *lse, Head q, Head k, Head v,
                         int64_t i0, int64_t rows) {
    float S[KEYS * QUERIES] __attribute__((aligned(64))), sums[QUERIES * HS_MAX] __attribute__((aligned(64)));
    float row_max[QUERIES], total[QUERIES], rescale[QUERIES];
    const Head scores = { S, QUERIES }, weighted = { sums, HS_MAX };
    const int64_t HS = s->HS, seen = keys_seen(s, i0 + rows - 1);
    if (rows < QUERIES) memset(S, 0, sizeof S);
    for (int i = 0; i < QUERIES; i++) { row_max[i] = -INFINITY; total[i] = 0.0f; }
    for (int64_t j0 = 0; j0 < seen; j0 += KEYS) {
        const int64_t keys = min64(KEYS, seen - j0);
        float before[QUERIES], shift[QUERIES], partial[QUERIES] = {0};
        memcpy(before, row_max, sizeof before);
        matmul(scores, keys, rows, HS, by_rows(head_from(k, j0)), transposed(head_from(q, i0)), OVERWRITE);
        for (int64_t j = 0; j < keys; j++) {
            float *row = S + j * QUERIES;
            const int64_t first = first_to_see(s, j0 + j, i0, rows);
            for (int i = 0; i < QUERIES; i++) row[i] *= s->scale;
            for (int64_t i = 0; i < first; i++) row[i] = -INFINITY;
            for (int i = 0; i < QUERIES; i++) row_max[i] = row[i] > row_max[i] ? row[i] : row_max[i];
        }
        for (int i = 0; i < QUERIES; i++) shift[i] = row_max[i] == -INFINITY ? 0.0f : row_max[i];   /* no key yet */
        for (int64_t j = 0; j < keys; j++) {
            float *row = S + j * QUERIES;
            for (int i = 0; i < QUERIES; i++) partial[i] += row[i] = vec_exp(row[i] - shift[i]);
        }
        for (int i = 0; i < QUERIES; i++) {
            rescale[i] = vec_exp(before[i] - shift[i]);
            total[i] = total[i] * rescale[i] + partial[i];
        }
        if (s->dropout.rate > 0) drop(s, mask, S, i0, j0, keys);
        if (j0 > 0)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < HS; c++) sums[i * HS_MAX + c] *= rescale[i];
        matmul(weighted, rows, HS, keys, transposed(scores), by_rows(head_from(v, j0)), j0 ? ACCUMULATE : OVERWRITE);
    }
    for (int64_t i = 0; i < rows; i++) {
        float *row = head_from(out, i0 + i).data;
        const int64_t sees_key = keys_seen(s, i0 + i) > 0;
        const float normalise = 1.0f / total[i];
        for (int64_t c = 0; c < HS; c++) row[c] = sees_key ? sums[i * HS_MAX + c] * normalise : 0.0f;
        lse[i0 + i] = row_max[i] + logf(total[i]);      /* -infinity where the row sees no key */
    }
}

static void forward(const AttentionSpec *s, const AttentionOperands *o) {
    const int64_t Tq = s->Tq, tiles = (Tq + QUERIES - 1) / QUERIES;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t tile = 0; tile < (int64_t)s->B * s->NH * tiles; tile++) {
        const int64_t head = tile / tiles, i0 = (tiles - 1 - tile % tiles) * QUERIES;     /* the longest first */
        forward_tile(s, mask_of(s, head), head_of(o->out, s, head), (float *)o->lse.data + head * o->lse.pitch,
                     head_of(o->q, s, head), head_of(o->k, s, head), head_of(o->v, s, head), i0,
                     min64(QUERIES, Tq - i0));
    }
}

typedef struct { Head dq, dk, dv, dout, q, k, v; } BackwardHeads;

/* dq, dk, dv += the terms of the query rows i0 .. i0 + rows - 1 with the keys j0 .. j0 + keys - 1. */
static void backward_tile(const AttentionSpec *s, DropoutMask mask, const BackwardHeads *h, const float *lse,
                          const float *delta, int64_t i0, int64_t rows, int64_t j0, int64_t keys) {
    float P[KEYS * QUERIES] __attribute__((aligned(64))), dS[KEYS * QUERIES] __attribute__((aligned(64)));
    const Head p = { P, QUERIES }, ds = { dS, QUERIES };
    const Head q = head_from(h->q, i0), dout = head_from(h->dout, i0), k = head_from(h->k, j0), v = head_from(h->v, j0);
    const int64_t HS = s->HS;
    float lse_tile[QUERIES] = {0}, delta_tile[QUERIES] = {0};
    memcpy(lse_tile, lse + i0, sizeof(float) * (size_t)rows);
    memcpy(delta_tile, delta + i0, sizeof(float) * (size_t)rows);
    if (rows < QUERIES) { memset(P, 0, sizeof P); memset(dS, 0, sizeof dS); }
    matmul(p,  keys, rows, HS, by_rows(k), transposed(q),    OVERWRITE);
    matmul(ds, keys, rows, HS, by_rows(v), transposed(dout), OVERWRITE);
    if (s->dropout.rate > 0) drop(s, mask, dS, i0, j0, keys);
    for (int64_t j = 0; j < keys; j++) {
        const int64_t first = first_to_see(s, j0 + j, i0, rows);
        float *p_row = P + j * QUERIES, *ds_row = dS + j * QUERIES;
        for (int i = 0; i < QUERIES; i++) {
            p_row[i] = vec_exp(s->scale * p_row[i] - lse_tile[i]);
            ds_row[i] = s->scale * p_row[i] * (ds_row[i] - delta_tile[i]);
        }
        for (int64_t i = 0; i < first; i++) p_row[i] = ds_row[i] = 0.0f;
    }
    if (s->dropout.rate > 0) drop(s, mask, P, i0, j0, keys);
    matmul(head_from(h->dv, j0), keys, HS, rows, by_rows(p),  by_rows(dout), ACCUMULATE);
    matmul(head_from(h->dk, j0), keys, HS, rows, by_rows(ds), by_rows(q),    ACCUMULATE);
    matmul(head_from(h->dq, i0), rows, HS, keys, transposed(ds), by_rows(k), ACCUMULATE);
}

static void clear(Head h, int64_t rows, int64_t HS) {
    for (int64_t i = 0; i < rows; i++) memset(head_from(h, i).data, 0, sizeof(float) * (size_t)HS);
}

static void backward(const AttentionSpec *s, const AttentionOperands *o) {
    const int64_t Tq = s->Tq, Tk = s->Tk, HS = s->HS;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < (int64_t)s->B * s->NH; head++) {
        const float *lse_row = (const float *)o->lse.data + head * o->lse.pitch;
        float *delta = (float *)o->work + head * Tq;    /* rowsum(P dP) = rowsum(dout out) */
        const BackwardHeads h = { head_of(o->dq, s, head), head_of(o->dk, s, head), head_of(o->dv, s, head),
                                  head_of(o->dout, s, head),
                                  head_of(o->q, s, head), head_of(o->k, s, head), head_of(o->v, s, head) };
        const Head out = head_of(o->out, s, head);
        for (int64_t i = 0; i < Tq; i++)
            delta[i] = vec_dot(head_from(h.dout, i).data, head_from(out, i).data, HS);
        if (s->dq_into  == OVERWRITE) clear(h.dq, Tq, HS);
        if (s->dkv_into == OVERWRITE) { clear(h.dk, Tk, HS); clear(h.dv, Tk, HS); }
        for (int64_t j0 = 0; j0 < keys_seen(s, Tq - 1); j0 += KEYS)
            for (int64_t i0 = first_to_see(s, j0, 0, Tq) / QUERIES * QUERIES; i0 < Tq; i0 += QUERIES) {
                const int64_t rows = min64(QUERIES, Tq - i0), keys = min64(KEYS, keys_seen(s, i0 + rows - 1) - j0);
                backward_tile(s, mask_of(s, head), &h, lse_row, delta, i0, rows, j0, keys);
            }
    }
}

const Attention attention_flash = {
    "flash", attention_refuse_on_cpu, attention_no_bytes, attention_row_bytes, forward, backward, NULL
};
