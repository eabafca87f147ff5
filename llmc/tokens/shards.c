#include "shards.h"
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../base/os.h"

/* ---- A shard */

ShardHeader shard_header(FileMap map) {
    ShardHeader header = {0};
    memcpy(&header, map.bytes, map.size < (int64_t)sizeof header ? (size_t)map.size : sizeof header);
    return header;
}

typedef struct {
    FILE   *file;                   /* NULL: none is open */
    char   *path, *partial;
    int64_t count;
} Shard;

static void open_shard(Shard *s, char *path) {
    char header[SHARD_HEADER_BYTES] = {0};
    uint64_t now = (uint64_t)(1e9 * seconds_now());     /* another host may have a process of this id */
    *s = (Shard){ .path = path, .partial = format_string("%s.partial-%d-%llx", path, (int)getpid(),
                                                         (unsigned long long)now) };
    stop_removes(s->partial);
    s->file = file_create(s->partial);
    file_write(s->file, header, sizeof header);
}

static ShardHeader header_of(int64_t count, int width) {
    return (ShardHeader){ width == 2 ? SHARD_UINT16 : SHARD_UINT32, width == 2 ? 1 : 7, (uint32_t)count };
}

/* The count is known now: the header is written again. */
static void close_shard(Shard *s, int width) {
    const ShardHeader header = header_of(s->count, width);
    if (!ferror(s->file)) rewind(s->file);              /* rewind forgets an error */
    file_write(s->file, &header, sizeof header);
    if (fflush(s->file) || ferror(s->file)) unlink(s->partial);         /* a full disk: the next call fails */
    file_close_durably(s->file, s->partial);
    file_rename(s->partial, s->path);
    stop_removes(NULL);
    free(s->partial);
    free(s->path);
    *s = (Shard){0};
}

static void write_ids(Shard *s, const int32_t *ids, size_t count, int width) {
    enum { BLOCK = 4096 };
    uint16_t narrow[BLOCK];
    s->count += (int64_t)count;
    if (width == 4) file_write(s->file, ids, 4 * count);
    for (size_t at = 0; width == 2 && at < count; at += BLOCK) {
        size_t block = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < block; i++) narrow[i] = (uint16_t)ids[at + i];
        file_write(s->file, narrow, 2 * block);
    }
    if (ferror(s->file)) close_shard(s, width);
}

/* ---- Batches */

typedef struct {
    Bpe     *bpe;
    Texts   *texts;
    int      width;                 /* bytes of a token in a shard */
    int32_t *ids;
    size_t   room, count;           /* count: of the batch */
    int64_t  tokens;
    double   start, printed;        /* seconds */
} Stream;

static Stream open_stream(Bpe *bpe, Texts *texts) {
    double now = seconds_now();
    return (Stream){ .bpe = bpe, .texts = texts, .width = bpe_vocabulary(bpe)->V <= 1 << 16 ? 2 : 4, .start = now,
                     .printed = now };
}

static const char *name_of_texts(const Texts *t, char name[256]) {
    snprintf(name, 256, t->count > 1 ? "%s and %d more" : "%s", t->path[0], t->count - 1);
    return name;
}

static void print_progress(Stream *s) {
    double now = seconds_now();
    if (now - s->printed < 1 || !isatty(STDOUT_FILENO)) return;
    s->printed = now;
    printf("\rtokenizing: %.0f %%, %.1f MB/s ", 100.0 * (double)s->texts->done / (double)s->texts->bytes,
           1e-6 * (double)s->texts->done / (now - s->start));
    fflush(stdout);
}

static void read_batch(void *stream) {
    Stream *s = stream;
    size_t most = 0;
    s->count = 0;
    if (!texts_next(s->texts)) return;
    for (size_t i = 0; i < s->texts->span_count; i++) most += s->texts->span[i].size + 1;
    if (most > s->room) {
        free(s->ids);
        s->ids = malloc(most * sizeof *s->ids);         /* host_alloc would touch all of it */
        s->room = most;
        REQUIRE(s->ids, "out of memory: %zu tokens", most);
    }
    s->count = bpe_encode_spans(s->bpe, s->texts->span, s->texts->span_count, s->ids);
}

/* A signal or the time limit ends the program; what is written so far is removed. */
static void stop_if_requested(void) {
    const char *why = stop_requested();
    if (!why) return;
    stop_remove();
    printf("%s: the tokens are not complete; the file under way is not kept\n", why);
    fflush(stdout);
    if (stop_hook) stop_hook();
    exit(EXIT_TRY_AGAIN);
}

/* The ids of the next batch and their number, 0 = the end. A line of JSONL may be refused after gigabytes: what was
   written is removed. */
static size_t next_ids(Stream *s) {
    char message[FAIL_LENGTH];
    if (fails(read_batch, s, message)) {
        stop_remove();
        fail("%s", message);
    }
    if (!s->count) return 0;
    s->tokens += (int64_t)s->count;
    print_progress(s);
    stop_if_requested();
    return s->count;
}

