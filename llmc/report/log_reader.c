#include "log_reader.h"
#include "../../kernels/check.h"
#include <math.h>
#include <string.h>

static const char *const names[LOG_VALUES] = { LOG_COLUMNS(LOG_NAME) "throttle" };

int log_next_line(FileMap map, FileLine *line) { return file_next_line(map, line) && line->next[-1] == '\n'; }

int log_has_column(const LogColumns *columns, int place) {
    for (int i = 0; i < columns->count; i++) if (columns->place[i] == place) return 1;
    return 0;
}

LogColumns log_read_columns(const FileLine *line) {
    LogColumns columns = {0};
    const char *at = line->text, *name;
    for (size_t length; columns.count < LOG_CELLS_MAX && (name = file_next_cell(line, &at, &length)); ) {
        int place = LOG_VALUES - 1;
        while (place >= 0 && (strlen(names[place]) != length || memcmp(names[place], name, length))) place--;
        columns.place[columns.count++] = log_has_column(&columns, place) ? -1 : place;
    }
    return columns;
}

double log_read_row(const LogColumns *columns, const FileLine *line, double value[LOG_VALUES]) {
    const char *at = line->text, *cell;
    size_t length;
    for (int i = 0; i < LOG_VALUES; i++) value[i] = NAN;
    for (int i = 0; i < columns->count && (cell = file_next_cell(line, &at, &length)); i++)
        if (columns->place[i] >= 0) value[columns->place[i]] = cell_number(cell, length);
    return memchr(line->text, 0, line->size) ? NAN : value[LOG_step];     /* a crash can leave a block of zeros */
}

static void read_event(void *event) {
    static const char *const texts[][2] = { { "sample", "text" }, { "warning", "message" }, { "end", "reason" } };
    LogEvent *e = event;
    e->json = json_parse(e->line->text, e->line->size, "log.jsonl");
    e->kind = json_string(e->json, "event");
    const Json *step = json_find(e->json, "step");
    if (step) e->step = json_integer(step, 0, INT64_MAX);
    for (int i = 0; i < 3; i++) if (!strcmp(e->kind, texts[i][0])) e->text = json_string(e->json, texts[i][1]);
}

int log_read_event(const FileLine *line, LogEvent *event) {
    char why[FAIL_LENGTH];
    *event = (LogEvent){ .line = line };
    if (!fails(read_event, event, why)) return 1;
    json_free(event->json);
    return 0;
}
