/* warnings.h - Warnings about settings that are valid and probably a mistake. */
#ifndef LLMC_WARNINGS_H
#define LLMC_WARNINGS_H
#include "../tokens/dataloader.h"
#include "../report/report.h"
#include "../options/settings.h"

/* Reports a line for each: validation on the training data, or none; --early-stop without validations; a context longer
   than the data; several epochs. T: tokens per sequence; sequences: of an update. */
void warn_of_mistakes(Report *report, const Settings *settings, const Corpus *corpus, int T, int64_t sequences);

#endif
