/* log.h - The files that a run writes besides its checkpoints:

     OUT/log.csv        the names of the columns in the first line, then a row per step; a cell without a value is empty
     OUT/log.jsonl      a JSON object per line, {"event": "validation", "step": 12, "seconds": 3.417, ...}; events are
                        run, resume, validation, sample, checkpoint, warning and end; what is unknown or not finite is
                        absent
     OUT/settings.txt   version, command, device, model, recipe, data, memory, floor and resume as comments, and all
                        settings, which --config reads; those of the last start

   log_open and log_file_flush print lines of their own, of what is wrong with the files. */
#pragma once
#include "../model/gpt.h"
#include "../options/settings.h"
#include "log_reader.h"

/* What is known when a run starts. */
typedef struct {
    const Settings   *settings;
    const Option     *options;
    const GPTConfig  *config;
    const DeviceInfo *device;
    const char *command;                  /* a line, as command_line makes it */
    const char *out;                      /* the run directory; NULL = none */
    const char *data, *attention;         /* for the banner: a line, and the name of the attention */
    size_t      memory;                   /* bytes of the memory plan */
    const char *recipe;                   /* options that the model has chosen; NULL or "" = none */
    double      val_floor;                /* NaN = unknown */
    int64_t     resumed_step;             /* step of the checkpoint that is continued; -1 = none */
    const char *changes;                  /* then: "--steps 200 -> 300, --lr 0.001 -> 0.0003"; NULL = none */
} RunInfo;

/* A value of a row or an event: a number with its printf format, or a text if format is NULL. Zeros end a list. */
typedef struct { const char *name, *format; double number; const char *text; } LogValue;

/* Lines that are appended to a file, and wait in memory while it cannot be written. */
typedef struct {
    char  *path;                          /* NULL = no file; the functions do nothing then */
    int    fd;
    FILE  *lines;                         /* writes to pending */
    char  *pending;
    size_t pending_bytes, written_bytes;
    const char *error;                    /* the last log_file_flush's; NULL = all lines are in the file */
} LogFile;

/* Prints an error when it begins and when it ends. Also an error: path names another file than the one that was opened,
   or none. sync: fsync as well. */
void log_file_flush(LogFile *file, int sync);
void log_file_close(LogFile *file);                /* fails when lines are lost */

typedef struct {
    LogFile csv, jsonl;                   /* to be flushed by the caller */
    LogColumns columns;                   /* csv's */
    char   *row_end;                      /* its last row at a resume, from the empty val_loss on; NULL = none */
    double  start_s;                      /* when the run began, by seconds_now; a resume leaves out the time between */
} Log;

/* In run->out. A new run: new files; old ones become log.csv.old and so on. Else they are continued, log.csv behind the
   row of the resumed step and with the columns that it has. Missing and damaged rows are reported. Fails on a log.csv
   that is not such a log. */
void   log_open(Log *log, const RunInfo *run);
/* Lines: version, output unless that is NULL, device, model, recipe if there is one, data, memory. The banner, or with
   time and command, but without output, the comments of settings.txt. */
void   log_describe(FILE *file, const RunInfo *run, int as_comments);
/* Append a row or an event to the lines in memory. log_val_loss sets the empty cell of the row that a resume continues
   behind, before the next row. */
void   log_step (Log *log, const LogRow *row);
void   log_val_loss(Log *log, double val_loss);
void   log_event(Log *log, const char *event, int64_t step, const LogValue *values);
