#include "shards.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../base/os.h"
#include "../text/bpe_files.h"

ShardHeader shard_header(FileMap map) {
    ShardHeader header = {0};
    memcpy(&header, map.bytes, map.size < (int64_t)sizeof header ? (size_t)map.size : sizeof header);
    return header;
}

/* The header of a file that has count tokens, behind the place of a header. */
static ShardHeader header_of(FileMap map, int64_t count, int width) {
    return (ShardHeader){ .magic = width == 2 ? SHARD_UINT16 : SHARD_UINT32, .version = width == 2 ? 1 : 7,
                          .count = (uint32_t)count,
                          .sum = xxh64(map.bytes + SHARD_HEADER_BYTES, (size_t)(count * width)) };
}

/* ---- Writing */

typedef struct {
    Bpe        *bpe;
    Texts      *texts;
    const char *dir, *cache;        /* for shards; for one file of all tokens. NULL both: that file in memory */
    uint64_t    hash;               /* the cache: of the texts */
    char       *path;               /* the current file; the cache has this name until it is complete */
    FILE       *file;               /* NULL = none is open */
    int64_t     count, max;         /* tokens of the file */
    int         number, is_val, width;      /* the current shard's; width: bytes of a token */
    int64_t     tokens[2];          /* total: train, val */
    int32_t    *ids;                /* tokens of a batch */
    size_t      room;
    double      start;              /* seconds */
} Writer;

static Writer open_writer(Bpe *bpe, Texts *texts) {
    REQUIRE(texts->kind != DOCUMENT_MARK || bpe_vocabulary(bpe)->end_of_text >= 0, "--documents mark: the tokenizer "
            "has no end-of-text token; want \"eos_token\" in its tokenizer_config.json");
    return (Writer){ .bpe = bpe, .texts = texts, .max = UINT32_MAX, .start = seconds_now(),
                     .width = bpe_vocabulary(bpe)->V <= 1 << 16 ? 2 : 4 };
}

/* The lock says that the process lives: see remove_abandoned. */
static void open_shard(Writer *w) {
    static const char header[SHARD_HEADER_BYTES];
    const unsigned long long now = (unsigned long long)(1e9 * seconds_now());   /* another host may have this pid */
    REQUIRE(w->dir || !w->number, "%s: more than 2^32 - 1 tokens, the most of one file: want shards, made by tokenize",
            w->texts->path[0]);
    const int is_memory = !w->cache && !w->dir;
    char *before = w->path;
    w->path = is_memory ? format_string("/proc/self/fd/%d", memfd_create("tokens", MFD_CLOEXEC)) :
              w->cache  ? format_string("%s.partial-%d-%llx", w->cache, (int)getpid(), now) :
                          format_string("%s/%s_%06d.bin", w->dir, w->is_val ? "val" : "train", w->number);
    REQUIRE(is_memory || !file_name_in_use(w->path), "%s exists: another process writes to this directory", w->path);
    stop_removes(is_memory ? NULL : w->path);
    free(before);
    w->file = is_memory ? fopen(w->path, "w") : file_create(w->path);
    REQUIRE(w->file, "%s: cannot open tokens in memory: %s", w->path, strerror(errno));
    flock(fileno(w->file), LOCK_EX);
    file_write(w->file, header, sizeof header);
    w->number++;
    w->count = 0;
}

/* Rewrites the header, with the sum of the tokens in the file. */
static void close_shard(Writer *w) {
    if (!fflush(w->file) && !ferror(w->file)) {
        const FileMap map = file_map(w->path);
        const ShardHeader header = header_of(map, w->count, w->width);
        file_unmap(map);
        rewind(w->file);                                /* which forgets an error */
        file_write(w->file, &header, sizeof header);
    }
    file_close_durably(w->file, w->path);
    w->file = NULL;
}

/* Changes the ids: those of 16 bits are packed where they lie. */
static void write_ids(Writer *w, int32_t *ids, size_t count) {
    for (size_t i = 0; w->width == 2 && i < count; i++)
        memcpy((char *)ids + 2 * i, &(uint16_t){ (uint16_t)ids[i] }, 2);
    file_write(w->file, ids, (size_t)w->width * count);
    w->count += (int64_t)count;
    if (w->count == w->max || ferror(w->file)) close_shard(w);      /* an error at once, not after gigabytes */
}

