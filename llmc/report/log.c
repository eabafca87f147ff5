#include "log.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"
#include "../base/terminal.h"
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Lines that are appended */

static void log_file_open(LogFile *file, const char *path) {
    *file = (LogFile){ .path = format_string("%s", path), .fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC) };
    REQUIRE(file->fd >= 0, "%s: cannot open to append: %s", path, strerror(errno));
    file->lines = string_open(&file->pending, &file->pending_bytes, path);
}

int log_file_flush(LogFile *file, int sync) {
    if (!file->path) return 0;
    int error = 0;
    REQUIRE(!fflush(file->lines), "out of memory: %zu bytes of %s, which could not be written", file->pending_bytes,
            file->path);
    while (!error && file->written_bytes < file->pending_bytes) {
        ssize_t written = write(file->fd, file->pending + file->written_bytes,
                                file->pending_bytes - file->written_bytes);
        if (written > 0) file->written_bytes += (size_t)written;
        else error = written ? errno : EIO;
    }
    if (!error) {
        rewind(file->lines);
        file->written_bytes = file->pending_bytes = 0;
        if (sync && fsync(file->fd) && errno != EINVAL) error = errno;       /* EINVAL: /dev/null */
    }
    return file->error = error;
}

void log_file_close(LogFile *file) {
    if (!file->path) return;
    int error = log_file_flush(file, 0);
    REQUIRE(!error, "%s: cannot write: %s; %zu bytes are lost", file->path, strerror(error),
            file->pending_bytes - file->written_bytes);
    close(file->fd);
    fclose(file->lines);
    free(file->pending);
    free(file->path);
    *file = (LogFile){0};
}

/* ---- Files that a start or a resume writes anew */

typedef struct {
    const RunInfo    *run;
    const ResumeInfo *resume;         /* NULL = a new run */
    Path     path;
    FILE    *file;                    /* PATH.new, which replaces the old file at once and as a whole */
    unsigned columns;                 /* of log.csv: a bit for each value of a row */
    double   seconds;                 /* of the last row that is kept */
    int      is_validated;            /* the validation of the resume's step is among the events that are kept */
} NewFile;

/* A log without a checkpoint to continue from. */
static void rename_old_log(const char *path) {
    if (!file_exists(path)) return;
    char *base = format_string("%s.old", path), *old = file_unused_variant(base, '.');
    file_rename(path, old);
    print_line(stdout, "%s belongs to a run without a checkpoint: renamed to %s", path, old);
    free(base);
    free(old);
}

/* begin writes a new file, keep what a resume needs of the old one; where it fails, the old one stays. */
static void write_anew(NewFile *new, Path path, void (*begin)(NewFile *), void (*keep)(void *)) {
    char why[FAIL_LENGTH], *new_path = format_string("%s.new", path.text);
    new->path = path;
    new->file = file_create(new_path);
    if (!new->resume || !file_exists(path.text)) begin(new);
    else if (fails(keep, new, why)) fail("%s; move the log away to start a new one", why);
    file_close_durably(new->file, new_path);
    file_rename(new_path, path.text);
    free(new_path);
}

static void open_log(LogFile *file, NewFile *new, Path path, void (*begin)(NewFile *), void (*keep)(void *)) {
    if (!new->resume) rename_old_log(path.text);
    write_anew(new, path, begin, keep);
    log_file_open(file, path.text);
}

/* ---- log.csv */

static double positive(double value) { return value > 0 ? value : NAN; }

/* The values of a row: the numbers and throttle. */
enum { ROW_VALUES = LOG_NUMBERS + 1 };
typedef struct { LogValue value[ROW_VALUES]; } RowValues;

static RowValues values_of_step(const StepReport *s) {
#define VALUE(name, format, value) { #name, format, .number = value },
    return (RowValues){ { LOG_COLUMNS(VALUE) { "throttle", .text = s->health.throttle } } };
}

static int is_known(const LogValue *value) { return value->format ? !isnan(value->number) : value->text != NULL; }

/* A bit for each column that can have a value in this run. */
static unsigned known_columns(const RunInfo *run) {
    StepReport full = { .val_loss = run->validates ? 0 : NAN, .health = device_health(),
                        .mfu = run->device->peak_flops[run->config->dtype] > 0 ? 0 : NAN };
    DeviceHealth *h = &full.health;
    if (h->temperature_c > 0 || h->power_w > 0 || h->clock_mhz > 0 || h->throttle)
        *h = (DeviceHealth){ 1, 1, 1, "none", 0 };
    const RowValues row = values_of_step(&full);
    unsigned known = 0;
    for (int i = 0; i < ROW_VALUES; i++) if (is_known(&row.value[i])) known |= 1u << i;
    return known;
}

