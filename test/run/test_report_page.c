/* test_report_page.c - report.html: its data are those of the logs, thinned, also as these grow; no text of a sample
   ends them; it is written completely or not at all. */
#include "../scratch.h"
#include <math.h>
#include <sys/stat.h>
#include "../../llmc/base/json.h"
#include "../../llmc/report/report_page.h"

static const char begin[] = "<script type=\"application/json\" id=\"data\">\n", end[] = "</script>\n";
static char *page_path, *csv_path, *events_path;

static void append(const char *path, const char *text) {
    FILE *file = fopen(path, "a");
    REQUIRE(file && fputs(text, file) >= 0 && !fclose(file), "%s: cannot append", path);
}

static double loss_of(int64_t step) { return 1000.0 / (double)step; }

/* Rows in another order of columns than the program's, and with one more; every tenth step is validated. */
static void append_rows(int64_t first, int64_t last) {
    FILE *file = fopen(csv_path, "a");
    REQUIRE(file, "%s: cannot append", csv_path);
    if (first == 1) fputs("step,loss,seconds,norm,tokens,val_loss,strange,lr,tokens_per_s\n", file);
    for (int64_t step = first; step <= last; step++)
        fprintf(file, "%lld,%.9g,%g,%d,%lld,%s,none,0.001,500.0\n", (long long)step, loss_of(step), (double)step / 2,
                (int)(step % 3), 10 * (long long)step, step % 10 ? "" : step == 20 ? "6" : "7");
    fclose(file);
}

static void make_logs(int64_t last) {
    unlink(csv_path), unlink(events_path), unlink(page_path);
    append_rows(1, last);
    put_text(IN_SCRATCH("settings.txt"), "# train_gpt 0, \"cpu\"\nlr = 0.001\nprompt = \"</script>\"\n");
}

static Json *data;          /* of the page that was read last */
static const Json *run;     /* the only one in it */

/* Reads the page, which its data end. status: what it says of the end of the run. */
static void read_page(const char *status) {
    FileMap map = file_map(page_path);
    const char *html = (const char *)map.bytes, *text = memmem(html, (size_t)map.size, begin, strlen(begin));
    const char *stop = text ? memmem(text, (size_t)(html + map.size - text), end, strlen(end)) : NULL;
    REQUIRE(stop && stop + strlen(end) == html + map.size, "want one %s, at the end", end);
    text += strlen(begin);
    REQUIRE(!memchr(text, '<', (size_t)(stop - text)), "\"<\" in the data");
    json_free(data);
    data = json_parse(text, (size_t)(stop - text), "report.html");
    file_unmap(map);
    run = json_member(data, "runs", JSON_ARRAY)->child;
    const Json *value = json_find(run, "status");
    EXPECT(json_find(data, "live")->type == (status ? JSON_FALSE : JSON_TRUE), "live");
    EXPECT(status ? value->type == JSON_STRING && !strcmp(value->text, status) : value->type == JSON_NULL, "status %s",
           json_text(value));
}

static const Json *element(const Json *array, int n) {
    const Json *child = array->child;
    while (child && n--) child = child->next;
    REQUIRE(child, "no element %d", n);
    return child;
}

static const Json *column_of(const char *points, const char *name) {
    return json_member(json_member(run, points, JSON_OBJECT), name, JSON_ARRAY);
}

static int points(void) { return column_of("points", "step")->count; }

/* The value of a point, or n -1: of the last step. NaN = null. */
static double value_at(int n, const char *name) {
    const Json *value = n < 0 ? element(column_of("last", name), 0) : element(column_of("points", name), n);
    return value->type == JSON_NULL ? NAN : json_real(value);
}

