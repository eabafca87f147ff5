#include "report_page.h"
#include "log.h"
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

enum { CSV_COLUMNS = 64, NOTE_BYTES = 4000, INTERVAL_S = 5, COST = 500 };

/* ---- Points */

/* The numbers of log.csv, and two that are made of loss. */
enum { LOSS_MIN = LOG_NUMBERS, LOSS_MAX, PAGE_COLUMNS };
static const char *const column_names[PAGE_COLUMNS] = { LOG_COLUMNS(LOG_NAME) "loss_min", "loss_max" };

/* Consecutive steps: the last step, seconds, tokens and val_loss, the mean of the others. NaN = unknown. */
typedef struct { int64_t steps; double value[PAGE_COLUMNS]; } Point;
typedef struct { int64_t step; const char *kind; char *text; } Note;         /* kind: "sample" or "warning" */

/* A run, as far as its files have been read. */
typedef struct PageRun {
    Path    csv;                          /* log.csv; the other files are beside it */
    int64_t csv_bytes, jsonl_bytes;       /* read so far */
    int     place[CSV_COLUMNS];           /* of a cell of csv in a point; -1 = not shown */
    int     cells;                        /* in the first line; 0 = it has not been read */
    Point  *point;                        /* `per` steps each; at PAGE_POINTS pairs are merged */
    size_t  room;                         /* points allocated */
    int     points;
    int64_t per;
    Point   last;                         /* the last step alone, with the last val_loss: the final figures */
    double  best;                         /* the lowest val_loss; NaN = none */
    Note    note[PAGE_NOTES];             /* the last ones: note n is at n % PAGE_NOTES */
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

static void add_step(PageRun *run, const Point *step) {
    Point *point = run->point;
    if (run->points && point[run->points - 1].steps < run->per) {
        merge(&point[run->points - 1], step);
        return;
    }
    if (run->points == PAGE_POINTS) {
        for (int i = 0; i < PAGE_POINTS; i += 2) {
            merge(&point[i], &point[i + 1]);
            point[i / 2] = point[i];
        }
        run->points /= 2;
        run->per *= 2;
    }
    run->point = host_grow(point, (size_t)run->points, &run->room, sizeof *point, "the points of a page");
    run->point[run->points++] = *step;
}

/* ---- Reading */

static Path beside(const PageRun *run, const char *name) { return path_of(file_parent(run->csv.text).text, name); }

static void read_header(PageRun *run, const FileLine *line) {
    const char *at = line->text, *name;
    int seen[LOG_NUMBERS] = {0};
    for (size_t length; run->cells < CSV_COLUMNS && (name = file_next_cell(line, &at, &length)); ) {
        int c = LOG_NUMBERS - 1;
        while (c >= 0 && (strlen(column_names[c]) != length || memcmp(column_names[c], name, length))) c--;
        if (c >= 0) seen[c] = 1;
        run->place[run->cells++] = c;
    }
    REQUIRE(seen[LOG_step] && seen[LOG_loss], "%s: not a log of training steps: no column %s in the first line",
            run->csv.text, seen[LOG_step] ? "loss" : "step");
}

static void read_csv_line(PageRun *run, const FileLine *line) {
    if (!run->cells) { read_header(run, line); return; }
    Point step = { .steps = 1 };
    for (int c = 0; c < PAGE_COLUMNS; c++) step.value[c] = NAN;
    const char *at = line->text, *cell;
    size_t length;
    for (int i = 0; i < run->cells && (cell = file_next_cell(line, &at, &length)); i++)
        if (run->place[i] >= 0) step.value[run->place[i]] = cell_number(cell, length);
    if (isnan(step.value[LOG_step])) return;
    step.value[LOSS_MIN] = step.value[LOSS_MAX] = step.value[LOG_loss];
    add_step(run, &step);
    run->best = fmin(run->best, step.value[LOG_val_loss]);
    if (isnan(step.value[LOG_val_loss]) && run->points > 1) step.value[LOG_val_loss] = run->last.value[LOG_val_loss];
    run->last = step;
}

static void add_note(PageRun *run, int64_t step, const char *kind, const char *text) {
    size_t length = strlen(text), kept = length > NOTE_BYTES ? NOTE_BYTES : length;
    while (kept < length && kept && (text[kept] & 0xc0) == 0x80) kept--;         /* not inside a character */
    Note *note = &run->note[run->notes++ % PAGE_NOTES];
    free(note->text);
    *note = (Note){ step, kind, format_string("%.*s%s", (int)kept, text, kept < length ? " ..." : "") };
}

static void read_event(PageRun *run, const FileLine *line) {
    const Path path = beside(run, "log.jsonl");
    Json *event = json_parse(line->text, line->size, path.text);
    const Json *step = json_find(event, "step");
    const int64_t number = step ? json_integer(step, 0, INT64_MAX) : 0;
    const char *kind = json_string(event, "event");
    free(run->status);
    run->status = !strcmp(kind, "end") ? format_string("%s", json_string(event, "reason")) : NULL;
    if (!strcmp(kind, "sample"))  add_note(run, number, "sample", json_string(event, "text"));
    if (!strcmp(kind, "warning")) add_note(run, number, "warning", json_string(event, "message"));
    json_free(event);
}

/* Reads the lines from byte *done on, but not a last one without a newline, which is half written. */
static void read_lines(PageRun *run, const char *path, int64_t *done, void (*read)(PageRun *, const FileLine *)) {
    FileMap map = file_map(path);
    REQUIRE(map.size >= *done, "%s: is shorter than it was", path);
    const FileMap rest = { map.bytes + *done, map.size - *done };
    for (FileLine line = {0}; file_next_line(rest, &line) && line.next[-1] == '\n'; *done += line.next - line.text)
        read(run, &line);
    file_unmap(map);
}

/* path: as in page_write. */
static void run_open(PageRun *run, const char *path) {
    *run = (PageRun){ .per = 1, .best = NAN };
    if (file_is_dir(path)) run->csv = path_of(path, "log.csv");
    else snprintf(run->csv.text, sizeof run->csv.text, "%s", path);
    REQUIRE(file_exists(run->csv.text), "%s: no such file; want a run's directory or its log.csv", run->csv.text);
}

/* What was appended since the last call. */
static void run_read(PageRun *run) {
    const Path jsonl = beside(run, "log.jsonl");
    read_lines(run, run->csv.text, &run->csv_bytes, read_csv_line);
    REQUIRE(run->cells, "%s: empty; want a log of training steps", run->csv.text);
    if (file_exists(jsonl.text)) read_lines(run, jsonl.text, &run->jsonl_bytes, read_event);
}

static void run_close(PageRun *run) {
    for (int i = 0; i < PAGE_NOTES; i++) free(run->note[i].text);
    free(run->status);
    free(run->point);
}

/* ---- Writing */

static void write_member(FILE *json, const char *name, const char *text) {
    fprintf(json, ",\n\"%s\": ", name);
    if (text) json_write_string(json, text);
    else      fputs("null", json);
}

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
    for (int n = first; n < run->notes; n++) {
        const Note *note = &run->note[n % PAGE_NOTES];
        fprintf(json, "%s{\"step\": %" PRId64 ", \"kind\": \"%s\"", n > first ? ",\n" : "", note->step, note->kind);
        write_member(json, "text", note->text);
        fputc('}', json);
    }
    fputs("]}", json);
}

