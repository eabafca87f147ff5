/* bench_attention.c - Every attention of the linked backend against PyTorch's cuDNN and FlashAttention-2, and
   FlashAttention-3 where its Python package is installed, in one run and on the same inputs, which lie in one shared
   piece of memory (scripts/bench_attention_peers.py is the other side). In each round each of them in turn is timed
   over a batch of launches, forward and backward; what counts is the ratio within a round. TFLOP/s by the usual count:
   forward 4 B NH T^2 HS, halved by causality, backward 2.5 times that. qkv alone exceeds a GPU's L2 cache, so that no
   launch finds its inputs there. */
#include <errno.h>
#include "bench_runners.h"

static FILE *csv;               /* NULL: none */
static double dropout_rate;          /* rate; above 0: the speeds of ours with it as well */

__attribute__((format(printf, 2, 3)))
static void cell(int absent, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    putchar(' ');
    if (absent) putchar('-'); else vprintf(format, arguments);
    printf(" |");
    va_end(arguments);
}

static void print_rule(int columns) {
    printf("\n|");
    while (columns-- > 0) printf(" --- |");
    printf("\n");
    fflush(stdout);
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
    int columns = 5;
    double load[3], unit = dtype == BF16 ? 1e12 : 1e9;
    Shape s = speed_shape(HS, T_min);
    inputs_open((int64_t)s.B * s.T, s.NH, HS, 1);
    runners_list(s, dropout_rate);
    printf("\nHead size %d, %d heads, B*T = %d, causal, %s: %sFLOP/s forward/backward, medians of %lld rounds\n\n| T |",
           HS, s.NH, s.B * s.T, dtype_name(dtype), unit > 1e9 ? "T" : "G", (long long)rounds);
    for (int i = 0; i < runners; i++, columns++) printf(" %s |", runner[i].label);
    for (int i = 0; i < runners; i++)
        if (!runner[i].ours) { printf(" %s/%s |", runner[0].label, runner[i].label); columns++; }
        else if (runner[i].dropout > 0) { printf(" time of %s, both passes |", runner[i].label); columns++; }
    printf(" SM MHz | C | W | GB |");
    print_rule(columns);
    for (int T = T_min; T <= T_max; T *= 2) {
        s = speed_shape(HS, T);
        double flop = 2.0 * s.B * s.NH * T * T * HS;
        compete(s, load);
        printf("| %d |", T);
        for (int i = 0; i < runners; i++)
            cell(runner[i].absent, "%.0f/%.0f", 1e3 * flop / runner[i].median[0] / unit,
                 2.5e3 * flop / runner[i].median[1] / unit);
        for (int i = 0; i < runners; i++) write_csv_row(&runner[i], s, flop);
        for (int i = 0; i < runners; i++)
            if (!runner[i].ours)
                cell(runner[i].absent, "%.2f/%.2f", ratio(&runner[i], runner, FORWARD),
                     ratio(&runner[i], runner, BACKWARD));
            else if (runner[i].dropout > 0)
                cell(runner[i].absent || runner[i - 1].absent, "%.2f/%.2f, %.2f",
                     ratio(&runner[i], &runner[i - 1], FORWARD), ratio(&runner[i], &runner[i - 1], BACKWARD),
                     ratio(&runner[i], &runner[i - 1], PASSES));
        for (int i = 0; i < 3; i++) cell(isnan(load[i]), "%.0f", load[i]);
        for (int i = 0; i < runners; i++) printf(runner[i].absent ? " -" : " %.2f", runner[i].bytes / 1e9);
        printf(" |\n");
        fflush(stdout);
        release();
    }
    inputs_close();
}

/* Each attention alone, long enough that the card reaches its power limit and lowers its clock, as it does in training.
   pJ: of the median of nvidia-smi's W. */
static void sustained_table(int HS, int T_min, int T_max) {
    enum { WARM_UP = 500 / BATCH_MS, MEASURED = 1500 / BATCH_MS };
    Shape s = speed_shape(HS, T_min);
    inputs_open((int64_t)s.B * s.T, s.NH, HS, 1);
    runners_list(s, dropout_rate);
    printf("\nSustained: head size %d, %d heads, B*T = %d, causal, %s, each alone for %d ms\n\n| T | pass | | TFLOP/s "
           "| SM MHz | TFLOP/s per GHz | W | pJ/FLOP | C |", HS, s.NH, s.B * s.T, dtype_name(dtype),
           MEASURED * BATCH_MS);
    print_rule(9);
    for (int T = T_min; T <= T_max; T *= 8) {
        double load[3], flop = 2.0 * HS * T * T;
        s = speed_shape(HS, T);
        flop *= s.B * s.NH;
        compete(s, load);
        for (int pass = 0; pass < PASSES; pass++)
            for (int i = 0; i < runners; i++) {
                if (runner[i].absent) continue;
                time_batches(&runner[i], s, pass, WARM_UP);
                sensors_read(load);
                double ms = time_batches(&runner[i], s, pass, MEASURED);
                sensors_read(load);
                double tflops = 1e-9 * (pass == FORWARD ? 1 : 2.5) * flop / ms;
                printf("| %d | %s | %s |", T, pass == FORWARD ? "forward" : "backward", runner[i].label);
                cell(0, "%.*f", dtype == F32 ? 3 : 0, tflops);
                cell(isnan(load[0]), "%.0f", load[0]);
                cell(isnan(load[0]), "%.0f", 1e3 * tflops / load[0]);
                cell(isnan(load[2]), "%.0f", load[2]);
                cell(isnan(load[2]), "%.2f", load[2] / tflops);
                cell(isnan(load[1]), "%.0f", load[1]);
                printf("\n");
                fflush(stdout);
            }
        release();
    }
    inputs_close();
}

