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
#include <report_page.inc>      /* static const char template[]: report_page.html, which ends with data_begin */

enum { NOTE_BYTES = 4000, INTERVAL_S = 5, COST = 500 };
static const char data_begin[] = "<script type=\"application/json\" id=\"runs\">\n", data_end[] = "</script>\n";

/* ---- Points */

enum { STEP, SECONDS, TOKENS, LOSS, LOSS_MIN, LOSS_MAX, VAL_LOSS, NORM, RATE, SPEED, TEMPERATURE, POWER };

/* Of log.csv, but for the two that are made of loss. */
static const struct { const char *name; enum { LAST, MEAN, MIN, MAX } kept; } columns[PAGE_COLUMNS] = {
    [STEP] = { "step", LAST }, [SECONDS] = { "seconds", LAST }, [TOKENS] = { "tokens", LAST },
    [LOSS] = { "loss", MEAN }, [LOSS_MIN] = { "loss_min", MIN }, [LOSS_MAX] = { "loss_max", MAX },
    [VAL_LOSS] = { "val_loss", LAST }, [NORM] = { "norm", MEAN }, [RATE] = { "lr", LAST },
    [SPEED] = { "tokens_per_s", MEAN }, [TEMPERATURE] = { "temperature_c", LAST }, [POWER] = { "power_w", LAST },
};

/* a, and b after it. fmin and fmax pass over NaN. */
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

/* Nor is infinity JSON. */
static void page_add(ReportPage *page, PagePoint point) {
    for (int c = 0; c < PAGE_COLUMNS; c++) if (!isfinite(point.value[c])) point.value[c] = NAN;
    point.steps = 1;
    point.value[LOSS_MIN] = point.value[LOSS_MAX] = point.value[LOSS];
    if (!isnan(point.value[VAL_LOSS])) series_add(&page->validations, point);
    point.value[VAL_LOSS] = NAN;
    page->last = point;
    series_add(&page->steps, point);
}

/* ---- What a resume continues */

static void read_rows(ReportPage *page, const char *path) {
    FileMap map = file_map(path);
    int column[LOG_COLUMNS], count = 0;
    for (FileLine line = {0}; file_next_line(map, &line) && line.next[-1] == '\n'; ) {
        const int first = line.number == 1;
        PagePoint point;
        for (int c = 0; c < PAGE_COLUMNS; c++) point.value[c] = NAN;
        int i = 0;
        for (const char *cell = line.text; cell < line.next && i < LOG_COLUMNS; i++) {
            size_t length = strcspn(cell, ",\n");
            if (first) {
                int c = PAGE_COLUMNS - 1;
                while (c >= 0 && (strncmp(columns[c].name, cell, length) || columns[c].name[length])) c--;
                column[count++] = c;
            } else if (i < count && column[i] >= 0 && length) {
                point.value[column[i]] = strtod(cell, NULL);
            }
            cell += length + 1;
        }
        if (!first && i) page_add(page, point);
    }
    file_unmap(map);
}

static void add_note(ReportPage *page, int64_t step, const char *kind, const char *text) {
    if (page->notes == PAGE_NOTES) {
        free(page->note[0].text);
        memmove(page->note, page->note + 1, sizeof page->note - sizeof *page->note);
        page->notes--;
    }
    size_t length = strlen(text), kept = length > NOTE_BYTES ? NOTE_BYTES : length;
    while (kept < length && kept && (text[kept] & 0xc0) == 0x80) kept--;         /* not inside a character */
    page->note[page->notes++] =
        (PageNote){ step, kind, format_string("%.*s%s", (int)kept, text, kept < length ? " ..." : "") };
}

typedef struct { ReportPage *page; int64_t last_step; FileMap map; Json *runs; } NoteReader;

/* Fails if the file is not such a page. */
static void read_notes(void *argument) {
    NoteReader *reader = argument;
    const FileMap map = reader->map = file_map(reader->page->path);
    const char *html = (const char *)map.bytes, *end = html + map.size - strlen(data_end);
    const char *data = memmem(html, (size_t)map.size, data_begin, strlen(data_begin));
    REQUIRE(data && data + strlen(data_begin) < end, "%s: no page of a run", reader->page->path);
    data += strlen(data_begin);
    reader->runs = json_parse(data, (size_t)(end - data), reader->page->path);
    REQUIRE(reader->runs->child, "%s: no run in it", reader->page->path);
    const Json *notes = json_member(reader->runs->child, "notes", JSON_ARRAY);
    for (const Json *note = notes->child; note; note = note->next) {
        int64_t step = json_integer(json_member(note, "step", JSON_NUMBER), 0, INT64_MAX);
        const char *kind = strcmp(json_string(note, "kind"), "sample") ? "warning" : "sample";
        if (step <= reader->last_step) add_note(reader->page, step, kind, json_string(note, "text"));
    }
}

/* ---- The file */

