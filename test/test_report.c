/* test/test_report.c - What a user sees: log.csv, log.jsonl and settings.txt, also after a resume, and the lines on a
   terminal and elsewhere. */
#include "scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include "../llmc/json.h"
#include "../llmc/os.h"
#include "../llmc/report.h"

static char *out;               /* the directory of the run */
static char *log_path, *events_path, *settings_path;

#define ALL_COLUMNS \
    "step,seconds,tokens,loss,val_loss,norm,lr,ms,tokens_per_s,mfu,temperature_c,power_w,clock_mhz,throttle\n"

/* ---- The device's health, by --wrap=device_health */

static DeviceHealth health;      /* as the device reports it, and of the steps to come */

DeviceHealth __wrap_device_health(void);
DeviceHealth __wrap_device_health(void) { return health; }

/* ---- A run */

static DeviceInfo device = { .name = "a device", .detail = "of 1 core" };
static const GPTConfig config = { .L = 1, .NH = 2, .C = 4, .T = 8, .V = 16 };
static int64_t layers = 1;
static double rate = 0.0003;
static int flag;
static const char *prompt = "say \"hi\"\\\t";
static const Option options[] = {
    { .name = "layers", .type = OPTION_INTEGER, .value = &layers, .fallback = "1", .role = ROLE_KEPT },
    { .name = "lr", .type = OPTION_REAL, .value = &rate, .fallback = "0.001", .role = ROLE_KEPT },
    { .name = "deterministic", .type = OPTION_FLAG, .value = &flag, .fallback = "no", .role = ROLE_KEPT },
    { .name = "prompt", .type = OPTION_TEXT, .value = &prompt, .fallback = "", .role = ROLE_KEPT },
    {0} };

static int no_validation, with_events, log_every;      /* of the runs to come */
static double resumed_val_loss = NAN;
static const char *changes;

static RunInfo info_of(const char *command) {
    return (RunInfo){ .version = "train_gpt 0", .command = command, .device = &device, .config = &config,
                      .data = "input.txt", .memory = "213 MiB of 7.6 GiB free", .attention = "flash",
                      .options = options, .val_floor = 0.5, .validates = !no_validation, .steps = 100,
                      .log_every = log_every, .log_jsonl = with_events };
}

static StepReport step_of(int64_t step) {
    return (StepReport){ .step = step, .tokens = 768 * step, .loss = 4.0f / (float)step, .norm = 0.5,
                         .learning_rate = 1e-3, .ms = 100, .tokens_per_second = 7680,
                         .val_loss = step % 10 || no_validation ? NAN : 1.5 };
}

/* keep: the step of the checkpoint; -1 = a new run */
typedef struct { const char *command; int64_t keep, first, last; } Run;

static void open_run(Report *report, const Run *run) {
    RunInfo info = info_of(run->command);
    ResumeInfo resume = { .step = run->keep, .val_loss = resumed_val_loss, .changes = changes };
    if (run->keep < 0) unlink(log_path), unlink(events_path);
    report_open(report, out, &info, run->keep < 0 ? NULL : &resume);
}

static void run_steps(void *argument) {
    Run *run = argument;
    Report report;
    open_run(&report, run);
    for (int64_t step = run->first; step <= run->last; step++) {
        StepReport s = step_of(step);
        report.row_health = health;
        if (!isnan(s.val_loss))
            report_validation(&report, &(ValidationReport){ step, s.val_loss, 0.5, 1, 0 });
        report_step(&report, &s);
    }
    report_close(&report, "done");
}

/* ---- What it writes */

/* What f prints: fd is a file in the meantime. */
static const char *printed_on(int fd, void (*f)(void *), void *argument) {
    static char text[1 << 16];
    fflush(NULL);
    int terminal = dup(fd), file = open(IN_SCRATCH("printed"), O_CREAT | O_TRUNC | O_RDWR, 0600);
    if (file < 0) { perror("printed"); exit(2); }
    dup2(file, fd);
    f(argument);
    fflush(NULL);
    dup2(terminal, fd);
    close(terminal);
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    text[length > 0 ? length : 0] = 0;
    close(file);
    return text;
}

static const char *printed(void (*f)(void *), void *argument) { return printed_on(STDOUT_FILENO, f, argument); }

static const char *text_of(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    if (file && fread(text, 1, (1 << 16) - 1, file) == 0 && ferror(file)) perror(path);
    if (file) fclose(file);
    return scratch_keep(text);
}

static const char *log_text(void) { return text_of(log_path); }

static int begins_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }

static int64_t lines_in(const char *text) {
    int64_t lines = 0;
    for (; (text = strchr(text, '\n')); text++) lines++;
    return lines;
}

/* The cell of a row of log.csv, "" also when it is empty, NULL when there is no such row or column. */
static const char *cell_of(int64_t step, const char *name) {
    const char *text = log_text(), *at = text;
    int column = 0, width = (int)strlen(name);
    for (; strncmp(at, name, (size_t)width) || !strchr(",\n", at[width]); at++, column++) {
        at += strcspn(at, ",\n");
        if (*at != ',') return NULL;
    }
    at = strstr(text, STRING("\n%lld,", (long long)step));
    if (!at) return NULL;
    for (at++; column--; at++) {
        at += strcspn(at, ",\n");
        if (*at != ',') return NULL;
    }
    return STRING("%.*s", (int)strcspn(at, ",\n"), at);
}

static int cell_is(int64_t step, const char *name, const char *want) {
    const char *cell = cell_of(step, name);
    return want && cell ? !strcmp(cell, want) : want == cell;
}

#define EXPECT_CELL(step, name, want) \
    EXPECT(cell_is(step, name, want), "%s of step %d: got %s, want %s", name, (int)(step), cell_of(step, name), want)

/* Line n of log.jsonl, from 0; NULL = there are not so many. It lives as long as the program. */
static Json *event_at(int n) {
    const char *text = text_of(events_path);
    while (n-- && text) if ((text = strchr(text, '\n'))) text++;
    return text && *text ? json_parse(text, strcspn(text, "\n"), "log.jsonl") : NULL;
}

