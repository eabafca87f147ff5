/* fuzz.c - Input files in memory, fail() that returns to the target, and limits on allocations. */
#include "fuzz.h"
#include <glob.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../llmc/base/files.h"

/* ---- Files. --wrap=NAME of the linker sends the calls of NAME to __wrap_NAME. */

enum { FILES_MAX = 8, PAGE = 4096 };
static struct { char path[64]; unsigned char *bytes; size_t size; } files[FILES_MAX];
static int    file_count, map_count;
static FileMap maps[FILES_MAX];
static size_t input_size;

void fuzz_file(const char *path, const void *bytes, size_t size) {
    CLAIM(file_count < FILES_MAX, "%s is one file too many", path);
    snprintf(files[file_count].path, sizeof files->path, "%s", path);
    files[file_count].bytes = memcpy(malloc(size + 1), bytes, size);
    files[file_count++].size = size;
}

static int find_file(const char *path) {
    int i = file_count;
    while (--i >= 0 && strcmp(files[i].path, path)) {}
    return i;
}

FileMap __wrap_file_map(const char *path) {
    int i = find_file(path);
    REQUIRE(i >= 0, "%s: cannot open: No such file or directory", path);
    const size_t size = files[i].size, pages = (size + PAGE - 1) / PAGE * PAGE;
    if (!size) return (FileMap){ (const unsigned char *)"", 0 };
    unsigned char *memory = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CLAIM(memory != MAP_FAILED && map_count < FILES_MAX, "%d files are mapped", map_count);
    memcpy(memory + pages - size, files[i].bytes, size);
    mprotect(memory + pages, PAGE, PROT_NONE);
    return maps[map_count++] = (FileMap){ memory + pages - size, (int64_t)size };
}

void __wrap_file_unmap(FileMap map) {
    const size_t pages = ((size_t)map.size + PAGE - 1) / PAGE * PAGE;
    if (!map.size) return;
    for (int i = 0; i < map_count; i++)
        if (maps[i].bytes == map.bytes) maps[i--] = maps[--map_count];
    munmap((unsigned char *)map.bytes + map.size - pages, pages + PAGE);
}

int __wrap_file_exists(const char *path) { return find_file(path) >= 0; }

int __wrap_dir_has_file(const char *dir, const char *name) { return find_file(path_of(dir, name).text) >= 0; }

/* Every file matches every pattern. */
int __wrap_glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found) {
    (void)pattern, (void)flags, (void)failed;
    static char *names[FILES_MAX];
    for (int i = 0; i < file_count; i++) names[i] = files[i].path;
    found->gl_pathc = (size_t)file_count;
    found->gl_pathv = names;
    return file_count ? 0 : GLOB_NOMATCH;
}

void __wrap_globfree(glob_t *found) { found->gl_pathc = 0; }

/* Open streams and, from first_fd on, descriptors: an input that is refused leaves them open. */
enum { STREAMS_MAX = 8 };
static FILE *streams[STREAMS_MAX];
static int   stream_count, first_fd;

static FILE *add_stream(FILE *file) {
    CLAIM(file && stream_count < STREAMS_MAX, "%d open streams", stream_count);
    return streams[stream_count++] = file;
}

static int next_fd(void) {
    int fd = dup(STDERR_FILENO);
    CLAIM(fd >= 0 && !close(fd), "no descriptor is left");
    return fd;
}

int __real_fclose(FILE *file);
int __wrap_fclose(FILE *file) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == file) streams[i] = streams[--stream_count];
    return __real_fclose(file);
}

static void close_all(void) {
    while (stream_count) fclose(streams[stream_count - 1]);
    for (int fd = first_fd; fd < first_fd + STREAMS_MAX; fd++) close(fd);
}

FILE *__real_string_open(char **text, size_t *size, const char *what);
FILE *__wrap_string_open(char **text, size_t *size, const char *what) {
    return add_stream(__real_string_open(text, size, what));
}

/* What is written goes nowhere. */
FILE *__wrap_file_create(const char *path) { (void)path; return add_stream(fopen("/dev/null", "wb")); }

void __wrap_file_close_durably(FILE *file, const char *path) { REQUIRE(!fclose(file), "%s: cannot write", path); }

void __wrap_file_rename(const char *from, const char *to) { (void)from, (void)to; }

int __wrap_file_has_name(int fd, const char *path) { (void)fd, (void)path; return 1; }

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    return __real_open(strncmp(path, "OUT/", 4) ? path : "/dev/null", flags, 0600);
}

/* ---- Memory: checked under AddressSanitizer alone, which reports every block */

enum { BLOCKS_MAX = 1 << 16 };
static const volatile void *blocks[BLOCKS_MAX];
static int block_count;
static __thread int watching;

int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t), void (*)(const volatile void *))
    __attribute__((weak));

static void on_malloc(const volatile void *block, size_t size) {
    if (!watching) return;
    watching = 0;
    CLAIM(size <= (64 << 10) + 128 * input_size, "%zu bytes at once for an input of %zu", size, input_size);
    CLAIM(block_count < BLOCKS_MAX, "%d blocks for an input of %zu", block_count, input_size);
    watching = 1;
    blocks[block_count++] = block;
}

static void on_free(const volatile void *block) {
    if (!watching || !block) return;
    for (int i = block_count - 1; i >= 0; i--)
        if (blocks[i] == block) {
            blocks[i] = blocks[--block_count];
            return;
        }
}

/* ---- Trying */

static jmp_buf jump;
static char message[4096];
int fuzz_accepted;

static void come_back(const char *text) {
    snprintf(message, sizeof message, "%s", text);
    close_all();                        /* here: a stream into a string sets variables of its function */
    longjmp(jump, 1);
}

int fuzz_try(void (*read)(void *), void *argument, int keeps, const char *named) {
    static volatile int accepted;
    block_count = map_count = 0;
    accepted = 0;
    first_fd = next_fd();
    fail_hook = come_back;
    watching = 1;
    if (!setjmp(jump)) {
        read(argument);
        accepted = 1;
    }
    watching = 0;
    fail_hook = NULL;
    CLAIM(stream_count == 0 && next_fd() == first_fd, "%d streams, or descriptors, were not closed", stream_count);
    CLAIM(!accepted || keeps || block_count == 0, "%d blocks of memory were not freed", block_count);
    CLAIM(!accepted || keeps || map_count == 0, "%d files were not unmapped", map_count);
    while (block_count) free((void *)blocks[--block_count]);
    while (map_count) __wrap_file_unmap(maps[0]);
    fuzz_accepted += accepted;
    if (accepted) return 1;

    CLAIM(*message && strlen(message) < 2048, "a message of %zu bytes: %s", strlen(message), message);
    CLAIM(strstr(message, named), "want \"%s\" in: %s", named, message);
    for (const unsigned char *c = (unsigned char *)message; *c; c++)
        CLAIM(*c >= ' ' && *c != 127 && !(*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0), "an order to the terminal: %s",
              message);
    return 0;
}

void fuzz_run(const FuzzTarget *target, const void *bytes, size_t size) {
    static int hooked;
    if (!hooked && __sanitizer_install_malloc_and_free_hooks)
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    hooked = 1;
    char *input = malloc(size + !size);     /* just its size: a read beyond it is found */
    if (size) memcpy(input, bytes, size);
    input_size = size;
    target->read(input, size);
    for (; file_count; ) free(files[--file_count].bytes);
    free(input);
}
