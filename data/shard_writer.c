#include "shard_writer.h"
#include <dirent.h>
#include <fnmatch.h>
#include <poll.h>
#include <sys/file.h>
#include "../llmc/text/bpe_files.h"

/* ---- A tokenizer */

enum { FILES = 2, NAMES = 8 };      /* files that are written, and those of any tokenizer */
static const char *const files[NAMES] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                          "added_tokens.json", "vocab.json", "merges.txt", "encoder.json",
                                          "vocab.bpe" };

void bpe_require_none(const char *dir) {
    for (int i = 0; i < NAMES; i++)
        REQUIRE(!dir_has_file(dir, files[i]), "%s/%s exists: want another --out", dir, files[i]);
}

/* Whether the directory has the same one; fails as bpe_write does. */
static int bpe_is_in(const Tokenizer *bpe, const char *dir) {
    if (!bpe_has_files(dir)) {
        bpe_require_none(dir);
        return 0;
    }
    Tokenizer *other = bpe_open(dir);
    REQUIRE(bpe_fingerprint(other) == bpe_fingerprint(bpe), "%s: has another tokenizer: want another --out", dir);
    bpe_free(other);
    return 1;
}

typedef struct { char *text, *partial; } Written;

static void write_partial(void *written) {
    const Written *w = written;
    FILE *file = file_create(w->partial);
    file_write(file, w->text, strlen(w->text));
    file_close_durably(file, w->partial);
}

void bpe_write(const Tokenizer *bpe, const char *dir) {
    char why[FAIL_LENGTH];
    for (int i = 0; i < FILES && (i || !bpe_is_in(bpe, dir)); i++) {        /* first the one that suffices alone */
        const Path path = path_of(dir, files[i]);
        Written w = { bpe_file_text(bpe, files[i], 0), format_string("%s.new-%d", path.text, (int)getpid()) };
        if (fails(write_partial, &w, why)) {
            unlink(w.partial);
            fail("%s", why);
        }
        file_rename(w.partial, path.text);
        free(w.partial);
        free(w.text);
    }
}

/* ---- A shard */

/* Writes the tokens of texts into one file after the other; each gets its header when it is complete. */
typedef struct {
    Tokenizer  *bpe;
    Texts      *texts;
    const char *path;               /* the current file */
    FILE       *file;               /* NULL = none is open */
    int64_t     count, total;       /* tokens: of the file, of all batches so far */
    int         width;              /* bytes of a token */
    int32_t    *ids;                /* tokens of a batch */
    size_t      room;
    double      start_s;
    uint64_t    hash;               /* hash of the texts; this line and the next: shard_write_all only */
    int         errors, has_lock;   /* a pipe, -1 = none; whether no other process writes the file */
} ShardWriter;

static ShardWriter shard_writer(Tokenizer *bpe, Texts *texts) {
    REQUIRE(texts->kind != DOCUMENT_MARK || bpe->v.end_of_text >= 0, "--documents mark: the tokenizer has no "
            "end-of-text token; want \"eos_token\" in its tokenizer_config.json");
    return (ShardWriter){ .bpe = bpe, .texts = texts, .start_s = seconds_now(),
                          .width = bpe->v.V <= 1 << 16 ? 2 : 4, .errors = -1 };
}

/* On all cores. The ids of a span are written where it could begin at the latest, then all are moved together. */
static size_t encode_spans(const Tokenizer *b, BpeSpan *span, size_t count, int32_t *ids) {
    size_t total = 0;
    #pragma omp parallel for schedule(dynamic, 4)
    for (size_t i = 0; i < count; i++) {
        int32_t *to = ids + span[i].start;
        span[i].tokens = span[i].begins && b->v.end_of_text >= 0;
        if (span[i].tokens) *to = b->v.end_of_text;
        span[i].tokens += bpe_encode(b, span[i].text, span[i].size, to + span[i].tokens);
    }
    for (size_t i = 0; i < count; total += span[i++].tokens)
        memmove(ids + total, ids + span[i].start, span[i].tokens * sizeof *ids);
    return total;
}

/* Sets ids to the tokens of the next batch and returns their number, 0 = the end. <|endoftext|> goes in front of every
   document; with DOCUMENT_MARK it replaces every mark. */
