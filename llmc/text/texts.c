#include "texts.h"
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "bpe_words.h"
#include "../base/os.h"

enum { BATCH = 1 << 24, PART = 1 << 18 };       /* bytes of a batch, and of a part of a document */

static const char mark[] = "<|endoftext|>";
enum { MARK = sizeof mark - 1 };

typedef struct TextsState {
    int      file;                  /* the next to open */
    FileMap  map;                   /* the one that is read */
    size_t   at;
    FileLine line;                  /* of lines and JSONL: the one that was read last */
    int      begins;                /* a document begins at `at` */
    size_t   end;                   /* of the document, for files and marks */
    int      ends_with_mark;        /* what has been read */
    FileMap *closing;               /* maps and values of the batch, to free */
    Json   **json;
    size_t   closing_count, closing_room, json_count, json_room, span_room, batch_bytes;
} State;

void document_check_field(DocumentKind kind, const char *field) {
    REQUIRE(kind == DOCUMENT_JSONL || !strcmp(field, "text"), "--field %s: want --documents jsonl", field);
}

/* Of the bytes of the first MiB that are not ASCII, half must be UTF-8. */
static void check_encoding(FileMap map, const char *path) {
    const unsigned char *text = map.bytes;
    const char *kind = file_kind(text, map.size);
    REQUIRE(!kind, "%s: this is %s, want a text", path, kind);
    size_t size = map.size < 1 << 20 ? (size_t)map.size : 1 << 20, good = 0, bad = 0, first = 0;
    for (size_t at = 0, length; at < size; at += length ? length : 1) {
        length = utf8_length(text + at, (size_t)map.size - at);
        if (length > 1) good += length;
        if (length == 0 && !bad++) first = at;
    }
    REQUIRE(bad <= good, "%s: byte 0x%02x at %zu, and %zu more in the first MiB, are not UTF-8: is it in another "
            "encoding? iconv -f ISO-8859-1 -t UTF-8 converts Latin-1", path, text[first], first, bad - 1);
}

Texts texts_open(const char *const *path, int count, DocumentKind kind, const char *field) {
    Texts t = { .path = path, .count = count, .kind = kind, .field = field, .stop = INT64_MAX,
                .state = host_alloc(sizeof(State), "the texts") };
    bpe_words_init();
    for (int i = 0; i < count; i++) {
        FileMap map = file_map(path[i]);
        check_encoding(map, path[i]);
        t.bytes += map.size;
        size_t head = map.size < 1 << 20 ? (size_t)map.size : 1 << 20;
        if (kind != DOCUMENT_JSONL && head >= 2 && !memcmp(map.bytes, "{\"", 2))
            printf("%s: looks like JSONL, is read as text; --documents jsonl reads a field of each line\n", path[i]);
        else if (kind != DOCUMENT_MARK && kind != DOCUMENT_JSONL && memmem(map.bytes, head, mark, MARK))
            printf("%s: contains %s, read as text; --documents mark reads it as the end of a document\n", path[i],
                   mark);
        file_unmap(map);
    }
    return t;
}

static void add_span(Texts *t, const void *text, size_t size, int begins) {
    State *s = t->state;
    t->span = host_grow(t->span, t->span_count, &s->span_room, sizeof *t->span, "the texts");
    t->span[t->span_count++] = (BpeSpan){ .text = text, .size = size, .begins = begins };
    s->batch_bytes += size + sizeof(BpeSpan);
    t->documents += begins;
}

/* A whole document, in parts. */
static void add_document(Texts *t, const unsigned char *text, size_t size) {
    for (size_t at = 0, end; at < size; at = end) {
        end = bpe_words_cut(text, size, at + PART);
        add_span(t, text + at, end - at, at == 0);
    }
}

