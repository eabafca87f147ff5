#include "texts.h"

enum { BATCH = 1 << 24, PART = 1 << 18, MARK = sizeof DOCUMENT_END - 1 };     /* bytes of a batch, a part, a mark */

Texts texts_open(const char *const *path, int count, DocumentKind kind, const char *field) {
    Texts t = { .path = path, .count = count, .kind = kind, .field = field, .stop = INT64_MAX,
                .is_after_mark = 1, .map = host_alloc((size_t)count * sizeof *t.map, "the texts") };
    for (int i = 0; i < count; i++) {
        const FileMap map = t.map[i] = file_map(path[i]);
        const char *binary = file_kind(map.bytes, map.size);
        REQUIRE(!binary, "%s: this is %s, want a text", path[i], binary);
        t.bytes += map.size;
    }
    return t;
}

static void add_span(Texts *t, const void *text, size_t size, int begins) {
    t->span = host_grow(t->span, t->span_count, &t->span_room, sizeof *t->span, "the texts");
    BpeSpan *span = &t->span[t->span_count++];
    *span = (BpeSpan){ .text = text, .size = size, .begins = begins };
    if (span > t->span) span->start = span[-1].start + span[-1].size + 1;
    t->batch_bytes += size + sizeof(BpeSpan);
    t->documents += begins;
}

static int is_by_line(const Texts *t) { return t->kind == DOCUMENT_LINE || t->kind == DOCUMENT_JSONL; }

/* Finds the next document; every byte is searched once. 0 = there is none. */
static int next_document(Texts *t) {
    for (; t->file < t->count && t->at == (size_t)t->map[t->file].size; t->file++, t->at = 0) t->line = (FileLine){0};
    if (t->file == t->count) return 0;
    const FileMap map = t->map[t->file];
    t->text = map.bytes + t->at;
    t->left = (size_t)map.size - t->at;
    t->tail = 0;
    t->begins = t->kind != DOCUMENT_MARK || !t->is_after_mark;
    if (is_by_line(t)) {
        file_next_line(map, &t->line);
        t->left = (size_t)(t->line.text - (const char *)t->text) + t->line.size;     /* a text keeps its mark */
        t->tail = (size_t)(t->line.next - (const char *)t->text);
    } else if (t->kind == DOCUMENT_MARK) {
        const unsigned char *found = memmem(t->text, t->left, DOCUMENT_END, MARK);
        if (found) t->left = (size_t)(found - t->text), t->tail = MARK;
    }
    t->at += is_by_line(t) ? t->tail : t->left + t->tail;
    if (t->kind != DOCUMENT_JSONL) return 1;
    Json *json = json_parse_line(&t->line, t->path[t->file]);
    t->left = 0;
    if (!json) return 1;
    json->next = t->json;
    t->json = json;
    const Json *text = json_member(json, t->field, JSON_STRING);
    t->text = (const unsigned char *)text->text;
    t->left = text->size;
    t->batch_bytes += 4 * t->line.size;         /* about as much as its values take */
    return 1;
}

/* Adds a part of the document; all parts of a line, which is not divided at t->stop: a value of JSONL lives as long as
   its batch. */
static void add_parts(Texts *t) {
    do {
        const int64_t to_stop = is_by_line(t) ? 0 : t->stop - t->done;
        const size_t part = bpe_words_cut(t->text, t->left, to_stop > 0 && to_stop < PART ? (size_t)to_stop : PART);
        if (part) add_span(t, t->text, part, t->begins);
        t->text += part;
        t->left -= part;
        t->begins = 0;
        if (!is_by_line(t)) t->done += (int64_t)part;
        if (part) t->is_after_mark = 0;
    } while (t->left && is_by_line(t));
    if (t->left) return;
    t->done += (int64_t)t->tail;
    if (t->kind != DOCUMENT_MARK || !t->tail) return;
    add_span(t, t->text, 0, 1);             /* the mark is the end of text itself */
    t->is_after_mark = 1;
}

static void release_batch(Texts *t) {
    for (Json *next; t->json; t->json = next) {
        next = t->json->next;
        json_free(t->json);
    }
    t->batch_bytes = t->span_count = 0;
}

int texts_next(Texts *t) {
    release_batch(t);
    const int is_before = t->done < t->stop;
    while (t->batch_bytes < BATCH && (is_before == (t->done < t->stop) || !t->span_count)) {
        if (!t->left && !next_document(t)) break;
        add_parts(t);
    }
    return t->span_count > 0;
}

void texts_close(Texts *t) {
    release_batch(t);
    for (int i = 0; i < t->count; i++) file_unmap(t->map[i]);
    free(t->map);
    free(t->span);
    *t = (Texts){0};
}
