/* What attention must stand beyond small shapes: every length around a tile's, more heads than a GPU has
   multiprocessors, data that is hard to sum and sums that are exact, rows so far apart that 32 bits cannot count the
   elements between them, hundreds of runs while another process loads the device. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include "attention_truth.h"

static int    on_cpu, lse_checked[MOST_IMPLEMENTATIONS];
static double lse_worst[MOST_IMPLEMENTATIONS];

static int64_t halves_from(Tensor t, int64_t row) {
    return ((char *)t.data - arena_device + row * t.pitch * (int64_t)dtype_bytes(t.dtype)) / 2;
}
static size_t row_bytes(Tensor t) { return (size_t)t.dim[t.ndim - 1] * dtype_bytes(t.dtype); }

static int same_bits(Tensor a, Tensor b) {
    int same = 1;
    for (int64_t r = 0; r < tensor_rows(a) && same; r++)
        same = !memcmp(arena_after + halves_from(a, r), arena_after + halves_from(b, r), row_bytes(a));
    return same;
}

static void copy_rows(Tensor to, Tensor from) {
    for (int64_t r = 0; r < tensor_rows(to); r++)
        memcpy(arena_before + halves_from(to, r), arena_before + halves_from(from, r), row_bytes(to));
}

/* ---- one case */

/* Some heads have data and a truth of their own, every other is the twin of one of these. */
typedef struct { Operands x[133]; Truth truth[3]; int heads, own, twin[133]; } Heads;

/* The state is opaque; where it is one float per query row, it is the natural log-sum-exp (B,NH,T). A score is a sum of
   HS terms, and its error is that of lse. */
static void check_lse(int n, const AttentionSpec *s, const Heads *h, Tensor state) {
    AttentionSpec longer = *s;
    longer.Tq = longer.Tk = 2 * s->Tq;
    size_t bytes = sizeof(float) * (size_t)(h->heads * s->Tq);
    if (attention_list[n]->state_bytes(s) != bytes || attention_list[n]->state_bytes(&longer) != 2 * bytes) return;
    double worst_ratio = 0;
    for (int row = 0; row < h->heads * s->Tq; row++) {
        const Truth *t = &h->truth[h->twin[row / s->Tq]];
        double want = t->want.lse[row % s->Tq], error = fabs(element(state, arena_after, row) - want);
        double ratio = error / (4 * 0x1p-24 * (sqrt(s->Tq + s->HS) + sqrt(s->HS) / 2 * t->condition + fabs(want)));
        if (!(ratio <= worst_ratio)) worst_ratio = ratio;
    }
    EXPECT(worst_ratio <= 1, "%s %s: lse is off by %.3f of its bound", arena_op, arena_case, worst_ratio);
    lse_checked[n]++;
    lse_worst[n] = fmax(lse_worst[n], worst_ratio);
}

/* The results of twins have the same bits; dq only where that is asked for. */
static void check_twin(const AttentionSpec *s, const Heads *h, int head) {
    int64_t pool_before = pool_used;
    for (int i = 0; i < OUTPUTS; i++) {
        Tensor got = output_of(h->x[head], i);
        const Truth *t = &h->truth[h->twin[head]];
        if (same_bits(got, output_of(h->x[h->twin[head]], i))) continue;
        EXPECT(i == DQ && !s->deterministic, "%s %s: %s of head %d differs from that of head %d with the same data",
               arena_op, arena_case, output_name[i], head, h->twin[head]);
        compare(output_name[i], got, t->want.x[i], (Bound){ s->Tq + s->HS, t->condition, t->floor[i], t->worst[i] });
        pool_used = pool_before;
    }
}

