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

void log_file_flush(LogFile *file, int sync) {
    if (!file->path) return;
    REQUIRE(!fflush(file->lines), "out of memory: %zu bytes of %s, which could not be written", file->pending_bytes,
            file->path);
    file->error = file_has_name(file->fd, file->path) ? NULL : "it was moved or removed during the run";
    while (!file->error && file->written_bytes < file->pending_bytes) {
        ssize_t written = write(file->fd, file->pending + file->written_bytes,
                                file->pending_bytes - file->written_bytes);
        if (written > 0) file->written_bytes += (size_t)written;
        else file->error = strerror(written ? errno : EIO);
    }
    if (file->error) return;
    rewind(file->lines);
    file->written_bytes = file->pending_bytes = 0;
    if (sync && fsync(file->fd) && errno != EINVAL) file->error = strerror(errno);       /* EINVAL: /dev/null */
}

void log_file_close(LogFile *file) {
    if (!file->path) return;
    log_file_flush(file, 0);
    REQUIRE(!file->error, "%s: cannot write: %s; %zu bytes are lost", file->path, file->error,
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
    LogColumns columns;               /* of log.csv */
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

/* write gets the old file, empty where there is none or the run begins. If it fails, the old file stays. */
static void write_anew(NewFile *new, Path path, void (*write)(NewFile *, FileMap old)) {
    char *new_path = format_string("%s.new", path.text);
    const int has_old = new->resume && file_exists(path.text);
    FileMap old = has_old ? file_map(path.text) : (FileMap){ .bytes = (void *)"" };
    new->path = path;
    new->file = file_create(new_path);
    write(new, old);
    file_unmap(old);
    file_close_durably(new->file, new_path);
    file_rename(new_path, path.text);
    free(new_path);
}

static void open_log(LogFile *file, NewFile *new, Path path, void (*write)(NewFile *, FileMap old)) {
    if (!new->resume) rename_old_log(path.text);
    write_anew(new, path, write);
    *file = (LogFile){ .path = format_string("%s", path.text), .fd = open(path.text, O_WRONLY | O_CLOEXEC) };
    REQUIRE(file->fd >= 0 && lseek(file->fd, 0, SEEK_END) >= 0, "%s: cannot open to append: %s", path.text,
            strerror(errno));
    file->lines = string_open(&file->pending, &file->pending_bytes, path.text);
}

/* ---- log.csv */

static double positive(double value) { return value > 0 ? value : NAN; }

static void write_row(FILE *file, const LogColumns *columns, const StepReport *s) {
#define VALUE(name, format, value) { #name, format, .number = value },
    const LogValue row[LOG_VALUES] = { LOG_COLUMNS(VALUE) { "throttle", .text = s->health.throttle } };
    for (int i = 0; i < columns->count; i++) {
        const LogValue *value = &row[columns->place[i]];
        if (i) fputc(',', file);
        if (!value->format)             fputs(value->text ? value->text : "", file);
        else if (!isnan(value->number)) fprintf(file, value->format, value->number);
    }
    fputc('\n', file);
}

/* A row as it is; added: a number for its empty cell of val_loss, NaN = none. */
static void keep_row(const NewFile *new, const FileLine *line, double added) {
    const char *at = line->text;
    for (int i = 0; i < new->columns.count; i++) {
        size_t size = 0;
        const char *cell = file_next_cell(line, &at, &size);
        fprintf(new->file, "%s%.*s", i ? "," : "", (int)size, size ? cell : "");
        if (!size && new->columns.place[i] == LOG_val_loss && !isnan(added)) fprintf(new->file, "%.9g", added);
    }
    fputc('\n', new->file);
}

/* The names of the columns, and the old rows up to the step of the resume. A new log is one without rows. */
static void write_csv(NewFile *new, FileMap old) {
#define HEADER(name, format, value) #name ","
    static const char header[] = LOG_COLUMNS(HEADER) "throttle\n";
    const int64_t last = new->resume ? new->resume->step : 0;
    LogColumns *columns = &new->columns;
    FileLine line = {0};
    int64_t step = 0, rows = 0;
    double value[LOG_VALUES], next;
    if (!old.size) old = (FileMap){ (const unsigned char *)header, sizeof header - 1 };
    if (log_next_line(old, &line)) *columns = log_read_columns(&line);
    REQUIRE(columns->count && columns->place[0] == LOG_step && !log_has_column(columns, -1), "%s: not a log of "
            "training steps: want the names of columns in the first line, as step,seconds,tokens,loss; move the log "
            "away to start a new one", new->path.text);
    fprintf(new->file, "%.*s\n", (int)line.size, line.text);
    while (log_next_line(old, &line)) {
        next = log_read_row(columns, &line, value);
        if (!(next > (double)step && next <= (double)last)) continue;
        step = (int64_t)next;
        rows++;
        new->seconds = fmax(new->seconds, value[LOG_seconds]);
        keep_row(new, &line, step == last ? new->resume->val_loss : NAN);
    }
    if (rows < last)
        print_line(stdout, "%s: %" PRId64 " of %" PRId64 " rows are missing or damaged", new->path.text, last - rows,
                   last);
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

static const char *time_text(void) {
    static char text[32];
    time_t now = time(NULL);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    return text;
}

static void write_run(const NewFile *new) {
    const RunInfo *run = new->run;
    const GPTConfig *c = run->config;
    FILE *file = new->file;
    fputs("{\"event\": \"run\"", file);
    write_values(file, (LogValue[]){
        { "time", .text = time_text() }, { "version", .text = run->version }, { "command", .text = run->command },
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

/* The run, or the old events up to the step of the resume and those without a step. */
static void write_events(NewFile *new, FileMap old) {
    const int64_t last = new->resume ? new->resume->step : 0;
    LogEvent event;
    int damaged = 0;
    if (!old.size) write_run(new);
    for (FileLine line = {0}; log_next_line(old, &line); ) {
        const int is_event = log_read_event(&line, &event);
        REQUIRE(is_event || line.number > 1, "%s: not a log of events: want {\"event\": ...} in the first line; move "
                "the log away to start a new one", new->path.text);
        damaged += !is_event;
        if (!is_event) continue;
        if (event.step <= last) fwrite(line.text, 1, (size_t)(line.next - line.text), new->file);
        if (event.step == last && !strcmp(event.kind, "validation")) new->is_validated = 1;
        json_free(event.json);
    }
    if (damaged) print_line(stdout, "%s: %d damaged lines are left out", new->path.text, damaged);
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

static void write_settings(NewFile *new, FileMap old) {
    const RunInfo *run = new->run;
    const ResumeInfo *resume = new->resume;
    if (!old.size) {
        fprintf(new->file, "# %s, %s\n", run->version, time_text());
        log_describe(new->file, run, 1);
        if (!isnan(run->val_floor)) fprintf(new->file, "# floor: %.6f\n", run->val_floor);
        fputs("# --config reads this file, for a new run; --resume reads the options of the checkpoint\n", new->file);
    }
    for (FileLine line = {0}; log_next_line(old, &line); )
        if (*line.text == '#') fwrite(line.text, 1, (size_t)(line.next - line.text), new->file);
    if (resume)
        fprintf(new->file, "# resumed at step %" PRId64 ", %s: %s%s%s\n", resume->step, time_text(), run->command,
                resume->changes ? "; changed: " : "", resume->changes ? resume->changes : "");
    options_write(new->file, run->options);
}

/* ---- All three */

void log_open(Log *log, const char *out, const RunInfo *run, const ResumeInfo *resume) {
    NewFile new = { .run = run, .resume = resume };
    open_log(&log->csv, &new, path_of(out, "log.csv"), write_csv);
    open_log(&log->jsonl, &new, path_of(out, "log.jsonl"), write_events);
    log->columns = new.columns;
    log->start_s = seconds_now() - new.seconds;
    if (resume)
        log_event(log, "resume", resume->step, (LogValue[]){
            { "time", .text = time_text() }, { "command", .text = run->command },
            { "changes", .text = resume->changes }, {0} });
    if (resume && !new.is_validated && !isnan(resume->val_loss))
        log_event(log, "validation", resume->step,
                  (LogValue[]){ { "val_loss", "%.9g", .number = resume->val_loss }, {0} });
    write_anew(&new, path_of(out, "settings.txt"), write_settings);
}

void log_step(Log *log, const StepReport *step) {
    if (!log->csv.path) return;
    const long at = ftell(log->csv.lines);
    write_row(log->csv.lines, &log->columns, step);
    log->row_bytes = ftell(log->csv.lines) - at;
}

void log_step_again(Log *log, const StepReport *step) {
    LogFile *csv = &log->csv;
    if (!csv->path) return;
    fflush(csv->lines);
    const long waiting = (long)(csv->pending_bytes - csv->written_bytes);
    if (waiting && waiting < log->row_bytes) return;        /* half of it is in the file */
    if (waiting) fseek(csv->lines, -log->row_bytes, SEEK_CUR);
    else         lseek(csv->fd, -log->row_bytes, SEEK_CUR);
    log_step(log, step);
}