static void close_stream(Stream *s, const char *to) {
    char name[256];
    double seconds = seconds_now() - s->start;
    printf("%stokenized %s: %.1f MB, %lld document%s, %lld tokens, %.2f s, %.1f MB/s -> %s\n",
           isatty(STDOUT_FILENO) ? "\r" : "", name_of_texts(s->texts, name), 1e-6 * (double)s->texts->bytes,
           (long long)s->texts->documents, s->texts->documents == 1 ? "" : "s", (long long)s->tokens, seconds,
           1e-6 * (double)s->texts->bytes / seconds, to);
    fflush(stdout);
    free(s->ids);
}

/* ---- Shards */

static void require_none(const char *dir, const char *split) {
    glob_t found;
    Path pattern = path_of(dir, split);
    int any = !glob(pattern.text, 0, NULL, &found);
    REQUIRE(!any, "%s exists: want an --out without shards", found.gl_pathv[0]);
}

int64_t shards_write(Bpe *bpe, Texts *texts, const ShardSettings *settings) {
    static const char *const split[] = { "train", "val" };
    Shard shard = {0};
    Stream stream = open_stream(bpe, texts);
    int64_t tokens[2] = {0};
    int number = 0, is_val = 0;
    directory_make(settings->dir);
    const int lock = directory_lock(settings->dir);
    REQUIRE(lock, "%s: another process writes to this directory: want another --out", settings->dir);
    require_none(settings->dir, "train_*.bin");
    require_none(settings->dir, "val_*.bin");
    if (settings->val_fraction > 0) texts->stop = (int64_t)((double)texts->bytes * (1 - settings->val_fraction));
    for (size_t count; ; ) {
        const int val = texts->done >= texts->stop;
        if (!(count = next_ids(&stream))) break;
        if (val != is_val) {
            if (shard.file) close_shard(&shard, stream.width);
            is_val = val;
            number = 0;
        }
        tokens[val] += (int64_t)count;
        for (size_t at = 0; at < count; ) {
            if (!shard.file) open_shard(&shard, format_string("%s/%s_%06d.bin", settings->dir, split[val], number++));
            int64_t part = settings->shard_tokens - shard.count;
            if (part > (int64_t)(count - at)) part = (int64_t)(count - at);
            write_ids(&shard, stream.ids + at, (size_t)part, stream.width);
            at += (size_t)part;
            if (shard.count == settings->shard_tokens) close_shard(&shard, stream.width);
        }
    }
    if (shard.file) close_shard(&shard, stream.width);
    REQUIRE(stream.tokens, "%s: the texts are empty", texts->path[0]);
    close_stream(&stream, settings->dir);
    close(lock);
    printf("train %lld tokens, val %lld tokens\n", (long long)tokens[0], (long long)tokens[1]);
    return tokens[1];
}

/* ---- Cache */

static uint64_t hash_of_texts(const Bpe *bpe, const Texts *t) {
    const char *field = t->kind == DOCUMENT_JSONL ? t->field : "";
    const uint64_t how[3] = { bpe_fingerprint(bpe), (uint64_t)t->kind, xxh64(field, strlen(field)) };
    uint64_t hash = xxh64(how, sizeof how);
    for (int i = 0; i < t->count; i++) {
        FileMap map = file_map(t->path[i]);
        const uint64_t next[3] = { hash, (uint64_t)map.size, xxh64(map.bytes, (size_t)map.size) };
        hash = xxh64(next, sizeof next);
        file_unmap(map);
    }
    return hash;
}

int shards_is_cache(const char *path) {
    const char *name = strstr(path, ".tokens-");
    return name && strspn(name + 8, "0123456789abcdef") == 16 && !strncmp(name + 24, ".bin", 4);
}

/* What close_shard has written; a copy may have been cut short. */
static int is_whole(const char *path, int width) {
    if (!file_exists(path)) return 0;
    FileMap map = file_map(path);
    const ShardHeader header = shard_header(map), want = header_of(header.count, width);
    file_unmap(map);
    return !memcmp(&header, &want, sizeof want) && map.size == SHARD_HEADER_BYTES + (int64_t)header.count * width;
}

char *shards_cached(Bpe *bpe, Texts *texts, int wait) {
    char *path = format_string("%s.tokens-%016llx.bin", texts->path[0], (unsigned long long)hash_of_texts(bpe, texts));
    Shard shard = {0};
    Stream stream = open_stream(bpe, texts);
    int found;
    while (!(found = is_whole(path, stream.width)) && wait) {
        if (!stop_hook) stop_if_requested();        /* else the rank that writes ends the run */
        usleep(100000);
    }
    if (found) return path;
    if (file_exists(path)) printf("%s: damaged, made again\n", path);
    const Path dir = file_parent(path);
    REQUIRE(!access(dir.text, W_OK), "%s: %s: the tokens of %s go there; want a copy of it elsewhere, or shards made "
            "by tokenize", dir.text, strerror(errno), texts->path[0]);
    open_shard(&shard, format_string("%s", path));
    for (size_t count; (count = next_ids(&stream)); ) {
        write_ids(&shard, stream.ids, count, stream.width);
        if (shard.count > UINT32_MAX) unlink(shard.partial);
        REQUIRE(shard.count <= UINT32_MAX, "%s: more than 2^32 - 1 tokens, the most of one file: want shards, made by "
                "tokenize", texts->path[0]);
    }
    close_shard(&shard, stream.width);
    close_stream(&stream, path);
    return path;
}