/* is_live: the page will be replaced while the run lasts, and reloads itself. */
static void write_page(FILE *file, const PageRun *runs, int count, int is_live) {
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
    for (int i = 0; i < count; i++) {
        run_open(&runs[i], paths[i]);
        run_read(&runs[i]);
    }
    write_page(file, runs, count, 0);
    for (int i = 0; i < count; i++) run_close(&runs[i]);
    free(runs);
}

/* ---- OUT/report.html */

static void update(void *argument) {
    ReportPage *page = argument;
    if (!page->run->per) run_open(page->run, file_parent(page->path).text);
    run_read(page->run);
    char *new_path = format_string("%s.new", page->path);
    FILE *file = file_try_create(new_path);
    if (file) {
        write_page(file, page->run, 1, !page->run->status);
        int failed = ferror(file);
        failed |= fclose(file);
        if (failed || rename(new_path, page->path)) unlink(new_path);
    }
    free(new_path);
}

static void stop(ReportPage *page) {
    if (page->run) run_close(page->run);
    free(page->run);
    free(page->path);
    *page = (ReportPage){0};
}

void report_page_open(ReportPage *page, const char *out) {
    *page = (ReportPage){ .path = format_string("%s", path_of(out, "report.html").text),
                          .run = host_alloc(sizeof(PageRun), "the page of the run") };
    report_page_update(page);
}

void report_page_update(ReportPage *page) {
    char why[FAIL_LENGTH];
    const double start = seconds_now();
    if (!page->path || start < page->due_s) return;
    if (fails(update, page, why)) { stop(page); return; }
    const double now = seconds_now();
    page->due_s = now + fmax(INTERVAL_S, COST * (now - start));
}

void report_page_close(ReportPage *page) {
    page->due_s = 0;
    report_page_update(page);
    stop(page);
}
