/* bench_attention.c - Every attention of the linked backend against PyTorch's cuDNN and FlashAttention-2, and
   FlashAttention-3 where its Python package is installed, in one run and on the same inputs, which lie in one shared
   piece of memory (scripts/bench_attention_peers.py is the other side). In each round each of them in turn is timed
   over a batch of launches, forward and backward; what counts is the ratio within a round. TFLOP/s by the usual count:
   forward 4 B NH T^2 HS, halved by causality, backward 2.5 times that. qkv alone exceeds a GPU's L2 cache, so that no
   launch finds its inputs there. */
#include <errno.h>
#include "bench_runners.h"
#include "../oracle.h"

enum { HEADS = 4 };             /* whose errors are measured */

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

/* ---- errors: results holds out, dq, dk, dv in this order, each of the heads (T,HS) in double. The heads are the
   corners: of the first and the last sequence the first and the last head. */

/* heads of the which-th NH*HS columns of (rows, columns) */
static void heads_copy(double *heads, const void *from, Shape s, int64_t columns, int which) {
    for (int i = 0; i < HEADS; i++) {
        int64_t row = i & 1 ? (int64_t)(s.B - 1) * s.T : 0, column = (which * s.NH + (i & 2 ? s.NH - 1 : 0)) * s.HS;
        for (int t = 0; t < s.T; t++)
            for (int d = 0; d < s.HS; d++) *heads++ = value(from, (row + t) * columns + column + d);
    }
}

/* The formula in double; stores 1: with P, dS and the results rounded to the data type. */
static double *results_by_formula(Shape s, double stores) {
    AttentionSpec one = spec_of((Shape){ 1, s.T, 1, s.HS });
    int64_t n = (int64_t)s.T * s.HS, all = HEADS * n;
    double *lse = malloc(sizeof *lse * (size_t)s.T);
    double *in = malloc(sizeof *in * (size_t)(4 * all)), *results = malloc(sizeof *results * (size_t)(4 * all));
    for (int j = 0; j < 3; j++) heads_copy(in + j * all, shared, s, qkv.dim[1], j);
    heads_copy(in + 3 * all, shared + tensor_bytes(qkv), s, dout.dim[1], 0);
    oracle_stores = dtype == BF16 ? stores : 0;
    for (int i = 0; i < HEADS; i++) {
        double *q = in + i * n, *r = results + i * n;
        oracle_attention_forward(&one, r, lse, q, q + all, q + 2 * all);
        oracle_attention_backward(&one, r + all, r + 2 * all, r + 3 * all, q + 3 * all, lse, q, q + all, q + 2 * all);
    }
    for (int64_t i = 0; stores && i < 4 * all; i++)
        results[i] = dtype == BF16 ? round_bf16(results[i]) : (float)results[i];
    free(lse);
    free(in);
    return results;
}

static double *results_of(const Runner *r, Shape s) {
    int64_t all = (int64_t)HEADS * s.T * s.HS;
    double *results = malloc(sizeof *results * (size_t)(4 * all));
    char *host = malloc(tensor_bytes(dqkv));
    launch(r, s, FORWARD);
    launch(r, s, BACKWARD);
    device_download(host, out.data, tensor_bytes(out));
    heads_copy(results, host, s, out.dim[1], 0);
    device_download(host, dqkv.data, tensor_bytes(dqkv));
    for (int j = 0; j < 3; j++) heads_copy(results + (1 + j) * all, host, s, dqkv.dim[1], j);
    free(host);
    return results;
}

/* Of out, then of the gradients: maximum and mean error, and these over those of the rounded formula. */
static void error_cells(const double *results, const double *exact, const double *rounded, Shape s) {
    int64_t all = (int64_t)HEADS * s.T * s.HS;
    for (int which = 0; which < 2; which++) {
        double max[2] = { 0, 0 }, sum[2] = { 0, 0 };
        for (int64_t i = which ? all : 0; i < (which ? 4 * all : all); i++)
            for (int k = 0; k < 2; k++) {
                double error = fabs((k ? rounded : results)[i] - exact[i]);
                if (!(error <= max[k])) max[k] = error;
                sum[k] += error;
            }
        cell(0, "%.1e/%.1e", max[0], sum[0] / (double)(which ? 3 * all : all));
        cell(0, "%.2f/%.2f", max[0] / max[1], sum[0] / sum[1]);
    }
}

