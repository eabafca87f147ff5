/* test_ring.c - Ring attention of the linked backend over 2, 3 and 4 ranks, on GPUs over as many as there are:
   lengths that no number of ranks divides, ranks without tokens. The rows of all ranks are compared with the
   float64 oracle, and their errors with those of attention over the whole sequence on one rank. */
#include "../../kernels/ring.h"
#include "../oracle.h"
#include "ranks.h"

enum { OUT, DQ, DK, DV, LSE, RESULTS };
static const char *const result_name[] = { "out", "dq", "dk", "dv", "lse" };
enum { GUARD = 256, TOKENS_MAX = 4096 };

static int on_cpu, ranks_max;
static DType dtype;                 /* data type of the run */

/* ---- Tensors. Their memory starts as NaN: the gaps of a pitch must stay NaN. */

static Tensor make(DType type, int64_t B, int64_t T, int64_t C) {
    const Tensor t = tensor_of(new_device_memory((size_t)(B * T * C) * dtype_bytes(type) + 4), type, 3, B, T, C);
    const size_t bytes = tensor_bytes(t);
    char *nan = new_array((int64_t)bytes, 1);
    memset(nan, 0xff, bytes);
    if (bytes) device_upload(t.data, nan, bytes);
    return t;
}

static void put(Tensor t, const double *x) {
    const Tensor values = make(F32, 1, tensor_rows(t), tensor_columns(t));
    float *host = new_array(tensor_count(values), sizeof *host);
    for (int64_t i = 0; i < tensor_count(t); i++) host[i] = (float)x[i];
    device_upload(values.data, host, tensor_bytes(values));
    tensor_convert(tensor_flat(t), tensor_flat(values));
}

static double *get(Tensor t) {
    const Tensor values = make(F32, 1, tensor_rows(t), tensor_columns(t));
    double *x = new_array(tensor_count(t), sizeof *x);
    float *host = new_array(tensor_count(values), sizeof *host);
    tensor_convert(tensor_flat(values), tensor_flat(t));
    device_download(host, values.data, tensor_bytes(values));
    for (int64_t i = 0; i < tensor_count(t); i++) x[i] = (double)host[i];
    return x;
}

static double *random_values(int64_t count, double amplitude) {
    double *x = new_array(count, sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        x[i] = amplitude * uniform();
        x[i] = dtype == BF16 ? round_bf16(x[i]) : (double)(float)x[i];
    }
    return x;
}

/* ---- One case. Arrays are of whole sequences: (B,T,C), lse (B,NH,T) as (B,NH,T). */

typedef struct { int B, NH, HS, T; double amplitude; } Case;
typedef struct { double *q, *k, *v, *dout; } Inputs;
typedef struct { double *x[RESULTS]; } Results;

static AttentionSpec spec_of(Case c, DType type) {
    return (AttentionSpec){ .B = c.B, .NH = c.NH, .HS = c.HS, .Tq = c.T, .Tk = c.T, .causal = 1, .deterministic = 1,
                            .scale = 1 / sqrtf((float)c.HS), .dtype = type, .out_dtype = type };
}

static Results by_oracle(Case c, Inputs in) {
    const AttentionSpec s = spec_of(c, dtype);
    const int64_t count = (int64_t)c.B * c.T * c.NH;
    Results r;
    for (int i = 0; i < RESULTS; i++) r.x[i] = new_array(count * (i == LSE ? 1 : c.HS), sizeof(double));
    oracle_attention_forward(&s, r.x[OUT], r.x[LSE], in.q, in.k, in.v);
    oracle_attention_backward(&s, r.x[DQ], r.x[DK], r.x[DV], in.dout, r.x[LSE], in.q, in.k, in.v);
    return r;
}

/* This rank's tokens, in its order. */
static const int32_t *local_tokens(const RingSplit *s) {
    static int32_t whole[TOKENS_MAX], local[TOKENS_MAX];
    for (int t = 0; t < s->T; t++) whole[t] = t;
    ring_copy_local(s, local, whole);
    return local;
}

