#include "report_page.h"
#include "log_reader.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"
#include "../../kernels/check.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <report_page.inc>      /* static const char template[]: report_page.html, whose last line begins the data */

/* ---- Points */

/* The numbers of log.csv, and two that are made of loss, in the place of the text of log_read_row and behind it. */
enum { LOSS_MIN = LOG_throttle, LOSS_MAX, PAGE_COLUMNS };

/* Consecutive steps: the last step, seconds and tokens, the lowest val_loss, the mean of the others. NaN = unknown. */
typedef struct { int64_t steps; double value[PAGE_COLUMNS]; } Point;

/* Adds the steps of b, which come after those of a. */
static void merge(Point *a, const Point *b) {
    a->steps += b->steps;
    for (int c = 0; c < PAGE_COLUMNS; c++) {
        double *x = &a->value[c], y = b->value[c];
        if (isnan(y)) continue;
        if (isnan(*x) || c <= LOG_tokens) *x = y;
        else if (c == LOSS_MIN || c == LOG_val_loss) *x = fmin(*x, y);
        else if (c == LOSS_MAX) *x = fmax(*x, y);
        else *x += (y - *x) * (double)b->steps / (double)a->steps;
    }
}

static void write_point(FILE *json, const Point *point) {
    fputs(",\n[", json);
    for (int c = 0; c < PAGE_COLUMNS; c++) {
        if (c) fputc(',', json);
        if (isnan(point->value[c])) fputs("null", json);
        else                        fprintf(json, "%.12g", point->value[c]);
    }
    fputc(']', json);
}

/* The names of the columns, and the rows of a log.csv, 1, 2, 4, ... of them merged to a point. */
static void write_points(FILE *json, const char *path) {
#define QUOTED(name, format, value) "\"" #name "\", "
    FileMap map = file_map(path);
    FileLine line = {0};
    const LogColumns columns = log_read_columns(map, &line, path);
    int64_t lines = 0, per = 1;
    for (FileLine ahead = line; log_next_line(map, &ahead); ) lines++;
    while (per * PAGE_POINTS < lines) per *= 2;
    fputs("\"points\": [[" LOG_COLUMNS(QUOTED) "\"loss_min\", \"loss_max\"]", json);
    Point point = {0}, step = { .steps = 1 };
    while (log_next_line(map, &line)) {
        if (isnan(log_read_row(&columns, &line, step.value))) continue;
        step.value[LOSS_MIN] = step.value[LOSS_MAX] = step.value[LOG_loss];
        if (point.steps) merge(&point, &step);
        else             point = step;
        if (point.steps < per) continue;
        write_point(json, &point);
        point.steps = 0;
    }
    if (point.steps) write_point(json, &point);
    fputc(']', json);
    file_unmap(map);
}

/* ---- The data of a run */

/* The directory of a log.csv, else the name of the file. */
static void write_name(FILE *json, const char *csv) {
    char *absolute = realpath(csv, NULL), *path = absolute ? absolute : format_string("%s", csv);
    if (ends_with(path, ".csv")) *strrchr(path, ends_with(path, "/log.csv") ? '/' : '.') = 0;
    const char *slash = strrchr(path, '/');
    fputs("{\"name\": ", json);
    json_write_string(json, slash ? slash + 1 : path);
    fputs(",\n", json);
    free(path);
}

/* A member with the last bytes of a file beside log.csv, "" where there is none. */
static void write_text(FILE *json, const char *csv, const char *name, size_t max_bytes) {
    const Path path = path_of(file_parent(csv).text, name);
    const FileMap map = file_exists(path.text) ? file_map(path.text) : (FileMap){ .bytes = (void *)"" };
    const size_t size = (size_t)map.size < max_bytes ? (size_t)map.size : max_bytes;
    char *text = host_alloc(size + 1, "the data of a page");
    memcpy(text, map.bytes + map.size - size, size);
    file_unmap(map);
    for (char *zero; (zero = memchr(text, 0, size)); ) *zero = ' ';         /* a crash can leave a block of zeros */
    fprintf(json, ",\n\"%s\": ", name);
    json_write_string(json, text);
    free(text);
}

/* path: as in page_write. */
static void write_run(FILE *json, const char *path) {
    Path csv = file_is_dir(path) ? path_of(path, "log.csv") : (Path){0};
    if (!*csv.text) snprintf(csv.text, sizeof csv.text, "%s", path);
    REQUIRE(file_exists(csv.text), "%s: no such file; want a run's directory or its log.csv", csv.text);
    write_name(json, csv.text);
    write_points(json, csv.text);
    write_text(json, csv.text, "settings.txt", PAGE_EVENT_BYTES);
    write_text(json, csv.text, "log.jsonl", PAGE_EVENT_BYTES);
    fputc('}', json);
}

/* ---- The page */

/* is_live: the page is replaced while the run lasts, and reloads itself. */
typedef struct { char *const *paths; int count, is_live; char *data; size_t size; FILE *json; } Page;

static void write_data(void *argument) {
    Page *page = argument;
    page->json = string_open(&page->data, &page->size, "the data of a page");
    fprintf(page->json, "{\"live\": %s, \"updated\": %lld, \"runs\": [", page->is_live ? "true" : "false",
            (long long)time(NULL));
    for (int i = 0; i < page->count; i++) {
        fputs(i ? ",\n" : "\n", page->json);
        write_run(page->json, page->paths[i]);
    }
    fputs("]}\n", page->json);
    fclose(page->json);
}

static void write_page(FILE *file, const char *data) {
    fwrite(template, 1, sizeof template - 1, file);
    for (; *data; data++) {                 /* "<" is in strings only: escaped, no text ends the element */
        if (*data == '<') fputs("\\u003c", file);
        else              fputc(*data, file);
    }
    fputs("</script>\n", file);
}

void page_write(FILE *file, char *const *paths, int count) {
    Page page = { .paths = paths, .count = count };
    write_data(&page);
    write_page(file, page.data);
    free(page.data);
}

int report_page_write(const char *out) {
    const Path path = path_of(out, "report.html"), new = path_of(out, "report.html.new");
    Page page = { .paths = (char *const[]){ (char *)out }, .count = 1, .is_live = 1 };
    char why[FAIL_LENGTH];
    const int are_read = !fails(write_data, &page, why);
    if (!are_read && page.json) fclose(page.json);
    FILE *file = are_read ? file_try_create(new.text) : NULL;
    if (file) {
        write_page(file, page.data);
        int failed = ferror(file);
        failed |= fclose(file);
        if (failed || rename(new.text, path.text)) unlink(new.text);
    }
    free(page.data);
    return are_read;
}
