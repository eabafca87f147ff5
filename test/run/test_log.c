/* test_log.c - log.csv, log.jsonl and settings.txt: contents, resumes, foreign files and a full disk. */
#include "report_run.h"

#define ALL_COLUMNS "step,seconds,tokens,loss,val_loss,norm,lr,ms,tokens_per_s,comm_wait_ms,mfu,temperature_c," \
                    "power_w,clock_mhz,throttle\n"

static char *settings_path;

/* ---- Cells */

static int begins_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }

static const char *cell_of(int64_t step, const char *name) { return log_cell(log_text(), step, name); }

static int cell_is(int64_t step, const char *name, const char *want) {
    const char *cell = cell_of(step, name);
    return want && cell ? !strcmp(cell, want) : want == cell;
}

#define EXPECT_CELL(step, name, want) \
    EXPECT(cell_is(step, name, want), "%s of step %d: got %s, want %s", name, (int)(step), cell_of(step, name), want)

/* ---- log.csv */

TEST(the_log_holds_every_step) {
    double start = seconds_now();
    const char *lines = PRINTED(run_steps(&(Run){ "a", -1, 1, 20, NULL }));
    double took = seconds_now() - start, last = 0;
    const char *text = log_text();
    EXPECT(begins_with(text, ALL_COLUMNS "1,"), "%s", text);
    EXPECT(lines_in(text) == 1 + 20, "%d lines", (int)lines_in(text));
    for (int64_t step = 1; step <= 20; step++) {
        LogRow s = step_of(step);
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
        "step  20/100  loss 0.2000  norm 0.50   7680 tok/s  0s left  100.0 ms  lr 1.0e-03\n"), "%s", lines);
}

TEST(the_log_holds_what_is_known) {
    for (int known = 0; known < 2; known++) {
        no_validation = !known;
        device.peak_flops[F32] = known ? 7680 * gpt_flops_per_token(&config) / 0.4608 : 0;
        health = known ? (DeviceHealth){ .power_w = 100 } : (DeviceHealth){0};
        PRINTED(run_steps(&(Run){ "a", -1, 10, 10, NULL }));
        EXPECT_CELL(10, "mfu", known ? "0.4608" : "");
        EXPECT_CELL(10, "val_loss", known ? "1.5" : "");
        EXPECT_CELL(10, "power_w", known ? "100.0" : "");
        EXPECT_CELL(10, "comm_wait_ms", "");
    }
    device.peak_flops[F32] = 0;
    health = (DeviceHealth){0};
}

/* Once a second: a row without a query has none. */
static void query_health(Report *report, LogRow *step) {
    report->row_health = (DeviceHealth){0};
    if (step->step == 3) report->health_at_s -= 1;
    report_background(report);
}