static void write_rows(FILE *file, const char *name, const PagePoint *point, int count) {
    fprintf(file, ",\n\"%s\": [", name);
    for (int i = 0; i < count; i++) {
        fputs(i ? ",\n[" : "[", file);
        for (int c = 0; c < PAGE_COLUMNS; c++) {
            const double value = point[i].value[c];
            fprintf(file, isnan(value) ? "%snull" : c <= TOKENS ? "%s%.12g" : "%s%.6g", c ? "," : "", value);
        }
        fputc(']', file);
    }
    fputc(']', file);
}

/* As JSON, in which "<" is in strings only: escaped, no text ends the element. */
static void write_page(ReportPage *page, const char *status) {
    char *data = NULL, *new_path = format_string("%s.new", page->path);
    size_t size;
    FILE *json = string_open(&data, &size, page->path), *file = fopen(new_path, "we");
    fprintf(json, "[{%s,\n\"updated\": %lld,\n\"status\": ", page->head, (long long)time(NULL));
    json_write_string(json, status);
    fputs(",\n\"columns\": [", json);
    for (int c = 0; c < PAGE_COLUMNS; c++) fprintf(json, "%s\"%s\"", c ? ", " : "", columns[c].name);
    fputc(']', json);
    write_rows(json, "rows", page->steps.point, page->steps.count);
    write_rows(json, "validations", page->validations.point, page->validations.count);
    write_rows(json, "last", &page->last, page->steps.count > 0);
    fputs(",\n\"notes\": [", json);
    for (int i = 0; i < page->notes; i++) {
        const PageNote *note = &page->note[i];
        fprintf(json, "%s{\"step\": %" PRId64 ", \"kind\": \"%s\", \"text\": ", i ? ",\n" : "", note->step, note->kind);
        json_write_string(json, note->text);
        fputc('}', json);
    }
    fputs("]}]\n", json);
    fclose(json);
    if (file) {
        fwrite(template, 1, sizeof template - 1, file);
        for (const char *c = data; *c; c++) {
            if (*c == '<') fputs("\\u003c", file);
            else fputc(*c, file);
        }
        fputs(data_end, file);
        int failed = ferror(file);
        failed |= fclose(file);
        if (failed || rename(new_path, page->path)) unlink(new_path);
    }
    free(data);
    free(new_path);
}

static void write_when_due(ReportPage *page) {
    const double start = seconds_now();
    if (start < page->due_s) return;
    write_page(page, "running");
    const double now = seconds_now();
    page->due_s = now + fmax(INTERVAL_S, COST * (now - start));
}

void report_page_open(ReportPage *page, const char *out, int64_t steps, const ResumeInfo *resume) {
    page->path = format_string("%s", path_of(out, "report.html").text);
    page->steps.per = page->validations.per = 1;
    char *absolute = realpath(out, NULL), why[FAIL_LENGTH];
    const char *slash = absolute ? strrchr(absolute, '/') : NULL;
    const Path path = path_of(out, "settings.txt");
    FileMap settings = file_exists(path.text) ? file_map(path.text) : (FileMap){ .bytes = (void *)"" };
    char *text = format_string("%.*s", (int)settings.size, (const char *)settings.bytes);
    size_t size;
    FILE *file = string_open(&page->head, &size, page->path);
    fputs("\"name\": ", file);
    json_write_string(file, slash && slash[1] ? slash + 1 : out);
    fprintf(file, ",\n\"total\": %" PRId64 ",\n\"settings\": ", steps);
    json_write_string(file, text);
    fclose(file);
    free(text);
    free(absolute);
    file_unmap(settings);
    const Path csv = path_of(out, "log.csv");
    if (resume && file_exists(csv.text)) read_rows(page, csv.text);
    if (resume && file_exists(page->path)) {
        NoteReader reader = { .page = page, .last_step = resume->step };
        fails(read_notes, &reader, why);
        json_free(reader.runs);
        file_unmap(reader.map);
    }
    write_when_due(page);
}

void report_page_step(ReportPage *page, const StepReport *s) {
    if (!page->path) return;
    page_add(page, (PagePoint){ .value = {
        [STEP] = (double)s->step, [SECONDS] = s->seconds, [TOKENS] = (double)s->tokens, [LOSS] = s->loss,
        [VAL_LOSS] = s->val_loss, [NORM] = s->norm, [RATE] = s->learning_rate, [SPEED] = s->tokens_per_second,
        [TEMPERATURE] = s->health.temperature_c > 0 ? s->health.temperature_c : NAN,
        [POWER] = s->health.power_w > 0 ? s->health.power_w : NAN } });
    write_when_due(page);
}

void report_page_note(ReportPage *page, int64_t step, const char *kind, const char *text) {
    if (page->path) add_note(page, step, kind, text);
}

void report_page_close(ReportPage *page, const char *status) {
    if (!page->path) return;
    write_page(page, status);
    for (int i = 0; i < page->notes; i++) free(page->note[i].text);
    free(page->path);
    free(page->head);
    page->path = NULL;
}
