/* test_files.c - Files, JSON and safetensors: round trips, malformed input. */
#include "../scratch.h"
#include "../../llmc/checkpoint/safetensors.h"

/* ---- JSON */

TEST(test_json_values) {
    const char text[] = "\xef\xbb\xbf {\"a\" : [1, -0.5e+3 ,\"x\"],\"\":null,\"\\u00e9\\n\\\"\\/\":"
                        "\"\\ud83d\\ude00 \xc3\xa9\\u20ac\\u0001\",\"o\":{ },\"e\":[\t],\"t\":null,\"f\":false,"
                        "\"n\":\"a\\u0000b\",\"t\\u0000\":1,\"i\":[NaN,Infinity,-Infinity],\"t\":true}\r\n";
    Json *root = parsed(text, sizeof text - 1, "text");
    EXPECT(root->type == JSON_OBJECT && root->count == 11, "%d members", root->count);
    const Json *a = json_find(root, "a");
    EXPECT(a && a->count == 3 && !strcmp(a->child->text, "1") && !a->child->key, "the array");
    EXPECT(!strcmp(a->child->next->text, "-0.5e+3") && !strcmp(a->child->next->next->text, "x"), "its elements");
    EXPECT(json_find(root, "")->type == JSON_NULL, "the empty key");
    const Json *s = json_find(root, "\xc3\xa9\n\"/");
    EXPECT(s && !strcmp(s->text, "\xf0\x9f\x98\x80 \xc3\xa9\xe2\x82\xac\x01"), "got %s", s ? s->text : "no key");
    EXPECT(json_find(root, "o")->count == 0 && json_find(root, "e")->count == 0, "empty ones");
    EXPECT(json_find(root, "t")->type == JSON_TRUE && json_find(root, "f")->type == JSON_FALSE, "truths");
    const Json *n = json_find(root, "n"), *i = json_find(root, "i")->child;
    EXPECT(n->size == 3 && !memcmp(n->text, "a\0b", 4), "a NUL in a string of %zu bytes", n->size);
    EXPECT(!strcmp(i->text, "NaN") && !strcmp(i->next->text, "Infinity") && !strcmp(i->next->next->text, "-Infinity"),
           "numbers of Python: %s", i->text);
    EXPECT(!json_find(root, "b") && !json_find(a, "a"), "what is not there");

    static char deep[2000000];
    memset(deep, '[', sizeof deep / 2);
    memset(deep + sizeof deep / 2, ']', sizeof deep / 2);
    root = parsed(deep, sizeof deep, "deep");
    EXPECT(root->count == 1 && root->child->count == 1, "10^6 levels");
}

/* Read, written and read again. Halves of surrogate pairs as Python's json.loads and tiktoken read them:
   s.encode("utf-16", "surrogatepass").decode("utf-16", "replace"). */
