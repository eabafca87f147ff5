/* report.h - The output of a run: lines on the terminal, the files of llmc/report/log.h, and report.html,
   which ./curves --live writes. */
#pragma once
#include "log.h"

typedef struct {
    const RunInfo *run;
    pid_t      page_writer;    /* the process that writes the page; 0 = none, -1 = it cannot be started */
    double     page_due_s;     /* monotonic clock */
    Log        log;            /* without --out, of zeros: no files */
    double     mfu_per_speed;  /* mfu / (tokens/s); NaN = the peak of the device is unknown */
    int64_t    steps;          /* reported */
    double     start_s;        /* the end of the first step; monotonic clock */
    LogRow     last;           /* the last step; in the beginning only its number, that of a resume or 0 */
    int        is_logged, is_printed;      /* the last step has its row in the log, its line on the terminal */
    double     printed_at_s;   /* monotonic clock */
    DeviceHealth row_health;   /* for the next row; {0} when not asked for */
    double     health_at_s;
    const char *throttled;     /* the last known reason; NULL = none that is abnormal */
} Report;

/* The loss of a model on a token stream. targets_per_byte: of text; special tokens have no bytes. NaN for tokens that
   are neither bytes nor of a BPE, for ids that the BPE does not have, and where all are special. */
typedef struct {
    double  loss;                       /* mean in nats per target */
    double  targets_per_byte;
    int64_t first;                      /* number of targets, 0 = the whole stream, -1 = a stop request: loss is NaN */
} Evaluation;

/* targets_per_byte: 1, "1.2345 nats per byte (1.7810 bits)"; NaN = unknown, "3.2800 nats per token (perplexity 26.58)";
   otherwise both, a comma between them. */
const char *loss_text(double loss, double targets_per_byte, char text[192]);

/* Opens the files of log_open if run->out is set; run is kept. SIGPIPE is ignored from here on: a reader of stdout such
   as head may exit. Until report_close, fail() also writes the event "end". Events, as of report_warning, also accept a
   Report of zeros, which has no files. */
void report_open(Report *report, const RunInfo *run);

/* To be called while the device computes: writes the rows so far, starts ./curves when the page is due, and asks for
   temperature, power and clock, for the next row, at most once a second (a query takes up to a millisecond). */
void report_background(Report *report);

/* A row for log.csv, which report_background or the next event writes, with seconds, mfu and health set here. A line on
   stdout for the first step, the last, and every --log-every steps, or without it (0) every 6 s. The time left is that
   of the steps left at the mean speed so far, validations and samples included. On a full disk the rows are kept in
   memory, which is reported, and written when there is room. */
void report_step(Report *report, const LogRow *step);

/* A line and an event: "step 600: val loss ..." on stdout, whose loss goes into the row of the last step;
   "train_gpt: warning: ..." on stderr. */
void report_validation(Report *report, int64_t step, const Evaluation *e, double floor);      /* NaN = unknown */
void report_warning(Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Only an event. seconds: the time to write the checkpoint. text: size bytes and a NUL; others in it are replaced. */
void report_checkpoint(Report *report, int64_t step, const char *path, double seconds);
void report_sample    (Report *report, int64_t step, char *text, size_t size);

void report_flush(Report *report, int sync);        /* the rows so far to the files; sync: fsync; reports an error */

/* reason: why the run ends, for the event "end": "done", "SIGTERM". Fails when rows are lost. Returns 0 where the
   program that writes report.html could not be started. */
int report_close(Report *report, const char *reason);
