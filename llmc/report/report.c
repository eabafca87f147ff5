#include "report.h"
#include "../base/files.h"
#include "../base/os.h"
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE_SECONDS = 5, PAGE_COST = 500 };

/* ---- Texts */

const char *loss_text(double loss, double targets_per_byte, char text[192]) {
    const double per_byte = loss * targets_per_byte;
    int n = 0;
    if (targets_per_byte != 1)          /* a run that diverges: e^700 has 305 digits */
        n = snprintf(text, 192, loss < 20 ? "%.4f nats per token (perplexity %.2f)"
                                          : "%.4f nats per token (perplexity %.3g)", loss, exp(loss));
    if (!isnan(targets_per_byte) && n < 192)
        snprintf(text + n, 192 - (size_t)n, "%s%.4f nats per byte (%.4f bits)", n ? ", " : "", per_byte,
                 per_byte / log(2));
    return text;
}

void report_banner(const RunInfo *run) {
    puts(run->version);
    log_describe(stdout, run, 0);
    fflush(stdout);
}

/* The first step, which allocates and warms up, has no time left. */
static void print_step(Report *report) {
    const StepReport *s = &report->last;
    const int digits = snprintf(NULL, 0, "%" PRId64, report->total);
    const double seconds_left = (seconds_now() - report->start_s) / (double)(report->steps - 1) *
                                (double)(report->total - s->step);
    char left[32];
    printf("step %*" PRId64 "/%" PRId64 "  loss %.4f  norm %.2f  %5.0f tok/s", digits, s->step, report->total,
           s->loss, s->norm, s->tokens_per_second);
    if (comm_size > 1)              printf(" (%.0f each)", s->tokens_per_second / comm_size);
    if (isfinite(s->mfu))           printf("  mfu %.1f%%", 100 * s->mfu);
    if (report->health.is_abnormal) printf("  throttled: %s", report->health.throttle);
    if (report->steps > 1 && s->step < report->total)
        printf("  %s left", duration_text(seconds_left, left));
    printf("  %.1f ms", s->ms);
    if (comm_size > 1)              printf(" (%.1f waiting)", s->comm_wait_ms);
    printf("  lr %.1e\n", s->learning_rate);
    fflush(stdout);
    report->printed_at_s = seconds_now();
    report->is_printed = 1;
}

/* ---- The files */

/* Formats the row of the last step, which takes 1 % of a step of d6: not between two steps. */
static void add_row(Report *report) {
    if (!report->is_logged) log_step(&report->log, &report->last);
    report->is_logged = 1;
}

static void flush_files(Report *report, int sync) {
    add_row(report);
    log_file_flush(&report->log.csv, sync);
    log_file_flush(&report->log.jsonl, sync);
}

/* The curves of this build: the program beside this one. All signals are blocked in it, so that Ctrl-C and a queue's
   SIGTERM, which reach all processes of a run, leave the page to be completed. */
static pid_t start_page(const char *out) {
    Path self = {0};
    if (readlink("/proc/self/exe", self.text, sizeof self.text - 1) < 0) *self.text = 0;
    Path curves = path_of(file_parent(self.text).text, "curves");
    posix_spawnattr_t attributes;
    sigset_t all;
    pid_t pid;
    sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &all);
    const int error = posix_spawn(&pid, curves.text, NULL, &attributes,
                                  (char *[]){ curves.text, "--live", (char *)out, NULL }, environ);
    posix_spawnattr_destroy(&attributes);
    if (error) print_line(stderr, "warning: %s: %s; no report.html is written", curves.text, strerror(error));
    return error ? 0 : pid;
}

/* Returns 0 while report.html is being written. options: of wait4. */
static int page_is_complete(Report *report, int options) {
    struct rusage used = {0};
    if (!report->page_writer) return 1;
    if (!wait4(report->page_writer, NULL, options, &used)) return 0;
    const double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    report->page_due_s = seconds_now() + fmax(PAGE_SECONDS, PAGE_COST * seconds);
    report->page_writer = 0;
    return 1;
}

/* If due: every 5 s, and in less than 1/500 of the time. Not into another run's directory, which has the name of this
   one since it was moved. */
static void update_page(Report *report) {
    if (!page_is_complete(report, WNOHANG) || !report->out || report->log.csv.error ||
        seconds_now() < report->page_due_s) return;
    report->page_writer = start_page(report->out);
    if (!report->page_writer) report->out = NULL;
}

static void write_event(Report *report, const char *event, int64_t step, const LogValue *values) {
    log_event(&report->log, event, step, values);
    flush_files(report, 0);
}

