/* scratch.h - A directory for the files of a test, removed at the end. */
#pragma once
#include "test.h"
#include <fcntl.h>
#include <sys/resource.h>
#include "../llmc/base/json.h"
#include "../llmc/base/random.h"

static char scratch[256];

/* STRING("step-%d", 3), IN_SCRATCH("step-%d", 3): live until the test ends. */
#define STRING(...)     ((char *)test_keep(format_string(__VA_ARGS__)))
#define IN_SCRATCH(...) STRING("%s/%s", scratch, STRING(__VA_ARGS__))

static inline void scratch_close(void) {
    if (system(STRING("rm -rf '%s'", scratch))) printf("%s stays behind\n", scratch);
}

/* In memory where that can be had: some hundred fsyncs take 15 s on a disk that is busy. */
static inline void scratch_open(void) {
    const char *parent = getenv("TMPDIR");
    if (!parent) parent = access("/dev/shm", W_OK | X_OK) ? "/tmp" : "/dev/shm";
    snprintf(scratch, sizeof scratch, "%s/train_gpt_test_XXXXXX", parent);
    if (!mkdtemp(scratch)) fail("%s: cannot make a directory for the test", scratch);
    atexit(scratch_close);      /* children leave by _exit */
}

static inline void put(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file)) fail("%s: cannot prepare a test", path);
}

static inline void put_text(const char *path, const char *text) { put(path, text, strlen(text)); }

/* The text of a file, "" of none; lives until the test ends. */
static inline const char *text_of(const char *path) {
    FileMap map = file_exists(path) ? file_map(path) : (FileMap){ .bytes = (void *)"" };
    char *text = STRING("%.*s", (int)map.size, (const char *)map.bytes);
    file_unmap(map);
    return text;
}

/* The cell of a step and a column of a log.csv, "" also when it is empty, NULL when there is no such row or column. */
static inline const char *log_cell(const char *text, int64_t step, const char *name) {
    const char *at = text;
    int column = 0, width = (int)strlen(name);
    for (; strncmp(at, name, (size_t)width) || !strchr(",\n", at[width]); at++, column++) {
        at += strcspn(at, ",\n");
        if (*at != ',') return NULL;
    }
    at = strstr(text, STRING("\n%lld,", (long long)step));
    if (!at) return NULL;
    for (at++; column--; at++) {
        at += strcspn(at, ",\n");
        if (*at != ',') return NULL;
    }
    return STRING("%.*s", (int)strcspn(at, ",\n"), at);
}

/* fd is the file until restore; what is written is added to it. Returns what fd was. */
static inline int redirect(int fd, const char *path) {
    fflush(NULL);
    int was = dup(fd), file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    REQUIRE(file >= 0 && dup2(file, fd) == fd, "%s: cannot write", path);
    close(file);
    return was;
}

static inline void restore(int fd, int was) {
    fflush(NULL);
    dup2(was, fd);
    close(was);
}

static int printed_was;

static inline void printed_begin(int fd) {
    put_text(IN_SCRATCH("printed"), "");
    printed_was = redirect(fd, IN_SCRATCH("printed"));
}

static inline const char *printed_end(int fd) {
    restore(fd, printed_was);
    return text_of(IN_SCRATCH("printed"));
}

/* What a call writes to fd. */
#define PRINTED_ON(fd, call) (printed_begin(fd), (void)(call), printed_end(fd))

static inline void free_json(void *json) { json_free(json); }

/* Until the test ends. */
static inline Json *parsed(const char *text, size_t size, const char *name) {
    return test_keep_by(free_json, json_parse(text, size, name));
}

/* The text at from again at to, with new in the place of the first old. */
static inline void edit(const char *from, const char *to, const char *old, const char *new) {
    FileMap map = file_map(from);
    char *text = STRING("%.*s", (int)map.size, (const char *)map.bytes), *at = strstr(text, old);
    EXPECT(at, "%s has no %s", from, old);
    file_unmap(map);
    put_text(to, STRING("%.*s%s%s", at ? (int)(at - text) : 0, text, new, at ? at + strlen(old) : ""));
}

/* What is written beyond fails: "File too large", like a disk that is full. */
static inline void limit_file_size(rlim_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* The text with " for each `, which makes JSON readable in C. */
static inline char *quoted(const char *text) {
    char *copy = STRING("%s", text);
    for (char *c = copy; (c = strchr(c, '`')); ) *c = '"';
    return copy;
}

/* A field of a safetensors header, for quoted. */
#define TENSOR(name, dtype, shape, begin, end) \
    "`" name "`:{`dtype`:`" dtype "`,`shape`:[" shape "],`data_offsets`:[" #begin "," #end "]}"

/* The length, the header, quoted, and data_bytes of data (zeros when data is NULL). */
static inline void put_safetensors(const char *path, const char *header, const void *data, size_t data_bytes) {
    size_t length = strlen(header);
    unsigned char *bytes = new_array((int64_t)(8 + length + data_bytes), 1);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, quoted(header), length);
    if (data) memcpy(bytes + 8 + length, data, data_bytes);
    put(path, bytes, 8 + length + data_bytes);
}
