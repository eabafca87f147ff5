/* autotune.h - Choices among ways to compute the same, made by measurement: which algorithm, one kernel or two.
   A choice changes the rounding of results, so a resume has to make the same ones: their text is stored with a
   checkpoint, and in a cache file (llmc/train/autotune_cache.h). Called from one host thread at a time. */
#pragma once

/* 1 during a training step: an op uses a choice, else the cached one, else it measures, and waits for the device.
   0, the default: it uses a choice, else a fixed algorithm: validation and sampling do not depend on the cache. */
void autotune_enable(int on);
int  autotune_enabled(void);

int  autotune_find(const char *name);                   /* the choice; -1 = none */
void autotune_add(const char *name, int choice);        /* choice >= 0; name: one line of up to 150 characters */
int  autotune_version(void);                            /* changed by autotune_adopt: ops look their choices up again */

/* What choices are valid for, a line: version of the lists of candidates, device, driver and library. Then a line
   "NAME: CHOICE" for each choice made; and the same with those of the cache. "" = none. Valid until the next call. */
const char *autotune_machine(void);
const char *autotune_text(void);
const char *autotune_cache(void);

/* Replaces all choices made. 0, and nothing is replaced: the text is of another machine or cut short. */
int  autotune_adopt(const char *text);
void autotune_set_cache(const char *text);              /* such a text: an empty one. The choices made are added */