TEST(test_json_strings) {
    static const struct { const char *text, *want; } cases[] = {
        { "\"a\\ud800b\"", "a\xef\xbf\xbd" "b" },        { "\"\\ude00\\ud83d\"", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\"\\ud800\\u0041\"", "\xef\xbf\xbd" "A" },
        { "\"\\ud83d\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80" },
        { "\"\\ud800\"", "\xef\xbf\xbd" },             { "\"\\ud800\\n\"", "\xef\xbf\xbd\n" },
        { "\"\"", "" },                                 { "\"plain \xc3\xa9\"", "plain \xc3\xa9" },
        { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\\u001F\x7f\"", "\"\\/\b\f\n\r\t\x01\x1f\x7f" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const char *text = cases[i].text;
        for (int round = 0; round < 2; round++) {
            Json *json = parsed(text, strlen(text), "string");
            EXPECT(!strcmp(json->text, cases[i].want), "%s: %s, want %s", text, json->text, cases[i].want);
            char *written;
            FILE *file = open_memstream(&written, &(size_t){0});
            json_write_string(file, json->text);
            fclose(file);
            text = test_keep(written);
        }
    }
}

static const struct { const char *text, *part; } bad_json[] = {
    { "", "byte 0: found the end, want a value" },         { "  \n", "byte 3: found the end, want a value" },
    { "{}\xef\xbb\xbf", "byte 2: found byte 0xef" },       { "{} x", "byte 3: found 'x', want the end" },
    { "[1,]", "byte 3: found ']', want a value" },         { "[1 2]", "byte 3: found '2', want ',' or ']'" },
    { "[1", "byte 2: found the end, want ',' or ']'" },    { "[1}", "byte 2: found '}', want ',' or ']'" },
    { "{`a`:1,}", "byte 7: found '}', want a key" },       { "{`a` 1}", "byte 5: found '1', want ':'" },
    { "{`a`:}", "byte 5: found '}', want a value" },       { "{a:1}", "byte 1: found 'a', want a key in quotes" },
    { "{1:1}", "byte 1: found '1', want a key" },          { "{`a`:1 `b`:2}", "byte 7: found '`', want ',' or '}'" },
    { "{`a`:1", "byte 6: found the end, want ',' or '}'" },
    { "{", "byte 1: found the end, want a key" },          { "01", "byte 1: found '1', want the end" },
    { "-", "byte 1: found the end, want a digit" },        { "+1", "byte 0: found '+'" },
    { "1.e3", "byte 2: found 'e', want a digit" },         { "1e", "byte 2: found the end, want a digit" },
    { "1e+", "byte 3: found the end, want a digit" },      { "0x10", "byte 1: found 'x', want the end" },
    { "-01", "byte 2: found '1', want the end" },          { "nan", "byte 0: found 'n', want a value" },
    { "-Inf", "byte 1: found 'I', want a digit" },         { "tru", "byte 0: found 't', want a value" },
    { "'a'", "byte 0: found ''', want a value" },          { "`a", "byte 2: found the end, want UTF-8" },
    { "`a\nb`", "byte 2: found byte 0x0a" },               { "`\\x41`", "byte 2: found 'x', want one of" },
    { "`\\", "byte 2: found the end, want one of" },
    { "`\\u12g4`", "byte 5: found 'g', want four" },       { "`\\u12", "byte 5: found the end, want four" },
    { "`\\ud800\\u12`", "byte 11: found '`', want four" },
    { "`\xff`", "byte 1: found byte 0xff, want UTF-8" },   { "`\x80`", "byte 1: found byte 0x80" },
    { "`\xc3`", "byte 1: found byte 0xc3" },               { "`\xc0\xaf`", "byte 1: found byte 0xc0" },
    { "`\xe0\x80\xaf`", "found byte 0xe0" },               { "`\xed\xa0\x80`", "found byte 0xed" },
    { "`\xf0\x80\x80\xaf`", "found byte 0xf0" },           { "`\xf4\x90\x80\x80`", "found byte 0xf4" },
    { "[1,/**/2]", "byte 3: found '/'" },                  { "`\xc3\xc3`", "byte 1: found byte 0xc3" },
};

TEST(test_json_malformed) {
    for (int i = 0; i < COUNT(bad_json); i++) {
        const char *text = quoted(bad_json[i].text);
        EXPECT_FAILS(quoted(bad_json[i].part), json_parse(text, strlen(text), "some file"));
        EXPECT_FAILS("some file: byte ", json_parse(text, strlen(text), "some file"));
    }
    EXPECT_FAILS("byte 2: found byte 0x00", json_parse("\"a\0b\"", 5, "some file"));
    EXPECT_FAILS("byte 1: found byte 0x00, want the end", json_parse("1\0", 2, "some file"));
}

/* As an integer from 1 to 9, a real, or a string. */
static const struct { const char *text; char as; const char *part; } bad_members[] = {
    { "{}", 'i', "conf: `n` is missing" },                 { "[1]", 'i', "`n` is missing" },
    { "{`n`:0}", 'i', "`n` is 0, want an integer from 1 to 9" },
    { "{`n`:10}", 'i', "`n` is 10, want" },                { "{`n`:1.5}", 'i', "`n` is 1.5, want" },
    { "{`n`:1.0}", 'i', "`n` is 1.0, want" },              { "{`n`:1e0}", 'i', "`n` is 1e0, want" },
    { "{`n`:9223372036854775808}", 'i', "want an integer" },
    { "{`n`:-9223372036854775809}", 'i', "want an integer" },
    { "{`n`:`1`}", 'i', "`n` is `1`, want an integer" },   { "{`n`:null}", 'i', "`n` is null, want" },
    { "{`n`:[1]}", 'i', "`n` is an array, want" },         { "{`n`:true}", 'r', "`n` is true, want a number" },
    { "{`n`:1e999}", 'r', "`n` is 1e999, want a number" }, { "{`n`:{}}", 's', "`n` is an object, want a string" },
    { "{`n`:1,`m`:2,`\\u006e`:0}", 'i', "`n` is 0, want" },  { "{`n`:NaN}", 'r', "`n` is NaN, want a number" },
    { "{`n`:Infinity}", 'i', "`n` is Infinity, want" },
    { "{`n`:`\\u0000`}", 's', "`n` is ``, want one without \\u0000" },
};
static void read_member(int i) {
    const char *text = quoted(bad_members[i].text);
    Json *json = json_parse(text, strlen(text), "conf");
    if (bad_members[i].as == 'i') json_integer(json_member(json, "n", JSON_ANY), 1, 9);
    if (bad_members[i].as == 'r') json_real(json_member(json, "n", JSON_ANY));
    if (bad_members[i].as == 's') json_string(json, "n");
}
TEST(test_json_members) {
    for (int i = 0; i < COUNT(bad_members); i++)
        EXPECT_FAILS(quoted(bad_members[i].part), read_member(i));
    static const char text[] = "[-0, 9223372036854775807, -9223372036854775808]";
    Json *json = parsed(text, sizeof text - 1, "conf");
    const Json *n = json->child;
    EXPECT(json_integer(n, 0, 0) == 0 && json_integer(n->next, 0, INT64_MAX) == INT64_MAX
           && json_integer(n->next->next, INT64_MIN, 0) == INT64_MIN, "the ends of the range");
}

/* ---- Files */

#define BYTES(text) text, sizeof text - 1
#define AT_32  "0123456789abcdef0123456789abcdef"
#define AT_257 AT_32 AT_32 AT_32 AT_32 AT_32 AT_32 AT_32 AT_32 "x"
static const struct { const char *bytes; size_t size; const char *kind; } kinds[] = {
    { BYTES("PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl"),
      "a PyTorch checkpoint (zip)" },
    { BYTES("PK\3\4docs"), "a zip archive" },            { BYTES("\x80\2}q\0."), "a Python pickle" },
    { BYTES("\x80\5\x95"), "a Python pickle" },          { BYTES("\xc6\xd7\x34\1\3\0\0\0"), "an llm.c checkpoint" },
    { BYTES("\x88\xd8\x34\1\1\0\0\0"), "a token shard" }, { BYTES("\xa1\xd9\x34\1\7\0\0\0"), "a token shard" },
    { BYTES("GGUF\3\0\0\0"), "a GGUF model" },          { BYTES("\x93NUMPY\1\0"), "a NumPy array" },
    { BYTES("\x1f\x8b\x08"), "a gzip archive" },         { BYTES("PAR1"), "a Parquet table" },
    { BYTES("\xfd" "7zXZ\0"), "an xz archive" },         { BYTES("\x28\xb5\x2f\xfd\4"), "a zstd archive" },
    { BYTES("BZh91AY&SYx"), "a bzip2 archive" },         { BYTES("%PDF-1.7"), "a PDF document" },
    { BYTES("\xff\xff\xff\xff\x18\2\0\0"), "an Arrow stream" },
    { BYTES("SQLite format 3\0\x10"), "an SQLite database" },
    { BYTES(AT_257 "ustar\0"), "a tar archive" },         { BYTES(AT_257 "usta"), NULL },
    { BYTES("Once upon\0a time"), NULL },
    { BYTES("ARROW1"), "an Arrow table" },               { BYTES("\2\0\0\0\0\0\0\0{}"), "a safetensors file" },
    { BYTES("version https://git-lfs.github.com/spec/v1"), "a Git LFS pointer, not the file itself" },
    { BYTES("Once upon a time"), NULL }, { BYTES(""), NULL }, { BYTES("\x80"), NULL }, { BYTES("PK"), NULL },
    { BYTES("\2\0\0\0\0\0\0\0"), NULL }, { BYTES("\0\0\0\0\0\0\0\x80{"), NULL }, { BYTES("\x80\6"), NULL },
};
TEST(test_file_kinds) {
    for (int i = 0; i < COUNT(kinds); i++) {
        unsigned char *exact = malloc(kinds[i].size);      /* the sanitizer sees a byte read past the end */
        memcpy(exact, kinds[i].bytes, kinds[i].size);
        const char *kind = file_kind(exact, (int64_t)kinds[i].size), *want = kinds[i].kind;
        EXPECT(kind == want || (kind && want && !strcmp(kind, want)), "case %d: %s, want %s", i,
               kind ? kind : "unknown", want ? want : "unknown");
        free(exact);
    }
}

static void fill_disk(char how) {
    FILE *file = file_create(IN_SCRATCH("full"));
    static char bytes[100000];
    if (how == 'w') file_write(file, bytes, sizeof bytes);
    if (how == 'f') fwrite(bytes, 1, sizeof bytes, file);
    if (how == 'p') fprintf(file, "small");
    file_close_durably(file, IN_SCRATCH("full"));
}

TEST(test_files) {
    char *deep = IN_SCRATCH("a/b//c/"), *file = IN_SCRATCH("a/b/c/file");
    directory_make(deep);
    directory_make(deep);
    EXPECT(file_is_dir(deep), "%s", deep);
    FILE *f = file_create(file);
    file_write(f, "abc", 3);
    file_close_durably(f, file);
    EXPECT(!strcmp(text_of(file), "abc"), "it holds %s", text_of(file));
    put_text(file, "");
    FileMap map = file_map(file);
    EXPECT(map.size == 0 && map.bytes, "an empty file");
    file_unmap(map);

    char *fifo = IN_SCRATCH("fifo"), *inside = IN_SCRATCH("a/b/c/file/x");
    EXPECT(mkfifo(fifo, 0600) == 0, "mkfifo");
    EXPECT_FAILS("is a pipe or a device", file_map(fifo));
    EXPECT_FAILS("No such file", file_map(IN_SCRATCH("none")));
    EXPECT_FAILS("is a directory, want a file on disk", file_map(deep));
    EXPECT_FAILS("cannot create: Is a directory", file_create(deep));
    EXPECT_FAILS("cannot create: Not a directory", file_create(inside));
    EXPECT_FAILS("a/b/c/file: cannot make the directory: File exists", directory_make(inside));
    EXPECT_FAILS("cannot make the directory: File exists", directory_make(file));
    limit_file_size(3);
    for (const char *how = "wfp"; *how; how++)
        EXPECT_FAILS(*how == 'f' ? "full: cannot write: an earlier write failed" : "full: cannot write: File too large",
                     fill_disk(*how));
    limit_file_size(RLIM_INFINITY);
    char *taken[] = { IN_SCRATCH("link"), fifo };
    put_text(file, "mine");
    EXPECT(symlink(file, taken[0]) == 0, "a link");
    for (int i = 0; i < COUNT(taken); i++) {
        file_close_durably(file_create(taken[i]), taken[i]);
        EXPECT(!*text_of(taken[i]) && !strcmp(text_of(file), "mine"), "a new file at %s", taken[i]);
    }
    char *many = IN_SCRATCH("m");
    for (int i = 0; i < 1300; i++) many = STRING("%s/%d", many, i % 10);
    directory_make(many);
    EXPECT(file_is_dir(many), "1300 components");
    file_rename(file, IN_SCRATCH("a/b/c/other"));
    EXPECT(!file_exists(file) && file_exists(IN_SCRATCH("a/b/c/other")), "renamed");

    static const char *const parents[][2] = {
        { "a/b/c", "a/b" }, { "c", "." }, { "/c", "/" }, { "a//c//", "a" }, { "/", "/" }
    };
    for (int i = 0; i < COUNT(parents); i++) {
        Path parent = file_parent(parents[i][0]);
        EXPECT(!strcmp(parent.text, parents[i][1]), "%s: %s, want %s", parents[i][0], parent.text, parents[i][1]);
    }
    EXPECT(!strcmp(path_of("a", "b").text, "a/b") && !strcmp(path_of("a/", "b").text, "a/b") &&
           !strcmp(path_of("/", "b").text, "/b"), "one slash between a directory and a name");
}

/* ---- safetensors */

TEST(test_safetensors_round_trip) {
    char *path = IN_SCRATCH("round.safetensors");
    const SafeTensor entries[] = {
        { "z\"\xc3\xa9", NULL, "F32", 2, { 2, 3 }, 0, 24, NULL }, { "scalar", NULL, "I32", 0, { 0 }, 0, 4, NULL },
        { "a", NULL, "F64", 1, { 3 }, 0, 24, NULL }, { "empty", NULL, "F32", 2, { 0, 7 }, 0, 0, NULL },
        { "b", NULL, "BF16", 4, { 1, 1, 1, 1 }, 0, 2, NULL }
    };
    SafeHeader header = {0};
    for (int i = 0; i < 5; i++) safetensors_add(&header, entries[i]);
    safetensors_end(&header);
    unsigned char data[24 + 4 + 24 + 0 + 2];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37 + 1);
    FILE *file = file_create(path);
    file_write(file, header.text, header.size);
    file_write(file, data, sizeof data);
    free(header.text);
    file_close_durably(file, path);
    SafeFile safe = safetensors_open(path);
    const Json *format = json_find(json_find(safe.shard[0].header, "__metadata__"), "format");
    EXPECT(safe.count == 5 && format && !strcmp(format->text, "pt"), "%d tensors", safe.count);
    EXPECT(safe.shard[0].map.bytes[0] % 8 == 0, "a header of a multiple of 8");
    EXPECT(!safetensors_find(&safe, "none"), "a name that does not occur");
    const unsigned char *place = data;
    for (int i = 0; i < 5; i++) {
        const SafeTensor *t = safetensors_find(&safe, entries[i].name);
        EXPECT(t && t->bytes == entries[i].bytes && t->ndim == entries[i].ndim &&
               !strcmp(t->dtype, entries[i].dtype) &&
               !memcmp(t->dim, entries[i].dim, (size_t)t->ndim * 8) && !memcmp(t->data, place, (size_t)t->bytes),
               "%s", entries[i].name);
        place += entries[i].bytes;
    }
    safetensors_close(&safe);
    put_safetensors(path, "{" TENSOR("b", "U8", "3", 4, 7) "," TENSOR("a", "F32", "", 0, 4)
                    ",`__metadata__`:{`k`:`v`}}   ", NULL, 7);
    safe = safetensors_open(path);
    EXPECT(safe.count == 2 && !strcmp(safe.tensor[0].name, "a"), "the file of another program");
    safetensors_close(&safe);
    put_safetensors(path, "{}", NULL, 0);
    safe = safetensors_open(path);
    EXPECT(safe.count == 0, "no tensors");
    safetensors_close(&safe);
}

