/* log_reader.h - The columns of log.csv, and reading it, also after a crash: a last line without a newline is half
   written, and a row is damaged if it has a zero byte or another number of cells than the first line. */
#pragma once
#include "../base/base.h"

/* A row of log.csv: name and printf format of its numbers, in its order. NaN = unknown: an empty cell. A text comes
   last, throttle; NULL = unknown. %.9g identifies a float. */
#define LOG_COLUMNS(X) \
    X(step,          "%.0f") /* counted from 1 */ \
    X(seconds,       "%.3f") /* since the run began */ \
    X(tokens,        "%.0f") /* trained on so far */ \
    X(loss,          "%.9g") \
    X(val_loss,      "%.9g") \
    X(norm,          "%.9g") \
    X(lr,            "%.9g") \
    X(ms,            "%.3f") \
    X(tokens_per_s,  "%.1f") /* this step, over all ranks */ \
    X(comm_wait_ms,  "%.3f") /* part of ms in which compute waited for communication */ \
    X(mfu,           "%.4f") \
    X(temperature_c, "%.0f") \
    X(power_w,       "%.1f") \
    X(clock_mhz,     "%.0f")
#define LOG_PLACE(name, format) LOG_##name,
#define LOG_MEMBER(name, format) double name;
enum { LOG_COLUMNS(LOG_PLACE) LOG_throttle, LOG_VALUES };
typedef struct { LOG_COLUMNS(LOG_MEMBER) const char *throttle; } LogRow;

/* Which cell of a file is LOG_step, LOG_loss, ..., from 0; -1 = none. Other names are left out. */
typedef struct { int cells, cell_of[LOG_VALUES]; } LogColumns;

int log_next_line(FileMap map, FileLine *line);         /* as file_next_line, but lines with a newline only */
LogColumns log_read_columns(FileMap map, FileLine *line, const char *path);     /* fails without step and loss */

/* Sets value to the numbers of a row, NaN where there is none. Returns its step, NaN = damaged. */
double log_read_row(const LogColumns *columns, const FileLine *line, double value[LOG_VALUES]);