TEST(the_log_holds_the_health) {
    static const struct { DeviceHealth health; const char *temperature, *power, *clock, *throttle; } rows[] = {
        { { 64, 698.765, 1755, "power", 0 }, "64", "698.8", "1755", "power" },
        { { 91, 350, 210, "thermal", 1 },    "91", "350.0", "210",  "thermal" },
        { { 0, 0, 0, "none", 0 },            "",   "",      "",     "none" },
        { { 45, 0, 1980, NULL, 0 },          "45", "",      "1980", "" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        health = rows[i].health;
        PRINTED(run_steps(&(Run){ "a", -1, 1, 1, NULL }));
        EXPECT_CELL(1, "temperature_c", rows[i].temperature);
        EXPECT_CELL(1, "power_w", rows[i].power);
        EXPECT_CELL(1, "clock_mhz", rows[i].clock);
        EXPECT_CELL(1, "throttle", rows[i].throttle);
    }
    PRINTED(run_steps(&(Run){ "a", -1, 1, 3, query_health }));
    EXPECT_CELL(1, "clock_mhz", "1980");
    EXPECT_CELL(2, "clock_mhz", "");
    EXPECT_CELL(3, "clock_mhz", "1980");
    health = (DeviceHealth){0};
}

/* A resume without a step. before, after: the rows of log.csv, with ROWS and a header; before NULL = no file. val_loss:
   of step keep, as a stop may have cut its validation short; 0 = unknown. said: all that is printed about the log. */
#define HEADER "step,seconds,tokens,loss,val_loss,norm,lr,ms,tokens_per_s\n"
#define MISSING(last, count) "log.csv: " #count " of " #last " rows are missing or damaged\n"
#define ROWS   HEADER "1,.5,256,4,,1,.1,9,8\n2,1,512,3,,1,.1,9,8\n"
#define BAD_ROWS "x,5,,,,,,,\n\n-1,2,,,,,,,\n0,,,,,,,,\n# a comment\n"
typedef struct { const char *before; int64_t keep; double val_loss; const char *after, *said; } ResumedLog;

static double val_loss;         /* NaN = none */

static void resume_and_validate(const Run *run) {
    Report report;
    open_run(&report, run);
    log_val_loss(&report.log, val_loss);
    report_close(&report, "done");
}

TEST(a_resume_cuts_the_log) {
    static const ResumedLog logs[] = {
        { ROWS "3,2,768,2,,1,.1,9,8\n", 2, 0, ROWS, "" }, { ROWS, 2, 0, ROWS, "" }, { ROWS, 0, 0, HEADER, "" },
        { NULL, 5, 0, ALL_COLUMNS, MISSING(5, 5) }, { "", 5, 0, ALL_COLUMNS, MISSING(5, 5) },
        { ROWS "3,22", 2, 0, ROWS, "" },                        /* a kill left it half written */
        { ROWS "3,22", 3, 0, ROWS, MISSING(3, 1) },
        { ROWS "9,2,768,2,,1,.1,9,8\n", 5, 0, ROWS, MISSING(5, 3) },
        { ROWS, 30, 2.25, ROWS, MISSING(30, 28) },
        { ROWS "3,2,768,2,,1,.1,9,8\n", 3, 2.25, ROWS "3,2,768,2,2.25,1,.1,9,8\n", "" },
        { ROWS "3,2,768,2,,1,.1,9,8\n4,2,768,2,,1,.1,9,8\n", 3, 2.25, ROWS "3,2,768,2,2.25,1,.1,9,8\n", "" },
        { ROWS "3,2,768,2,1.5,1,.1,9,8\n", 3, 2.25, ROWS "3,2,768,2,1.5,1,.1,9,8\n", "" },
        { ROWS "3,-,x y,,,,,,8\n", 3, 2.25, ROWS "3,-,x y,,2.25,,,,8\n", "" },        /* cells are kept as they are */
        /* other columns and line ends */
        { "step,lr,loss\r\n1,2,3\r\n2,2,3\r\n", 1, 2.25, "step,lr,loss\r\n1,2,3\r\n", "" },
        { "val_loss,loss,step\r\n,2,1\r\n", 1, 2.25, "val_loss,loss,step\r\n2.25,2,1\r\n", "" },
        /* damaged rows: without a step, or a step that was there, other numbers of cells; those behind them stay */
        { HEADER BAD_ROWS "2,,256,,,,,,\n2,5,,,,,,,\n1,5,,,,,,,\n3,1,,,,,,,\n3,1\n", 3, 0,
          HEADER BAD_ROWS "2,,256,,,,,,\n2,5,,,,,,,\n1,5,,,,,,,\n3,1,,,,,,,\n", MISSING(3, 1) },
        { HEADER "1,,,,,,,,,\n2\n", 2, 0, HEADER, MISSING(2, 2) },
        { HEADER "1,,,,,,,,\n3,,,,,,,,\n2,,,,,,,,\n4,,,,,,,,\n", 3, 2.25, HEADER "1,,,,,,,,\n3,,,,,,,,\n2,,,,,,,,\n",
          MISSING(3, 1) },
        { ALL_COLUMNS "1,,,,,,,,,,,64,,,none\n", 1, 0, ALL_COLUMNS "1,,,,,,,,,,,64,,,none\n", "" } };
    for (int i = 0; i < COUNT(logs); i++) {
        unlink(log_path);
        if (logs[i].before) put_text(log_path, logs[i].before);
        val_loss = logs[i].val_loss > 0 ? logs[i].val_loss : NAN;
        const char *said = PRINTED(resume_and_validate(&(Run){ "b", logs[i].keep, 1, 0, NULL }));
        const char *name = strstr(said, "log.csv");
        EXPECT(!strcmp(log_text(), logs[i].after), "log %d: got %s\nwant %s", i, log_text(), logs[i].after);
        EXPECT(!strcmp(name ? name : said, logs[i].said), "log %d: says %s", i, said);
    }
    /* a block of zeros, as a crash can leave one: cut at the end, left out by readers elsewhere */
    static const char zeros[] = ROWS "3,2,7\0\0\0\0\0,,,,,9,8\n" "\0\0\0\0\0\n5,3\n";
    put(log_path, zeros, sizeof zeros - 1);
    const char *said = PRINTED(run_steps(&(Run){ "b", 5, 1, 0, NULL }));
    EXPECT(!strcmp(log_text(), ROWS) && strstr(said, MISSING(5, 3)), "%s", log_text());
    put_text(log_path, "step,loss,mine\n1,3,4\n");         /* a run goes on with the columns of its log */
    PRINTED(run_steps(&(Run){ "b", 1, 2, 2, NULL }));
    EXPECT(!strcmp(log_text(), "step,loss,mine\n1,3,4\n2,2,\n"), "%s", log_text());
}

/* From the last row kept that has a cell for it. */
TEST(a_resume_continues_the_seconds) {
    static const struct { const char *rows; double want; } logs[] = {
        { "1,10.25,\n2,20.5,\n3,30,\n", 20.5 }, { "1,10.25,\n2,,\n", 10.25 }, { "1,10.25,\n2\n", 10.25 },
        { "1,nan,\n2,inf,\n", 0 }, { "1,-5,\n2,x,\n", 0 },
    };
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(log_path, STRING("step,seconds,loss\n%s", logs[i].rows));
        double start = seconds_now();
        PRINTED(run_steps(&(Run){ "b", 2, 3, 3, NULL }));
        double got = strtod(cell_of(3, "seconds"), NULL), took = seconds_now() - start;
        EXPECT(got >= logs[i].want && got <= logs[i].want + took + 0.0005, "log %d: got %g, want %g", i, got,
               logs[i].want);
    }
}

