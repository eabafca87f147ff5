/* test_shards.c - Texts as documents, as token shards, and as the cached tokens of --data. */
#include "../../data/shard_writer.h"
#include "../../llmc/text/bpe_files.h"
#include "../../llmc/tokens/dataloader.h"
#include "../scratch.h"
#include <glob.h>
#include <sys/time.h>

enum { END = 499 };
static Tokenizer *bpe;
static const Settings as_file = { .documents = "file", .field = "text", .val_fraction = 0.25 };

static const char *const a_text = "the cat\n\nis the 1st\r\nна коте 你好";
static const char *const b_text = "one<|endoftext|>two\n<|endoftext|>";

static int files_like(const char *pattern) {
    glob_t found;
    int count = glob(pattern, 0, NULL, &found) ? 0 : (int)found.gl_pathc;
    if (count) globfree(&found);
    return count;
}

/* ids = the ids of the parts, NULL-terminated, "|" for end of text. Returns their number. */
static size_t ids_of(const char *const *part, int32_t *ids) {
    size_t count = 0;
    for (; *part; part++) {
        if (!strcmp(*part, "|")) ids[count++] = END;
        else count += bpe_encode(bpe, *part, strlen(*part), ids + count);
    }
    return count;
}

static void expect_shards(const char *pattern, const int32_t *want, size_t count) {
    Tokens *t = tokens_open(pattern, NULL, NULL);
    int32_t *input = new_array((int64_t)count, sizeof *input), *target = new_array((int64_t)count, sizeof *target);
    EXPECT(t->count == (int64_t)count, "%s: %lld tokens, want %zu", pattern, (long long)t->count, count);
    if (t->count == (int64_t)count) {
        tokens_eval_window(t, 0, (int)count - 1, input, target);
        EXPECT(!memcmp(input, want, (count - 1) * sizeof *input) && target[count - 2] == want[count - 1],
               "%s: other tokens", pattern);
    }
    tokens_close(t);
}

static void write_shards(const char *const *paths, int count, DocumentKind kind, const char *dir, double val_fraction,
                         int64_t shard_tokens) {
    Texts texts = texts_open(paths, count, kind, "body");
    shards_write(bpe, &texts, dir, shard_tokens, val_fraction);
    texts_close(&texts);
}

/* A text as shards or, without dir, as cached tokens; limit: maximum bytes of a file, 0 = none. */
typedef struct { const char *path, *dir; DocumentKind kind; rlim_t limit; } Job;
enum { JOB_SHARD = 1000000 };

static void run_job(const Job *job) {
    if (job->limit) limit_file_size(job->limit);
    if (job->dir) write_shards(&job->path, 1, job->kind, job->dir, 0, JOB_SHARD);
    else tokens_open(job->path, &(Settings){ .documents = job->kind ? "jsonl" : "file", .field = "body" }, bpe);
}

/* A new file of text that the BPE merges. */
static char *put_long_text(const char *name, int size) {
    char *text = new_array(size + 1, 1), *path = IN_SCRATCH("%s", name);
    for (int i = 0; i < size; i++) text[i] = "the bako, ti\n"[(i * 7 + i / 100) % 13];
    text[size] = 0;
    put_text(path, text);
    return path;
}

/* Raises SIGINT while the tokens are written. */
static void interrupt(int number) {
    static int calls;
    calls += number > 0;
    if (calls == 10) raise(SIGINT);
}

/* Changes the text while it is read. */
static int text_fd;
static void change_text(int number) {
    static char letter = 'A';
    letter += number > 0;
    if (pwrite(text_fd, &letter, 1, 0) != 1) _exit(2);
}

/* A job with a signal every 5 ms: of this process's CPU time for shards, of real time where tokenize computes. */
static void run_disturbed(void (*handler)(int), const Job *job) {
    signal(job->dir ? SIGPROF : SIGALRM, handler);
    setitimer(job->dir ? ITIMER_PROF : ITIMER_REAL, &(struct itimerval){ { 0, 5000 }, { 0, 5000 } }, NULL);
    run_job(job);
}

