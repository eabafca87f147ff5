/* test_report.c - The terminal output of a run: banner, step lines, progress, throttling. */
#include "report_run.h"
#include <stdio_ext.h>
#include <pty.h>

/* The last of the steps, step 9 or 100, is 6.1 s after the one before. */
static void space_steps(Report *report, LogRow *step) {
    EXPECT(!__fpending(stdout), "a line waits to be written");
    report->printed_at_s -= step->step == 9 || step->step == 100 ? 6.1 : 0.01;
}

/* The steps of the lines, as "1 6". */
static const char *steps_seen(const char *text) {
    char *steps = "";
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
        steps = STRING("%s%s%d", steps, *steps ? " " : "", atoi(line + strcspn(line, "0123456789\n")));
    return steps;
}

TEST(lines_are_as_frequent_as_asked) {
    settings.steps = 100;
    static const struct { int every; int64_t first, last; const char *want; } cases[] = {
        { 0, 1,  9,   "1 9" },              /* 6 s after the one before */
        { 0, 98, 100, "98 100" },
        { 4, 1,  9,   "1 4 8 9" },          /* the last one at the end */
        { 4, 3,  4,   "3 4" },
        { 1, 97, 100, "97 98 99 100" },
        { 7, 97, 100, "97 98 100" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Run run = { NULL, -1, cases[i].first, cases[i].last, space_steps };
        settings.log_every = cases[i].every;
        const char *text = PRINTED(run_steps(&run));
        EXPECT(!strcmp(steps_seen(text), cases[i].want), "case %d: %s of\n%s", i, steps_seen(text), text);
    }
    settings.log_every = 0;
}

static void pass_time(Report *report, LogRow *step) {
    if (step->step == 11) report->start_s -= 50;
}

/* The speed is the mean of the steps after the first one, which warms up. */
TEST(the_time_left_follows_the_speed) {
    settings.steps = 111;
    settings.log_every = 11;
    const char *text = PRINTED(run_steps(&(Run){ NULL, -1, 1, 11, pass_time }));
    EXPECT(strstr(text, "\nstep  11/111  ") && strstr(text, "  8m20s left  "), "%s", text);
    settings.log_every = 0;
}

static void quarter_done(double start_s) { print_progress("evaluating", 0.25, start_s); }

TEST(progress_is_for_terminals) {
    double now = seconds_now(), before = now - 60;
    char terminal[64], text[100] = "";
    int master, slave;
    EXPECT(!*PRINTED_ON(STDERR_FILENO, quarter_done(before)), "in a file");
    if (openpty(&master, &slave, terminal, NULL, NULL)) { test_skip_reason = "there are no pseudo terminals"; return; }
    const int errors = redirect(STDERR_FILENO, terminal);
    quarter_done(now);                                     /* too soon */
    quarter_done(before);
    quarter_done(before);                                  /* too soon after the last */
    restore(STDERR_FILENO, errors);
    EXPECT(read(master, text, sizeof text - 1) > 0, "nothing is shown");
    EXPECT(!strcmp(text, "evaluating: 25 % done, 3m00s left\r\n"), "%s", text);
    close(master);
    close(slave);
}

/* An abnormal state is shown from the row that knows of it to the next one that knows the state. */
static void set_health(Report *report, LogRow *step) {
    static const DeviceHealth known[] = {
        { 64, 700, 1700, "power", 0 }, { 91, 300, 600, "thermal", 1 }, { 0, 0, 0, NULL, 0 },
        { 64, 700, 1980, "none", 0 }, { 64, 700, 1980, "none", 0 } };
    report->row_health = known[(int)step->step - 1];
}

TEST(the_line_shows_abnormal_throttling_only) {
    static const char want[] =
        "step 1/5  loss 4.0000  norm 0.50   7680 tok/s  100.0 ms  lr 1.0e-03\n"
        "step 2/5  loss 2.0000  norm 0.50   7680 tok/s  throttled: thermal  0s left  100.0 ms  lr 1.0e-03\n"
        "step 3/5  loss 1.3333  norm 0.50   7680 tok/s  throttled: thermal  0s left  100.0 ms  lr 1.0e-03\n"
        "step 4/5  loss 1.0000  norm 0.50   7680 tok/s  0s left  100.0 ms  lr 1.0e-03\n"
        "step 5/5  loss 0.8000  norm 0.50   7680 tok/s  100.0 ms  lr 1.0e-03\n";
    settings.log_every = 1;
    settings.steps = 5;
    const char *text = PRINTED(run_steps(&(Run){ NULL, -1, 1, 5, set_health }));
    EXPECT(!strcmp(text, want), "got:\n%swant:\n%s", text, want);
    settings.log_every = 0;
}

/* tok/s are those of all ranks, mfu is of what all of them could compute. */
TEST(the_line_of_several_ranks) {
    comm_size = 2;
    device.peak_flops[F32] = 7680 * gpt_flops_per_token(&config) / 0.5;
    const char *text = PRINTED(run_steps(&(Run){ NULL, -1, 1, 1, NULL }));
    EXPECT(strstr(text, "  7680 tok/s (3840 each)  mfu 25.0%  100.0 ms (0.0 waiting)  lr"), "%s", text);
    device.peak_flops[F32] = 0;
    comm_size = 1;
}

static void set_extremes(Report *report, LogRow *s) {
    (void)report;
    const int n = (int)(s->step - 123456);
    s->loss = s->norm = (double[]){ 10.9, 1e300, NAN }[n];
    s->ms = n == 2 ? INFINITY : 1e7;
    s->tokens_per_s = n == 2 ? INFINITY : 1e12;
}

TEST(extreme_numbers_fit) {
    settings.log_every = 1;
    settings.steps = 999999;
    for (int known = 0; known < 4; known++) {
        health = known & 2 ? (DeviceHealth){ 91, 300, 600, "power-brake", 1 } : (DeviceHealth){0};
        device.peak_flops[F32] = known & 1 ? 2e12 : 0;
        const char *text = PRINTED(run_steps(&(Run){ "a", -1, 123456, 123458, set_extremes }));
        EXPECT(lines_in(text) == 3, "%s", text);
        for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
            EXPECT(!strncmp(line, "step 12345", 10) && !strncmp(end - 12, "  lr 1.0e-03", 12) &&
                   !strstr(line, "unknown"), "%d columns: %.*s", (int)(end - line), (int)(end - line), line);
        EXPECT(!strcmp(events_text(), "run0 end123458"), "%s", events_text());
        EXPECT(lines_in(log_text()) == 4, "%s", log_text());
    }
    device.peak_flops[F32] = 0;
    health = (DeviceHealth){0};
    settings.log_every = 0;
}

TEST(the_banner_has_a_line_each) {
    RunInfo info = info_of("a");
    const char *want = STRING(VERSION "\ndevice  %s, a device, of 1 core\nmodel   1 layers, 2 heads, 4 channels, "
                              "context 8, vocabulary 16, 0.00M parameters, f32, flash attention\ndata    "
                              "input.txt\nmemory  213 MiB of 7.00 GiB free\n", backend_name);
    const char *text = PRINTED(log_describe(stdout, &info, 0));
    EXPECT(!strcmp(text, want), "%s", text);
    GPTConfig large = { .L = 12, .NH = 12, .C = 768, .T = 1024, .V = 50257, .dtype = BF16 };      /* 124,439,808 */
    info.out = "runs/input";
    info.config = &large;
    info.recipe = "--lr 0.0006";
    want = STRING(VERSION "\noutput  runs/input\ndevice  %s, a device, of 1 core\nmodel   12 layers, 12 heads, 768 "
                  "channels, context 1024, vocabulary 50257, 124.44M parameters, bf16 (a resume is exact to the bit "
                  "with --deterministic), flash attention\nrecipe  --lr 0.0006 (chosen by the model; options win)\n"
                  "data    input.txt\nmemory  213 MiB of 7.00 GiB free\n", backend_name);
    text = PRINTED(log_describe(stdout, &info, 0));
    EXPECT(!strcmp(text, want), "%s", text);
}

TEST(numbers_for_people) {
    static const struct { double value; const char *want; } durations[] = {
        { 0, "0s" }, { 0.4, "0s" }, { 45, "45s" }, { 59.4, "59s" }, { 59.6, "1m00s" }, { 200, "3m20s" },
        { 3599.7, "1h00m" }, { 3720, "1h02m" }, { 86399, "23h59m" }, { 86400, "1d00h" }, { 183600, "2d03h" },
        { -1, "unknown" },
        { NAN, "unknown" }, { INFINITY, "unknown" } };
    static const struct { double value; const char *want; } bytes[] = {
        { 0, "0 B" }, { 1023, "1023 B" }, { 1024, "1 KiB" }, { 340 * 1048576.0, "340 MiB" },
        { 1.5 * 1073741824.0, "1.50 GiB" }, { 1023.4 * 1048576, "1023 MiB" }, { 1023.6 * 1048576, "1.00 GiB" },
        { 1023.999 * 1073741824, "1.00 TiB" },
        { 1e30, "888178419700125.25 PiB" } };
    char text[192];
    EXPECT(!strcmp(loss_text(1.5, 1, text), "1.5000 nats per byte (2.1640 bits)"), "%s", text);         /* 1.5 / ln 2 */
    EXPECT(!strcmp(loss_text(1.5, NAN, text), "1.5000 nats per token (perplexity 4.48)"), "%s", text);  /* e^1.5 */
    EXPECT(!strcmp(loss_text(3, 0.5, text),
                   "3.0000 nats per token (perplexity 20.09), 1.5000 nats per byte (2.1640 bits)"), "%s", text);
    EXPECT(!strcmp(loss_text(500, 0.5, text),
                   "500.0000 nats per token (perplexity 1.4e+217), 250.0000 nats per byte (360.6738 bits)"), "%s",
           text);
    EXPECT(strlen(loss_text(3.4e38, 1.5, text)) < 192, "%s", text);
    for (int i = 0; i < COUNT(durations); i++)
        EXPECT(!strcmp(duration_text(durations[i].value, text), durations[i].want), "%s, want %s", text,
               durations[i].want);
    for (int i = 0; i < COUNT(bytes); i++)
        EXPECT(!strcmp(bytes_text(bytes[i].value, text), bytes[i].want), "%s, want %s", text, bytes[i].want);
}

int main(void) {
    report_scratch_open();
    no_validation = 1;
    return test_all();
}
