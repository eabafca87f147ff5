/* test_report_page.c - report.html: its data are those of the log, thinned, also after a resume; no text of a
   sample ends them; it is there as a whole or not at all. */
#include "../scratch.h"
#include <math.h>
#include <sys/stat.h>
#include "../../llmc/base/json.h"
#include "../../llmc/report/report_page.h"

static const char begin[] = "<script type=\"application/json\" id=\"runs\">\n", end[] = "</script>\n";
static char *page_path;

static StepReport step_of(int64_t step) {
    return (StepReport){ .step = step, .tokens = 10 * step, .loss = 1000.0 / (double)step, .norm = (double)(step % 3),
                         .learning_rate = 1e-3, .tokens_per_second = 500, .seconds = (double)step / 2,
                         .val_loss = step % 10 ? NAN : 7 };
}

/* The logs that log_open would leave: rows up to step last, in another order of columns and with one more. */
static void make_logs(int64_t last) {
    FILE *file = fopen(IN_SCRATCH("log.csv"), "w");
    if (!file) { perror("log.csv"); exit(2); }
    fputs("step,loss,seconds,norm,tokens,val_loss,throttle,lr,tokens_per_s\n", file);
    for (int64_t step = 1; step <= last; step++) {
        StepReport s = step_of(step);
        fprintf(file, "%lld,%.9g,%.3f,%.9g,%lld,%s,none,%.9g,%.1f\n", (long long)step, s.loss, s.seconds, s.norm,
                (long long)s.tokens, isnan(s.val_loss) ? "" : "7", s.learning_rate, s.tokens_per_second);
    }
    fclose(file);
    const char settings[] = "# train_gpt 0, \"cpu\"\nlr = 0.001\nprompt = \"</script>\"\n";
    put(IN_SCRATCH("settings.txt"), settings, strlen(settings));
}

static ReportPage page;

static void open_page(int64_t resume_step) {
    memset(&page, 0, sizeof page);
    report_page_open(&page, scratch, 100, resume_step < 0 ? NULL : &(ResumeInfo){ .step = resume_step });
}

/* The data of the page, which end it; free with json_free. size: of the file. */
static Json *read_page(int64_t *size) {
    FileMap map = file_map(page_path);
    const char *html = (const char *)map.bytes, *data = memmem(html, (size_t)map.size, begin, strlen(begin));
    const char *stop = data ? memmem(data, (size_t)(html + map.size - data), end, strlen(end)) : NULL;
    REQUIRE(stop && stop + strlen(end) == html + map.size, "want one %s, at the end", end);
    REQUIRE(!memchr(data + strlen(begin), '<', (size_t)(stop - data) - strlen(begin)), "\"<\" in the data");
    Json *runs = json_parse(data + strlen(begin), (size_t)(stop - data) - strlen(begin), "report.html");
    REQUIRE(runs->count == 1 && runs->child->type == JSON_OBJECT, "want one run");
    if (size) *size = map.size;
    file_unmap(map);
    return runs;
}

static const Json *element(const Json *array, int n) {
    const Json *child = array->child;
    while (child && n--) child = child->next;
    REQUIRE(child, "no element %d", n);
    return child;
}

/* Of row n (-1 = the last) of rows or validations; NaN = null. */
static double value_at(const Json *run, const char *rows, int n, const char *column) {
    const Json *names = json_member(run, "columns", JSON_ARRAY), *list = json_member(run, rows, JSON_ARRAY);
    const Json *row = element(list, n < 0 ? list->count - 1 : n);
    int c = 0;
    while (strcmp(element(names, c)->text, column)) c++;
    const Json *value = element(row, c);
    return value->type == JSON_NULL ? NAN : json_real(value);
}
static int count_of(const Json *run, const char *rows) { return json_member(run, rows, JSON_ARRAY)->count; }

static void the_page_holds_the_run(void) {
    make_logs(0);
    open_page(-1);
    Json *runs = read_page(NULL);
    EXPECT(count_of(runs->child, "rows") == 0 && count_of(runs->child, "last") == 0 &&
           !strcmp(json_string(runs->child, "status"), "running"), "the start");
    json_free(runs);
    for (int64_t step = 1; step <= 40; step++) {
        StepReport s = step_of(step);
        report_page_step(&page, &s);
    }
    report_page_note(&page, 40, "sample", "</script><!-- \"quoted\" \\ \xff \xc3\xa9 \x01");
    report_page_close(&page, "SIGTERM");
    runs = read_page(NULL);
    const Json *run = runs->child, *note = element(json_member(run, "notes", JSON_ARRAY), 0);
    EXPECT(!strcmp(json_string(run, "status"), "SIGTERM"), "status %s", json_string(run, "status"));
    EXPECT(!strcmp(json_string(run, "settings"), "# train_gpt 0, \"cpu\"\nlr = 0.001\nprompt = \"</script>\"\n"),
           "settings %s", json_string(run, "settings"));
    EXPECT(!strcmp(json_string(note, "text"), "</script><!-- \"quoted\" \\ \xef\xbf\xbd \xc3\xa9 \x01"), "sample: %s",
           json_string(note, "text"));
    EXPECT(count_of(run, "rows") == 40 && count_of(run, "validations") == 4, "%d rows", count_of(run, "rows"));
    EXPECT(value_at(run, "rows", 4, "loss") == 200 && value_at(run, "rows", 4, "loss_max") == 200, "step 5");
    EXPECT(isnan(value_at(run, "rows", 4, "power_w")), "unknown power");
    EXPECT(value_at(run, "validations", 3, "val_loss") == 7 && value_at(run, "validations", 3, "tokens") == 400,
           "validation");
    EXPECT(!file_exists(STRING("%s.new", page_path)), "a temporary file is left");
    json_free(runs);
}

