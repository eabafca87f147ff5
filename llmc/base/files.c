#include "files.h"
#include "base.h"
#include <libgen.h>
#include <sys/file.h>

/* ---- Reading */

/* SIGBUS: a page of a mapped file cannot be read. */
static void on_missing_page(int number) {
    (void)number;
    fail("a mapped file cannot be read: was it truncated meanwhile, or does its disk fail?");
}

FileMap file_map(const char *path) {
    /* O_NONBLOCK: opening a pipe does not wait for a writer; it is refused below */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    REQUIRE(fd >= 0, "%s: cannot open: %s", path, strerror(errno));
    struct stat info;
    REQUIRE(fstat(fd, &info) == 0, "%s: cannot read: %s", path, strerror(errno));
    REQUIRE(S_ISREG(info.st_mode), "%s: is a %s, want a file on disk", path,
            S_ISDIR(info.st_mode) ? "directory" : "pipe or a device");
    FileMap map = { (const unsigned char *)"", 0 };
    if (info.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        REQUIRE(bytes != MAP_FAILED, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size, strerror(errno));
        map = (FileMap){ bytes, info.st_size };
        signal(SIGBUS, on_missing_page);
    }
    close(fd);
    return map;
}

void file_unmap(FileMap map) { if (map.size > 0) munmap((void *)map.bytes, (size_t)map.size); }

int file_next_line(FileMap map, FileLine *line) {
    const char *start = (const char *)map.bytes, *end = start + map.size;
    const char *text = line->next ? line->next : start + utf8_mark(start, (size_t)map.size);
    const char *newline = memchr(text, '\n', (size_t)(end - text)), *stop = newline ? newline : end;
    *line = (FileLine){ .text = text, .size = (size_t)(stop - text) - (stop > text && stop[-1] == '\r'),
                        .next = stop + (newline != NULL), .number = line->number + 1 };
    return text < end;
}

const char *file_next_cell(const FileLine *line, const char **at, size_t *size) {
    const char *cell = *at, *end = line->text + line->size;
    if (cell > end) return NULL;
    const char *comma = memchr(cell, ',', (size_t)(end - cell));
    *size = (size_t)((comma ? comma : end) - cell);
    *at = cell + *size + 1;
    return cell;
}

double cell_number(const char *cell, size_t size) {
    char text[64] = "", *end;
    if (!size || size >= sizeof text) return NAN;
    memcpy(text, cell, size);
    double value = strtod(text, &end);
    return end == text + size && isfinite(value) ? value : NAN;
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
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    REQUIRE(length >= 0, "out of memory: a string");
    return text;
}

FILE *string_open(char **text, size_t *size, const char *what) {
    FILE *file = open_memstream(text, size);
    REQUIRE(file, "out of memory: %s", what);
    return file;
}

int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

Path path_of(const char *dir, const char *name) {
    Path path;
    int length = snprintf(path.text, sizeof path.text, "%s%s%s", dir, ends_with(dir, "/") ? "" : "/", name);
    REQUIRE(length < (int)sizeof path.text, "%s/%s: the name is too long", dir, name);
    return path;
}

int dir_has_file(const char *dir, const char *name) {
    Path path = path_of(dir, name);
    return file_exists(path.text) && !file_is_dir(path.text);
}

Path file_parent(const char *path) {
    Path name, parent;
    snprintf(name.text, sizeof name.text, "%s", path);
    snprintf(parent.text, sizeof parent.text, "%s", dirname(name.text));
    return parent;
}

/* ---- What a file is */

