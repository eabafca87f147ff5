/* llmc/report.h - What a run says: a line per step on the terminal, a row per step in OUT/log.csv. */
#ifndef LLMC_REPORT_H
#define LLMC_REPORT_H
#include <stdint.h>
#include <stdio.h>
#include "../kernels/device.h"

typedef struct {
    int64_t step, total;       /* counted from 1 */
    int64_t tokens;            /* trained on so far */
    double  loss, norm, learning_rate;
    double  ms;                /* of this step */
    double  tokens_per_second; /* of this step */
    double  mfu;               /* 0..1; 0 = unknown */
    double  val_loss;          /* NaN where not measured at this step */
    DeviceHealth health;       /* {0} where not asked for at this step */
} StepReport;

typedef struct {
    FILE      *csv;            /* NULL = none */
    char      *csv_path;
    int        csv_columns;    /* fewer in a log that an older version began */
    char      *waiting;        /* rows that are not in the file yet: the disk is full */
    size_t     waiting_bytes;
    int        csv_error;      /* errno of the last row; 0 = all rows are in the file */
    int        csv_moved;      /* it no longer has its name, which was told */
    int        in_place;       /* stdout is a terminal */
    int        pending;        /* columns of a line in place that has no newline yet */
    int64_t    steps;          /* seen by this process, for the mean speed and the time left */
    double     mean_ms;        /* of the last 20 steps or so */
    StepReport last;
    DeviceHealth health;       /* the last that is known */
    int        shown;          /* last has its line */
    double     shown_at_s;     /* by the monotonic clock */
    double     begun_at_s, told_at_s;   /* of what report_progress tells */
} Report;

/* csv_path NULL: no log. head: lines for the log's start, each begins with '#', the first is "# command: ...".
   A log that is there is kept with its head up to and with step keep_step (a resume), cut behind, and goes on after a
   line "# resumed at step N: command"; it is replaced whole, so a crash leaves the old log or the new one. A row that a
   kill left half written is dropped; rows up to keep_step that are not there are told; a file that is no such log fails
   in a line. A log of an older version, with the columns up to val_loss, keeps them: its new rows have no others.
   keep_step < 0 starts anew.
   The report must stay where it is until report_close: a failure ends the line that stands in place. From here on
   SIGPIPE is ignored: a reader of stdout that goes away, such as head, does not end a run. */
void report_open(Report *report, const char *csv_path, const char *head, int64_t keep_step);

/* Before report_open: the row of a step that has no val_loss in it gets one. The log is replaced whole; one without
   such a row is left alone. */
void report_val_loss(const char *csv_path, int64_t step, double val_loss);

/* A row in the log, at once: step,tokens,loss,norm,lr,ms,tokens_per_s,mfu,val_loss,temperature_c,power_w,clock_mhz,
   throttle, empty where unknown or NaN; losses and norm as %.9g, which tells any two floats apart. A line on stdout: in
   place on a terminal, cut to its width; elsewhere for the first step, the last, those with a val loss, and else one a
   second. It speaks of the device's health only while the last that is known is distress.
   On a full disk the rows wait in memory, which is told, and are written once there is room. */
void report_step(Report *report, const StepReport *step);
/* On a terminal: how far an evaluation is, once a second, in place of the step line; at the end that place is empty.
   For a report that is not open, too, all zeros. */
void report_progress(Report *report, int64_t done, int64_t all);
/* A line of its own, also while a step line stands in place. */
void report_line(Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line on stderr, "train_gpt: ...", of something wrong that does not end the run. */
void report_alarm(Report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_sync(Report *report);                /* the log is on the disk under its name, or that it is not is told */
void report_close(Report *report);               /* fails in a line when rows are still waiting */

#endif