static const struct { const char *header; int data; const char *part; } bad_safetensors[] = {
    { "", 0, "is a file of an unknown kind, want a safetensors" },
    { "[]", 0, "is a file of an unknown kind, want" },     { " {}", 0, "is a file of an unknown kind, want" },
    { "{", 0, "header: byte 1: found the end" },           { "{} x", 0, "header: byte 3: found 'x'" },
    { "{" TENSOR("a", "U8", "", 0, 1) "," TENSOR("a", "U8", "", 1, 2) "}", 2, "the tensor a occurs twice" },
    { "{`a`:1}", 0, "`a.dtype` is missing" },              { "{`a`:{`dtype`:`U8`}}", 0, "`a.shape` is missing" },
    { "{`a`:{`dtype`:`U8`,`shape`:[]}}", 0, "`a.data_offsets` is missing" },
    { "{`a`:{`dtype`:8,`shape`:[],`data_offsets`:[0,1]}}", 1, "`a.dtype` is 8, want a string" },
    { "{`a`:{`dtype`:`U8`,`shape`:1,`data_offsets`:[0,1]}}", 1, "`a.shape` is 1, want an array" },
    { "{`a`:{`dtype`:`U8`,`shape`:[],`data_offsets`:{}}}", 1, "`a.data_offsets` is an object, want an array" },
    { "{`a`:{`dtype`:`U8`,`shape`:[],`data_offsets`:[0,1],`x`:0}}", 1, "want dtype, shape and data_offsets only" },
    { "{" TENSOR("a", "F31", "", 0, 4) "}", 4, "`a.dtype` is `F31`, want a data type" },
    { "{" TENSOR("a", "U8", "1,1,1,1,1,1,1,1,1", 0, 1) "}", 1, "`a.shape` is an array, want one of at most 8" },
    { "{" TENSOR("a", "U8", "-1", 0, 1) "}", 1, "`a.shape` is -1, want" },
    { "{" TENSOR("a", "F64", "2305843009213693952", 0, 0) "}", 0, "want fewer than 2^63 bytes" },
    { "{" TENSOR("a", "U8", "4294967296,4294967296", 0, 0) "}", 0, "want fewer than 2^63 bytes" },
    { "{" TENSOR("a", "U8", "4294967296,4294967296,0", 0, 0) "}", 0, "want fewer than 2^63 bytes" },
    { "{`a`:{`dtype`:`U8`,`shape`:[],`data_offsets`:[0]}}", 1, "want one of 2 offsets" },
    { "{" TENSOR("a", "U8", "", -1, 0) "}", 1, "`a.data_offsets` is -1, want" },
    { "{" TENSOR("a", "U8", "", 1, 0) "}", 1, "tensor a is bytes 1 to 0, want 1 bytes" },
    { "{" TENSOR("a", "F32", "2,3", 0, 20) "}", 20, "tensor a is bytes 0 to 20, want 24 bytes for F32 (2,3)" },
    { "{" TENSOR("a", "F32", "2,3", 0, 28) "}", 28, "tensor a is bytes 0 to 28, want 24 bytes for F32 (2,3)" },
    { "{" TENSOR("a", "U8", "4", 0, 4) "}", 3, "the tensors have 4 bytes, the data has 3: is it truncated?" },
    { "{" TENSOR("a", "U8", "0", 9, 9) "}", 3, "tensor a begins at byte 9 of the data, want 0" },
    { "{" TENSOR("a", "U8", "4", 0, 4) "}", 5, "the tensors have 4 bytes, the data has 5" },
    { "{" TENSOR("a", "U8", "4", 1, 5) "}", 5, "tensor a begins at byte 1 of the data, want 0: a hole" },
    { "{" TENSOR("a", "U8", "4", 0, 4) "," TENSOR("b", "U8", "2", 3, 5) "}", 5,
      "tensor b begins at byte 3 of the data, want 4: tensors overlap" },
    { "{" TENSOR("a", "U8", "2", 0, 2) "," TENSOR("b", "U8", "2", 3, 5) "}", 5, "want 2: a hole" },
};