static void end_child(void) { _exit(EXIT_TRY_AGAIN); }

/* First: OpenMP's threads do not survive the fork. Failures: a full disk; a line that is refused when some batches are
   written; a signal, which requests a stop or, as with --eval, ends the process at once: tokenize ends after it. */
TEST(nothing_stays_of_a_failure) {
    enum { LINES = 80000, LENGTH = 64 };
    char *bad = IN_SCRATCH("bad.jsonl"), *text = new_array(LINES * LENGTH + 8, 1), message[4096];
    for (int i = 0; i < LINES; i++) sprintf(text + i * LENGTH, "{\"body\": \"%051d\"}\n", i);
    memcpy(text + LINES * LENGTH, "{bad}\n", 6);
    put(bad, text, LINES * LENGTH + 6);
    const char *wide = put_long_text("wide.txt", 300000), *out = IN_SCRATCH("out"), *line = "line 80001: byte 1";
    const char *full = ": cannot write: File too large";
    const struct { Job job; const char *want; } cases[] = {
        { { wide, out, DOCUMENT_FILE, 100000 }, full }, { { wide, NULL, DOCUMENT_FILE, 100000 }, full },
        { { bad, out, DOCUMENT_JSONL, 0 }, line },      { { bad, NULL, DOCUMENT_JSONL, 0 }, line },
    };
    for (int i = 0; i < COUNT(cases); i++) EXPECT_FAILS(cases[i].want, run_job(&cases[i].job));
    int status;
    Job job = { .path = put_long_text("interrupted.txt", 30000000), .kind = DOCUMENT_FILE };
    for (int stops = 0; stops < 2; stops++) {
        if (test_child_begin()) {
            signal(SIGINT, SIG_DFL);
            if (stops) stop_open();
            stop_hook = end_child;
            run_disturbed(interrupt, &job);
        }
        test_child_end(message, sizeof message, &status);       /* when tokenize, too, has closed stderr */
        EXPECT(stops ? WIFEXITED(status) && WEXITSTATUS(status) == EXIT_TRY_AGAIN
                     : WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "status %d: %s", status, message);
        EXPECT(files_like(IN_SCRATCH("*.tokens-*")) == 0, "files stay, %d", stops);
    }
    text_fd = open(job.path, O_WRONLY);
    /* whether a private mapping shows a change is unspecified: one in 30 does not */
    for (int time = 0; time < 5 && !strstr(message, "interrupted.txt: changed while it was tokenized"); time++) {
        if (test_child_begin()) run_disturbed(change_text, &job);
        test_child_end(message, sizeof message, &status);
    }
    EXPECT(strstr(message, "start again"), "%s", message);
}

/* Another process starts where the file system has no locks. */
static const char *taken, *started;
static void take(int number) {
    (void)number;
    if (access(started, F_OK)) return;
    unlink(taken);
    close(open(taken, O_WRONLY | O_CREAT, 0600));
    setitimer(ITIMER_PROF, &(struct itimerval){ { 0, 0 }, { 0, 0 } }, NULL);
}

TEST(two_that_write_do_not_mix) {
    static const char *const names[] = { "train_000001.bin", "tokenize.incomplete" };
    const char *path = put_long_text("interrupted.txt", 30000000), *locked = IN_SCRATCH("locked");
    directory_make(locked);
    const int lock = directory_lock(locked).fd;
    EXPECT_FAILS("another process writes to this directory: want another --out",
                 run_job(&(Job){ .path = path, .dir = locked }));
    close(lock);
    for (int i = 0; i < 2; i++) {
        const char *dir = IN_SCRATCH("taken-%d", i);
        taken = STRING("%s/%s", dir, names[i]);
        started = STRING("%s/tokenize.incomplete", dir);
        EXPECT_FAILS("another process writes to this directory",
                     run_disturbed(take, &(Job){ .path = path, .dir = dir }));
        EXPECT(file_exists(taken), "%s is gone", names[i]);
    }
}