/* The log of a run that was killed before its first checkpoint. */
TEST(a_log_without_a_checkpoint_is_renamed) {
    put_text(log_path, "rows");
    put_text(events_path, "events");
    const char *text = PRINTED(run_steps(&(Run){ "a new run", -2, 1, 0, NULL }));
    EXPECT(lines_in(text) == 2 && strstr(text, "log.jsonl belongs to a run without a checkpoint: renamed to "), "%s",
           text);
    EXPECT(lines_in(log_text()) == 1 && !strcmp(events_text(), "run0 end0"), "%s", log_text());
    EXPECT(!strcmp(text_of(STRING("%s.old", log_path)), "rows"), "the log of the run before");
    EXPECT(!strcmp(text_of(STRING("%s.old", events_path)), "events"), "its log of events");
    unlink(events_path);
}

TEST(other_files_are_refused_and_kept) {
    static const char no_step[] = "log.csv: not a log of training steps: no column step in the first line";
    static const char no_loss[] = "log.csv: not a log of training steps: no column loss in the first line";
    static const struct { const char *want, *text; } logs[] = {
        { no_step, "a,b,c\n1,2,3\n" },
        { no_step, "# a comment\n" ALL_COLUMNS "1,1\n" },
        { no_step, "step,loss" },
        { no_loss, "step,los\n" },
        { no_loss, "step,losses\n" },
        { no_step, "\n" },
    };
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(log_path, logs[i].text);
        EXPECT_FAILS(logs[i].want, run_steps(&(Run){ "x", 10, 11, 11, NULL }));
        EXPECT(!strcmp(log_text(), logs[i].text), "log %d has changed", (int)i);
    }
    unlink(log_path);
}

/* Two rows and their events while no file may grow, or the log is away. */
static void full_disk(Report *report, int is_away) {
    open_run(report, &(Run){ "a", -1, 7, 9, NULL });
    if (is_away) rename(log_path, STRING("%s.away", log_path)), rename(events_path, STRING("%s.away", events_path));
    else         setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 0, RLIM_INFINITY });
    int stderr_was = redirect(STDERR_FILENO, "/dev/null");
    LogRow s[2] = { step_of(7), step_of(8) };
    for (int i = 0; i < 2; i++) {
        report_step(report, &s[i]);
        report_warning(report, "full");
    }
    report_flush(report, 1);
    restore(STDERR_FILENO, stderr_was);
}

