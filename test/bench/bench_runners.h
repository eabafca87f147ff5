/* bench_runners.h - The attentions that bench_attention compares, their inputs, and the time of a launch.

   inputs_open(rows, NH, HS, 1);                        for us and for the peers
   runners_list(shape, 0);
   compete(shape, load);                                fills in the runners' times
   release();
   inputs_close(); */
#ifndef TEST_BENCH_RUNNERS_H
#define TEST_BENCH_RUNNERS_H
#include <sys/mman.h>
#include "../../kernels/attention.h"
#include "../../kernels/device.h"
#include "../../kernels/normal.h"
#include "../../llmc/base/random.h"
#include "../../llmc/base/os.h"
#include "bench_peers.h"

enum { FORWARD, BACKWARD, PASSES };
enum { RUNNERS_MAX = 12, ROUNDS_MAX = 100, BATCH_MS = 20 };

typedef struct { int B, T, NH, HS; } Shape;

/* An attention of ours, or a peer behind the socket. */
typedef struct {
    char   label[24];
    const Attention *ours;                      /* NULL: a peer */
    float  dropout;                             /* rate; the runner without it is the one before */
    int    absent;                              /* cannot run this shape */
    void  *lse, *kept, *work;
    int    launches[PASSES];                    /* in a batch */
    double bytes;                               /* of memory, in all */
    double ms[PASSES][ROUNDS_MAX], median[PASSES];
} Runner;

static Runner  runner[RUNNERS_MAX];
static int     runners;
static int64_t rounds;
static DType   dtype;                           /* f32 on a CPU */
static int     shared_file;
static char   *shared;                          /* the inputs: qkv, behind it dout */
static Tensor  qkv, dqkv, out, dout;            /* (rows,3*NH*HS), (rows,NH*HS) */

/* ---- inputs */

static double value(const void *data, int64_t i) {
    uint32_t bits = dtype == BF16 ? (uint32_t)((const uint16_t *)data)[i] << 16 : ((const uint32_t *)data)[i];
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Random normal numbers, those of dout times amplitude, cut to bf16. */
static void inputs_open(int64_t rows, int NH, int HS, double amplitude) {
    int64_t C = NH * HS, count = rows * 4 * C;
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    REQUIRE(ftruncate(shared_file, (off_t)bytes) == 0, "no memory for %.2f GB of inputs", (double)bytes / 1e9);
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared_file, 0);
    REQUIRE(shared != MAP_FAILED, "no memory for %.2f GB of inputs", (double)bytes / 1e9);
    #pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        double normal = normal_of(philox(1, RANDOM_TEST, 0, (uint32_t)HS, (uint64_t)i));
        float x = (float)(i < rows * 3 * C ? normal : amplitude * normal);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == BF16) ((uint16_t *)shared)[i] = (uint16_t)(bits >> 16);
        else               ((uint32_t *)shared)[i] = bits & 0xffff0000;
    }
    Tensor *tensors[] = { &qkv, &dqkv, &out, &dout };
    for (int i = 0; i < 4; i++) {
        *tensors[i] = tensor_of(NULL, dtype, 2, rows, i < 2 ? 3 * C : C);
        tensors[i]->data = device_alloc(tensor_bytes(*tensors[i]), "q, k, v and what belongs to them");
    }
    device_upload(qkv.data, shared, tensor_bytes(qkv));
    device_upload(dout.data, shared + tensor_bytes(qkv), tensor_bytes(dout));
    if (peers) REQUIRE(ask("inputs %d %d %lld", NH, HS, (long long)rows), "the peers cannot read the inputs");
}

static void inputs_close(void) {
    munmap(shared, tensor_bytes(qkv) + tensor_bytes(dout));
    Tensor tensors[] = { qkv, dqkv, out, dout };
    for (int i = 0; i < 4; i++) device_free(tensors[i].data);
}

/* The i-th NH*HS columns of the first rows of t, as (B,T,NH*HS). */
static Tensor part(Tensor t, Shape s, int i) {
    return tensor_column_range(tensor_of(t.data, dtype, 3, s.B, s.T, t.dim[1]), (int64_t)i * s.NH * s.HS, s.NH * s.HS);
}