static void stop_if_requested(void) {
    const char *why = stop_requested();
    if (!why) return;
    stop_remove();
    print_line(stdout, "%s: the tokens are not complete; the same command makes them again", why);
    if (stop_hook) stop_hook();
    exit(EXIT_TRY_AGAIN);
}

/* Sets ids to the next batch's and returns their number, 0 = the end. */
static size_t next_ids(Writer *w) {
    const Texts *t = w->texts;
    if (!texts_next(w->texts)) return 0;
    while (w->room < t->batch_bytes) w->ids = host_grow(w->ids, w->room, &w->room, sizeof *w->ids, "the tokens");
    return bpe_encode_spans(w->bpe, t->span, t->span_count, w->ids);
}

/* The name of the cache: every byte of the texts, and how they are read. */
static uint64_t hash_of_texts(const Writer *w) {
    const Texts *t = w->texts;
    const char *field = t->kind == DOCUMENT_JSONL ? t->field : "";
    uint64_t next[3] = { bpe_fingerprint(w->bpe), (uint64_t)t->kind, xxh64(field, strlen(field)) };
    for (int i = 0; i < t->count; i++) {
        next[0] = xxh64(next, sizeof next);
        next[1] = (uint64_t)t->map[i].size;
        next[2] = xxh64(t->map[i].bytes, (size_t)t->map[i].size);
    }
    return xxh64(next, sizeof next);
}

static void write_batches(void *writer) {
    Writer *w = writer;
    size_t count;
    for (int is_val = 0; (count = next_ids(w)); is_val = w->texts->done >= w->texts->stop) {
        print_progress("tokenizing", (double)w->texts->done / (double)w->texts->bytes, w->start);
        stop_if_requested();
        if (is_val != w->is_val) {
            if (w->file) close_shard(w);
            w->is_val = is_val;
            w->number = 0;
        }
        w->tokens[is_val] += (int64_t)count;
        for (size_t at = 0, part; at < count; at += part) {
            if (!w->file) open_shard(w);
            part = count - at;
            if (part > (size_t)(w->max - w->count)) part = (size_t)(w->max - w->count);
            write_ids(w, w->ids + at, part);
        }
    }
    REQUIRE(w->tokens[0] + w->tokens[1], "%s: the texts are empty", w->texts->path[0]);
    if (w->file) close_shard(w);
    if (w->dir) return;
    REQUIRE(hash_of_texts(w) == w->hash, "%s: changed while it was tokenized; start again", w->texts->path[0]);
    if (w->cache) file_rename(w->path, w->cache);
}

/* After gigabytes a line of JSONL may be refused, or the disk be full: the incomplete shard is removed. */
static void write_all(Writer *w) {
    const Texts *t = w->texts;
    char message[FAIL_LENGTH];
    if (fails(write_batches, w, message)) {
        stop_remove();
        fail("%s", message);
    }
    stop_removes(NULL);
    const double seconds = seconds_now() - w->start;
    print_line(stdout, "tokenized %.255s%s: %.1f MB, %lld document%s, %lld tokens, %.2f s, %.1f MB/s -> %s",
               t->path[0], t->count > 1 ? ", ..." : "", 1e-6 * (double)t->bytes, (long long)t->documents,
               t->documents == 1 ? "" : "s", (long long)(w->tokens[0] + w->tokens[1]), seconds,
               1e-6 * (double)t->bytes / seconds, w->dir ? w->dir : w->cache ? w->cache : "memory");
    if (t->documents > 1 && bpe_vocabulary(w->bpe)->end_of_text < 0)
        print_line(stdout, "%lld documents are joined: the tokenizer has no end-of-text token; \"eos_token\" in its "
                   "tokenizer_config.json names one", (long long)t->documents);
    free(w->ids);
}

/* ---- Files of earlier processes */

