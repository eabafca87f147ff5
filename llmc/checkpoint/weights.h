/* llmc/checkpoint/weights.h - Tables of parameters and moments as safetensors in HuggingFace's names and layouts,
   and back. */
#ifndef LLMC_WEIGHTS_H
#define LLMC_WEIGHTS_H
#include "../gpt.h"

/* A table in a file: its rows' names stand behind the prefix. host: a copy of the table's memory to write from; NULL =
   from the device. dtype: of the rows in a file that is written: F32, or BF16, rounded to the nearest, ties to even. */
typedef struct { const char *prefix; const TensorTable *table; const void *host; DType dtype; } Part;

/* One file of all parts; of the token tables the first V rows. Fails at a NaN or an infinity. Returns XXH64 of the file.
 */
uint64_t weights_write(const char *path, const Part *part, int parts, int V);

/* path: a file, or the index of several. Rows without a prefix, those of a model, may be F32, F16 or BF16, all of which
   f32 holds exactly, and named without "transformer." too; the masks that HuggingFace keeps as tensors are passed over,
   and so is a head that equals wte where the table has none. Other rows are F32. Writes nothing to the tables before
   all of the file has been checked, NaN and infinities included, and zeroes the token rows from V on. */
void weights_read (const char *path, const Part *part, int parts, int V);

void params_read(const char *path, Params *params, int V);      /* the table of a model */

/* What the names and shapes of a model's file tell: L, C, T and V. */
GPTConfig weights_config(const char *path);

/* Of a model's file: no lm_head.weight, one that equals wte, or one of its own. */
typedef enum { NO_HEAD, SAME_HEAD, OWN_HEAD } Head;
Head weights_head(const char *path);

int weights_has(const char *path, const char *name, DType dtype);      /* whether it holds a tensor of that type */

#endif
