#include "report.h"
#include "files.h"
#include "units.h"
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

#define CSV_OLD_HEADER "step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss"
#define CSV_HEADER     CSV_OLD_HEADER ",temperature_c,power_w,clock_mhz,throttle"
enum { CSV_OLD_COLUMNS = 9, CSV_COLUMNS = 13, PLAIN_COLUMNS = 109 };

/* ---- the log */

static void write_head(FILE *file, const char *head) {
    int at_start = 1;
    for (; head && *head; head++) {
        if (at_start && *head != '#') fputs("# ", file);       /* a newline inside a value, say a prompt */
        fputc((unsigned char)*head < ' ' && *head != '\n' ? '?' : *head, file);
        at_start = *head == '\n';
    }
    if (!at_start) fputc('\n', file);
    fputs(CSV_HEADER "\n", file);
}

static int line_is(const char *line, const char *end, const char *text) {
    return (size_t)(end - line) == strlen(text) && !memcmp(line, text, strlen(text));
}

/* A line up to its end: a row's step, or -1 when it is no row of so many columns. */
static int64_t row_step(const char *line, const char *end, int columns) {
    char *after;
    int commas = 0;
    for (const char *p = line; p < end; p++) commas += *p == ',';
    if (*line < '0' || *line > '9' || commas != columns - 1) return -1;
    int64_t step = strtoll(line, &after, 10);
    return *after == ',' ? step : -1;
}

/* How many bytes of a log to keep: all up to the end of the last row with step <= keep_step, also where an editor took
   its newline. *columns are those of its header. */
static size_t kept_bytes(const char *path, FileMap log, int64_t keep_step, int *columns) {
    const char *begin = (const char *)log.bytes, *stop = begin + log.size, *line = begin, *kept = NULL, *end;
    int64_t number = 1, step = 0;
    for (; line < stop; line = end + 1, number++) {
        end = memchr(line, '\n', (size_t)(stop - line));
        if (!end && !kept) break;
        if (!end) end = stop;
        if (*line == '#') continue;
        if (!kept) {
            *columns = line_is(line, end, CSV_HEADER) ? CSV_COLUMNS : CSV_OLD_COLUMNS;
            if (*columns == CSV_OLD_COLUMNS && !line_is(line, end, CSV_OLD_HEADER)) break;
        } else {
            int64_t next = row_step(line, end, *columns);
            if (end == stop && next < 0) break;            /* half written */
            REQUIRE(next > step, "%s:%" PRId64 ": damaged: want a row with a step after %" PRId64
                    "; move the log away to start a new one", path, number, step);
            if (next > keep_step) break;
            step = next;
        }
        kept = end < stop ? end + 1 : stop;
    }
    REQUIRE(kept, "%s: not a log of training steps, want the columns %s; move it away to start a new one",
            path, CSV_HEADER);
    if (step < keep_step)
        printf("%s: ends at step %" PRId64 ", the rows up to step %" PRId64 " are not there\n", path, step,
               keep_step);
    return (size_t)(kept - begin);
}

static void open_log(Report *report, const char *path, const char *head, int64_t keep_step) {
    char *beside = format_string("%s.new", path);
    FILE *file;
    report->csv_columns = CSV_COLUMNS;
    if (keep_step >= 0 && file_exists(path)) {
        FileMap log = file_map(path);
        size_t bytes = kept_bytes(path, log, keep_step, &report->csv_columns);
        file = file_create(beside);
        fwrite(log.bytes, 1, bytes, file);
        if (log.bytes[bytes - 1] != '\n') fputc('\n', file);
        file_unmap(log);
    } else {
        file = file_create(beside);
        write_head(file, head);
    }
    if (keep_step >= 0) {
        const char *command = head ? head + strspn(head, "# ") : "";
        if (!strncmp(command, "command: ", 9)) command += 9;
        fprintf(file, "# resumed at step %" PRId64 ": %.*s\n", keep_step, (int)strcspn(command, "\n"), command);
    }
    file_close_durably(file, beside);
    file_rename(beside, path);
    free(beside);

    report->csv = fopen(path, "a");
    REQUIRE(report->csv, "%s: cannot open to append: %s", path, strerror(errno));
    report->csv_path = format_string("%s", path);
}

static const char *cell(char text[32], const char *format, double value) {
    text[0] = 0;
    if (!isnan(value)) snprintf(text, 32, format, value);
    return text;
}

static const char *positive_cell(char text[32], const char *format, double value) {
    return cell(text, format, value > 0 ? value : NAN);
}

