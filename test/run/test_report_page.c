/* test_report_page.c - report.html: its data are those of the logs, thinned, also as these grow; no text of a sample
   ends them; it is written completely or not at all. */
#include "../scratch.h"
#include <sys/stat.h>

/* Limits of a run: points of a curve, and bytes at the end of log.jsonl. */
enum { PAGE_POINTS = 1000, PAGE_EVENT_BYTES = 1 << 16 };

static const char begin[] = "<script type=\"application/json\" id=\"data\">\n", end[] = "</script>\n";
static char *page_path, *csv_path, *events_path;

/* As a run does. Returns 0 when it reports an error. */
static int report_page_write(const char *out) {
    return !system(STRING("'%s' --live '%s' 2> /dev/null", built("curves"), out));
}

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

static Json *data;          /* data of the page that was read last */
static const Json *run;     /* the only one in it */

static const Json *element(const Json *array, int n) {
    const Json *child = array->child;
    while (child && n--) child = child->next;
    REQUIRE(child, "no element %d", n);
    return child;
}

/* Reads the page, which its data end. */
static void read_page(void) {
    FileMap map = file_map(page_path);
    const char *html = (const char *)map.bytes, *text = memmem(html, (size_t)map.size, begin, strlen(begin));
    const char *stop = text ? memmem(text, (size_t)(html + map.size - text), end, strlen(end)) : NULL;
    REQUIRE(stop && stop + strlen(end) == html + map.size, "want one %s, at the end", end);
    text += strlen(begin);
    REQUIRE(!memchr(text, '<', (size_t)(stop - text)), "\"<\" in the data");
    data = parsed(text, (size_t)(stop - text), "report.html");
    file_unmap(map);
    run = json_member(data, "runs", JSON_ARRAY)->child;
    EXPECT(json_find(data, "live")->type == JSON_TRUE, "live");
}

static const char *events_shown(void) { return json_string(run, "log.jsonl"); }

/* Behind the names of the columns. */
static int points(void) { return json_member(run, "points", JSON_ARRAY)->count - 1; }

/* The value of a point, NaN = null. */
static double value_at(int n, const char *name) {
    const Json *rows = json_member(run, "points", JSON_ARRAY);
    int column = 0;
    for (const Json *at = element(rows, 0)->child; strcmp(at->text, name); at = at->next, column++)
        REQUIRE(at->next, "no column %s", name);
    const Json *value = element(element(rows, n + 1), column);
    return value->type == JSON_NULL ? NAN : json_real(value);
}

TEST(the_page_holds_the_run) {
    make_logs(0);
    report_page_write(scratch);
    read_page();
    EXPECT(points() == 0 && !*events_shown(), "the start");
    append_rows(1, 41);
    append(events_path, "{\"event\": \"run\"}\n{\"event\": \"warning\", \"step\": 3, \"message\": \"]}]\"}\n"
        "{\"event\": \"sample\", \"step\": 40, \"text\": \"</script><!-- \\\"quoted\\\" \\\\ \\ufffd \xc3\xa9 "
        "\\u0001\"}\n"
        "{\"event\": \"end\", \"step\": 40, \"reason\": \"SIGTERM </script>\"}\n");
    report_page_write(scratch);
    read_page();
    EXPECT(!strcmp(json_string(run, "name"), strrchr(scratch, '/') + 1), "name %s", json_string(run, "name"));
    EXPECT(!strcmp(json_string(run, "settings.txt"), text_of(IN_SCRATCH("settings.txt"))), "%s",
           json_string(run, "settings.txt"));
    EXPECT(!strcmp(events_shown(), text_of(events_path)), "events: %s", events_shown());
    for (int i = 0; i < 41; i++)
        EXPECT(value_at(i, "step") == i + 1 && value_at(i, "norm") == (i + 1) % 3 && isnan(value_at(i, "power_w")) &&
               value_at(i, "loss_max") == value_at(i, "loss") && isnan(value_at(i, "val_loss")) == !!((i + 1) % 10) &&
               fabs(value_at(i, "loss") / loss_of(i + 1) - 1) < 1e-8, "point %d", i);
    EXPECT(points() == 41 && value_at(39, "val_loss") == 7 && value_at(39, "tokens") == 400, "%d points", points());
    EXPECT(!file_exists(STRING("%s.new", page_path)), "a temporary file is left");
}

