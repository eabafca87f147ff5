/* os.h - Memory, clock, signals, child programs, printed lines, UTF-8, and the text of durations and sizes. */
#pragma once
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

void  *host_alloc(size_t bytes, const char *what);     /* zeroed; fails with a message that names what */

/* The array, moved if needed, with room for one more than count elements of size bytes; new ones are not zeroed. */
void  *host_grow(void *array, size_t count, size_t *room, size_t size, const char *what);

enum { LINE_SECONDS = 6 };        /* between lines that say how far something is */

double seconds_now(void);         /* monotonic clock; async-signal-safe */

const char *duration_text(double seconds, char text[32]);      /* "2d03h", "1h02m", "3m20s", "45s" */
const char *bytes_text(double bytes, char text[32]);           /* "1.50 GiB", "340 MiB" */

/* A printable line (make_printable, kernels/check.h) on stdout or, after "train_gpt: ", on stderr. Errors are ignored:
   what counts is in files. */
void print_line(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "evaluating: 45 % done, 3m20s left", every 6 s on stderr if that is a terminal. start_s: when it began. */
void print_progress(const char *what, double share, double start_s);

/* Opens /dev/null as stdin, stdout or stderr if it is closed: else a file that is opened later would become stdout. */
void stdio_open(void);
int  stdio_flush(void);           /* 0; fails when stdout could not be written */

/* Bytes of the UTF-8 character (RFC 3629: shortest form, no surrogates, up to U+10FFFF) at the start of text, which has
   size >= 1; 0 where there is none. */
size_t utf8_length(const unsigned char *text, size_t size);
size_t utf8_mark(const void *text, size_t size);       /* 3 if the text begins with a byte order mark, else 0 */

/* ---- Stopping a run before its last step */

enum { EXIT_TRY_AGAIN = 75 };     /* EX_TEMPFAIL of sysexits.h: saved, not done; a queue script can start it again */

/* From here on SIGTERM, SIGINT and SIGHUP request a stop, SIGUSR1 a checkpoint; a second signal more than a second
   later ends the process at once. */
void stop_open(void);

/* Called where a stop ends this process outside of a training step; ends all ranks with EXIT_TRY_AGAIN. NULL = one
   rank. */
extern void (*stop_hook)(void);

const char *stop_requested(void); /* why the run should stop now, "SIGTERM", or NULL */
int save_requested(void);         /* SIGUSR1 arrived since the last call */

/* Starts the program argv[0] of this build, which lies beside this one, and sets argv[0] to its path, valid until the
   next call. Returns its process; -1 and errno if there is none. The signals of stop_open are blocked in it: Ctrl-C and
   a queue's SIGTERM reach all processes of a run, and this one decides when the others end. */
pid_t start_program(const char **argv);
