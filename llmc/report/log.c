#include "log.h"
#include "../base/files.h"
#include "../base/json.h"
#include "../base/os.h"
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

/* ---- Files */

/* A file that replaces path, at once and as a whole, when replace_file closes it. */
static FILE *begin_file(const char *path) {
    char *new_path = format_string("%s.new", path);
    FILE *file = file_create(new_path);
    free(new_path);
    return file;
}

static void replace_file(FILE *file, const char *path) {
    char *new_path = format_string("%s.new", path);
    file_close_durably(file, new_path);
    file_rename(new_path, path);
    free(new_path);
}

/* A log without a checkpoint to continue from. */
static void rename_old_log(const char *path) {
    if (!file_exists(path)) return;
    char *base = format_string("%s.old", path), *old = file_unused_variant(base, '.');
    file_rename(path, old);
    printf("%s belongs to a run without a checkpoint: renamed to %s\n", path, old);
    free(base);
    free(old);
}

static LogFile append_to(const char *path) {
    LogFile file = { .fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC) };
    REQUIRE(file.fd >= 0, "%s: cannot open to append: %s", path, strerror(errno));
    file.path = format_string("%s", path);
    return file;
}

/* The memory stream keeps the address of pending: file must stay where it is. */
static FILE *lines_of(LogFile *file) {
    if (!file->lines) file->lines = open_memstream(&file->pending, &file->pending_bytes);
    REQUIRE(file->lines, "out of memory: the lines of %s", file->path);
    return file->lines;
}

