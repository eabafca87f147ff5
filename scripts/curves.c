/* curves - Pages for a browser: curves, samples, warnings, settings, temperature and power of runs, read from the files
   of llmc/report/log.h. A page is an HTML file that carries its data, as JSON, and loads nothing else. */
#include <report_page.inc>      /* static const char template[]: report_page.html, whose last line begins the data */
#include "../llmc/report/log_reader.h"

static const char usage[] =
    "usage: ./curves RUN... > curves.html\n"
    "       ./curves --live RUN\n\n"
    "Writes a page for a browser: loss, gradient norm, learning rate, speed,\n"
    "temperature and power over steps, tokens or time, samples, warnings, settings.\n"
    "RUN is a run's directory, or another log.csv, with at least the columns step\n"
    "and loss. --live replaces RUN/report.html by a page that reloads itself, as\n"
    "train_gpt does while it trains.\n";

/* Limits of a run: points of a curve, and bytes at the end of log.jsonl, whose samples and warnings it shows. */
enum { PAGE_POINTS = 1000, PAGE_EVENT_BYTES = 1 << 16 };

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
#define QUOTED(name, format) "\"" #name "\", "
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

/* path: a run's directory, or a CSV file with the columns step and loss, beside which log.jsonl and settings.txt may
   be. Fails on a file that is no such log. */
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

/* ---- The page. test/fuzz calls page_data and page_write, too. */

/* The data of a page, a new string, complete before anything is written. is_live: the page is replaced while the run
   lasts, and reloads itself. */
char *page_data(char *const *paths, int count, int is_live) {
    char *data;
    size_t size;
    FILE *json = string_open(&data, &size, "the data of a page");
    fprintf(json, "{\"live\": %s, \"updated\": %lld, \"runs\": [", is_live ? "true" : "false",
            (long long)time(NULL));
    for (int i = 0; i < count; i++) {
        fputs(i ? ",\n" : "\n", json);
        write_run(json, paths[i]);
    }
    fputs("]}\n", json);
    fclose(json);
    return data;
}

void page_write(FILE *file, const char *data) {
    fwrite(template, 1, sizeof template - 1, file);
    for (; *data; data++) {                 /* "<" is in strings only: escaped, no text ends the element */
        if (*data == '<') fputs("\\u003c", file);
        else              fputc(*data, file);
    }
    fputs("</script>\n", file);
}

/* Replaces OUT/report.html atomically. An error of writing it is ignored, as it holds nothing that the logs do not. */
static void replace_page(const char *out, const char *data) {
    const Path path = path_of(out, "report.html"), new = path_of(out, "report.html.new");
    FILE *file = file_try_create(new.text);
    if (!file) return;
    page_write(file, data);
    int failed = ferror(file);
    failed |= fclose(file);
    if (failed || rename(new.text, path.text)) unlink(new.text);
}

int main(int argc, char **argv) {
    fail_program = "curves";
    stdio_open();
    const int is_live = argc == 3 && !strcmp(argv[1], "--live");
    char **runs = argv + 1 + is_live;
    int count = argc - 1 - is_live, are_runs = count > 0;
    for (int i = 0; i < count; i++) {
        if (!strcmp(runs[i], "--help") || !strcmp(runs[i], "-h")) return fputs(usage, stdout), stdio_flush();
        are_runs &= is_live || *runs[i] != '-';
    }
    /* no message in the middle of a run, whose log may just have been moved: the exit code is enough */
    if (is_live && !freopen("/dev/null", "w", stderr)) return 1;
    REQUIRE(are_runs, "want runs: ./curves RUN... > curves.html (--help explains)");
    char *data = page_data(runs, count, is_live);
    if (is_live) replace_page(*runs, data);
    else         page_write(stdout, data);
    free(data);
    return stdio_flush();
}
