#include "shards.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../base/os.h"

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

ShardWriter shard_writer(Tokenizer *bpe, Texts *texts) {
    REQUIRE(texts->kind != DOCUMENT_MARK || bpe->v.end_of_text >= 0, "--documents mark: the tokenizer has no "
            "end-of-text token; want \"eos_token\" in its tokenizer_config.json");
    return (ShardWriter){ .bpe = bpe, .texts = texts, .start_s = seconds_now(),
                          .width = bpe->v.V <= 1 << 16 ? 2 : 4 };
}

size_t shard_next_ids(ShardWriter *w) {
    const Texts *t = w->texts;
    const int is_end = !texts_next(w->texts);
    REQUIRE(!is_end || w->total, "%s: the texts are empty", t->path[0]);
    if (is_end) return 0;
    while (w->room < t->batch_bytes) w->ids = host_grow(w->ids, w->room, &w->room, sizeof *w->ids, "the tokens");
    const size_t count = bpe_encode_spans(w->bpe, t->span, t->span_count, w->ids);
    w->total += (int64_t)count;
    print_progress("tokenizing", (double)t->done / (double)t->bytes, w->start_s);
    return count;
}

void shard_stop(const char *incomplete) {
    const char *why = stop_requested();
    if (!why) return;
    if (incomplete) unlink(incomplete);
    print_line(stdout, "%s: the tokens are not complete; the same command makes them again", why);
    if (stop_hook) stop_hook();
    exit(EXIT_TRY_AGAIN);
}

/* The header of a file that is made again stays until the end; its sum shows that the tokens are others. */
void shard_begin(ShardWriter *w, const char *path, FILE *file) {
    w->path = path;
    w->file = file;
    w->count = 0;
    fseek(file, SHARD_HEADER_BYTES, SEEK_SET);
}

/* Those of 16 bits are packed where they lie. */
void shard_write(ShardWriter *w, int32_t *ids, size_t count) {
    w->count += (int64_t)count;
    REQUIRE(w->count <= UINT32_MAX, "%s: more than 2^32 - 1 tokens, the most of one file: want shards, made by "
            "tokenize", w->texts->path[0]);
    for (size_t i = 0; w->width == 2 && i < count; i++)
        memcpy((char *)ids + 2 * i, &(uint16_t){ (uint16_t)ids[i] }, 2);
    file_write(w->file, ids, (size_t)w->width * count);
    if (ferror(w->file)) shard_end(w);          /* an error at once, not after gigabytes */
}

void shard_end(ShardWriter *w) {
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

void shard_print(const ShardWriter *w, const char *to) {
    const Texts *t = w->texts;
    const double seconds = seconds_now() - w->start_s;
    print_line(stdout, "tokenized %.255s%s: %.1f MB, %lld document%s, %lld tokens, %.2f s, %.1f MB/s -> %s",
               t->path[0], t->count > 1 ? ", ..." : "", 1e-6 * (double)t->bytes, (long long)t->documents,
               t->documents == 1 ? "" : "s", (long long)w->total, seconds, 1e-6 * (double)t->bytes / seconds, to);
    if (t->documents > 1 && w->bpe->v.end_of_text < 0)
        print_line(stdout, "%lld documents are joined: the tokenizer has no end-of-text token; \"eos_token\" in its "
                   "tokenizer_config.json names one", (long long)t->documents);
    free(w->ids);
}

/* ---- Cache: a file of all tokens. It is written under its own name: until its header is, as after a kill, it counts
   as damaged. One process writes, with a lock. Without locks several may: the same bytes at the same places, so that
   each reads what it has written. */

int shards_is_cache(const char *path) {
    const char *name = strstr(path, ".tokens-");
    return name && strspn(name + 8, "0123456789abcdef") == 16 && !strncmp(name + 24, ".bin", 4);
}

/* Every byte of the texts, and how they are read. */
static uint64_t hash_of_texts(const ShardWriter *w) {
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

/* Complete, not damaged, as a copy may be, and of this version. */
static int is_whole(const char *path, int width) {
    if (!file_exists(path)) return 0;
    const FileMap map = file_map(path);
    const ShardHeader had = shard_header(map);
    const int fits = map.size == SHARD_HEADER_BYTES + (int64_t)had.count * width;
    const ShardHeader want = fits ? header_of(map, had.count, width) : (ShardHeader){0};
    file_unmap(map);
    return fits && !memcmp(&had, &want, sizeof want);
}

static void write_batches(void *writer) {
    ShardWriter *w = writer;
    for (size_t count; (count = shard_next_ids(w)); shard_write(w, w->ids, count)) shard_stop(w->path);
    REQUIRE(hash_of_texts(w) == w->hash, "%s: changed while it was tokenized; start again", w->texts->path[0]);
    REQUIRE(!ftruncate(fileno(w->file), SHARD_HEADER_BYTES + w->count * w->width), "%s: cannot write: %s", w->path,
            strerror(errno));                       /* a damaged file may be longer */
    shard_end(w);
}

/* Returns 0 when another process writes the file, or has written it meanwhile. */
static int write_cache(ShardWriter *w, const char *path) {
    char message[FAIL_LENGTH];
    FILE *file = file_open_locked(path);
    if (!file || is_whole(path, w->width)) {
        if (file) fclose(file);
        return 0;
    }
    if (!fseek(file, 0, SEEK_END) && ftell(file))
        print_line(stdout, "%s: incomplete, damaged, or of an earlier version; made again", path);
    shard_begin(w, path, file);
    if (fails(write_batches, w, message)) {         /* a line of JSONL is refused, or the disk is full */
        unlink(path);
        fail("%s", message);
    }
    shard_print(w, shards_is_cache(path) ? path : "memory");
    return 1;
}

static int is_read_only(const char *path) { return access(file_exists(path) ? path : file_parent(path).text, W_OK); }

char *shards_cached(Tokenizer *bpe, Texts *texts, const char *spare, int in_memory, int is_waiting) {
    ShardWriter w = shard_writer(bpe, texts);
    w.hash = hash_of_texts(&w);
    const char *text = texts->path[0], *slash = strrchr(text, '/'), *name = slash ? slash + 1 : text;
    char *path = format_string("%s.tokens-%016llx.bin", text, (unsigned long long)w.hash), *beside = path;
    int found = is_whole(path, w.width);
    if (!found && spare && (in_memory || is_read_only(path))) {
        path = format_string("%s/%s", spare, beside + (name - text));
        free(beside);
        if (!in_memory) directory_make(spare);
        found = is_whole(path, w.width);
    }
    if (!found && (in_memory || is_read_only(path))) {
        free(path);
        path = format_string("/proc/self/fd/%d", memfd_create("tokens", MFD_CLOEXEC));
        is_waiting = 0;
    }
    for (int tries = 0; !found && (is_waiting || !write_cache(&w, path)); tries++, found = is_whole(path, w.width)) {
        if (tries == 1) print_line(stdout, "%s: another process writes it, which this one waits for", path);
        if (!is_waiting) shard_stop(NULL);          /* else the rank that writes ends the run */
        usleep(100000);
    }
    return path;
}