static void flash_case(AttentionSpec s, Layout layout, Data data) {
    static Heads h;
    int exact = data >= HARD_DATA_END, any = 0;
    s.deterministic = 1;
    arena_begin("flash", "B=%d NH=%d T=%d HS=%d layout %d, %s", s.B, s.NH, s.Tq, s.HS, layout, data_name[data]);
    Operands all = place_operands(&s, layout);
    h.heads = s.B * s.NH;
    h.own = s.Tq * s.HS > 250000 ? 1 : h.heads < 3 ? h.heads : 3;
    for (int head = 0; head < h.heads; head++) {
        h.x[head] = head_of(all, &s, head / s.NH, head % s.NH);
        h.twin[head] = head < h.own ? head : uniform_int(0, h.own - 1);
        const Operands *twin = &h.x[h.twin[head]];
        if (head < h.own) {
            fill_head(&s, data, h.x[head]);
            h.truth[head] = truth_of(&s, h.x[head], exact);
        } else {
            copy_rows(h.x[head].q, twin->q);
            copy_rows(h.x[head].k, twin->k);
            copy_rows(h.x[head].v, twin->v);
            copy_rows(h.x[head].dout, twin->dout);
        }
    }
    int64_t arena_case_end = arena_used;
    for (int n = 0; attention_list[n]; n++)
        for (s.deterministic = on_cpu; s.deterministic < 2; s.deterministic++) {        /* the CPU always is */
            arena_used = arena_case_end;
            if (attention_list[n]->refuse(&s)) { refused[n]++; continue; }
            if (!fits(n, &s)) continue;
            ran[n]++;
            any = 1;
            name_implementation(n);
            mark(all.dq, s.deterministic ? WRITTEN : SCRATCH);
            Memory memory = place_memory(attention_list[n], &s);
            EACH_RUN run_both(attention_list[n], &s, all, memory);
            check_lse(n, &s, &h, memory.state);
            int bf16_p = data == POWERS && arena_dtype == BF16 && !strcmp(attention_list[n]->name, "naive");
            Exact claim = !exact ? NOT_EXACT : bf16_p ? EXACT_FROM_BF16_P : EXACT;
            for (int head = 0; head < h.own; head++)       check_head(&s, &h.truth[head], h.x[head], claim);
            for (int head = h.own; head < h.heads; head++) check_twin(&s, &h, head);
        }
    EXPECT(any, "%s: no implementation takes it", arena_case);
}

/* ---- shapes and data */

static const int lengths[] = { 1, 2, 7, 8, 15, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257, 383,
                               1000, 1023, 1024, 1025, 2047, 4096, 4097, 4225 };

/* Whether its operands and a dq in f32, for either pass, of whole tiles of 128 rows, leave room; on the CPU, whether it
   is quick. */
static int affordable(AttentionSpec s, Layout layout) {
    int64_t count = (int64_t)s.B * s.NH * s.Tq * s.HS;
    int64_t padded = (int64_t)s.B * s.NH * ((s.Tq + 127) / 128 * 128) * (s.HS + 8);
    if (on_cpu && ((int64_t)s.Tq * s.Tq * s.HS > 1 << 25 || count > 1 << 20)) return 0;
    int64_t operands = (layout == VIEWS ? 24 : 8) * count * (int64_t)dtype_bytes(arena_dtype) / 2;
    return operands + 4 * padded + (1 << 18) <= ARENA_HALVES;
}

/* All lengths up to two tiles with 1, 3, 131 and 133 heads, longer ones with 1 or 3. */
static void lengths_and_heads(void) {
    static const struct { int B, NH; } heads[] = { {3, 1}, {1, 1}, {1, 131}, {7, 19} };
    int left_out = 0, cases = 0;
    for (int i = 0; i < COUNT(lengths); i++)
        for (int wide = 0; wide < 2; wide++)
            for (int h = 0; h < COUNT(heads); h++) {
                AttentionSpec s = spec_of(heads[h].B, heads[h].NH, lengths[i], wide ? 128 : 64);
                if (lengths[i] > 129 && h != (i + wide) % 2) continue;
                if (!affordable(s, PACKED)) { left_out++; continue; }
                flash_case(s, cases++ % 2 ? ONE_QKV : PACKED, RANDOM);
            }
    printf("  %d shapes, %d more are too large for this test on this device\n", cases, left_out);
}

