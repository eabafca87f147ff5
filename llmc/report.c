#include "report.h"
#include "files.h"
#include "os.h"
#include "../kernels/check.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CSV_HEADER "step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss,temperature_c,power_w,clock_mhz,throttle"
enum { COMMAS_BEFORE_VAL_LOSS = 8 };

/* ---- The banner and the head of the log */

/* start: of every line. */
static void print_info(FILE *file, const char *start, const RunInfo *run, int all_options) {
    const GPTConfig *c = run->config;
    fprintf(file, "%sversion: %s\n%sdevice: %s, %s, %s\n", start, run->version, start, backend_name, run->device->name,
            run->device->detail);
    fprintf(file, "%smodel: %d layers, %d heads, %d channels, context %d, vocabulary %d, %" PRId64 " parameters\n",
            start, c->L, c->NH, c->C, c->T, c->V, gpt_parameter_count(c));
    fprintf(file, "%ssettings:", start);
    options_print(file, run->options, all_options);
    fputs(all_options ? "\n" : " (all others as in --help)\n", file);
}

void report_banner(const RunInfo *run) { print_info(stdout, "", run, 0); }

static void write_head(FILE *file, const RunInfo *run) {
    fprintf(file, "# command: %s\n", run->command);
    print_info(file, "# ", run, 1);
    if (!isnan(run->val_floor)) fprintf(file, "# floor: %.6f\n", run->val_floor);
    fputs(CSV_HEADER "\n", file);
}

/* ---- The log */

/* Puts val_loss into the row, unless the row has one. */
static void write_val_loss(FILE *file, const char *row, double val_loss) {
    const char *cell = row;
    for (int i = 0; i < COMMAS_BEFORE_VAL_LOSS && cell; i++) cell = strchr(cell + (i > 0), ',');
    if (cell && cell[1] == ',') fprintf(file, "%.*s,%.9g%s", (int)(cell - row), row, val_loss, cell + 1);
    else fputs(row, file);
}

