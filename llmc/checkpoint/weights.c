#include "weights.h"
#include "../base/files.h"
#include "../base/os.h"
#include "safetensors.h"
#include "../../kernels/check.h"
#include "../../kernels/device.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char MODEL_PREFIX[] = "transformer.", WTE[] = "transformer.wte.weight", HEAD[] = "lm_head.weight";

static float *alloc_floats(int64_t count) {
    return host_alloc((size_t)count * sizeof(float), "a tensor between file and device");
}

static int64_t find_nonfinite(const float *value, int64_t count) {     /* the first one; -1 = none */
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(value[i])) return i;
    return -1;
}

/* A new (columns, rows) of in (rows, columns), which is freed. In tiles of 16 by 16: 64-byte lines of both sides stay
   in the L1 cache. */
static float *transposed(float *in, int64_t rows, int64_t columns) {
    float *out = alloc_floats(rows * columns);
    for (int64_t r0 = 0; r0 < rows; r0 += 16)
        for (int64_t c0 = 0; c0 < columns; c0 += 16)
            for (int64_t r = r0; r < r0 + 16 && r < rows; r++)
                for (int64_t c = c0; c < c0 + 16 && c < columns; c++) out[c * rows + r] = in[r * columns + c];
    free(in);
    return out;
}

/* A tensor of a file: of part[i / count], entry[i % count] of the table; NULL where that part leaves it out. */
static const TensorEntry *entry_of(const TensorTable *table, const Part *part, int i) {
    const TensorEntry *entry = &table->entry[i % table->count];
    const WhichTensors which = part[i / table->count].which;
    return which == ALL_TENSORS || (which == MATRICES) == (entry->matrices > 0) ? entry : NULL;
}

/* The tensor without the padding rows of the token table, which are not in the file. */
static Tensor saved_rows(const TensorEntry *entry, int V) {
    return entry->layout == VOCABULARY ? tensor_row_range(*entry->field, 0, V) : *entry->field;
}

/* The tensor as it is in the file; its name is a new string. */
static SafeTensor file_tensor(const Part *part, const TensorEntry *entry, int V) {
    Tensor t = saved_rows(entry, V);
    SafeTensor tensor = { .name = format_string("%s%s", part->prefix, entry->name), .ndim = t.ndim,
                          .dtype = part->dtype == BF16 ? "BF16" : "F32",
                          .bytes = tensor_count(t) * (int64_t)dtype_bytes(part->dtype) };
    for (int i = 0; i < t.ndim; i++) tensor.dim[i] = t.dim[entry->layout == CONV1D ? t.ndim - 1 - i : i];
    return tensor;
}

/* ---- Writing */

/* value, finite, rounded to nearest, ties to even. Numbers that round to 2^128 become infinite. */
static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void check_values(const char *path, const Part *part, const TensorEntry *entry, int V) {
    const float *value = (const float *)((const char *)part->memory + entry->offset);
    int64_t count = tensor_count(saved_rows(entry, V)), nonfinite = find_nonfinite(value, count);
    REQUIRE(nonfinite < 0, "%s: %s%s holds a NaN or an infinity (number %" PRId64 "): not saved; earlier checkpoints "
            "stay: take the last one and lower --lr", path, part->prefix, entry->name, nonfinite);
    for (int64_t i = 0; part->dtype == BF16 && i < count; i++)
        REQUIRE((bf16_of(value[i]) & 0x7f80) != 0x7f80, "%s: %s holds a number that BF16 rounds to infinity: not "
                "saved; want F32", path, entry->name);
}

static void write_values(FILE *file, const Part *part, const TensorEntry *entry, int V) {
    int64_t count = tensor_count(saved_rows(entry, V));
    float *host = alloc_floats(count);
    memcpy(host, (const char *)part->memory + entry->offset, (size_t)count * sizeof *host);
    if (entry->layout == CONV1D) host = transposed(host, entry->field->dim[0], entry->field->dim[1]);
    for (int64_t i = 0; part->dtype == BF16 && i < count; i++) {       /* in place: number i never passes its source */
        uint16_t number = bf16_of(host[i]);
        memcpy((char *)host + 2 * i, &number, sizeof number);
    }
    file_write(file, host, (size_t)count * dtype_bytes(part->dtype));
    free(host);
}

void weights_write(const char *path, const TensorTable *table, const Part *part, int parts, int V) {
    const int n = table->count, all = parts * n;
    const TensorEntry *entry;
    int count = 0;
    size_t size;
    for (int i = 0; i < all; i++)
        if ((entry = entry_of(table, part, i))) check_values(path, &part[i / n], entry, V);
    SafeTensor *tensor = host_alloc((size_t)all * sizeof *tensor, path);
    for (int i = 0; i < all; i++)
        if ((entry = entry_of(table, part, i))) tensor[count++] = file_tensor(&part[i / n], entry, V);
    char *header = safetensors_header(tensor, count, &size);
    for (int i = 0; i < count; i++) free((char *)tensor[i].name);
    free(tensor);
    FILE *file = file_create(path);
    file_write(file, header, size);
    free(header);
    for (int i = 0; i < all; i++)
        if ((entry = entry_of(table, part, i))) write_values(file, &part[i / n], entry, V);
    file_close_durably(file, path);
}

/* ---- Reading */

/* Files of HuggingFace also have names without "transformer.". */
static const SafeTensor *find_tensor(const SafeFile *file, const char *name) {
    const SafeTensor *tensor = safetensors_find(file, name);
    if (!tensor && !strncmp(name, MODEL_PREFIX, strlen(MODEL_PREFIX)))
        tensor = safetensors_find(file, name + strlen(MODEL_PREFIX));
    return tensor;
}

