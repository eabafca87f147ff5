/* test/test_report.c - What a user sees: the log and its resumes, the step line on a terminal and elsewhere. */
#include "scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include "../llmc/evaluate.h"
#include "../llmc/os.h"
#include "../llmc/report.h"

static char *log_path;

#define HEADER "step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss,temperature_c,power_w,clock_mhz,throttle\n"

static DeviceHealth health;      /* of the steps to come */

static StepReport step_of(int64_t step) {
    return (StepReport){ .step = step, .total = 100, .tokens = 768 * step, .loss = 4.0f / (float)step, .norm = 0.5,
                         .learning_rate = 1e-3, .ms = 100, .tokens_per_second = 7680,
                         .val_loss = step % 10 ? NAN : 1.5 };
}

/* What f prints: stdout is a file in the meantime. */
static const char *printed(void (*f)(void *), void *argument) {
    static char text[1 << 16];
    fflush(stdout);
    int terminal = dup(1), file = open(IN_SCRATCH("stdout"), O_CREAT | O_TRUNC | O_RDWR, 0600);
    if (file < 0) { perror("stdout"); exit(2); }
    dup2(file, 1);
    f(argument);
    fflush(stdout);
    dup2(terminal, 1);
    close(terminal);
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    close(file);
    return text;
}

