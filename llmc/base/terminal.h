/* terminal.h - Lines for people. Errors of stdout are ignored: what counts is in files. */
#ifndef LLMC_TERMINAL_H
#define LLMC_TERMINAL_H
#include <stdio.h>

/* A printable line (make_printable, kernels/check.h) on stdout or, after "train_gpt: ", on stderr, below a line in
   place. */
void print_line(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Shows a text on stdout, which is a terminal, cut to its width, in the place of the last one; the next line goes below
   it, or for "" overwrites it. */
void print_in_place(const char *text);
void end_line_in_place(void);             /* and flushes stdout */

#endif
