/* files.h - Files: mapped for reading; written so that a crash leaves the old state or the new one. Functions
   without a result for it fail (kernels/check.h) on errors. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct { const unsigned char *bytes; int64_t size; } FileMap;

FileMap file_map(const char *path);       /* fails: missing, a directory, a pipe, not readable; {"",0} when empty */
void    file_unmap(FileMap map);

/* The next line of a file, from {0} on; 0 = none: *line is empty, at the end. A byte order mark before the first is
   skipped. size: without "\n" or "\r\n"; next: after these; number: from 1. */
typedef struct { const char *text, *next; size_t size; int64_t number; } FileLine;
int     file_next_line(FileMap map, FileLine *line);

/* The cell of a line of CSV at *at, which moves from line->text to the next one; NULL = there are no more. */
const char *file_next_cell(const FileLine *line, const char **at, size_t *size);
double  cell_number(const char *cell, size_t size);       /* NaN for a text that is no finite number */

int     file_exists(const char *path);
int     file_is_dir(const char *path);
int     file_has_name(int fd, const char *path);          /* fd is open on the file that path names now */
char   *format_string(const char *format, ...) __attribute__((format(printf, 1, 2)));   /* a new string */
FILE   *string_open(char **text, size_t *size, const char *what);   /* a stream into a new string, set by fclose */
int     ends_with(const char *text, const char *end);

typedef struct { char text[4096]; } Path;     /* PATH_MAX */
Path path_of(const char *dir, const char *name);          /* "a/b" of "a" or "a/", "b"; fails when it is too long */
int  dir_has_file(const char *dir, const char *name);     /* DIR/NAME exists, not as a directory */
Path file_parent(const char *path);                       /* "a/b" of "a/b/c", "." of "c", "/" of "/c" */

enum { SAFETENSORS_HEADER_MAX = 100000000 };                 /* bytes, by the format's definition */

/* What a file seems to be by its first bytes: "a PyTorch checkpoint (zip)", "a safetensors file", "a token shard", ...;
   NULL = unknown. */
const char *file_kind(const unsigned char *bytes, int64_t size);

/* A new file, for writing; a file, link or FIFO of that name is removed first. file_close_durably reports the first
   error of file_write, fwrite and fprintf, and closes the file also when it fails. */
FILE *file_create(const char *path);
FILE *file_try_create(const char *path);                  /* the same, but NULL and errno on an error */
/* A file that may exist, for writing over its bytes, with its lock until it is closed; NULL = another process has it.
   Where the file system has no locks, without one. */
FILE *file_open_locked(const char *path);
void  file_write(FILE *file, const void *bytes, size_t size);
void  file_close_durably(FILE *file, const char *path);   /* flush, fsync, close */
void  directory_make(const char *path);                   /* with its parents; an existing directory is not an error */
void  directory_sync(const char *path);
/* A descriptor that holds the lock of a directory until it is closed; 0 = another process has it, for 0.1 s: a child of
   a killed run has it until its exec. No locks there: a warning. Fails where the directory cannot be opened. */
typedef struct { int fd, is_locked; } DirectoryLock;
DirectoryLock directory_lock(const char *path);
void  file_rename(const char *from, const char *to);      /* and sync of the directory of to */

/* XXH64, as `xxhsum -H64` prints; detects damage, not forgery. Xxh64, {0} at first: the sum of all bytes added. */
typedef struct { uint64_t lane[4], size; unsigned char rest[32]; } Xxh64;
void     xxh64_add(Xxh64 *hash, const void *bytes, size_t size);
uint64_t xxh64_sum(const Xxh64 *hash);
uint64_t xxh64(const void *bytes, size_t size);           /* these bytes alone */