/* The values of a step, or with NULL the names of the columns. */
static void write_row(FILE *file, unsigned columns, const StepReport *step) {
    const RowValues row = values_of_step(step ? step : &(StepReport){0});
    for (int i = 0; i < ROW_VALUES; i++) {
        const LogValue *value = &row.value[i];
        if (!(columns & 1u << i)) continue;
        if (i > LOG_step) fputc(',', file);
        if (!step)                 fputs(value->name, file);
        else if (!is_known(value)) continue;
        else if (value->format)    fprintf(file, value->format, value->number);
        else                       fputs(value->text, file);
    }
    fputc('\n', file);
}

static void begin_csv(NewFile *new) { write_row(new->file, new->columns, NULL); }

/* Reads the names in the first line: the step first, each at most once. place: of cell n, the index of its value in a
   row. Returns the number of cells; 0 if it is not such a list. */
static int read_header(const FileLine *line, int place[ROW_VALUES]) {
    const RowValues names = values_of_step(&(StepReport){0});
    const char *at = line->text, *name;
    int count = 0;
    unsigned seen = 0;
    for (size_t length; (name = file_next_cell(line, &at, &length)); seen |= 1u << place[count++]) {
        int i = ROW_VALUES - 1;
        while (i >= 0 && (strlen(names.value[i].name) != length || memcmp(names.value[i].name, name, length))) i--;
        if (i < 0 || (i == LOG_step) != (count == 0) || seen & 1u << i) return 0;
        place[count] = i;
    }
    return count;
}

/* Keeps the rows up to the step of the resume, with the columns of the file and of this run, but not a last line
   without a newline: it is half written. */
static void keep_rows(void *argument) {
    NewFile *new = argument;
    const ResumeInfo *resume = new->resume;
    FileMap map = file_map(new->path.text);
    FileLine line = {0};
    int place[ROW_VALUES], cells = 0;
    int64_t step = 0;           /* of the last row */
    if (file_next_line(map, &line) && line.next[-1] == '\n') cells = read_header(&line, place);
    REQUIRE(cells, "%s: not a log of training steps: want the names of columns in the first line, as "
            "step,seconds,tokens,loss", new->path.text);
    for (int i = 0; i < cells; i++) new->columns |= 1u << place[i];
    begin_csv(new);
    while (step < resume->step && file_next_line(map, &line) && line.next[-1] == '\n') {
        struct { const char *text; size_t size; } cell[ROW_VALUES] = {0};
        char val_loss[32];
        const char *at = line.text;
        for (int i = 0; i < cells; i++) cell[place[i]].text = file_next_cell(&line, &at, &cell[place[i]].size);
        const double next = cell_number(cell[LOG_step].text, cell[LOG_step].size);
        REQUIRE(next > (double)step, "%s: damaged: want a row with a step after %" PRId64 ", got %.*s",
                new->path.text, step, line.size < 40 ? (int)line.size : 40, line.text);
        if (next > (double)resume->step) break;
        step = (int64_t)next;
        new->seconds = fmax(new->seconds, cell_number(cell[LOG_seconds].text, cell[LOG_seconds].size));
        if (!cell[LOG_val_loss].size && step == resume->step && !isnan(resume->val_loss)) {
            cell[LOG_val_loss].text = val_loss;
            cell[LOG_val_loss].size = (size_t)snprintf(val_loss, sizeof val_loss, "%.9g", resume->val_loss);
        }
        for (int i = 0; i < ROW_VALUES; i++)
            if (new->columns & 1u << i)
                fprintf(new->file, "%s%.*s", i > LOG_step ? "," : "", (int)cell[i].size,
                        cell[i].size ? cell[i].text : "");
        fputc('\n', new->file);
    }
    if (step < resume->step)
        print_line(stdout, "%s: ends at step %" PRId64 ", the rows up to step %" PRId64 " are missing", new->path.text,
                   step, resume->step);
    file_unmap(map);
}

/* ---- log.jsonl */

/* , "key": value for each that is known. */
static void write_values(FILE *file, const LogValue *values) {
    for (; values->name; values++) {
        if (values->format ? !isfinite(values->number) : !values->text) continue;
        fprintf(file, ", \"%s\": ", values->name);
        if (values->format) fprintf(file, values->format, values->number);
        else                json_write_string(file, values->text);
    }
}

