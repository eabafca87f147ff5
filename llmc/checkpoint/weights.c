#include "weights.h"
#include "safetensors.h"

static const char MODEL_PREFIX[] = "transformer.", WTE[] = "transformer.wte.weight", HEAD[] = "lm_head.weight";

/* A tensor of a file. */
typedef struct { const Part *part; const TensorEntry *entry; char name[96]; } Item;

/* From *i on the first of the tensors part[i / count], entry[i % count] that the file has; *i becomes the number behind
   it. 0 = none. */
static int next_item(const TensorTable *table, const Part *part, int parts, int *i, Item *item) {
    const char *prefix = NULL;
    for (; !prefix && *i < parts * table->count; ++*i) {
        *item = (Item){ .part = &part[*i / table->count], .entry = &table->entry[*i % table->count] };
        prefix = item->entry->matrices ? item->part->matrix_prefix : item->part->prefix;
        if (prefix) snprintf(item->name, sizeof item->name, "%s%s", prefix, item->entry->name);
    }
    return prefix != NULL;
}

/* As it is in the file: without the padding rows of the token table. */
static SafeTensor file_tensor(const Item *item, int V) {
    const FileLayout layout = item->entry->layout;
    const Tensor t = layout == VOCABULARY ? tensor_row_range(*item->entry->field, 0, V) : *item->entry->field;
    SafeTensor tensor = { .name = item->name, .dtype = "F32", .ndim = t.ndim, .bytes = 4 * tensor_count(t) };
    for (int i = 0; i < t.ndim; i++) tensor.dim[i] = t.dim[layout == CONV1D ? t.ndim - 1 - i : i];
    return tensor;
}

static void *memory_of(const Item *item) { return (char *)item->part->memory + item->entry->offset; }

/* A new matrix (columns, rows). 16 rows at a time: 64-byte lines of both sides stay in the cache. */
static float *transposed(const float *from, int64_t rows, int64_t columns) {
    float *to = host_alloc((size_t)(rows * columns) * sizeof *to, "a transposed matrix");
    for (int64_t first = 0; first < rows; first += 16)
        for (int64_t c = 0; c < columns; c++)
            for (int64_t r = first; r < rows && r < first + 16; r++) to[c * rows + r] = from[r * columns + c];
    return to;
}

/* ---- Writing */

static void check_values(const char *path, const Item *item, int V) {
    const float *value = memory_of(item);
    const int64_t count = file_tensor(item, V).bytes / 4;
    for (int64_t i = 0; i < count; i++)
        REQUIRE(isfinite(value[i]), "%s: %s holds a NaN or an infinity (number %" PRId64 "): not saved; earlier "
                "checkpoints stay: take the last one and lower --lr", path, item->name, i);
}

static void write_bytes(FILE *file, Xxh64 *hash, const void *bytes, size_t size) {
    xxh64_add(hash, bytes, size);
    file_write(file, bytes, size);
}

static void write_values(FILE *file, Xxh64 *hash, const Item *item, int V) {
    const Tensor t = *item->entry->field;
    float *turned = item->entry->layout == CONV1D ? transposed(memory_of(item), t.dim[0], t.dim[1]) : NULL;
    write_bytes(file, hash, turned ? turned : memory_of(item), (size_t)file_tensor(item, V).bytes);
    free(turned);
}

uint64_t weights_write(const char *path, const TensorTable *table, const Part *part, int parts, int V) {
    Item item;
    SafeHeader header = {0};
    Xxh64 hash = {0};
    for (int i = 0; next_item(table, part, parts, &i, &item); ) check_values(path, &item, V);
    for (int i = 0; next_item(table, part, parts, &i, &item); ) safetensors_add(&header, file_tensor(&item, V));
    safetensors_end(&header);
    FILE *file = file_create(path);
    write_bytes(file, &hash, header.text, header.size);
    free(header.text);
    for (int i = 0; next_item(table, part, parts, &i, &item); ) write_values(file, &hash, &item, V);
    file_close_durably(file, path);
    return xxh64_sum(&hash);
}

/* ---- Reading */

/* Files of HuggingFace also have names without "transformer.". */
static const SafeTensor *find_tensor(const SafeFile *file, const char *name) {
    const SafeTensor *tensor = safetensors_find(file, name);
    const size_t prefix = strlen(MODEL_PREFIX);
    return tensor || strncmp(name, MODEL_PREFIX, prefix) ? tensor : safetensors_find(file, name + prefix);
}

static const SafeTensor *find_item(const SafeFile *file, const Item *item, int V) {
    SafeTensor want = file_tensor(item, V);
    const SafeTensor *got = find_tensor(file, want.name);
    const int is_model = !*item->part->prefix;
    char got_text[256], want_text[256];
    REQUIRE(got, "%s: the tensor %s is missing: is it a GPT-2 of the same number of layers?", file->path, want.name);
    if (is_model && item->entry->layout == POSITIONS && got->dim[0] >= 1)
        want.dim[0] = got->dim[0];                              /* repeated or cut by read_values */
    REQUIRE((!strcmp(got->dtype, "F32") || (is_model && (!strcmp(got->dtype, "F16") || !strcmp(got->dtype, "BF16")))) &&
            safetensors_same_shape(got, &want), "%s: %s is %s, want %s%s", got->path, got->name,
            safetensors_shape(got, got_text), safetensors_shape(&want, want_text), is_model ? ", or F16 or BF16" : "");
    return got;
}