/* ---- the parts that ring attention runs, of one sequence, by the first attention that takes them */

typedef struct { const char *label; int Tq, Tk, causal; DType result; } Part;

static Tensor new_tensor(DType type, int64_t rows, int64_t columns) {
    Tensor t = tensor_of(NULL, type, 3, 1, rows, columns);
    t.data = device_alloc(tensor_bytes(t), "a partial result");
    return t;
}

static Tensor first_rows(Tensor t, int64_t rows) {
    t.dim[1] = rows;
    return t;
}

/* Of T queries. FLOP as in the speed table, twice as many a query and key without a mask. */
static void parts_table(int HS, int T) {
    Shape s = { 1, T, HS <= 64 ? 12 : 16, HS };
    int C = s.NH * HS, half = T / 2;
    const Part parts[] = {
        { "causal, training's", T, T, 1, dtype }, { "causal, results in f32", T, T, 1, F32 },
        { "T queries, T / 2 keys", T, half, 0, F32 }, { "T / 2 queries, T keys", half, T, 0, F32 },
    };
    double unit = dtype == BF16 ? 1e12 : 1e9;
    inputs_open(T, s.NH, HS, 1);
    Tensor result[4], lse = new_tensor(F32, s.NH, T), part_lse = new_tensor(F32, s.NH, T);
    for (int i = 0; i < 4; i++) result[i] = new_tensor(F32, T, C);
    printf("\nParts of a ring: head size %d, %d heads, B 1, T %d, q, k, v %s; gradients in f32 are added; medians of "
           "%lld rounds\n\n| | ms forward/backward | %sFLOP/s |", HS, s.NH, T, dtype_name(dtype), (long long)rounds,
           unit > 1e9 ? "T" : "G");
    print_rule(3);
    for (int n = 0; n < (int)(sizeof parts / sizeof *parts); n++) {
        AttentionSpec x = spec_of(s);
        x.Tq = parts[n].Tq;
        x.Tk = parts[n].Tk;
        x.causal = parts[n].causal;
        x.out_dtype = parts[n].result;
        x.dq_into = x.dkv_into = x.out_dtype != dtype ? ACCUMULATE : OVERWRITE;
        const Attention *a = attention_pick("flash", &x);
        Tensor q = first_rows(part(qkv, s, 0), x.Tq), k = first_rows(part(qkv, s, 1), x.Tk);
        Tensor v = first_rows(part(qkv, s, 2), x.Tk), g = first_rows(part(dout, s, 0), x.Tq);
        Tensor rounded = first_rows(part(out, s, 0), x.Tq), l = tensor_column_range(lse, 0, x.Tq);
        Tensor to[4];
        for (int i = 0; i < 4; i++) {
            to[i] = result[i];
            to[i].dtype = x.out_dtype;
            to[i] = first_rows(to[i], i < 2 ? x.Tq : x.Tk);
        }
        void *work = device_alloc(a->workspace_bytes(&x), "the workspace");
        double ms[PASSES][ROUNDS_MAX], median_ms[PASSES], flop = (x.causal ? 2.0 : 4.0) * x.Tq * x.Tk * C;
        a->forward(&x, x.out_dtype == dtype ? rounded : to[0], l, NULL, q, k, v, work);
        for (int64_t i = 0; i < 2 * rounds; i++) {
            int pass = (int)(i % 2), launches = 1;
            for (double took = 0; took < BATCH_MS; launches *= 2) {         /* the last batch counts */
                device_wait();
                double start = seconds_now();
                for (int j = 0; j < launches; j++)
                    if (pass == FORWARD) a->forward(&x, to[0], l, NULL, q, k, v, work);
                    else                 a->backward(&x, to[1], to[2], to[3], g, rounded, l, NULL, q, k, v, work);
                device_wait();
                took = 1e3 * (seconds_now() - start);
                ms[pass][i / 2] = took / launches;
            }
        }
        for (int pass = 0; pass < PASSES; pass++) median_ms[pass] = median(ms[pass], rounds);
        printf("| %s |", parts[n].label);
        cell(0, "%.3f/%.3f", median_ms[FORWARD], median_ms[BACKWARD]);
        cell(0, "%.0f/%.0f", 1e3 * flop / median_ms[FORWARD] / unit, 2.5e3 * flop / median_ms[BACKWARD] / unit);
        printf("\n");
        fflush(stdout);
        device_free(work);
    }
    double ms[ROUNDS_MAX];
    for (int64_t i = 0; i < rounds; i++) {
        attention_merge(result[0], lse, result[0], result[1], part_lse);
        device_wait();
        double start = seconds_now();
        for (int j = 0; j < 20; j++) attention_merge(result[0], lse, result[0], result[1], part_lse);
        device_wait();
        ms[i] = 1e3 * (seconds_now() - start) / 20;
    }
    double merge_ms = median(ms, rounds);
    printf("| attention_merge, T queries | %.3f | %.0f GB/s |\n", merge_ms, 12e-6 * T * C / merge_ms);
    for (int i = 0; i < 4; i++) device_free(result[i].data);
    device_free(lse.data);
    device_free(part_lse.data);
    inputs_close();
}

