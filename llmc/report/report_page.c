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
    Point  *point;                        /* 1, 2, 4, ... steps each: at most PAGE_POINTS points */
    int     points;
    Point   last;                         /* the last step alone, with the last val_loss: the final figures */
    double  best;                         /* the lowest val_loss; NaN = none */
} Curves;

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

/* path: of log.csv. */
static Curves read_rows(const char *path) {
    Curves curves = { .best = NAN, .last.value[LOG_val_loss] = NAN };
    REQUIRE(file_exists(path), "%s: no such file; want a run's directory or its log.csv", path);
    FileMap map = file_map(path);
    FileLine line = {0};
    REQUIRE(log_next_line(map, &line), "%s: empty; want a log of training steps", path);
    const LogColumns columns = log_read_columns(&line);
    REQUIRE(log_has_column(&columns, LOG_step) && log_has_column(&columns, LOG_loss),
            "%s: not a log of training steps: no column %s in the first line", path,
            log_has_column(&columns, LOG_step) ? "loss" : "step");
    int64_t lines = 0, rows = 0, per = 1;
    for (FileLine ahead = line; log_next_line(map, &ahead); ) lines++;
    while (per * PAGE_POINTS < lines) per *= 2;
    curves.point = host_alloc((size_t)(lines / per + 1) * sizeof(Point), "the points of a page");
    while (log_next_line(map, &line)) {
        Point step = { .steps = 1 };
        if (isnan(log_read_row(&columns, &line, step.value))) continue;
        step.value[LOSS_MIN] = step.value[LOSS_MAX] = step.value[LOG_loss];
        if (rows++ % per) merge(&curves.point[curves.points - 1], &step);
        else              curves.point[curves.points++] = step;
        curves.best = fmin(curves.best, step.value[LOG_val_loss]);
        if (isnan(step.value[LOG_val_loss])) step.value[LOG_val_loss] = curves.last.value[LOG_val_loss];
        curves.last = step;
    }
    file_unmap(map);
    return curves;
}

/* ---- The data of a run */

/* A file beside log.csv; empty where there is none. */
static FileMap map_beside(const char *csv, const char *name) {
    const Path path = path_of(file_parent(csv).text, name);
    return file_exists(path.text) ? file_map(path.text) : (FileMap){ .bytes = (void *)"" };
}

static void write_member(FILE *json, const char *name, const char *text) {
    fprintf(json, ",\n\"%s\": ", name);
    if (text) json_write_string(json, text);
    else      fputs("null", json);
}

/* The directory of a log.csv, else the name of the file. */
static void write_name(FILE *json, const char *csv) {
    char *absolute = realpath(csv, NULL), *path = absolute ? absolute : format_string("%s", csv);
    if (ends_with(path, ".csv")) *strrchr(path, ends_with(path, "/log.csv") ? '/' : '.') = 0;
    const char *slash = strrchr(path, '/');
    json_write_string(json, slash ? slash + 1 : path);
    free(path);
}

static void write_settings(FILE *json, const char *csv) {
    FileMap map = map_beside(csv, "settings.txt");
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

static void write_note(FILE *json, const LogEvent *note) {
    char *text = format_string("%.*s%s", NOTE_BYTES, note->text, strlen(note->text) > NOTE_BYTES ? " ..." : "");
    fprintf(json, "{\"step\": %" PRId64, note->step);
    write_member(json, "kind", note->kind);
    write_member(json, "text", text);
    fputc('}', json);
    free(text);
}

/* Why the run ended, and the last samples and warnings. Returns whether it has ended. */
static int write_events(FILE *json, const char *csv) {
    FileMap map = map_beside(csv, "log.jsonl");
    LogEvent event, note[PAGE_NOTES] = {0}, other = {0};      /* note n is at n % PAGE_NOTES; the last other event */
    int notes = 0, is_end = 0;
    for (FileLine line = {0}; log_next_line(map, &line); ) {
        if (!log_read_event(&line, &event)) continue;
        is_end = !strcmp(event.kind, "end");
        LogEvent *place = event.text && !is_end ? &note[notes++ % PAGE_NOTES] : &other;
        json_free(place->json);
        *place = event;
    }
    write_member(json, "status", is_end ? other.text : NULL);
    fputs(",\n\"notes\": [", json);
    const int first = notes > PAGE_NOTES ? notes - PAGE_NOTES : 0;
    for (int n = first; n < notes; n++) {
        if (n > first) fputs(",\n", json);
        write_note(json, &note[n % PAGE_NOTES]);
    }
    fputc(']', json);
    for (int i = 0; i < PAGE_NOTES; i++) json_free(note[i].json);
    json_free(other.json);
    file_unmap(map);
    return is_end;
}

/* A new string. path: as in page_write. */
static char *run_data(const char *path, int *is_ended) {
    Path csv = file_is_dir(path) ? path_of(path, "log.csv") : (Path){0};
    if (!*csv.text) snprintf(csv.text, sizeof csv.text, "%s", path);
    Curves curves = read_rows(csv.text);
    char *data;
    size_t size;
    FILE *json = string_open(&data, &size, "the data of a page");
    fputs("{\"name\": ", json);
    write_name(json, csv.text);
    write_settings(json, csv.text);
    write_points(json, "points", curves.point, curves.points);
    write_points(json, "last", &curves.last, curves.points > 0);
    fputs(",\n\"best\": ", json);
    write_number(json, curves.best);
    *is_ended = write_events(json, csv.text);
    fputc('}', json);
    fclose(json);
    free(curves.point);
    return data;
}

/* ---- The page */

/* is_live: the page will be replaced while the run lasts, and reloads itself. */
static void write_page(FILE *file, char *const *runs, int count, int is_live) {
    fwrite(template, 1, sizeof template - 1, file);
    fprintf(file, "{\"live\": %s, \"updated\": %lld, \"runs\": [\n", is_live ? "true" : "false",
            (long long)time(NULL));
    for (int i = 0; i < count; i++) {
        if (i) fputs(",\n", file);
        for (const char *c = runs[i]; *c; c++) {        /* "<" is in strings only: escaped, no text ends the element */
            if (*c == '<') fputs("\\u003c", file);
            else           fputc(*c, file);
        }
    }
    fputs("]}\n</script>\n", file);
}

void page_write(FILE *file, char *const *paths, int count) {
    char **runs = host_alloc((size_t)count * sizeof *runs, "the runs");
    for (int i = 0; i < count; i++) runs[i] = run_data(paths[i], &(int){0});
    write_page(file, runs, count, 0);
    for (int i = 0; i < count; i++) free(runs[i]);
    free(runs);
}

/* ---- OUT/report.html */

static void write_live(void *out) {
    const Path path = path_of(out, "report.html"), new = path_of(out, "report.html.new");
    int is_ended;
    char *run = run_data(out, &is_ended);
    FILE *file = file_try_create(new.text);
    if (file) {
        write_page(file, &run, 1, !is_ended);
        int failed = ferror(file);
        failed |= fclose(file);
        if (failed || rename(new.text, path.text)) unlink(new.text);
    }
    free(run);
}

int report_page_write(const char *out) {
    char why[FAIL_LENGTH];
    return !fails(write_live, (void *)out, why);
}
