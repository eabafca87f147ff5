#include "safetensors.h"

static const struct { const char *name; int bytes; } dtypes[] = {
    { "BOOL", 1 }, { "U8", 1 }, { "I8", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "I16", 2 }, { "U16", 2 },
    { "F16", 2 }, { "BF16", 2 }, { "I32", 4 }, { "U32", 4 }, { "F32", 4 }, { "F64", 8 }, { "I64", 8 }, { "U64", 8 }
};

const char *safetensors_shape(const SafeTensor *t, char text[256]) {
    int length = snprintf(text, 256, "%s (", t->dtype);
    for (int i = 0; i < t->ndim; i++)
        length += snprintf(text + length, 256 - (size_t)length, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    snprintf(text + length, 256 - (size_t)length, ")");
    return text;
}

int safetensors_same_shape(const SafeTensor *a, const SafeTensor *b) {
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, sizeof a->dim);
}

/* ---- Reading */

static int by_name(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);      /* an empty tensor comes before the one at its offset */
}

/* The tensor of a header's entry, without its data. */
static SafeTensor read_entry(const Json *entry, const char *path) {
    const Json *dtype = json_member(entry, "dtype", JSON_STRING), *shape = json_member(entry, "shape", JSON_ARRAY);
    const Json *offsets = json_member(entry, "data_offsets", JSON_ARRAY);
    SafeTensor t = { .name = entry->key, .path = path };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && !t.dtype; i++)
        if (!strcmp(dtype->text, dtypes[i].name)) t.dtype = dtypes[i].name, t.bytes = dtypes[i].bytes;
    if (!t.dtype) json_refuse(dtype, "a data type like F32");
    if (entry->count != 3) json_refuse(entry, "dtype, shape and data_offsets only");
    if (shape->count > 8) json_refuse(shape, "one of at most 8 dimensions");
    if (offsets->count != 2) json_refuse(offsets, "one of 2 offsets");
    for (const Json *d = shape->child; d; d = d->next) {
        t.dim[t.ndim] = json_integer(d, 0, INT64_MAX);
        if (__builtin_mul_overflow(t.bytes, t.dim[t.ndim++], &t.bytes)) json_refuse(d, "fewer than 2^63 bytes in all");
    }
    t.begin = json_integer(offsets->child, 0, INT64_MAX);
    const int64_t end = json_integer(offsets->child->next, 0, INT64_MAX);
    char text[256];
    REQUIRE(end - t.begin == t.bytes, "%s: tensor %.80s is bytes %lld to %lld, want %lld bytes for %s", path, t.name,
            (long long)t.begin, (long long)end, (long long)t.bytes, safetensors_shape(&t, text));
    return t;
}

/* Maps a file, parses its header and appends its tensors, which must cover the data without overlap or gap. */
static void open_shard(SafeFile *file, const char *path) {
    SafeShard *shard = &file->shard[file->shards++];
    *shard = (SafeShard){ .path = format_string("%s", path), .map = file_map(path) };
    const unsigned char *bytes = shard->map.bytes;
    const char *kind = file_kind(bytes, shard->map.size);
    int64_t length, end = 0;
    REQUIRE(kind && !strcmp(kind, "a safetensors file"), "%s: is %s, want a safetensors file", path,
            kind ? kind : "a file of an unknown kind");
    memcpy(&length, bytes, sizeof length);              /* little-endian; <= SAFETENSORS_HEADER_MAX, by file_kind */
    const int64_t size = shard->map.size - 8 - length;
    REQUIRE(size >= 0, "%s: the header has %lld bytes, the file only %lld more: is it truncated?", path,
            (long long)length, (long long)(size + length));
    char *where = format_string("%s: header", path);
    shard->header = json_parse((const char *)bytes + 8, (size_t)length, where);
    free(where);

    file->tensor = realloc(file->tensor, (size_t)(file->count + shard->header->count + 1) * sizeof *file->tensor);
    REQUIRE(file->tensor, "%s: out of memory for %d tensors", path, shard->header->count);
    SafeTensor *first = &file->tensor[file->count];
    for (const Json *entry = shard->header->child; entry; entry = entry->next)
        if (strcmp(entry->key, "__metadata__")) file->tensor[file->count++] = read_entry(entry, shard->path);
    qsort(first, (size_t)(&file->tensor[file->count] - first), sizeof *first, by_place);
    for (SafeTensor *t = first; t < &file->tensor[file->count]; end += t++->bytes)
        REQUIRE(t->begin == end, "%s: tensor %.80s begins at byte %lld of the data, want %lld: %s", path, t->name,
                (long long)t->begin, (long long)end, t->begin < end ? "tensors overlap" : "a hole lies before it");
    REQUIRE(end == size, "%s: the tensors have %lld bytes, the data has %lld: is it truncated?", path, (long long)end,
            (long long)size);
    for (SafeTensor *t = first; t < &file->tensor[file->count]; t++) t->data = bytes + 8 + length + t->begin;
}

