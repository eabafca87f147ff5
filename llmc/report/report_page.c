#include "report_page.h"
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

enum { NOTE_BYTES = 4000, INTERVAL_S = 5, COST = 500 };

/* ---- Points */

enum { STEP, SECONDS, TOKENS, LOSS, LOSS_MIN, LOSS_MAX, VAL_LOSS, NORM, RATE, SPEED, TEMPERATURE, POWER };

/* The columns of log.csv, and two that are made of loss. */
static const struct { const char *name; enum { LAST, MEAN, MIN, MAX } kept; } columns[PAGE_COLUMNS] = {
    [STEP] = { "step", LAST }, [SECONDS] = { "seconds", LAST }, [TOKENS] = { "tokens", LAST },
    [LOSS] = { "loss", MEAN }, [LOSS_MIN] = { "loss_min", MIN }, [LOSS_MAX] = { "loss_max", MAX },
    [VAL_LOSS] = { "val_loss", LAST }, [NORM] = { "norm", MEAN }, [RATE] = { "lr", LAST },
    [SPEED] = { "tokens_per_s", MEAN }, [TEMPERATURE] = { "temperature_c", LAST }, [POWER] = { "power_w", LAST },
};

/* a, and b after it. */
static PagePoint merged(const PagePoint *a, const PagePoint *b) {
    PagePoint both = { .steps = a->steps + b->steps };
    for (int c = 0; c < PAGE_COLUMNS; c++) {
        double x = a->value[c], y = b->value[c];
        both.value[c] = isnan(x) ? y : isnan(y) ? x
                      : columns[c].kept == LAST ? y : columns[c].kept == MIN ? fmin(x, y)
                      : columns[c].kept == MAX  ? fmax(x, y)
                      : x + (y - x) * (double)b->steps / (double)both.steps;
    }
    return both;
}

static void series_add(PageSeries *series, PagePoint point) {
    if (series->count && series->point[series->count - 1].steps < series->per) {
        PagePoint *last = &series->point[series->count - 1];
        *last = merged(last, &point);
        return;
    }
    if (series->count == PAGE_POINTS) {
        series->count /= 2;
        series->per *= 2;
        for (int i = 0; i < series->count; i++)
            series->point[i] = merged(&series->point[2 * i], &series->point[2 * i + 1]);
    }
    series->point[series->count++] = point;
}

/* ---- Reading */

static void read_header(PageRun *run, const FileLine *line) {
    const char *at = line->text, *name;
    int seen = 0;
    for (size_t length; run->columns < PAGE_COLUMNS_READ && (name = file_next_cell(line, &at, &length)); ) {
        int c = PAGE_COLUMNS - 1;
        while (c >= 0 && (strlen(columns[c].name) != length || memcmp(columns[c].name, name, length))) c--;
        if (c >= 0) seen |= 1 << c;
        run->column[run->columns++] = c;
    }
    for (int c = STEP; c <= LOSS; c += LOSS - STEP)
        REQUIRE(seen & 1 << c, "%s: not a log of training steps: no column %s in the first line", run->csv,
                columns[c].name);
}

static void read_row(PageRun *run, const FileLine *line) {
    PagePoint point = { .steps = 1 };
    for (int c = 0; c < PAGE_COLUMNS; c++) point.value[c] = NAN;
    const char *at = line->text, *cell;
    size_t length;
    for (int i = 0; i < run->columns && (cell = file_next_cell(line, &at, &length)); i++)
        if (run->column[i] >= 0) point.value[run->column[i]] = cell_number(cell, length);
    if (isnan(point.value[STEP])) return;
    point.value[LOSS_MIN] = point.value[LOSS_MAX] = point.value[LOSS];
    if (!isnan(point.value[VAL_LOSS])) series_add(&run->validations, point);
    point.value[VAL_LOSS] = NAN;
    run->last = point;
    series_add(&run->steps, point);
}

static void read_csv_line(PageRun *run, const FileLine *line) {
    if (run->columns) read_row(run, line);
    else              read_header(run, line);
}

static void add_note(PageRun *run, int64_t step, const char *kind, const char *text) {
    if (run->notes == PAGE_NOTES) {
        free(run->note[0].text);
        memmove(run->note, run->note + 1, sizeof run->note - sizeof *run->note);
        run->notes--;
    }
    size_t length = strlen(text), kept = length > NOTE_BYTES ? NOTE_BYTES : length;
    while (kept < length && kept && (text[kept] & 0xc0) == 0x80) kept--;         /* not inside a character */
    run->note[run->notes++] =
        (PageNote){ step, kind, format_string("%.*s%s", (int)kept, text, kept < length ? " ..." : "") };
}