/* The first shard is complete when a line is refused. */
TEST(an_incomplete_set_is_refused_and_replaced) {
    char *out = IN_SCRATCH("out"), *shards = IN_SCRATCH("out/train_*.bin"), *path = IN_SCRATCH("a.txt");
    int32_t want[256];
    const size_t count = ids_of((const char *const[]){ "|", a_text, NULL }, want);
    EXPECT(files_like(shards) > 0 && files_like(IN_SCRATCH("out/tokenize.incomplete")) == 1, "no incomplete set");
    EXPECT(!bpe_has_files(out), "a tokenizer beside incomplete shards: another start may have another one");
    EXPECT_FAILS("train_000000.bin: tokenize did not complete the shards in this directory",
                 tokens_close(tokens_open(shards, NULL, NULL)));
    put_text(path, a_text);
    run_job(&(Job){ .path = path, .dir = out });
    expect_shards(shards, want, count);
    EXPECT(files_like(IN_SCRATCH("out/tokenize.incomplete")) == 0 && bpe_has_files(out), "the set is complete");
}

TEST(shards_have_their_tokenizer) {
    char *shards = IN_SCRATCH("out/train_*.bin");
    char *bytes = test_keep(bpe_file_text(TOKENIZER_BYTES, "tokenizer.json", 0));
    for (int given = 0; given < 2; given++) {
        Tokens *t = tokens_open(shards, &as_file, given ? bpe : NULL);
        EXPECT(bpe_fingerprint(t->tokenizer) == bpe_fingerprint(bpe) && !t->is_text, "given %d", given);
        tokens_close(t);
    }
    put_text(IN_SCRATCH("out/tokenizer.json"), bytes);
    put_text(IN_SCRATCH("out/tokenizer_config.json"), "{}");
    EXPECT_FAILS("not the tokens of this tokenizer, but of the one in", tokens_open(shards, &as_file, bpe));
    write_shards((const char *const[]){ IN_SCRATCH("a.txt") }, 1, DOCUMENT_FILE, IN_SCRATCH("other"), 0, 1000);
    EXPECT_FAILS("not the tokens of this tokenizer, but of the one in",
                 tokens_open(IN_SCRATCH("o*t*/train_000000.bin"), &as_file, NULL));     /* shards of two tokenizers */
    put_text(IN_SCRATCH("out/tokenizer.json"), "{}");
    /* it cannot be read: in a child, as what was read of it stays */
    EXPECT_FAILS("ids without a tokenizer",
                 REQUIRE(tokens_open(shards, NULL, NULL)->tokenizer != TOKENIZER_IDS, "ids without a tokenizer"));
}

TEST(kinds_of_documents) {
    static const char *const file[] = { "|", a_text, "|", b_text, NULL };
    static const char *const line[] = { "|", "the cat", "|", "is the 1st",
                                        "|", "на коте 你好",
                                        "|", "one<|endoftext|>two", "|", "<|endoftext|>", NULL };
    static const char *const marks[] = { a_text, "|", "one", "|", "two\n", "|", NULL };
    static const char *const jsonl[] = { "|", "the \"cat\"\n", "|", "ко", NULL };
    static const char *const byte_order[] = { "|", "\xef\xbb\xbf", NULL };
    static const char *const unmarked[] = { "one", "|", "two\n", "|", a_text, "|", a_text, NULL };
    const char *const texts[] = { IN_SCRATCH("a.txt"), IN_SCRATCH("empty.txt"), IN_SCRATCH("b.txt") };
    const char *const other[] = { texts[1], texts[2], texts[0], texts[0] };
    const char *const json[] = { IN_SCRATCH("mark.jsonl"), IN_SCRATCH("c.jsonl") };
    const struct { DocumentKind kind; const char *const *parts, *const *texts; int count; } cases[] = {
        { DOCUMENT_FILE, file, texts, 3 }, { DOCUMENT_LINE, line, texts, 3 }, { DOCUMENT_MARK, marks, texts, 3 },
        { DOCUMENT_MARK, unmarked, other, 4 }, { DOCUMENT_LINE, byte_order, json, 1 },
        { DOCUMENT_JSONL, jsonl, json, 2 },
    };
    put_text(texts[0], a_text);
    put_text(texts[1], "");
    put_text(texts[2], b_text);
    put_text(json[0], byte_order[1]);
    put_text(json[1], "\xef\xbb\xbf{\"body\": \"the \\\"cat\\\"\\n\", \"id\": NaN}\n \t\r\n"
                      "{\"id\": [], \"body\": \"\\u043a\\u043e\"}\r\n{\"body\":\"\"}\n");
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        int32_t want[256];
        const size_t count = ids_of(cases[i / 2].parts, want);
        char *dir = IN_SCRATCH("kind-%d", i);
        write_shards(cases[i / 2].texts, cases[i / 2].count, cases[i / 2].kind, dir, 0, i % 2 ? 5 : 1000);
        expect_shards(STRING("%s/train_*.bin", dir), want, count);
    }
}

