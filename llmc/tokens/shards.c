#include "shards.h"
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../base/os.h"
#include "../base/terminal.h"

ShardHeader shard_header(FileMap map) {
    ShardHeader header = {0};
    memcpy(&header, map.bytes, map.size < (int64_t)sizeof header ? (size_t)map.size : sizeof header);
    return header;
}

static ShardHeader header_of(int64_t count, int width) {
    return (ShardHeader){ width == 2 ? SHARD_UINT16 : SHARD_UINT32, width == 2 ? 1 : 7, (uint32_t)count };
}

/* ---- Writing */

typedef struct {
    Bpe        *bpe;
    Texts      *texts;
    const char *dir;                /* for shards; NULL = the cache, one shard */
    const char *path;               /* the current shard */
    char       *partial;            /* its name until it is complete */
    FILE       *file;               /* NULL = none is open */
    int64_t     count, max;         /* tokens of the shard */
    int         number, is_val, width;      /* the current shard's; width: bytes of a token */
    int64_t     tokens[2];          /* total: train, val */
    int32_t    *ids;                /* tokens of a batch */
    size_t      room;
    double      start, printed;     /* seconds */
} Writer;

static Writer open_writer(Bpe *bpe, Texts *texts) {
    double now = seconds_now();
    REQUIRE(texts->kind != DOCUMENT_MARK || bpe_vocabulary(bpe)->end_of_text >= 0, "--documents mark: the tokenizer "
            "has no end-of-text token; want \"eos_token\" in its tokenizer_config.json");
    return (Writer){ .bpe = bpe, .texts = texts, .max = UINT32_MAX, .start = now, .printed = now,
                     .width = bpe_vocabulary(bpe)->V <= 1 << 16 ? 2 : 4 };
}

static void open_shard(Writer *w) {
    static const char header[SHARD_HEADER_BYTES];
    const unsigned long long now = (unsigned long long)(1e9 * seconds_now());   /* another host may have this pid */
    REQUIRE(w->dir || !w->number, "%s: more than 2^32 - 1 tokens, the most of one file: want shards, made by tokenize",
            w->texts->path[0]);
    if (w->dir) w->path = format_string("%s/%s_%06d.bin", w->dir, w->is_val ? "val" : "train", w->number);
    w->number++;
    w->partial = format_string("%s.partial-%d-%llx", w->path, (int)getpid(), now);
    w->count = 0;
    stop_removes(w->partial);
    w->file = file_create(w->partial);
    file_write(w->file, header, sizeof header);
}

/* Rewrites the header with the final count. */
static void close_shard(Writer *w) {
    const ShardHeader header = header_of(w->count, w->width);
    if (!ferror(w->file)) rewind(w->file);              /* rewind forgets an error */
    file_write(w->file, &header, sizeof header);
    file_close_durably(w->file, w->partial);
    file_rename(w->partial, w->path);
    stop_removes(NULL);
    free(w->partial);
    if (w->dir) free((void *)w->path);
    w->file = NULL;
}

static void write_ids(Writer *w, const int32_t *ids, size_t count) {
    enum { BLOCK = 4096 };
    uint16_t narrow[BLOCK];
    w->count += (int64_t)count;
    if (w->width == 4) file_write(w->file, ids, 4 * count);
    for (size_t at = 0; w->width == 2 && at < count; at += BLOCK) {
        size_t block = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < block; i++) narrow[i] = (uint16_t)ids[at + i];
        file_write(w->file, narrow, 2 * block);
    }
    if (ferror(w->file)) close_shard(w);                /* fail early, not after gigabytes */
}

static void print_progress(Writer *w) {
    double now = seconds_now();
    if (now - w->printed < 1 || !isatty(STDOUT_FILENO)) return;
    w->printed = now;
    char text[64];
    snprintf(text, sizeof text, "tokenizing: %.0f %%, %.1f MB/s", 100.0 * (double)w->texts->done /
             (double)w->texts->bytes, 1e-6 * (double)w->texts->done / (now - w->start));
    print_in_place(text);
}

/* A signal or the time limit ends the program; the incomplete shard is removed. */
static void stop_if_requested(void) {
    const char *why = stop_requested();
    if (!why) return;
    stop_remove();
    print_line(stdout, "%s: the tokens are not complete; the file under way is not kept", why);
    if (stop_hook) stop_hook();
    exit(EXIT_TRY_AGAIN);
}

/* Sets ids to the next batch's and returns their number, 0 = the end. */
static size_t next_ids(Writer *w) {
    size_t max = 0;
    if (!texts_next(w->texts)) return 0;
    for (size_t i = 0; i < w->texts->span_count; i++) max += w->texts->span[i].size + 1;
    if (max > w->room) {
        free(w->ids);
        w->ids = malloc(max * sizeof *w->ids);          /* host_alloc would touch all of it */
        w->room = max;
        REQUIRE(w->ids, "out of memory: %zu tokens", max);
    }
    return bpe_encode_spans(w->bpe, w->texts->span, w->texts->span_count, w->ids);
}