TEST(a_full_disk_loses_no_row) {
    for (int is_away = 0; is_away < 2; is_away++) {
        const char *want = is_away ? "it was moved or removed during the run" : strerror(EFBIG);
        Report report;
        EXPECT_FAILS(STRING("log.csv: cannot write: %s; ", want),
                     full_disk(&report, is_away); report_close(&report, "done"));
        full_disk(&report, is_away);
        EXPECT(!strcmp(report.log.csv.error, want) && report.log.csv.pending_bytes > 0, "rows wait");
        EXPECT(!strcmp(report.log.jsonl.error, want) && report.log.jsonl.pending_bytes > 0, "events wait");
        if (is_away) rename(STRING("%s.away", log_path), log_path), rename(STRING("%s.away", events_path), events_path);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
        LogRow s = step_of(9);
        report_step(&report, &s);
        report_background(&report);
        EXPECT(!report.log.csv.error && !report.log.csv.pending_bytes, "no row waits");
        report_close(&report, "done");
        EXPECT(lines_in(log_text()) == 1 + 3 && cell_of(7, "ms") && cell_of(8, "ms") && cell_of(9, "ms"), "%s",
               log_text());
        EXPECT(!strcmp(events_text(), "run0 warning7 warning8 end9"), "%s", events_text());
    }
}

/* ---- log.jsonl */

static int page_says(const char *text) { return strstr(text_of(IN_SCRATCH("report.html")), text) != NULL; }

/* The lines without their times, which are checked: "seconds": 0.123, and "time": "2026-11-22T10:00:00Z", */
static const char *events_without_times(void) {
    char *text = STRING("%s", text_of(events_path)), *at;
    while ((at = strstr(text, "\"seconds\": "))) {
        char *end;
        const double seconds = strtod(at + 11, &end);
        EXPECT(seconds >= 0 && seconds < 60 && *end == ',', "%s", at);
        memmove(at, end + 2, strlen(end + 2) + 1);
    }
    at = strstr(text, "\"time\": \"20");
    EXPECT(at && at[13] == '-' && at[19] == 'T' && !strncmp(at + 28, "Z\", ", 4), "%s", text);
    if (at) memmove(at, at + 32, strlen(at + 32) + 1);
    return text;
}

static void add_events(Report *report, LogRow *step) {
    static char strange[] = "a \"quote\", \\, \t, \xc3\xa9, no UTF-8: \xc3 \xff, NUL: \0";
    if (step->step == 9) step->loss = INFINITY, step->norm = NAN;
    if (step->step == 11) {
        report_checkpoint(report, 10, "runs/a/step-00000010", 0.25);
        report_sample(report, 10, strange, sizeof strange - 1);
    }
    if (step->step != 12) return;
    report_warning(report, "step %d: %s", 11, "a \"warning\"");
    report_validation(report, 11, &(Evaluation){ INFINITY, 1, 0 }, 0.5);
    report_validation(report, 11, &(Evaluation){ 2, 1, 0 }, NAN);
}

/* Each line is a JSON object; what is unknown or not finite is absent. The page has its texts. */
TEST(the_events_are_those_of_the_run) {
    int stderr_was = redirect(STDERR_FILENO, "/dev/null");
    PRINTED(run_steps(&(Run){ "train_gpt --prompt 'say \"hi\"'", -1, 8, 12, add_events }));
    restore(STDERR_FILENO, stderr_was);
    EXPECT_CELL(9, "loss", "inf");
    EXPECT_CELL(9, "norm", "");
    const int parameters = 16*4 + 8*4 + 2*4 + (4*12 + 12) + (4*4 + 4) + 2*4 + (4*16 + 16) + (16*4 + 4) + 2*4;
    const char *want = STRING(
        "{\"event\": \"run\", \"step\": 0, \"version\": \"" VERSION "\", "
        "\"command\": \"train_gpt --prompt 'say \\\"hi\\\"'\", "
        "\"backend\": \"%s\", \"device\": \"a device\", \"ranks\": 1, \"parameters\": %d, \"floor\": 0.500000}\n"
        "{\"event\": \"validation\", \"step\": 10, \"val_loss\": 1.5, \"floor\": 0.500000}\n"
        "{\"event\": \"checkpoint\", \"step\": 10, \"path\": \"runs/a/step-00000010\", "
        "\"save_seconds\": 0.250}\n"
        "{\"event\": \"sample\", \"step\": 10, \"text\": \"a \\\"quote\\\", \\\\, \\u0009, \xc3\xa9, "
        "no UTF-8: \\ufffd \\ufffd, NUL: \\ufffd\"}\n"
        "{\"event\": \"warning\", \"step\": 11, \"message\": \"step 11: a \\\"warning\\\"\"}\n"
        "{\"event\": \"validation\", \"step\": 11, \"floor\": 0.500000}\n"
        "{\"event\": \"validation\", \"step\": 11, \"val_loss\": 2}\n"
        "{\"event\": \"end\", \"step\": 12, \"reason\": \"done\"}\n", backend_name, parameters);
    EXPECT(!strcmp(events_without_times(), want), "got %swant %s", events_without_times(), want);
    for (int n = 0; event_at(n); n++) { }       /* which fails if it is no JSON */
    EXPECT(page_says("\\\"reason\\\": \\\"done\\\"") && page_says("step 11: a \\\\\\\"warning"), "report.html");
    const char *line = PRINTED_ON(STDERR_FILENO, report_warning(&(Report){0}, "%d of %d", 1, 2));
    EXPECT(!strcmp(line, "train_gpt: warning: 1 of 2\n"), "%s", line);
}

