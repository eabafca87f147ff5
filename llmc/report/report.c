#include "report.h"

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

/* The first step, which allocates and warms up, has no time left. */
static void print_step(Report *report) {
    const LogRow *row = &report->last;
    const double steps_left = (double)report->run->settings->steps - row->step;
    const double seconds_left = (seconds_now() - report->start_s) / (double)(report->steps - 1) * steps_left;
    char left[32], total[32];
    const int digits = snprintf(total, sizeof total, "%" PRId64, report->run->settings->steps);
    printf("step %*.0f/%s  loss %.4f  norm %.2f  %5.0f tok/s", digits, row->step, total, row->loss, row->norm,
           row->tokens_per_s);
    if (comm_size > 1)      printf(" (%.0f each)", row->tokens_per_s / comm_size);
    if (isfinite(row->mfu)) printf("  mfu %.1f%%", 100 * row->mfu);
    if (report->throttled)  printf("  throttled: %s", report->throttled);
    if (report->steps > 1 && steps_left > 0) printf("  %s left", duration_text(seconds_left, left));
    printf("  %.1f ms", row->ms);
    if (comm_size > 1)      printf(" (%.1f waiting)", row->comm_wait_ms);
    printf("  lr %.1e\n", row->lr);
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

void report_flush(Report *report, int sync) {
    add_row(report);
    log_file_flush(&report->log.csv, sync);
    log_file_flush(&report->log.jsonl, sync);
}

static pid_t start_page(const char *out) {
    const char *argv[] = { "curves", "--live", out, NULL };
    const pid_t pid = start_program(argv);
    if (pid < 0) print_line(stderr, "warning: %s: %s; no report.html is written", argv[0], strerror(errno));
    return pid;
}

/* Returns 0 while report.html is being written, or cannot be. options: of wait4. */
static int page_is_complete(Report *report, int options) {
    struct rusage used = {0};
    if (!report->page_writer) return 1;
    if (report->page_writer < 0 || !wait4(report->page_writer, NULL, options, &used)) return 0;
    const double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    report->page_due_s = seconds_now() + fmax(PAGE_SECONDS, PAGE_COST * seconds);
    report->page_writer = 0;
    return 1;
}

/* If due: every 5 s, and in less than 1/500 of the time. Not into another run's directory, which has the name of this
   one since it was moved. */
static void update_page(Report *report) {
    const LogFile *csv = &report->log.csv;
    if (csv->path && !csv->error && page_is_complete(report, WNOHANG) && seconds_now() >= report->page_due_s)
        report->page_writer = start_page(report->run->out);
}

static void write_event(Report *report, const char *event, int64_t step, const LogValue *values) {
    log_event(&report->log, event, step, values);
    report_flush(report, 0);
}

/* The last event, and the page that shows it, which is complete then. */
static void end_files(Report *report, const char *reason) {
    write_event(report, "end", (int64_t)report->last.step, (LogValue[]){ { "reason", .text = reason }, {0} });
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

void report_open(Report *report, const RunInfo *run) {
    double peak = run->device->peak_flops[run->config->dtype];
    *report = (Report){ .run = run, .last.step = fmax(0, (double)run->resumed_step), .is_logged = 1, .is_printed = 1,
                        .mfu_per_speed = peak > 0 ? gpt_flops_per_token(run->config) / (peak * comm_size) : NAN };
    signal(SIGPIPE, SIG_IGN);
    device_health();         /* the first call takes longer: not in the time of the first step */
    if (run->out) log_open(&report->log, run);
    report_flush(report, 0);
    update_page(report);
    open_report = report;
    next_hook = fail_hook;
    fail_hook = end_with_error;
}

void report_background(Report *report) {
    double now = seconds_now();
    report_flush(report, 0);
    update_page(report);
    if (report->health_at_s && now - report->health_at_s < 1) return;
    report->health_at_s = now;
    report->row_health = device_health();
}

static double positive(double value) { return value > 0 ? value : NAN; }

void report_step(Report *report, const LogRow *step) {
    const Settings *s = report->run->settings;
    const DeviceHealth health = report->row_health;
    const double mfu = step->tokens_per_s * report->mfu_per_speed;
    LogRow *row = &report->last;
    add_row(report);
    *row = *step;
    report->is_logged = report->is_printed = 0;
    row->seconds = seconds_now() - report->log.start_s;
    row->val_loss = NAN;
    if (comm_size == 1) row->comm_wait_ms = NAN;
    row->mfu = isfinite(mfu) ? positive(mfu) : NAN;
    row->temperature_c = positive(health.temperature_c);
    row->power_w = positive(health.power_w);
    row->clock_mhz = positive(health.clock_mhz);
    row->throttle = health.throttle;
    if (health.throttle) report->throttled = health.is_abnormal ? health.throttle : NULL;
    report->row_health = (DeviceHealth){0};
    if (!report->steps++) report->start_s = seconds_now();
    const int is_due = s->log_every ? (int64_t)row->step % s->log_every == 0
                                    : seconds_now() - report->printed_at_s >= LINE_SECONDS;
    if (is_due || report->steps == 1 || row->step == (double)s->steps) print_step(report);
}

void report_validation(Report *report, int64_t step, const Evaluation *e, double floor) {
    char text[192], above[32] = "", part[48] = "";
    if (!isnan(floor)) snprintf(above, sizeof above, ", floor %.4f", floor);
    if (e->first) snprintf(part, sizeof part, ", on the first %" PRId64 " tokens", e->first);
    print_line(stdout, "step %" PRId64 ": val loss %s%s%s", step, loss_text(e->loss, e->targets_per_byte, text), above,
               part);
    if (report->is_logged) log_val_loss(&report->log, e->loss);
    else                   report->last.val_loss = e->loss;
    write_event(report, "validation", step, (LogValue[]){
        { "val_loss", "%.9g", .number = e->loss }, { "floor", "%.6f", .number = floor }, {0} });
}

void report_warning(Report *report, const char *format, ...) {
    char message[2 * sizeof(Path)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    print_line(stderr, "warning: %s", message);
    write_event(report, "warning", (int64_t)report->last.step, (LogValue[]){ { "message", .text = message }, {0} });
}

void report_checkpoint(Report *report, int64_t step, const char *path, double seconds) {
    write_event(report, "checkpoint", step, (LogValue[]){
        { "path", .text = path }, { "save_seconds", "%.3f", .number = seconds }, {0} });
}

void report_sample(Report *report, int64_t step, char *text, size_t size) {
    for (size_t i = 0; i < size; i++) if (!text[i]) text[i] = (char)0xff;       /* not UTF-8: written as U+FFFD */
    write_event(report, "sample", step, (LogValue[]){ { "text", .text = text }, {0} });
}

int report_close(Report *report, const char *reason) {
    if (report->last.step && !report->is_printed) print_step(report);
    end_files(report, reason);
    open_report = NULL;
    fail_hook = next_hook;
    log_file_close(&report->log.csv);
    log_file_close(&report->log.jsonl);
    free(report->log.row_end);
    const int has_page = !report->page_writer;
    *report = (Report){0};
    return has_page;
}