static const struct { int length; const char *bytes, *kind; } kinds[] = {
    { 2, "\x1f\x8b", "a gzip archive" },
    { 6, "\xfd" "7zXZ\0", "an xz archive" },
    { 4, "\x28\xb5\x2f\xfd", "a zstd archive" },
    { 10, "BZh91AY&SY", "a bzip2 archive" },
    { 4, "\xff\xfe\0\0", "a text in UTF-32 (iconv -f UTF-32 -t UTF-8 converts it)" },
    { 4, "\0\0\xfe\xff", "a text in UTF-32 (iconv -f UTF-32 -t UTF-8 converts it)" },
    { 2, "\xff\xfe", "a text in UTF-16 (iconv -f UTF-16 -t UTF-8 converts it)" },
    { 2, "\xfe\xff", "a text in UTF-16 (iconv -f UTF-16 -t UTF-8 converts it)" },
    { 5, "%PDF-", "a PDF document" },
    { 4, "GGUF", "a GGUF model" },
    { 6, "\x93NUMPY", "a NumPy array" },
    { 4, "PAR1", "a Parquet table" },
    { 6, "ARROW1", "an Arrow table" },
    { 16, "SQLite format 3", "an SQLite database" },
    { 34, "version https://git-lfs.github.com", "a Git LFS pointer, not the file itself" },
    { 4, "\xc6\xd7\x34\1", "an llm.c checkpoint" },                /* 20240326, little-endian */
    { 4, "\x88\xd8\x34\1", "a token shard" },                      /* SHARD_UINT16 */
    { 4, "\xa1\xd9\x34\1", "a token shard" },                      /* SHARD_UINT32 */
};

const char *file_kind(const unsigned char *bytes, int64_t size) {
    uint64_t header = 0;
    for (int i = 7; i >= 0 && size >= 8; i--) header = header << 8 | bytes[i];
    /* first: a header of 640 bytes or so begins like a pickle */
    if (size >= 9 && bytes[8] == '{' && header <= SAFETENSORS_HEADER_MAX) return "a safetensors file";
    if (size >= 4 && !memcmp(bytes, "PK\3\4", 4))     /* the name of the first file inside */
        return memmem(bytes, size < 200 ? (size_t)size : 200, "data.pkl", 8) ? "a PyTorch checkpoint (zip)"
                                                                            : "a zip archive";
    if (size >= 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5) return "a Python pickle";     /* protocol */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= kinds[i].length && !memcmp(bytes, kinds[i].bytes, (size_t)kinds[i].length)) return kinds[i].kind;
    if (size >= 8 && !memcmp(bytes, "\xff\xff\xff\xff", 4) && !bytes[7]) return "an Arrow stream";  /* then a length */
    if (size >= 262 && !memcmp(bytes + 257, "ustar", 5)) return "a tar archive";
    return NULL;
}

/* ---- Writing */

static _Thread_local int write_error;      /* errno of the first file_write that failed since the last file_create */

static FILE *open_to_write(const char *path, int flags) {
    write_error = 0;
    signal(SIGXFSZ, SIG_IGN);      /* a limit on file sizes is then an error of write, not a signal */
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !file) close(fd);
    return file;
}

FILE *file_try_create(const char *path) {
    if (unlink(path) && errno != ENOENT) return NULL;
    /* O_EXCL: neither follows a link that another user puts there meanwhile, nor waits for the reader of a FIFO */
    return open_to_write(path, O_EXCL);
}

FILE *file_create(const char *path) {
    FILE *file = file_try_create(path);
    REQUIRE(file, "%s: cannot create: %s", path, strerror(errno));
    return file;
}