/* Rows that are half written are read when they are whole; damaged ones are left out. */
TEST(the_page_grows_with_the_logs) {
    static const char zeros[] = "{\"event\": \"warning\"}\n\0\0\0\xff\n{\"event\": \"resume\", \"st";
    make_logs(40);
    put(events_path, zeros, sizeof zeros - 1);
    append(csv_path, "41,24");
    report_page_write(scratch);
    read_page();
    EXPECT(points() == 40, "%d points", points());
    EXPECT(!strcmp(events_shown(), "{\"event\": \"warning\"}\n   \xef\xbf\xbd\n{\"event\": \"resume\", \"st"), "%s",
           events_shown());
    append(csv_path, ".5,,nan,1e400,\n,1,,,,,,,\n42,x,0x,1 2,,,,,\n43,1\n44,1,1,1,1,1,1,1,1,1\n45,3,,,,,,,\r\n");
    append(csv_path, "46,3,\n");
    report_page_write(scratch);
    read_page();
    EXPECT(points() == 42 && value_at(40, "step") == 42 && value_at(41, "loss") == 3, "%d points", points());
    for (int c = 0; c < 3; c++) EXPECT(isnan(value_at(40, (const char *[]){ "seconds", "norm", "loss" }[c])), "%d", c);
}

/* At most PAGE_POINTS points with the mean, minimum and maximum of their steps; a bounded file. */
TEST(a_long_run_is_thinned) {
    const int64_t steps = 200000;
    double sum = 0, mean = 0, all = 0;
    make_logs(steps);
    for (int64_t step = 1; step <= steps; step++) sum += loss_of(step);
    FILE *events = fopen(events_path, "w");
    for (int i = 0; events && i < 9; i++) {
        fprintf(events, "{\"event\": \"sample\", \"step\": %d, \"text\": \"x", i);
        for (int k = 0; k < 50000; k++) fputs(i % 2 ? "xx" : "\xc3\xa9", events);
        fputs("\"}\n", events);
    }
    REQUIRE(events && !fclose(events), "cannot write the events");
    report_page_write(scratch);
    read_page();
    for (int i = 0; i < points(); i++) {
        double n = value_at(i, "step") - (i ? value_at(i - 1, "step") : 0), loss = value_at(i, "loss");
        mean += n * loss;
        all += n;
        EXPECT(value_at(i, "loss_min") <= loss && loss <= value_at(i, "loss_max"), "point %d", i);
        EXPECT(value_at(i, "val_loss") == (i ? 7 : 6), "the lowest val loss of point %d", i);
    }
    EXPECT(points() == (steps + 255) / 256 && value_at(0, "step") == 256, "%d points", points());
    EXPECT(all == (double)steps && value_at(points() - 1, "tokens") == 10.0 * (double)steps, "%g steps", all);
    EXPECT(fabs(mean / sum - 1) < 1e-8, "mean loss %g, want %g", mean / all, sum / all);
    EXPECT(value_at(0, "loss_max") == 1000 && value_at(points() - 1, "loss_min") == loss_of(steps), "the extremes");
    const char *events_end = strchr(text_of(events_path), 0);
    const char *shown = events_shown() + strlen("\xef\xbf\xbd");            /* half a letter */
    const size_t size = strlen(shown);
    EXPECT(size == PAGE_EVENT_BYTES - 1 && !strcmp(shown, events_end - size), "the last events");
    struct stat info;
    EXPECT(!stat(page_path, &info) && info.st_size < 700000, "%lld bytes", (long long)info.st_size);
}

/* No error ends the run; the last whole page stays. Logs that are none: test_log, test_scripts. */
TEST(what_cannot_be_read_or_written_is_left) {
    make_logs(10);
    EXPECT(report_page_write(scratch), "the logs can be read");
    append(events_path, "{\"event\": \"end\", \"reason\": \"second\"}\n");
    mkdir(STRING("%s.new", page_path), 0700);
    EXPECT(report_page_write(scratch), "an error of writing is ignored");
    rmdir(STRING("%s.new", page_path));
    read_page();
    EXPECT(!*events_shown(), "the page is the one before");
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
    return test_all();
}
