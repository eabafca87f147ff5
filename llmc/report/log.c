#include "log.h"

/* ---- Lines that are appended */

/* Keeps the first bytes of a file, which are lines, and opens it to append others. */
static void open_file(LogFile *file, const char *path, int64_t kept_bytes) {
    *file = (LogFile){ .path = format_string("%s", path), .fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) };
    REQUIRE(file->fd >= 0 && (!ftruncate(file->fd, kept_bytes) || errno == EINVAL) && lseek(file->fd, 0, SEEK_END) >= 0,
            "%s: cannot open to append: %s", path, strerror(errno));                     /* EINVAL: /dev/null */
    file->lines = string_open(&file->pending, &file->pending_bytes, path);
}

/* Writes the lines. Returns NULL, or why they stay in memory. */
static const char *write_lines(LogFile *file, int sync) {
    if (!file_has_name(file->fd, file->path)) return "it was moved or removed during the run";
    while (file->written_bytes < file->pending_bytes) {
        ssize_t written = write(file->fd, file->pending + file->written_bytes,
                                file->pending_bytes - file->written_bytes);
        if (written <= 0) return strerror(written ? errno : EIO);
        file->written_bytes += (size_t)written;
    }
    rewind(file->lines);
    file->written_bytes = file->pending_bytes = 0;
    return sync && fsync(file->fd) && errno != EINVAL ? strerror(errno) : NULL;
}