/* From log.csv, whatever the page had; its notes up to the step. */
static void a_resume_continues_the_page(void) {
    make_logs(40);
    open_page(-1);
    for (int64_t step = 20; step <= 80; step += 20) report_page_note(&page, step, "sample", STRING("at %d", (int)step));
    report_page_close(&page, "killed");
    make_logs(40);
    open_page(40);
    report_page_note(&page, 41, "warning", "new");
    for (int64_t step = 41; step <= 50; step++) {
        StepReport s = step_of(step);
        report_page_step(&page, &s);
    }
    report_page_close(&page, "done");
    Json *runs = read_page(NULL);
    const Json *run = runs->child, *notes = json_member(run, "notes", JSON_ARRAY);
    EXPECT(value_at(run, "last", 0, "loss") == 20 && isnan(value_at(run, "last", 0, "val_loss")), "the last step");
    EXPECT(count_of(run, "rows") == 50 && value_at(run, "rows", -1, "step") == 50, "%d rows", count_of(run, "rows"));
    for (int i = 0; i < 50; i++) {
        StepReport s = step_of(i + 1);
        EXPECT(value_at(run, "rows", i, "step") == i + 1 && value_at(run, "rows", i, "norm") == s.norm &&
               fabs(value_at(run, "rows", i, "loss") / s.loss - 1) < 1e-5, "row %d", i);
    }
    EXPECT(count_of(run, "validations") == 5, "%d validations", count_of(run, "validations"));
    EXPECT(notes->count == 3 && !strcmp(json_string(element(notes, 1), "text"), "at 40") &&
           !strcmp(json_string(element(notes, 2), "kind"), "warning"), "%d notes", notes->count);
    json_free(runs);

    /* a page that is damaged, cut or none is replaced */
    static const char *const bad[] = { "", "x", "<script type=\"application/json\" id=\"runs\">\n",
        "<script type=\"application/json\" id=\"runs\">\n[{\"notes\": [{\"step\": \"x\"}]}]</script>\n",
        "<script type=\"application/json\" id=\"runs\">\n[{\"notes\": [,\n</script>\n",
        "<script type=\"application/json\" id=\"runs\">\n[]\n</script>\n" };
    for (int i = 0; i < COUNT(bad); i++) {
        put(page_path, bad[i], strlen(bad[i]));
        open_page(40);
        report_page_close(&page, "done");
        runs = read_page(NULL);
        EXPECT(count_of(runs->child, "rows") == 40 && count_of(runs->child, "notes") == 0, "bad page %d", i);
        json_free(runs);
    }
}

/* A million steps: at most PAGE_POINTS points with the mean, minimum and maximum of their steps; a bounded file. */
static void a_long_run_is_thinned(void) {
    const int64_t steps = 1000000;
    make_logs(0);
    open_page(-1);
    page.due_s = INFINITY;
    double sum = 0;
    for (int64_t step = 1; step <= steps; step++) {
        StepReport s = step_of(step);
        report_page_step(&page, &s);
        sum += s.loss;
    }
    for (int i = 0; i < 3 * PAGE_NOTES; i++) {
        char *text = calloc(1, 100001);
        memset(text, i % 2 ? 'x' : '\xa9', 100000);
        report_page_note(&page, i, "sample", text);
        free(text);
    }
    report_page_close(&page, "done");
    int64_t size;
    Json *runs = read_page(&size);
    const Json *run = runs->child;
    int count = count_of(run, "rows");
    double mean = 0, all = 0;
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
    EXPECT(fabs(mean / sum - 1) < 1e-5, "mean loss %g, want %g", mean / all, sum / all);      /* six digits each */
    EXPECT(fabs(value_at(run, "last", 0, "loss") * (double)steps / 1000 - 1) < 1e-5 && count_of(run, "last") == 1 &&
           value_at(run, "last", 0, "step") == (double)steps, "the last step %g", value_at(run, "last", 0, "loss"));
    EXPECT(count_of(run, "validations") <= PAGE_POINTS, "%d validations", count_of(run, "validations"));
    EXPECT(count_of(run, "notes") == PAGE_NOTES, "%d notes", count_of(run, "notes"));
    EXPECT(size < 700000, "%lld bytes", (long long)size);
    printf("  %lld bytes\n", (long long)size);
    json_free(runs);
}

/* No error of the page ends the run, and the last whole page stays. */
static void what_cannot_be_written_is_left(void) {
    make_logs(10);
    open_page(10);
    report_page_close(&page, "first");
    open_page(10);
    mkdir(STRING("%s.new", page_path), 0700);
    report_page_close(&page, "second");
    Json *runs = read_page(NULL);
    EXPECT(!strcmp(json_string(runs->child, "status"), "running"), "status %s", json_string(runs->child, "status"));
    json_free(runs);
    rmdir(STRING("%s.new", page_path));
}

int main(void) {
    scratch_open();
    page_path = IN_SCRATCH("report.html");
    RUN(the_page_holds_the_run);
    RUN(a_resume_continues_the_page);
    RUN(a_long_run_is_thinned);
    RUN(what_cannot_be_written_is_left);
    return test_close();
}
