/* report.h - The output of a run: lines on the terminal, the files of llmc/report/log.h, and report.html,
   which ./curves --live writes. */
#ifndef LLMC_REPORT_H
#define LLMC_REPORT_H
#include <sys/types.h>
#include "log.h"

typedef struct {
    const char *out;           /* where the page goes; NULL = none */
    pid_t      page_writer;    /* the process that writes it; 0 = none */
    double     page_due_s;     /* monotonic clock */
    Log        log;            /* without --out, of zeros: no files */
    int64_t    total;          /* steps of the run */
    int64_t    log_every;
    double     mfu_per_speed;  /* mfu / (tokens/s); NaN = the peak of the device is unknown */
    int64_t    steps;          /* reported */
    double     start_s;        /* the end of the first step; monotonic clock */
    StepReport last;           /* the last step; in the beginning only its number, that of a resume or 0 */
    int        is_logged, is_printed;      /* the last step has its row in the log, its line on the terminal */
    double     printed_at_s;   /* monotonic clock */
    DeviceHealth health;       /* the last known */
    DeviceHealth row_health;   /* for the next row; {0} when not asked for */
    double     health_at_s;
} Report;

typedef struct {
    int64_t step;
    double  loss, floor;       /* floor: NaN = unknown */
    double  targets_per_byte;  /* as in loss_text */
    int64_t first;             /* number of validation tokens, from the first on; 0 = all */
} ValidationReport;

/* targets_per_byte: 1, "1.2345 nats per byte (1.7810 bits)"; NaN = unknown, "3.2800 nats per token (perplexity 26.58)";
   otherwise both, a comma between them. */
const char *loss_text(double loss, double targets_per_byte, char text[192]);

/* A line each: version, output unless that is NULL, device, model, recipe if there is one, data, memory. */
void report_banner(const RunInfo *run);

/* Opens the files of log_open, which describes resume, if run->out is set. SIGPIPE is ignored from here on: a reader of
   stdout such as head may exit. Until report_close, fail() also writes the event "end". The functions below accept a
   Report of zeros, too, which has no files. */
void report_open(Report *report, const RunInfo *run, const ResumeInfo *resume);

/* To be called while the device computes: writes the rows so far, starts ./curves when the page is due, and asks for
   temperature, power and clock, for the next row, at most once a second (a query takes up to a millisecond). */
void report_background(Report *report);

/* A row for log.csv, which report_background or the next event writes. A line on stdout for the first step, the last,
   and every log_every steps, or without log_every (0) every 6 s. The time left is that of the steps left at the mean
   speed so far, validations and samples included. On a full disk the rows are kept in memory, which is reported, and
   written when there is room. */
void report_step(Report *report, const StepReport *step);

/* A line and an event: "step 600: val loss ..." on stdout, whose loss goes into the row of the last step;
   "train_gpt: warning: ..." on stderr. */
void report_validation(Report *report, const ValidationReport *validation);
void report_warning   (Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Only an event. seconds: the time to write the checkpoint. text: size bytes and a NUL; others in it are replaced. */
void report_checkpoint(Report *report, int64_t step, const char *path, double seconds);
void report_sample    (Report *report, int64_t step, char *text, size_t size);

void report_sync (Report *report);          /* fsync of the files; an error is reported */

/* reason: why the run ends, for the event "end": "done", "SIGTERM". Fails when rows are lost. */
void report_close(Report *report, const char *reason);

#endif
