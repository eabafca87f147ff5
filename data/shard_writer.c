#include "shard_writer.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../kernels/check.h"
#include "../llmc/base/files.h"
#include "../llmc/base/os.h"
#include "../llmc/text/bpe_files.h"
#include "../llmc/tokens/shards.h"

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

/* ---- Shards */

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
        shard_stop(NULL);
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
    const int is_incomplete = file_exists(mark.text);
    each_file(dir, "train_", ".bin", is_incomplete ? remove_shard : refuse);
    each_file(dir, "val_", ".bin", is_incomplete ? remove_shard : refuse);
    bpe_is_in(bpe, dir);                    /* fail now if it has another one, not after gigabytes */
    FILE *incomplete = file_create(mark.text);
    directory_sync(dir);
    if (val_fraction > 0) texts->stop = (int64_t)((double)texts->bytes * (1 - val_fraction));
    write_shards(&w, dir, shard_tokens, tokens);
    shard_print(&w, dir);
    directory_sync(dir);
    REQUIRE(file_has_name(fileno(incomplete), mark.text), "%s: another process writes to this directory", dir);
    fclose(incomplete);
    bpe_write(bpe, dir);                    /* last: of incomplete shards another start may have another tokenizer */
    remove_shard(mark.text);
    close(lock);
    printf("train %lld tokens, val %lld tokens\n", (long long)tokens[0], (long long)tokens[1]);
}
