/* attention_decode.c - Attention of a few queries over many keys, as in generation: flash decoding (Dao et
   al. 2023, "Flash-Decoding for long-context inference"). Each part of SPLIT keys gives a partial result; they are
   merged in order by their log-sum-exp: many threads share one head, and the bits do not depend on their number. */
#include "attention_cpu.h"

enum { MAX_QUERIES = 8, SPLIT = 512 };

/* Of one query and SPLIT keys or fewer: out[c] = sum of P v, not yet divided by total. */
typedef struct { float row_max, total, out[HS_MAX]; } Partial;

static int64_t splits_of(const AttentionSpec *s) { return (s->Tk + SPLIT - 1) / SPLIT; }

static void attend(const AttentionSpec *s, Partial *part, const float *q, Head k, Head v, int64_t keys) {
    float P[SPLIT] __attribute__((aligned(64)));
    for (int64_t j = 0; j < keys; j++) P[j] = s->scale * vec_dot(q, k.data + j * k.pitch, s->HS);
    part->row_max = vec_max(P, keys);
    part->total = vec_exp_row(P, keys, part->row_max);
    memset(part->out, 0, sizeof part->out);
    for (int64_t j = 0; j < keys; j++)
        for (int64_t c = 0; c < s->HS; c++) part->out[c] += P[j] * v.data[j * v.pitch + c];
}

static void forward(const AttentionSpec *s, Tensor out, Tensor lse, void *kept, Tensor q, Tensor k, Tensor v,
                    void *work) {
    attention_check_forward(&attention_decode, s, out, lse, q, k, v);
    if (attention_merge_part(&attention_decode, s, out, lse, kept, q, k, v, work)) return;
    const int64_t Tq = s->Tq, HS = s->HS, splits = splits_of(s), rows = (int64_t)s->B * s->NH * Tq;    /* of lse */
    Partial *part = work;
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < rows * splits; n++) {
        const int64_t head = n / splits / Tq, i = n / splits % Tq, j0 = n % splits * SPLIT, keys = keys_seen(s, i) - j0;
        if (keys > 0)
            attend(s, &part[n], head_from(head_of(q, s, head), i).data, head_from(head_of(k, s, head), j0),
                   head_from(head_of(v, s, head), j0), min64(keys, SPLIT));
    }
    for (int64_t row = 0; row < rows; row++) {
        float *o = head_from(head_of(out, s, row / Tq), row % Tq).data, row_max = -INFINITY, total = 0;
        const int64_t used = (keys_seen(s, row % Tq) + SPLIT - 1) / SPLIT;
        const Partial *p = part + row * splits;
        for (int64_t n = 0; n < used; n++) row_max = p[n].row_max > row_max ? p[n].row_max : row_max;
        for (int64_t n = 0; n < used; n++) total += expf(p[n].row_max - row_max) * p[n].total;
        memset(o, 0, sizeof *o * (size_t)HS);
        for (int64_t n = 0; n < used; n++)
            for (int64_t c = 0; c < HS; c++) o[c] += expf(p[n].row_max - row_max) / total * p[n].out[c];
        ((float *)lse.data)[row / Tq * lse.pitch + row % Tq] = used ? row_max + logf(total) : -INFINITY;
    }
}

static const char *refuse(const AttentionSpec *s) {
    const char *refusal = attention_refuse_on_cpu(s);
    if (refusal)                        return refusal;
    if (s->Tq > MAX_QUERIES)            return "this kernel takes at most 8 queries of a sequence";
    if (s->dropout.rate > 0)            return "this kernel has no dropout";
    if (s->Tq == s->Tk && !s->position) return "this kernel takes fewer queries than keys";
    return NULL;
}

static size_t workspace_bytes(const AttentionSpec *s) {
    return sizeof(Partial) * (size_t)(s->B * splits_of(s)) * (size_t)s->NH * (size_t)s->Tq     /* > a float a row */
           + attention_part_bytes(s);
}

static void backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse,
                     const void *kept, Tensor q, Tensor k, Tensor v, void *work) {
    attention_flash.backward(s, dq, dk, dv, dout, out, lse, kept, q, k, v, work);
}

const Attention attention_decode = { "flash", refuse, attention_no_bytes, workspace_bytes, forward, backward };