static void the_page_holds_the_run(void) {
    make_logs(0);
    report_page_write(scratch);
    read_page(NULL);
    EXPECT(points() == 0 && column_of("last", "loss")->count == 0, "the start");
    append_rows(1, 41);
    append(events_path, "{\"event\": \"run\"}\n{\"event\": \"warning\", \"step\": 3, \"message\": \"]}]\"}\n"
        "{\"event\": \"sample\", \"step\": 40, \"text\": \"</script><!-- \\\"quoted\\\" \\\\ \\ufffd \xc3\xa9 "
        "\\u0001\"}\n"
        "{\"event\": \"end\", \"step\": 40, \"reason\": \"SIGTERM </script>\"}\n");
    report_page_write(scratch);
    read_page("SIGTERM </script>");
    const Json *notes = json_member(run, "notes", JSON_ARRAY), *sample = element(notes, 1);
    EXPECT(!strcmp(json_string(run, "name"), strrchr(scratch, '/') + 1), "name %s", json_string(run, "name"));
    EXPECT(!strcmp(json_string(run, "settings"), text_of(IN_SCRATCH("settings.txt"))), "%s",
           json_string(run, "settings"));
    EXPECT(notes->count == 2 && !strcmp(json_string(notes->child, "kind"), "warning"), "%d notes", notes->count);
    EXPECT(!strcmp(json_string(sample, "text"), "</script><!-- \"quoted\" \\ \xef\xbf\xbd \xc3\xa9 \x01"), "sample: %s",
           json_string(sample, "text"));
    EXPECT(json_integer(json_find(sample, "step"), 0, 100) == 40, "its step");
    for (int i = 0; i < 41; i++)
        EXPECT(value_at(i, "step") == i + 1 && value_at(i, "norm") == (i + 1) % 3 && isnan(value_at(i, "power_w")) &&
               value_at(i, "loss_max") == value_at(i, "loss") && isnan(value_at(i, "val_loss")) == !!((i + 1) % 10) &&
               fabs(value_at(i, "loss") / loss_of(i + 1) - 1) < 1e-8, "point %d", i);
    EXPECT(points() == 41 && value_at(39, "val_loss") == 7 && value_at(39, "tokens") == 400, "%d points", points());
    EXPECT(value_at(-1, "step") == 41 && value_at(-1, "val_loss") == 7 && json_real(json_find(run, "best")) == 6,
           "the final figures");
    EXPECT(!file_exists(STRING("%s.new", page_path)), "a temporary file is left");
}

/* Lines that are half written are read when they are whole; damaged ones are left out. */
static void the_page_grows_with_the_logs(void) {
    make_logs(40);
    append(events_path, "{\"event\": \"end\", \"reason\": \"done\"}\ndamaged\n{\"event\": \"end\"}\n");
    append(csv_path, "41,24");
    report_page_write(scratch);
    read_page("done");
    EXPECT(points() == 40, "%d points", points());
    append(csv_path, ".5,,nan,1e400,\n,1\n42,x,0x,1 2\r\n");
    append(events_path, "{\"event\": \"resume\", \"st");
    report_page_write(scratch);
    read_page("done");
    append(events_path, "ep\": 41}\n");
    report_page_write(scratch);
    read_page(NULL);
    EXPECT(points() == 42 && value_at(40, "loss") == 24.5, "%d points", points());
    for (int c = 0; c < 3; c++) {
        const char *name = (const char *[]){ "seconds", "norm", "tokens" }[c];
        EXPECT(isnan(value_at(40, name)) && isnan(value_at(41, name)), "%s", name);
    }
}