double log_seconds(const Log *log) { return seconds_now() - log->start_s; }

void log_event(Log *log, const char *event, int64_t step, const LogValue *values) {
    if (!log->jsonl.path) return;
    FILE *file = log->jsonl.lines;
    fprintf(file, "{\"event\": \"%s\", \"step\": %" PRId64 ", \"seconds\": %.3f", event, step, log_seconds(log));
    write_values(file, values);
    fputs("}\n", file);
}

static const char *time_text(char text[32]) {
    time_t now = time(NULL);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    return text;
}

static void begin_events(NewFile *new) {
    const RunInfo *run = new->run;
    const GPTConfig *c = run->config;
    FILE *file = new->file;
    char now[32];
    fputs("{\"event\": \"run\"", file);
    write_values(file, (LogValue[]){
        { "time", .text = time_text(now) }, { "version", .text = run->version }, { "command", .text = run->command },
        { "backend", .text = backend_name }, { "device", .text = run->device->name },
        { "ranks", "%.0f", .number = comm_size }, { "zero", "%.0f", .number = comm_size > 1 },
        { "context_parallel", "%.0f", .number = c->context_parallel },
        { "layers", "%.0f", .number = c->L }, { "heads", "%.0f", .number = c->NH },
        { "channels", "%.0f", .number = c->C }, { "context", "%.0f", .number = c->T },
        { "vocabulary", "%.0f", .number = c->V },
        { "parameters", "%.0f", .number = (double)gpt_parameter_count(c) },
        { "floor", "%.6f", .number = run->val_floor }, {0} });
    fputs(", \"settings\": {", file);
    const char *separator = "";
    for (const Option *o = run->options; o->name || o->help; o++) {
        char text[256];
        if (!option_is_setting(o)) continue;
        const char *value = option_text(o, text);
        fprintf(file, "%s\"%s\": ", separator, o->name);
        if (o->type == OPTION_FLAG) fputs(*value == 'y' ? "true" : "false", file);
        else if (o->type == OPTION_INTEGER || o->type == OPTION_REAL) fputs(value, file);
        else json_write_string(file, value);
        separator = ", ";
    }
    fputs("}}\n", file);
}

/* Keeps the events up to the step of the resume and those without a step, but not a last line without a newline. */
static void keep_events(void *argument) {
    NewFile *new = argument;
    const int64_t last = new->resume->step;
    FileMap map = file_map(new->path.text);
    for (FileLine line = {0}; file_next_line(map, &line) && line.next[-1] == '\n'; ) {
        Json *event = json_parse_line(&line, new->path.text);
        if (!event) continue;
        const char *kind = json_string(event, "event");
        const Json *step = json_find(event, "step");
        const int64_t number = step ? json_integer(step, 0, INT64_MAX) : 0;
        if (number <= last) fwrite(line.text, 1, (size_t)(line.next - line.text), new->file);
        if (number == last && !strcmp(kind, "validation")) new->is_validated = 1;
        json_free(event);
    }
    file_unmap(map);
}

/* ---- settings.txt, and the banner */

/* "348", "3.3M", "124M", "1.6B" */
static const char *count_text(double count, char text[32]) {
    static const char *const units[] = { "", "K", "M", "B" };
    int u = 0;
    for (; u < 3 && count >= 999.5; u++) count /= 1000;
    snprintf(text, 32, "%.*f%s", u && count < 9.95, count, units[u]);
    return text;
}

static char *model_text(const RunInfo *run) {
    const GPTConfig *c = run->config;
    char *text, count[32];
    size_t size;
    FILE *file = string_open(&text, &size, "the model's line");
    fprintf(file, "%d layers, %d heads, %d channels, context %d", c->L, c->NH, c->C, c->T);
    if (c->context_parallel > 1) fprintf(file, " (%d on each of %d ranks)", gpt_local_tokens(c), c->context_parallel);
    fprintf(file, ", vocabulary %d, %s parameters, %s%s, %s attention", c->V,
            count_text((double)gpt_parameter_count(c), count), dtype_name(c->dtype),
            c->dtype == F32 && !device_refuse_dtype(BF16) ? " (--dtype bf16 is faster)" : "", run->attention);
    if (c->dropout > 0) fprintf(file, ", dropout %g", c->dropout);
    fclose(file);
    return text;
}

