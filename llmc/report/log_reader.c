#include "log_reader.h"

int log_next_line(FileMap map, FileLine *line) { return file_next_line(map, line) && line->next[-1] == '\n'; }

LogColumns log_read_columns(FileMap map, FileLine *line, const char *path) {
#define NAME(name, format) #name,
    static const char *const names[LOG_VALUES] = { LOG_COLUMNS(NAME) "throttle" };
    LogColumns columns = {0};
    const int is_line = log_next_line(map, line);
    const char *at = line->text, *name;
    size_t length;
    for (int v = 0; v < LOG_VALUES; v++) columns.cell_of[v] = -1;
    for (; is_line && (name = file_next_cell(line, &at, &length)); columns.cells++)
        for (int v = 0; v < LOG_VALUES; v++)
            if (columns.cell_of[v] < 0 && strlen(names[v]) == length && !memcmp(names[v], name, length))
                columns.cell_of[v] = columns.cells;
    const int has_step = columns.cell_of[LOG_step] >= 0;
    REQUIRE(has_step && columns.cell_of[LOG_loss] >= 0, "%s: not a log of training steps: no column %s in the first "
            "line; restore it or move it away", path, has_step ? "loss" : "step");
    return columns;
}

double log_read_row(const LogColumns *columns, const FileLine *line, double value[LOG_VALUES]) {
    const char *at = line->text, *cell;
    size_t length;
    int cells = 0;
    for (int v = 0; v < LOG_VALUES; v++) value[v] = NAN;
    for (; (cell = file_next_cell(line, &at, &length)); cells++)
        for (int v = 0; v < LOG_VALUES; v++)
            if (columns->cell_of[v] == cells) value[v] = cell_number(cell, length);
    return cells != columns->cells || memchr(line->text, 0, line->size) ? NAN : value[LOG_step];
}