static void head_sizes(void) {
    static const int head_sizes[] = { 8, 16, 24, 40, 72, 80, 96, 120 };
    for (int i = 0; i < COUNT(head_sizes); i++) {
        flash_case(spec_of(3, 2, 129, head_sizes[i]), i % LAYOUTS, RANDOM);
        flash_case(spec_of(1, 1, on_cpu ? 400 : 600, head_sizes[i]), (i + 1) % LAYOUTS, RANDOM);
    }
}

static void hard_data(void) {
    for (Data data = RANDOM + 1; data < HARD_DATA_END; data++) {
        flash_case(spec_of(1, 2, 383, 64), data % LAYOUTS, data);
        flash_case(spec_of(2, 1, on_cpu ? 300 : 600, 128), (data + 1) % LAYOUTS, data);
        flash_case(spec_of(1, 1, 193, 40), (data + 2) % LAYOUTS, data);
    }
}

static void exact_data(void) {
    static const int head_sizes[] = { 64, 128, 16, 40, 120 };
    for (int i = 0; i < COUNT(lengths); i++) {
        AttentionSpec s = spec_of(1, 2, lengths[i], i % 2 ? 64 : 128);
        AttentionSpec other = spec_of(2, 1, lengths[i], head_sizes[i % COUNT(head_sizes)]);
        s.scale = other.scale = 0.125f;
        if (affordable(s, ONE_QKV))   flash_case(s, ONE_QKV, POWERS);
        if (affordable(s, PACKED))    flash_case(s, PACKED, ONE_HOT);
        if (lengths[i] > 1025) continue;
        if (affordable(other, VIEWS)) flash_case(other, VIEWS, i % 2 ? POWERS : ONE_HOT);
    }
}

/* Whoever is called flash keeps nothing that grows with T squared. */
static void linear_memory(void) {
    for (int n = 0; attention_list[n]; n++) {
        AttentionSpec s = spec_of(2, 3, 8192, 64);
        for (s.deterministic = 0; s.deterministic < 2; s.deterministic++) {
            if (strcmp(attention_list[n]->name, "flash") || attention_list[n]->refuse(&s)) continue;
            EXPECT(memory_bytes(attention_list[n], s, 2) <= 2 * memory_bytes(attention_list[n], s, 1) + 65536,
                   "flash %d%s: %lld bytes at T = 8192, %lld at 16384", n + 1, s.deterministic ? ", deterministic" : "",
                   (long long)memory_bytes(attention_list[n], s, 1), (long long)memory_bytes(attention_list[n], s, 2));
        }
    }
}

/* ---- rows that are far apart: offsets beyond 2^31 elements, 2^32 bytes */