/* The file that an index gives for a tensor. */
static Path shard_path(const char *index, const Json *name) {
    if (name->type != JSON_STRING || name->text[0] == '.' || strpbrk(name->text, "/\\") ||
        !ends_with(name->text, ".safetensors"))
        json_refuse(name, "a file beside the index, like model-00001-of-00002.safetensors");
    return path_of(file_parent(index).text, name->text);
}

SafeFile safetensors_open(const char *path) {
    SafeFile file = { .path = path };
    Json *index = ends_with(path, ".index.json") ? json_open(path) : NULL;
    const Json *map = index ? json_member(index, "weight_map", JSON_OBJECT) : NULL;
    file.shard = host_alloc((size_t)(map ? map->count : 1) * sizeof *file.shard, path);
    if (!map) open_shard(&file, path);
    for (const Json *name = map ? map->child : NULL; name; name = name->next) {
        const Path shard = shard_path(path, name);
        int i = 0;
        while (i < file.shards && strcmp(file.shard[i].path, shard.text)) i++;
        if (i == file.shards) open_shard(&file, shard.text);
    }
    REQUIRE(!map || (file.count == map->count && file.count), "%s: \"weight_map\" names %d tensors, its files hold %d",
            path, map->count, file.count);
    qsort(file.tensor, (size_t)file.count, sizeof *file.tensor, by_name);
    for (const SafeTensor *t = file.tensor + 1; t < file.tensor + file.count; t++)
        REQUIRE(strcmp(t[-1].name, t->name), "%s: the tensor %.80s occurs twice, in %s and in %s", path, t->name,
                t[-1].path, t->path);
    for (const Json *name = map ? map->child : NULL; name; name = name->next) {
        const SafeTensor *t = safetensors_find(&file, name->key);
        REQUIRE(t && !strcmp(t->path, shard_path(path, name).text), "%s: the tensor %.80s is in %s, want %.80s", path,
                name->key, t ? t->path : "no file", name->text);
    }
    json_free(index);
    return file;
}

void safetensors_close(SafeFile *file) {
    for (SafeShard *shard = file->shard; shard < file->shard + file->shards; shard++) {
        json_free(shard->header);
        file_unmap(shard->map);
        free(shard->path);
    }
    free(file->shard);
    free(file->tensor);
    *file = (SafeFile){0};
}

const SafeTensor *safetensors_find(const SafeFile *file, const char *name) {
    SafeTensor key = { .name = name };
    return bsearch(&key, file->tensor, (size_t)file->count, sizeof key, by_name);
}

/* ---- Writing */

void safetensors_add(SafeHeader *h, SafeTensor t) {
    if (!h->file) {
        h->file = string_open(&h->text, &h->size, "the header of a safetensors file");
        fputs("01234567{\"__metadata__\":{\"format\":\"pt\"}", h->file);  /* transformers refuses a file without "pt" */
    }
    fputc(',', h->file);
    json_write_string(h->file, t.name);
    fprintf(h->file, ":{\"dtype\":\"%s\",\"shape\":[", t.dtype);
    for (int d = 0; d < t.ndim; d++) fprintf(h->file, "%s%lld", d ? "," : "", (long long)t.dim[d]);
    fprintf(h->file, "],\"data_offsets\":[%lld,%lld]}", (long long)h->end, (long long)(h->end + t.bytes));
    h->end += t.bytes;
}

void safetensors_end(SafeHeader *h) {
    fputc('}', h->file);
    while (ftell(h->file) % 8) fputc(' ', h->file);
    REQUIRE(fclose(h->file) == 0, "out of memory: the header of a safetensors file");
    const uint64_t length = h->size - 8;
    memcpy(h->text, &length, sizeof length);
}