static const SafeTensor *find_entry(const SafeFile *file, const Part *part, const TensorEntry *entry, int V) {
    SafeTensor want = file_tensor(part, entry, V);
    const SafeTensor *got = find_tensor(file, want.name);
    char got_text[256], want_text[256];
    int is_model = !*part->prefix;
    REQUIRE(got, "%s: the tensor %s is missing: is it a GPT-2 of the same number of layers?", file->path, want.name);
    if (is_model && entry->layout == POSITIONS && got->ndim == 2 && got->dim[0] >= 1 && got->dim[0] < want.dim[0])
        want.dim[0] = got->dim[0];                              /* repeated by read_values */
    int fits = !strcmp(got->dtype, "F32") || (is_model && (!strcmp(got->dtype, "F16") || !strcmp(got->dtype, "BF16")));
    REQUIRE(fits && safetensors_same_shape(got, &want), "%s: %s is %s, want %s%s", got->path, got->name,
            safetensors_shape(got, got_text), safetensors_shape(&want, want_text), is_model ? ", or F16 or BF16" : "");
    free((char *)want.name);
    return got;
}

/* A head that equals wte is tied to it, as transformers may write it. */
static int is_tied(const SafeTensor *head, const SafeTensor *wte) {
    return !strcmp(head->dtype, wte->dtype) && safetensors_same_shape(head, wte)
           && !memcmp(head->data, wte->data, (size_t)wte->bytes);
}

/* Exact: the bits of a half, at their positions in f32, are the number times 2^(15 - 127), also for subnormals. */
static float half_to_float(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13;
    float value;
    memcpy(&value, &bits, sizeof bits);
    return (half & 0x7c00) == 0x7c00 ? NAN : value * 0x1p112f;          /* an infinity or a NaN: either is refused */
}

static void read_values(const SafeTensor *tensor, const Part *part, const TensorEntry *entry) {
    Tensor t = *entry->field;
    char *to = (char *)part->memory + entry->offset;
    int wide = !strcmp(tensor->dtype, "F32"), half = !strcmp(tensor->dtype, "F16");
    int64_t count = tensor->bytes / (wide ? 4 : 2);
    float *host = alloc_floats(count);
    if (wide) memcpy(host, tensor->data, (size_t)tensor->bytes);
    for (int64_t i = 0; i < count && !wide; i++) {
        uint16_t narrow;
        memcpy(&narrow, tensor->data + 2 * i, sizeof narrow);
        uint32_t bits = (uint32_t)narrow << 16;                         /* BF16 is the upper half of an F32 */
        memcpy(&host[i], &bits, sizeof bits);
        if (half) host[i] = half_to_float(narrow);
    }
    int64_t nonfinite = find_nonfinite(host, count);
    REQUIRE(nonfinite < 0, "%s: %s holds a NaN or an infinity (number %" PRId64 "): take an earlier checkpoint",
            tensor->path, tensor->name, nonfinite);
    if (entry->layout == CONV1D) host = transposed(host, t.dim[1], t.dim[0]);
    const int64_t wanted = entry->layout == VOCABULARY ? count : tensor_count(t);
    for (int64_t done = 0; done < wanted; done += count)            /* POSITIONS: again, up to T rows */
        device_upload(to + 4 * done, host, (size_t)(count < wanted - done ? count : wanted - done) * 4);
    free(host);
    if (entry->layout == VOCABULARY) device_zero(to + 4 * count, tensor_bytes(t) - 4 * (size_t)count);
}

void weights_read(const char *path, const TensorTable *table, const Part *part, int parts, int V) {
    SafeFile file = safetensors_open(path);
    char *used = host_alloc((size_t)file.count + 1, path);
    const SafeTensor *wte = *part->prefix ? NULL : find_tensor(&file, WTE);
    for (int i = 0; i < parts * table->count; i++) {
        const Part *p = &part[i / table->count];
        const TensorEntry *entry = entry_of(table, part, i);
        if (!entry) continue;
        const SafeTensor *tensor = find_entry(&file, p, entry, V);
        used[tensor - file.tensor] = 1;
        if (p->memory) read_values(tensor, p, entry);
    }
    for (int i = 0; i < file.count; i++) {
        const SafeTensor *t = &file.tensor[i];
        int ignored = used[i] || ends_with(t->name, ".attn.bias") || ends_with(t->name, ".attn.masked_bias");
        REQUIRE(ignored || (wte && !strcmp(t->name, HEAD) && is_tied(t, wte)), "%s: unexpected tensor %.80s: is it a "
                "GPT-2 of the same number of layers?", t->path, t->name);
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
    REQUIRE(wte && wpe, "%s: the tensor wte.weight or wpe.weight is missing: is it a GPT-2?", path);
    GPTConfig config = { .V = size_of(wte, 0, 1 << 24), .C = size_of(wte, 1, 65536), .T = size_of(wpe, 0, 1 << 24),
                         .untied = head && !is_tied(head, wte), .save_dtype = strcmp(wte->dtype, "F32") ? BF16 : F32 };
    for (int found = 1; found && config.L <= 1000; config.L += found) {
        char *name = format_string("%sh.%d.ln_1.weight", MODEL_PREFIX, config.L);
        found = find_tensor(&file, name) != NULL;
        free(name);
    }
    safetensors_close(&file);
    return config;
}