static const char *log_text(void) {
    static char text[1 << 16];
    FILE *file = fopen(log_path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    return text;
}

/* command, and the head of its log */
typedef struct { const char *command; int64_t keep, first, last; } Run;

static RunInfo info_of(const char *command) {
    static const DeviceInfo device = { .name = "a device", .detail = "of 1 core" };
    static const GPTConfig config = { .L = 1, .NH = 2, .C = 4, .T = 8, .V = 16 };
    static const Option options[] = { {0} };
    return (RunInfo){ "train_gpt 0", command, &device, &config, options, 0.5 };
}

static const char *head_of(const char *command) {
    static char text[512];
    snprintf(text, sizeof text, "# command: %s\n# version: train_gpt 0\n# device: %s, a device, of 1 core\n# model: 1 "
             "layers, 2 heads, 4 channels, context 8, vocabulary 16, 348 parameters\n# settings:\n# floor: 0.500000\n"
             HEADER, command, backend_name);
    return text;
}
enum { HEAD_LINES = 7 };

static double resumed_val_loss = NAN;

static void run_steps(void *argument) {
    Run *run = argument;
    Report report;
    RunInfo info = info_of(run->command);
    if (run->keep < 0) unlink(log_path);
    report_open(&report, log_path, &info, run->keep, resumed_val_loss);
    for (int64_t step = run->first; step <= run->last; step++) {
        StepReport s = step_of(step);
        report.row_health = health;
        report_step(&report, &s);
    }
    report_close(&report);
}

static int64_t lines_of(const char *text) {
    int64_t lines = 0;
    for (; (text = strchr(text, '\n')); text++) lines++;
    return lines;
}

static void the_log_holds_every_step(void) {
    const char *lines = printed(run_steps, &(Run){ "a", -1, 1, 20 });
    const char *text = log_text();
    const char *start = STRING("%s1,768,4,0.5,0.001,100.000,7680.0,,,,,,\n2,1536,2,", head_of("a"));
    EXPECT(strstr(text, start) == text, "%s", text);
    EXPECT(strstr(text, "\n3,2304,1.33333337,0.5,"), "%%.9g identifies a float: %s", text);
    EXPECT(strstr(text, "\n10,7680,0.400000006,0.5,0.001,100.000,7680.0,,1.5,,,,\n"), "%s", text);
    EXPECT(lines_of(text) == HEAD_LINES + 20, "%d lines", (int)lines_of(text));
    /* not a terminal: first, val losses at 10 and 20 (the last that was seen), nothing between within a second */
    EXPECT(lines_of(lines) == 3 && !strchr(lines, '\r'), "%s", lines);
    static const char first[] =
        "step   1/100  loss 4.0000  norm 0.50   7680 tok/s  mfu unknown  10s left  100.0 ms  lr 1.0e-03\n";
    EXPECT(strstr(lines, first) == lines, "%s", lines);
    EXPECT(strstr(lines, "step  10/100  loss 0.4000  val 1.5000  norm 0.50"), "%s", lines);
    EXPECT(strstr(lines, "mfu unknown  9s left  100.0 ms"), "after 10 of 100 steps of 0.1 s: %s", lines);
}

static void the_log_holds_the_mfu(void) {
    Report report;
    StepReport s = step_of(1);
    RunInfo info = info_of("a");
    s.flops_per_token = 6e9;
    s.peak_flops = 100e12;
    unlink(log_path);
    report_open(&report, log_path, &info, -1, NAN);
    report_step(&report, &s);
    report_close(&report);
    EXPECT(strstr(log_text(), "\n1,768,4,0.5,0.001,100.000,7680.0,0.4608,,,,,\n"), "%s", log_text());
    unlink(log_path);
}

static void the_log_holds_the_health(void) {
    static const struct { DeviceHealth health; const char *want; } rows[] = {
        { { 64, 698.765, 1755, "power", 0 }, ",64,698.8,1755,power\n" },
        { { 91, 350, 210, "thermal", 1 },    ",91,350.0,210,thermal\n" },
        { { 0, 0, 0, "none", 0 },            ",,,,none\n" },
        { { 45, 0, 1980, NULL, 0 },          ",45,,1980,\n" },
        { { 0, 0, 0, NULL, 0 },              ",,,,\n" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char want[1024];
        health = rows[i].health;
        printed(run_steps, &(Run){ "a", -1, 1, 1 });
        snprintf(want, sizeof want, "%s1,768,4,0.5,0.001,100.000,7680.0,,%s", head_of("a"), rows[i].want);
        EXPECT(!strcmp(log_text(), want), "got %s\nwant %s", log_text(), want);
    }
    /* queried once a second: a row without a query has none */
    Report report;
    StepReport one = step_of(1), two = step_of(2);
    RunInfo info = info_of("a");
    unlink(log_path);
    report_open(&report, log_path, &info, -1, NAN);
    report.row_health = rows[1].health;
    report_step(&report, &one);
    report_step(&report, &two);
    report_close(&report);
    EXPECT(strstr(log_text(), ",91,350.0,210,thermal\n2,1536,2,0.5,0.001,100.000,7680.0,,,,,,\n"), "%s", log_text());
    health = (DeviceHealth){0};
}

/* Of a validation that a stop cut short: the row of the checkpoint's step gets the loss, an old loss stays. */
static void a_resume_adds_the_val_loss(void) {
    static const struct { int64_t keep; const char *want; } cases[] = {
        { 7, "\n7,5376,0.571428597,0.5,0.001,100.000,7680.0,,2.25,64,698.8,1755,power\n# resumed at step 7: b\n8," },
        { 10, "\n10,7680,0.400000006,0.5,0.001,100.000,7680.0,,1.5,64,698.8,1755,power\n# resumed at step 10: b\n" },
        { 30, "\n12,9216,0.333333343,0.5,0.001,100.000,7680.0,,,64,698.8,1755,power\n# resumed at step 30: b\n" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        int64_t next = cases[i].keep + 1;
        unlink(log_path);
        health = (DeviceHealth){ 64, 698.765, 1755, "power", 0 };
        printed(run_steps, &(Run){ "a", -1, 1, 12 });
        resumed_val_loss = 2.25;
        printed(run_steps, &(Run){ "b", cases[i].keep, next, next });
        resumed_val_loss = NAN;
        EXPECT(strstr(log_text(), cases[i].want), "got %s\nwant %s", log_text(), cases[i].want);
        EXPECT(lines_of(log_text()) == HEAD_LINES + (cases[i].keep < 12 ? cases[i].keep : 12) + 2, "%s", log_text());
    }
    health = (DeviceHealth){0};
    unlink(log_path);
}

static void a_resume_cuts_the_log(void) {
    char want[1 << 16];
    printed(run_steps, &(Run){ "first", -1, 1, 20 });
    snprintf(want, sizeof want, "%s", log_text());
    char *row13 = strstr(want, "\n13,") + 1;
    strcpy(row13, "# resumed at step 12: second --resume\n");

    printed(run_steps, &(Run){ "second --resume", 12, 13, 12 });
    EXPECT(!strcmp(log_text(), want), "got %s\nwant %s", log_text(), want);

    /* once more at the same step, from a log with a row that a kill left half written: no line stands twice */
    printed(run_steps, &(Run){ "second --resume", 12, 13, 15 });
    FILE *file = fopen(log_path, "a");
    fputs("16,122", file);
    fclose(file);
    printed(run_steps, &(Run){ "third", 15, 16, 18 });
    const char *text = log_text();
    EXPECT(strstr(text, want) == text && strstr(text, "\n15,11520,"), "%s", text);
    EXPECT(strstr(text, "7680.0,,,,,,\n# resumed at step 15: third\n16,12288,0.25,"), "%s", text);
    EXPECT(lines_of(text) == HEAD_LINES + 18 + 2, "%d lines: %s", (int)lines_of(text), text);

    /* other cells are kept as they are */
    char *cut = format_string("%.*s", (int)(strstr(text, "\n17,13056,") - text), text);
    put_text(log_path, STRING("%s\n17,5\n", cut));
    printed(run_steps, &(Run){ "third", 17, 18, 18 });
    char *joined = format_string("%s\n17,5\n# resumed at step 17: third\n18,13824,", cut);
    text = log_text();
    EXPECT(strstr(text, joined) == text, "got %s\nwant %s", text, joined);
    free(cut);
    free(joined);

    /* beyond the end, which is reported; at the start; without a log */
    const char *out = printed(run_steps, &(Run){ "fourth", 50, 51, 51 });
    EXPECT(strstr(out, "ends at step 18, the rows up to step 50 are missing\n"), "%s", out);
    text = log_text();
    EXPECT(strstr(text, "\n18,13824,") && strstr(text, "\n# resumed at step 50: fourth\n51,"), "%s", text);
    printed(run_steps, &(Run){ "fifth", 0, 1, 1 });
    text = log_text();
    EXPECT(strstr(text, STRING("%s# resumed at step 0: fifth\n1,", head_of("first"))) == text, "%s", text);
    EXPECT(lines_of(text) == HEAD_LINES + 2, "%s", text);
    unlink(log_path);
    printed(run_steps, &(Run){ "sixth", 5, 6, 6 });
    text = log_text();
    EXPECT(strstr(text, STRING("%s# resumed at step 5: sixth\n6,", head_of("sixth"))) == text, "%s", text);

    EXPECT(!file_exists(STRING("%s.new", log_path)), "a temporary file is left");
}

static void open_new_log(void *ignored) {
    (void)ignored;
    Report report;
    RunInfo info = info_of("a new run");
    report_open(&report, log_path, &info, -1, NAN);
    report_close(&report);
}

/* Of runs that were killed before their first checkpoint. */
static void a_log_without_a_checkpoint_is_renamed(void) {
    for (int i = 0; i < 2; i++) {
        put_text(log_path, i ? "second" : "first");
        printed(open_new_log, NULL);
        EXPECT(!strcmp(log_text(), head_of("a new run")), "%s", log_text());
    }
    put_text(IN_SCRATCH("1"), "first");
    put_text(IN_SCRATCH("2"), "second");
    EXPECT(same_files(IN_SCRATCH("1"), STRING("%s.old", log_path)), "the first log");
    EXPECT(same_files(IN_SCRATCH("2"), STRING("%s.old.2", log_path)), "the second log");
}

static void other_files_are_refused_and_kept(void) {
    static const struct { const char *want, *text; } logs[] = {
        { "not a log of training steps", "" },
        { "not a log of training steps", "a,b,c\n1,2,3\n" },
        { "not a log of training steps", "# only a head\n" },
        { "not a log of training steps", "step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss\n" },
        { "not a log of training steps", "step,tokens,loss\n1,2,3\n" },
        { "log.csv: damaged: want a row with a step after 1, got 1,2", HEADER "1,2,3,,,,,,,,,,\n1,2,3,,,,,,,,,,\n" },
        { "log.csv: damaged: want a row with a step after 0, got 0,2", HEADER "0,2,3,,,,,,,,,,\n" },
        { "log.csv: damaged", "# a\n" HEADER "1,2,3,,,,,,,,,,\n-2,2,3,,,,,,,,,,\n" },
        { "log.csv: damaged", HEADER "x,2,3,,,,,,,,,,\n" },
        { "log.csv: damaged", HEADER "\n" },
    };
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(log_path, logs[i].text);
        expect_fails(logs[i].want, run_steps, &(Run){ "x", 10, 11, 11 });
        EXPECT(!strcmp(log_text(), logs[i].text), "log %d has changed", (int)i);
    }
    unlink(log_path);
}

static int stands_for(int fd, const char *path) {      /* fd is path from now on; returns what it was */
    int was = dup(fd), other = open(path, O_WRONLY | O_APPEND);
    dup2(other, fd);
    close(other);
    return was;
}

static void is_again(int fd, int was) {
    dup2(was, fd);
    close(was);
}

/* Two rows while the disk is full; returns what stands for the log. */
static int full_disk(Report *report) {
    RunInfo info = info_of("a");
    report_open(report, log_path, &info, -1, NAN);
    int log = stands_for(report->csv, "/dev/full"), stderr_was = stands_for(STDERR_FILENO, "/dev/null");
    StepReport s[2] = { step_of(7), step_of(8) };
    report_step(report, &s[0]);
    report_step(report, &s[1]);
    report_sync(report);
    is_again(STDERR_FILENO, stderr_was);
    return log;
}

static void close_full(void *ignored) {
    (void)ignored;
    Report report;
    full_disk(&report);
    report_close(&report);
}

static void a_full_disk_loses_no_row(void) {
    if (access("/dev/full", W_OK)) { test_skip_reason = "there is no /dev/full"; return; }
    expect_fails("log.csv: cannot write: No space left on device; ", close_full, NULL);
    Report report;
    int log = full_disk(&report);
    EXPECT(report.csv_error == ENOSPC && report.pending_bytes > 0, "rows wait: errno %d", report.csv_error);
    is_again(report.csv, log);
    StepReport s = step_of(9);
    report_step(&report, &s);
    EXPECT(!report.csv_error && !report.pending_bytes, "no row waits");
    report_close(&report);
    const char *text = log_text();
    EXPECT(lines_of(text) == HEAD_LINES + 3 && strstr(text, "\n7,") && strstr(text, "\n8,") && strstr(text, "\n9,"),
           "%s", text);
    unlink(log_path);
}

static void leave(void) { _exit(1); }

/* What a terminal of so many columns gets to see of f, with its line feeds as they come. */
static const char *seen(int columns, void (*f)(void *), void *argument) {
    static char text[1 << 16];
    size_t length = 0;
    int status, master = posix_openpt(O_RDWR | O_NOCTTY);
    text[0] = 0;
    if (master < 0 || grantpt(master) || unlockpt(master)) return "";
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (terminal < 0) return "";
    ioctl(terminal, TIOCSWINSZ, &(struct winsize){ .ws_row = 24, .ws_col = (unsigned short)columns });
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        atexit(leave);       /* a failure here must not close the parent's scratch folder */
        dup2(terminal, 1);
        dup2(terminal, 2);
        f(argument);
        fflush(stdout);
        _exit(0);
    }
    close(terminal);
    for (ssize_t n; length < sizeof text - 1 && (n = read(master, text + length, sizeof text - 1 - length)) > 0; )
        length += (size_t)n;
    text[length] = 0;
    close(master);
    waitpid(child, &status, 0);
    return text;
}

static void terminal_run(void *argument) {
    Report report;
    StepReport s = { .step = 1, .total = 3000, .loss = 10.5, .norm = 123.4, .learning_rate = 6e-4, .ms = 1234,
                     .tokens_per_second = 123456, .flops_per_token = 1e9, .peak_flops = 123456e9 / 0.412,
                     .val_loss = NAN };
    report_open(&report, NULL, NULL, -1, NAN);
    report_step(&report, &s);
    report.printed_at_s -= 0.06;       /* lines in place come no more than 20 times a second */
    s = (StepReport){ .step = 2, .total = 3000, .loss = 9.25, .norm = 1, .learning_rate = 6e-4, .ms = 12.34,
                      .tokens_per_second = 50, .flops_per_token = 1e9, .peak_flops = 50e9 / 0.412,
                      .val_loss = NAN };
    report_step(&report, &s);
    report_line(stdout, "saved %d", 1);
    s.step = 3;
    s.val_loss = 2.5;
    report_step(&report, &s);
    s.step = 4;
    s.val_loss = NAN;
    s.peak_flops = 0;
    report_step(&report, &s);        /* too soon after the last: shown at the end */
    if (argument) fail("stopped");
    report_close(&report);
}

static void a_terminal_has_its_line_in_place(void) {
    const char *text = seen(200, terminal_run, NULL);
    if (!*text) { test_skip_reason = "there are no pseudo terminals"; return; }
    static const char *const lines[] = {
        "step    1/3000  loss 10.5000  norm 123.40  123456 tok/s  mfu 41.2%  1h01m left  1234.0 ms  lr 6.0e-04",
        "step    2/3000  loss 9.2500  norm 1.00     50 tok/s  mfu 41.2%  37s left  12.3 ms  lr 6.0e-04",
        "step    3/3000  loss 9.2500  val 2.5000  norm 1.00     50 tok/s  mfu 41.2%  37s left  12.3 ms  lr 6.0e-04",
        "step    4/3000  loss 9.2500  norm 1.00     50 tok/s  mfu unknown  37s left  12.3 ms  lr 6.0e-04" };
    char want[1024];
    snprintf(want, sizeof want, "\r\r%s\r%*s\r%s\r\nsaved 1\r\n\r\r%s\r\n\r\r%s\r\n", lines[0], (int)strlen(lines[0]),
             "", lines[1], lines[2], lines[3]);
    EXPECT(!strcmp(text, want), "got:\n%s", text);

    static const struct { int columns; const char *want; } narrow[] = {
        { 80, "\rstep    2/3000  loss 9.2500  norm 1.00     50 tok/s  mfu 41.2%  37s left  12.3 \r\n" },
        { 40, "\rstep    2/3000  loss 9.2500  norm 1.00 \r\n" },
        { 20, "\rstep    2/3000  los\r\n" },
        { 2, "\rs\r\n" },
    };
    for (int i = 0; i < COUNT(narrow); i++) {
        text = seen(narrow[i].columns, terminal_run, NULL);
        EXPECT(strstr(text, narrow[i].want), "%d columns: %s", narrow[i].columns, text);
        int column = 0;
        for (const char *c = text; *c && strncmp(c, "saved", 5); c++) {
            column = *c == '\r' || *c == '\n' ? 0 : column + 1;
            EXPECT(column < narrow[i].columns, "%d columns: %s", narrow[i].columns, text);
        }
    }
    text = seen(200, terminal_run, "fail");
    EXPECT(strstr(text, "lr 6.0e-04\r\ntrain_gpt: stopped\r\n"), "a failure has a line of its own: %s", text);
}

static void progress_run(void *quick) {
    Report report;
    report_open(&report, NULL, NULL, -1, NAN);
    report_step(&report, &(StepReport){ .step = 1, .total = 2, .loss = 1, .ms = 10, .val_loss = NAN });
    report_progress(&report, 0, 8);
    if (!quick) report.progress_start_s -= 1.01, report.printed_at_s -= 1.01;       /* a second later */
    report_progress(&report, 2, 8);
    report_progress(&report, 4, 8);      /* too soon after the last */
    report_progress(&report, 8, 8);
    report_line(stdout, "val loss");
    report_close(&report);
}

static void progress_is_seen_while_it_lasts(void) {
    const char *text = seen(20, progress_run, NULL);
    if (!*text) { test_skip_reason = "there are no pseudo terminals"; return; }
    EXPECT(!strcmp(text, "\r\rstep 1/2  loss 1.00\r                   \revaluating 25% done\r                   "
                   "\rval loss\r\n"), "got:\n%s", text);
    text = seen(80, progress_run, NULL);
    EXPECT(strstr(text, "\revaluating 25% done, 3s left\r"), "got:\n%s", text);
    text = seen(20, progress_run, "quick");
    EXPECT(!strcmp(text, "\r\rstep 1/2  loss 1.00\r                   \rval loss\r\n"), "got:\n%s", text);
    EXPECT(!strchr(printed(progress_run, NULL), '%'), "not on a terminal");
}

/* Distress is shown from the row that knows of it to the next one that knows the state. */
static void health_run(void *ignored) {
    (void)ignored;
    static const DeviceHealth known[] = {
        { 64, 700, 1700, "power", 0 }, { 91, 300, 600, "thermal", 1 }, { 0, 0, 0, NULL, 0 },
        { 64, 700, 1980, "none", 0 } };
    Report report;
    report_open(&report, NULL, NULL, -1, NAN);
    for (int i = 0; i < 4; i++) {
        StepReport s = { .step = i + 1, .total = 5, .loss = 1, .val_loss = 1, .ms = 10 };
        report.row_health = known[i];
        report_step(&report, &s);
    }
    report_close(&report);
}

static void the_line_shows_distress_only(void) {
    static const char want[] =
        "step 1/5  loss 1.0000  val 1.0000  norm 0.00      0 tok/s  mfu unknown  0s left  10.0 ms  lr 0.0e+00\n"
        "step 2/5  loss 1.0000  val 1.0000  norm 0.00      0 tok/s  mfu unknown  throttled: thermal  0s left  10.0 ms  "
        "lr 0.0e+00\n"
        "step 3/5  loss 1.0000  val 1.0000  norm 0.00      0 tok/s  mfu unknown  throttled: thermal  0s left  10.0 ms  "
        "lr 0.0e+00\n"
        "step 4/5  loss 1.0000  val 1.0000  norm 0.00      0 tok/s  mfu unknown  0s left  10.0 ms  lr 0.0e+00\n";
    const char *text = printed(health_run, NULL);
    EXPECT(!strcmp(text, want), "got:\n%swant:\n%s", text, want);
}

static void long_steps(void *argument) {
    Report report;
    StepReport s = { .step = 123456, .total = 999999, .loss = 10.9, .norm = 12345, .learning_rate = 1e-10, .ms = 1e7,
                     .tokens_per_second = 1e12, .val_loss = 10.9,
                     .flops_per_token = 1, .peak_flops = argument ? 2e12 : 0 };
    report_open(&report, NULL, NULL, -1, NAN);
    report.row_health = health;
    report_step(&report, &s);
    s.loss = s.norm = s.val_loss = 1e300;
    report_step(&report, &s);
    s.loss = s.norm = NAN;
    s.tokens_per_second = s.ms = INFINITY;
    report_step(&report, &s);
    report_close(&report);
}

static void extreme_numbers_fit(void) {
    for (int known = 0; known < 4; known++) {
        health = known & 2 ? (DeviceHealth){ 91, 300, 600, "power-brake", 1 } : (DeviceHealth){0};
        const char *text = printed(long_steps, known & 1 ? "known" : NULL);
        EXPECT(lines_of(text) == 3, "%s", text);
        for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
            EXPECT(end - line < 512 && !strncmp(line, "step 123456/999999  loss ", 25), "%d columns: %.*s",
                   (int)(end - line), (int)(end - line), line);
    }
    health = (DeviceHealth){0};
}

static void numbers_for_people(void) {
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
    static const struct { const char *text; double want; } seconds[] = {
        { "3h50m", 13800 }, { "2d", 172800 }, { "90s", 90 }, { "1.5h", 5400 }, { "3600", -1 }, { "0s", 0 },
        { "0.7s", 0.7 }, { "1d2h3m4s", 93784 }, { "0", -1 }, { "", -1 }, { "-1s", -1 }, { "3x", -1 }, { "1s2h", -1 },
        { "1h1h", -1 }, { "h", -1 }, { "1h30", -1 }, { "1.2.3s", -1 }, { "1e3", -1 }, { " 1s", -1 }, { "inf", -1 } };
    char text[96];
    EXPECT(!strcmp(loss_text(1.5, 1, text), "1.5000 nats per byte (2.1640 bits)"), "%s", text);         /* 1.5 / ln 2 */
    EXPECT(!strcmp(loss_text(1.5, 0, text), "1.5000 nats per token (perplexity 4.48)"), "%s", text);    /* e^1.5 */
    for (int i = 0; i < COUNT(seconds); i++)
        EXPECT(fabs(duration_seconds(seconds[i].text) - seconds[i].want) < 1e-9, "\"%s\": %g s", seconds[i].text,
               duration_seconds(seconds[i].text));
    for (int i = 0; i < COUNT(durations); i++)
        EXPECT(!strcmp(duration_text(durations[i].value, text), durations[i].want), "%s, want %s", text,
               durations[i].want);
    for (int i = 0; i < COUNT(bytes); i++)
        EXPECT(!strcmp(bytes_text(bytes[i].value, text), bytes[i].want), "%s, want %s", text, bytes[i].want);
}

int main(void) {
    scratch_open();
    log_path = IN_SCRATCH("log.csv");
    RUN(the_log_holds_every_step);
    RUN(the_log_holds_the_mfu);
    RUN(the_log_holds_the_health);
    RUN(a_resume_adds_the_val_loss);
    RUN(a_resume_cuts_the_log);
    RUN(a_log_without_a_checkpoint_is_renamed);
    RUN(other_files_are_refused_and_kept);
    RUN(a_full_disk_loses_no_row);
    RUN(a_terminal_has_its_line_in_place);
    RUN(progress_is_seen_while_it_lasts);
    RUN(the_line_shows_distress_only);
    RUN(extreme_numbers_fit);
    RUN(numbers_for_people);
    return test_close();
}
