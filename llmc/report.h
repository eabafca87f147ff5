/* llmc/report.h - What a run prints and logs: a line per step on the terminal, a row per step in OUT/log.csv. */
#ifndef LLMC_REPORT_H
#define LLMC_REPORT_H
#include <stdint.h>
#include <stdio.h>
#include "../kernels/device.h"
#include "gpt.h"
#include "options.h"

/* For the banner and the head of the log. */
typedef struct {
    const char       *version, *command;    /* command: a line, as command_line makes it */
    const DeviceInfo *device;
    const GPTConfig  *config;
    const Option     *options;
    double            val_floor;       /* NaN = unknown */
} RunInfo;

typedef struct {
    int64_t step, total;       /* counted from 1 */
    int64_t tokens;            /* trained on so far */
    double  loss, norm, learning_rate;
    double  ms;                /* of this step */
    double  tokens_per_second; /* of this step */
    double  flops_per_token;
    double  peak_flops;        /* of the device; 0 = unknown, and so is the mfu */
    double  val_loss;          /* NaN = not measured at this step */
} StepReport;

typedef struct {
    int        csv;            /* file descriptor of the log */
    char      *csv_path;       /* NULL = no log */
    FILE      *rows;           /* writes to pending: rows that are not in the file yet, more than one on a full disk */
    char      *pending;
    size_t     pending_bytes, written_bytes;
    int        csv_error;      /* errno of the last row; 0 = all rows are in the file */
    int64_t    steps;          /* reported, for mean_ms */
    double     mean_ms;        /* of the last 20 steps or so, for the time left */
    StepReport unprinted;      /* the last step; .step = 0 if its line was printed */
    double     printed_at_s, progress_start_s;      /* monotonic clock */
    DeviceHealth health;       /* the last known */
    DeviceHealth row_health;   /* for the next row; {0} when not asked for */
    double     health_at_s;
} Report;

void report_banner(const RunInfo *run);

/* csv_path NULL: no log. keep_step < 0: a new log; an existing one is renamed to log.csv.old. Else a resume: the log is
   kept up to and with the row of keep_step, which gets val_loss if it has none (a stop cut the validation short) and
   val_loss is not NaN, and continues after a line "# resumed at step N: command". The log is replaced atomically. A row
   that is half written is dropped, missing rows are reported; fails if the header is another or the steps do not
   increase. SIGPIPE is ignored from here on: a reader of stdout such as head may exit. */
void report_open(Report *report, const char *csv_path, const RunInfo *run, int64_t keep_step, double val_loss);

/* Asks for the device's temperature, power and clock, at most once a second: a query takes up to a millisecond. To be
   called while the device computes; the next row has the values. */
void report_health(Report *report);

/* A row in the log: step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss,temperature_c,power_w,clock_mhz,throttle,
   empty where unknown; losses and norm as %.9g, which identifies a float. A line on stdout: on a terminal in place,
   cut to its width; elsewhere for the first step, the last, those with a val loss, and once a second. On a full disk
   the rows are kept in memory, which is reported, and written when there is room. */
void report_step(Report *report, const StepReport *step);

/* On a terminal: progress of an evaluation, once a second, in place of the step line. Also for a Report of zeros. */
void report_progress(Report *report, int64_t done, int64_t all);

/* A line on stdout or, after "train_gpt: ", on stderr. */
void report_line(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

void report_warning(Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_sync (Report *report);          /* fsync of the log; an error is reported */
void report_close(Report *report);          /* fails when rows are lost */

#endif