/* This rank's rows of (B,T,C), in its order, or columns of (B*NH,T) where C is 0. */
static double *local_part(const RingSplit *s, const double *whole, int64_t B, int64_t C) {
    const int local = ring_tokens(s, s->rank), width = C ? (int)C : 1;
    const int32_t *token = local_tokens(s);
    double *part = new_array(B * local * width, sizeof *part), *to = part;
    for (int64_t b = 0; b < B; b++)
        for (int i = 0; i < local; i++, to += width)
            memcpy(to, whole + (b * s->T + token[i]) * width, sizeof *to * (size_t)width);
    return part;
}

/* Joins the rows of all ranks in the order of the sequence; all groups have the same rows. */
static double *join_parts(const RingSplit *s, const double *part, int64_t B, int64_t C) {
    const int local = ring_tokens(s, s->rank), groups = comm_size / s->size;
    const int32_t *token = local_tokens(s);
    const size_t width = C ? (size_t)C : 1, count = (size_t)B * (size_t)s->T * width;
    double *whole = new_array((int64_t)count, sizeof *whole);
    for (int64_t b = 0; b < B; b++)
        for (int i = 0; i < local; i++, part += width)
            for (size_t c = 0; c < width; c++) whole[(size_t)(b * s->T + token[i]) * width + c] = part[c] / groups;
    const Tensor t = tensor_of(new_device_memory(count * sizeof *whole), F64, 1, (int64_t)count);
    device_upload(t.data, whole, tensor_bytes(t));
    comm_wait(comm_all_reduce(t));
    device_download(whole, t.data, tensor_bytes(t));
    return whole;
}

/* q, k and v are columns of one qkv, dq, dk and dv of one dqkv. Workspace and results start as NaN. */
static Results by_ring(const Ring *r, Case c, Inputs in) {
    const int64_t C = c.NH * c.HS, local = ring_tokens(&r->split, r->split.rank);
    const double *whole[] = { in.q, in.k, in.v };
    Tensor qkv = make(dtype, c.B, local, 3 * C), dqkv = make(dtype, c.B, local, 3 * C), part[3], grad[3];
    Tensor out = make(dtype, c.B, local, C), dout = make(dtype, c.B, local, C), lse = make(F32, c.B, c.NH, local);
    const int64_t bytes = (int64_t)ring_workspace_bytes(r);
    Tensor work = make(F32, 1, 1, (bytes + GUARD) / 4);
    for (int i = 0; i < 3; i++) {
        part[i] = tensor_column_range(qkv, i * C, C);
        grad[i] = tensor_column_range(dqkv, i * C, C);
        put(part[i], local_part(&r->split, whole[i], c.B, C));
    }
    put(dout, local_part(&r->split, in.dout, c.B, C));
    const AttentionOperands o = { part[0], part[1], part[2], out, lse, dout, grad[0], grad[1], grad[2], NULL,
                                  work.data };
    ring_forward(r, &o);
    ring_backward(r, &o);
    Results got = { { get(out), get(grad[0]), get(grad[1]), get(grad[2]), get(lse) } };
    unsigned char guard[GUARD] = {0};
    device_download(guard, (char *)work.data + bytes, GUARD / 2);
    for (int i = 0; i < GUARD / 2; i++) EXPECT(guard[i] == 0xff, "byte %d behind the workspace is %d", i, guard[i]);
    return got;
}

/* An upper bound of the sum of |terms| of a score: the score's error is about that many roundings, and so is the
   relative error of its exponential. */
static double condition_of(Case c, Inputs in) {
    double largest[2] = {0};
    for (int64_t row = 0; row < (int64_t)c.B * c.T * c.NH; row++)
        for (int i = 0; i < 2; i++) {
            const double *x = (i ? in.k : in.q) + row * c.HS;
            double square = 0;
            for (int d = 0; d < c.HS; d++) square += x[d] * x[d];
            if (square > largest[i]) largest[i] = square;
        }
    return sqrt(largest[0] * largest[1] / c.HS);
}

typedef struct { double worst, mean_square, largest, want_square; } Error;