int log_file_flush(LogFile *file, int sync) {
    if (!file->path) return 0;
    int error = 0;
    REQUIRE(!fflush(lines_of(file)), "out of memory: %zu bytes of %s, which could not be written", file->pending_bytes,
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

/* ---- Values */

static double positive(double value) { return value > 0 ? value : NAN; }

/* The values of a row: the numbers and throttle. */
enum { ROW_VALUES = LOG_NUMBERS + 1 };
typedef struct { LogValue value[ROW_VALUES]; } RowValues;

static RowValues values_of_step(const StepReport *s) {
#define VALUE(name, format, value) { #name, format, .number = value },
    return (RowValues){ { LOG_COLUMNS(VALUE) { "throttle", .text = s->health.throttle } } };
}

static int is_known(const LogValue *value) { return value->format ? !isnan(value->number) : value->text != NULL; }

double log_seconds(const Log *log) { return seconds_now() - log->start_s; }

/* ---- log.csv */

/* A bit for each column that can have a value in this run. */
static unsigned known_columns(const RunInfo *run) {
    const DeviceHealth health = device_health();
    int has_health = health.temperature_c > 0 || health.power_w > 0 || health.clock_mhz > 0 || health.throttle;
    StepReport full = { .val_loss = run->validates ? 0 : NAN,
                        .mfu = run->device->peak_flops[run->config->dtype] > 0 ? 0 : NAN };
    if (has_health) full.health = (DeviceHealth){ 1, 1, 1, "none", 0 };
    RowValues values = values_of_step(&full);
    unsigned known = 0;
    for (int i = 0; i < ROW_VALUES; i++) if (is_known(&values.value[i])) known |= 1u << i;
    return known;
}

static void write_header(FILE *file, unsigned columns) {
    RowValues names = values_of_step(&(StepReport){0});
    for (int i = LOG_step; i < ROW_VALUES; i++)
        if (columns & 1u << i) fprintf(file, "%s%s", i > LOG_step ? "," : "", names.value[i].name);
    fputc('\n', file);
}

static void write_row(FILE *file, unsigned columns, const StepReport *step) {
    RowValues values = values_of_step(step);
    for (int i = LOG_step; i < ROW_VALUES; i++) {
        const LogValue *value = &values.value[i];
        if (!(columns & 1u << i)) continue;
        if (i > LOG_step) fputc(',', file);
        if (!is_known(value)) continue;
        if (value->format) fprintf(file, value->format, value->number);
        else               fputs(value->text, file);
    }
    fputc('\n', file);
}

/* The columns of a file: of cell n of its lines, the place in the table of values. */
typedef struct { int place[ROW_VALUES], count; unsigned seen; } Header;

/* Reads the names in the first line: the step first, each at most once. Returns 0 if it is not such a list. */
static int read_header(Header *header, const FileLine *line) {
    RowValues names = values_of_step(&(StepReport){0});
    const char *at = line->text, *name;
    for (size_t length; (name = file_next_cell(line, &at, &length)); header->count++) {
        int i = ROW_VALUES - 1;
        while (i >= 0 && (strncmp(names.value[i].name, name, length) || names.value[i].name[length])) i--;
        if (i < 0 || (i > LOG_step) != (header->count > 0) || header->seen & 1u << i) return 0;
        header->seen |= 1u << i;
        header->place[header->count] = i;
    }
    return 1;
}

typedef struct { const char *text; size_t size; } Cell;

/* Copies header and rows up to resume->step, with the columns of the file and of this run, but not a last line without
   a newline: it is half written. Returns the seconds of the last row. */
static double copy_rows(Log *log, FILE *file, const char *path, const ResumeInfo *resume) {
    FileMap map = file_map(path);
    FileLine line = {0};
    Header header = {0};
    int64_t step = 0;           /* of the last row */
    double seconds = 0;
    REQUIRE(file_next_line(map, &line) && line.next[-1] == '\n' && read_header(&header, &line), "%s: not a log of "
            "training steps: want the names of columns in the first line, as step,seconds,tokens,loss; move it away "
            "to start a new one", path);
    log->columns |= header.seen;
    write_header(file, log->columns);
    while (step < resume->step && file_next_line(map, &line) && line.next[-1] == '\n') {
        Cell cell[ROW_VALUES] = {0};
        char val_loss[32];
        const char *at = line.text, *text;
        size_t size;
        for (int i = 0; i < header.count && (text = file_next_cell(&line, &at, &size)); i++)
            cell[header.place[i]] = (Cell){ text, size };
        const double next = cell_number(cell[LOG_step].text, cell[LOG_step].size);
        REQUIRE(next > (double)step, "%s: damaged: want a row with a step after %" PRId64 ", got %.*s; move the log "
                "away to start a new one", path, step, line.size < 40 ? (int)line.size : 40, line.text);
        if (next > (double)resume->step) break;
        step = (int64_t)next;
        seconds = fmax(seconds, cell_number(cell[LOG_seconds].text, cell[LOG_seconds].size));
        if (!cell[LOG_val_loss].size && step == resume->step && !isnan(resume->val_loss))
            cell[LOG_val_loss] = (Cell){ val_loss,
                                         (size_t)snprintf(val_loss, sizeof val_loss, "%.9g", resume->val_loss) };
        for (int i = LOG_step; i < ROW_VALUES; i++)
            if (log->columns & 1u << i) 
                fprintf(file, "%s%.*s", i > LOG_step ? "," : "", (int)cell[i].size, cell[i].size ? cell[i].text : "");
        fputc('\n', file);
    }
    if (step < resume->step)
        printf("%s: ends at step %" PRId64 ", the rows up to step %" PRId64 " are missing\n", path, step, resume->step);
    file_unmap(map);
    return seconds;
}

static void open_csv(Log *log, const char *path, const RunInfo *run, const ResumeInfo *resume) {
    if (!resume) rename_old_log(path);
    FILE *file = begin_file(path);
    log->start_s = seconds_now();
    log->columns = known_columns(run);
    if (file_exists(path)) log->start_s -= copy_rows(log, file, path, resume);
    else                   write_header(file, log->columns);
    replace_file(file, path);
    log->csv = append_to(path);
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

void log_event(Log *log, const char *event, int64_t step, const LogValue *values) {
    if (!log->jsonl.path) return;
    FILE *file = lines_of(&log->jsonl);
    fprintf(file, "{\"event\": \"%s\", \"step\": %" PRId64 ", \"seconds\": %.3f", event, step, log_seconds(log));
    write_values(file, values);
    fputs("}\n", file);
}

static const char *time_text(char text[32]) {
    time_t now = time(NULL);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    return text;
}

static void write_run_event(FILE *file, const RunInfo *run) {
    const GPTConfig *c = run->config;
    char now[32];
    fputs("{\"event\": \"run\"", file);
    write_values(file, (LogValue[]){
        { "time", .text = time_text(now) }, { "version", .text = run->version }, { "command", .text = run->command },
        { "backend", .text = backend_name }, { "device", .text = run->device->name },
        { "ranks", "%.0f", .number = comm_size }, { "zero", "%.0f", .number = c->zero },
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

typedef struct {
    FILE       *file;
    const char *path;
    int64_t     last_step;
    int         is_validated;       /* the validation of last_step is among the events */
} EventCopy;

/* Copies the events up to last_step, but not a last line without a newline. An event without a step is kept. */
static void copy_events(void *argument) {
    EventCopy *copy = argument;
    FileMap map = file_map(copy->path);
    for (FileLine line = {0}; file_next_line(map, &line) && line.next[-1] == '\n'; ) {
        char *where = format_string("%s: line %" PRId64, copy->path, line.number);
        Json *object = json_parse(line.text, line.size, where);
        const Json *event = json_member(object, "event", JSON_STRING), *step = json_find(object, "step");
        int64_t number = step ? json_integer(step, 0, INT64_MAX) : 0;
        if (number <= copy->last_step) fwrite(line.text, 1, (size_t)(line.next - line.text), copy->file);
        if (number == copy->last_step && !strcmp(event->text, "validation")) copy->is_validated = 1;
        json_free(object);
        free(where);
    }
    file_unmap(map);
}

static void open_jsonl(Log *log, const char *path, const RunInfo *run, const ResumeInfo *resume) {
    if (!resume) rename_old_log(path);
    EventCopy copy = { begin_file(path), path, resume ? resume->step : 0, 0 };
    if (resume && file_exists(path)) {
        char why[FAIL_LENGTH];
        if (fails(copy_events, &copy, why)) fail("%s; move the log away to start a new one", why);
    } else {
        write_run_event(copy.file, run);
    }
    replace_file(copy.file, path);
    log->jsonl = append_to(path);
    if (!resume) return;
    char now[32];
    log_event(log, "resume", resume->step, (LogValue[]){
        { "time", .text = time_text(now) }, { "command", .text = run->command }, { "changes", .text = resume->changes },
        {0} });
    if (!copy.is_validated && !isnan(resume->val_loss))
        log_event(log, "validation", resume->step,
                  (LogValue[]){ { "val_loss", "%.9g", .number = resume->val_loss }, {0} });
}

/* ---- settings.txt */

static void copy_comments(FILE *file, const char *path) {
    FileMap map = file_map(path);
    for (FileLine line = {0}; file_next_line(map, &line) && line.next[-1] == '\n'; )
        if (*line.text == '#') fwrite(line.text, 1, (size_t)(line.next - line.text), file);
    file_unmap(map);
}

static void write_settings(const char *path, const RunInfo *run, const ResumeInfo *resume) {
    const GPTConfig *c = run->config;
    char now[32];
    time_text(now);
    FILE *file = begin_file(path);
    if (resume && file_exists(path)) {
        copy_comments(file, path);
    } else {
        fprintf(file, "# %s, %s, %s, %s, %s\n# command: %s\n", run->version, backend_name, run->device->name,
                run->device->detail, now, run->command);
        fprintf(file, "# model: %d layers, %d heads, %d channels, context %d, vocabulary %d, %" PRId64 " parameters\n",
                c->L, c->NH, c->C, c->T, c->V, gpt_parameter_count(c));
        fprintf(file, "# memory: %s\n", run->memory);
        fputs("# --config reads this file, for a new run; --resume reads the options of the checkpoint\n", file);
        if (comm_size > 1)
            fprintf(file, "# ranks: %d, %d to a sequence, ZeRO stage %d\n", comm_size, c->context_parallel, c->zero);
        if (!isnan(run->val_floor)) fprintf(file, "# floor: %.6f\n", run->val_floor);
    }
    if (resume)
        fprintf(file, "# resumed at step %" PRId64 ", %s: %s%s%s\n", resume->step, now, run->command,
                resume->changes ? "; changed: " : "", resume->changes ? resume->changes : "");
    options_write(file, run->options);
    replace_file(file, path);
}

/* ---- All three */

void log_open(Log *log, const char *out, const RunInfo *run, const ResumeInfo *resume) {
    *log = (Log){ .step = resume ? resume->step : 0 };
    open_csv(log, path_of(out, "log.csv").text, run, resume);
    open_jsonl(log, path_of(out, "log.jsonl").text, run, resume);
    write_settings(path_of(out, "settings.txt").text, run, resume);
}

void log_step(Log *log, const StepReport *step) {
    log->step = step->step;
    if (log->csv.path) write_row(lines_of(&log->csv), log->columns, step);
}
