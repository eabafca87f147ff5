#include "report.h"
#include "files.h"
#include "os.h"
#include "../kernels/check.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CSV_HEADER "step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss,temperature_c,power_w,clock_mhz,throttle"
enum { CSV_COLUMNS = 13, COMMAS_BEFORE_VAL_LOSS = 8, PLAIN_COLUMNS = 109 };

/* ---- The banner and the head of the log */

static void print_model(FILE *file, const GPTConfig *c) {
    fprintf(file, "model: %d layers, %d heads, %d channels, context %d, vocabulary %d, ",
            c->L, c->NH, c->C, c->T, c->V);
}

void report_banner(const RunInfo *run) {
    printf("%s on %s: %s, %s\n", run->version, backend_name, run->device->name, run->device->detail);
    print_model(stdout, run->config);
    printf("%.2f M parameters\noptions:", 1e-6 * (double)gpt_parameter_count(run->config));
    options_print(stdout, run->options, 0);
    printf(" (all others as in --help)\n");
}

char *report_head(const RunInfo *run) {
    char *head = NULL;
    size_t size;
    FILE *file = open_memstream(&head, &size);
    REQUIRE(file, "out of memory: the head of the log");
    fprintf(file, "# command: %s\n# version: %s\n# device: %s, %s, %s\n# settings:", run->command, run->version,
            backend_name, run->device->name, run->device->detail);
    options_print(file, run->options, 1);
    fprintf(file, "\n# ");
    print_model(file, run->config);
    fprintf(file, "%" PRId64 " parameters\n", gpt_parameter_count(run->config));
    if (!isnan(run->val_floor)) fprintf(file, "# floor: %.6f\n", run->val_floor);
    fclose(file);
    return head;
}

/* ---- The log */

/* Every line of the head is a comment, also one of a value with a newline, such as a prompt. */
static void write_head(FILE *file, const char *head) {
    int line_start = 1;
    for (; head && *head; head++) {
        if (line_start && *head != '#') fputs("# ", file);
        fputc((unsigned char)*head < ' ' && *head != '\n' ? '?' : *head, file);
        line_start = *head == '\n';
    }
    if (!line_start) fputc('\n', file);
    fputs(CSV_HEADER "\n", file);
}

/* The step of a row, -1 when the line is no row. */
static int64_t row_step(const char *line, const char *end) {
    char *after;
    int commas = 0;
    for (const char *p = line; p < end; p++) commas += *p == ',';
    if (*line < '0' || *line > '9' || commas != CSV_COLUMNS - 1) return -1;
    int64_t step = strtoll(line, &after, 10);
    return *after == ',' ? step : -1;
}

/* Bytes up to the end of the last row with step <= keep_step, also when an editor removed its newline. *last_row: the
   row of keep_step, NULL = none. */
static size_t kept_bytes(const char *path, FileMap log, int64_t keep_step, const char **last_row) {
    const char *begin = (const char *)log.bytes, *stop = begin + log.size, *line = begin, *kept = NULL, *end;
    int64_t number = 1, step = 0;
    *last_row = NULL;
    for (; line < stop; line = end + 1, number++) {
        end = memchr(line, '\n', (size_t)(stop - line));
        if (!end && !kept) break;
        if (!end) end = stop;
        if (*line == '#') continue;
        if (!kept) {
            if (end - line != sizeof CSV_HEADER - 1 || memcmp(line, CSV_HEADER, sizeof CSV_HEADER - 1)) break;
        } else {
            int64_t next = row_step(line, end);
            if (end == stop && next < 0) break;            /* half written */
            REQUIRE(next > step, "%s:%" PRId64 ": damaged: want a row with a step after %" PRId64
                    "; move the log away to start a new one", path, number, step);
            if (next > keep_step) break;
            step = next;
            if (step == keep_step) *last_row = line;
        }
        kept = end < stop ? end + 1 : stop;
    }
    REQUIRE(kept, "%s: not a log of training steps, want the columns %s; move it away to start a new one",
            path, CSV_HEADER);
    if (step < keep_step)
        printf("%s: ends at step %" PRId64 ", the rows up to step %" PRId64 " are missing\n", path, step, keep_step);
    return (size_t)(kept - begin);
}

