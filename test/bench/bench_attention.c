/* bench_attention.c - Every attention of the linked backend against PyTorch's cuDNN and FlashAttention-2, and
   FlashAttention-3 and -4 where their Python packages are installed, in one run and on the same inputs, in one shared
   piece of memory (scripts/bench_attention_peers.py is the other side). In each round each of them in turn is timed
   over a batch of launches, forward and backward; what counts is the ratio within a round. TFLOP/s by the usual count:
   forward 4 B NH T^2 HS, halved by causality, backward 2.5 times that. qkv alone exceeds a GPU's L2 cache, so that no
   launch finds its inputs there. */
#include <pthread.h>
#include <sys/socket.h>
#include "../../kernels/attention.h"
#include "../../kernels/normal.h"
#include "bench.h"

/* ---- PyTorch's attentions: a process behind a socket, which answers a line with a line and ends with this one */

static FILE *peers;             /* NULL: there are none */
static char  peers_line[512];   /* their first: "ok" and their names */

/* A line to the peers, and what stands behind "ok" in their answer; NULL when it is another, which goes to stderr. */
__attribute__((format(printf, 1, 2)))
static const char *ask(const char *format, ...) {
    static char question[128], answer[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(question, sizeof question, format, arguments);
    va_end(arguments);
    char line[sizeof question + 1];
    int length = snprintf(line, sizeof line, "%s\n", question);
    REQUIRE(send(fileno(peers), line, (size_t)length, MSG_NOSIGNAL) == length && fgets(answer, sizeof answer, peers),
            "the peers' process ended at \"%s\"; --no-peers does without", question);
    answer[strcspn(answer, "\n")] = 0;
    if (strncmp(answer, "ok", 2) == 0) return answer + 2;
    fprintf(stderr, "%s: %s\n", question, answer);
    return NULL;
}

/* Says which they are, or why there are none. They find the inputs in the open file. */
static void peers_start(const char *python, int file, const char *dtype) {
    char command[512];
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket: out of file descriptors?");
    fcntl(ends[1], F_SETFD, 0);                 /* inherited, as file is */
    snprintf(command, sizeof command, "exec %s scripts/bench_attention_peers.py %d %d %s", python, file, ends[1],
             dtype);
    fflush(NULL);
    if (!popen(command, "w") || !(peers = fdopen(ends[0], "r"))) fail("cannot start %s", python);
    close(ends[1]);
    if (fgets(peers_line, sizeof peers_line, peers) && strncmp(peers_line, "ok ", 3) == 0) {
        printf("Peers: %s\n", peers_line + 3);
        return;
    }
    peers = NULL;
    peers_line[strcspn(peers_line, "\n")] = 0;
    printf("Without peers: %s\n", *peers_line ? peers_line : "their process ended at once; --python COMMAND says which "
                                                             "Python, and scripts/ must lie in the working directory");
}

/* ---- The attentions that are compared */

enum { FORWARD, BACKWARD, PASSES };
enum { RUNNERS_MAX = 12, ROUNDS_MAX = 100, BATCH_MS = 20 };

typedef struct { int B, T, NH, HS; } Shape;

/* An attention of ours, or a peer behind the socket. */
typedef struct {
    char   label[24];
    const Attention *ours;                      /* NULL: a peer */
    int    absent;                              /* cannot run this shape */
    void  *lse, *kept, *work;
    int    launches[PASSES];                    /* in a batch */
    double bytes;                               /* memory, in all */
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

/* Random normal numbers, cut to bf16. */
static void inputs_open(int64_t rows, int NH, int HS) {
    int64_t C = NH * HS, count = rows * 4 * C;
    size_t bytes = (size_t)count * dtype_bytes(dtype);
    REQUIRE(ftruncate(shared_file, (off_t)bytes) == 0, "no memory for %.2f GB of inputs", (double)bytes / 1e9);
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared_file, 0);
    REQUIRE(shared != MAP_FAILED, "no memory for %.2f GB of inputs", (double)bytes / 1e9);
    #pragma omp parallel for
    for (int64_t i = 0; i < count; i++) {
        float x = (float)normal_of(philox(1, RANDOM_TEST, 0, (uint32_t)HS, (uint64_t)i));
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

/* Ours that take the shape, best first ("flash", "flash 2", ...), then the peers. */
static void runners_list(Shape s) {
    const AttentionSpec spec = spec_of(s);
    runners = 0;
    for (int a = 0; attention_list[a]; a++) {
        if (attention_list[a]->refuse(&spec)) continue;
        int namesakes = 1;
        for (int i = 0; i < runners; i++) namesakes += strcmp(runner[i].ours->name, attention_list[a]->name) == 0;
        REQUIRE(runners < RUNNERS_MAX - 4, "more attentions than RUNNERS_MAX allows");
        Runner *r = &runner[runners++];
        *r = (Runner){ .ours = attention_list[a] };
        snprintf(r->label, sizeof r->label, namesakes > 1 ? "%.10s %d" : "%.10s", r->ours->name, namesakes);
    }
    REQUIRE(runners, "no attention of this backend takes head size %d", s.HS);
    static const char *const names[] = { "cuDNN", "FA2", "FA3", "FA4" };
    for (int i = 0; peers && i < 4; i++) {
        if (!strstr(peers_line, names[i])) continue;
        runner[runners] = (Runner){0};
        snprintf(runner[runners++].label, sizeof runner->label, "%s", names[i]);
    }
}

static void launch(const Runner *r, Shape s, int pass) {
    AttentionSpec spec = spec_of(s);
    (pass == FORWARD ? attention_forward : attention_backward)(r->ours, &spec, &(AttentionOperands){
        part(qkv, s, 0), part(qkv, s, 1), part(qkv, s, 2), part(out, s, 0), tensor_of(r->lse, F32, 3, s.B, s.NH, s.T),
        part(dout, s, 0), part(dqkv, s, 0), part(dqkv, s, 1), part(dqkv, s, 2), r->kept, r->work });
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

/* The same, over a batch: the launches of ours, about batch_ms of a peer. */
static double time_batch(const Runner *r, Shape s, int pass, double batch_ms) {
    if (r->ours) return time_launches(r, s, pass, r->launches[pass]);
    const char *ms = ask("time %s %s %g", r->label, pass == FORWARD ? "forward" : "backward", batch_ms);
    REQUIRE(ms, "%s ran this shape once, and now does not", r->label);
    return strtod(ms, NULL);
}

/* Absent where it refuses, or would take more than half of the free memory. */
static void prepare_ours(Runner *r, Shape s) {
    AttentionSpec spec = spec_of(s);
    size_t kept_bytes = r->ours->kept_bytes(&spec), work_bytes = attention_workspace_bytes(r->ours, &spec);
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

/* What the runners hold is theirs until release(). */
static void prepare(Shape s) {
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
}

static void compete(Shape s) {
    int order[RUNNERS_MAX];
    for (int i = 0; i < runners; i++) order[i] = i;
    for (int64_t round = 0; round < rounds; round++) {
        /* another order each time: behind one that waits a lot the clock is up to 10 % higher than behind a hot one */
        for (int i = runners - 1; i > 0; i--) {
            const int k = rand() % (i + 1), other = order[k];
            order[k] = order[i];
            order[i] = other;
        }
        for (int i = 0; i < runners; i++)
            for (int pass = 0; pass < PASSES && !runner[order[i]].absent; pass++)
                runner[order[i]].ms[pass][round] = time_batch(&runner[order[i]], s, pass, BATCH_MS);
    }
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

/* The times of r over those of the first runner, round by round. */
static double ratio(const Runner *r, int pass) {
    double ratios[ROUNDS_MAX];
    for (int64_t i = 0; i < rounds; i++) ratios[i] = r->ms[pass][i] / runner->ms[pass][i];
    return median(ratios, rounds);
}

/* ---- Tables */

static FILE *csv;               /* NULL: none */

__attribute__((format(printf, 2, 3)))
static void cell(int absent, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    putchar(' ');
    if (absent) putchar('-'); else vprintf(format, arguments);
    printf(" |");
    va_end(arguments);
}

/* A row for scripts/plot_attention.sh; its names have no commas. TFLOP/s on a CPU too. */
static void write_csv_row(const Runner *r, Shape s, double flop) {
    if (!csv || r->absent) return;
    fprintf(csv, "%s,%s,%d,%d,%d,%d,%s,%.6g,%.6g,%.6g,%.6g,%.6g\n", device_info().name, dtype_name(dtype), s.HS, s.NH,
            s.B, s.T, r->label, r->median[FORWARD], r->median[BACKWARD], 1e-9 * flop / r->median[FORWARD],
            2.5e-9 * flop / r->median[BACKWARD], r->bytes / 1e9);
    REQUIRE(!fflush(csv) && !ferror(csv), "--csv: cannot write: %s", strerror(errno));
}

/* As many tokens, heads and channels as the models of this size have them. */
static Shape speed_shape(int HS, int T) {
    int tokens = dtype == F32 ? 1024 : HS <= 64 ? 65536 : 32768;
    return (Shape){ tokens > T ? tokens / T : 1, T, HS <= 64 ? 12 : 16, HS };
}

static void speed_table(int HS, int T_min, int T_max) {
    int columns = 2;
    const double unit = dtype == BF16 ? 1e12 : 1e9;
    Shape s = speed_shape(HS, T_min);
    inputs_open((int64_t)s.B * s.T, s.NH, HS);
    runners_list(s);
    printf("\nHead size %d, %d heads, B*T = %d, causal, %s: %sFLOP/s forward/backward, medians of %lld rounds\n\n| T |",
           HS, s.NH, s.B * s.T, dtype_name(dtype), unit > 1e9 ? "T" : "G", (long long)rounds);
    for (int i = 0; i < runners; i++, columns++) printf(" %s |", runner[i].label);
    for (int i = 0; i < runners; i++)
        if (!runner[i].ours) { printf(" %s/%s |", runner[0].label, runner[i].label); columns++; }
    printf(" GB |");
    printf("\n|");
    while (columns-- > 0) printf(" --- |");
    printf("\n");
    for (int T = T_min; T <= T_max; T *= 2) {
        s = speed_shape(HS, T);
        double flop = 2.0 * s.B * s.NH * T * T * HS;
        prepare(s);
        compete(s);
        printf("| %d |", T);
        for (int i = 0; i < runners; i++)
            cell(runner[i].absent, "%.0f/%.0f", 1e3 * flop / runner[i].median[0] / unit,
                 2.5e3 * flop / runner[i].median[1] / unit);
        for (int i = 0; i < runners; i++) write_csv_row(&runner[i], s, flop);
        for (int i = 0; i < runners; i++)
            if (!runner[i].ours)
                cell(runner[i].absent, "%.2f/%.2f", ratio(&runner[i], FORWARD), ratio(&runner[i], BACKWARD));
        for (int i = 0; i < runners; i++) printf(runner[i].absent ? " -" : " %.2f", runner[i].bytes / 1e9);
        printf(" |\n");
        fflush(stdout);
        release();
    }
    inputs_close();
}

/* ---- Each alone, until the GPU is hot */

static struct { _Atomic double until; double mhz, watts; int samples; } sampled;

/* From half a second before `until` on, ten times a second. */
static void *sample_health(void *unused) {
    (void)unused;
    for (double now; (now = seconds_now()) < sampled.until; usleep(100000)) {
        if (now < sampled.until - 0.5) continue;
        const DeviceHealth health = device_health();
        sampled.mhz += health.clock_mhz;
        sampled.watts += health.power_w;
        sampled.samples++;
    }
    return NULL;
}

/* TFLOP/s, MHz and pJ/FLOP of a pass that runs for so long. */
static void sustain(Runner *r, Shape s, int pass, double flop, double seconds) {
    pthread_t thread;
    r->launches[pass] = (int)fmax(1e3 * seconds / time_batch(r, s, pass, BATCH_MS), 1);
    sampled.mhz = sampled.watts = sampled.samples = 0;
    sampled.until = seconds_now() + seconds;
    REQUIRE(!pthread_create(&thread, NULL, sample_health, NULL), "no thread");
    const double ms = time_batch(r, s, pass, 1e3 * seconds);
    sampled.until = 0;              /* launches that took less than expected: an idle GPU is not sampled */
    pthread_join(thread, NULL);
    const double rate = 1e3 * flop / ms, samples = sampled.samples;
    cell(r->absent, "%.0f, %.0f, %.2f", rate / 1e12, sampled.mhz / samples, 1e12 * sampled.watts / samples / rate);
}

static void sustained_table(int HS, int T, double seconds) {
    const Shape s = speed_shape(HS, T);
    const double flop = 2.0 * s.B * s.NH * T * T * HS;
    inputs_open((int64_t)s.B * s.T, s.NH, HS);
    runners_list(s);
    prepare(s);
    device_health();                /* the first call takes long */
    printf("\nHead size %d, %d heads, T = %d, B*T = %d, causal, each alone for %g s: TFLOP/s, MHz, pJ/FLOP\n\n"
           "| | forward | backward |\n| --- | --- | --- |\n", HS, s.NH, T, s.B * s.T, seconds);
    for (int i = 0; i < runners; i++) {
        if (runner[i].absent) continue;
        printf("| %s |", runner[i].label);
        for (int pass = 0; pass < PASSES; pass++) sustain(&runner[i], s, pass, pass ? 2.5 * flop : flop, seconds);
        printf("\n");
        fflush(stdout);
    }
    release();
    inputs_close();
}

int main(int argc, char **argv) {
    int64_t HS, T;
    double seconds;
    const char *python, *csv_path;
    int no_peers;
    Option options[] = {
        { .name = "head-size", .type = OPTION_INTEGER, .value = &HS, .min = 1, .max = 128, .argument = "N",
          .help = "only the speeds at this one; without it 64 and 128" },
        { .name = "T", .type = OPTION_INTEGER, .value = &T, .min = 1, .max = 32768, .argument = "N",
          .help = "only the speeds at this one; without it 512 to 16384" },
        { .name = "rounds", .type = OPTION_INTEGER, .value = &rounds, .fallback = "9", .min = 1, .max = ROUNDS_MAX,
          .argument = "N", .help = "take the median of N" },
        { .name = "sustained", .type = OPTION_REAL, .value = &seconds, .fallback = "0", .max = 60,
          .argument = "S", .help = "each alone for S seconds at --T (1024), with clock and energy; 1.5 is usual" },
        { .name = "csv", .type = OPTION_TEXT, .value = &csv_path, .argument = "FILE",
          .help = "writes the speeds also to FILE, which scripts/plot_attention.sh draws" },
        { .name = "python", .type = OPTION_TEXT, .value = &python, .fallback = "python3", .argument = "COMMAND",
          .help = "a Python that has PyTorch, for cuDNN and FlashAttention-2, -3, -4" },
        { .name = "no-peers", .type = OPTION_FLAG, .value = &no_peers, .help = "without these" },
        BENCH_HELP
    };
    fail_program = "bench_attention";
    bench_parse("bench_attention times every attention of this backend and, where PyTorch is, its peers.",
                options, argc, argv);
    device_open((DeviceOptions){0});
    dtype = device_refuse_dtype(BF16) ? F32 : BF16;
    shared_file = memfd_create("inputs", 0);
    REQUIRE(shared_file >= 0, "no shared memory for the inputs: %s", strerror(errno));

    int small = dtype == F32;                   /* a CPU: less of everything */
    if (csv_path) {
        csv = fopen(csv_path, "we");
        REQUIRE(csv, "--csv %s: cannot create: %s", csv_path, strerror(errno));
        fprintf(csv, "device,dtype,head_size,heads,batch,T,attention,forward_ms,backward_ms,forward_tflops,"
                "backward_tflops,memory_gb\n");
    }
    printf("%s, %s\n", device_info().name, device_info().detail);
    if (!no_peers) peers_start(python, shared_file, dtype_name(dtype));
    printf("GB: the peak of memory of each in turn, with q, k, v, out and their gradients\n");
    for (int size = 64; size <= 128; size += 64) {
        const int head_size = HS ? (int)HS : size;
        if (HS && size > 64) break;
        if (seconds > 0) {
            sustained_table(head_size, T ? (int)T : 1024, seconds);
            continue;
        }
        speed_table(head_size, T ? (int)T : small ? 128 : 512, T ? (int)T : small ? 1024 : 16384);
    }
    return 0;
}