static void read_event(PageRun *run, const FileLine *line) {
    Json *event = json_parse(line->text, line->size, run->jsonl);
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

void page_run_read(PageRun *run) {
    read_lines(run, run->csv, &run->csv_bytes, read_csv_line);
    if (file_exists(run->jsonl)) read_lines(run, run->jsonl, &run->jsonl_bytes, read_event);
}

void page_run_open(PageRun *run, const char *path) {
    const int is_dir = file_is_dir(path);
    REQUIRE(is_dir || file_exists(path), "%s: no such run; want a run's directory or its log.csv", path);
    REQUIRE(!is_dir || dir_has_file(path, "log.csv"), "%s: no log.csv in it; want a run's directory", path);
    const Path dir = file_parent(is_dir ? path_of(path, "log.csv").text : path);
    *run = (PageRun){ .steps.per = 1, .validations.per = 1 };
    run->csv = format_string("%s", is_dir ? path_of(path, "log.csv").text : path);
    run->jsonl = format_string("%s", path_of(dir.text, "log.jsonl").text);
    run->settings = format_string("%s", path_of(dir.text, "settings.txt").text);
    page_run_read(run);
    REQUIRE(run->columns, "%s: empty; want a log of training steps", run->csv);
}

void page_run_close(PageRun *run) {
    for (int i = 0; i < run->notes; i++) free(run->note[i].text);
    free(run->csv);
    free(run->jsonl);
    free(run->settings);
    free(run->status);
    *run = (PageRun){0};
}

/* ---- Writing */

static void write_member(FILE *json, const char *name, const char *text) {
    fprintf(json, ",\n\"%s\": ", name);
    if (text) json_write_string(json, text);
    else      fputs("null", json);
}

/* The directory of a log.csv, else the name of the file. */
static void write_name(FILE *json, const PageRun *run) {
    char *absolute = realpath(run->csv, NULL), *path = absolute ? absolute : format_string("%s", run->csv);
    if (ends_with(path, ".csv")) *strrchr(path, ends_with(path, "/log.csv") ? '/' : '.') = 0;
    const char *slash = strrchr(path, '/');
    json_write_string(json, slash ? slash + 1 : path);
    free(path);
}

static void write_settings(FILE *json, const PageRun *run) {
    FileMap map = file_exists(run->settings) ? file_map(run->settings) : (FileMap){ .bytes = (void *)"" };
    char *text = format_string("%.*s", (int)map.size, (const char *)map.bytes);
    write_member(json, "settings", text);
    free(text);
    file_unmap(map);
}

static void write_rows(FILE *json, const char *name, const PagePoint *point, int count) {
    fprintf(json, ",\n\"%s\": [", name);
    for (int i = 0; i < count; i++) {
        fputs(i ? ",\n[" : "[", json);
        for (int c = 0; c < PAGE_COLUMNS; c++) {
            const double value = point[i].value[c];
            fprintf(json, isnan(value) ? "%snull" : c <= LOSS_MAX ? "%s%.12g" : "%s%.6g", c ? "," : "", value);
        }
        fputc(']', json);
    }
    fputc(']', json);
}

static void write_run(FILE *json, const PageRun *run) {
    fputs("{\"name\": ", json);
    write_name(json, run);
    write_member(json, "status", run->status);
    write_settings(json, run);
    fputs(",\n\"columns\": [", json);
    for (int c = 0; c < PAGE_COLUMNS; c++) fprintf(json, "%s\"%s\"", c ? ", " : "", columns[c].name);
    fputc(']', json);
    write_rows(json, "rows", run->steps.point, run->steps.count);
    write_rows(json, "validations", run->validations.point, run->validations.count);
    write_rows(json, "last", &run->last, run->steps.count > 0);
    fputs(",\n\"notes\": [", json);
    for (int i = 0; i < run->notes; i++) {
        const PageNote *note = &run->note[i];
        fprintf(json, "%s{\"step\": %" PRId64 ", \"kind\": \"%s\"", i ? ",\n" : "", note->step, note->kind);
        write_member(json, "text", note->text);
        fputc('}', json);
    }
    fputs("]}", json);
}

void page_write(FILE *file, const PageRun *runs, int count, int is_live) {
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

/* ---- OUT/report.html */

static void update(void *argument) {
    ReportPage *page = argument;
    if (page->run.csv) page_run_read(&page->run);
    else               page_run_open(&page->run, file_parent(page->path).text);
    char *new_path = format_string("%s.new", page->path);
    FILE *file = fopen(new_path, "we");
    if (file) {
        page_write(file, &page->run, 1, !page->run.status);
        int failed = ferror(file);
        failed |= fclose(file);
        if (failed || rename(new_path, page->path)) unlink(new_path);
    }
    free(new_path);
}

void report_page_open(ReportPage *page, const char *out) {
    *page = (ReportPage){ .path = format_string("%s", path_of(out, "report.html").text) };
    report_page_update(page);
}

static void stop(ReportPage *page) {
    page_run_close(&page->run);
    free(page->path);
    *page = (ReportPage){0};
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