static Error error_of(const double *got, const double *want, int64_t count) {
    Error e = {0};
    for (int64_t i = 0; i < count; i++) {
        const double d = fabs(got[i] - want[i]);
        if (!(d <= e.worst)) e.worst = d;
        e.mean_square += d * d / (double)count;
        e.want_square += want[i] * want[i] / (double)count;
        if (fabs(want[i]) > e.largest) e.largest = fabs(want[i]);
    }
    return e;
}

/* The errors of the ring are those of one rank in this precision: at most three times its largest and twice its root
   mean square, plus a rounding of the largest value for each rank, since merging and adding round once a step, and what
   other sums of the scores change. */
static void compare(const char *what, const double *got, const double *want, int64_t count, Error alone, DType type,
                    double condition) {
    const Error e = error_of(got, want, count);
    const double rounding = comm_size * alone.largest * (type == F32 ? 0x1p-24 : 0x1p-9);
    const double of_score = condition * 0x1p-24;
    EXPECT(e.worst <= 3 * alone.worst + rounding + of_score * alone.largest,
           "%s, rank %d of %d: an error of %g, of one rank %g, values to %g", what, comm_rank, comm_size, e.worst,
           alone.worst, alone.largest);
    EXPECT(sqrt(e.mean_square) <= 2 * sqrt(alone.mean_square) + rounding + of_score * sqrt(alone.want_square),
           "%s, rank %d of %d: root mean square error %g, of one rank %g", what, comm_rank, comm_size,
           sqrt(e.mean_square), sqrt(alone.mean_square));
}

/* size: ranks in a group; all groups compute the same. */
static void ring_case(Case c, int size) {
    const int blocks = test_blocks;
    const int64_t C = c.NH * c.HS, count = (int64_t)c.B * c.T * C;
    const Inputs in = { random_values(count, c.amplitude), random_values(count, c.amplitude), random_values(count, 1),
                        random_values(count, 1) };
    const Results want = by_oracle(c, in);
    const Ring one = ring_create((RingSplit){ .size = 1, .T = c.T }, "flash", spec_of(c, dtype));
    const Results whole = by_ring(&one, c, in);
    const double condition = condition_of(c, in);
    Error alone[RESULTS];
    for (int i = 0; i < RESULTS; i++)
        alone[i] = error_of(whole.x[i], want.x[i], i == LSE ? (int64_t)c.B * c.NH * c.T : count);
    const RingSplit split = { size, comm_rank % size, c.T };
    Ring ring = ring_create(split, "flash", spec_of(c, dtype));
    EXPECT(ring.heads == c.NH, "%d of %d heads at a time", ring.heads, c.NH);       /* the sequences are short */
    if (c.T % 2) ring.heads = 1;
    const int64_t local = ring_tokens(&split, split.rank);
    const Results got = by_ring(&ring, c, in), again = by_ring(&ring, c, in);
    for (int i = 0; i < RESULTS; i++) {
        const int64_t rows = i == LSE ? (int64_t)c.B * c.NH : c.B, n = rows * local * (i == LSE ? 1 : C);
        double *all = join_parts(&split, got.x[i], rows, i == LSE ? 0 : C);
        char what[96];
        snprintf(what, sizeof what, "%s, B=%d NH=%d HS=%d T=%d %s", result_name[i], c.B, c.NH,
                 c.HS, c.T, dtype_name(dtype));
        compare(what, all, want.x[i], i == LSE ? rows * c.T : count, alone[i], i == LSE ? F32 : dtype, condition);
        EXPECT(!memcmp(got.x[i], again.x[i], sizeof(double) * (size_t)n), "%s: other bits the second time", what);
    }
    test_release(blocks);
}