/* "run step step validation": the events. */
static const char *events_text(void) {
    char *text = "";
    Json *event;
    for (int n = 0; (event = event_at(n)); n++) {
        const Json *step = json_find(event, "step");
        text = STRING("%s%s%s%s", text, n ? " " : "", json_string(event, "event"), step ? step->text : "");
        json_free(event);
    }
    return text;
}

/* ---- log.csv */

static void the_log_holds_every_step(void) {
    double start = seconds_now();
    const char *lines = printed(run_steps, &(Run){ "a", -1, 1, 20 });
    double took = seconds_now() - start, last = 0;
    const char *text = log_text();
    static const char header[] = "step,seconds,tokens,loss,val_loss,norm,lr,ms,tokens_per_s\n1,";
    EXPECT(begins_with(text, header), "%s", text);
    EXPECT(lines_in(text) == 1 + 20, "%d lines", (int)lines_in(text));
    for (int64_t step = 1; step <= 20; step++) {
        StepReport s = step_of(step);
        EXPECT_CELL(step, "tokens", STRING("%lld", (long long)s.tokens));
        EXPECT_CELL(step, "val_loss", step % 10 ? "" : "1.5");
        EXPECT_CELL(step, "norm", "0.5");
        EXPECT_CELL(step, "lr", "0.001");
        EXPECT_CELL(step, "ms", "100.000");
        EXPECT_CELL(step, "tokens_per_s", "7680.0");
        EXPECT(strtof(cell_of(step, "loss"), NULL) == (float)s.loss, "the loss is the same float");
        double seconds = strtod(cell_of(step, "seconds"), NULL);
        EXPECT(seconds >= last && seconds <= took + 0.0005, "step %d: %g s of %g", (int)step, seconds, took);
        last = seconds;
    }
    /* on no terminal: the first, the validations, the last that was seen */
    EXPECT(!strcmp(lines,
        "step   1/100  loss 4.0000  norm 0.50   7680 tok/s  100.0 ms  lr 1.0e-03\n"
        "step 10: val loss 1.5000 nats per byte (2.1640 bits), floor 0.5000\n"
        "step 20: val loss 1.5000 nats per byte (2.1640 bits), floor 0.5000\n"
        "step  20/100  loss 0.2000  norm 0.50   7680 tok/s  8s left  100.0 ms  lr 1.0e-03\n"), "%s", lines);
}

/* Columns that would always be empty are left out. */
static void the_log_has_the_columns_that_are_known(void) {
    double peak = 7680 * gpt_flops_per_token(&config) / 0.4608;
    for (int known = 0; known < 8; known++) {
        no_validation = !(known & 1);
        device.peak_flops[F32] = known & 2 ? peak : 0;
        health = known & 4 ? (DeviceHealth){ .power_w = 100 } : (DeviceHealth){0};
        printed(run_steps, &(Run){ "a", -1, 1, 1 });
        const char *want = STRING("step,seconds,tokens,loss%s,norm,lr,ms,tokens_per_s%s%s\n1,",
            known & 1 ? ",val_loss" : "", known & 2 ? ",mfu" : "",
            known & 4 ? ",temperature_c,power_w,clock_mhz,throttle" : "");
        EXPECT(begins_with(log_text(), want), "got %s\nwant %s", log_text(), want);
        EXPECT_CELL(1, "mfu", known & 2 ? "0.4608" : NULL);
        EXPECT_CELL(1, "power_w", known & 4 ? "100.0" : NULL);
        /* a resume goes on with the columns of the file, in their order, and adds what this run has more at the end */
        no_validation = 0, device.peak_flops[F32] = peak, health = (DeviceHealth){ .clock_mhz = 210 };
        printed(run_steps, &(Run){ "b", 1, 2, 10 });
        EXPECT(!strncmp(log_text(), want, strcspn(want, "\n")) && lines_in(log_text()) == 11, "%s", log_text());
        EXPECT_CELL(1, "val_loss", "");
        EXPECT_CELL(10, "val_loss", "1.5");
        EXPECT_CELL(1, "power_w", known & 4 ? "100.0" : "");
        EXPECT_CELL(10, "clock_mhz", "210");
    }
    put_text(log_path, "step,lr,loss\n1,2,3\n");
    printed(run_steps, &(Run){ "b", 1, 2, 2 });
    EXPECT(!strcmp(log_text(), "step,lr,loss,seconds,tokens,val_loss,norm,ms,tokens_per_s,mfu,temperature_c,"
           "power_w,clock_mhz,throttle\n1,2,3,,,,,,,,,,,\n2,0.001,2,0.000,1536,,0.5,100.000,7680.0,0.4608,,,210,"
           "\n"), "%s", log_text());
    device.peak_flops[F32] = 0;
    health = (DeviceHealth){0};
}

