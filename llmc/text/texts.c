#include "texts.h"
#include <stdlib.h>
#include <string.h>
#include "../../kernels/check.h"
#include "bpe_words.h"
#include "../base/json.h"
#include "../base/os.h"
#include "../base/terminal.h"

enum { BATCH = 1 << 24, PART = 1 << 18 };       /* bytes of a batch, and of a part of a document */

static const char mark[] = "<|endoftext|>";
enum { MARK = sizeof mark - 1 };

typedef struct TextsState {
    int      file;                  /* the current one */
    size_t   at;                    /* where the next document begins in it */
    FileLine line;                  /* documents that are lines or JSONL: the last line read */
    const unsigned char *text;      /* rest of the document */
    size_t   left, tail;            /* bytes of the rest; bytes of the file that count as read at its end */
    int      begins, is_after_mark; /* no part of the document is in a batch yet; the last read was a mark or nothing */
    Json    *json;                  /* values of the batch, a list by next */
    size_t   span_room, batch_bytes;
} State;

void document_check_field(DocumentKind kind, const char *field) {
    REQUIRE(kind == DOCUMENT_JSONL || !strcmp(field, "text"), "--field %s: want --documents jsonl", field);
}

/* Half of the bytes of the first MiB that are not ASCII must be UTF-8. */
static void check_encoding(FileMap map, const char *path) {
    const unsigned char *text = map.bytes;
    size_t size = map.size < 1 << 20 ? (size_t)map.size : 1 << 20, good = 0, bad = 0, first = 0;
    for (size_t at = 0, length; at < size; at += length ? length : 1) {
        length = utf8_length(text + at, (size_t)map.size - at);
        if (length > 1) good += length;
        if (length == 0 && !bad++) first = at;
    }
    REQUIRE(bad <= good, "%s: byte 0x%02x at %zu, and %zu more in the first MiB, are not UTF-8: is it in another "
            "encoding? iconv -f ISO-8859-1 -t UTF-8 converts Latin-1", path, text[first], first, bad - 1);
}

void text_notices(FileMap map, const char *path, DocumentKind kind) {
    const unsigned char *nul = memchr(map.bytes, 0, map.size < 1 << 20 ? (size_t)map.size : 1 << 20);
    const int reads_marks = kind == DOCUMENT_MARK || kind == DOCUMENT_JSONL;
    if (nul) print_line(stdout, "%s: byte %zu is NUL, which texts do not have", path, (size_t)(nul - map.bytes));
    if (kind != DOCUMENT_JSONL && map.size >= 2 && !memcmp(map.bytes, "{\"", 2))
        print_line(stdout, "%s: looks like JSONL, is read as text; --documents jsonl reads a field of each line", path);
    else if (!reads_marks && memmem(map.bytes, (size_t)map.size, mark, MARK))
        print_line(stdout, "%s: contains %s, read as text; --tokenizer DIR --documents mark reads it as the end of a "
                   "document", path, mark);
}

Texts texts_open(const char *const *path, int count, DocumentKind kind, const char *field) {
    Texts t = { .path = path, .count = count, .kind = kind, .field = field, .stop = INT64_MAX,
                .map = host_alloc((size_t)count * sizeof *t.map, "the texts"),
                .state = host_alloc(sizeof(State), "the texts") };
    t.state->is_after_mark = 1;
    bpe_words_init();
    for (int i = 0; i < count; i++) {
        const FileMap map = t.map[i] = file_map(path[i]);
        const char *binary = file_kind(map.bytes, map.size);
        REQUIRE(!binary, "%s: this is %s, want a text", path[i], binary);
        check_encoding(map, path[i]);
        text_notices(map, path[i], kind);
        t.bytes += map.size;
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

static int is_by_line(const Texts *t) { return t->kind == DOCUMENT_LINE || t->kind == DOCUMENT_JSONL; }

/* Finds the next document; every byte is searched once. 0 = there is none. */
static int next_document(Texts *t) {
    State *s = t->state;
    while (s->file < t->count && s->at == (size_t)t->map[s->file].size) {
        s->file++;
        s->at = 0;
        s->line = (FileLine){0};
    }
    if (s->file == t->count) return 0;
    const FileMap map = t->map[s->file];
    s->text = map.bytes + s->at;
    s->left = (size_t)map.size - s->at;
    s->tail = 0;
    s->begins = t->kind != DOCUMENT_MARK || !s->is_after_mark;
    if (t->kind == DOCUMENT_MARK) {
        const unsigned char *found = memmem(s->text, s->left, mark, MARK);
        if (found) s->left = (size_t)(found - s->text);
        if (found) s->tail = MARK;
    }
    if (!is_by_line(t)) {
        s->at += s->left + s->tail;
        return 1;
    }
    file_next_line(map, &s->line);
    s->left = (size_t)((const unsigned char *)s->line.text - s->text) + s->line.size;     /* a text keeps its mark */
    s->tail = (size_t)((const unsigned char *)s->line.next - s->text);
    s->at += s->tail;
    if (t->kind == DOCUMENT_LINE) return 1;
    Json *json = json_parse_line(&s->line, t->path[s->file]);
    s->left = 0;
    if (!json) return 1;
    json->next = s->json;
    s->json = json;
    const Json *text = json_member(json, t->field, JSON_STRING);
    s->text = (const unsigned char *)text->text;
    s->left = text->size;
    s->batch_bytes += 4 * s->line.size;         /* about as much as its values take */
    return 1;
}

/* Adds a part of the document; all parts of a line, which is not divided at t->stop: a value of JSONL lives as long as
   its batch. */
static void add_parts(Texts *t) {
    State *s = t->state;
    do {
        const int64_t to_stop = is_by_line(t) ? 0 : t->stop - t->done;
        const size_t part = bpe_words_cut(s->text, s->left, to_stop > 0 && to_stop < PART ? (size_t)to_stop : PART);
        if (part) add_span(t, s->text, part, s->begins);
        s->text += part;
        s->left -= part;
        s->begins = 0;
        if (!is_by_line(t)) t->done += (int64_t)part;
        if (part) s->is_after_mark = 0;
    } while (s->left && is_by_line(t));
    if (s->left) return;
    t->done += (int64_t)s->tail;
    if (t->kind != DOCUMENT_MARK || !s->tail) return;
    add_span(t, s->text, 0, 1);             /* the mark is the end of text itself */
    s->is_after_mark = 1;
}

static void release_batch(Texts *t) {
    State *s = t->state;
    for (Json *next; s->json; s->json = next) {
        next = s->json->next;
        json_free(s->json);
    }
    s->batch_bytes = t->span_count = 0;
}

int texts_next(Texts *t) {
    State *s = t->state;
    release_batch(t);
    const int is_before = t->done < t->stop;
    while (s->batch_bytes < BATCH && (is_before == (t->done < t->stop) || !t->span_count)) {
        if (!s->left && !next_document(t)) break;
        add_parts(t);
    }
    return t->span_count > 0;
}

void texts_close(Texts *t) {
    release_batch(t);
    for (int i = 0; i < t->count; i++) file_unmap(t->map[i]);
    free(t->map);
    free(t->span);
    free(t->state);
    *t = (Texts){0};
}