void log_file_flush(LogFile *file, int sync) {
    if (!file->path) return;
    REQUIRE(!fflush(file->lines), "out of memory: %zu bytes of %s, which could not be written", file->pending_bytes,
            file->path);
    const char *before = file->error;
    file->error = write_lines(file, sync);
    if (file->error && !before)
        print_line(stderr, "warning: %s: cannot write: %s; the run continues, its rows are kept in memory", file->path,
                   file->error);
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

/* ---- What a start finds */

/* The file that a resume continues; empty where there is none, or the run begins, which renames it. */
static FileMap map_old(const char *path, const RunInfo *run) {
    const int exists = file_exists(path);
    if (exists && run->resumed_step >= 0) return file_map(path);
    if (exists) {
        char *old = format_string("%s.old", path);
        file_rename(path, old);
        print_line(stdout, "%s belongs to a run without a checkpoint: renamed to %s", path, old);
        free(old);
    }
    return (FileMap){ .bytes = (void *)"" };
}

static int64_t offset_in(FileMap map, const char *at) { return at - (const char *)map.bytes; }

/* ---- log.csv */

void log_step(Log *log, const LogRow *row) {
#define VALUE(name, format) { #name, format, .number = row->name },
    const LogValue values[LOG_VALUES] = { LOG_COLUMNS(VALUE) { "throttle", .text = row->throttle } };
    FILE *file = log->csv.lines;
    if (!file) return;
    for (int cell = 0; cell < log->columns.cells; cell++) {
        int v = 0;
        while (v < LOG_VALUES && log->columns.cell_of[v] != cell) v++;
        if (cell) fputc(',', file);
        if (v == LOG_VALUES) continue;          /* a column that is not ours */
        if (v == LOG_throttle)               fputs(values[v].text ? values[v].text : "", file);
        else if (!isnan(values[v].number))   fprintf(file, values[v].format, values[v].number);
    }
    fputc('\n', file);
}

/* A row from its empty val_loss on, a new string; NULL: it is not empty, or there is no such column. */
static char *row_end(const LogColumns *columns, const FileLine *row) {
    const char *at = row->text, *cell = at;
    size_t size = 1;
    for (int i = columns->cell_of[LOG_val_loss]; i >= 0; i--) cell = file_next_cell(row, &at, &size);
    return size ? NULL : format_string("%.*s", (int)(row->next - cell), cell);
}

void log_val_loss(Log *log, double val_loss) {
    if (!log->row_end || isnan(val_loss)) return;
    lseek(log->csv.fd, -(off_t)strlen(log->row_end), SEEK_END);
    fprintf(log->csv.lines, "%.9g%s", val_loss, log->row_end);
}

/* Continues behind the last row up to the step of the resume; a damaged one may have any step. Returns its seconds. */
static double open_csv(Log *log, const char *path, const RunInfo *run) {
#define HEADER(name, format) #name ","
    static const char header[] = LOG_COLUMNS(HEADER) "throttle\n";
    const int64_t last = run->resumed_step > 0 ? run->resumed_step : 0;
    const FileMap old = map_old(path, run), new = { (const unsigned char *)header, sizeof header - 1 };
    FileLine line = {0}, row = {0};                         /* row: of the highest step that is kept */
    int64_t step = 0, rows = 0;
    double value[LOG_VALUES], seconds = 0;
    log->columns = log_read_columns(old.size ? old : new, &line, path);
    int64_t size = old.size ? offset_in(old, line.next) : 0;
    while (old.size && log_next_line(old, &line)) {
        const double next = log_read_row(&log->columns, &line, value);
        if (next >= 1 && next <= (double)last) size = offset_in(old, line.next);
        if (!(next > (double)step && next <= (double)last)) continue;
        step = (int64_t)next;
        rows++;
        seconds = fmax(seconds, value[LOG_seconds]);
        row = line;
    }
    if (rows < last)
        print_line(stdout, "%s: %" PRId64 " of %" PRId64 " rows are missing or damaged", path, last - rows, last);
    const int is_last = rows && step == last && offset_in(old, row.next) == size;
    log->row_end = is_last ? row_end(&log->columns, &row) : NULL;
    file_unmap(old);
    open_file(&log->csv, path, size);
    if (!size) fputs(header, log->csv.lines);
    return seconds;
}

/* ---- log.jsonl */

void log_event(Log *log, const char *event, int64_t step, const LogValue *values) {
    if (!log->jsonl.path) return;
    FILE *file = log->jsonl.lines;
    fprintf(file, "{\"event\": \"%s\", \"step\": %" PRId64 ", \"seconds\": %.3f", event, step,
            seconds_now() - log->start_s);
    for (; values->name; values++) {
        if (values->format ? !isfinite(values->number) : !values->text) continue;
        fprintf(file, ", \"%s\": ", values->name);
        if (values->format) fprintf(file, values->format, values->number);
        else                json_write_string(file, values->text);
    }
    fputs("}\n", file);
}

static const char *time_text(void) {
    static char text[32];
    time_t now = time(NULL);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    return text;
}

/* The start is its first event, a resume one more. */
static void open_jsonl(Log *log, const char *path, const RunInfo *run) {
    const FileMap old = map_old(path, run);
    const int is_new = run->resumed_step < 0;
    const int is_torn = old.size && old.bytes[old.size - 1] != '\n';    /* by a crash; readers leave the line out */
    file_unmap(old);
    open_file(&log->jsonl, path, old.size);
    if (is_torn) fputc('\n', log->jsonl.lines);
    log_event(log, is_new ? "run" : "resume", is_new ? 0 : run->resumed_step, (LogValue[]){
        { "time", .text = time_text() }, { "version", .text = VERSION }, { "command", .text = run->command },
        { "backend", .text = backend_name }, { "device", .text = run->device->name },
        { "ranks", "%.0f", .number = comm_size },
        { "parameters", "%.0f", .number = (double)gpt_parameter_count(run->config) },
        { "floor", "%.6f", .number = run->val_floor }, { "changes", .text = run->changes }, {0} });
}

/* ---- settings.txt, and the banner */

static char *model_text(const RunInfo *run) {
    const GPTConfig *c = run->config;
    const int is_exact = c->dtype == F32 || c->deterministic || !strcmp(run->attention, "naive");
    char share[64] = "", dropout[32] = "";
    if (c->context_parallel > 1)
        snprintf(share, sizeof share, " (%d on each of %d ranks)", gpt_local_tokens(c), c->context_parallel);
    if (c->dropout > 0) snprintf(dropout, sizeof dropout, ", dropout %g", c->dropout);
    return format_string("%d layers, %d heads, %d channels, context %d%s, vocabulary %d, %.2fM parameters, %s%s%s, "
                         "%s attention%s", c->L, c->NH, c->C, c->T, share, c->V,
                         1e-6 * (double)gpt_parameter_count(c), dtype_name(c->dtype),
                         c->matmul_dtype == E4M3 ? " with products in fp8" : "",
                         is_exact ? "" : " (a resume is exact to the bit with --deterministic)", run->attention,
                         dropout);
}

void log_describe(FILE *file, const RunInfo *run, int as_comments) {
    const DeviceInfo *device = run->device;
    char ranks[16] = "", need[32], have[32];
    if (comm_size > 1) snprintf(ranks, sizeof ranks, "%d x ", comm_size);
    char *const facts[][2] = {
        { "output", as_comments || !run->out ? NULL : format_string("%s", run->out) },
        { "device", format_string("%s%s, %s, %s", ranks, backend_name, device->name, device->detail) },
        { "model",  model_text(run) },
        { "recipe", run->recipe && *run->recipe
                    ? format_string("%s (chosen by the model; options win)", run->recipe) : NULL },
        { "data",   format_string("%s", run->data) },
        { "memory", format_string("%s of %s free%s", bytes_text((double)run->memory, need),
                                  bytes_text((double)device->free_bytes, have), comm_size > 1 ? " on each" : "") } };
    fprintf(file, as_comments ? "# %s, %s\n# command: %s\n" : "%s\n", VERSION, time_text(), run->command);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (!facts[i][1]) continue;
        make_printable(facts[i][1]);
        fprintf(file, as_comments ? "# %s: %s\n" : "%-7s %s\n", facts[i][0], facts[i][1]);
        free(facts[i][1]);
    }
    fflush(file);
}

static void write_settings(const RunInfo *run) {
    const Path path = path_of(run->out, "settings.txt"), new = path_of(run->out, "settings.txt.new");
    FILE *file = file_create(new.text);
    log_describe(file, run, 1);
    if (!isnan(run->val_floor)) fprintf(file, "# floor: %.6f\n", run->val_floor);
    if (run->resumed_step >= 0)
        fprintf(file, "# resumed: at step %" PRId64 "%s%s\n", run->resumed_step, run->changes ? ", " : "",
                run->changes ? run->changes : "");
    fputs("# --config reads this file, for a new run; --resume reads the options of the checkpoint\n", file);
    options_write(file, run->options);
    file_close_durably(file, new.text);
    file_rename(new.text, path.text);
}

/* ---- All three */

void log_open(Log *log, const RunInfo *run) {
    log->start_s = seconds_now() - open_csv(log, path_of(run->out, "log.csv").text, run);
    open_jsonl(log, path_of(run->out, "log.jsonl").text, run);
    write_settings(run);
}
