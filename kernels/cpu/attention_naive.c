/* kernels/cpu/attention_naive.c - Attention as the formula says, all of P in memory: what flash is held against. */
#include "attention_cpu.h"
#include "tile.h"
#include "vecmath.h"

static size_t probability_bytes(const AttentionSpec *s) {
    return sizeof(float) * (size_t)s->B * (size_t)s->NH * (size_t)s->Tq * (size_t)s->Tk;
}

/* c (M,N) = a b */
static void product(float *c, int64_t c_pitch, int64_t M, int64_t N, int64_t K, Operand a, Operand b) {
    tile_gemm((Gemm){ .M = M, .N = N, .K = K, .a = a, .b = b, .c = c, .c_pitch = c_pitch, .into = OVERWRITE });
}

/* P = softmax(scale q k^T), out = P v */
static void forward(const AttentionSpec *s, Tensor out, void *state, Tensor q, Tensor k, Tensor v, void *work) {
    (void)work;
    attention_check(&attention_naive, s, out, q, k, v);
    const int64_t Tq = s->Tq, Tk = s->Tk, HS = s->HS;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < (int64_t)s->B * s->NH; head++) {
        float *P = (float *)state + head * Tq * Tk;
        const Operand P_rows = { P, Tk, ROW_MAJOR };
        const Head hq = head_of(q, s, head), hk = head_of(k, s, head), hv = head_of(v, s, head);
        const Head ho = head_of(out, s, head);
        product(P, Tk, Tq, Tk, HS, by_rows(hq), transposed(hk));
        for (int64_t i = 0; i < Tq; i++) {
            float *row = P + i * Tk;
            const int64_t seen = s->q0 + i + 1;
            for (int64_t j = 0; j < seen; j++) row[j] *= s->scale;
            const float sum = vec_exp_row(row, seen, vec_max(row, seen));
            for (int64_t j = 0; j < seen; j++) row[j] /= sum;
            for (int64_t j = seen; j < Tk; j++) row[j] = 0.0f;
        }
        product(ho.data, ho.pitch, Tq, HS, Tk, P_rows, by_rows(hv));
    }
}

/* dv = P^T dout, dP = dout v^T, dS = scale P (dP - rowsum(P dP)), dq = dS k, dk = dS^T q */
static void backward(const AttentionSpec *s, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                     Tensor out, const void *state, Tensor q, Tensor k, Tensor v, void *work) {
    attention_check(&attention_naive, s, out, q, k, v);
    attention_check(&attention_naive, s, dout, dq, dk, dv);
    const int64_t Tq = s->Tq, Tk = s->Tk, HS = s->HS;
    #pragma omp parallel for schedule(dynamic)
    for (int64_t head = 0; head < (int64_t)s->B * s->NH; head++) {
        const float *P = (const float *)state + head * Tq * Tk;
        float *dS = (float *)work + head * Tq * Tk;
        const Operand P_columns = { P, Tk, COLUMN_MAJOR };
        const Operand dS_rows = { dS, Tk, ROW_MAJOR }, dS_columns = { dS, Tk, COLUMN_MAJOR };
        const Head hq = head_of(q, s, head), hk = head_of(k, s, head), hv = head_of(v, s, head);
        const Head hdo = head_of(dout, s, head);
        const Head hdq = head_of(dq, s, head), hdk = head_of(dk, s, head), hdv = head_of(dv, s, head);
        product(hdv.data, hdv.pitch, Tk, HS, Tq, P_columns, by_rows(hdo));
        product(dS, Tk, Tq, Tk, HS, by_rows(hdo), transposed(hv));
        for (int64_t i = 0; i < Tq; i++) {
            const float *p = P + i * Tk;
            float *ds = dS + i * Tk;
            const float mean = vec_dot(p, ds, s->q0 + i + 1);
            for (int64_t j = 0; j <= s->q0 + i; j++)     ds[j] = s->scale * p[j] * (ds[j] - mean);
            for (int64_t j = s->q0 + i + 1; j < Tk; j++) ds[j] = 0.0f;
        }
        product(hdq.data, hdq.pitch, Tq, HS, Tk, dS_rows, by_rows(hk));
        product(hdk.data, hdk.pitch, Tk, HS, Tq, dS_columns, by_rows(hq));
    }
}

const Attention attention_naive = {
    .name = "naive", .refuse = attention_refuse_on_cpu,
    .state_bytes = probability_bytes, .workspace_bytes = probability_bytes,
    .forward = forward, .backward = backward
};
