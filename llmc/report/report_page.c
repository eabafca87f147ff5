#include "report_page.h"
#include "log_reader.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"
#include "../../kernels/check.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <report_page.inc>      /* static const char template[]: report_page.html, whose last line begins the data */

enum { NOTE_BYTES = 4000 };

/* ---- Points */

/* The numbers of log.csv, and two that are made of loss, in the place of the text of log_read_row and behind it. */
enum { LOSS_MIN = LOG_throttle, LOSS_MAX, PAGE_COLUMNS };
static const char *const column_names[PAGE_COLUMNS] = { LOG_COLUMNS(LOG_NAME) "loss_min", "loss_max" };

/* Consecutive steps: the last step, seconds, tokens and val_loss, the mean of the others. NaN = unknown. */
typedef struct { int64_t steps; double value[PAGE_COLUMNS]; } Point;

typedef struct {
    Path    csv;                          /* log.csv; the other files are beside it */
    Point  *point;                        /* 1, 2, 4, ... steps each: at most PAGE_POINTS points */
    int     points;
    Point   last;                         /* the last step alone, with the last val_loss: the final figures */
    double  best;                         /* the lowest val_loss; NaN = none */
    char   *note[PAGE_NOTES];             /* the last ones, as JSON: note n is at n % PAGE_NOTES */
    int     notes;                        /* in all */
    char   *status;                       /* why the run ended; NULL = it has not */
} PageRun;

/* Adds the steps of b, which come after those of a. */
static void merge(Point *a, const Point *b) {
    a->steps += b->steps;
    for (int c = 0; c < PAGE_COLUMNS; c++) {
        double *x = &a->value[c], y = b->value[c];
        if (isnan(y)) continue;
        if (isnan(*x) || c <= LOG_tokens || c == LOG_val_loss) *x = y;
        else if (c == LOSS_MIN) *x = fmin(*x, y);
        else if (c == LOSS_MAX) *x = fmax(*x, y);
        else *x += (y - *x) * (double)b->steps / (double)a->steps;
    }
}

/* ---- Reading */

static Path beside(const PageRun *run, const char *name) { return path_of(file_parent(run->csv.text).text, name); }

static void write_member(FILE *json, const char *name, const char *text) {
    fprintf(json, ",\n\"%s\": ", name);
    if (text) json_write_string(json, text);
    else      fputs("null", json);
}

static void read_rows(PageRun *run) {
    FileMap map = file_map(run->csv.text);
    FileLine line = {0};
    REQUIRE(log_next_line(map, &line), "%s: empty; want a log of training steps", run->csv.text);
    const LogColumns columns = log_read_columns(&line);
    REQUIRE(log_has_column(&columns, LOG_step) && log_has_column(&columns, LOG_loss),
            "%s: not a log of training steps: no column %s in the first line", run->csv.text,
            log_has_column(&columns, LOG_step) ? "loss" : "step");
    int64_t lines = 0, rows = 0, per = 1;
    for (FileLine ahead = line; log_next_line(map, &ahead); ) lines++;
    while (per * PAGE_POINTS < lines) per *= 2;
    run->point = host_alloc((size_t)(lines / per + 1) * sizeof(Point), "the points of a page");
    while (log_next_line(map, &line)) {
        Point step = { .steps = 1 };
        if (isnan(log_read_row(&columns, &line, step.value))) continue;
        step.value[LOSS_MIN] = step.value[LOSS_MAX] = step.value[LOG_loss];
        if (rows++ % per) merge(&run->point[run->points - 1], &step);
        else              run->point[run->points++] = step;
        run->best = fmin(run->best, step.value[LOG_val_loss]);
        if (isnan(step.value[LOG_val_loss])) step.value[LOG_val_loss] = run->last.value[LOG_val_loss];
        run->last = step;
    }
    file_unmap(map);
}

static void add_note(PageRun *run, const LogEvent *event) {
    char **note = &run->note[run->notes++ % PAGE_NOTES];
    char *text = format_string("%.*s%s", NOTE_BYTES, event->text, strlen(event->text) > NOTE_BYTES ? " ..." : "");
    size_t size;
    free(*note);
    FILE *json = string_open(note, &size, "a sample");
    fprintf(json, "{\"step\": %" PRId64, event->step);
    write_member(json, "kind", event->kind);
    write_member(json, "text", text);
    fputc('}', json);
    fclose(json);
    free(text);
}

static void read_events(PageRun *run, const char *path) {
    FileMap map = file_map(path);
    LogEvent event;
    for (FileLine line = {0}; log_next_line(map, &line); ) {
        if (!log_read_event(&line, &event)) continue;
        const int is_end = !strcmp(event.kind, "end");
        free(run->status);
        run->status = is_end ? format_string("%s", event.text) : NULL;
        if (event.text && !is_end) add_note(run, &event);
        json_free(event.json);
    }
    file_unmap(map);
}