TEST(test_safetensors_malformed) {
    char *path = IN_SCRATCH("bad.safetensors");
    for (int i = 0; i < COUNT(bad_safetensors); i++) {
        put_safetensors(path, bad_safetensors[i].header, NULL, (size_t)bad_safetensors[i].data);
        EXPECT_FAILS(quoted(bad_safetensors[i].part), safetensors_open(path));
    }
    static const struct { const char *bytes; size_t size; const char *part; } raw[] = {
        { BYTES(""), "is a file of an unknown kind, want a safetensors file" },
        { BYTES("\2\0\0\0\0\0\0"), "is a file of an unknown kind, want a safetensors" },
        { BYTES("\3\0\0\0\0\0\0\0{}"), "the header has 3 bytes, the file only 2 more: is it truncated?" },
        { BYTES("\0\0\0\0\0\0\0\x80{}"), "is a file of an unknown kind" },
        { BYTES("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "is a file of an unknown kind" },
        { BYTES("\1\xe1\xf5\5\0\0\0\0{}"), "is a file of an unknown kind" },
        { BYTES("\x80\2}q\0."), "is a Python pickle, want a safetensors file" },
        { BYTES("GGUF\3\0\0\0"), "is a GGUF model, want" },
    };
    for (int i = 0; i < COUNT(raw); i++) {
        put(path, raw[i].bytes, raw[i].size);
        EXPECT_FAILS(raw[i].part, safetensors_open(path));
    }
}

/* Every length that a header may have, also those whose bytes are another format's magic. */
TEST(kinds_of_safetensors) {
    for (int length = 8; length < 70000; length += 8) {
        unsigned char bytes[16] = { [8] = '{' };
        for (int i = 0; i < 3; i++) bytes[i] = (unsigned char)(length >> 8 * i);
        const char *kind = file_kind(bytes, sizeof bytes);
        EXPECT(kind && !strcmp(kind, "a safetensors file"), "a header of %d bytes: %s",
               length, kind ? kind : "unknown");
    }
}

/* A child has it, as has one that a killed run was starting. */
TEST(a_lock_is_waited_for_a_moment) {
    const int held = directory_lock(scratch).fd, child = fork();
    if (!child) {
        usleep(20000);
        _exit(0);
    }
    close(held);
    const int fd = directory_lock(scratch).fd;
    EXPECT(held > 0 && fd > 0, "locked by %d, then by %d", held, fd);
    close(fd);
    waitpid(child, NULL, 0);
}

/* Against the xxhash library, of (i * 7 + 1) & 255. */
TEST(sums_are_xxh64) {
    static const struct { int size; uint64_t sum; } known[] = {
        { 0, 0xef46db3751d8e999 }, { 1, 0x8a4127811b21e730 }, { 3, 0xb6e6c910c2fd373a }, { 4, 0x22eda2cf6af4c124 },
        { 7, 0x34084d91a233a751 }, { 8, 0xc6f1803a5e0b3222 }, { 31, 0x6ab1c40e29f50073 }, { 32, 0x5a0756fbe9ecd3d1 },
        { 33, 0xdc50cdc37bb9c183 }, { 63, 0x10dd94885c71894a }, { 64, 0x90083da9cdb9d795 }, { 100, 0xd248bfc5208b0b16 },
    };
    unsigned char bytes[100];
    for (int i = 0; i < COUNT(bytes); i++) bytes[i] = (unsigned char)(i * 7 + 1);
    for (int k = 0; k < COUNT(known); k++)
        for (int piece = 1; piece <= 100; piece++) {
            Xxh64 hash = {0};
            for (int at = 0; at < known[k].size; at += piece)
                xxh64_add(&hash, bytes + at, (size_t)(known[k].size - at < piece ? known[k].size - at : piece));
            EXPECT(xxh64_sum(&hash) == known[k].sum, "%d bytes in pieces of %d", known[k].size, piece);
        }
}

int main(void) {
    scratch_open();
    return test_all();
}