static void add_json(Texts *t, const char *line, size_t size) {
    State *s = t->state;
    char *where = format_string("%s: line %lld", t->path[s->file - 1], (long long)s->line.number);
    Json *json = json_parse(line, size, where);
    if (json->type != JSON_OBJECT) fail("%s: this is %.80s, want an object", where, json_text(json));
    const char *text = json_string(json, t->field);
    free(where);
    s->json = host_grow(s->json, s->json_count, &s->json_room, sizeof *s->json, "the texts");
    s->json[s->json_count++] = json;
    s->batch_bytes += 4 * size;         /* about as much as its values take */
    add_document(t, (const unsigned char *)text, strlen(text));
}

/* A line, or with JSONL the value in it. Returns its length with its end. */
static size_t add_line(Texts *t) {
    const FileLine *line = &t->state->line;
    file_next_line(t->state->map, &t->state->line);
    if (t->kind == DOCUMENT_LINE) add_document(t, (const unsigned char *)line->text, line->size);
    else if (line->size)          add_json(t, line->text, line->size);
    return (size_t)(line->next - line->text);
}

/* Of the document that begins at `at`: the next mark, or the end of the file. Every byte is searched once. */
static void find_document_end(Texts *t, size_t at) {
    State *s = t->state;
    const unsigned char *text = s->map.bytes + at;
    size_t left = (size_t)s->map.size - at;
    const unsigned char *found = t->kind == DOCUMENT_MARK ? memmem(text, left, mark, MARK) : NULL;
    s->end = at + (found ? (size_t)(found - text) : left);
}

/* A part of a file that is a document, or of one up to the next mark. Returns its length, with the mark. */
static size_t add_part(Texts *t, const unsigned char *text) {
    State *s = t->state;
    const size_t left = s->end - s->at;
    const int64_t to_stop = t->stop - t->done;
    size_t part = bpe_words_cut(text, left, to_stop > 0 && to_stop < PART ? (size_t)to_stop : PART);
    if (part) {
        add_span(t, text, part, s->begins);
        s->ends_with_mark = 0;
    }
    s->begins = 0;
    if (part < left || s->end == (size_t)s->map.size) return part;
    add_span(t, text + part, 0, 1);         /* the mark is the end of text itself */
    find_document_end(t, s->at + part + MARK);
    s->ends_with_mark = s->at + part + MARK == (size_t)s->map.size;
    return part + MARK;
}

static int open_next(Texts *t) {
    State *s = t->state;
    if (s->map.size) {
        s->closing = host_grow(s->closing, s->closing_count, &s->closing_room, sizeof *s->closing, "the texts");
        s->closing[s->closing_count++] = s->map;
        s->map = (FileMap){0};
    }
    s->at = 0;
    if (s->file == t->count) return 0;
    s->map = file_map(t->path[s->file++]);
    s->line = (FileLine){0};
    s->begins = t->kind != DOCUMENT_MARK || (t->done > 0 && !s->ends_with_mark);
    find_document_end(t, 0);
    return 1;
}

static void release_batch(Texts *t) {
    State *s = t->state;
    for (size_t i = 0; i < s->closing_count; i++) file_unmap(s->closing[i]);
    for (size_t i = 0; i < s->json_count; i++) json_free(s->json[i]);
    s->closing_count = s->json_count = s->batch_bytes = t->span_count = 0;
}

int texts_next(Texts *t) {
    State *s = t->state;
    release_batch(t);
    const int is_before = t->done < t->stop;
    while (s->batch_bytes < BATCH && (is_before == (t->done < t->stop) || !t->span_count)) {
        if (s->at == (size_t)s->map.size) {
            if (!open_next(t)) break;
            continue;
        }
        const unsigned char *text = s->map.bytes + s->at;
        size_t length = t->kind == DOCUMENT_LINE || t->kind == DOCUMENT_JSONL ? add_line(t) : add_part(t, text);
        s->at += length;
        t->done += (int64_t)length;
    }
    return t->span_count > 0;
}

void texts_close(Texts *t) {
    open_next(t);
    release_batch(t);
    free(t->span);
    free(t->state->closing);
    free(t->state->json);
    free(t->state);
    *t = (Texts){0};
}
