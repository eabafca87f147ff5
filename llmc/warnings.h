/* llmc/warnings.h - Settings that are valid and probably not what was wanted. */
#ifndef LLMC_WARNINGS_H
#define LLMC_WARNINGS_H
#include "dataloader.h"
#include "report.h"
#include "settings.h"

/* Reports a line for each: validation on the training data, or none; a warm-up longer than the run; a context longer
   than the data; several epochs. T: tokens per sequence; sequences: of an update. */
void warn_of_mistakes(Report *report, const Settings *settings, const Corpus *corpus, int T, int64_t sequences);

#endif