static void the_log_holds_the_health(void) {
    static const struct { DeviceHealth health; const char *temperature, *power, *clock, *throttle; } rows[] = {
        { { 64, 698.765, 1755, "power", 0 }, "64", "698.8", "1755", "power" },
        { { 91, 350, 210, "thermal", 1 },    "91", "350.0", "210",  "thermal" },
        { { 0, 0, 0, "none", 0 },            "",   "",      "",     "none" },
        { { 45, 0, 1980, NULL, 0 },          "45", "",      "1980", "" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        health = rows[i].health;
        printed(run_steps, &(Run){ "a", -1, 1, 1 });
        EXPECT_CELL(1, "temperature_c", rows[i].temperature);
        EXPECT_CELL(1, "power_w", rows[i].power);
        EXPECT_CELL(1, "clock_mhz", rows[i].clock);
        EXPECT_CELL(1, "throttle", rows[i].throttle);
    }
    /* queried once a second: a row without a query has none */
    Report report;
    StepReport one = step_of(1), two = step_of(2), three = step_of(3);
    open_run(&report, &(Run){ "a", -1, 1, 3 });
    report_health(&report);
    report_step(&report, &one);
    report_health(&report);
    report_step(&report, &two);
    report.health_at_s -= 1;
    report_health(&report);
    report_step(&report, &three);
    report_close(&report, "done");
    EXPECT_CELL(1, "clock_mhz", "1980");
    EXPECT_CELL(2, "clock_mhz", "");
    EXPECT_CELL(3, "clock_mhz", "1980");
    health = (DeviceHealth){0};
}

/* Of a validation that a stop cut short: the row of the checkpoint's step gets the loss, an old loss stays. */
static void a_resume_adds_the_val_loss(void) {
    static const struct { int64_t keep; const char *want; } cases[] = { { 7, "2.25" }, { 10, "1.5" } };
    for (int i = 0; i < COUNT(cases); i++) {
        int64_t keep = cases[i].keep;
        printed(run_steps, &(Run){ "a", -1, 1, 12 });
        const char *rest = STRING("%s", strstr(log_text(), STRING("\n%lld,", (long long)keep - 1)));
        resumed_val_loss = 2.25;
        printed(run_steps, &(Run){ "b", keep, keep + 1, keep + 1 });
        resumed_val_loss = NAN;
        EXPECT_CELL(keep, "val_loss", cases[i].want);
        EXPECT_CELL(keep - 1, "val_loss", "");
        EXPECT_CELL(keep, "lr", "0.001");
        EXPECT(lines_in(log_text()) == 1 + keep + 1, "%s", log_text());
        EXPECT(!strncmp(strstr(log_text(), STRING("\n%lld,", (long long)keep - 1)), rest, 30), "the rows before stay");
    }
    resumed_val_loss = 2.25;
    printed(run_steps, &(Run){ "a", -1, 1, 3 });
    printed(run_steps, &(Run){ "b", 30, 31, 31 });         /* whose row is missing */
    resumed_val_loss = NAN;
    EXPECT_CELL(3, "val_loss", "");
    EXPECT(lines_in(log_text()) == 5, "%s", log_text());
    no_validation = 1;
    printed(run_steps, &(Run){ "a", -1, 1, 3 });
    resumed_val_loss = 2.25;
    printed(run_steps, &(Run){ "b", 3, 4, 4 });            /* no such column */
    resumed_val_loss = NAN;
    no_validation = 0;
    EXPECT(lines_in(log_text()) == 5, "%s", log_text());
}

static void a_resume_cuts_the_log(void) {
    printed(run_steps, &(Run){ "first", -1, 1, 20 });
    const char *whole = log_text();
    const char *want = STRING("%.*s", (int)(strstr(whole, "\n13,") + 1 - whole), whole);
    for (int twice = 0; twice < 2; twice++) {
        printed(run_steps, &(Run){ "second", 12, 13, 12 });
        EXPECT(!strcmp(log_text(), want), "got %s\nwant %s", log_text(), want);
    }

    /* a row that a kill left half written */
    printed(run_steps, &(Run){ "second", 12, 13, 15 });
    put_text(log_path, STRING("%s16,122", log_text()));
    const char *out_lines = STRING("%s", printed(run_steps, &(Run){ "third", 15, 16, 18 }));
    const char *text = log_text();
    EXPECT(begins_with(text, want) && cell_of(15, "ms") && lines_in(text) == 1 + 18, "%s", text);
    EXPECT_CELL(16, "tokens", "12288");
    EXPECT(!strstr(out_lines, "missing"), "%s", out_lines);

    /* other cells are kept as they are */
    const char *cut = STRING("%.*s\n17,5\n", (int)(strstr(text, "\n17,") - text), text);
    put_text(log_path, cut);
    printed(run_steps, &(Run){ "third", 17, 18, 18 });
    EXPECT(begins_with(log_text(), cut) && lines_in(log_text()) == 1 + 18, "%s", log_text());

    /* beyond the end, which is reported; at the start; without a log */
    out_lines = printed(run_steps, &(Run){ "fourth", 50, 51, 51 });
    EXPECT(strstr(out_lines, "log.csv: ends at step 18, the rows up to step 50 are missing\n"), "%s", out_lines);
    EXPECT(cell_of(18, "ms") && cell_of(51, "ms") && lines_in(log_text()) == 1 + 19, "%s", log_text());
    printed(run_steps, &(Run){ "fifth", 0, 1, 1 });
    EXPECT(cell_of(1, "ms") && lines_in(log_text()) == 2, "%s", log_text());
    unlink(log_path);
    printed(run_steps, &(Run){ "sixth", 5, 6, 6 });
    EXPECT(cell_of(6, "ms") && lines_in(log_text()) == 2, "%s", log_text());
    EXPECT(!file_exists(STRING("%s.new", log_path)), "a temporary file is left");
}

/* From the last row kept that has a cell for it. */
static void a_resume_continues_the_seconds(void) {
    static const struct { const char *rows; double want; } logs[] = {
        { "1,10.25\n2,20.5\n3,30\n", 20.5 }, { "1,10.25\n2,\n", 10.25 }, { "1,10.25\n2\n", 10.25 },
        { "1,nan\n2,inf\n", 0 }, { "1,-5\n2,x\n", 0 },
    };
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(log_path, STRING("step,seconds,loss\n%s", logs[i].rows));
        double start = seconds_now();
        printed(run_steps, &(Run){ "b", 2, 3, 3 });
        double got = strtod(cell_of(3, "seconds"), NULL), took = seconds_now() - start;
        EXPECT(got >= logs[i].want && got <= logs[i].want + took + 0.0005, "log %d: got %g, want %g", i, got,
               logs[i].want);
    }
}

static void open_new_log(void *ignored) {
    (void)ignored;
    Report report;
    RunInfo info = info_of("a new run");
    report_open(&report, out, &info, NULL);
    report_close(&report, "done");
}

/* Of runs that were killed before their first checkpoint. */
static void a_log_without_a_checkpoint_is_renamed(void) {
    with_events = 1;
    for (int i = 0; i < 2; i++) {
        put_text(log_path, i ? "second" : "first");
        put_text(events_path, i ? "second events" : "first events");
        const char *text = printed(open_new_log, NULL);
        EXPECT(lines_in(text) == 2 && strstr(text, "log.jsonl belongs to a run without a checkpoint: renamed to "),
               "%s", text);
        EXPECT(lines_in(log_text()) == 1 && !strcmp(events_text(), "run end0"), "%s", log_text());
    }
    EXPECT(!strcmp(text_of(STRING("%s.old", log_path)), "first"), "the first log");
    EXPECT(!strcmp(text_of(STRING("%s.old.2", log_path)), "second"), "the second log");
    EXPECT(!strcmp(text_of(STRING("%s.old.2", events_path)), "second events"), "the second log of events");
    with_events = 0;
    unlink(events_path);
}