/* Train and val together are the whole text, encoded in parts on all cores; val has its share of the bytes. */
TEST(validation_is_the_last_part) {
    enum { SIZE = 3000000 };
    const char *path = put_long_text("long.txt", SIZE), *text = text_of(path);
    int32_t *want = new_array(SIZE + 1, sizeof *want);
    size_t count = ids_of((const char *const[]){ "|", text, NULL }, want);
    write_shards(&path, 1, DOCUMENT_FILE, IN_SCRATCH("split"), 0.01, 100000);
    Tokens *train = tokens_open(IN_SCRATCH("split/train_*.bin"), NULL, NULL);
    size_t first = (size_t)train->count;
    expect_shards(IN_SCRATCH("split/train_*.bin"), want, first);
    expect_shards(IN_SCRATCH("split/val_*.bin"), want + first, count - first);
    double share = (double)(count - first) / (double)count;
    EXPECT(fabs(share - 0.01) < 0.001, "val has %g of the tokens", share);
    tokens_close(train);
    EXPECT_FAILS("exists: want an --out without shards", run_job(&(Job){ .path = path, .dir = IN_SCRATCH("split") }));
    char *beside = test_keep(corpus_val_beside(IN_SCRATCH("split/train_*.bin")));
    EXPECT(!strcmp(beside, IN_SCRATCH("split/val_*.bin")) && !corpus_val_beside(IN_SCRATCH("kind-0/train_*.bin")) &&
           !corpus_val_beside(path), "%s", beside);
}

/* A line of 5 MB, more than a batch with its values, is encoded in parts, but not divided: the first of two is training
   data. */
TEST(a_line_is_not_divided) {
    enum { SIZE = 5000000 };
    const char *path = IN_SCRATCH("two.jsonl"), *line = STRING("{\"body\": \"%0*d\"}\n", SIZE, 7);
    char *text = strchr(line, '0'), *end = strchr(text, '"');
    for (char *c = text; c < end; c++) *c = "the bako, ti "[(c - text) * 7 % 13];
    put_text(path, STRING("%s%s", line, line));
    int32_t *want = new_array(SIZE + 1, sizeof *want);
    const size_t count = ids_of((const char *const[]){ "|", STRING("%.*s", (int)(end - text), text), NULL }, want);
    write_shards(&path, 1, DOCUMENT_JSONL, IN_SCRATCH("two"), 0.9, 10000000);
    expect_shards(IN_SCRATCH("two/train_*.bin"), want, count);
    expect_shards(IN_SCRATCH("two/val_*.bin"), want, count);
}

static void open_texts(const char *path) {
    Texts t = texts_open(&path, 1, DOCUMENT_JSONL, "body");
    text_check(*t.map, path, t.kind, 0);
    while (texts_next(&t)) { }
    texts_close(&t);
}