/* ---- runners */

static AttentionSpec spec_of(Shape s) {
    return (AttentionSpec){ .B = s.B, .Tq = s.T, .Tk = s.T, .NH = s.NH, .HS = s.HS, .causal = 1,
                            .scale = 1 / sqrtf((float)s.HS), .dtype = dtype, .out_dtype = dtype };
}

static AttentionSpec spec_of_runner(const Runner *r, Shape s) {
    AttentionSpec spec = spec_of(s);
    spec.dropout = (Dropout){ .rate = r->dropout, .seed = 1, .site = RANDOM_DROPOUT };
    return spec;
}

/* Ours that take the shape, best first ("flash", "flash 2", ...), each with dropout behind it if the rate is above 0;
   then the peers. */
static void runners_list(Shape s, double dropout) {
    AttentionSpec spec = spec_of(s);
    runners = 0;
    for (int a = 0; attention_list[a]; a++) {
        if (attention_list[a]->refuse(&spec)) continue;
        int namesakes = 1;
        for (int i = 0; i < runners; i++)
            namesakes += runner[i].dropout == 0 && strcmp(runner[i].ours->name, attention_list[a]->name) == 0;
        REQUIRE(runners < RUNNERS_MAX - 3, "more attentions than RUNNERS_MAX allows");
        Runner *r = &runner[runners++];
        *r = (Runner){ .ours = attention_list[a] };
        snprintf(r->label, sizeof r->label, namesakes > 1 ? "%.10s %d" : "%.10s", r->ours->name, namesakes);
        spec.dropout.rate = (float)dropout;
        if (dropout > 0 && !attention_list[a]->refuse(&spec)) {
            runner[runners] = *r;
            runner[runners].dropout = (float)dropout;
            strcat(runner[runners++].label, " dropout");
        }
        spec.dropout.rate = 0;
    }
    REQUIRE(runners, "no attention of this backend takes head size %d", s.HS);
    if (peers) {
        runner[runners++] = (Runner){ .label = "cuDNN" };
        runner[runners++] = (Runner){ .label = "FA2" };
        if (peers_have_fa3) runner[runners++] = (Runner){ .label = "FA3" };
    }
}

static void launch(const Runner *r, Shape s, int pass) {
    AttentionSpec spec = spec_of_runner(r, s);
    Tensor q = part(qkv, s, 0), k = part(qkv, s, 1), v = part(qkv, s, 2), o = part(out, s, 0);
    Tensor lse = tensor_of(r->lse, F32, 3, s.B, s.NH, s.T);
    if (pass == FORWARD) r->ours->forward(&spec, o, lse, r->kept, q, k, v, r->work);
    else r->ours->backward(&spec, part(dqkv, s, 0), part(dqkv, s, 1), part(dqkv, s, 2), part(dout, s, 0), o, lse,
                           r->kept, q, k, v, r->work);
}

/* ms of one launch. The first is not counted: until now the GPU was another process's. */
static double time_launches(const Runner *r, Shape s, int pass, int launches) {
    launch(r, s, pass);
    device_wait();
    double start = seconds_now();
    for (int i = 0; i < launches; i++) launch(r, s, pass);
    device_wait();
    return 1e3 * (seconds_now() - start) / launches;
}

/* The same, over `batches` batches of BATCH_MS without a pause. */
static double time_batches(const Runner *r, Shape s, int pass, int batches) {
    if (r->ours) return time_launches(r, s, pass, batches * r->launches[pass]);
    const char *ms = ask("time %s %s %d", r->label, pass == FORWARD ? "forward" : "backward", batches * BATCH_MS);
    REQUIRE(ms, "%s ran this shape once, and now does not", r->label);
    return strtod(ms, NULL);
}

