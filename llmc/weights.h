/* llmc/weights.h - Tables of parameters and moments as safetensors in HuggingFace's names and layouts, and back. */
#ifndef LLMC_WEIGHTS_H
#define LLMC_WEIGHTS_H
#include "gpt.h"

/* A table in a file: its rows' names stand behind the prefix. host: a copy of the table's memory to write from; NULL =
   from the device. */
typedef struct { const char *prefix; const Table *table; const void *host; } Part;

/* One file of all parts; of the token tables the first V rows. Writing fails in a line at a NaN or an infinity. Reading
   takes names without "transformer." too, passes over the masks that HuggingFace keeps as tensors and over a head that
   equals wte, writes nothing to the tables before all of the file has been checked, and zeroes the token rows from V on. */
void weights_write(const char *path, const Part *part, int parts, int V);
void weights_read (const char *path, const Part *part, int parts, int V);

void params_write(const char *path, const Params *params, int V);      /* the one table of a model, without a prefix */
void params_read (const char *path, Params *params, int V);

#endif
