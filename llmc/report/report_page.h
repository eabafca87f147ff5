/* report_page.h - A page for a browser: curves, samples, warnings, settings, temperature and power of runs, read from
   the files of llmc/report/log.h. One HTML file that carries its data, as JSON, and loads nothing else. */
#ifndef LLMC_REPORT_PAGE_H
#define LLMC_REPORT_PAGE_H
#include <stdint.h>
#include <stdio.h>

enum { PAGE_COLUMNS = 12, PAGE_COLUMNS_READ = 64, PAGE_POINTS = 1000, PAGE_NOTES = 24 };

/* Consecutive steps: each column's last value, mean, minimum or maximum. NaN = unknown. */
typedef struct { int64_t steps; double value[PAGE_COLUMNS]; } PagePoint;

/* When it is full, pairs are merged: a point is of `per` steps, whose number is a power of two. */
typedef struct { PagePoint point[PAGE_POINTS]; int count; int64_t per; } PageSeries;

typedef struct { int64_t step; const char *kind; char *text; } PageNote;     /* kind: "sample" or "warning" */

/* A run, as far as its files have been read. */
typedef struct {
    char      *csv, *jsonl, *settings;    /* paths */
    int64_t    csv_bytes, jsonl_bytes;    /* read so far */
    int        column[PAGE_COLUMNS_READ]; /* the columns of csv: their places in a point; -1 = not shown */
    int        columns;                   /* 0 = the first line has not been read */
    PageSeries steps, validations;
    PagePoint  last;                      /* the last step alone: the final figures */
    PageNote   note[PAGE_NOTES];          /* the last ones */
    int        notes;
    char      *status;                    /* why the run ended; NULL = it has not */
} PageRun;

/* path: a run's directory, or a CSV file with the columns step and loss, beside which log.jsonl and settings.txt may
   be. Reads them; fails on a file that is no such log. */
void page_run_open (PageRun *run, const char *path);
void page_run_read (PageRun *run);        /* what was appended since */
void page_run_close(PageRun *run);

/* Writes the page. is_live: it will be replaced while the run lasts, and reloads itself. */
void page_write(FILE *file, const PageRun *runs, int count, int is_live);

/* OUT/report.html during a run. It is replaced atomically. An error of writing it is ignored, as it holds nothing that
   the logs do not; after an error of reading them it is no longer written. */
typedef struct {
    char   *path;                         /* NULL = no page; the functions do nothing then */
    PageRun run;
    double  due_s;                        /* seconds_now of the next write */
} ReportPage;

void report_page_open  (ReportPage *page, const char *out);       /* after log_open */
void report_page_update(ReportPage *page);     /* if due: every 5 s, and so rarely that it takes < 1/500 of the time */
void report_page_close (ReportPage *page);     /* writes it once more */

#endif
