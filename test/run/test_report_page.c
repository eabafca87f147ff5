/* test_report_page.c - report.html: its data are those of the logs, thinned, also as these grow; no text of a sample
   ends them; it is there as a whole or not at all. */
#include "../scratch.h"
#include <math.h>
#include <sys/stat.h>
#include "../../llmc/base/json.h"
#include "../../llmc/report/report_page.h"

static const char begin[] = "<script type=\"application/json\" id=\"runs\">\n", end[] = "</script>\n";
static char *page_path, *csv_path, *events_path;

static void append(const char *path, const char *text) {
    FILE *file = fopen(path, "a");
    if (!file || fputs(text, file) < 0 || fclose(file)) { perror(path); exit(2); }
}

static double loss_of(int64_t step) { return 1000.0 / (double)step; }

/* Rows in another order of columns than the program's, and with one more; every tenth step is validated. */
static void append_rows(int64_t first, int64_t last) {
    FILE *file = fopen(csv_path, "a");
    if (!file) { perror(csv_path); exit(2); }
    if (first == 1) fputs("step,loss,seconds,norm,tokens,val_loss,throttle,lr,tokens_per_s\n", file);
    for (int64_t step = first; step <= last; step++)
        fprintf(file, "%lld,%.9g,%g,%d,%lld,%s,none,0.001,500.0\n", (long long)step, loss_of(step), (double)step / 2,
                (int)(step % 3), 10 * (long long)step, step % 10 ? "" : "7");
    fclose(file);
}

static void make_logs(int64_t last) {
    unlink(csv_path), unlink(events_path), unlink(page_path);
    append_rows(1, last);
    put_text(IN_SCRATCH("settings.txt"), "# train_gpt 0, \"cpu\"\nlr = 0.001\nprompt = \"</script>\"\n");
}

/* The data of the page, which end it; free with json_free. */
static Json *read_page(void) {
    FileMap map = file_map(page_path);
    const char *html = (const char *)map.bytes, *data = memmem(html, (size_t)map.size, begin, strlen(begin));
    const char *stop = data ? memmem(data, (size_t)(html + map.size - data), end, strlen(end)) : NULL;
    REQUIRE(stop && stop + strlen(end) == html + map.size, "want one %s, at the end", end);
    REQUIRE(!memchr(data + strlen(begin), '<', (size_t)(stop - data) - strlen(begin)), "\"<\" in the data");
    Json *page = json_parse(data + strlen(begin), (size_t)(stop - data) - strlen(begin), "report.html");
    REQUIRE(json_member(page, "runs", JSON_ARRAY)->count == 1, "want one run");
    file_unmap(map);
    return page;
}

static const Json *run_of(const Json *page) { return json_find(page, "runs")->child; }

static const Json *element(const Json *array, int n) {
    const Json *child = array->child;
    while (child && n--) child = child->next;
    REQUIRE(child, "no element %d", n);
    return child;
}

static int count_of(const Json *run, const char *rows) { return json_member(run, rows, JSON_ARRAY)->count; }

/* Row n (-1 = the last) of rows, validations or last; NaN = null. */
static double value_at(const Json *run, const char *rows, int n, const char *column) {
    const Json *names = json_member(run, "columns", JSON_ARRAY), *list = json_member(run, rows, JSON_ARRAY);
    int c = 0;
    while (strcmp(element(names, c)->text, column)) c++;
    const Json *value = element(element(list, n < 0 ? list->count - 1 : n), c);
    return value->type == JSON_NULL ? NAN : json_real(value);
}

/* ended: whether the run has; what the page says of it. */
static void expect_state(const Json *page, const char *status) {
    const Json *value = json_find(run_of(page), "status");
    EXPECT(json_find(page, "live")->type == (status ? JSON_FALSE : JSON_TRUE), "live");
    EXPECT(status ? value->type == JSON_STRING && !strcmp(value->text, status) : value->type == JSON_NULL, "status %s",
           json_text(value));
}

static void the_page_holds_the_run(void) {
    ReportPage page;
    make_logs(0);
    report_page_open(&page, scratch);
    Json *data = read_page();
    expect_state(data, NULL);
    EXPECT(count_of(run_of(data), "rows") == 0 && count_of(run_of(data), "last") == 0, "the start");
    json_free(data);
    append_rows(1, 40);
    append(events_path, "{\"event\": \"run\"}\n{\"event\": \"warning\", \"step\": 3, \"message\": \"]}]\"}\n"
        "{\"event\": \"sample\", \"step\": 40, \"text\": \"</script><!-- \\\"quoted\\\" \\\\ \\ufffd \xc3\xa9 "
        "\\u0001\"}\n"
        "{\"event\": \"end\", \"step\": 40, \"reason\": \"SIGTERM </script>\"}\n");
    report_page_close(&page);
    data = read_page();
    const Json *run = run_of(data), *notes = json_member(run, "notes", JSON_ARRAY), *sample = element(notes, 1);
    expect_state(data, "SIGTERM </script>");
    EXPECT(!strcmp(json_string(run, "name"), strrchr(scratch, '/') + 1), "name %s", json_string(run, "name"));
    EXPECT(!strcmp(json_string(run, "settings"), text_of(IN_SCRATCH("settings.txt"))), "%s",
           json_string(run, "settings"));
    EXPECT(notes->count == 2 && !strcmp(json_string(notes->child, "kind"), "warning"), "%d notes", notes->count);
    EXPECT(!strcmp(json_string(sample, "text"), "</script><!-- \"quoted\" \\ \xef\xbf\xbd \xc3\xa9 \x01"), "sample: %s",
           json_string(sample, "text"));
    EXPECT(json_integer(json_find(sample, "step"), 0, 100) == 40, "its step");
    for (int i = 0; i < 40; i++)
        EXPECT(value_at(run, "rows", i, "step") == i + 1 && value_at(run, "rows", i, "norm") == (i + 1) % 3 &&
               value_at(run, "rows", i, "loss_max") == value_at(run, "rows", i, "loss") &&
               fabs(value_at(run, "rows", i, "loss") / loss_of(i + 1) - 1) < 1e-8, "row %d", i);
    EXPECT(count_of(run, "rows") == 40 && count_of(run, "validations") == 4, "%d rows", count_of(run, "rows"));
    EXPECT(isnan(value_at(run, "rows", 4, "power_w")), "unknown power");
    EXPECT(value_at(run, "validations", 3, "val_loss") == 7 && value_at(run, "validations", 3, "tokens") == 400,
           "validation");
    EXPECT(value_at(run, "last", 0, "loss") == 25 && isnan(value_at(run, "last", 0, "val_loss")), "the last step");
    EXPECT(!file_exists(STRING("%s.new", page_path)), "a temporary file is left");
    json_free(data);
}