static void write_batches(void *writer) {
    Writer *w = writer;
    for (;;) {
        const int is_val = w->texts->done >= w->texts->stop;
        const size_t count = next_ids(w);
        if (!count) break;
        print_progress(w);
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
            if (w->count == w->max) close_shard(w);
        }
    }
    REQUIRE(w->tokens[0] + w->tokens[1], "%s: the texts are empty", w->texts->path[0]);
    if (w->file) close_shard(w);
}

/* After gigabytes a line of JSONL may be refused, or the disk be full: the incomplete shard is removed. */
static void write_all(Writer *w, const char *to) {
    const Texts *t = w->texts;
    char message[FAIL_LENGTH], more[32] = "";
    if (fails(write_batches, w, message)) {
        stop_remove();
        fail("%s", message);
    }
    const double seconds = seconds_now() - w->start;
    if (t->count > 1) snprintf(more, sizeof more, " and %d more", t->count - 1);
    if (isatty(STDOUT_FILENO)) print_in_place("");
    print_line(stdout, "tokenized %.255s%s: %.1f MB, %lld document%s, %lld tokens, %.2f s, %.1f MB/s -> %s", t->path[0],
               more, 1e-6 * (double)t->bytes, (long long)t->documents, t->documents == 1 ? "" : "s",
               (long long)(w->tokens[0] + w->tokens[1]), seconds, 1e-6 * (double)t->bytes / seconds, to);
    if (t->documents > 1 && bpe_vocabulary(w->bpe)->end_of_text < 0)
        print_line(stdout, "%lld documents are joined: the tokenizer has no end-of-text token; \"eos_token\" in its "
                   "tokenizer_config.json names one", (long long)t->documents);
    free(w->ids);
}

static void require_none(const char *dir, const char *split) {
    glob_t found;
    Path pattern = path_of(dir, split);
    int any = !glob(pattern.text, 0, NULL, &found);
    REQUIRE(!any, "%s exists: want an --out without shards", found.gl_pathv[0]);
}

int64_t shards_write(Bpe *bpe, Texts *texts, const ShardSettings *settings) {
    Writer w = open_writer(bpe, texts);
    w.dir = settings->dir;
    w.max = settings->shard_tokens;
    directory_make(w.dir);
    const int lock = directory_lock(w.dir).fd;
    REQUIRE(lock, "%s: another process writes to this directory: want another --out", w.dir);
    require_none(w.dir, "train_*.bin");
    require_none(w.dir, "val_*.bin");
    if (settings->val_fraction > 0) texts->stop = (int64_t)((double)texts->bytes * (1 - settings->val_fraction));
    write_all(&w, w.dir);
    close(lock);
    printf("train %lld tokens, val %lld tokens\n", (long long)w.tokens[0], (long long)w.tokens[1]);
    return w.tokens[1];
}

/* ---- Cache */

static uint64_t hash_of_texts(const Bpe *bpe, const Texts *t) {
    const char *field = t->kind == DOCUMENT_JSONL ? t->field : "";
    const uint64_t how[3] = { bpe_fingerprint(bpe), (uint64_t)t->kind, xxh64(field, strlen(field)) };
    uint64_t hash = xxh64(how, sizeof how);
    for (int i = 0; i < t->count; i++) {
        const FileMap map = t->map[i];
        const uint64_t next[3] = { hash, (uint64_t)map.size, xxh64(map.bytes, (size_t)map.size) };
        hash = xxh64(next, sizeof next);
    }
    return hash;
}

int shards_is_cache(const char *path) {
    const char *name = strstr(path, ".tokens-");
    return name && strspn(name + 8, "0123456789abcdef") == 16 && !strncmp(name + 24, ".bin", 4);
}

/* A copy of what close_shard has written may have been cut short. */
static int is_whole(const char *path, int width) {
    if (!file_exists(path)) return 0;
    FileMap map = file_map(path);
    const ShardHeader header = shard_header(map), want = header_of(header.count, width);
    file_unmap(map);
    return !memcmp(&header, &want, sizeof want) && map.size == SHARD_HEADER_BYTES + (int64_t)header.count * width;
}

char *shards_cached(Bpe *bpe, Texts *texts, int wait) {
    char *path = format_string("%s.tokens-%016llx.bin", texts->path[0], (unsigned long long)hash_of_texts(bpe, texts));
    Writer w = open_writer(bpe, texts);
    int found;
    while (!(found = is_whole(path, w.width)) && wait) {
        if (!stop_hook) stop_if_requested();        /* else the rank that writes ends the run */
        usleep(100000);
    }
    if (found) return path;
    if (file_exists(path)) print_line(stdout, "%s: damaged, made again", path);
    const Path dir = file_parent(path);
    REQUIRE(!access(dir.text, W_OK), "%s: %s: the tokens of %s go there; want a copy of it elsewhere, or shards made "
            "by tokenize", dir.text, strerror(errno), texts->path[0]);
    w.path = path;
    write_all(&w, path);
    return path;
}