static void far_rows(void) {
    AttentionSpec s = spec_of(1, 2, on_cpu ? 100 : 2100, 64);
    int64_t pitch = on_cpu ? 1 << 12 : (1 << 20) + 8;
    size_t bytes = (size_t)(s.Tq * pitch) * dtype_bytes(arena_dtype);
    if (device_info().free_bytes < (int64_t)bytes + (1 << 28)) {
        test_skip_reason = "rows 2 MiB apart need more memory than is free";
        return;
    }
    s.deterministic = 1;
    arena_begin("far rows", "T=%d pitch=%lld", s.Tq, (long long)pitch);
    Operands near = place_operands(&s, PACKED), far;
    for (int h = 0; h < s.NH; h++) fill_head(&s, RANDOM, head_of(near, &s, 0, h));
    char *device = device_alloc(bytes, "rows that are far apart");
    Tensor *const from[] = { &near.q, &near.k, &near.v, &near.dout, &near.out, &near.dq, &near.dk, &near.dv };
    Tensor *const to[] = { &far.q, &far.k, &far.v, &far.dout, &far.out, &far.dq, &far.dk, &far.dv };
    for (int i = 0; i < COUNT(to); i++) {
        *to[i] = *from[i];
        to[i]->data = device + (size_t)i * row_bytes(near.q);
        to[i]->pitch = pitch;
        for (int t = 0; t < s.Tq; t++)
            device_upload((char *)to[i]->data + (size_t)(t * pitch) * dtype_bytes(arena_dtype),
                          arena_before + halves_from(*from[i], t), row_bytes(near.q));
    }
    int64_t arena_case_end = arena_used;
    for (int n = 0; attention_list[n]; n++) {
        arena_used = arena_case_end;
        if (attention_list[n]->refuse(&s) || !fits(n, &s)) continue;
        name_implementation(n);
        Memory memory = place_memory(attention_list[n], &s);
        EACH_RUN run_both(attention_list[n], &s, near, memory);
        run_both(attention_list[n], &s, far, memory);
        char row[sizeof(float) * 2 * 64];
        int64_t different = 0;
        for (int i = 4; i < COUNT(to); i++)
            for (int t = 0; t < s.Tq; t++) {
                device_download(row, (char *)to[i]->data + (size_t)(t * pitch) * dtype_bytes(arena_dtype),
                                row_bytes(near.q));
                different += memcmp(row, arena_after + halves_from(*from[i], t), row_bytes(near.q)) != 0;
            }
        EXPECT(!different, "%s %s: %lld rows differ from those of packed operands", arena_op, arena_case,
               (long long)different);
    }
    device_free(device);
}

/* ---- the same bits, run after run, while another process loads the device */

static volatile int *load_count;        /* passes of the other process; shared with it */
static int load_pipe[2];
static pid_t load_process;

/* Must be called before the device is opened: a child of a process that has opened a GPU cannot use it. The child waits
   for a byte, then works until the pipe is closed. */