/* The last event, and the page that shows it, which is complete then. */
static void end_files(Report *report, const char *reason) {
    write_event(report, "end", report->last.step, (LogValue[]){ { "reason", .text = reason }, {0} });
    page_is_complete(report, 0);
    report->page_due_s = 0;
    update_page(report);
    page_is_complete(report, 0);
}

/* ---- The report */

static Report *open_report;         /* NULL = none */
static void (*next_hook)(const char *message);      /* the fail_hook before this one */

/* Receives the message of fail(). */
static void end_with_error(const char *message) {
    Report *report = open_report;
    fail_hook = next_hook;
    open_report = NULL;
    fflush(stdout);
    if (report) end_files(report, message);
    fail("%s", message);
}

void report_open(Report *report, const RunInfo *run, const ResumeInfo *resume) {
    double peak = run->device->peak_flops[run->config->dtype];
    *report = (Report){ .total = run->steps, .log_every = run->log_every, .out = run->out,
                        .last.step = resume ? resume->step : 0, .is_logged = 1, .is_printed = 1,
                        .mfu_per_speed = peak > 0 ? gpt_flops_per_token(run->config) / (peak * comm_size) : NAN };
    signal(SIGPIPE, SIG_IGN);
    device_health();         /* the first call takes longer: not in the time of the first step */
    if (run->out) log_open(&report->log, run, resume);
    flush_files(report, 0);
    update_page(report);
    open_report = report;
    next_hook = fail_hook;
    fail_hook = end_with_error;
}

void report_background(Report *report) {
    double now = seconds_now();
    flush_files(report, 0);
    update_page(report);
    if (report->health_at_s && now - report->health_at_s < 1) return;
    report->health_at_s = now;
    report->row_health = device_health();
}

void report_step(Report *report, const StepReport *step) {
    StepReport *s = &report->last;
    double mfu = step->tokens_per_second * report->mfu_per_speed;
    add_row(report);
    *s = *step;
    report->is_logged = report->is_printed = 0;
    s->seconds = log_seconds(&report->log);
    s->mfu = mfu > 0 && isfinite(mfu) ? mfu : NAN;
    s->val_loss = NAN;
    s->health = report->row_health;
    if (s->health.throttle) report->health = s->health;
    report->row_health = (DeviceHealth){0};
    if (!report->steps++) report->start_s = seconds_now();
    const int is_due = report->log_every ? s->step % report->log_every == 0
                                         : seconds_now() - report->printed_at_s >= LINE_SECONDS;
    if (is_due || report->steps == 1 || s->step == report->total) print_step(report);
}

void report_validation(Report *report, const ValidationReport *v) {
    char text[192], floor[32] = "", part[48] = "";
    if (!isnan(v->floor)) snprintf(floor, sizeof floor, ", floor %.4f", v->floor);
    if (v->first) snprintf(part, sizeof part, ", on the first %" PRId64 " tokens", v->first);
    print_line(stdout, "step %" PRId64 ": val loss %s%s%s", v->step, loss_text(v->loss, v->targets_per_byte, text),
               floor, part);
    if (report->is_logged) log_val_loss(&report->log, v->loss);
    else                   report->last.val_loss = v->loss;
    write_event(report, "validation", v->step, (LogValue[]){
        { "val_loss", "%.9g", .number = v->loss }, { "floor", "%.6f", .number = v->floor }, {0} });
}

void report_warning(Report *report, const char *format, ...) {
    char message[2 * sizeof(Path)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    print_line(stderr, "warning: %s", message);
    write_event(report, "warning", report->last.step, (LogValue[]){ { "message", .text = message }, {0} });
}

void report_checkpoint(Report *report, int64_t step, const char *path, double seconds) {
    write_event(report, "checkpoint", step, (LogValue[]){
        { "path", .text = path }, { "save_seconds", "%.3f", .number = seconds }, {0} });
}

void report_sample(Report *report, int64_t step, char *text, size_t size) {
    for (size_t i = 0; i < size; i++) if (!text[i]) text[i] = (char)0xff;       /* not UTF-8: written as U+FFFD */
    write_event(report, "sample", step, (LogValue[]){ { "text", .text = text }, {0} });
}

void report_sync(Report *report) { flush_files(report, 1); }

void report_close(Report *report, const char *reason) {
    if (report->last.step && !report->is_printed) print_step(report);
    end_files(report, reason);
    open_report = NULL;
    fail_hook = next_hook;
    log_file_close(&report->log.csv);
    log_file_close(&report->log.jsonl);
    free(report->log.row_end);
    *report = (Report){0};
}