/* A mark behind the first MiB, and a NUL in it; as bytes and as tokens. Other encodings are refused as tokens. */
TEST(notices) {
    char *path = put_long_text("noticed.txt", 2000000), *text = STRING("%s", text_of(path));
    memcpy(text + 1900000, "<|endoftext|>", 13);
    memcpy(text, "\xef\xbb\xbf", 3);
    memcpy(text + 5000, "\r\n", 2);
    text[900000] = 0;
    put(path, text, 2000000);
    for (int tokens = 0; tokens < 2; tokens++) {
        const char *printed = PRINTED_ON(1, tokens_close(tokens_open(path, &as_file, tokens ? bpe : NULL)));
        EXPECT(strstr(printed, "noticed.txt: byte 900000 is NUL") && strstr(printed, "txt: byte order mark, read as") &&
               strstr(printed, "CR LF, read as text") && strstr(printed, "contains <|endoftext|>, read as text"), "%s",
               printed);
    }
    const FileMap lines = { (const unsigned char *)"one\r\ntwo\r\n", 10 };
    EXPECT(!*PRINTED_ON(1, text_check(lines, "lines", DOCUMENT_LINE, 0)), "CR LF, of which lines keep nothing");
    static const char *const other[] = { "caf\xe9 na\xefve", "`O}Y\fTBf(W?T&^Nw" "\x80\x4e\x87\x65\x2c\x67\x8c\x9a" };
    for (int i = 0; i < COUNT(other); i++) {            /* Latin-1; Chinese in UTF-16LE without a mark */
        put_text(path, other[i]);
        const char *printed = PRINTED_ON(1, tokens_close(tokens_open(path, &as_file, NULL)));
        EXPECT(strstr(printed, "are not UTF-8: is it in another encoding?"), "text %d as bytes", i);
        EXPECT_FAILS("are not UTF-8: is it in another encoding?", tokens_open(path, &as_file, bpe));
    }
}