/* Also behind a line that a crash has torn, which readers leave out. */
TEST(a_resume_is_an_event) {
    static const char before[] = "{\"event\": \"run\"}\n{\"event\": \"validation\", \"step\": 10}\n";
    static const char torn[] = "{\"event\": \"warning\", \"st";
    static const char after[] = "\"floor\": 0.500000, \"changes\": \"--steps 200 -> 300\"}\n";
    changes = "--steps 200 -> 300";
    for (int is_torn = 0; is_torn < 2; is_torn++) {
        put_text(events_path, STRING("%s%s", before, is_torn ? torn : ""));
        PRINTED(run_steps(&(Run){ "second", 5, 1, 0, NULL }));
        const char *text = text_of(events_path), *line = strstr(text, "{\"event\": \"resume\", \"step\": 5, ");
        EXPECT(begins_with(text, before) && line && line[-1] == '\n' && strstr(line, after) &&
               strstr(line, "Z\", \"version\": \"" VERSION "\", \"command\": \"second\", "), "%s", text);
    }
    changes = NULL;
    unlink(events_path);
    PRINTED(run_steps(&(Run){ "second", 5, 1, 0, NULL }));
    EXPECT(!strcmp(events_text(), "resume5 end5"), "%s", events_text());
}

static void fail_at_step_2(Report *report, LogRow *step) {
    (void)report;
    if (step->step == 2) fail("step %d: not \"finite\"", 2);
    fclose(stdout);
}

TEST(a_failure_is_an_event) {
    if (test_in_process) { test_skip_reason = "needs a child"; return; }
    EXPECT_FAILS("train_gpt: step 2: not \"finite\"",
                 fail_hook = NULL; run_steps(&(Run){ "a", -1, 1, 2, fail_at_step_2 }));
    EXPECT(strstr(text_of(events_path), "\"reason\": \"step 2: not \\\"finite\\\"\"}\n"), "%s", text_of(events_path));
    EXPECT_CELL(1, "loss", "4");
    EXPECT(page_says("step 2: not \\\\\\\"finite"), "report.html");
}

/* ---- settings.txt */

TEST(the_settings_are_written) {
    PRINTED(run_steps(&(Run){ "train_gpt --lr 3e-4", -1, 1, 2, NULL }));
    const char *text = text_of(settings_path);
    const char *line = strchr(text, '\n');
    EXPECT(begins_with(text, "# " VERSION ", 20") && line && line[-1] == 'Z', "%s", text);
    const char *want = STRING("\n# command: train_gpt --lr 3e-4\n# device: %s, a device, of 1 core\n# model: 1 layers, "
                              "2 heads, 4 channels, context 8, vocabulary 16, 0.00M parameters, f32, flash attention\n"
                              "# data: input.txt\n# memory: 213 MiB of 7.00 GiB free\n# floor: 0.500000\n"
                              "# --config reads this file, for a new run; --resume reads the options of the "
                              "checkpoint\nlayers = 1\nlr = 0.0003\n",
                              backend_name);
    EXPECT(line && begins_with(line, want), "%s", text);

    rate = 0.0001;              /* a resume writes those of now */
    changes = "--lr 0.0003 -> 0.0001";
    PRINTED(run_steps(&(Run){ "train_gpt --resume --lr 1e-4", 2, 3, 3, NULL }));
    changes = NULL;
    rate = 0.0003;
    const char *resumed = text_of(settings_path);
    EXPECT(strstr(resumed, "\n# command: train_gpt --resume --lr 1e-4\n") && strstr(resumed, "\nlr = 0.0001\n") &&
           strstr(resumed, "\n# resumed: at step 2, --lr 0.0003 -> 0.0001\n"), "%s", resumed);
    EXPECT(lines_in(resumed) == lines_in(text) + 1, "%s", resumed);
    EXPECT(!file_exists(STRING("%s.new", settings_path)), "a temporary file is left");
}

int main(void) {
    report_scratch_open();
    settings_path = IN_SCRATCH("settings.txt");
    return test_all();
}