/* ",temperature_c,power_w,clock_mhz,throttle" */
static const char *health_cells(char text[128], const DeviceHealth *h) {
    char temperature[32], power[32], clock[32];
    snprintf(text, 128, ",%s,%s,%s,%.24s", positive_cell(temperature, "%.0f", h->temperature_c),
             positive_cell(power, "%.1f", h->power_w), positive_cell(clock, "%.0f", h->clock_mhz),
             h->throttle ? h->throttle : "");
    return text;
}

/* Returns errno, or 0 when no row waits any more. */
static int write_waiting(Report *report) {
    while (report->waiting_bytes) {
        ssize_t written = write(fileno(report->csv), report->waiting, report->waiting_bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : EIO;
        report->waiting_bytes -= (size_t)written;
        memmove(report->waiting, report->waiting + written, report->waiting_bytes);
    }
    return 0;
}

/* A full disk does not end a run: what came out of it is worth more than its log. */
static void tell_log(Report *report, int error) {
    if (error && !report->csv_error)
        report_alarm(report, "%s: cannot write: %s; the run goes on, its rows wait in memory", report->csv_path,
                     strerror(error));
    if (!error && report->csv_error) report_line(report, "%s: written again, no row is missing", report->csv_path);
    report->csv_error = error;
}

static void write_row(Report *report, const StepReport *s) {
    char loss[32], norm[32], lr[32], ms[32], speed[32], mfu[32], val_loss[32], health[128];
    char *row = format_string("%" PRId64 ",%" PRId64 ",%s,%s,%s,%s,%s,%s,%s%s\n", s->step, s->tokens,
            cell(loss, "%.9g", s->loss), cell(norm, "%.9g", s->norm), cell(lr, "%.9g", s->learning_rate),
            cell(ms, "%.3f", s->ms), cell(speed, "%.1f", s->tokens_per_second),
            positive_cell(mfu, "%.4f", s->mfu), cell(val_loss, "%.9g", s->val_loss),
            report->csv_columns == CSV_COLUMNS ? health_cells(health, &s->health) : "");
    size_t length = strlen(row);
    report->waiting = realloc(report->waiting, report->waiting_bytes + length);
    REQUIRE(report->waiting, "out of memory: %zu bytes of the log, which could not be written", report->waiting_bytes);
    memcpy(report->waiting + report->waiting_bytes, row, length);
    report->waiting_bytes += length;
    free(row);
    tell_log(report, write_waiting(report));
}

void report_val_loss(const char *csv_path, int64_t step, double val_loss) {
    enum { COMMAS_BEFORE = 8 };
    if (!file_exists(csv_path)) return;
    char row[32], *beside = format_string("%s.new", csv_path);
    int length = snprintf(row, sizeof row, "\n%" PRId64 ",", step);
    FileMap log = file_map(csv_path);
    const char *begin = (const char *)log.bytes, *end = NULL;
    const char *place = memmem(begin, (size_t)log.size, row, (size_t)length);
    if (place) end = memchr(place + 1, '\n', (size_t)(begin + log.size - place - 1));
    for (int i = 0; i < COMMAS_BEFORE && place && end; i++)
        place = memchr(place + 1, ',', (size_t)(end - place - 1));
    if (place && end && (place[1] == ',' || place[1] == '\n')) {
        FILE *file = file_create(beside);
        file_write(file, begin, (size_t)(place + 1 - begin));
        fprintf(file, "%.9g", val_loss);
        file_write(file, place + 1, (size_t)(begin + log.size - place - 1));
        file_close_durably(file, beside);
        file_rename(beside, csv_path);
    }
    file_unmap(log);
    free(beside);
}

/* ---- the terminal. Errors of stdout are not ours: nobody may be there to read it, and the log is whole. */

static Report *report_in_place;       /* its line is ended before a failure prints its own */

static void end_line(Report *report) {
    if (report->pending) putchar('\n');
    report->pending = 0;
    fflush(stdout);
}

static void fail_below_the_line(const char *message) {
    if (report_in_place) end_line(report_in_place);
    fail_hook = NULL;
    fail("%s", message);
}

static void look_for_terminal(Report *report) {
    report->in_place = isatty(STDOUT_FILENO);
    if (report->in_place && !fail_hook) {
        report_in_place = report;
        fail_hook = fail_below_the_line;
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

/* The line of a step in at most so many columns: what matters least leaves first, then the end is cut. */
static int step_text(const Report *report, const StepReport *s, int columns, char *text, size_t size) {
    enum { STEP, LOSS, VAL, NORM, LR, MS, SPEED, MFU, THROTTLE, LEFT, FIELDS };
    const int drop[] = { s->mfu > 0 ? LR : MFU, LR, NORM, MS, MFU, SPEED, LEFT };
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
    if (s->mfu > 0) snprintf(field[MFU], 64, "mfu %.1f%%", 100 * s->mfu);
    else            snprintf(field[MFU], 64, "mfu unknown");
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

static void put_in_place(Report *report, const char *text, int length) {
    printf("\r%s%*s", text, report->pending > length ? report->pending - length : 0, "");
    report->pending = length;
}

static void show(Report *report, const StepReport *step, int for_good) {
    char text[1024];
    /* the last column stays free: some terminals wrap as soon as it is filled */
    int length = step_text(report, step, report->in_place ? terminal_columns() - 1 : PLAIN_COLUMNS, text, sizeof text);
    if (report->in_place) {
        put_in_place(report, text, length);
    } else {
        printf("%s", text);
        report->pending = 1;
    }
    if (for_good || !report->in_place) end_line(report);
    fflush(stdout);
}

/* ---- the door */

void report_open(Report *report, const char *csv_path, const char *head, int64_t keep_step) {
    memset(report, 0, sizeof *report);
    signal(SIGPIPE, SIG_IGN);
    look_for_terminal(report);
    if (csv_path) open_log(report, csv_path, head, keep_step);
}

void report_step(Report *report, const StepReport *step) {
    if (report->csv) write_row(report, step);

    /* the first step allocates, pages in and warms up: it counts only while it is the only one */
    report->steps++;
    if (report->steps <= 2) report->mean_ms = step->ms;
    else report->mean_ms += (step->ms - report->mean_ms) / (double)(report->steps - 1 < 20 ? report->steps - 1 : 20);

    double now = seconds_now();
    int lasting = step->step == step->total || !isnan(step->val_loss);
    report->last = *step;
    if (step->health.throttle) report->health = step->health;
    report->shown = lasting || report->steps == 1 || now - report->shown_at_s >= (report->in_place ? 0.05 : 1);
    if (!report->shown) return;
    report->shown_at_s = now;
    show(report, step, lasting);
}

void report_progress(Report *report, int64_t done, int64_t all) {
    double now = seconds_now();
    if (done == 0) {
        look_for_terminal(report);
        report->begun_at_s = report->told_at_s = now;
    }
    if (!report->in_place) return;
    if (done == all) {
        put_in_place(report, "", 0);
        putchar('\r');
    } else if (now - report->told_at_s >= 1) {
        char text[64], left[32];
        double share = (double)done / (double)all;
        int columns = terminal_columns(), size = columns < (int)sizeof text ? columns : (int)sizeof text;
        snprintf(text, (size_t)size, "evaluating %.0f%% done, %s left", 100 * share,
                 duration_text((now - report->begun_at_s) * (1 / share - 1), left));
        put_in_place(report, text, (int)strlen(text));
        report->told_at_s = now;
    }
    fflush(stdout);
}

void report_line(Report *report, const char *format, ...) {
    va_list arguments;
    end_line(report);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void report_alarm(Report *report, const char *format, ...) {
    va_list arguments;
    end_line(report);
    va_start(arguments, format);
    fputs("train_gpt: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* Somebody has moved or removed it, alone or with its folder: the rows go where it is now, or nowhere. */
static void tell_moved(Report *report) {
    int moved = !file_has_name(fileno(report->csv), report->csv_path);
    if (moved && !report->csv_moved)
        report_alarm(report, "%s: was moved or removed while the run writes it: its rows are no longer there",
                     report->csv_path);
    report->csv_moved = moved;
}

void report_sync(Report *report) {
    if (!report->csv) return;
    int error = write_waiting(report);
    if (!error && fsync(fileno(report->csv)) && errno != EINVAL) error = errno;    /* EINVAL: of no disk, /dev/null */
    tell_log(report, error);
    tell_moved(report);
}

void report_close(Report *report) {
    if (report->steps && !report->shown) show(report, &report->last, 1);
    end_line(report);
    if (report_in_place == report) {
        report_in_place = NULL;
        fail_hook = NULL;
    }
    if (report->csv) {
        int error = write_waiting(report);
        REQUIRE(!error, "%s: cannot write: %s; %zu bytes of rows are lost", report->csv_path, strerror(error),
                report->waiting_bytes);
        fclose(report->csv);
    }
    free(report->waiting);
    free(report->csv_path);
    memset(report, 0, sizeof *report);
}