TEST(refused_texts) {
    static const struct { const char *text; int size; const char *want; } cases[] = {
        { "\xff\xfe" "a\0b\0", 6, "this is a text in UTF-16 (iconv -f UTF-16 -t UTF-8 converts it), want a text" },
        { "O\0n\0c\0e\0 \0a\0", 12, "every second byte is often NUL: is it UTF-16" },
        { "\0O\0n\0c\0e\4\x3e\0!\0!", 14, "every second byte is often NUL" },
        { "\x14\4 \0\x3d\4 \0\x35\4 \0\n\0", 14, "every second byte is often NUL" },          /* Cyrillic */
        { "caf\xe9 na\xefve", 10, "byte 0xe9 at 3, and 1 more in the first MiB, are not UTF-8" },
        { "{\"body\":\"a\"}\n{\"body\":7}\n", 24, "line 2: \"body\" is 7, want a string" },
        { "{\"body\":\"a\"}\n{\"text\":\"b\"}\n", 26, "line 2: \"body\" is missing" },
        { "{\"body\":\"a\"}\n\n[\"b\"]\n", 20, "line 3: begins with '[\"b\"]': this is not JSONL" },
        { "{\"body\":\"a\"}\n{\"body\":\"b\n", 23, "line 2: byte 10: found the end" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        char *path = IN_SCRATCH("refused-%d", i);
        put(path, cases[i].text, (size_t)cases[i].size);
        EXPECT_FAILS(cases[i].want, open_texts(path));
    }
}

TEST(cached_tokens) {
    Settings as_lines = as_file, as_part = as_file, as_jsonl = { .documents = "jsonl" };
    as_lines.documents = "line";
    char *path = IN_SCRATCH("data.txt"), *caches = IN_SCRATCH("data.txt.tokens-*.bin");
    put_text(path, a_text);
    Tokens *t = tokens_open(path, &as_file, NULL);
    EXPECT(t->tokenizer == TOKENIZER_BYTES && t->is_text && !files_like(caches), "bytes need no cache");
    tokens_close(t);
    for (int time = 0; time < 2; time++) {
        t = tokens_open(path, &as_file, bpe);
        EXPECT(t->tokenizer == bpe && t->is_text && files_like(caches) == 1, "%d caches", files_like(caches));
        tokens_close(t);
    }
    int32_t want[256];
    expect_shards(caches, want, ids_of((const char *const[]){ "|", a_text, NULL }, want));
    tokens_close(tokens_open(path, &as_lines, bpe));
    EXPECT(files_like(caches) == 2, "%d caches of two kinds of documents", files_like(caches));
    put_text(path, "the CAT\n\nis the 1st\r\nна коте 你好");          /* same size */
    as_part.data = path;
    Corpus c = corpus_open(&as_part, bpe);
    EXPECT(files_like(caches) == 3, "%d caches after the text has changed", files_like(caches));
    int64_t train = c.train->count, val = c.val->count;
    EXPECT(val == (train + val + 3) / 4, "%lld and %lld tokens", (long long)train, (long long)val);
    char *text = test_keep(corpus_text(&c));
    EXPECT(strstr(text, "data.txt, ") && strstr(text, " tokens to train on"), "%s", text);
    tokens_close(c.val);
    tokens_close(c.train);
    put_text(IN_SCRATCH("fields.jsonl"), "{\"a\": \"x\", \"b\": \"y\"}\n");
    for (int i = 0; i < 2; i++) {
        as_jsonl.field = i ? "b" : "a";
        tokens_close(tokens_open(IN_SCRATCH("fields.jsonl"), &as_jsonl, bpe));
    }
    EXPECT(files_like(IN_SCRATCH("fields.jsonl.tokens-*.bin")) == 2, "caches of two fields");
}

/* Files: beside the text, in the other directory. Root may write everywhere. */
TEST(tokens_of_a_read_only_text) {
    static const struct { int in_memory, mode, other_mode, beside, in_other; } cases[] = {
        { 1, 0777, 0777, 0, 0 }, { 1, 0555, 0777, 0, 0 }, { 0, 0555, 0555, 0, 0 }, { 0, 0555, 0777, 0, 1 },
        { 1, 0555, 0555, 0, 1 }, { 0, 0777, 0777, 1, 1 } };
    const char *program = test_keep(realpath(built("tokenize"), NULL));
    char *dir = IN_SCRATCH("theirs"), *other = IN_SCRATCH("ours"), *path = IN_SCRATCH("theirs/data.txt");
    const int is_root = geteuid() == 0;
    int32_t want[256], input[256], target[256];
    const size_t count = ids_of((const char *const[]){ "|", a_text, NULL }, want);
    directory_make(dir);
    directory_make(other);
    put_text(path, a_text);
    for (int i = 0; i < COUNT(cases); i++) {
        const char *in_other = IN_SCRATCH("ours/run");
        const Settings s = { .documents = "file", .eval = cases[i].in_memory ? in_other : NULL, .out = in_other };
        EXPECT(!(chmod(scratch, 0711) | chmod(dir, cases[i].mode) | chmod(other, cases[i].other_mode)), "case %d", i);
        if (is_root && setresuid(65534, 65534, 0)) return;
        if (access(program, X_OK) && !setresuid(0, 0, 0)) return;       /* in a directory of root alone */
        Tokens *t = tokens_open(path, &s, bpe);
        if (is_root) EXPECT(!setresuid(0, 0, 0), "root again");
        tokens_eval_window(t, 0, (int)count - 1, input, target);
        EXPECT(t->count == (int64_t)count && !memcmp(input, want, (count - 1) * sizeof *input) &&
               files_like(IN_SCRATCH("theirs/*")) == 1 + cases[i].beside &&
               files_like(IN_SCRATCH("ours/data.txt.tokens-*.bin")) == cases[i].in_other, "case %d", i);
        tokens_close(t);
    }
}

static char *cache_of(Tokenizer *of, const char *path) {
    glob_t found;
    tokens_close(tokens_open(path, &as_file, of));
    EXPECT(!glob(STRING("%s.tokens-*", path), 0, NULL, &found) && found.gl_pathc == 1, "%s: its tokens", path);
    char *cache = STRING("%s", *found.gl_pathv);
    globfree(&found);
    return cache;
}

static void flip(const char *path, long at) {
    FILE *file = fopen(path, "r+");
    fseek(file, at, SEEK_SET);
    const int byte = fgetc(file) ^ 4;
    fseek(file, at, SEEK_SET);
    fputc(byte, file);
    fclose(file);
}

/* Cut, longer, or with another bit in any byte; opened as a shard, where tokens_check alone verifies the tokens. */
TEST(a_damaged_cache_is_made_again) {
    static const off_t sizes[] = { 0, 5, 1024, 1030, 9999 };
    int32_t want[256];
    const size_t count = ids_of((const char *const[]){ "|", a_text, NULL }, want);
    const int bytes = 1024 + 2 * (int)count;
    const char *path = IN_SCRATCH("damaged.txt");
    put_text(path, a_text);
    for (int i = 0; i <= COUNT(sizes) + bytes; i++) {
        char *cache = cache_of(bpe, path);
        const int at = i - COUNT(sizes);
        expect_shards(cache, want, count);
        if (at < 0) EXPECT(!truncate(cache, sizes[i]), "%s: cannot truncate", cache);
        else if (at < bytes) flip(cache, at);
        if (at >= 1024 && at < bytes)
            EXPECT_FAILS("damaged: the tokens have the xxh64", tokens_check(tokens_open(cache, NULL, NULL), 1 << 16));
        if (at == 24) i += 990;             /* zeros, which nothing reads */
    }
    EXPECT(files_like(IN_SCRATCH("damaged.txt.*")) == 1, "%d files", files_like(IN_SCRATCH("damaged.txt.*")));
}

/* Ids of more than 16 bits: shards of uint32, of another version. */
TEST(a_cache_of_wide_ids_is_found_again) {
    static char text[(1 << 16) + 1][8];
    BpeVocabulary v = { .V = COUNT(text), .token = calloc(COUNT(text), sizeof *v.token), .end_of_text = -1 };
    for (int i = 0; i < v.V; i++) {
        const int size = sprintf(text[i], i < 256 ? "%c" : "<%d>", i);
        v.token[i] = (BpeToken){ .bytes = (unsigned char *)text[i], .size = size, .is_special = i > 255 };
    }
    Tokenizer *made = bpe_create(v, "wide");
    const char *path = IN_SCRATCH("wide.txt"), *dir = IN_SCRATCH("wide");
    directory_make(dir);
    bpe_write(made, dir);
    bpe_free(made);
    Tokenizer *wide = bpe_open(dir);
    put_text(path, a_text);
    struct stat info[2];
    for (int time = 0; time < 2; time++) {
        char *cache = cache_of(wide, path);
        EXPECT(!stat(cache, &info[time]), "%s", cache);
        EXPECT(shard_header(file_map(cache)).version == 7, "llm.c's version of uint32");
    }
    EXPECT(info[0].st_ino == info[1].st_ino, "the tokens are made again");
    bpe_free(wide);
}

/* A pattern such as many-* matches the cache of an earlier run, and the leftovers of a killed earlier version. */
TEST(a_pattern_leaves_the_cache_out) {
    char *pattern = IN_SCRATCH("many-*");
    put_text(IN_SCRATCH("many-a.txt"), a_text);
    put_text(IN_SCRATCH("many-b.txt"), a_text);
    put_text(IN_SCRATCH("many-b.txt.tokens-0123456789abcdef.bin.partial-7-8"), "half");
    int64_t count[2];
    for (int time = 0; time < 2; time++) {
        Tokens *t = tokens_open(pattern, &as_file, bpe);
        count[time] = t->count;
        tokens_close(t);
    }
    EXPECT(count[0] == count[1] && files_like(IN_SCRATCH("many-*.bin")) == 1, "%lld, then %lld tokens",
           (long long)count[0], (long long)count[1]);
    Tokens *t = tokens_open(IN_SCRATCH("many-*.tokens-*.bin"), NULL, NULL);
    EXPECT(t->count == count[0], "a pattern for the cache");
    tokens_close(t);
}

int main(void) {
    scratch_open();
    bpe = tokenizer_open("test/reference/bpe");
    return test_all();
}