static void other_files_are_refused_and_kept(void) {
    static const char no_log[] = "log.csv: not a log of training steps: want the names of columns in the first line";
    static const struct { const char *want, *text; } logs[] = {
        { no_log, "" },
        { no_log, "a,b,c\n1,2,3\n" },
        { no_log, "# a comment\n" ALL_COLUMNS "1,1\n" },
        { no_log, "step,loss" },
        { no_log, "loss,step\n2,1\n" },
        { no_log, "step,loss,loss\n" },
        { no_log, "step,loss,\n" },
        { no_log, "step,loss,los\n" },
        { no_log, "step,loss,losses\n" },
        { no_log, "\n" },
        { "log.csv: damaged: want a row with a step after 1, got 1,2", ALL_COLUMNS "1,2,3,,,,,,\n1,2,3,,,,,,\n" },
        { "log.csv: damaged: want a row with a step after 0, got 0,2", ALL_COLUMNS "0,2,3,,,,,,\n" },
        { "log.csv: damaged", ALL_COLUMNS "1,2,3,,,,,,\n-2,2,3,,,,,,\n" },
        { "log.csv: damaged", ALL_COLUMNS "x,2,3,,,,,,\n" },
        { "log.csv: damaged", ALL_COLUMNS "\n" },
        { "log.csv: damaged", ALL_COLUMNS "# a comment\n" },
    };
    static const struct { const char *want, *text; } events[] = {
        { "log.jsonl: line 1: byte 0: found 'x', want", "x\n" },
        { "found the end, want a value; move the log away to start a new one", "{\"event\": \"run\"}\n\n" },
        { "log.jsonl: line 2: \"event\" is missing", "{\"event\": \"step\"}\n{}\n" },
        { "log.jsonl: line 1: \"event\" is missing", "3\n" },
        { "log.jsonl: line 1: \"step\" is -1, want an integer", "{\"event\": \"step\", \"step\": -1}\n" },
    };
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(log_path, logs[i].text);
        expect_fails(logs[i].want, run_steps, &(Run){ "x", 10, 11, 11 });
        EXPECT(!strcmp(log_text(), logs[i].text), "log %d has changed", (int)i);
    }
    unlink(log_path);
    with_events = 1;
    for (int i = 0; i < COUNT(events); i++) {
        put_text(events_path, events[i].text);
        expect_fails(events[i].want, run_steps, &(Run){ "x", 10, 11, 11 });
        EXPECT(!strcmp(text_of(events_path), events[i].text), "events %d have changed", (int)i);
    }
    with_events = 0;
    unlink(events_path);
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

/* Two rows and their events while the disk is full; returns what stands for the files. */
static void full_disk(Report *report, int was[2]) {
    open_run(report, &(Run){ "a", -1, 7, 9 });
    was[0] = stands_for(report->log.csv.fd, "/dev/full");
    was[1] = stands_for(report->log.jsonl.fd, "/dev/full");
    int stderr_was = stands_for(STDERR_FILENO, "/dev/null");
    StepReport s[2] = { step_of(7), step_of(8) };
    report_step(report, &s[0]);
    report_step(report, &s[1]);
    report_sync(report);
    is_again(STDERR_FILENO, stderr_was);
}

static void close_full(void *ignored) {
    (void)ignored;
    Report report;
    full_disk(&report, (int[2]){0});
    report_close(&report, "done");
}

static void a_full_disk_loses_no_row(void) {
    if (access("/dev/full", W_OK)) { test_skip_reason = "there is no /dev/full"; return; }
    with_events = 1;
    expect_fails("log.csv: cannot write: No space left on device; ", close_full, NULL);
    Report report;
    int was[2];
    full_disk(&report, was);
    EXPECT(report.log.csv.error == ENOSPC && report.log.csv.pending_bytes > 0, "rows wait");
    EXPECT(report.log.jsonl.error == ENOSPC && report.log.jsonl.pending_bytes > 0, "events wait");
    is_again(report.log.csv.fd, was[0]);
    is_again(report.log.jsonl.fd, was[1]);
    StepReport s = step_of(9);
    report_step(&report, &s);
    EXPECT(!report.log.csv.error && !report.log.csv.pending_bytes, "no row waits");
    report_close(&report, "done");
    EXPECT(lines_in(log_text()) == 1 + 3 && cell_of(7, "ms") && cell_of(8, "ms") && cell_of(9, "ms"), "%s", log_text());
    EXPECT(!strcmp(events_text(), "run step7 step8 step9 end9"), "%s", events_text());
    with_events = 0;
}

/* ---- log.jsonl */

static char strange[] = "a \"quote\", \\, \t, \xc3\xa9, no UTF-8: \xc3 \xff, NUL: \0";
static const char strange_read[] = "a \"quote\", \\, \t, \xc3\xa9, no UTF-8: \xef\xbf\xbd \xef\xbf\xbd, NUL: "
                                   "\xef\xbf\xbd";

static int page_says(const char *text) {
    FileMap page = file_map(IN_SCRATCH("report.html"));
    int found = memmem(page.bytes, (size_t)page.size, text, strlen(text)) != NULL;
    file_unmap(page);
    return found;
}

static void run_with_events(void *ignored) {
    (void)ignored;
    Report report;
    int stderr_was = stands_for(STDERR_FILENO, "/dev/null");
    open_run(&report, &(Run){ "train_gpt --prompt 'say \"hi\"'", -1, 1, 3 });
    for (int64_t step = 8; step <= 11; step++) {
        StepReport s = step_of(step);
        if (step == 9) s.loss = INFINITY, s.norm = NAN;
        report.row_health = health;
        if (step == 10) report_validation(&report, &(ValidationReport){ 10, 1.5, NAN, 1, 0 });
        report_step(&report, &s);
        if (step == 10) report_checkpoint(&report, 10, "runs/a/step-00000010", 0.25);
        if (step == 10) report_sample(&report, 10, strange, sizeof strange - 1);
    }
    report_warning(&report, "step %d: %s", 11, "a \"warning\"");
    is_again(STDERR_FILENO, stderr_was);
    report_close(&report, "SIGTERM");
}