/* Lines that are half written are read when they are whole. */
static void the_page_grows_with_the_logs(void) {
    ReportPage page;
    make_logs(40);
    append(events_path, "{\"event\": \"end\", \"reason\": \"done\"}\n");
    append(csv_path, "41,24");
    report_page_open(&page, scratch);
    Json *data = read_page();
    expect_state(data, "done");
    EXPECT(count_of(run_of(data), "rows") == 40, "%d rows", count_of(run_of(data), "rows"));
    json_free(data);
    append(csv_path, ".5,,nan,1e400,\n,1\n42,x,0x,1 2\r\n");
    append(events_path, "{\"event\": \"resume\", \"st");
    report_page_update(&page);
    data = read_page();
    EXPECT(count_of(run_of(data), "rows") == 40, "not due");
    json_free(data);
    page.due_s = 0;
    report_page_update(&page);
    append(events_path, "ep\": 41}\n");
    page.due_s = 0;
    report_page_update(&page);
    data = read_page();
    const Json *run = run_of(data);
    expect_state(data, NULL);
    EXPECT(count_of(run, "rows") == 42 && value_at(run, "rows", 40, "loss") == 24.5, "%d rows", count_of(run, "rows"));
    for (int c = 0; c < 3; c++) {
        const char *name = (const char *[]){ "seconds", "norm", "tokens" }[c];
        EXPECT(isnan(value_at(run, "rows", 40, name)) && isnan(value_at(run, "rows", 41, name)), "%s", name);
    }
    json_free(data);
    report_page_close(&page);
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
    if (!events || fclose(events)) { perror("events"); exit(2); }
    ReportPage page;
    report_page_open(&page, scratch);
    report_page_close(&page);
    Json *data = read_page();
    const Json *run = run_of(data);
    const int count = count_of(run, "rows");
    for (int i = 0; i < count; i++) {
        double n = value_at(run, "rows", i, "step") - (i ? value_at(run, "rows", i - 1, "step") : 0);
        double low = value_at(run, "rows", i, "loss_min"), high = value_at(run, "rows", i, "loss_max");
        double loss = value_at(run, "rows", i, "loss");
        mean += n * loss;
        all += n;
        EXPECT(low <= loss && loss <= high, "row %d: %g, %g, %g", i, low, loss, high);
    }
    EXPECT(count > PAGE_POINTS / 2 && count <= PAGE_POINTS, "%d points", count);
    EXPECT(all == (double)steps && value_at(run, "rows", -1, "tokens") == 10.0 * (double)steps, "%g steps", all);
    EXPECT(fabs(mean / sum - 1) < 1e-8, "mean loss %g, want %g", mean / all, sum / all);
    EXPECT(count_of(run, "last") == 1 && value_at(run, "last", 0, "step") == (double)steps, "the last step");
    EXPECT(count_of(run, "validations") <= PAGE_POINTS, "%d validations", count_of(run, "validations"));
    EXPECT(count_of(run, "notes") == PAGE_NOTES, "%d notes", count_of(run, "notes"));
    const char *note = json_string(element(json_find(run, "notes"), 0), "text");
    EXPECT(strlen(note) == 3999 + strlen(" ..."), "a note of %d bytes, cut after a character", (int)strlen(note));
    struct stat info;
    EXPECT(!stat(page_path, &info) && info.st_size < 700000, "%lld bytes", (long long)info.st_size);
    json_free(data);
}

static void open_run(void *path) {
    PageRun run;
    page_run_open(&run, path);
}

/* No error ends the run; the last whole page stays. */
static void what_cannot_be_read_or_written_is_left(void) {
    static const struct { const char *csv, *want; } logs[] = {
        { "", "log.csv: empty" }, { "step,loss", "log.csv: empty" },
        { "step,norm\n", "log.csv: not a log of training steps: no column loss" },
        { "lr = 3\n", "log.csv: not a log of training steps: no column step" } };
    ReportPage page;
    for (int i = 0; i < COUNT(logs); i++) {
        put_text(csv_path, logs[i].csv);
        expect_fails(logs[i].want, open_run, scratch);
    }
    expect_fails("nothing: no such run", open_run, IN_SCRATCH("nothing"));
    make_logs(10);
    report_page_open(&page, scratch);
    append(events_path, "{\"event\": \"end\", \"reason\": \"second\"}\n");
    mkdir(STRING("%s.new", page_path), 0700);
    report_page_close(&page);
    rmdir(STRING("%s.new", page_path));
    Json *data = read_page();
    expect_state(data, NULL);
    json_free(data);
    append(events_path, "damaged\n");
    report_page_open(&page, scratch);
    EXPECT(!page.path, "the page ends");
    report_page_update(&page);
    report_page_close(&page);
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
    return test_close();
}