static void lengths_table(Shape s) {
    double load[3];
    inputs_open((int64_t)s.B * s.T, s.NH, s.HS, 0.25);
    runners_list(s, 0);
    compete(s, load);
    double *exact = results_by_formula(s, 0), *rounded = results_by_formula(s, 1);
    printf("\nArbitrary lengths (github.com/NVIDIA/apex/issues/1395, 2022): T = %d, head size %d, B = %d, %d heads, "
           "%s, causal; errors against float64 in %d heads, max/mean\n\n"
           "| | ms | GB | out | over rounded | dq, dk, dv | over rounded |", s.T, s.HS, s.B, s.NH,
           dtype_name(dtype), HEADS);
    print_rule(7);
    for (int i = 0; i < runners; i++) {
        const Runner *r = &runner[i];
        printf("| %s |", r->label);
        cell(r->absent, "%.3f/%.3f", r->median[FORWARD], r->median[BACKWARD]);
        cell(r->absent, "%.2f", r->bytes / 1e9);
        if (r->ours && !r->absent) {
            double *results = results_of(r, s);
            error_cells(results, exact, rounded, s);
            free(results);
        } else printf(" - | - | - | - |");
        printf("\n");
    }
    printf("| the formula; P, dS, results rounded | - | - |");
    error_cells(rounded, exact, rounded, s);
    printf("\n| published, fp16, not causal | - | - | 5e-4/1.1e-5 | - | 2e-4/4.3e-6 | - |\n");
    free(exact);
    free(rounded);
    release();
    inputs_close();
}

/* ---- bytes through HBM */

/* As Nsight Compute counts them in a process that runs both passes once; 0: it cannot. */
static double counted_bytes(const Runner *r) {
    char command[500], line[4096];
    double bytes = 0;
    snprintf(command, sizeof command, "exec 2>/dev/null; exec timeout 300 ncu --csv --print-units base --clock-control "
             "none --cache-control none --metrics dram__bytes_read.sum,dram__bytes_write.sum "
             "/proc/%d/exe --once '%.23s'", (int)getpid(), r->label);
    fflush(NULL);
    FILE *ncu = popen(command, "r");
    while (ncu && fgets(line, sizeof line, ncu)) {              /* ...,"dram__bytes_read.sum","byte","1,234",... */
        char *from = strstr(line, "\"dram__bytes_"), digits[64] = "";
        for (int i = 0; from && i < 2; i++) from = (from = strstr(from, "\",\"")) ? from + 3 : NULL;
        for (int n = 0; from && *from && *from != '"' && n < 63; from++) if (*from != ',') digits[n++] = *from;
        bytes += strtod(digits, NULL);
    }
    if (ncu) pclose(ncu);
    return bytes;
}

/* As the algorithm has it. Of q, k, v, out and their gradients, forward touches 4 and backward 8. Naive takes its (T,T)
   matrices through HBM, scores and dP in f32: written and read; P: written, read 3 times; dS: written, read twice. */
static double computed_bytes(const Runner *r, Shape s) {
    double size = (double)dtype_bytes(dtype), rows = (double)s.B * s.T * s.NH;
    return 12 * rows * s.HS * size + (is_naive(r) ? rows * s.T * (16 + 7 * size) : 2 * r->own_bytes);
}