static void warn_only(void *ignored) {
    (void)ignored;
    report_warning(&(Report){0}, "%d of %d", 1, 2);
}

/* Each line is a JSON object whose values are those of log.csv. */
static void the_events_are_those_of_the_run(void) {
    with_events = 1;
    device.peak_flops[F32] = 1e12;
    health = (DeviceHealth){ 64, 698.765, 1755, "power", 0 };
    printed(run_with_events, NULL);
    const char *want = "run step8 step9 validation10 step10 checkpoint10 sample10 step11 warning11 end11";
    EXPECT(!strcmp(events_text(), want), "got %s, want %s", events_text(), want);
    EXPECT(page_says("\"status\": \"SIGTERM\"") && page_says("a \\\"quote\\\"") && page_says("step 11: a \\\"warning"),
           "report.html");
    const char *text = text_of(events_path), *names = ALL_COLUMNS;
    EXPECT(lines_in(text) == 10 && text[strlen(text) - 1] == '\n', "%s", text);
    for (int n = 0; n < 10; n++) {
        Json *event = event_at(n);
        if (!event) break;
        const char *kind = json_string(event, "event");
        const Json *step = json_find(event, "step"), *seconds = json_find(event, "seconds");
        if (n) EXPECT(step && seconds && json_real(seconds) >= 0 && json_real(seconds) < 60, "line %d: %s", n, text);
        for (const char *name = names; step && !strcmp(kind, "step") && *name; name += strcspn(name, ",\n") + 1) {
            char *key = STRING("%.*s", (int)strcspn(name, ",\n"), name);
            const char *cell = cell_of(json_integer(step, 0, 100), key);
            const Json *value = json_find(event, key);
            int absent = !*cell || !strcmp(cell, "inf") || !strcmp(key, "val_loss");     /* in an event of its own */
            EXPECT(absent ? !value : value && !strcmp(value->text, cell), "step %s, %s: got %s, want %s", step->text,
                   key, value ? value->text : "none", cell);
        }
        if (!strcmp(kind, "validation")) {
            EXPECT(!strcmp(json_find(event, "val_loss")->text, cell_of(10, "val_loss")), "%s", text);
            EXPECT(!json_find(event, "floor"), "unknown: %s", text);
        }
        if (!strcmp(kind, "sample")) EXPECT(!strcmp(json_string(event, "text"), strange_read), "%s", text);
        if (!strcmp(kind, "warning"))
            EXPECT(!strcmp(json_string(event, "message"), "step 11: a \"warning\""), "%s", text);
        if (!strcmp(kind, "end")) EXPECT(!strcmp(json_string(event, "reason"), "SIGTERM"), "%s", text);
        if (!strcmp(kind, "checkpoint"))
            EXPECT(!strcmp(json_string(event, "path"), "runs/a/step-00000010") &&
                   json_real(json_find(event, "save_seconds")) == 0.25, "%s", text);
        if (!strcmp(kind, "run")) {
            static const struct { const char *key, *want; } texts[] = {
                { "version", "train_gpt 0" }, { "command", "train_gpt --prompt 'say \"hi\"'" },
                { "device", "a device" } };
            for (int i = 0; i < COUNT(texts); i++)
                EXPECT(!strcmp(json_string(event, texts[i].key), texts[i].want), "%s: %s", texts[i].key, text);
            static const struct { const char *key; int want; } numbers[] = {
                { "layers", 1 }, { "heads", 2 }, { "channels", 4 }, { "context", 8 }, { "vocabulary", 16 },
                { "parameters", 16*4 + 8*4 + 2*4 + (4*12 + 12) + (4*4 + 4) + 2*4 + (4*16 + 16) + (16*4 + 4) + 2*4 } };
            for (int i = 0; i < COUNT(numbers); i++)
                EXPECT(json_integer(json_find(event, numbers[i].key), 0, 10000) == numbers[i].want, "%s: %s",
                       numbers[i].key, text);
            EXPECT(json_real(json_find(event, "floor")) == 0.5, "%s", text);
            const char *time = json_string(event, "time");         /* 2026-11-22T10:00:00Z */
            EXPECT(strlen(time) == 20 && time[4] == '-' && time[10] == 'T' && time[19] == 'Z', "%s", time);
            const Json *settings = json_member(event, "settings", JSON_OBJECT);
            EXPECT(settings->count == 4 && json_find(settings, "deterministic")->type == JSON_FALSE &&
                   json_real(json_find(settings, "lr")) == rate && !strcmp(json_string(settings, "prompt"), prompt),
                   "%s", text);
        }
        json_free(event);
    }
    const char *line = printed_on(STDERR_FILENO, warn_only, NULL);
    EXPECT(!strcmp(line, "train_gpt: warning: 1 of 2\n"), "%s", line);
    device.peak_flops[F32] = 0;
    health = (DeviceHealth){0};
    with_events = 0;
}

static void a_resume_cuts_the_events(void) {
    with_events = 1;
    printed(run_steps, &(Run){ "first", -1, 9, 12 });
    put_text(events_path, STRING("%s{\"event\": \"step\", \"step\": 1", text_of(events_path)));
    changes = "--steps 200 -> 300";
    printed(run_steps, &(Run){ "second", 11, 12, 12 });
    changes = NULL;
    const char *want = "run step9 validation10 step10 step11 resume11 step12 end12";
    EXPECT(!strcmp(events_text(), want), "got %s, want %s", events_text(), want);
    Json *event = event_at(5);
    EXPECT(!strcmp(json_string(event, "command"), "second") && json_find(event, "time") &&
           !strcmp(json_string(event, "changes"), "--steps 200 -> 300"), "%s", text_of(events_path));
    json_free(event);

    /* a validation that was repeated; one that is in the log; without a log */
    static const struct { int64_t keep; const char *want; } cases[] = {
        { 9, "run step9 resume9 validation9 validation10 step10 end10" },
        { 10, "run step9 validation10 step10 resume10 step11 end11" } };
    for (int i = 0; i < COUNT(cases); i++) {
        printed(run_steps, &(Run){ "first", -1, 9, 12 });
        resumed_val_loss = 1.5;
        printed(run_steps, &(Run){ "second", cases[i].keep, cases[i].keep + 1, cases[i].keep + 1 });
        resumed_val_loss = NAN;
        EXPECT(!strcmp(events_text(), cases[i].want), "got %s, want %s", events_text(), cases[i].want);
    }
    unlink(events_path);
    printed(run_steps, &(Run){ "third", 5, 6, 6 });
    EXPECT(!strcmp(events_text(), "run resume5 step6 end6"), "%s", events_text());
    with_events = 0;
    unlink(events_path);
}