void log_describe(FILE *file, const RunInfo *run, int as_comments) {
    char ranks[16] = "";
    if (comm_size > 1) snprintf(ranks, sizeof ranks, "%d x ", comm_size);
    const struct { const char *name; char *text; } facts[] = {
        { "command", as_comments ? format_string("%s", run->command) : NULL },
        { "output", as_comments || !run->out ? NULL : format_string("%s", run->out) },
        { "device", format_string("%s%s, %s, %s", ranks, backend_name, run->device->name, run->device->detail) },
        { "model", model_text(run) },
        { "data", as_comments ? NULL : format_string("%s", run->data) },
        { "memory", format_string("%s%s", run->memory, comm_size > 1 ? " on each" : "") } };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (!facts[i].text) continue;
        make_printable(facts[i].text);
        fprintf(file, as_comments ? "# %s: %s\n" : "%-7s %s\n", facts[i].name, facts[i].text);
        free(facts[i].text);
    }
}

/* What follows the comments of both a new file and an old one. */
static void end_settings(NewFile *new) {
    const ResumeInfo *resume = new->resume;
    char now[32];
    if (resume)
        fprintf(new->file, "# resumed at step %" PRId64 ", %s: %s%s%s\n", resume->step, time_text(now),
                new->run->command, resume->changes ? "; changed: " : "", resume->changes ? resume->changes : "");
    options_write(new->file, new->run->options);
}

static void begin_settings(NewFile *new) {
    char now[32];
    fprintf(new->file, "# %s, %s\n", new->run->version, time_text(now));
    log_describe(new->file, new->run, 1);
    if (!isnan(new->run->val_floor)) fprintf(new->file, "# floor: %.6f\n", new->run->val_floor);
    fputs("# --config reads this file, for a new run; --resume reads the options of the checkpoint\n", new->file);
    end_settings(new);
}

static void keep_comments(void *argument) {
    NewFile *new = argument;
    FileMap map = file_map(new->path.text);
    for (FileLine line = {0}; file_next_line(map, &line) && line.next[-1] == '\n'; )
        if (*line.text == '#') fwrite(line.text, 1, (size_t)(line.next - line.text), new->file);
    file_unmap(map);
    end_settings(new);
}

/* ---- All three */

void log_open(Log *log, const char *out, const RunInfo *run, const ResumeInfo *resume) {
    NewFile new = { .run = run, .resume = resume, .columns = known_columns(run) };
    char now[32];
    *log = (Log){ .step = resume ? resume->step : 0 };
    open_log(&log->csv, &new, path_of(out, "log.csv"), begin_csv, keep_rows);
    open_log(&log->jsonl, &new, path_of(out, "log.jsonl"), begin_events, keep_events);
    log->columns = new.columns;
    log->start_s = seconds_now() - new.seconds;
    if (resume)
        log_event(log, "resume", resume->step, (LogValue[]){
            { "time", .text = time_text(now) }, { "command", .text = run->command },
            { "changes", .text = resume->changes }, {0} });
    if (resume && !new.is_validated && !isnan(resume->val_loss))
        log_event(log, "validation", resume->step,
                  (LogValue[]){ { "val_loss", "%.9g", .number = resume->val_loss }, {0} });
    write_anew(&new, path_of(out, "settings.txt"), begin_settings, keep_comments);
}

void log_step(Log *log, const StepReport *step) {
    log->step = step->step;
    log->row = *step;
    if (log->csv.path) write_row(log->csv.lines, log->columns, step);
}

void log_validation(Log *log, int64_t step, double val_loss) {
    LogFile *csv = &log->csv;
    if (!csv->path || log->row.step != step) return;
    char *rows;
    size_t size, before;
    FILE *text = string_open(&rows, &size, csv->path);
    write_row(text, log->columns, &log->row);
    fflush(text);
    before = size;
    log->row.val_loss = val_loss;
    write_row(text, log->columns, &log->row);
    fclose(text);
    fflush(csv->lines);
    const size_t waiting = csv->pending_bytes - csv->written_bytes;
    if (waiting >= before) {
        fseek(csv->lines, -(long)before, SEEK_CUR);
        fwrite(rows + before, 1, size - before, csv->lines);
    } else if (!waiting) {                  /* a descriptor of its own: csv->fd appends */
        const int fd = open(csv->path, O_WRONLY | O_CLOEXEC);
        const off_t end = fd < 0 ? -1 : lseek(fd, -(off_t)before, SEEK_END);
        if (end >= 0 && pwrite(fd, rows + before, size - before, end) < 0) csv->error = errno;
        if (fd >= 0) close(fd);
    }
    free(rows);
}
