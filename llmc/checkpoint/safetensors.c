#include "safetensors.h"
#include "../../kernels/check.h"
#include <stdlib.h>
#include <string.h>

enum { DIMS_MAX = 8 };

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

/* ---- Reading */

static int by_name(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

static int by_place(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);      /* an empty tensor comes before the one at its place */
}

static const Json *field_of(const Json *entry, const char *key, JsonType type) {
    const Json *value = json_find(entry, key);
    REQUIRE(value, "%s: tensor %.80s has no \"%s\"", entry->where, entry->key, key);
    REQUIRE(value->type == type, "%s: tensor %.80s: \"%s\" is %.80s, want %s", entry->where, entry->key, key,
            json_text(value), type == JSON_STRING ? "a string" : "an array");
    return value;
}

static int64_t integer_of(const Json *entry, const Json *value, const char *what) {
    int ok;
    int64_t integer = json_to_integer(value, 0, INT64_MAX, &ok);
    REQUIRE(ok, "%s: tensor %.80s: %s is %.80s, want an integer >= 0", entry->where, entry->key, what,
            json_text(value));
    return integer;
}

static SafeTensor read_entry(const Json *entry, const char *path, const unsigned char *data, int64_t data_bytes) {
    const char *name = entry->key;
    REQUIRE(entry->type == JSON_OBJECT, "%s: tensor %.80s is %.80s, want an object", path, name, json_text(entry));
    const char *dtype = field_of(entry, "dtype", JSON_STRING)->text;
    const Json *shape = field_of(entry, "shape", JSON_ARRAY), *offsets = field_of(entry, "data_offsets", JSON_ARRAY);
    REQUIRE(entry->count == 3, "%s: tensor %.80s has %d fields, want dtype, shape and data_offsets only", path, name,
            entry->count);

    SafeTensor t = { .name = name, .path = path };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtype, dtypes[i].name)) {
            t.dtype = dtypes[i].name;
            t.bytes = dtypes[i].bytes;
        }
    REQUIRE(t.dtype, "%s: tensor %.80s: unknown data type \"%.80s\"", path, name, dtype);
    REQUIRE(shape->count <= DIMS_MAX, "%s: tensor %.80s has %d dimensions, want at most %d", path, name, shape->count,
            DIMS_MAX);
    for (const Json *d = shape->child; d; d = d->next) {
        int64_t size = t.dim[t.ndim++] = integer_of(entry, d, "a dimension");
        REQUIRE(!__builtin_mul_overflow(t.bytes, size, &t.bytes), "%s: tensor %.80s: the shape is too large to count",
                path, name);
    }

    REQUIRE(offsets->count == 2, "%s: tensor %.80s: data_offsets has %d numbers, want 2", path, name, offsets->count);
    int64_t begin = integer_of(entry, offsets->child, "a data offset");
    int64_t end = integer_of(entry, offsets->child->next, "a data offset");
    char text[256];
    REQUIRE(end - begin == t.bytes, "%s: tensor %.80s is bytes %lld to %lld, want %lld bytes for %s", path, name,
            (long long)begin, (long long)end, (long long)t.bytes, safetensors_shape(&t, text));
    REQUIRE(end <= data_bytes, "%s: tensor %.80s ends at byte %lld of the data, which has %lld: is the file truncated?",
            path, name, (long long)end, (long long)data_bytes);
    t.data = data + begin;
    return t;
}

/* Sorted by place, the tensors cover the data from its first byte to its last, without overlap or hole. */
static void check_places(const SafeFile *file, const unsigned char *data, int64_t data_bytes) {
    const unsigned char *end = data;
    const char *before = "the header";
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensor[i];
        REQUIRE(t->data == end, "%s: tensor %.80s begins at byte %lld of the data, want %lld, the end of %.80s: %s",
                file->path, t->name, (long long)(t->data - data), (long long)(end - data), before,
                t->data < end ? "they overlap" : "a hole lies between");
        end = t->data + t->bytes;
        before = t->name;
    }
    REQUIRE(end == data + data_bytes, "%s: the data has %lld bytes, the tensors only %lld", file->path,
            (long long)data_bytes, (long long)(end - data));
}

static void sort_by_name(SafeFile *file) {
    qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, by_name);
    for (int i = 1; i < file->count; i++)
        REQUIRE(strcmp(file->tensor[i - 1].name, file->tensor[i].name), "%s: the tensor %.80s occurs twice, in %s and "
                "in %s", file->path, file->tensor[i].name, file->tensor[i - 1].path, file->tensor[i].path);
}