static void many_cases(void *unused) {
    static const Case cases[] = {
        { 1, 2, 64, 64, 1 }, { 2, 3, 16, 96, 1 }, { 1, 1, 128, 257, 1 }, { 3, 2, 40, 101, 1 }, { 1, 3, 64, 131, 30 },
        { 2, 1, 8, 1, 1 },   { 1, 2, 16, 2, 1 },  { 2, 2, 24, 3, 1 },    { 1, 2, 16, 5, 1 },   { 1, 1, 16, 7, 1 },
        { 1, 2, 32, 17, 1 }, { 1, 2, 64, 383, 8 }, { 2, 5, 64, 262, 1 }, { 1, 8, 128, 300, 1 },
    };
    (void)unused;
    for (int d = F32; d <= BF16; d++) {
        dtype = (DType)d;
        if (device_refuse_dtype(dtype)) continue;
        for (int i = 0; i < COUNT(cases); i++) ring_case(cases[i], comm_size);
        ring_case((Case){ 1, 2, 64, 1025, 1 }, comm_size);
        if (!on_cpu) ring_case((Case){ 1, 2, 128, 2050, 1 }, comm_size);
    }
}

/* 4 ranks as two groups of 2. */
static void two_groups(void *unused) {
    (void)unused;
    dtype = F32;
    ring_case((Case){ 2, 2, 32, 77, 1 }, 2);
}

TEST(ring_is_attention) { ranks_each(ranks_max, many_cases); }

TEST(groups_are_apart) {
    if (ranks_max < 4) test_skip_reason = "fewer than four ranks";
    else ranks_expect(4, two_groups);
}

/* ---- Which tokens */

/* Every token has one rank, and the rows of a rank are in the order of the sequence. */
TEST(tokens_are_split) {
    for (int size = 1; size <= 6; size++)
        for (int T = 1; T <= 40; T++) {
            int owners[40] = {0}, ordered = 1, all = 0, max = 0;
            for (int rank = 0; rank < size; rank++) {
                const RingSplit s = { size, rank, T };
                int32_t whole[40], local[40];
                const int tokens = ring_tokens(&s, rank);
                for (int t = 0; t < T; t++) whole[t] = t;
                ring_copy_local(&s, local, whole);
                for (int i = 0; i < tokens; i++) {
                    owners[local[i]]++;
                    ordered &= !i || local[i] > local[i - 1];
                }
                all += tokens;
                max = tokens > max ? tokens : max;
            }
            for (int t = 0; t < T; t++) ordered &= owners[t] == 1;
            EXPECT(ordered && all == T, "%d ranks, T %d: %d tokens", size, T, all);
            EXPECT(T % (2 * size) || max * size == T, "%d ranks, T %d: a rank has %d", size, T, max);
        }
}

/* Last, as it opens the device. */
TEST(refusals) {
    const Case c = { 1, 2, 16, 64, 1 };
    dtype = F32;
    device_open((DeviceOptions){ .threads = 1 });
    Ring naive = ring_create((RingSplit){ .size = 2, .T = 64 }, "naive", spec_of(c, F32));
    Ring flash = ring_create((RingSplit){ .size = 2, .T = 64 }, "flash", spec_of(c, F32));
    EXPECT(!ring_refuse(&flash), "%s", ring_refuse(&flash));
    const AttentionSpec long_spec = { .B = 2, .NH = 12, .HS = 64, .scale = 0.125f, .dtype = F32 };
    const Ring short_ring = ring_create((RingSplit){ .size = 2, .T = 1 << 15 }, "flash", long_spec);
    const Ring long_ring = ring_create((RingSplit){ .size = 2, .T = 1 << 18 }, "flash", long_spec);
    EXPECT(short_ring.heads == 12 && long_ring.heads == 4, "%d and %d heads at a time", short_ring.heads,
           long_ring.heads);
    EXPECT(ring_refuse(&naive) && strstr(ring_refuse(&naive), "want flash"), "naive attention");
    flash.spec.dropout.rate = 0.1f;
    EXPECT(ring_refuse(&flash) && strstr(ring_refuse(&flash), "no dropout"), "dropout");
    EXPECT_FAILS("ring: rank 2 of 2", ring_create((RingSplit){ 2, 2, 8 }, "flash", spec_of(c, F32)));
}

int main(void) {
    random_open();
    on_cpu = !strcmp(backend_name, "cpu");
    ranks_max = ranks_available();
    return test_all();
}