/* Copies the kept part of a log; val_loss, unless NaN, goes into the empty cell of its row. */
static void copy_log(FILE *file, const char *path, int64_t keep_step, double val_loss) {
    FileMap log = file_map(path);
    const char *begin = (const char *)log.bytes, *cell;
    size_t bytes = kept_bytes(path, log, keep_step, &cell);
    for (int i = 0; i < COMMAS_BEFORE_VAL_LOSS && cell; i++) cell = strchr(cell, ',') + 1;
    size_t before = cell && *cell == ',' && !isnan(val_loss) ? (size_t)(cell - begin) : bytes;
    fwrite(begin, 1, before, file);
    if (before < bytes) fprintf(file, "%.9g", val_loss);
    fwrite(begin + before, 1, bytes - before, file);
    if (begin[bytes - 1] != '\n') fputc('\n', file);
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

static void open_log(Report *report, const char *path, const char *head, int64_t keep_step, double val_loss) {
    char *new_path = format_string("%s.new", path);
    int exists = file_exists(path);
    if (exists && keep_step < 0) rename_old_log(path);
    FILE *file = file_create(new_path);
    if (exists && keep_step >= 0) copy_log(file, path, keep_step, val_loss);
    else write_head(file, head);
    if (keep_step >= 0) {
        const char *command = head ? head + strspn(head, "# ") : "";
        if (!strncmp(command, "command: ", 9)) command += 9;
        fprintf(file, "# resumed at step %" PRId64 ": %.*s\n", keep_step, (int)strcspn(command, "\n"), command);
    }
    file_close_durably(file, new_path);
    file_rename(new_path, path);
    free(new_path);

    report->csv = fopen(path, "a");
    REQUIRE(report->csv, "%s: cannot open to append: %s", path, strerror(errno));
    report->csv_path = format_string("%s", path);
    report->rows = open_memstream(&report->pending, &report->pending_bytes);
    REQUIRE(report->rows, "out of memory: the rows of the log");
}

/* Returns errno, or 0 when all rows are in the file. */
static int write_pending(Report *report) {
    while (report->written_bytes < report->pending_bytes) {
        size_t left = report->pending_bytes - report->written_bytes;
        ssize_t written = write(fileno(report->csv), report->pending + report->written_bytes, left);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        report->written_bytes += (size_t)written;
    }
    rewind(report->rows);
    report->written_bytes = report->pending_bytes = 0;
    return 0;
}

/* A full disk does not end a run. */
static void set_log_error(Report *report, int error) {
    if (error && !report->csv_error)
        report_warning(report, "%s: cannot write: %s; the run continues, its rows are kept in memory",
                       report->csv_path, strerror(error));
    if (!error && report->csv_error) report_line(report, "%s: written again, no row is missing", report->csv_path);
    report->csv_error = error;
}

/* Model FLOP utilisation, 0..1; 0 = unknown. */
static double mfu_of(const StepReport *s) {
    return s->peak_flops > 0 ? s->tokens_per_second * s->flops_per_token / s->peak_flops : 0;
}

static void put_cell(FILE *file, const char *format, double value, int known) {
    fputc(',', file);
    if (known) fprintf(file, format, value);
}

static void write_row(Report *report, const StepReport *s) {
    const DeviceHealth *h = &report->row_health;
    FILE *rows = report->rows;
    fprintf(rows, "%" PRId64 ",%" PRId64, s->step, s->tokens);
    put_cell(rows, "%.9g", s->loss, !isnan(s->loss));
    put_cell(rows, "%.9g", s->norm, !isnan(s->norm));
    put_cell(rows, "%.9g", s->learning_rate, 1);
    put_cell(rows, "%.3f", s->ms, 1);
    put_cell(rows, "%.1f", s->tokens_per_second, 1);
    put_cell(rows, "%.4f", mfu_of(s), mfu_of(s) > 0);
    put_cell(rows, "%.9g", s->val_loss, !isnan(s->val_loss));
    put_cell(rows, "%.0f", h->temperature_c, h->temperature_c > 0);
    put_cell(rows, "%.1f", h->power_w, h->power_w > 0);
    put_cell(rows, "%.0f", h->clock_mhz, h->clock_mhz > 0);
    fprintf(rows, ",%s\n", h->throttle ? h->throttle : "");
    REQUIRE(!fflush(rows), "out of memory: %zu bytes of the log, which could not be written", report->pending_bytes);
    set_log_error(report, write_pending(report));
}

/* ---- The terminal. Errors of stdout are ignored: the log has every step. */

static Report *report_in_place;       /* a failure first ends its line */

static void end_line(Report *report) {
    if (report->line_columns) putchar('\n');
    report->line_columns = 0;
    fflush(stdout);
}

static void fail_on_new_line(const char *message) {
    if (report_in_place) end_line(report_in_place);
    fail_hook = NULL;
    fail("%s", message);
}

static void find_terminal(Report *report) {
    report->is_terminal = isatty(STDOUT_FILENO);
    if (report->is_terminal && !fail_hook) {
        report_in_place = report;
        fail_hook = fail_on_new_line;
    }
}

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

/* 4 columns: "9.87", "98.7", " 987" */
static const char *ms_text(double ms, char text[32]) {
    snprintf(text, 32, "%4.*f", ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0, ms);
    return text;
}

/* The line of a step in at most so many columns: fields are dropped in the order of drop, then the end is cut. */
static int step_text(const Report *report, const StepReport *s, int columns, char *text, size_t size) {
    enum { STEP, LOSS, VAL, NORM, LR, MS, SPEED, MFU, THROTTLE, LEFT, FIELDS };
    double mfu = mfu_of(s);
    const int drop[] = { mfu > 0 ? LR : MFU, LR, NORM, MS, MFU, SPEED, LEFT };
    char field[FIELDS][64] = { "" }, scratch[32];

    int digits = snprintf(scratch, sizeof scratch, "%" PRId64, s->total);
    double k = s->tokens_per_second >= 99999.5 ? 1e-3 : 1;
    snprintf(field[STEP], 64, "step %*" PRId64 "/%" PRId64, digits, s->step, s->total);
    snprintf(field[LOSS], 64, "loss %.4f", s->loss);
    if (!isnan(s->val_loss)) snprintf(field[VAL], 64, "val %.4f", s->val_loss);
    snprintf(field[NORM], 64, "norm %.*f", s->norm < 99.995 ? 2 : 0, s->norm);
    snprintf(field[LR], 64, "lr %.1e", s->learning_rate);
    snprintf(field[MS], 64, "%s ms", ms_text(s->ms, scratch));
    snprintf(field[SPEED], 64, "%*.0f%s tok/s", k < 1 ? 4 : 5, k * s->tokens_per_second, k < 1 ? "k" : "");
    if (mfu > 0) snprintf(field[MFU], 64, "mfu %.1f%%", 100 * mfu);
    else         snprintf(field[MFU], 64, "mfu unknown");
    if (report->health.in_distress) snprintf(field[THROTTLE], 64, "throttled: %.24s", report->health.throttle);
    double seconds_left = 1e-3 * report->mean_ms * (double)(s->total - s->step);
    if (s->step < s->total) snprintf(field[LEFT], 64, "%s left", duration_text(seconds_left, scratch));

    size_t length = 0;
    for (size_t d = 0; ; d++) {
        length = 0;
        for (int f = 0; f < FIELDS; f++)
            if (field[f][0])
                length += (size_t)snprintf(text + length, size - length, "%s%s", f ? "  " : "", field[f]);
        if ((int)length <= columns || d == sizeof drop / sizeof drop[0]) break;
        field[drop[d]][0] = 0;
    }
    if ((int)length > columns) length = (size_t)columns;
    text[length] = 0;
    return (int)length;
}

static void overwrite_line(Report *report, const char *text, int length) {
    printf("\r%s%*s", text, report->line_columns > length ? report->line_columns - length : 0, "");
    report->line_columns = length;
}

static void print_step(Report *report, const StepReport *step, int permanent) {
    char text[1024];
    /* the last column stays free: some terminals wrap when it is filled */
    int columns = report->is_terminal ? terminal_columns() - 1 : PLAIN_COLUMNS;
    int length = step_text(report, step, columns, text, sizeof text);
    if (report->is_terminal) {
        overwrite_line(report, text, length);
    } else {
        printf("%s", text);
        report->line_columns = 1;
    }
    if (permanent || !report->is_terminal) end_line(report);
    fflush(stdout);
}

/* ---- The report */

void report_open(Report *report, const char *csv_path, const char *head, int64_t keep_step, double val_loss) {
    memset(report, 0, sizeof *report);
    signal(SIGPIPE, SIG_IGN);
    find_terminal(report);
    if (csv_path) open_log(report, csv_path, head, keep_step, val_loss);
}

void report_health(Report *report) {
    double now = seconds_now();
    if (report->health_at_s && now - report->health_at_s < 1) return;
    report->health_at_s = now;
    report->row_health = device_health();
}

void report_step(Report *report, const StepReport *step) {
    if (report->csv) write_row(report, step);
    if (report->row_health.throttle) report->health = report->row_health;
    report->row_health = (DeviceHealth){0};

    /* the first step allocates and warms up: it counts only while it is the only one */
    report->steps++;
    if (report->steps <= 2) report->mean_ms = step->ms;
    else report->mean_ms += (step->ms - report->mean_ms) / (double)(report->steps - 1 < 20 ? report->steps - 1 : 20);

    double now = seconds_now();
    int permanent = step->step == step->total || !isnan(step->val_loss);
    int due = now - report->printed_at_s >= (report->is_terminal ? 0.05 : 1);
    report->last = *step;
    report->last_printed = permanent || report->steps == 1 || due;
    if (!report->last_printed) return;
    report->printed_at_s = now;
    print_step(report, step, permanent);
}

void report_progress(Report *report, int64_t done, int64_t all) {
    double now = seconds_now();
    if (done == 0) {
        find_terminal(report);
        report->progress_start_s = report->progress_at_s = now;
    }
    if (!report->is_terminal) return;
    if (done == all) {
        overwrite_line(report, "", 0);
        putchar('\r');
    } else if (now - report->progress_at_s >= 1) {
        char text[64], left[32];
        double share = (double)done / (double)all;
        int columns = terminal_columns(), size = columns < (int)sizeof text ? columns : (int)sizeof text;
        snprintf(text, (size_t)size, "evaluating %.0f%% done, %s left", 100 * share,
                 duration_text((now - report->progress_start_s) * (1 / share - 1), left));
        overwrite_line(report, text, (int)strlen(text));
        report->progress_at_s = now;
    }
    fflush(stdout);
}

static void print_line(Report *report, FILE *file, const char *start, const char *format, va_list arguments) {
    end_line(report);
    fputs(start, file);
    vfprintf(file, format, arguments);
    fputc('\n', file);
    fflush(file);
}

void report_line(Report *report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line(report, stdout, "", format, arguments);
    va_end(arguments);
}

void report_warning(Report *report, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_line(report, stderr, "train_gpt: ", format, arguments);
    va_end(arguments);
}

void report_sync(Report *report) {
    if (!report->csv) return;
    int error = write_pending(report);
    if (!error && fsync(fileno(report->csv)) && errno != EINVAL) error = errno;    /* EINVAL: /dev/null */
    set_log_error(report, error);
}

void report_close(Report *report) {
    if (report->steps && !report->last_printed) print_step(report, &report->last, 1);
    end_line(report);
    if (report_in_place == report) {
        report_in_place = NULL;
        fail_hook = NULL;
    }
    if (report->csv) {
        int error = write_pending(report);
        REQUIRE(!error, "%s: cannot write: %s; %zu bytes of rows are lost", report->csv_path, strerror(error),
                report->pending_bytes - report->written_bytes);
        fclose(report->csv);
        fclose(report->rows);
    }
    free(report->pending);
    free(report->csv_path);
    memset(report, 0, sizeof *report);
}
