#include "dataloader.h"
#include <glob.h>
#include <poll.h>
#include "../ranks/launch.h"
#include "../ranks/ranks.h"
#include "data_files.h"

typedef struct TokenFile {
    char   *name;
    FileMap map;
    const unsigned char *data;      /* the first token */
    int64_t first, count;           /* position of that token in the stream of all files; number of tokens */
    uint64_t sum;                   /* xxh64 of the tokens as they were written, 0 = unknown */
} TokenFile;

/* ---- Opening */

/* Sets all but name and first; returns the bytes per token. */
static int open_file(TokenFile *f) {
    const FileMap map = f->map = file_map(f->name);
    const ShardHeader header = shard_header(map);
    const int width = header.magic == SHARD_UINT16 ? 2 : header.magic == SHARD_UINT32 ? 4 : 1;
    const char *kind = width > 1 ? NULL : file_kind(map.bytes, map.size);
    f->data = map.bytes;
    f->count = map.size;
    REQUIRE(!kind, "%s: this is %s, want a text or a token shard", f->name, kind);
    REQUIRE(width > 1 || !ends_with(f->name, ".bin"), "%s: magic %u, want %d or %d: not a token shard (nanoGPT's .bin "
            "files have no header: train on the text itself)", f->name, header.magic, SHARD_UINT16, SHARD_UINT32);
    if (width > 1) {
        REQUIRE(!dir_has_file(file_parent(f->name).text, SHARDS_INCOMPLETE), "%s: tokenize did not complete the shards "
                "in this directory; start it again, or remove %s", f->name, SHARDS_INCOMPLETE);
        REQUIRE(header.version == 1 || (width == 4 && header.version == 7), "%s: shard version %u, want %s", f->name,
                header.version, width == 2 ? "1" : "1 or 7");
        f->data += SHARD_HEADER_BYTES;
        f->count = header.count;
        f->sum = header.sum;
        const int64_t want = SHARD_HEADER_BYTES + f->count * width;
        REQUIRE(map.size == want, "%s: %s: the header promises %lld tokens, %lld bytes in all, the file has %lld",
                f->name, map.size < want ? "truncated" : "too long", (long long)f->count, (long long)want,
                (long long)map.size);
    }
    REQUIRE(f->count > 0, "%s: no tokens: want a file with some", f->name);
    return width;
}

/* An unreadable directory is an error: its files would be missing silently. */
static int glob_failed(const char *path, int error) {
    REQUIRE(error == ENOENT || error == ENOTDIR, "%s: %s: cannot look for data there", path, strerror(error));
    return 0;
}

/* Appends a file to the stream, and takes its name. */
static void add_file(Tokens *t, char *name) {
    static const char *const kinds[] = { NULL, "a text", "a shard of uint16", NULL, "a shard of uint32" };
    TokenFile *f = &t->file[t->file_count++];
    f->name = name;
    f->first = t->count;
    const int width = open_file(f);
    if (f == t->file) t->width = width;
    REQUIRE(width == t->width, "%s: this is %s, but %s is %s: want files of one kind", name, kinds[width],
            t->file[0].name, kinds[t->width]);
    t->count += f->count;
}

/* Texts as bytes. */
static Tokens *open_files(const char *pattern) {
    glob_t found = { .gl_pathc = 1, .gl_pathv = (char *[]){ (char *)pattern } };
    int is_file = file_exists(pattern);      /* a file name can contain the characters of a pattern */
    if (!is_file && errno == EACCES) glob_failed(pattern, errno);
    REQUIRE(!file_is_dir(pattern), "%s: is a directory, want a file, or shards as '%s/train_*.bin'", pattern, pattern);
    REQUIRE(is_file || glob(pattern, 0, glob_failed, &found) == 0,
            "%s: no such file, and no file matches it as a pattern (scripts/download_*.sh download data; a resume "
            "starts where the run was started, or with --data PATH)", pattern);
    Tokens *t = host_alloc(sizeof *t, "a token stream");
    t->name = format_string("%s", pattern);
    t->file = host_alloc(found.gl_pathc * sizeof *t->file, "the list of token files");
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (is_file || strstr(pattern, ".tokens-") || !shards_is_cache(found.gl_pathv[i]))
            add_file(t, format_string("%s", found.gl_pathv[i]));
    if (!is_file) globfree(&found);
    t->is_text = t->width == 1;
    t->tokenizer = t->is_text ? TOKENIZER_BYTES : TOKENIZER_IDS;
    REQUIRE(t->count >= 2, "%s: want 2 tokens or more, an input and a target; .tokens- files do not count", pattern);
    return t;
}