/* At most PAGE_POINTS points with the mean, minimum and maximum of their steps; a bounded file. */
static void a_long_run_is_thinned(void) {
    const int64_t steps = 200000;
    double sum = 0, mean = 0, all = 0;
    make_logs(steps);
    for (int64_t step = 1; step <= steps; step++) sum += loss_of(step);
    FILE *events = fopen(events_path, "w");
    for (int i = 0; events && i < 3 * PAGE_NOTES; i++) {
        fprintf(events, "{\"event\": \"sample\", \"step\": %d, \"text\": \"x", i);
        for (int k = 0; k < 50000; k++) fputs(i % 2 ? "xx" : "\xc3\xa9", events);
        fputs("\"}\n", events);
    }
    REQUIRE(events && !fclose(events), "cannot write the events");
    report_page_write(scratch);
    read_page(NULL);
    for (int i = 0; i < points(); i++) {
        double n = value_at(i, "step") - (i ? value_at(i - 1, "step") : 0), loss = value_at(i, "loss");
        mean += n * loss;
        all += n;
        EXPECT(value_at(i, "loss_min") <= loss && loss <= value_at(i, "loss_max"), "point %d", i);
        EXPECT(value_at(i, "val_loss") == 7, "the last validation of point %d", i);
    }
    EXPECT(points() == (steps + 255) / 256 && value_at(0, "step") == 256, "%d points", points());
    EXPECT(all == (double)steps && value_at(points() - 1, "tokens") == 10.0 * (double)steps, "%g steps", all);
    EXPECT(fabs(mean / sum - 1) < 1e-8, "mean loss %g, want %g", mean / all, sum / all);
    EXPECT(value_at(0, "loss_max") == 1000 && value_at(-1, "loss") == loss_of(steps), "the first and the last step");
    const Json *notes = json_find(run, "notes");
    EXPECT(notes->count == PAGE_NOTES, "%d notes", notes->count);
    for (int i = 0; i < notes->count; i++)
        EXPECT(json_real(json_find(element(notes, i), "step")) == 2 * PAGE_NOTES + i, "note %d", i);
    EXPECT(strlen(json_string(notes->child, "text")) == 3999 + strlen("\xef\xbf\xbd ..."), "not cut");
    struct stat info;
    EXPECT(!stat(page_path, &info) && info.st_size < 700000, "%lld bytes", (long long)info.st_size);
}

static void write_pages(void *path) { page_write(stdout, (char *[]){ csv_path, path }, 2); }

/* No error ends the run; the last whole page stays. */
static void what_cannot_be_read_or_written_is_left(void) {
    static const struct { const char *csv, *want; } logs[] = {
        { "", "other.csv: empty" }, { "step,loss", "other.csv: empty" },
        { "step,norm\n", "other.csv: not a log of training steps: no column loss" },
        { "lr = 3\n", "other.csv: not a log of training steps: no column step" } };
    make_logs(10);
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(IN_SCRATCH("other.csv"), logs[i].csv);
        expect_fails(logs[i].want, write_pages, IN_SCRATCH("other.csv"));
    }
    expect_fails("nothing: no such file", write_pages, IN_SCRATCH("nothing"));
    EXPECT(report_page_write(scratch), "the logs can be read");
    append(events_path, "{\"event\": \"end\", \"reason\": \"second\"}\n");
    mkdir(STRING("%s.new", page_path), 0700);
    EXPECT(report_page_write(scratch), "an error of writing is ignored");
    rmdir(STRING("%s.new", page_path));
    read_page(NULL);
    put_text(IN_SCRATCH("mine"), "mine");
    EXPECT(!symlink(IN_SCRATCH("mine"), STRING("%s.new", page_path)), "a link in the place of the new page");
    EXPECT(report_page_write(scratch) && !strcmp(text_of(IN_SCRATCH("mine")), "mine"), "not followed");
    put_text(csv_path, "");
    EXPECT(!report_page_write(scratch), "the logs cannot be read");
}

int main(void) {
    scratch_open();
    page_path = IN_SCRATCH("report.html");
    csv_path = IN_SCRATCH("log.csv");
    events_path = IN_SCRATCH("log.jsonl");
    RUN(the_page_holds_the_run);
    RUN(the_page_grows_with_the_logs);
    RUN(a_long_run_is_thinned);
    RUN(what_cannot_be_read_or_written_is_left);
    json_free(data);
    return test_close();
}
