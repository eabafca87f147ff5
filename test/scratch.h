/* scratch.h - A directory for the files of a test, removed at the end, and damaged files. */
#ifndef TEST_SCRATCH_H
#define TEST_SCRATCH_H
#include "test.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include "../llmc/base/files.h"
#include "../llmc/base/random.h"

static char scratch[256];

/* STRING("step-%d", 3), IN_SCRATCH("step-%d", 3): live as long as the program, kept in a list, which is no leak. */
#define STRING(...)     scratch_keep(format_string(__VA_ARGS__))
#define IN_SCRATCH(...) STRING("%s/%s", scratch, STRING(__VA_ARGS__))
static char *scratch_kept[8192];
static int   scratch_count;

static inline char *scratch_keep(char *text) {
    if (scratch_count == COUNT(scratch_kept)) fail("too many names in one test");
    return scratch_kept[scratch_count++] = text;
}

static inline void scratch_close(void) {
    char *command = format_string("rm -rf '%s'", scratch);
    if (system(command)) printf("%s stays behind\n", scratch);
    free(command);
    for (int i = 0; i < scratch_count; i++) free(scratch_kept[i]);
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

/* The text of a file, "" of none; lives as long as the program. */
static inline const char *text_of(const char *path) {
    FileMap map = file_exists(path) ? file_map(path) : (FileMap){ .bytes = (void *)"" };
    char *text = STRING("%.*s", (int)map.size, (const char *)map.bytes);
    file_unmap(map);
    return text;
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

/* What f writes to fd. */
static inline const char *printed_on(int fd, void (*f)(void *), void *argument) {
    const char *path = IN_SCRATCH("printed");
    put_text(path, "");
    const int was = redirect(fd, path);
    f(argument);
    restore(fd, was);
    return text_of(path);
}

/* The text at from again at to, with new in the place of the first old. */
static inline void edit(const char *from, const char *to, const char *old, const char *new) {
    FileMap map = file_map(from);
    char *text = format_string("%.*s", (int)map.size, (const char *)map.bytes), *at = strstr(text, old);
    EXPECT(at, "%s has no %s", from, old);
    char *edited = format_string("%.*s%s%s", at ? (int)(at - text) : 0, text, new, at ? at + strlen(old) : "");
    file_unmap(map);
    put_text(to, edited);
    free(text);
    free(edited);
}

static inline int same_files(const char *a, const char *b) {
    FileMap x = file_map(a), y = file_map(b);
    int same = x.size == y.size && !memcmp(x.bytes, y.bytes, (size_t)x.size);
    file_unmap(x);
    file_unmap(y);
    return same;
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
    unsigned char *bytes = calloc(1, 8 + length + data_bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, quoted(header), length);
    if (data) memcpy(bytes + 8 + length, data, data_bytes);
    put(path, bytes, 8 + length + data_bytes);
    free(bytes);
}

/* ---- Mutations: change the first changeable bytes of a file at random, read it: it loads, or fails in one line */

static jmp_buf     mutation_jump;
static const char *mutation_path;
typedef struct { int loaded, failed, unnamed; } MutationCount;
static MutationCount *mutation_count;

static inline void mutation_failed(const char *message) {
    mutation_count->failed++;
    if (!strstr(message, mutation_path) || strchr(message, '\n')) {
        mutation_count->unnamed++;
        printf("  the message does not name the file: %s\n", message);
        fflush(stdout);     /* which may be a child's */
    }
    longjmp(mutation_jump, 1);
}

static inline void mutation_read(void (*read)(void *), void *argument) {
    if (setjmp(mutation_jump)) return;
    read(argument);
    mutation_count->loaded++;
}

static inline uint32_t mutation_draw(uint32_t n, uint32_t which, uint64_t below) {
    return (uint32_t)random_below(5, RANDOM_TEST, n, which, below);
}

/* One to three of: a bit flipped, a byte that means something to a reader, a few bytes taken from elsewhere; one in
   five is cut short as well. */
static inline size_t mutate(unsigned char *bytes, size_t size, size_t changeable, uint32_t n) {
    static const char telling[] = "\"\\{}[]:,-+.eE0129 tfnu\n\x80\xff";
    uint32_t changes = 1 + mutation_draw(n, 0, 3);
    for (uint32_t i = 0; i < changes; i++) {
        unsigned char *place = bytes + mutation_draw(n, 10 * i + 1, changeable);
        uint32_t kind = mutation_draw(n, 10 * i + 2, 3), value = mutation_draw(n, 10 * i + 3, 1 << 20);
        size_t room = (size_t)(bytes + size - place), length = 1 + value % 12;
        if (kind == 0) *place ^= (unsigned char)(1 << value % 8);
        if (kind == 1) *place = (unsigned char)telling[value % sizeof telling];
        if (kind == 2) memmove(place, bytes + value % (size - 12), length < room ? length : room);
    }
    return mutation_draw(n, 4, 5) ? size : mutation_draw(n, 5, size);
}

typedef struct {
    const char *path, *mutant;
    FileMap     original;
    size_t      changeable;
    uint32_t    count;
    void      (*read)(void *);
    void       *argument;
} Mutations;

/* The original is mapped: a new file takes its name, for overwriting would change the map. */
static inline void mutations_read(void *mutations) {
    const Mutations *m = mutations;
    const size_t size = (size_t)m->original.size;
    unsigned char *bytes = malloc(size);
    fail_hook = mutation_failed;
    for (uint32_t n = 0; n < m->count; n++) {
        memcpy(bytes, m->original.bytes, size);
        put(m->mutant, bytes, mutate(bytes, size, m->changeable, n));
        if (rename(m->mutant, m->path)) break;
        mutation_read(m->read, m->argument);
    }
    fail_hook = NULL;
    free(bytes);
}

/* In a child, which leaves behind what a read that failed had allocated. */
static inline MutationCount mutations(const char *path, size_t changeable, uint32_t count, void (*read)(void *),
                                      void *argument) {
    Mutations m = { path, format_string("%s.mutant", path), file_map(path), changeable, count, read, argument };
    char text[1024] = "";
    int status = 0;
    if (changeable > (size_t)m.original.size) m.changeable = (size_t)m.original.size;
    mutation_count = mmap(NULL, sizeof *mutation_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mutation_path = path;
    if (test_in_process) mutations_read(&m);
    else                 test_in_child(mutations_read, &m, text, sizeof text, &status);
    put(m.mutant, m.original.bytes, (size_t)m.original.size);
    EXPECT(rename(m.mutant, path) == 0, "%s is put back", path);
    MutationCount result = *mutation_count;
    munmap(mutation_count, sizeof *mutation_count);
    file_unmap(m.original);
    free((char *)m.mutant);
    EXPECT(status == 0 && result.loaded > 0 && result.failed > 0 && result.loaded + result.failed == (int)count &&
           !result.unnamed, "%s: status %d; %d loaded, %d failed, %d without the file's name, of %u: %s", path, status,
           result.loaded, result.failed, result.unnamed, count, text);
    return result;
}

#endif