static SafeFile open_file(const char *path) {
    SafeFile file = { .path = format_string("%s", path), .map = file_map(path) };
    const unsigned char *bytes = file.map.bytes;
    int64_t size = file.map.size;
    const char *kind = file_kind(bytes, size);
    if (kind && strcmp(kind, "a safetensors file")) fail("%s: is %s, want a safetensors file", path, kind);
    REQUIRE(size >= 8, "%s: has %lld bytes, want a safetensors file: it begins with 8 bytes of length", path,
            (long long)size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | bytes[i];
    REQUIRE(length <= JSON_BYTES_MAX, "%s: is no safetensors file: its header would have %llu bytes, want at most %d",
            path, (unsigned long long)length, JSON_BYTES_MAX);
    REQUIRE((int64_t)length <= size - 8, "%s: the header has %llu bytes, the file only %lld more: truncated?",
            path, (unsigned long long)length, (long long)(size - 8));
    REQUIRE(length > 0 && bytes[8] == '{', "%s: is no safetensors file: the header does not begin with '{'", path);
    const unsigned char *data = bytes + 8 + length;
    int64_t data_bytes = size - 8 - (int64_t)length;

    char *where = format_string("%s: header", path);
    file.header = json_parse((const char *)bytes + 8, (size_t)length, where);
    free(where);
    file.tensor = malloc(((size_t)file.header->count + 1) * sizeof *file.tensor);
    REQUIRE(file.tensor, "%s: out of memory for %d tensors", path, file.header->count);
    for (const Json *entry = file.header->child; entry; entry = entry->next)
        if (strcmp(entry->key, "__metadata__"))
            file.tensor[file.count++] = read_entry(entry, file.path, data, data_bytes);
    qsort(file.tensor, (size_t)file.count, sizeof *file.tensor, by_place);
    check_places(&file, data, data_bytes);
    sort_by_name(&file);
    return file;
}

/* Opens the file that an index gives for a tensor, unless it is open. */
static void open_shard(SafeFile *index, const char *dir, const Json *entry) {
    REQUIRE(entry->type == JSON_STRING, "%s: \"weight_map\": the file of %.80s is %.80s, want a string", index->path,
            entry->key, json_text(entry));
    const char *name = entry->text;
    REQUIRE(name[0] != '.' && !strpbrk(name, "/\\") && ends_with(name, ".safetensors"), "%s: \"weight_map\": the file "
            "of %.80s is %.80s, want a name like model-00001-of-00002.safetensors, beside the index", index->path,
            entry->key, name);
    for (int i = 0; i < index->shards; i++)
        if (!strcmp(index->shard[i].path + strlen(dir) + 1, name)) return;
    index->shard = realloc(index->shard, (size_t)(index->shards + 1) * sizeof *index->shard);
    REQUIRE(index->shard, "%s: out of memory for %d files", index->path, index->shards + 1);
    char *path = format_string("%s/%s", dir, name);
    REQUIRE(file_exists(path), "%s: \"weight_map\": the file of %.80s, %.80s, is not beside the index", index->path,
            entry->key, name);
    index->shard[index->shards++] = open_file(path);
    free(path);
}

/* The files have each name once and as many names as the index; each tensor is in the file that the index gives. */
static SafeFile open_index(const char *path) {
    SafeFile index = { .path = format_string("%s", path), .header = json_open(path) };
    const Json *map = json_find(index.header, "weight_map");
    REQUIRE(map && map->type == JSON_OBJECT && map->count, "%s: \"weight_map\" is missing or empty: want the file of "
            "each tensor, as transformers writes it beside model-00001-of-00002.safetensors", path);
    char *dir = file_parent(path);
    for (const Json *entry = map->child; entry; entry = entry->next) open_shard(&index, dir, entry);
    for (int i = 0; i < index.shards; i++) index.count += index.shard[i].count;
    REQUIRE(index.count == map->count, "%s: \"weight_map\" names %d tensors, its files hold %d", path, map->count,
            index.count);
    index.tensor = malloc((size_t)index.count * sizeof *index.tensor);
    REQUIRE(index.tensor, "%s: out of memory for %d tensors", path, index.count);
    SafeTensor *next = index.tensor;
    for (int i = 0; i < index.shards; next += index.shard[i++].count)
        memcpy(next, index.shard[i].tensor, (size_t)index.shard[i].count * sizeof *next);
    sort_by_name(&index);
    for (const Json *entry = map->child; entry; entry = entry->next) {
        const SafeTensor *tensor = safetensors_find(&index, entry->key);
        REQUIRE(tensor && !strcmp(tensor->path + strlen(dir) + 1, entry->text), "%s: the tensor %.80s is in %s, want "
                "%.80s", path, entry->key, tensor ? tensor->path : "no file", entry->text);
    }
    free(dir);
    return index;
}

SafeFile safetensors_open(const char *path) {
    return ends_with(path, ".index.json") ? open_index(path) : open_file(path);
}

void safetensors_close(SafeFile *file) {
    for (int i = 0; i < file->shards; i++) safetensors_close(&file->shard[i]);
    free(file->shard);
    json_free(file->header);
    file_unmap(file->map);
    free(file->tensor);
    free(file->path);
    *file = (SafeFile){0};
}

const SafeTensor *safetensors_find(const SafeFile *file, const char *name) {
    SafeTensor key = { .name = name };
    return bsearch(&key, file->tensor, (size_t)file->count, sizeof key, by_name);
}

/* ---- Writing */

char *safetensors_header(const SafeTensor *tensor, int count, size_t *size) {
    char *header;
    FILE *text = open_memstream(&header, size);
    REQUIRE(text, "out of memory: the header of a safetensors file");
    fputs("01234567{\"__metadata__\":{\"format\":\"pt\"}", text);  /* transformers refuses a file without "pt" */
    int64_t offset = 0;
    for (const SafeTensor *t = tensor; t < tensor + count; offset += t++->bytes) {
        fputc(',', text);
        json_write_string(text, t->name);
        fprintf(text, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (int d = 0; d < t->ndim; d++) fprintf(text, "%s%lld", d ? "," : "", (long long)t->dim[d]);
        fprintf(text, "],\"data_offsets\":[%lld,%lld]}", (long long)offset, (long long)(offset + t->bytes));
    }
    fputc('}', text);
    while (ftell(text) % 8) fputc(' ', text);
    REQUIRE(fclose(text) == 0, "out of memory: the header of a safetensors file");
    for (int i = 0; i < 8; i++) header[i] = (char)((uint64_t)(*size - 8) >> (8 * i));
    return header;
}