static void fail_in_a_run(void *ignored) {
    (void)ignored;
    Report report;
    fail_hook = NULL;
    open_run(&report, &(Run){ "a", -1, 1, 1 });
    StepReport s = step_of(1);
    fclose(stdout);
    report_step(&report, &s);
    fail("step %d: not \"finite\"", 2);
}

static void a_failure_is_an_event(void) {
    if (test_in_process) { test_skip_reason = "needs a child"; return; }
    with_events = 1;
    expect_fails("train_gpt: step 2: not \"finite\"", fail_in_a_run, NULL);
    EXPECT(!strcmp(events_text(), "run step1 end1"), "%s", events_text());
    Json *event = event_at(2);
    EXPECT(event && !strcmp(json_string(event, "reason"), "step 2: not \"finite\""), "%s", text_of(events_path));
    EXPECT(page_says("\"status\": \"step 2: not \\\"finite\\\"\""), "report.html");
    json_free(event);
    with_events = 0;
    unlink(events_path);
}

/* ---- settings.txt */

static void the_settings_are_written(void) {
    printed(run_steps, &(Run){ "train_gpt --lr 3e-4", -1, 1, 2 });
    const char *text = text_of(settings_path);
    const char *head = STRING("# train_gpt 0, %s, a device, of 1 core, 20", backend_name), *line = strchr(text, '\n');
    EXPECT(begins_with(text, head) && line && line[-1] == 'Z', "%s", text);
    const char *want = "\n# command: train_gpt --lr 3e-4\n# model: 1 layers, 2 heads, 4 channels, context 8, "
                       "vocabulary 16, 348 parameters\n# memory: 213 MiB of 7.6 GiB free\n# floor: 0.500000\n"
                       "layers = 1\nlr = 0.0003\n";
    EXPECT(line && begins_with(line, want), "%s", text);

    /* a resume adds a line, and writes the settings as they are now */
    rate = 0.0001;
    changes = "--lr 0.0003 -> 0.0001";
    printed(run_steps, &(Run){ "train_gpt --resume --lr 1e-4", 2, 3, 3 });
    changes = NULL;
    printed(run_steps, &(Run){ "train_gpt --resume", 3, 4, 4 });
    rate = 0.0003;
    const char *resumed = text_of(settings_path);
    EXPECT(!strncmp(resumed, text, (size_t)(strstr(text, "layers =") - text)), "the head stays: %s", resumed);
    const char *first = strstr(resumed, "\n# resumed at step 2, 20");
    const char *second = strstr(resumed, "\n# resumed at step 3, 20");
    EXPECT(first && second && first < second &&
           strstr(first, "Z: train_gpt --resume --lr 1e-4; changed: --lr 0.0003 -> 0.0001\n") < second &&
           strstr(second, "Z: train_gpt --resume\nlayers = 1\nlr = 0.0001\n"), "%s", resumed);
    EXPECT(lines_in(resumed) == lines_in(text) + 2, "%s", resumed);
    EXPECT(!file_exists(STRING("%s.new", settings_path)), "a temporary file is left");
}

/* ---- The terminal */

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

static void open_without_files(Report *report, int64_t steps) {
    RunInfo info = info_of("a");
    info.steps = steps;
    report_open(report, NULL, &info, NULL);
}

static void terminal_run(void *argument) {
    Report report;
    StepReport s = { .step = 1, .loss = 10.5, .norm = 123.4, .learning_rate = 6e-4, .ms = 1234,
                     .tokens_per_second = 123456, .val_loss = NAN };
    device.peak_flops[F32] = 123456 * gpt_flops_per_token(&config) / 0.412;
    open_without_files(&report, 3000);
    report_step(&report, &s);
    report.printed_at_s -= 0.06;       /* lines in place come no more than 20 times a second */
    s = (StepReport){ .step = 2, .loss = 9.25, .norm = 1, .learning_rate = 6e-4, .ms = 12.34,
                      .tokens_per_second = 50, .val_loss = NAN };
    report_step(&report, &s);
    report_line(stdout, "saved %d", 1);
    s.step = 3;
    report_validation(&report, &(ValidationReport){ 3, 2.5, NAN, 1, 1000 });
    s.val_loss = 2.5;
    report_step(&report, &s);        /* too soon after the last: not shown */
    s.step = 4;
    s.val_loss = NAN;
    report_step(&report, &s);        /* too soon after the last: shown at the end */
    if (argument) fail("stopped");
    report_close(&report, "done");
}

static void a_terminal_has_its_line_in_place(void) {
    const char *text = seen(200, terminal_run, NULL);
    if (!*text) { test_skip_reason = "there are no pseudo terminals"; return; }
    static const char *const lines[] = {
        "step    1/3000  loss 10.5000  norm 123.40  123456 tok/s  mfu 41.2%  1234.0 ms  lr 6.0e-04",
        "step    2/3000  loss 9.2500  norm 1.00     50 tok/s  mfu 0.0%  37s left  12.3 ms  lr 6.0e-04",
        "step    4/3000  loss 9.2500  norm 1.00     50 tok/s  mfu 0.0%  37s left  12.3 ms  lr 6.0e-04" };
    char want[1024];
    snprintf(want, sizeof want, "\r\r%s\r%*s\r%s\r\nsaved 1\r\n"
             "step 3: val loss 2.5000 nats per byte (3.6067 bits), on the first 1000 tokens\r\n\r\r%s\r\n", lines[0],
             (int)strlen(lines[0]), "", lines[1], lines[2]);
    EXPECT(!strcmp(text, want), "got:\n%s", text);

    static const struct { int columns; const char *want; } narrow[] = {
        { 80, "\rstep    2/3000  loss 9.2500  norm 1.00     50 tok/s  mfu 0.0%  37s left  12.3 m\r\n" },
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
    EXPECT(strstr(text, "(3.6067 bits), on the first 1000 tokens\r\ntrain_gpt: stopped\r\n"), "%s", text);
}

/* Steps first to last, the last 6.1 s after the one before. */
static void spaced_run(void *argument) {
    Run *run = argument;
    Report report;
    open_without_files(&report, 100);
    for (int64_t step = run->first; step <= run->last; step++) {
        StepReport s = step_of(step);
        s.val_loss = NAN;
        if (step == run->last) report.printed_at_s -= 6.1;
        report_step(&report, &s);
        EXPECT(!__fpending(stdout), "a line waits to be written");
        if (step < run->last) report.printed_at_s -= 0.01;
    }
    report.unprinted.step = 0;
    report_close(&report, "done");
}

/* The steps of the lines that stay, as "1 6". */
static const char *steps_seen(const char *text) {
    char *steps = "";
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *shown = line;           /* what was written last in place */
        for (const char *c = line; c < end; c++) if (*c == '\r' && c[1] == 's') shown = c + 1;
        steps = STRING("%s%s%d", steps, *steps ? " " : "", atoi(shown + strcspn(shown, "0123456789\n")));
    }
    return steps;
}