FILE *file_open_locked(const char *path) {
    FILE *file = open_to_write(path, 0);
    REQUIRE(file, "%s: cannot open: %s", path, strerror(errno));
    const int is_busy = flock(fileno(file), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (!is_busy && file_has_name(fileno(file), path)) return file;
    fclose(file);
    return NULL;
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
    if (fclose(file) && !failed) failed = error = errno;
    REQUIRE(!failed, "%s: cannot write: %s", path,
            error ? strerror(error) : "an earlier write failed: is the disk full?");
}

void directory_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = fd < 0 || sync_fails(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    REQUIRE(!error, "%s: cannot sync the directory: %s", path, strerror(error));
}

/* A new name is durable once its directory is synced. */
static void sync_parent(const char *path) { directory_sync(file_parent(path).text); }

DirectoryLock directory_lock(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error, tries = 0;
    REQUIRE(fd >= 0, "%s: cannot open the directory: %s", path, strerror(errno));
    while ((error = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0) == EWOULDBLOCK && tries++ < 100) usleep(1000);
    if (error == EWOULDBLOCK) {
        close(fd);
        return (DirectoryLock){0};
    }
    if (error)                  /* EBADF of NFS, ENOLCK, ENOSYS */
        print_line(stderr, "warning: %s: cannot be locked: %s: start no other process that writes to it", path,
                   strerror(error));
    return (DirectoryLock){ fd, !error };
}

void directory_make(const char *path) {
    Path part = path_of(path, "");
    for (char *slash = part.text; (slash = strchr(slash + 1, '/')); *slash = '/') {
        *slash = 0;
        if (file_is_dir(part.text)) continue;
        const int error = mkdir(part.text, 0777) ? errno : 0;
        REQUIRE(!error || (error == EEXIST && file_is_dir(part.text)), "%s: cannot make the directory: %s", part.text,
                strerror(error));               /* EEXIST: made by another process */
        sync_parent(part.text);
    }
}

void file_rename(const char *from, const char *to) {
    REQUIRE(rename(from, to) == 0, "%s: cannot rename to %s: %s", from, to, strerror(errno));
    sync_parent(to);
}

/* ---- XXH64 with seed 0, by Yann Collet: github.com/Cyan4973/xxHash, doc/xxhash_spec.md */

/* The specification's primes 1 to 5; little-endian words, as everywhere here. */
static const uint64_t P1 = 0x9e3779b185ebca87, P2 = 0xc2b2ae3d27d4eb4f, P3 = 0x165667b19e3779f9,
                      P4 = 0x85ebca77c2b2ae63, P5 = 0x27d4eb2f165667c5;

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
static uint64_t turn(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

static uint64_t word_at(const unsigned char *bytes, size_t size) {
    uint64_t word = 0;
    memcpy(&word, bytes, size);
    return word;
}

static void add_block(uint64_t lane[4], const unsigned char *block) {
    for (int i = 0; i < 4; i++) lane[i] = turn(lane[i], word_at(block + 8 * i, 8));
}

void xxh64_add(Xxh64 *hash, const void *bytes, size_t size) {
    const unsigned char *next = bytes, *end = next + size;
    const size_t held = hash->size % 32, room = (32 - held) % 32, first = size < room ? size : room;
    uint64_t lane[4] = { P1 + P2, P2, 0, -P1 };     /* not in hash, which the bytes might alias: half the speed */
    if (hash->size) memcpy(lane, hash->lane, sizeof lane);
    memcpy(hash->rest + held, next, first);
    if (held && held + first == 32) add_block(lane, hash->rest);
    for (next += first; end - next >= 32; next += 32) add_block(lane, next);
    if (next < end) memcpy(hash->rest, next, (size_t)(end - next));
    memcpy(hash->lane, lane, sizeof lane);
    hash->size += size;
}

uint64_t xxh64_sum(const Xxh64 *hash) {
    const unsigned char *next = hash->rest, *end = next + hash->size % 32;
    const uint64_t *lane = hash->lane;
    uint64_t h = P5;
    if (hash->size >= 32) {
        h = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ turn(0, lane[i])) * P1 + P4;
    }
    h += hash->size;
    for (; end - next >= 8; next += 8) h = rotate(h ^ turn(0, word_at(next, 8)), 27) * P1 + P4;
    for (; end - next >= 4; next += 4) h = rotate(h ^ word_at(next, 4) * P1, 23) * P2 + P3;
    for (; next < end; next++)         h = rotate(h ^ *next * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

uint64_t xxh64(const void *bytes, size_t size) {
    Xxh64 hash = {0};
    xxh64_add(&hash, bytes, size);
    return xxh64_sum(&hash);
}
