/* log_reader.h - The columns of log.csv, and reading it, also after a crash: a last line without a newline is half
   written, and a row is damaged if it has a zero byte or another number of cells than the first line. */
#ifndef LLMC_LOG_READER_H
#define LLMC_LOG_READER_H
#include "../base/files.h"

/* The numbers of log.csv, in its order: name, printf format, value of StepReport *s (log.h). NaN = unknown: an empty
   cell. A text comes last, throttle. %.9g identifies a float. */
#define LOG_COLUMNS(X) \
    X(step,          "%.0f", (double)s->step) \
    X(seconds,       "%.3f", s->seconds) \
    X(tokens,        "%.0f", (double)s->tokens) \
    X(loss,          "%.9g", s->loss) \
    X(val_loss,      "%.9g", s->val_loss) \
    X(norm,          "%.9g", s->norm) \
    X(lr,            "%.9g", s->learning_rate) \
    X(ms,            "%.3f", s->ms) \
    X(tokens_per_s,  "%.1f", s->tokens_per_second) \
    X(comm_wait_ms,  "%.3f", comm_size > 1 ? s->comm_wait_ms : NAN) \
    X(mfu,           "%.4f", s->mfu) \
    X(temperature_c, "%.0f", positive(s->health.temperature_c)) \
    X(power_w,       "%.1f", positive(s->health.power_w)) \
    X(clock_mhz,     "%.0f", positive(s->health.clock_mhz))
#define LOG_PLACE(name, format, value) LOG_##name,
enum { LOG_COLUMNS(LOG_PLACE) LOG_throttle, LOG_VALUES };

/* Which cell of a file is LOG_step, LOG_loss, ..., from 0; -1 = none. Other names are left out. */
typedef struct { int cells, cell_of[LOG_VALUES]; } LogColumns;

int log_next_line(FileMap map, FileLine *line);         /* as file_next_line, but lines with a newline only */
LogColumns log_read_columns(FileMap map, FileLine *line, const char *path);     /* fails without step and loss */

/* Sets value to the numbers of a row, NaN where there is none. Returns its step, NaN = damaged. */
double log_read_row(const LogColumns *columns, const FileLine *line, double value[LOG_VALUES]);

#endif