static void lines_are_as_frequent_as_asked(void) {
    static const struct { int every; int64_t first, last; const char *elsewhere, *terminal; } cases[] = {
        { 0, 1,  9,   "1 9",           "9" },           /* 6 s after the one before */
        { 0, 98, 100, "98 100",        "100" },
        { 4, 1,  9,   "1 4 8",         "4 8 9" },
        { 4, 3,  4,   "3 4",           "4" },
        { 1, 97, 100, "97 98 99 100",  "97 98 99 100" },
        { 7, 97, 100, "97 98 100",     "98 100" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Run run = { "a", -1, cases[i].first, cases[i].last };
        log_every = cases[i].every;
        const char *text = printed(spaced_run, &run);
        EXPECT(!strcmp(steps_seen(text), cases[i].elsewhere) && !strchr(text, '\r'), "case %d: %s of\n%s", i,
               steps_seen(text), text);
        text = seen(200, spaced_run, &run);
        if (*text)
            EXPECT(!strcmp(steps_seen(text), cases[i].terminal), "case %d: %s of\n%s", i, steps_seen(text), text);
    }
    log_every = 0;
}

/* n steps of ms milliseconds count 1 + q + ... + q^(n-1) together, where q = e^(-ms / 10 s). */
static double weight_of(int n, double ms) { return n ? (1 - exp(-n * ms / 1e4)) / (1 - exp(-ms / 1e4)) : 0; }

typedef struct { double first, a, b; int a_steps, b_steps; double got; } Speed;

static void at_speed(void *argument) {
    Speed *speed = argument;
    Report report;
    open_without_files(&report, 1000000);
    for (int i = 0; i <= speed->a_steps + speed->b_steps; i++) {
        StepReport s = step_of(i + 1);
        s.ms = i == 0 ? speed->first : i <= speed->a_steps ? speed->a : speed->b;
        report_step(&report, &s);
    }
    speed->got = report.recent_ms / report.recent_steps;
    report_close(&report, "done");
}

/* Steps of a ms, then of b ms; the first one counts only while it is the only one. */
static void the_time_left_follows_the_speed(void) {
    static const struct { Speed speed; double from, to; } cases[] = {
        { { 5000,  1,     1,     1,      0,     0 }, 1,     1 },
        { { 5000,  1,     1,     30000,  0,     0 }, 1,     1 },
        { { 5000,  1,     3,     100000, 10000, 0 }, 2.7,   3 },            /* 30 s after the change: 95 % of it */
        { { 5000,  3,     1,     30000,  30000, 0 }, 1,     1.1 },
        { { 90000, 30000, 30000, 20,     0,     0 }, 30000, 30000.0001 },
        { { 90000, 30000, 60000, 20,     1,     0 }, 59900, 60000 },        /* one step after the change */
        { { 90000, 60000, 30000, 20,     1,     0 }, 30000, 31500 },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Speed s = cases[i].speed;
        printed(at_speed, &s);
        double a = exp(-s.b_steps * s.b / 1e4) * weight_of(s.a_steps, s.a), b = weight_of(s.b_steps, s.b);
        double want = (a * s.a + b * s.b) / (a + b);
        EXPECT(fabs(s.got / want - 1) < 1e-9, "case %d: got %g ms, want %g", i, s.got, want);
        EXPECT(want >= cases[i].from * (1 - 1e-9) && want <= cases[i].to * (1 + 1e-9), "case %d: %g ms", i, want);
    }
}

/* later: seconds, a double. */
static void progress_run(void *later) {
    Report report;
    open_without_files(&report, 2);
    report_step(&report, &(StepReport){ .step = 1, .loss = 1, .ms = 10, .val_loss = NAN });
    report_progress(&report, 0, 8);
    report.progress_start_s -= *(double *)later;
    report.progress_at_s -= *(double *)later;
    report_progress(&report, 2, 8);
    report_progress(&report, 4, 8);      /* too soon after the last */
    report_progress(&report, 8, 8);
    report_line(stdout, "val loss");
    report_close(&report, "done");
}

static void progress_into_a_file(void *later) {
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), file = open("/dev/null", O_WRONLY);
    dup2(file, STDOUT_FILENO);
    progress_run(later);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(file);
}

static void progress_is_seen_while_it_lasts(void) {
    double none = 0, second = 1.01, seconds = 6.01;
    const char *text = printed_on(STDERR_FILENO, progress_into_a_file, &seconds);
    EXPECT(!strcmp(text, "train_gpt: evaluating 25% done, 18s left\n"), "not on a terminal: got:\n%s", text);
    EXPECT(!strchr(printed_on(STDERR_FILENO, progress_into_a_file, &second), '%'), "not on a terminal, too soon");
    EXPECT(!strchr(printed(progress_run, &seconds), '%'), "not on stdout");
    text = seen(20, progress_run, &second);
    if (!*text) { test_skip_reason = "there are no pseudo terminals"; return; }
    EXPECT(!strcmp(text, "\r\rstep 1/2  loss 1.00\r                   \revaluating 25% done\r                   "
                   "\rval loss\r\n"), "got:\n%s", text);
    text = seen(80, progress_run, &second);
    EXPECT(strstr(text, "\revaluating 25% done, 3s left\r"), "got:\n%s", text);
    text = seen(20, progress_run, &none);
    EXPECT(!strcmp(text, "\r\rstep 1/2  loss 1.00\r                   \rval loss\r\n"), "got:\n%s", text);
}

