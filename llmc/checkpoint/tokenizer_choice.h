/* tokenizer_choice.h - Which tokenizer a run, --eval or --sample uses, and how it reads texts. */
#ifndef LLMC_TOKENIZER_CHOICE_H
#define LLMC_TOKENIZER_CHOICE_H
#include "../options/settings.h"
#include "../text/tokenizer.h"
#include "../tokens/dataloader.h"

/* The tokenizer of the checkpoint `from`, a model of V tokens; if it has none, that of --tokenizer; NULL if there is
   neither. is_given: --tokenizer is on the command line: fails unless it is the checkpoint's; otherwise its directory
   is not read where the checkpoint has a BPE. */
Tokenizer tokenizer_choose(const Settings *settings, int is_given, const char *from, int V);

/* Fails on --documents without a BPE, and on --field that would be ignored. */
TextFormat text_format(const Settings *settings, Tokenizer tokenizer);

#endif