/* Calls f for the files of dir whose names begin and end so. */
static void each_file(const char *dir, const char *begin, const char *end, void (*f)(const char *path)) {
    DIR *entries = opendir(dir);
    REQUIRE(entries, "%s: cannot open the directory: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(entries)); )
        if (!strncmp(entry->d_name, begin, strlen(begin)) && ends_with(entry->d_name, end))
            f(path_of(dir, entry->d_name).text);
    closedir(entries);
}

static void refuse(const char *path) { fail("%s exists: want an --out without shards", path); }

static void remove_shard(const char *path) {
    REQUIRE(!unlink(path), "%s: cannot remove: %s", path, strerror(errno));
}

/* What a killed process has left. Where a file system has no locks, it stays. */
static void remove_abandoned(const char *path) {
    const int fd = shards_is_cache(path) && strstr(path, ".bin.partial-") ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) unlink(path);
    if (fd >= 0) close(fd);
}

/* ---- Shards */

void shards_write(Bpe *bpe, Texts *texts, const char *dir, int64_t shard_tokens, double val_fraction) {
    Writer w = open_writer(bpe, texts);
    const Path mark = path_of(dir, SHARDS_INCOMPLETE);
    w.dir = dir;
    w.max = shard_tokens;
    directory_make(dir);
    const int lock = directory_lock(dir).fd;
    REQUIRE(lock, "%s: another process writes to this directory: want another --out", dir);
    const int is_incomplete = file_exists(mark.text);
    each_file(dir, "train_", ".bin", is_incomplete ? remove_shard : refuse);
    each_file(dir, "val_", ".bin", is_incomplete ? remove_shard : refuse);
    bpe_is_in(bpe, dir);                    /* fail now if it has another one, not after gigabytes */
    FILE *incomplete = file_create(mark.text);
    directory_sync(dir);
    if (val_fraction > 0) texts->stop = (int64_t)((double)texts->bytes * (1 - val_fraction));
    write_all(&w);
    free(w.path);
    directory_sync(dir);
    REQUIRE(file_has_name(fileno(incomplete), mark.text), "%s: another process writes to this directory", dir);
    fclose(incomplete);
    bpe_write(bpe, dir);                    /* last: of incomplete shards another start may have another tokenizer */
    remove_shard(mark.text);
    close(lock);
    printf("train %lld tokens, val %lld tokens\n", (long long)w.tokens[0], (long long)w.tokens[1]);
}

/* ---- Cache */

int shards_is_cache(const char *path) {
    const char *name = strstr(path, ".tokens-");
    return name && strspn(name + 8, "0123456789abcdef") == 16 && !strncmp(name + 24, ".bin", 4);
}

/* Not damaged, as a copy may be, and of this version. */
static int is_whole(const char *path, int width) {
    if (!file_exists(path)) return 0;
    const FileMap map = file_map(path);
    const ShardHeader had = shard_header(map);
    const int fits = map.size == SHARD_HEADER_BYTES + (int64_t)had.count * width;
    const ShardHeader want = fits ? header_of(map, had.count, width) : (ShardHeader){0};
    file_unmap(map);
    return fits && !memcmp(&had, &want, sizeof want);
}

char *shards_cached(Bpe *bpe, Texts *texts, const char *spare, int in_memory, int wait) {
    Writer w = open_writer(bpe, texts);
    w.hash = hash_of_texts(&w);
    const char *text = texts->path[0], *slash = strrchr(text, '/'), *name = slash ? slash + 1 : text;
    char *path = format_string("%s.tokens-%016llx.bin", text, (unsigned long long)w.hash);
    int found = is_whole(path, w.width), is_read_only = access(file_parent(text).text, W_OK);
    if (!found && spare && (in_memory || is_read_only)) {
        char *beside = path;
        path = format_string("%s/%s", spare, beside + (name - text));
        free(beside);
        if (!in_memory) directory_make(spare);
        is_read_only = access(spare, W_OK);
    }
    in_memory |= is_read_only;
    while (!(found = found || is_whole(path, w.width)) && wait && !in_memory) {
        if (!stop_hook) stop_if_requested();        /* else the rank that writes ends the run */
        usleep(100000);
    }
    if (found) return path;
    if (!in_memory && file_exists(path)) print_line(stdout, "%s: damaged, or of an earlier version; made again", path);
    if (!in_memory) each_file(file_parent(path).text, name, "", remove_abandoned);
    w.cache = in_memory ? NULL : path;
    write_all(&w);
    free(in_memory ? path : w.path);
    return in_memory ? w.path : path;
}
