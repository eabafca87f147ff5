/* choices.h - Choices among ways to compute the same, made by measurement: which algorithm, one kernel or two.
   A choice changes the rounding of results, so a resume has to make the same ones: the text of all choices is stored
   with a checkpoint and in a cache file (llmc/train/choice_cache.h). Called from one host thread at a time. */
#ifndef KERNELS_CHOICES_H
#define KERNELS_CHOICES_H

/* 1 during a training step: an op measures what it has no choice for, and waits for the device. 0, the default: it uses
   the choices that training steps use, else a fixed one, so that validation and sampling do not depend on the cache. */
extern int choices_measuring;

/* Incremented by CHOICES_REPLACE: an op looks its choices up again. */
extern int choices_version;

/* What the choices are valid for: version of the lists of candidates, device, driver and library, in one line. */
const char *choices_machine(void);

int  choices_find(const char *name);                 /* -1: none */
/* A measured choice, 0 .. 999. name: one line of at most 150 characters, without ":". */
void choices_add(const char *name, int choice);
int  choices_added(void);                            /* how many were measured by this process */

/* A new string: choices_machine, then a line "NAME: CHOICE" for each; only_used: those that this process has used in a
   training step, or adopted as used. "" = none. */
char *choices_text(int only_used);

typedef enum {
    CHOICES_KNOWN,      /* of the cache file: adds names that have no choice yet, as not used */
    CHOICES_USED,       /* of a checkpoint, before the first operation: adds and replaces, as used */
    CHOICES_REPLACE     /* of another rank: replaces all choices, as used */
} ChoicesKind;
/* A file with more is ignored: 2000 shapes. Choices are searched one by one: to read N takes O(N^2). */
enum { CHOICES_TEXT_MAX = 1 << 18 };

/* Returns 0, and adopts nothing, where the text is of another machine or not one that choices_text made. */
int choices_adopt(const char *text, ChoicesKind kind);

#endif