static int is_bpe(Tokenizer *tokenizer) { return tokenizer && tokenizer->is_bpe; }

/* tokenize writes the tokenizer beside its shards. */
static void find_tokenizer(Tokens *t, Tokenizer *chosen) {
    if (is_bpe(chosen)) t->tokenizer = chosen;
    for (const TokenFile *f = t->file; f < t->file + t->file_count; f++) {
        const Path dir = file_parent(f->name);
        if (f > t->file && !strcmp(dir.text, file_parent(f[-1].name).text)) continue;
        Tokenizer *found = tokenizer_find(dir.text);
        const int had = t->tokenizer->is_bpe;
        REQUIRE(!had || !found->is_bpe || bpe_fingerprint(t->tokenizer) == bpe_fingerprint(found), "%s: not the tokens "
                "of this tokenizer, but of the one in %s; want --tokenizer %s, or a model with that tokenizer",
                f->name, dir.text, dir.text);
        if (!had && found->is_bpe) t->tokenizer = t->beside = found;
        else bpe_free(found);
    }
}

static void close_files(Tokens *t) {
    for (; t->file_count; free(t->file[t->file_count].name)) file_unmap(t->file[--t->file_count].map);
}

/* tokenize ends when its errors have no reader. */
static void end_if_stopped(pid_t pid, int errors) {
    const char *why = stop_requested();
    if (!why) return;
    close(errors);
    waitpid(pid, NULL, 0);
    print_line(stdout, "%s: the tokens are not complete; the same command makes them again", why);
    if (stop_hook) stop_hook();
    exit(EXIT_TRY_AGAIN);
}

