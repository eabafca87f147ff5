/* attention_naive.c - Attention as the formula says, all of P in memory: the baseline for flash. */
#include "attention_cpu.h"

static size_t probability_bytes(const AttentionSpec *s) {
    return sizeof(float) * (size_t)s->B * (size_t)s->NH * (size_t)s->Tq * (size_t)s->Tk;
}

/* The (Tq,Tk) matrix of a head. */
static Head square_of(const void *data, const AttentionSpec *s, int64_t head) {
    return (Head){ (float *)data + head * s->Tq * s->Tk, s->Tk };
}

/* to = P of a head without what is dropped, times dropout_scale; from may be to. Returns to. */
static Head drop(Head to, Head from, const AttentionSpec *s, int64_t head) {
    const DropoutMask mask = mask_of(s, head);
    const uint32_t threshold = dropout_threshold(s->dropout.rate);
    const float scale = dropout_scale(s->dropout.rate);
    for (int64_t i0 = 0; i0 < s->Tq; i0 += 8)
        for (int64_t j0 = 0; j0 < s->Tk; j0 += 8) {
            const Random64 kept = dropout_draw(mask, (uint32_t)i0 / 8, (uint32_t)j0 / 8, dropout_digits(threshold));
            for (int64_t i = i0; i < min64(i0 + 8, s->Tq); i++)
                for (int64_t j = j0; j < min64(j0 + 8, s->Tk); j++)
                    head_from(to, i).data[j] = dropout_bit(kept, i % 8, j % 8) ? scale * head_from(from, i).data[j] : 0;
        }
    return to;
}

/* P = softmax(scale q k^T), out = P v; with dropout out = (M o P) v, M its mask with dropout_scale where it keeps. */
static void forward(const AttentionSpec *s, const AttentionOperands *o) {
    const int64_t Tq = s->Tq, Tk = s->Tk, HS = s->HS;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < (int64_t)s->B * s->NH; head++) {
        const Head P = square_of(o->kept, s, head);
        matmul(P, Tq, Tk, HS, by_rows(head_of(o->q, s, head)), transposed(head_of(o->k, s, head)), OVERWRITE);
        for (int64_t i = 0; i < Tq; i++) {
            float *row = head_from(P, i).data;
            const int64_t seen = keys_seen(s, i);
            for (int64_t j = 0; j < seen; j++) row[j] *= s->scale;
            const float row_max = vec_max(row, seen), sum = vec_exp_row(row, seen, row_max);
            for (int64_t j = 0; j < seen; j++) row[j] /= sum;
            for (int64_t j = seen; j < Tk; j++) row[j] = 0.0f;
            ((float *)o->lse.data)[head * o->lse.pitch + i] = seen ? row_max + logf(sum) : -INFINITY;
        }
        const Head weights = s->dropout.rate > 0 ? drop(square_of(o->work, s, head), P, s, head) : P;
        matmul(head_of(o->out, s, head), Tq, HS, Tk, by_rows(weights), by_rows(head_of(o->v, s, head)), OVERWRITE);
    }
}

/* dv = P^T dout, dP = dout v^T, dS = scale P (dP - rowsum(P dP)), dq = dS k, dk = dS^T q; with dropout
   dv = (M o P)^T dout, dP = M o (dout v^T) */
static void backward(const AttentionSpec *s, const AttentionOperands *o) {
    const int64_t Tq = s->Tq, Tk = s->Tk, HS = s->HS;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < (int64_t)s->B * s->NH; head++) {
        const Head P = square_of(o->kept, s, head), dS = square_of(o->work, s, head), g = head_of(o->dout, s, head);
        const int drops = s->dropout.rate > 0;
        const Head weights = drops ? drop(dS, P, s, head) : P;
        matmul(head_of(o->dv, s, head), Tk, HS, Tq, transposed(weights), by_rows(g), s->dkv_into);
        matmul(dS, Tq, Tk, HS, by_rows(g), transposed(head_of(o->v, s, head)), OVERWRITE);
        if (drops) drop(dS, dS, s, head);
        for (int64_t i = 0; i < Tq; i++) {
            const float *p = head_from(P, i).data;
            float *ds = head_from(dS, i).data;
            const int64_t seen = keys_seen(s, i);
            const float mean = vec_dot(p, ds, seen);
            for (int64_t j = 0; j < seen; j++)  ds[j] = s->scale * p[j] * (ds[j] - mean);
            for (int64_t j = seen; j < Tk; j++) ds[j] = 0.0f;
        }
        matmul(head_of(o->dq, s, head), Tq, HS, Tk, by_rows(dS),    by_rows(head_of(o->k, s, head)), s->dq_into);
        matmul(head_of(o->dk, s, head), Tk, HS, Tq, transposed(dS), by_rows(head_of(o->q, s, head)), s->dkv_into);
    }
}

const Attention attention_naive = {
    "naive", attention_refuse_on_cpu, probability_bytes, probability_bytes, forward, backward, NULL
};