static void paper_table(Shape s) {
    double load[3], pairs = (double)s.B * s.NH * s.T * s.T;
    inputs_open((int64_t)s.B * s.T, s.NH, s.HS, 1);
    runners_list(s, 0);
    compete(s, load);
    printf("\nFlashAttention (arXiv 2205.14135): T = %d, head size %d, %d heads, B = %d, forward and backward. Ours "
           "are %s and causal,\nGFLOP of 6 GEMMs of T by T (naive), or 7 of half of it (9 if dq has a kernel)\n"
           "\n| | GFLOP | HBM GB | | ms |", s.T, s.HS, s.NH, s.B, dtype_name(dtype));
    print_rule(5);
    for (int i = 0; i < runners; i++) {
        const Runner *r = &runner[i];
        int unknown = r->absent || !r->ours;
        double counted = unknown || dtype == F32 ? 0 : counted_bytes(r);
        printf("| %s |", r->label);
        cell(unknown, "%.1f", (is_naive(r) ? 6 : 3.5) * 2 * pairs * s.HS / 1e9);
        cell(unknown, "%.2f", (counted > 0 || unknown ? counted : computed_bytes(r, s)) / 1e9);
        cell(unknown, counted > 0 ? "counted" : "computed");
        cell(r->absent, "%.2f", r->median[FORWARD] + r->median[BACKWARD]);
        printf("\n");
    }
    printf("| published, A100, standard | 66.6 | 40.3 | | 41.7 |\n"
           "| published, A100, fused | 75.2 | 4.4 | | 7.3 |\n");
    release();
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

static void run_once(const char *label, Shape s) {
    inputs_open((int64_t)s.B * s.T, s.NH, s.HS, 1);
    runners_list(s, 0);
    Runner *r = runner;
    while (r < runner + runners && strcmp(r->label, label) != 0) r++;
    REQUIRE(r < runner + runners, "--once %s: no such attention, or it refuses this shape", label);
    prepare_ours(r, s);
    REQUIRE(!r->absent, "--once %s: not enough memory", label);
    launch(r, s, FORWARD);
    launch(r, s, BACKWARD);
    device_wait();
}

int main(int argc, char **argv) {
    int64_t HS, T;
    const char *table, *python, *once, *csv_path;
    int no_peers, autograd;
    Option options[] = {
        { .name = "table", .type = OPTION_CHOICE, .value = &table, .fallback = "all",
          .choices = "all|speed|sustained|parts|lengths|paper",
          .help = "speeds, those under sustained load (not in `all`), those of the parts of a ring, or one of two "
                  "older tables from the literature" },
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
        { .name = "once", .type = OPTION_TEXT, .value = &once, .argument = "NAME",
          .help = "only run both passes of NAME (flash, naive, ...), for a profiler" },
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
    REQUIRE(speed || parts || sustained || !one_speed, "--table %s has its own --head-size and --T", table);
    Shape paper = { small ? 1 : 64, 1024, small ? 2 : 16, 64 };
    if (once) {
        run_once(once, one_speed ? speed_shape((int)(HS ? HS : 64), (int)(T ? T : 1024)) : paper);
        return 0;
    }
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
    for (int size = 64; size <= 128; size += 64)
        if (speed && (!HS || size == 64))
            speed_table(HS ? (int)HS : size, T ? (int)T : small ? 128 : 512, T ? (int)T : small ? 1024 : 16384);
    for (int size = 64; size <= 128; size += 64)
        if (sustained && (!HS || size == 64))
            sustained_table(HS ? (int)HS : size, T ? (int)T : small ? 128 : 2048, T ? (int)T : small ? 128 : 16384);
    for (int size = 64; size <= 128; size += 64)
        if (parts && (!HS || size == 64))
            for (int t = T ? (int)T : small ? 256 : 8192; t <= (T ? T : small ? 256 : 32768); t *= 4)
                parts_table(HS ? (int)HS : size, t);
    for (int size = 64; size <= 128; size += 64)
        if ((all && !one_speed) || strcmp(table, "lengths") == 0)
            lengths_table((Shape){ small ? 1 : 8, size == 64 ? 1920 : 2048, small ? 2 : 16, size });
    if ((all && !one_speed) || strcmp(table, "paper") == 0) paper_table(paper);
    return 0;
}