/* Fails with the message that tokenize writes to the pipe. */
static void run_tokenize(const char **argv, const int errors[2]) {
    char message[FAIL_LENGTH] = "";
    int status;
    const pid_t pid = start_program(argv);
    REQUIRE(pid > 0, "%s: %s; want tokenize of this build beside train_gpt: it makes the tokens of a text", argv[0],
            strerror(errno));
    close(errors[1]);
    while (poll(&(struct pollfd){ .fd = errors[0], .events = POLLIN }, 1, 100) <= 0) end_if_stopped(pid, errors[0]);
    const int is_said = read(errors[0], message, sizeof message - 1) > 0;
    close(errors[0]);
    waitpid(pid, &status, 0);
    REQUIRE(!is_said, "%s", message);
    REQUIRE(!WIFSIGNALED(status), "%s was killed by signal %d (%s)", argv[0], WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    REQUIRE(!status, "%s: exit code %d; see the line above, or want it of this build", argv[0], WEXITSTATUS(status));
}

/* Writes the tokens of the texts to a file or, as that is open in both programs, to memory (data/shard_writer.h). So is
   the list of the texts, which may be longer than the arguments of a program. */
static void write_tokens(const Tokens *t, const Settings *s, const Tokenizer *tokenizer, uint64_t hash,
                         const char *path) {
    const int list = memfd_create("texts", 0);
    int errors[2], count = 0;
    REQUIRE(list >= 0 && !pipe(errors), "cannot start tokenize: %s", strerror(errno));
    fcntl(errors[0], F_SETFD, FD_CLOEXEC);
    for (int i = 0; i < t->file_count; i++) dprintf(list, "%s%c", t->file[i].name, 0);
    const char *argv[] = { "tokenize", format_string("/proc/self/fd/%d", list), format_string("--shard=%s", path),
                           format_string("--tokenizer=%s", tokenizer->dir),
                           format_string("--documents=%s", s->documents), format_string("--errors=%d", errors[1]),
                           format_string("--field=%s", strcmp(s->documents, "jsonl") ? "text" : s->field),
                           format_string("--hash=%016llx", (unsigned long long)hash), NULL };
    run_tokenize(argv, errors);
    while (argv[++count]) free((char *)argv[count]);
    close(list);
}

/* So counts what is beside /dev/stdin or /dev/fd/0. */
static int is_read_only(const char *path) {
    const int is_stream = !strncmp(path, "/dev/stdin", 10) || !strncmp(path, "/dev/fd/", 8);
    return is_stream || access(file_exists(path) ? path : file_parent(path).text, W_OK);
}

/* The stream of the tokens of its texts, from a shard beside the first, or where that directory is read-only beside the
   run's, which is made; or from memory, where both are, and for --eval. Written unless it is there and intact; of the
   ranks of a host the first writes. */
static void tokenize(Tokens *t, const Settings *s, Tokenizer *tokenizer) {
    const DocumentKind kind = choice_index(DOCUMENT_NAMES, s->documents);
    const char *field = kind == DOCUMENT_JSONL ? s->field : "", *text = t->file->name, *slash = strrchr(text, '/');
    const char *out = s->eval ? s->eval : s->out ? s->out : "runs/NAME";
    const Path spare = file_parent(out);
    uint64_t hash = tokens_hash(bpe_fingerprint(tokenizer), kind, field, strlen(field));
    for (const TokenFile *f = t->file; f < t->file + t->file_count; f++) {
        text_check(f->map, f->name, kind, 0);
        hash = tokens_hash(hash, f->count, f->data, (size_t)f->count);
    }
    char *path = format_string("%s.tokens-%016llx.bin", text, (unsigned long long)hash), *beside = path;
    int found = shard_is_whole(path), memory = -1;
    if (!found && strcmp(out, "none") && (s->eval || is_read_only(path))) {
        path = format_string("%s/%s", spare.text, beside + (slash ? slash + 1 - text : 0));
        free(beside);
        directory_make(spare.text);
        found = shard_is_whole(path);
    }
    if (!found && (s->eval || is_read_only(path))) {
        free(path);
        memory = memfd_create("tokens", 0);
        path = format_string("/proc/self/fd/%d", memory);
    }
    if (!found && (memory >= 0 || !launch_local_rank)) write_tokens(t, s, tokenizer, hash, path);
    else while (!found && !shard_is_whole(path)) usleep(100000);
    close_files(t);
    t->tokenizer = tokenizer;
    t->count = 0;
    add_file(t, path);
    if (memory >= 0) close(memory);
    REQUIRE(t->count >= 2, "%s: want 2 tokens or more, an input and a target", t->name);
}

Tokens *tokens_open(const char *pattern, const Settings *settings, Tokenizer *tokenizer) {
    Tokens *t = open_files(pattern);
    if (!t->is_text)            find_tokenizer(t, tokenizer);
    else if (is_bpe(tokenizer)) tokenize(t, settings, tokenizer);
    else for (int i = 0; i < t->file_count; i++) text_check(t->file[i].map, t->file[i].name, DOCUMENT_FILE, 1);
    return t;
}

Tokens *tokens_slice(const Tokens *tokens, int64_t first, int64_t count) {
    Tokens *t = host_alloc(sizeof *t, "a token stream");
    *t = *tokens;
    t->is_slice = 1;
    t->first   += first;
    t->count    = count;
    t->fingerprint = 0;
    return t;
}

void tokens_close(Tokens *t) {
    if (t && !t->is_slice) {
        close_files(t);
        free(t->file);
        free(t->name);
        bpe_free(t->beside);
    }
    free(t);
}

int64_t tokens_windows(const Tokens *t, int T) { return (t->count - 1 + T - 1) / T; }

/* ---- Reading */

typedef struct { const TokenFile *file; const unsigned char *data; int64_t count; } Part;

/* Those of the tokens first .. first + count - 1 that lie in the file of the first one. */
static Part part_at(const Tokens *t, int64_t first, int64_t count) {
    const int64_t position = t->first + first;
    const TokenFile *f = t->file;
    while (position >= f->first + f->count) f++;
    const int64_t here = f->first + f->count - position;
    return (Part){ f, f->data + (position - f->first) * t->width, here < count ? here : count };
}

static void read_tokens(const Tokens *t, int64_t first, int64_t count, int32_t *out) {
    for (Part p; count > 0; first += p.count, out += p.count, count -= p.count) {
        p = part_at(t, first, count);
        if (t->width == 4) memcpy(out, p.data, 4 * (size_t)p.count);
        else if (t->width == 2) for (int64_t i = 0; i < p.count; i++) out[i] = ((const uint16_t *)p.data)[i];
        else for (int64_t i = 0; i < p.count; i++) out[i] = p.data[i];
    }
}

uint64_t tokens_fingerprint(Tokens *t) {
    Part p;
    if (t->fingerprint) return t->fingerprint;
    for (int64_t first = 0; first < t->count; first += p.count) {
        p = part_at(t, first, t->count - first);
        const uint64_t next[3] = { t->fingerprint, (uint64_t)p.count, xxh64(p.data, (size_t)(p.count * t->width)) };
        REQUIRE(!p.file->sum || p.count < p.file->count || next[2] == p.file->sum, "%s: damaged: the tokens have the "
                "xxh64 %016" PRIx64 ", the header %016" PRIx64 "; want a new copy", p.file->name, next[2], p.file->sum);
        t->fingerprint = xxh64(next, sizeof next);
    }
    return t->fingerprint;
}

/* Inputs and targets start .. start + count - 1, wrapping around at the end of the stream, then padding up to T. */
static int read_window(const Tokens *t, int64_t start, int count, int T, int32_t *input, int32_t *target) {
    int64_t to_end = t->count - 1 - start;
    int head = to_end < count ? (int)to_end : count;        /* targets before the end */
    read_tokens(t, start,     head, input);
    read_tokens(t, start + 1, head, target);
    read_tokens(t, 0, count - head, input  + head);
    read_tokens(t, 1, count - head, target + head);
    for (int i = count; i < T; i++) {
        input[i]  = 0;
        target[i] = -1;
    }
    return count;
}

/* Targets in window w of an epoch. */
static int window_targets(const Tokens *t, int64_t w, int T) {
    int64_t left = t->count - 1 - w * T;
    return left < T ? (int)left : T;
}

/* The window of an epoch that sequence g reads. */
static int64_t window_of(const Tokens *t, uint64_t seed, uint64_t g, int T, uint32_t *epoch) {
    const uint64_t windows = (uint64_t)tokens_windows(t, T);
    *epoch = (uint32_t)(g / windows);
    return (int64_t)random_permute(seed, RANDOM_SHUFFLE, *epoch, g % windows, windows);
}

int tokens_train_window(const Tokens *t, uint64_t seed, uint64_t g, int T, int32_t *input, int32_t *target) {
    uint32_t epoch;
    const int64_t targets = t->count - 1, w = window_of(t, seed, g, T, &epoch);
    const int64_t offset = (int64_t)random_below(seed, RANDOM_PHASE, epoch, 0, (uint64_t)targets);
    return read_window(t, (offset + w * T) % targets, window_targets(t, w, T), T, input, target);
}

int64_t tokens_train_targets(const Tokens *t, uint64_t seed, uint64_t g, uint64_t count, int T) {
    int64_t sum = 0;
    uint32_t epoch;
    for (uint64_t i = 0; i < count; i++) sum += window_targets(t, window_of(t, seed, g + i, T, &epoch), T);
    return sum;
}

int tokens_eval_window(const Tokens *t, int64_t i, int T, int32_t *input, int32_t *target) {
    return read_window(t, i * T, window_targets(t, i, T), T, input, target);
}

/* ---- Checking */

void tokens_check(Tokens *t, int V) {
    enum { BLOCK = 4096 };
    int32_t id[BLOCK];
    Part p;
    tokens_fingerprint(t);
    if (t->width < 4 && V >= 1 << 8 * t->width) return;     /* every value of the type is an id */
    for (int64_t first = 0, i = 0; first < t->count; first += p.count, i = 0) {
        p = part_at(t, first, t->count - first < BLOCK ? t->count - first : BLOCK);
        read_tokens(t, first, p.count, id);
        while (i < p.count && (uint32_t)id[i] < (uint32_t)V) i++;
        REQUIRE(i == p.count, "%s: token %lld is id %u, want below %d, the vocabulary%s", p.file->name,
                (long long)(t->first + first + i - p.file->first), (uint32_t)id[i], V,
                t->width == 4 && V < 128256 ? "; want --vocab 128256 for Llama 3's tokens" : "");
    }
}

/* ---- Corpus */

/* data/tales writes the entropy of a text into PATH.floor, as the first word; NaN where there is no such file. */
static double text_floor(const char *path) {
    char *name = format_string("%s.floor", path);
    double floor = NAN;
    if (file_exists(name)) {
        const FileMap map = file_map(name);
        int64_t size = 0;
        while (size < map.size && map.bytes[size] > ' ') size++;
        floor = cell_number((const char *)map.bytes, (size_t)size);
        REQUIRE(floor >= 0, "%s: want the entropy in nats per byte first", name);
        file_unmap(map);
    }
    free(name);
    return floor;
}

char *corpus_val_beside(const char *data) {
    const Path dir = file_parent(data);
    const int is_there = ends_with(data, "train_*.bin") && dir_has_file(dir.text, "val_000000.bin");
    return is_there ? format_string("%s/val_*.bin", dir.text) : NULL;
}

Corpus corpus_open(const Settings *s, Tokenizer *tokenizer) {
    const DocumentKind kind = choice_index(DOCUMENT_NAMES, s->documents);
    document_check_field(kind, s->field);
    REQUIRE(is_bpe(tokenizer) || kind == DOCUMENT_FILE, "--documents %s: want --tokenizer DIR; without one, the bytes "
            "of a text are its tokens", s->documents);
    Corpus c = { .train = s->data ? tokens_open(s->data, s, tokenizer) : NULL, .val_floor = NAN };
    const int are_bytes = c.train && c.train->tokenizer == TOKENIZER_BYTES;
    if (s->val_data) {
        c.val = tokens_open(s->val_data, s, c.train ? c.train->tokenizer : tokenizer);
        const int val_are_bytes = c.val->tokenizer == TOKENIZER_BYTES;
        REQUIRE(!c.train || are_bytes == val_are_bytes, "--data %s and --val-data %s: one is a text, the other token "
                "shards; want two texts or two sets of shards", s->data, s->val_data);
        if (val_are_bytes) c.val_floor = text_floor(s->val_data);
    } else if (c.train && c.train->is_text && s->val_fraction > 0) {
        const int64_t count = c.train->count, kept = (int64_t)((double)count * (1 - s->val_fraction));
        REQUIRE(kept >= 2 && count - kept >= 2, "%s: %lld %s are too few for --val-fraction %g, want 2 in each part",
                s->data, (long long)count, are_bytes ? "bytes" : "tokens", s->val_fraction);
        c.val = tokens_slice(c.train, kept, count - kept);
        c.train->count = kept;
    }
    return c;
}

void corpus_check(Corpus *c, int V) {
    tokens_check(c->train, V);
    ranks_require_same(tokens_fingerprint(c->train), "--data");
    if (!c->val) return;
    tokens_check(c->val, V);
    ranks_require_same(tokens_fingerprint(c->val), "--val-data");
    ranks_copy_from_first(&c->val_floor, sizeof c->val_floor);      /* its file may be on one host only */
}

char *corpus_text(const Corpus *c) {
    if (!c->train) return format_string("none");
    const char *unit = c->train->tokenizer == TOKENIZER_BYTES ? "bytes" : "tokens", *train = c->train->name;
    const long long count = c->train->count;
    if (!c->val) return format_string("%s, %lld %s to train on, no validation", train, count, unit);
    const int is_same = tokens_fingerprint(c->val) == tokens_fingerprint(c->train);
    return format_string("%s, %lld %s to train on, %lld to validate on%s%s%s", train, count, unit,
                         (long long)c->val->count, c->val->is_slice ? "" : ": ", c->val->is_slice ? "" : c->val->name,
                         is_same ? ", the training data: its loss shows no overfitting" : "");
}