/* Absent where it refuses, or would take more than half of the free memory. */
static void prepare_ours(Runner *r, Shape s) {
    AttentionSpec spec = spec_of_runner(r, s);
    size_t kept_bytes = r->ours->kept_bytes(&spec), work_bytes = r->ours->workspace_bytes(&spec);
    const double bytes = (double)(attention_row_bytes(&spec) + kept_bytes + work_bytes);
    r->absent = r->ours->refuse(&spec) || bytes > 0.5 * (double)device_info().free_bytes;
    if (r->absent) return;
    r->bytes = bytes + 8.0 * s.B * s.T * s.NH * s.HS * (double)dtype_bytes(dtype);
    r->lse = device_alloc(attention_row_bytes(&spec), "lse");
    r->kept = device_alloc(kept_bytes, "P");
    r->work = device_alloc(work_bytes, "the workspace");
}

/* Over the first sequence. */
static double mean_magnitude(Tensor t, int T) {
    int64_t count = T * t.dim[1];
    void *host = malloc((size_t)count * dtype_bytes(dtype));
    double sum = 0;
    device_download(host, t.data, (size_t)count * dtype_bytes(dtype));
    for (int64_t i = 0; i < count; i++) sum += fabs(value(host, i));
    free(host);
    return sum / (double)count;
}

/* Compares a little, to see that the peer computes the same from the same. */
static void prepare_peer(Runner *r, Shape s, double mean_out, double mean_dqkv) {
    double theirs_out, theirs_dqkv;
    const char *answer = ask("shape %s %d %d", r->label, s.B, s.T);
    r->absent = !answer;
    if (r->absent) return;
    REQUIRE(sscanf(answer, "%lf %lf %lf", &r->bytes, &theirs_out, &theirs_dqkv) == 3, "%s answers \"%s\"", r->label,
            answer);
    REQUIRE(fabs(theirs_out - mean_out) <= 0.01 * mean_out && fabs(theirs_dqkv - mean_dqkv) <= 0.01 * mean_dqkv,
            "%s computes something else: T %d, mean of |out| %g and |dqkv| %g, ours %g and %g", r->label, s.T,
            theirs_out, theirs_dqkv, mean_out, mean_dqkv);
}

/* Runs all rounds. What the runners hold is theirs until release(). */
static void compete(Shape s, double load[3]) {
    double mean_out = 0, mean_dqkv = 0;
    for (int i = 0; i < runners; i++) {
        if (runner[i].ours) prepare_ours(&runner[i], s);
        else                prepare_peer(&runner[i], s, mean_out, mean_dqkv);
        for (int pass = 0; pass < PASSES && runner[i].ours && !runner[i].absent; pass++) {
            time_launches(&runner[i], s, pass, 1);
            runner[i].launches[pass] = (int)fmin(fmax(BATCH_MS / time_launches(&runner[i], s, pass, 1), 1), 1000);
        }
        if (i == 0) { mean_out = mean_magnitude(out, s.T); mean_dqkv = mean_magnitude(dqkv, s.T); }
    }
    REQUIRE(!runner[0].absent, "%s refuses T %d, or the device has no memory for it", runner[0].label, s.T);
    sensors_read(load);
    for (int64_t round = 0; round < rounds; round++)
        for (int i = 0; i < runners; i++)
            for (int pass = 0; pass < PASSES && !runner[i].absent; pass++)
                runner[i].ms[pass][round] = time_batches(&runner[i], s, pass, 1);
    sensors_read(load);
    for (int i = 0; i < runners; i++)
        for (int pass = 0; pass < PASSES; pass++) {
            double ms[ROUNDS_MAX];
            memcpy(ms, runner[i].ms[pass], sizeof ms);
            runner[i].median[pass] = median(ms, rounds);
        }
}

static void release(void) {
    for (int i = 0; i < runners; i++) {
        if (!runner[i].ours || runner[i].absent) continue;
        device_free(runner[i].lse);
        device_free(runner[i].kept);
        device_free(runner[i].work);
    }
}

/* The times of r over those of base, round by round; PASSES: of both passes together. */
static double ratio(const Runner *r, const Runner *base, int pass) {
    double ratios[ROUNDS_MAX];
    for (int64_t i = 0; i < rounds; i++)
        ratios[i] = pass == PASSES ? (r->ms[FORWARD][i] + r->ms[BACKWARD][i]) /
                                     (base->ms[FORWARD][i] + base->ms[BACKWARD][i])
                                   : r->ms[pass][i] / base->ms[pass][i];
    return median(ratios, rounds);
}

#endif
