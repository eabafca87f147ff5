/* faults.c - Preloaded (LD_PRELOAD), makes calls that write fail, like a full, limited or broken disk.

   FAULT_PATH   only calls on paths that hold this text count; needed, else nothing fails
   FAULT_CALLS  of which kind, "write,fsync,rename,open,mkdir,unlink"; not given = all of them
   FAULT_FIRST  the number of the first call that fails, from 1 on; 0 or not given = none
   FAULT_EVERY  and every so many after it; not given = that one alone
   FAULT_ERROR  ENOSPC (as by default), EDQUOT or EIO; SLOW: the call takes two seconds and succeeds; KILL: SIGKILL
                before the call, which is after the one before
   FAULT_LOG    a file: every call that counts is written down, "fsync /tmp/a/model.safetensors"
   FAULT_NO_LOCKS  1: the file system has no flock, whatever the path

   glibc's streams do not call write by its name: a stream's write is failed by replacing its file with /dev/full
   during the call, so that the error passes through the stream like a real one. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

static int number_of(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }

static int error_wanted(void) {
    const char *name = getenv("FAULT_ERROR");
    return name && !strcmp(name, "EIO") ? EIO : name && !strcmp(name, "EDQUOT") ? EDQUOT : ENOSPC;
}

static ssize_t write_really(int fd, const void *bytes, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return real(fd, bytes, size);
}

/* Whether this call is to fail; errno is set then. */
static int strikes(const char *call, const char *path) {
    static atomic_int calls;
    const char *part = getenv("FAULT_PATH"), *kinds = getenv("FAULT_CALLS"), *log = getenv("FAULT_LOG");
    if (!part || !strstr(path, part) || (kinds && !strstr(kinds, call))) return 0;
    int number = ++calls, first = number_of("FAULT_FIRST"), every = number_of("FAULT_EVERY"), was = errno;
    if (log) {
        char line[1200];
        int length = snprintf(line, sizeof line, "%s %.1000s\n", call, path);
        REAL(int, "open", const char *, int, ...);
        int fd = real(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (write_really(fd, line, (size_t)length) != length) abort();
        close(fd);
    }
    errno = was;
    if (!first || number < first || (number > first && (!every || (number - first) % every))) return 0;
    const char *error = getenv("FAULT_ERROR");
    if (error && !strcmp(error, "SLOW")) return (int)sleep(2);
    if (error && !strcmp(error, "KILL")) kill(getpid(), SIGKILL);
    errno = error_wanted();
    return 1;
}

static const char *path_of(int fd, char path[1024]) {
    char link[64];
    int was = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 1023);
    path[length > 0 ? length : 0] = 0;
    errno = was;
    return path;
}

/* ---- write, and what streams do in its place */

ssize_t write(int fd, const void *bytes, size_t size) {
    char path[1024];
    static atomic_int cut = -1;             /* the file whose write has been cut short: its next one fails */
    if (fd == cut) {
        cut = -1;
        errno = error_wanted();
        return -1;
    }
    if (!strikes("write", path_of(fd, path))) return write_really(fd, bytes, size);
    if (size < 2) return -1;
    cut = fd;
    return write_really(fd, bytes, size / 2);
}

static int flush_really(FILE *file) {
    REAL(int, "fflush", FILE *);
    return real(file);
}

static size_t fwrite_really(const void *bytes, size_t size, size_t count, FILE *file) {
    REAL(size_t, "fwrite", const void *, size_t, size_t, FILE *);
    return real(bytes, size, count, file);
}

static int full_begins(FILE *file) {        /* returns what fileno(file) was */
    int kept = dup(fileno(file)), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (kept < 0 || dup2(full, fileno(file)) < 0) abort();
    close(full);
    return kept;
}

static void full_ends(FILE *file, int kept) {
    dup2(kept, fileno(file));
    close(kept);
    errno = error_wanted();
}

int fflush(FILE *file) {
    char path[1024];
    if (!file || !__fpending(file) || !strikes("write", path_of(fileno(file), path))) return flush_really(file);
    int kept = full_begins(file), result = flush_really(file);
    full_ends(file, kept);
    return result;
}

size_t fwrite(const void *bytes, size_t size, size_t count, FILE *file) {
    char path[1024];
    int reaches_disk = size * count >= 4096;      /* less goes to the buffer, and is struck when it is flushed */
    if (!reaches_disk || !strikes("write", path_of(fileno(file), path))) return fwrite_really(bytes, size, count, file);
    size_t half = fwrite_really(bytes, 1, size * count / 2, file);
    flush_really(file);
    int kept = full_begins(file);
    size_t rest = fwrite_really((const char *)bytes + half, 1, size * count - half, file);
    flush_really(file);
    full_ends(file, kept);
    return (half + rest) / size - (half + rest == size * count);
}

/* ---- The others fail before they do anything */

int fsync(int fd) {
    char path[1024];
    REAL(int, "fsync", int);
    return strikes("fsync", path_of(fd, path)) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    return strikes("rename", from) ? -1 : real(from, to);
}

int flock(int fd, int operation) {
    REAL(int, "flock", int, int);
    if (!getenv("FAULT_NO_LOCKS")) return real(fd, operation);
    errno = EBADF;
    return -1;
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    return strikes("mkdir", path) ? -1 : real(path, mode);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    return strikes("unlink", path) ? -1 : real(path);
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    REAL(int, "open", const char *, int, ...);
    return (flags & (O_CREAT | O_DIRECTORY)) && strikes("open", path) ? -1 : real(path, flags, mode);
}
