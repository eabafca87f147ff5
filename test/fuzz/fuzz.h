/* fuzz.h - Untrusted input for the readers. A target is a reader and the claims that must hold of whatever
   it accepts. make fuzz lets libFuzzer look for bytes that break a claim; make test reads the files in corpus/ and
   mutants of them.

   The linker puts the file_map of fuzz.c in the place of that of files.c: a file is a string in memory before a page
   that cannot be read, so that a read of one byte too many is a fault. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;                                        /* NAME in corpus/NAME/ and NAME.dict */
    void      (*read)(const char *bytes, size_t size);
} FuzzTarget;

extern const FuzzTarget fuzz_targets[];                      /* ended by one without a name */

/* Gives the bytes to the target. Aborts with a line when a claim does not hold. */
void fuzz_run(const FuzzTarget *target, const void *bytes, size_t size);

/* A file that file_map, file_exists and glob find until the next input; the bytes are copied. */
void fuzz_file(const char *path, const void *bytes, size_t size);

/* Calls read(argument). Returns 1 when it comes back: then it has freed what it allocated and unmapped what it mapped,
   unless it may keep it (until here returns). Returns 0 when it failed: in one line, which holds every one of the words
   named. No block may be larger than 64 KiB + 128 times the input (seen under AddressSanitizer). */
enum { FREES_ALL, KEEPS };
int fuzz_try(void (*read)(void *), void *argument, int keeps, const char *named);
extern int fuzz_accepted;                                    /* times that it returned 1 */


#define CLAIM(condition, ...) do { if (!(condition)) { \
    fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); \
    abort(); } } while (0)