static size_t shard_next_ids(ShardWriter *w) {
    const Texts *t = w->texts;
    const int is_end = !texts_next(w->texts);
    REQUIRE(!is_end || w->total, "%s: the texts are empty", t->path[0]);
    if (is_end) return 0;
    while (w->room < t->batch_bytes) w->ids = host_grow(w->ids, w->room, &w->room, sizeof *w->ids, "the tokens");
    const size_t count = encode_spans(w->bpe, t->span, t->span_count, w->ids);
    w->total += (int64_t)count;
    print_progress("tokenizing", (double)t->done / (double)t->bytes, w->start_s);
    return count;
}

/* Ends the process, without the incomplete file (NULL = none), if a stop is requested or errors has no reader. */
static void stop_if_wanted(const ShardWriter *w, const char *incomplete) {
    const char *why = stop_requested();
    if (!why && poll(&(struct pollfd){ .fd = w->errors }, 1, 0) <= 0) return;       /* POLLERR: it has none */
    if (incomplete && w->has_lock) unlink(incomplete);
    if (why) print_line(stdout, "%s: the tokens are not complete; the same command makes them again", why);
    exit(EXIT_TRY_AGAIN);
}

/* The header of a file that is made again stays until the end; its sum shows that the tokens are others. */
static void shard_begin(ShardWriter *w, const char *path, FILE *file) {
    w->path = path;
    w->file = file;
    w->count = 0;
    fseek(file, SHARD_HEADER_BYTES, SEEK_SET);
}

static void shard_end(ShardWriter *w) {
    if (!fflush(w->file) && !ferror(w->file)) {
        const FileMap map = file_map(w->path);
        const ShardHeader header = shard_header_of(map, w->count, w->width);
        file_unmap(map);
        rewind(w->file);                                /* clears the error flag */
        file_write(w->file, &header, sizeof header);
    }
    file_close_durably(w->file, w->path);
    w->file = NULL;
}

/* Changes the ids: those of 16 bits are packed where they lie. */
static void shard_write(ShardWriter *w, int32_t *ids, size_t count) {
    w->count += (int64_t)count;
    REQUIRE(w->count <= UINT32_MAX, "%s: more than 2^32 - 1 tokens, the most of one file: want shards, made by "
            "tokenize", w->texts->path[0]);
    for (size_t i = 0; w->width == 2 && i < count; i++)
        memcpy((char *)ids + 2 * i, &(uint16_t){ (uint16_t)ids[i] }, 2);
    file_write(w->file, ids, (size_t)w->width * count);
    if (ferror(w->file)) shard_end(w);          /* an error at once, not after gigabytes */
}

static void shard_print(const ShardWriter *w, const char *to) {
    const Texts *t = w->texts;
    const double seconds = seconds_now() - w->start_s;
    print_line(stdout, "tokenized %.255s%s: %.1f MB, %lld document%s, %lld tokens, %.2f s, %.1f MB/s -> %s",
               t->path[0], t->count > 1 ? ", ..." : "", 1e-6 * (double)t->bytes, (long long)t->documents,
               t->documents == 1 ? "" : "s", (long long)w->total, seconds, 1e-6 * (double)t->bytes / seconds, to);
    if (t->documents > 1 && w->bpe->v.end_of_text < 0)
        print_line(stdout, "%lld documents are joined: the tokenizer has no end-of-text token; \"eos_token\" in its "
                   "tokenizer_config.json names one", (long long)t->documents);
}

/* ---- A directory of shards */

static void remove_shards(const char *dir, int are_complete) {
    DIR *entries = opendir(dir);
    REQUIRE(entries, "%s: cannot open the directory: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(entries)); ) {
        const Path path = path_of(dir, entry->d_name);
        if (fnmatch("train_*.bin", entry->d_name, 0) && fnmatch("val_*.bin", entry->d_name, 0)) continue;
        REQUIRE(!are_complete, "%s exists: want an --out without shards", path.text);
        REQUIRE(!unlink(path.text), "%s: cannot remove: %s", path.text, strerror(errno));
    }
    closedir(entries);
}

static void begin_shard(ShardWriter *w, const char *dir, int is_val, int number) {
    static Path path;
    char name[32];
    snprintf(name, sizeof name, "%s_%06d.bin", is_val ? "val" : "train", number);
    path = path_of(dir, name);
    REQUIRE(!file_exists(path.text), "%s exists: another process writes to this directory", path.text);
    shard_begin(w, path.text, file_create(path.text));
}