int main(int argc, char **argv) {
    int64_t HS, T;
    const char *table, *python, *csv_path;
    int no_peers, autograd;
    Option options[] = {
        { .name = "table", .type = OPTION_CHOICE, .value = &table, .fallback = "all",
          .choices = "all|speed|sustained|parts",
          .help = "speeds, those under sustained load (not in `all`), or those of the parts of a ring" },
        { .name = "head-size", .type = OPTION_INTEGER, .value = &HS, .min = 1, .max = 128, .argument = "N",
          .help = "only the speeds at this one; without it 64 and 128" },
        { .name = "T", .type = OPTION_INTEGER, .value = &T, .min = 1, .max = 32768, .argument = "N",
          .help = "only the speeds at this one; without it 512 to 16384" },
        { .name = "dropout", .type = OPTION_REAL, .value = &dropout_rate, .fallback = "0", .min = 0, .max = 0.95,
          .argument = "P", .help = "the speeds also with dropout of this rate, and the ratio to those without" },
        { .name = "rounds", .type = OPTION_INTEGER, .value = &rounds, .fallback = "5", .min = 1, .max = ROUNDS_MAX,
          .argument = "N", .help = "take the median of N" },
        { .name = "csv", .type = OPTION_TEXT, .value = &csv_path, .argument = "FILE",
          .help = "writes the speeds also to FILE, which scripts/plot_attention.sh draws" },
        { .name = "python", .type = OPTION_TEXT, .value = &python, .fallback = "python3", .argument = "COMMAND",
          .help = "a Python that has PyTorch, for cuDNN and FlashAttention-2, -3" },
        { .name = "no-peers", .type = OPTION_FLAG, .value = &no_peers, .help = "without these" },
        { .name = "autograd", .type = OPTION_FLAG, .value = &autograd,
          .help = "time them through PyTorch's autograd instead of calling both passes directly" },
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
    int all = strcmp(table, "all") == 0, speed = all || strcmp(table, "speed") == 0, one_speed = HS || T;
    int parts = (all && !one_speed) || strcmp(table, "parts") == 0, sustained = strcmp(table, "sustained") == 0;
    if (csv_path) {
        REQUIRE(speed, "--csv %s: only the speeds are written, not --table %s", csv_path, table);
        csv = fopen(csv_path, "we");
        REQUIRE(csv, "--csv %s: cannot create: %s", csv_path, strerror(errno));
        fprintf(csv, "device,dtype,head_size,heads,batch,T,attention,forward_ms,backward_ms,forward_tflops,"
                "backward_tflops,memory_gb\n");
    }
    printf("%s, %s\n", device_info().name, device_info().detail);
    if (!no_peers) peers_start(python, shared_file, dtype_name(dtype), autograd ? "autograd" : "direct");
    printf("MHz, C and W: medians of nvidia-smi during the rounds. GB: the peak of memory of each in turn, with "
           "q, k, v, out and their gradients\n");
    sensors_start();
    for (int size = 64; size <= 128; size += 64) {
        const int head_size = HS ? (int)HS : size, last = T ? (int)T : small ? 256 : 32768;
        if (HS && size > 64) break;
        if (speed)     speed_table(head_size, T ? (int)T : small ? 128 : 512, T ? (int)T : small ? 1024 : 16384);
        if (sustained) sustained_table(head_size, T ? (int)T : small ? 128 : 2048, T ? (int)T : small ? 128 : 16384);
        for (int t = T ? (int)T : small ? 256 : 8192; parts && t <= last; t *= 4) parts_table(head_size, t);
    }
    return 0;
}
