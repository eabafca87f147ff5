/* tokenize - Texts to token shards for train_gpt, and the training of a tokenizer. */
#include "../llmc/text/bpe_files.h"
#include "bpe_train.h"
#include "../llmc/options/settings.h"
#include "shard_writer.h"

static const char *tokenizer, *out, *documents, *field, *shard, *hash;
static int64_t vocab_size, shard_tokens, errors;
static double val_fraction;
static int train_tokenizer, help;

static Option table[] = {
    { .name = "tokenizer", .type = OPTION_TEXT, .value = &tokenizer, .argument = "DIR",
      .help = "directory with tokenizer.json, vocab.json and merges.txt, or encoder.json and vocab.bpe" },
    { .name = "out", .type = OPTION_TEXT, .value = &out, .argument = "DIR",
      .help = "gets train_000000.bin, ..., val_000000.bin, ... and the tokenizer, or a trained tokenizer" },
    { .name = "documents", .type = OPTION_CHOICE, .value = &documents, .fallback = "file", .choices = DOCUMENT_NAMES,
      .help = "what a document is: a file, a line, what <|endoftext|> separates, a field of a line of JSONL" },
    { .name = "field", .type = OPTION_TEXT, .value = &field, .fallback = "text", .argument = "NAME",
      .help = "of JSONL, its text" },
    { .name = "val-fraction", .type = OPTION_REAL, .value = &val_fraction, .fallback = "0.01", .min = 0, .max = 0.9,
      .help = "the last part of the texts, for validation (train_gpt: 0.1 of a text)" },
    { .name = "shard-tokens", .type = OPTION_INTEGER, .value = &shard_tokens, .fallback = "100M", .min = 1,
      .max = UINT32_MAX, .help = "tokens of a shard" },
    { .name = "train-tokenizer", .type = OPTION_FLAG, .value = &train_tokenizer,
      .help = "make a tokenizer from the texts instead, as HuggingFace's trainer of byte-level BPE does" },
    { .name = "vocab-size", .type = OPTION_INTEGER, .value = &vocab_size, .fallback = "8192", .min = 257,
      .max = 1 << 24, .help = "of the trained tokenizer, with 256 bytes and <|endoftext|>" },
    { .name = "shard", .type = OPTION_TEXT, .value = &shard, .argument = "FILE",
      .help = "for train_gpt, in place of --out: one file of all tokens, TEXT.tokens-HASH.bin; of texts whose names "
              "are in a file, with a zero byte behind each" },
    { .name = "hash", .type = OPTION_TEXT, .value = &hash, .help = "of --shard: that of the texts and the tokenizer" },
    { .name = "errors", .type = OPTION_INTEGER, .value = &errors, .fallback = "-1", .min = -1, .max = 1 << 20,
      .argument = "FD", .help = "of --shard: a pipe for the error message; tokenize ends when it has no reader" },
    { .name = "help", .type = OPTION_FLAG, .value = &help, .help = "or -h: print this, and exit" },
    {0}
};

static void train(Texts *texts) {
    double start = seconds_now();
    directory_make(out);
    REQUIRE(directory_lock(out).fd, "%s: another process writes to this directory: want another --out", out);
    bpe_require_none(out);
    BpeTrainer trainer = {0};
    while (texts_next(texts)) bpe_trainer_add(&trainer, texts->span, texts->span_count);
    REQUIRE(texts->documents, "%s: the texts are empty", texts->path[0]);
    Tokenizer *bpe = bpe_train(&trainer, (int)vocab_size);
    stop_open();                        /* from here on a signal does not cut the files short */
    bpe_write(bpe, out);
    const BpeVocabulary *v = &bpe->v;
    print_line(stdout, "%d tokens, %d merges, from %.1f MB in %.2f s -> %s", v->V, v->merge_count,
               1e-6 * (double)texts->bytes, seconds_now() - start, out);
    if (v->V < vocab_size) printf("--vocab-size %lld: the texts have no more merges\n", (long long)vocab_size);
    bpe_free(bpe);
}

/* The names of a list, which must stay mapped. */
static const char *const *read_list(const char *path, int *count) {
    const FileMap map = file_map(path);
    const char **names = NULL, *name = (const char *)map.bytes, *end = name + map.size;
    REQUIRE(map.size && !end[-1], "%s: want the names of texts, with a zero byte behind each", path);
    size_t room = 0;
    for (*count = 0; name < end; name += strlen(name) + 1) {
        names = host_grow(names, (size_t)*count, &room, sizeof *names, "the list of texts");
        names[(*count)++] = name;
    }
    return names;
}

/* Receives the message of fail(), which train_gpt prints: up to its zero byte, as several threads may fail at once. */
static void send_error(const char *message) {
    _exit(write((int)errors, message, strlen(message) + 1) > 0 ? 1 : 2);
}

int main(int argc, char **argv) {
    int files = 0;
    fail_program = "tokenize";
    stdio_open();
    while (files + 1 < argc && *argv[files + 1] != '-') files++;
    static const char no_text[] = "want texts first, then options: FILE... --tokenizer DIR --out DIR; see --help";
    REQUIRE(files || argc <= 2, "%s", no_text);
    char **words = argv + files, *program = argv[0];
    const char *const *paths = (const char *const *)memmove(argv, argv + 1, (size_t)files * sizeof *argv);
    words[0] = program;
    options_parse(table, NULL, NULL, argc - files, words);
    if (help) {
        puts("tokenize writes texts as token shards for train_gpt.\n\n"
             "  tokenize FILE... --tokenizer DIR --out DIR    shards of texts\n"
             "  tokenize FILE... --train-tokenizer --out DIR  a tokenizer from texts\n");
        options_help(stdout, table);
        return stdio_flush();
    }
    REQUIRE(files, "%s", no_text);
    REQUIRE(shard ? tokenizer && hash && !out : out != NULL, "want --out DIR");
    if (errors >= 0) fail_hook = send_error;
    REQUIRE(!tokenizer != !train_tokenizer, "want either --tokenizer DIR or --train-tokenizer");
    REQUIRE(train_tokenizer || !options_find(table, "vocab-size")->given, "--vocab-size: want --train-tokenizer");
    DocumentKind kind = choice_index(DOCUMENT_NAMES, documents);
    document_check_field(kind, field);
    if (!train_tokenizer) stop_open();
    if (shard) paths = read_list(paths[0], &files);
    Texts texts = texts_open(paths, files, kind, field);
    for (int i = 0; !shard && i < files; i++) text_check(texts.map[i], paths[i], kind, 0);  /* train_gpt has done so */
    if (train_tokenizer) {
        train(&texts);
    } else {
        Tokenizer *bpe = bpe_open(tokenizer);
        if (bpe->v.warning && !shard) print_line(stderr, "warning: %s", bpe->v.warning);
        if (shard) shard_write_all(bpe, &texts, shard, strtoull(hash, NULL, 16), (int)errors);
        else       shards_write(bpe, &texts, out, shard_tokens, val_fraction);
        if (out) print_line(stdout, "./train_gpt %s    trains on them", shell_word(path_of(out, "train_*.bin").text));
        bpe_free(bpe);
    }
    texts_close(&texts);
    if (shard) free((void *)paths);      /* those of read_list */
    return stdio_flush();
}
