/* use_checkpoint.h - --eval and --sample: a model without training. */
#pragma once
#include "../options/settings.h"

/* Prints the loss on a text, the accuracy on a task, or text. Returns the exit code. */
int use_checkpoint(Settings *settings, Option *options);