/* Sets tokens to the numbers for training and validation. */
static void write_shards(ShardWriter *w, const char *dir, int64_t shard_tokens, int64_t tokens[2]) {
    const Texts *t = w->texts;
    int is_val = 0, number = 0;
    for (size_t count; (count = shard_next_ids(w)); ) {
        stop_if_wanted(w, NULL);
        tokens[is_val] += (int64_t)count;
        for (size_t at = 0, part; at < count; at += part) {
            if (!w->file) begin_shard(w, dir, is_val, number++);
            part = count - at;
            if (part > (size_t)(shard_tokens - w->count)) part = (size_t)(shard_tokens - w->count);
            shard_write(w, w->ids + at, part);
            if (w->count == shard_tokens) shard_end(w);
        }
        if (is_val || t->done < t->stop) continue;
        if (w->file) shard_end(w);
        is_val = 1;
        number = 0;
    }
    if (w->file) shard_end(w);
}

void shards_write(Tokenizer *bpe, Texts *texts, const char *dir, int64_t shard_tokens, double val_fraction) {
    ShardWriter w = shard_writer(bpe, texts);
    const Path mark = path_of(dir, SHARDS_INCOMPLETE);
    int64_t tokens[2] = {0};
    directory_make(dir);
    const int lock = directory_lock(dir).fd;
    REQUIRE(lock, "%s: another process writes to this directory: want another --out", dir);
    remove_shards(dir, !file_exists(mark.text));
    bpe_is_in(bpe, dir);                    /* fail now if it has another one, not after gigabytes */
    FILE *incomplete = file_create(mark.text);
    directory_sync(dir);
    if (val_fraction > 0) texts->stop = (int64_t)((double)texts->bytes * (1 - val_fraction));
    write_shards(&w, dir, shard_tokens, tokens);
    shard_print(&w, dir);
    free(w.ids);
    directory_sync(dir);
    REQUIRE(file_has_name(fileno(incomplete), mark.text), "%s: another process writes to this directory", dir);
    fclose(incomplete);
    bpe_write(bpe, dir);                    /* last: of incomplete shards another start may have another tokenizer */
    REQUIRE(!unlink(mark.text), "%s: cannot remove: %s", mark.text, strerror(errno));
    close(lock);
    printf("train %lld tokens, val %lld tokens\n", (long long)tokens[0], (long long)tokens[1]);
}

/* ---- One shard. It is written under its own name: until its header is, as after a kill, it counts as damaged. One
   process writes, with a lock. Without locks several may: the same bytes at the same places, so that each reads what it
   has written; none removes it, which others need. */

/* Every byte of the texts, and how they are read. */
static uint64_t hash_of_texts(const ShardWriter *w) {
    const Texts *t = w->texts;
    const char *field = t->kind == DOCUMENT_JSONL ? t->field : "";
    uint64_t hash = tokens_hash(bpe_fingerprint(w->bpe), t->kind, field, strlen(field));
    for (int i = 0; i < t->count; i++)
        hash = tokens_hash(hash, t->map[i].size, t->map[i].bytes, (size_t)t->map[i].size);
    return hash;
}

static void write_batches(void *writer) {
    ShardWriter *w = writer;
    for (size_t count; (count = shard_next_ids(w)); shard_write(w, w->ids, count)) stop_if_wanted(w, w->path);
    REQUIRE(hash_of_texts(w) == w->hash, "%s: changed while it was tokenized; start again", w->texts->path[0]);
    REQUIRE(!ftruncate(fileno(w->file), SHARD_HEADER_BYTES + w->count * w->width), "%s: cannot write: %s", w->path,
            strerror(errno));                       /* a damaged file may be longer */
    shard_end(w);
}

void shard_write_all(Tokenizer *bpe, Texts *texts, const char *path, uint64_t hash, int errors) {
    char message[FAIL_LENGTH];
    FILE *file;
    ShardWriter w = shard_writer(bpe, texts);
    w.hash = hash;
    w.errors = errors;
    for (int tries = 0; !(file = file_open_locked(path)); tries++) {
        if (tries == 1) print_line(stdout, "%s: another process writes it, which this one waits for", path);
        stop_if_wanted(&w, NULL);
        usleep(100000);
    }
    w.has_lock = !flock(fileno(file), LOCK_EX | LOCK_NB);       /* where there are locks, it has it already */
    if (shard_is_whole(path)) {                     /* that process has written it */
        fclose(file);
        return;
    }
    if (!fseek(file, 0, SEEK_END) && ftell(file))
        print_line(stdout, "%s: incomplete, damaged, or of an earlier version; made again", path);
    shard_begin(&w, path, file);
    if (fails(write_batches, &w, message)) {        /* a line of JSONL is refused, or the disk is full */
        if (w.has_lock) unlink(path);
        fail("%s", message);
    }
    shard_print(&w, shards_is_cache(path) ? path : "memory");
    free(w.ids);
}