/* Copies the lines of a log up to the row of keep_step, but not a last line without a newline: it is half written. */
static void copy_log(FILE *file, const char *path, int64_t keep_step, double val_loss) {
    FileMap log = file_map(path);
    FILE *lines = fmemopen((void *)log.bytes, (size_t)log.size, "r");
    REQUIRE(lines, "%s: cannot read: %s", path, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    int64_t step = -1;          /* of the last row; 0 = the header, -1 = before it */
    while (step < keep_step && getline(&line, &size, lines) > 0 && strchr(line, '\n')) {
        if (*line != '#') {
            if (step < 0 && strcmp(line, CSV_HEADER "\n")) break;
            int64_t next = step < 0 ? 0 : strtoll(line, NULL, 10);
            REQUIRE(next > step, "%s: damaged: want a row with a step after %" PRId64 ", got %.40s; move the log away "
                    "to start a new one", path, step, line);
            if (next > keep_step) break;
            step = next;
        }
        if (step > 0 && step == keep_step && !isnan(val_loss)) write_val_loss(file, line, val_loss);
        else fputs(line, file);
    }
    REQUIRE(step >= 0, "%s: not a log of training steps, want the columns %s; move it away to start a new one", path,
            CSV_HEADER);
    if (step < keep_step)
        printf("%s: ends at step %" PRId64 ", the rows up to step %" PRId64 " are missing\n", path, step, keep_step);
    free(line);
    fclose(lines);
    file_unmap(log);
}

/* A log without a checkpoint to continue from. */
static void rename_old_log(const char *path) {
    char *old = format_string("%s.old", path);
    for (int n = 2; file_exists(old); n++) {
        free(old);
        old = format_string("%s.old.%d", path, n);
    }
    file_rename(path, old);
    printf("%s belongs to a run without a checkpoint: renamed to %s\n", path, old);
    free(old);
}

static void open_log(Report *report, const char *path, const RunInfo *run, int64_t keep_step, double val_loss) {
    char *new_path = format_string("%s.new", path);
    int exists = file_exists(path);
    if (exists && keep_step < 0) rename_old_log(path);
    FILE *file = file_create(new_path);
    if (exists && keep_step >= 0) copy_log(file, path, keep_step, val_loss);
    else write_head(file, run);
    if (keep_step >= 0) fprintf(file, "# resumed at step %" PRId64 ": %s\n", keep_step, run->command);
    file_close_durably(file, new_path);
    file_rename(new_path, path);
    free(new_path);

    report->csv = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    REQUIRE(report->csv >= 0, "%s: cannot open to append: %s", path, strerror(errno));
    report->csv_path = format_string("%s", path);
    report->rows = open_memstream(&report->pending, &report->pending_bytes);
    REQUIRE(report->rows, "out of memory: the rows of the log");
}

/* Writes the rows that are not in the file yet. An error, such as a full disk, is reported, and the rows are kept.
   Returns errno, or 0. */
static int write_pending(Report *report, int sync) {
    int error = 0;
    while (!error && report->written_bytes < report->pending_bytes) {
        ssize_t written = write(report->csv, report->pending + report->written_bytes,
                                report->pending_bytes - report->written_bytes);
        if (written > 0) report->written_bytes += (size_t)written;
        else error = written ? errno : EIO;
    }
    if (!error) {
        rewind(report->rows);
        report->written_bytes = report->pending_bytes = 0;
        if (sync && fsync(report->csv) && errno != EINVAL) error = errno;       /* EINVAL: /dev/null */
    }
    if (error && !report->csv_error)
        report_line(stderr, "%s: cannot write: %s; the run continues, its rows are kept in memory", report->csv_path,
                    strerror(error));
    if (!error && report->csv_error) report_line(stdout, "%s: written again, no row is missing", report->csv_path);
    return report->csv_error = error;
}

static double known(double value) { return isfinite(value) && value > 0 ? value : NAN; }

/* Model FLOP utilisation, 0..1; NaN = unknown. */
static double mfu_of(const StepReport *s) {
    return known(s->tokens_per_second * s->flops_per_token / s->peak_flops);
}

/* Empty for NaN. */
static void write_cell(FILE *rows, const char *format, double value) {
    fputc(',', rows);
    if (!isnan(value)) fprintf(rows, format, value);
}

static void write_row(Report *report, const StepReport *s) {
    const DeviceHealth *h = &report->row_health;
    FILE *rows = report->rows;
    fprintf(rows, "%" PRId64 ",%" PRId64, s->step, s->tokens);
    write_cell(rows, "%.9g", s->loss);
    write_cell(rows, "%.9g", s->norm);
    write_cell(rows, "%.9g", s->learning_rate);
    write_cell(rows, "%.3f", s->ms);
    write_cell(rows, "%.1f", s->tokens_per_second);
    write_cell(rows, "%.4f", mfu_of(s));
    write_cell(rows, "%.9g", s->val_loss);
    write_cell(rows, "%.0f", known(h->temperature_c));
    write_cell(rows, "%.1f", known(h->power_w));
    write_cell(rows, "%.0f", known(h->clock_mhz));
    fprintf(rows, ",%s\n", h->throttle ? h->throttle : "");
    REQUIRE(!fflush(rows), "out of memory: %zu bytes of the log, which could not be written", report->pending_bytes);
    write_pending(report, 0);
}

/* ---- The terminal. Errors of stdout are ignored: the log has every step. */

static int columns_in_place;        /* of a line on the terminal that the next one overwrites */

static void end_line(void) {
    if (columns_in_place) putchar('\n');
    columns_in_place = 0;
    fflush(stdout);
}

static void fail_on_new_line(const char *message) {
    end_line();
    fail_hook = NULL;
    fail("%s", message);
}

/* The last column stays free: some terminals wrap when it is filled. */
static void print_in_place(const char *text) {
    struct winsize size;
    int columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    printf("\r%*s\r", columns_in_place, "");
    columns_in_place = printf("%.*s", columns, text);
    fflush(stdout);
    if (!fail_hook) fail_hook = fail_on_new_line;
}

/* What matters less is at the end, which a narrow terminal cuts. */
static void print_step(Report *report, const StepReport *s) {
    char text[512], val[32] = "", mfu[32] = "unknown", throttled[64] = "", left[48] = "", duration[32];
    int digits = snprintf(text, sizeof text, "%" PRId64, s->total);
    if (!isnan(s->val_loss)) snprintf(val, sizeof val, "  val %.4f", s->val_loss);
    if (!isnan(mfu_of(s))) snprintf(mfu, sizeof mfu, "%.1f%%", 100 * mfu_of(s));
    if (report->health.is_abnormal) snprintf(throttled, sizeof throttled, "  throttled: %s", report->health.throttle);
    double seconds_left = 1e-3 * report->mean_ms * (double)(s->total - s->step);
    if (s->step < s->total) snprintf(left, sizeof left, "  %s left", duration_text(seconds_left, duration));
    snprintf(text, sizeof text, "step %*" PRId64 "/%" PRId64 "  loss %.4f%s  norm %.2f  %5.0f tok/s  mfu %s%s%s  "
             "%.1f ms  lr %.1e", digits, s->step, s->total, s->loss, val, s->norm, s->tokens_per_second, mfu,
             throttled, left, s->ms, s->learning_rate);
    int is_terminal = isatty(STDOUT_FILENO);
    if (is_terminal) print_in_place(text);
    else             puts(text);
    if (!is_terminal || s->step == s->total || !isnan(s->val_loss)) end_line();
}

/* ---- The report */

void report_open(Report *report, const char *csv_path, const RunInfo *run, int64_t keep_step, double val_loss) {
    memset(report, 0, sizeof *report);
    signal(SIGPIPE, SIG_IGN);
    if (csv_path) open_log(report, csv_path, run, keep_step, val_loss);
}

void report_health(Report *report) {
    double now = seconds_now();
    if (report->health_at_s && now - report->health_at_s < 1) return;
    report->health_at_s = now;
    report->row_health = device_health();
}

void report_step(Report *report, const StepReport *step) {
    if (report->csv_path) write_row(report, step);
    if (report->row_health.throttle) report->health = report->row_health;
    report->row_health = (DeviceHealth){0};

    /* the first step allocates and warms up: it counts only while it is the only one */
    report->steps++;
    if (report->steps <= 2) report->mean_ms = step->ms;
    else report->mean_ms += (step->ms - report->mean_ms) / 20;

    double now = seconds_now(), interval = isatty(STDOUT_FILENO) ? 0.05 : 1;
    int is_due = report->steps == 1 || now - report->printed_at_s >= interval;
    if (is_due || step->step == step->total || !isnan(step->val_loss)) {
        print_step(report, step);
        report->printed_at_s = now;
        report->unprinted.step = 0;
    } else {
        report->unprinted = *step;
    }
}

void report_progress(Report *report, int64_t done, int64_t all) {
    double now = seconds_now(), share = (double)done / (double)all;
    char text[64], left[32];
    if (!isatty(STDOUT_FILENO)) return;
    if (done == 0) report->progress_start_s = report->printed_at_s = now;
    if (done == all) {
        print_in_place("");
    } else if (now - report->printed_at_s >= 1) {
        duration_text((now - report->progress_start_s) * (1 / share - 1), left);
        snprintf(text, sizeof text, "evaluating %.0f%% done, %s left", 100 * share, left);
        print_in_place(text);
        report->printed_at_s = now;
    }
}

void report_line(FILE *file, const char *format, ...) {
    va_list arguments;
    end_line();
    if (file == stderr) fputs("train_gpt: ", stderr);
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fflush(file);
}

void report_sync(Report *report) {
    if (report->csv_path) write_pending(report, 1);
}

void report_close(Report *report) {
    if (report->unprinted.step) print_step(report, &report->unprinted);
    end_line();
    if (report->csv_path) {
        int error = write_pending(report, 0);
        REQUIRE(!error, "%s: cannot write: %s; %zu bytes of rows are lost", report->csv_path, strerror(error),
                report->pending_bytes - report->written_bytes);
        close(report->csv);
        fclose(report->rows);
    }
    free(report->pending);
    free(report->csv_path);
    memset(report, 0, sizeof *report);
}

void report_warning(Report *report, const char *format, ...) {
    (void)report;
    va_list arguments;
    end_line();
    fputs("train_gpt: warning: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}
