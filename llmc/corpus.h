/* llmc/corpus.h - What a run learns from and what it is measured on: two streams, of one kind. */
#ifndef LLMC_CORPUS_H
#define LLMC_CORPUS_H
#include <stdio.h>
#include "dataloader.h"

typedef struct {
    Tokens *train, *val;       /* val NULL = there is nothing to validate on */
    Tokens *whole;             /* the text that both are parts of, or NULL */
    double  val_floor;         /* text_floor of --val-data (llmc/evaluate.h), NaN = unknown */
} Corpus;

/* Opens --data and --val-data, as in tokens_open. Without val_data (NULL) a text gives its last part, val_fraction of
   it, for validation; shards give none. Fails in a line: no data, a text and shards, too few bytes to share out. */
Corpus corpus_open(const char *data, const char *val_data, double val_fraction);

void corpus_print(FILE *file, const Corpus *corpus);     /* "data: book.txt, 90000 bytes to train on, ..." */
void corpus_check(const Corpus *corpus, int V);          /* tokens_check of both */

#endif
