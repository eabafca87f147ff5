/* report_page.h - OUT/report.html: the run in a browser: settings, curves, samples, temperature and power. One
   file that carries its data, loads nothing else, and reloads itself while the run lasts. It is replaced atomically; an
   error of writing it is ignored, as it holds nothing that the logs do not, but for samples and warnings without
   --log-jsonl. */
#ifndef LLMC_REPORT_PAGE_H
#define LLMC_REPORT_PAGE_H
#include "log.h"

enum { PAGE_COLUMNS = 12, PAGE_POINTS = 1000, PAGE_NOTES = 24 };

/* Of some consecutive steps: each column's last value, mean, minimum or maximum. NaN = unknown. */
typedef struct { int64_t steps; double value[PAGE_COLUMNS]; } PagePoint;

/* When it is full, pairs are merged: a point is of `per` steps, whose number is a power of two. */
typedef struct { PagePoint point[PAGE_POINTS]; int count; int64_t per; } PageSeries;

typedef struct { int64_t step; const char *kind; char *text; } PageNote;     /* kind: "sample" or "warning" */

typedef struct {
    char      *path, *head;               /* path NULL = no page; head: the members that do not change */
    PageSeries steps, validations;
    PagePoint  last;                      /* the last step alone: the final figures */
    PageNote   note[PAGE_NOTES];          /* the last ones */
    int        notes;
    double     due_s;                     /* seconds_now of the next write */
} ReportPage;

/* After log_open; the curves are those of OUT/log.csv. A resume keeps the notes of the page up to its step. */
void report_page_open(ReportPage *page, const char *out, int64_t steps, const ResumeInfo *resume);

/* Writes the page if it is due: every 5 s, and so rarely that it takes less than 1/500 of the time. */
void report_page_step(ReportPage *page, const StepReport *step);
void report_page_note(ReportPage *page, int64_t step, const char *kind, const char *text);
void report_page_close(ReportPage *page, const char *status);      /* "done", or why the run ended */

#endif
