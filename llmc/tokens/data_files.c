#include "data_files.h"

void document_check_field(DocumentKind kind, const char *field) {
    REQUIRE(kind == DOCUMENT_JSONL || !strcmp(field, "text"), "--field %s: want --documents jsonl", field);
}

void text_check(FileMap map, const char *path, DocumentKind kind, int is_bytes) {
    const size_t size = map.size < 1 << 20 ? (size_t)map.size : 1 << 20;
    const unsigned char *text = map.bytes, *nul = memchr(text, 0, size);
    size_t good = 0, bad = 0, first = 0, zeros[2] = {0};
    for (size_t at = 0, length; at < size; at += length ? length : 1) {
        length = utf8_length(text + at, (size_t)map.size - at);
        if (length > 1) good += length;
        if (length == 0 && !bad++) first = at;
        zeros[at & 1] += !text[at];
    }
    /* one byte of each blank, line end and Latin letter of UTF-16, of each id below 256 in nanoGPT's files */
    const size_t fewer = zeros[zeros[0] > zeros[1]], more = zeros[0] + zeros[1] - fewer;
    REQUIRE(more <= 3 + size / 32 || fewer > more / 16, "%s: every second byte is often NUL: is it UTF-16 (iconv -f "
            "UTF-16LE -t UTF-8 converts it), or are these ids of 16 bits?", path);
    if (bad > good) {
        char *line = format_string("%s: byte 0x%02x at %zu, and %zu more in the first MiB, are not UTF-8: is it in "
                                   "another encoding? iconv -f ISO-8859-1 -t UTF-8 converts Latin-1", path, text[first],
                                   first, bad - 1);
        REQUIRE(is_bytes, "%s", line);
        print_line(stdout, "%s", line);
        free(line);
    }
    if (nul) print_line(stdout, "%s: byte %zu is NUL, which texts do not have", path, (size_t)(nul - text));
    if (kind != DOCUMENT_JSONL && utf8_mark(text, size)) print_line(stdout, "%s: byte order mark, read as text", path);
    if ((kind == DOCUMENT_FILE || kind == DOCUMENT_MARK) && memmem(text, size, "\r\n", 2))
        print_line(stdout, "%s: lines end with CR LF, read as text", path);
    if (kind != DOCUMENT_JSONL && map.size >= 2 && !memcmp(text, "{\"", 2))
        print_line(stdout, "%s: looks like JSONL, is read as text; --documents jsonl reads a field of each line", path);
    else if (kind < DOCUMENT_MARK && memmem(text, (size_t)map.size, DOCUMENT_END, strlen(DOCUMENT_END)))
        print_line(stdout, "%s: contains %s, read as text; --tokenizer DIR --documents mark reads it as the end of a "
                   "document", path, DOCUMENT_END);
}

ShardHeader shard_header(FileMap map) {
    ShardHeader header = {0};
    memcpy(&header, map.bytes, map.size < (int64_t)sizeof header ? (size_t)map.size : sizeof header);
    return header;
}

ShardHeader shard_header_of(FileMap map, int64_t count, int width) {
    return (ShardHeader){ .magic = width == 2 ? SHARD_UINT16 : SHARD_UINT32, .version = width == 2 ? 1 : 7,
                          .count = (uint32_t)count,
                          .sum = xxh64(map.bytes + SHARD_HEADER_BYTES, (size_t)(count * width)) };
}

int shard_is_whole(const char *path) {
    if (!file_exists(path)) return 0;
    const FileMap map = file_map(path);
    const ShardHeader had = shard_header(map);
    const int width = had.magic == SHARD_UINT16 ? 2 : 4;
    const int fits = map.size == SHARD_HEADER_BYTES + (int64_t)had.count * width;
    const ShardHeader want = fits ? shard_header_of(map, had.count, width) : (ShardHeader){0};
    file_unmap(map);
    return fits && !memcmp(&had, &want, sizeof want);
}

uint64_t tokens_hash(uint64_t before, int64_t number, const void *bytes, size_t size) {
    const uint64_t next[3] = { before, (uint64_t)number, xxh64(bytes, size) };
    return xxh64(next, sizeof next);
}

int shards_is_cache(const char *path) {
    const char *name = strstr(path, ".tokens-");
    return name && strspn(name + 8, "0123456789abcdef") == 16 && !strncmp(name + 24, ".bin", 4);
}