static void load_open(void) {
    load_count = mmap(NULL, sizeof *load_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (load_count == MAP_FAILED || pipe(load_pipe)) fail("no pipe to a process that loads the device");
    signal(SIGPIPE, SIG_IGN);
    fflush(NULL);
    load_process = fork();
    if (load_process != 0) { close(load_pipe[0]); return; }
    char byte;
    close(load_pipe[1]);
    if (read(load_pipe[0], &byte, 1) != 1) _exit(0);
    device_open((DeviceOptions){ .threads = 1 });
    on_cpu = strcmp(backend_name, "cpu") == 0;
    arena_dtype = device_refuse_dtype(BF16) ? F32 : BF16;
    AttentionSpec s = on_cpu ? spec_of(1, 1, 256, 64) : spec_of(4, 12, 2048, 64);
    const Attention *a = attention_pick("auto", &s);
    Tensor t[8];
    for (int i = 0; i < COUNT(t); i++) {
        t[i] = tensor_of(NULL, arena_dtype, 3, s.B, s.Tq, s.NH * s.HS);
        t[i].data = device_alloc(tensor_bytes(t[i]), "the load");
    }
    void *state = device_alloc(a->state_bytes(&s), "the load");
    void *work = device_alloc(a->workspace_bytes(&s), "the load");
    fcntl(load_pipe[0], F_SETFL, O_NONBLOCK);
    while (read(load_pipe[0], &byte, 1) < 0) {
        a->forward(&s, t[0], state, t[1], t[2], t[3], work);
        a->backward(&s, t[4], t[5], t[6], t[7], t[0], state, t[1], t[2], t[3], work);
        device_wait();
        ++*load_count;
        usleep(500);            /* a GPU is given to one process at a time: the other one needs its share */
    }
    _exit(0);
}

static void load_start(void) {
    ssize_t written = write(load_pipe[1], "", 1);
    for (int tenths = 0; written == 1 && !*load_count && tenths < 300; tenths++) {
        if (waitpid(load_process, NULL, WNOHANG)) return;
        usleep(100000);
    }
}

static void load_stop(void) {
    close(load_pipe[1]);
    waitpid(load_process, NULL, 0);
}

/* cudaStreamPerThread, which needs no CUDA header to be named: work goes to it and to the backend's own stream by
   turns. */
static void *const other_stream = (void *)2;

/* 200 runs of flash in bf16, for what may go wrong one time in a hundred. */
static void repeat(AttentionSpec s) {
    arena_begin("repetition", "B=%d NH=%d T=%d HS=%d%s", s.B, s.NH, s.Tq, s.HS,
                s.deterministic ? ", deterministic" : "");
    Operands all = place_operands(&s, PACKED), first = head_of(all, &s, 0, 0);
    for (int head = 0; head < s.B * s.NH; head++) fill_head(&s, RANDOM, head_of(all, &s, head / s.NH, head % s.NH));
    Truth truth = truth_of(&s, first, 0);
    int64_t arena_case_end = arena_used, pool_case_end = pool_used;
    for (int n = 0; attention_list[n]; n++) {
        arena_used = arena_case_end;
        if (attention_list[n]->refuse(&s) || !fits(n, &s)) continue;
        name_implementation(n);
        Memory memory = place_memory(attention_list[n], &s);
        int flash = strcmp(attention_list[n]->name, "flash") == 0, different[OUTPUTS] = {0};
        int runs = on_cpu ? 5 : flash && arena_dtype == BF16 ? 200 : 20;
        arena_run(0);
        run_both(attention_list[n], &s, all, memory);
        arena_run(1);                                   /* into arena_first; poison again */
        for (int run = 1; run < runs; run++) {
            if (run % 20 == 0) arena_upload();
            device_use_stream(run % 2 ? other_stream : NULL);
            run_both(attention_list[n], &s, all, memory);
            for (int i = 0; i < OUTPUTS; i++) {
                Tensor t = output_of(all, i);
                uint16_t *got = arena_after + halves_from(t, 0), *before = arena_first + halves_from(t, 0);
                device_download(got, t.data, tensor_bytes(t));
                if (!memcmp(got, before, tensor_bytes(t))) continue;
                different[i]++;
                if (i != DQ || s.deterministic) continue;
                compare("dq", first.dq, truth.want.x[DQ], (Bound){ s.Tq + s.HS, truth.condition, truth.floor[DQ],
                                                                   truth.worst[DQ] });
                pool_used = pool_case_end;
            }
        }
        device_use_stream(NULL);
        for (int i = 0; i < OUTPUTS; i++)
            EXPECT(!different[i] || (i == DQ && !s.deterministic), "%s %s: %s differs from the first run's in %d of %d",
                   arena_op, arena_case, output_name[i], different[i], runs);
    }
}

static void repetition(void) {
    int before = *load_count, loaded = before > 0;
    for (int wide = 0; wide < 2; wide++)
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            AttentionSpec s = on_cpu ? spec_of(1, 3, 200, wide ? 128 : 64)
                                     : spec_of(arena_dtype == BF16 ? 2 : 1, wide ? 8 : 17, 511, wide ? 128 : 64);
            s.deterministic = deterministic;
            repeat(s);
        }
    if (!loaded) printf("  without load: no second process may use this device\n");
    EXPECT(!loaded || *load_count > before, "the other process stood still");
    printf("  %d passes of the other process meanwhile\n", *load_count - before);
}

int main(void) {
    load_open();
    arena_open();
    on_cpu = strcmp(backend_name, "cpu") == 0;
    RUN(linear_memory);
    RUN_EACH_DTYPE(lengths_and_heads);
    RUN_EACH_DTYPE(head_sizes);
    RUN_EACH_DTYPE(hard_data);
    RUN_EACH_DTYPE(exact_data);
    RUN_EACH_DTYPE(far_rows);
    load_start();
    RUN_EACH_DTYPE(repetition);
    load_stop();
    print_implementations();
    for (int n = 0; attention_list[n]; n++)
        printf("  %s %d: %d more too long for all of P; lse checked in %d, error/bound at most %.3f\n",
               attention_list[n]->name, n + 1, too_long[n], lse_checked[n], lse_worst[n]);
    arena_close();
    return test_close();
}
