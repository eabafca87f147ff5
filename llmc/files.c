#include "files.h"
#include "../kernels/check.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Reading */

/* SIGBUS: what was mapped is no longer there, or cannot be read. */
static void on_missing_page(int number, siginfo_t *info, void *context) {
    static const char line[] = "train_gpt: a file cannot be read on: did it become shorter (written anew in place), or "
                               "does its disk fail?\n";
    (void)context;
    if (info->si_code != BUS_ADRERR) {          /* the machine's memory, or kill(1) */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (isatty(STDOUT_FILENO)) (void)!write(STDOUT_FILENO, "\n", 1);         /* ends the line that stands in place */
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    _exit(1);
}

FileMap file_map(const char *path) {
    /* O_NONBLOCK: a pipe opens at once and is then refused, where it would wait for somebody to write. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    REQUIRE(fd >= 0, "%s: cannot open: %s", path, strerror(errno));
    struct stat info;
    REQUIRE(fstat(fd, &info) == 0, "%s: cannot read: %s", path, strerror(errno));
    REQUIRE(!S_ISDIR(info.st_mode), "%s: is a directory, want a file", path);
    REQUIRE(S_ISREG(info.st_mode), "%s: is a pipe or a device, want a file on disk: save it as one first", path);
    FileMap map = { (const unsigned char *)"", 0 };
    if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        REQUIRE(bytes != MAP_FAILED, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size, strerror(errno));
        map = (FileMap){ bytes, info.st_size };
        sigaction(SIGBUS, &(struct sigaction){ .sa_sigaction = on_missing_page, .sa_flags = SA_SIGINFO }, NULL);
    }
    close(fd);
    return map;
}

void file_unmap(FileMap map) {
    if (map.size > 0) munmap((void *)map.bytes, (size_t)map.size);
}

int file_exists(const char *path) { return access(path, F_OK) == 0; }

int file_has_name(int fd, const char *path) {
    struct stat open, named;
    return !fstat(fd, &open) && !stat(path, &named) && open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

int file_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

char *format_string(const char *format, ...) {
    char *path;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&path, format, arguments);
    va_end(arguments);
    REQUIRE(length >= 0, "out of memory for a file's name");
    return path;
}

int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

char *file_parent(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    while (length > 0 && path[length - 1] != '/') length--;
    while (length > 1 && path[length - 1] == '/') length--;
    return length ? format_string("%.*s", (int)length, path) : format_string(".");
}

/* ---- What a file is */

typedef struct { uint32_t number; const char *kind; } Number;   /* the first four bytes, little-endian */
typedef struct { int at, length; const char *bytes, *kind; } Magic;

static const Number numbers[] = {
    { 20240326, "an llm.c checkpoint" },
    { 20240527, "an llm.c optimizer state" },
    { 20240327, "an llm.c debug state" },
    { 20240328, "an llm.c tokenizer" },
    { 20240522, "an llm.c evaluation set" },
    { 20240803, "an llm.c Llama 3 checkpoint" },
    { SHARD_UINT16, "a token shard" },
    { SHARD_UINT32, "a token shard" },
    { 0x67676d6c, "a ggml model" },
    { 0x67676d66, "a ggml model" },
    { 0x67676a74, "a ggml model" },
};

static const Magic magics[] = {
    { 0, 2, "\x80\x02", "a Python pickle" },
    { 0, 2, "\x80\x03", "a Python pickle" },
    { 0, 2, "\x80\x04", "a Python pickle" },
    { 0, 2, "\x80\x05", "a Python pickle" },
    { 0, 4, "GGUF", "a GGUF model" },
    { 0, 6, "\x93NUMPY", "a NumPy array" },
    { 0, 8, "\x89HDF\r\n\x1a\n", "an HDF5 file" },
    { 0, 2, "\x1f\x8b", "a gzip archive" },
    { 0, 6, "\xfd" "7zXZ\0", "an xz archive" },
    { 0, 4, "\x28\xb5\x2f\xfd", "a zstd archive" },
    { 4, 6, "1AY&SY", "a bzip2 archive" },
    { 0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive" },
    { 257, 5, "ustar", "a tar archive" },
    { 0, 5, "%PDF-", "a PDF document" },
    { 0, 4, "\x7f" "ELF", "a program (ELF)" },
    { 0, 8, "\x89PNG\r\n\x1a\n", "a PNG image" },
    { 0, 3, "\xff\xd8\xff", "a JPEG image" },
    { 0, 4, "PAR1", "a Parquet table" },
    { 0, 6, "ARROW1", "an Arrow table" },
    { 0, 16, "SQLite format 3", "an SQLite database" },
    { 0, 34, "version https://git-lfs.github.com", "a Git LFS pointer, not the file itself" },
};

static uint64_t little_endian(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

const char *file_kind(const unsigned char *bytes, int64_t size) {
    /* first: a length of 640 or so in front of the '{' is a pickle's magic, too */
    if (size >= 9 && bytes[8] == '{' && little_endian(bytes, 8) <= SAFETENSORS_HEADER_MAX) return "a safetensors file";
    if (size >= 4) {
        uint64_t number = little_endian(bytes, 4);
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (number == numbers[i].number) return numbers[i].kind;
        if (!memcmp(bytes, "PK\3\4", 4)) {       /* the name of the first file inside tells what kind of zip it is */
            size_t head = size < 200 ? (size_t)size : 200;
            if (memmem(bytes, head, "data.pkl", 8)) return "a PyTorch checkpoint (zip)";
            return memmem(bytes, head, ".npy", 4) ? "a NumPy archive (zip)" : "a zip archive";
        }
    }
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const Magic *m = &magics[i];
        if (size >= m->at + m->length && !memcmp(bytes + m->at, m->bytes, (size_t)m->length)) return m->kind;
    }
    return NULL;
}

/* ---- Writing */

static _Thread_local int write_error;      /* errno of the first file_write that failed since the last file_create */

FILE *file_create(const char *path) {
    write_error = 0;
    signal(SIGXFSZ, SIG_IGN);      /* a limit on file sizes is then an error of write, not the end by a signal */
    FILE *file = fopen(path, "wbe");
    REQUIRE(file, "%s: cannot create: %s", path, strerror(errno));
    return file;
}

void file_write(FILE *file, const void *bytes, size_t size) {
    if (!ferror(file) && fwrite(bytes, 1, size, file) != size) write_error = errno;
}

/* A pipe and some file systems have nothing to sync, and say EINVAL. */
static int sync_fails(int fd) { return fsync(fd) && errno != EINVAL && errno != EROFS; }

void file_close_durably(FILE *file, const char *path) {
    errno = 0;
    int failed = fflush(file) || ferror(file) || sync_fails(fileno(file));
    int error = write_error ? write_error : errno;
    if (fclose(file) && !failed) {
        failed = 1;
        error = errno;
    }
    REQUIRE(!failed, "%s: cannot write: %s", path,
            error ? strerror(error) : "an earlier write failed: is the disk full?");
}

static int sync_dir(const char *path) {       /* returns errno, or 0 */
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = fd < 0 || sync_fails(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return error;
}

/* A new name is durable once its folder is. */
static int sync_dir_of(const char *path) {
    char *parent = file_parent(path);
    int error = sync_dir(parent);
    free(parent);
    return error;
}

void directory_make(const char *path) {
    REQUIRE(*path, "cannot make a directory without a name");
    char *part = format_string("%s", path), *end = part + 1;
    int error = 0;
    for (; ; end++) {
        if (*end && *end != '/') continue;
        char next = *end;
        *end = 0;
        if (!file_is_dir(part)) {
            error = mkdir(part, 0777) ? errno : sync_dir_of(part);
            if (error == EEXIST && file_is_dir(part)) error = 0;      /* somebody else made it meanwhile */
        }
        *end = next;
        if (error || !next) break;
    }
    int length = (int)(end - part);
    free(part);
    REQUIRE(!error, "%.*s: cannot make the directory: %s", length, path, strerror(error));
}

void directory_sync(const char *path) {
    int error = sync_dir(path);
    REQUIRE(!error, "%s: cannot sync the directory: %s", path, strerror(error));
}

void file_rename(const char *from, const char *to) {
    REQUIRE(rename(from, to) == 0, "%s: cannot rename to %s: %s", from, to, strerror(errno));
    int error = sync_dir_of(to);
    REQUIRE(!error, "%s: cannot sync its directory: %s", to, strerror(error));
}

int file_exchange(const char *a, const char *b) {
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE)) return 0;
    int error = sync_dir_of(b);
    REQUIRE(!error, "%s: cannot sync its directory: %s", b, strerror(error));
    return 1;
}