/* A head that equals wte is tied to it, as transformers may write it. */
static int is_tied(const SafeTensor *head, const SafeTensor *wte) {
    return !strcmp(head->dtype, wte->dtype) && safetensors_same_shape(head, wte)
           && !memcmp(head->data, wte->data, (size_t)wte->bytes);
}

/* Number i of an F32, BF16 or F16 tensor. BF16 is the upper half of an F32. The bits of an F16, at their positions in
   an F32, are the number times 2^(15 - 127), also for subnormals; its infinities become NaN: either is refused. */
static float number_of(const SafeTensor *t, int64_t i) {
    uint32_t bits = 0;
    float value;
    if (t->dtype[1] == '3') {
        memcpy(&value, t->data + 4 * i, sizeof value);
        return value;
    }
    memcpy(&bits, t->data + 2 * i, sizeof(uint16_t));
    const int is_f16 = t->dtype[0] == 'F', is_nan = (bits & 0x7c00) == 0x7c00;
    bits = is_f16 ? (bits & 0x8000) << 16 | (bits & 0x7fff) << 13 : bits << 16;
    memcpy(&value, &bits, sizeof value);
    return !is_f16 ? value : is_nan ? NAN : value * 0x1p112f;
}

static void read_values(const SafeTensor *tensor, const Item *item) {
    const FileLayout layout = item->entry->layout;
    const Tensor t = *item->entry->field;
    char *to = memory_of(item);
    const int64_t count = tensor->bytes / (strcmp(tensor->dtype, "F32") ? 2 : 4);
    const int64_t all = layout == POSITIONS ? tensor_count(t) : count;          /* POSITIONS: T rows, also again */
    float *host = host_alloc((size_t)count * sizeof *host, "a tensor of a file"), *turned = NULL;
    for (int64_t i = 0; i < count; i++)
        REQUIRE(isfinite(host[i] = number_of(tensor, i)), "%s: %s holds a NaN or an infinity (number %" PRId64 "): "
                "take an earlier checkpoint", tensor->path, tensor->name, i);
    if (layout == CONV1D) turned = transposed(host, t.dim[1], t.dim[0]);
    for (int64_t at = 0; at < all; at += count)
        device_upload(to + 4 * at, turned ? turned : host, 4 * (size_t)(count < all - at ? count : all - at));
    if (layout == VOCABULARY) device_zero(to + 4 * count, tensor_bytes(t) - 4 * (size_t)count);
    free(turned);
    free(host);
}

void weights_read(const char *path, const TensorTable *table, const Part *part, int parts, int V) {
    SafeFile file = safetensors_open(path);
    char *used = host_alloc((size_t)file.count + 1, path);
    const SafeTensor *wte = *part->prefix ? NULL : find_tensor(&file, WTE);
    Item item;
    for (int i = 0; next_item(table, part, parts, &i, &item); ) {
        const SafeTensor *tensor = find_item(&file, &item, V);
        used[tensor - file.tensor] = 1;
        if (item.part->memory) read_values(tensor, &item);
    }
    for (int i = 0; i < file.count; i++) {
        const SafeTensor *t = &file.tensor[i];
        REQUIRE(used[i] || ends_with(t->name, ".attn.bias") || ends_with(t->name, ".attn.masked_bias") ||
                (wte && !strcmp(t->name, HEAD) && is_tied(t, wte)), "%s: unexpected tensor %.80s: is it a GPT-2 of "
                "the same number of layers?", t->path, t->name);
    }
    free(used);
    safetensors_close(&file);
}

/* ---- Sizes of a model, from its file */

static int size_of(const SafeTensor *tensor, int dim, int max) {
    char text[256];
    REQUIRE(tensor->ndim == 2 && tensor->dim[dim] >= 1 && tensor->dim[dim] <= max, "%s: %s is %s, want two dimensions, "
            "dimension %d from 1 to %d", tensor->path, tensor->name, safetensors_shape(tensor, text), dim, max);
    return (int)tensor->dim[dim];
}

GPTConfig weights_config(const char *path) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *wte = find_tensor(&file, WTE), *wpe = find_tensor(&file, "transformer.wpe.weight");
    const SafeTensor *head = safetensors_find(&file, HEAD);
    char name[64] = "";
    REQUIRE(wte && wpe, "%s: the tensor wte.weight or wpe.weight is missing: is it a GPT-2?", path);
    GPTConfig c = { .V = size_of(wte, 0, 1 << 24), .C = size_of(wte, 1, 65536), .T = size_of(wpe, 0, 1 << 24), .L = -1,
                    .untied = head && !is_tied(head, wte) };
    do snprintf(name, sizeof name, "%sh.%d.ln_1.weight", MODEL_PREFIX, ++c.L);
    while (c.L <= 1000 && find_tensor(&file, name));
    safetensors_close(&file);
    return c;
}