/* An abnormal state is shown from the row that knows of it to the next one that knows the state. */
static void health_run(void *ignored) {
    (void)ignored;
    static const DeviceHealth known[] = {
        { 64, 700, 1700, "power", 0 }, { 91, 300, 600, "thermal", 1 }, { 0, 0, 0, NULL, 0 },
        { 64, 700, 1980, "none", 0 } };
    Report report;
    open_without_files(&report, 5);
    for (int i = 0; i < 4; i++) {
        StepReport s = { .step = i + 1, .loss = 1, .val_loss = NAN, .ms = 10 };
        report.row_health = known[i];
        report_step(&report, &s);
    }
    report_close(&report, "done");
}

static void the_line_shows_abnormal_throttling_only(void) {
    static const char want[] =
        "step 1/5  loss 1.0000  norm 0.00      0 tok/s  10.0 ms  lr 0.0e+00\n"
        "step 2/5  loss 1.0000  norm 0.00      0 tok/s  throttled: thermal  0s left  10.0 ms  lr 0.0e+00\n"
        "step 3/5  loss 1.0000  norm 0.00      0 tok/s  throttled: thermal  0s left  10.0 ms  lr 0.0e+00\n"
        "step 4/5  loss 1.0000  norm 0.00      0 tok/s  0s left  10.0 ms  lr 0.0e+00\n";
    log_every = 1;
    const char *text = printed(health_run, NULL);
    EXPECT(!strcmp(text, want), "got:\n%swant:\n%s", text, want);
    log_every = 0;
}

static void long_steps(void *known) {
    Report report;
    StepReport s = { .step = 123456, .loss = 10.9, .norm = 12345, .learning_rate = 1e-10, .ms = 1e7,
                     .tokens_per_second = 1e12, .val_loss = 10.9 };
    RunInfo info = info_of("a");
    info.steps = 999999;
    device.peak_flops[F32] = known ? 2e12 : 0;
    unlink(log_path), unlink(events_path);
    report_open(&report, out, &info, NULL);
    report.row_health = health;
    report_step(&report, &s);
    s.step++;
    s.loss = s.norm = s.val_loss = 1e300;
    report_step(&report, &s);
    s.step++;
    s.loss = s.norm = NAN;
    s.tokens_per_second = s.ms = INFINITY;
    report_step(&report, &s);
    report_close(&report, "done");
}

static void extreme_numbers_fit(void) {
    with_events = log_every = 1;
    for (int known = 0; known < 4; known++) {
        health = known & 2 ? (DeviceHealth){ 91, 300, 600, "power-brake", 1 } : (DeviceHealth){0};
        const char *text = printed(long_steps, known & 1 ? "known" : NULL);
        EXPECT(lines_in(text) == 3, "%s", text);
        for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
            EXPECT(end - line < 512 && !strncmp(line, "step 12345", 10) && !strstr(line, "unknown"), "%d columns: %.*s",
                   (int)(end - line), (int)(end - line), line);
        EXPECT(!strcmp(events_text(), "run step123456 step123457 step123458 end123458"), "%s", events_text());
        EXPECT(lines_in(log_text()) == 4, "%s", log_text());
    }
    device.peak_flops[F32] = 0;
    health = (DeviceHealth){0};
    with_events = log_every = 0;
    unlink(events_path);
}

static void print_banner(void *argument) { report_banner(argument); }

static void the_banner_has_a_line_each(void) {
    RunInfo info = info_of("a");
    const char *want = STRING("train_gpt 0\ndevice  %s, a device, of 1 core\nmodel   1 layers, 2 heads, 4 channels, "
                              "context 8, vocabulary 16, 348 parameters, f32, flash attention\ndata    input.txt\n"
                              "memory  213 MiB of 7.6 GiB free\n", backend_name);
    const char *text = printed(print_banner, &info);
    EXPECT(!strcmp(text, want), "%s", text);
    GPTConfig large = { .L = 12, .NH = 12, .C = 768, .T = 1024, .V = 50257, .dtype = BF16 };      /* 124,439,808 */
    info.out = "runs/input";
    info.config = &large;
    want = STRING("train_gpt 0\noutput  runs/input\ndevice  %s, a device, of 1 core\nmodel   12 layers, 12 heads, 768 "
                  "channels, context 1024, vocabulary 50257, 124M parameters, bf16, flash attention\n"
                  "data    input.txt\nmemory  213 MiB of 7.6 GiB free\n", backend_name);
    text = printed(print_banner, &info);
    EXPECT(!strcmp(text, want), "%s", text);
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
    out = scratch;
    log_path = IN_SCRATCH("log.csv");
    events_path = IN_SCRATCH("log.jsonl");
    settings_path = IN_SCRATCH("settings.txt");
    RUN(the_log_holds_every_step);
    RUN(the_log_has_the_columns_that_are_known);
    RUN(the_log_holds_the_health);
    RUN(a_resume_adds_the_val_loss);
    RUN(a_resume_cuts_the_log);
    RUN(a_resume_continues_the_seconds);
    RUN(a_log_without_a_checkpoint_is_renamed);
    RUN(other_files_are_refused_and_kept);
    RUN(a_full_disk_loses_no_row);
    RUN(the_events_are_those_of_the_run);
    RUN(a_resume_cuts_the_events);
    RUN(a_failure_is_an_event);
    RUN(the_settings_are_written);
    RUN(a_terminal_has_its_line_in_place);
    RUN(lines_are_as_frequent_as_asked);
    RUN(the_time_left_follows_the_speed);
    RUN(progress_is_seen_while_it_lasts);
    RUN(the_line_shows_abnormal_throttling_only);
    RUN(extreme_numbers_fit);
    RUN(the_banner_has_a_line_each);
    RUN(numbers_for_people);
    return test_close();
}