/* path: as in page_write. */
static void read_run(PageRun *run, const char *path) {
    *run = (PageRun){ .best = NAN, .last.value[LOG_val_loss] = NAN };
    if (file_is_dir(path)) run->csv = path_of(path, "log.csv");
    else snprintf(run->csv.text, sizeof run->csv.text, "%s", path);
    REQUIRE(file_exists(run->csv.text), "%s: no such file; want a run's directory or its log.csv", run->csv.text);
    read_rows(run);
    const Path jsonl = beside(run, "log.jsonl");
    if (file_exists(jsonl.text)) read_events(run, jsonl.text);
}

static void free_run(PageRun *run) {
    for (int i = 0; i < PAGE_NOTES; i++) free(run->note[i]);
    free(run->status);
    free(run->point);
}

/* ---- Writing */

/* The directory of a log.csv, else the name of the file. */
static void write_name(FILE *json, const PageRun *run) {
    char *absolute = realpath(run->csv.text, NULL), *path = absolute ? absolute : format_string("%s", run->csv.text);
    if (ends_with(path, ".csv")) *strrchr(path, ends_with(path, "/log.csv") ? '/' : '.') = 0;
    const char *slash = strrchr(path, '/');
    json_write_string(json, slash ? slash + 1 : path);
    free(path);
}

static void write_settings(FILE *json, const PageRun *run) {
    const Path path = beside(run, "settings.txt");
    FileMap map = file_exists(path.text) ? file_map(path.text) : (FileMap){ .bytes = (void *)"" };
    char *text = format_string("%.*s", (int)map.size, (const char *)map.bytes);
    write_member(json, "settings", text);
    free(text);
    file_unmap(map);
}

static void write_number(FILE *json, double value) {
    if (isnan(value)) fputs("null", json);
    else              fprintf(json, "%.12g", value);
}

/* A member with an array for each column. */
static void write_points(FILE *json, const char *name, const Point *point, int count) {
    fprintf(json, ",\n\"%s\": {", name);
    for (int c = 0; c < PAGE_COLUMNS; c++) {
        fprintf(json, "%s\n\"%s\": [", c ? "," : "", column_names[c]);
        for (int i = 0; i < count; i++) {
            if (i) fputc(',', json);
            write_number(json, point[i].value[c]);
        }
        fputc(']', json);
    }
    fputc('}', json);
}

static void write_run(FILE *json, const PageRun *run) {
    fputs("{\"name\": ", json);
    write_name(json, run);
    write_member(json, "status", run->status);
    write_settings(json, run);
    write_points(json, "points", run->point, run->points);
    write_points(json, "last", &run->last, run->points > 0);
    fputs(",\n\"best\": ", json);
    write_number(json, run->best);
    fputs(",\n\"notes\": [", json);
    const int first = run->notes > PAGE_NOTES ? run->notes - PAGE_NOTES : 0;
    for (int n = first; n < run->notes; n++)
        fprintf(json, "%s%s", n > first ? ",\n" : "", run->note[n % PAGE_NOTES]);
    fputs("]}", json);
}

/* is_live: the page will be replaced while the run lasts, and reloads itself. */
static void write_runs(FILE *file, const PageRun *runs, int count, int is_live) {
    char *data = NULL;
    size_t size;
    FILE *json = string_open(&data, &size, "the data of a page");
    fprintf(json, "{\"live\": %s, \"updated\": %lld, \"runs\": [\n", is_live ? "true" : "false",
            (long long)time(NULL));
    for (int i = 0; i < count; i++) {
        if (i) fputs(",\n", json);
        write_run(json, &runs[i]);
    }
    fputs("]}\n", json);
    fclose(json);
    fwrite(template, 1, sizeof template - 1, file);
    for (const char *c = data; *c; c++) {       /* "<" is in strings only: escaped, no text ends the element */
        if (*c == '<') fputs("\\u003c", file);
        else fputc(*c, file);
    }
    fputs("</script>\n", file);
    free(data);
}

void page_write(FILE *file, char *const *paths, int count) {
    PageRun *runs = host_alloc((size_t)count * sizeof *runs, "the runs");
    for (int i = 0; i < count; i++) read_run(&runs[i], paths[i]);
    write_runs(file, runs, count, 0);
    for (int i = 0; i < count; i++) free_run(&runs[i]);
    free(runs);
}

/* ---- OUT/report.html */

static void write_live(void *out) {
    const Path path = path_of(out, "report.html"), new = path_of(out, "report.html.new");
    PageRun run;
    read_run(&run, out);
    FILE *file = file_try_create(new.text);
    if (file) {
        write_runs(file, &run, 1, !run.status);
        int failed = ferror(file);
        failed |= fclose(file);
        if (failed || rename(new.text, path.text)) unlink(new.text);
    }
    free_run(&run);
}

int report_page_write(const char *out) {
    char why[FAIL_LENGTH];
    return !fails(write_live, (void *)out, why);
}
