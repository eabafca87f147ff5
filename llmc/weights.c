#include "weights.h"
#include "files.h"
#include "safetensors.h"
#include "../kernels/check.h"
#include "../kernels/device.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char MODEL_PREFIX[] = "transformer.";

/* The row as it lies in the file. */
static SafeEntry row_entry(const Row *row, int V) {
    Tensor t = *row->field;
    SafeEntry entry = { .name = row->name, .dtype = t.dtype, .ndim = t.ndim };
    memcpy(entry.dim, t.dim, sizeof entry.dim);
    if (row->layout == CONV1D) {
        entry.dim[0] = t.dim[1];
        entry.dim[1] = t.dim[0];
    }
    if (row->layout == VOCABULARY) {
        REQUIRE(V <= t.dim[0], "%s: %d tokens do not fit %lld rows", row->name, V, (long long)t.dim[0]);
        entry.dim[0] = V;
    }
    return entry;
}

static float *host_alloc(int64_t bytes) {
    float *host = malloc((size_t)bytes);
    REQUIRE(host, "out of memory: %lld bytes for a tensor on its way between file and device", (long long)bytes);
    return host;
}

/* out (columns, rows) = in (rows, columns), which may lie unaligned in a file. In tiles of 16 by 16: a tile's lines of
   64 bytes stay in the first cache on both sides. */
static void transpose(float *out, const unsigned char *in, int64_t rows, int64_t columns) {
    for (int64_t r0 = 0; r0 < rows; r0 += 16)
        for (int64_t c0 = 0; c0 < columns; c0 += 16)
            for (int64_t r = r0; r < r0 + 16 && r < rows; r++)
                for (int64_t c = c0; c < c0 + 16 && c < columns; c++)
                    memcpy(&out[c * rows + r], in + (r * columns + c) * (int64_t)sizeof *out, sizeof *out);
}

/* The first of the floats that is a NaN or an infinity; -1 when all are numbers. */
static int64_t find_sick(const void *floats, int64_t bytes) {
    for (int64_t i = 0; i < bytes / 4; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)floats + 4 * i, 4);
        if ((bits >> 23 & 0xff) == 0xff) return i;
    }
    return -1;
}

/* The row's values on the host, of the token table the first V rows; *own is to be freed. */
static const float *row_values(const Part *part, const Row *row, int64_t bytes, float **own) {
    *own = NULL;
    if (part->host) return (const float *)((const char *)part->host + row->offset);
    *own = host_alloc(bytes);
    device_download(*own, row->field->data, (size_t)bytes);
    return *own;
}

static void row_check(const Part *part, const Row *row, int V, const char *path) {
    SafeEntry entry = row_entry(row, V);
    int64_t bytes = safetensors_bytes(&entry);
    float *own;
    int64_t sick = find_sick(row_values(part, row, bytes, &own), bytes);
    free(own);
    REQUIRE(sick < 0, "%s: %s holds a NaN or an infinity (number %" PRId64 "): not saved; the checkpoints before it "
            "stay, take the last and lower --lr", path, row->name, sick);
}

static void row_write(FILE *file, const Part *part, const Row *row, int V, const char *path) {
    SafeEntry entry = row_entry(row, V);
    int64_t bytes = safetensors_bytes(&entry);
    float *own, *turned = NULL;
    const float *values = row_values(part, row, bytes, &own);
    if (row->layout == CONV1D) {
        turned = host_alloc(bytes);
        transpose(turned, (const unsigned char *)values, row->field->dim[0], row->field->dim[1]);
        values = turned;
    }
    file_write(file, values, (size_t)bytes, path);
    free(turned);
    free(own);
}

static void row_read(const SafeTensor *tensor, const Row *row) {
    Tensor t = *row->field;
    if (row->layout == CONV1D) {
        float *host = host_alloc(tensor->bytes);
        transpose(host, tensor->data, t.dim[1], t.dim[0]);
        device_upload(t.data, host, (size_t)tensor->bytes);
        free(host);
    } else {
        device_upload(t.data, tensor->data, (size_t)tensor->bytes);
    }
    if (row->layout == VOCABULARY)
        device_zero((char *)t.data + tensor->bytes, tensor_bytes(t) - (size_t)tensor->bytes);
}

void weights_write(const char *path, const Part *part, int parts, int V) {
    int count = 0;
    for (int p = 0; p < parts; p++) {        /* before there is a file: a failure that is caught leaves none open */
        count += part[p].table->count;
        for (int i = 0; i < part[p].table->count; i++) row_check(&part[p], &part[p].table->row[i], V, path);
    }
    SafeEntry *entry = calloc((size_t)count, sizeof *entry);
    REQUIRE(entry, "%s: out of memory for %d entries", path, count);
    count = 0;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++, count++) {
            entry[count] = row_entry(&part[p].table->row[i], V);
            entry[count].name = file_path("%s%s", part[p].prefix, entry[count].name);
        }
    FILE *file = safetensors_create(path, entry, count);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++) row_write(file, &part[p], &part[p].table->row[i], V, path);
    for (int i = 0; i < count; i++) free((char *)entry[i].name);
    free(entry);
    file_close_durably(file, path);
}

/* HuggingFace's own files also come without the prefix "transformer.". */
static const SafeTensor *find_row(const SafeFile *file, const char *prefix, const Row *row) {
    char *name = file_path("%s%s", prefix, row->name);
    const SafeTensor *tensor = safetensors_find(file, name);
    if (!tensor && !strncmp(name, MODEL_PREFIX, strlen(MODEL_PREFIX)))
        tensor = safetensors_find(file, name + strlen(MODEL_PREFIX));
    REQUIRE(tensor, "%s: the tensor %s is missing: is it a GPT-2 of the same number of layers?", file->path, name);
    free(name);
    return tensor;
}

static void check_tensor_fits(const SafeFile *file, const SafeTensor *tensor, const Row *row, int V) {
    SafeEntry want = row_entry(row, V);
    const char *dtype = safetensors_dtype(want.dtype);
    int same = !strcmp(tensor->dtype, dtype) && tensor->ndim == want.ndim &&
               !memcmp(tensor->dim, want.dim, (size_t)want.ndim * sizeof *want.dim);
    char got_text[256], want_text[256];
    REQUIRE(same, "%s: %s is %s, want %s", file->path, tensor->name,
            safetensors_shape(tensor->dtype, tensor->ndim, tensor->dim, got_text),
            safetensors_shape(dtype, want.ndim, want.dim, want_text));
    int64_t sick = find_sick(tensor->data, tensor->bytes);
    REQUIRE(sick < 0, "%s: %s holds a NaN or an infinity (number %" PRId64 "): this checkpoint is sick, take an "
            "earlier one", file->path, tensor->name, sick);
}

/* A tensor that no row asked for: a mask that HuggingFace keeps as a tensor, the head again, or an error. */
static void check_unasked(const SafeFile *file, const SafeTensor *tensor, const SafeTensor *wte) {
    if (ends_with(tensor->name, ".attn.bias") || ends_with(tensor->name, ".attn.masked_bias")) return;
    REQUIRE(!strcmp(tensor->name, "lm_head.weight") && wte, "%s: unexpected tensor %.80s: is it a GPT-2 of the same "
            "number of layers?", file->path, tensor->name);
    REQUIRE(!strcmp(tensor->dtype, wte->dtype) && tensor->bytes == wte->bytes &&
            !memcmp(tensor->data, wte->data, (size_t)wte->bytes),
            "%s: lm_head.weight differs from %s: a head that is not tied to the token table is not supported yet",
            file->path, wte->name);
}

void weights_read(const char *path, const Part *part, int parts, int V) {
    SafeFile file = safetensors_open(path);
    char *asked = calloc((size_t)file.count + 1, 1);
    REQUIRE(asked, "%s: out of memory for %d tensors", path, file.count);
    const SafeTensor *wte = NULL;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++) {
            const Row *row = &part[p].table->row[i];
            const SafeTensor *tensor = find_row(&file, part[p].prefix, row);
            check_tensor_fits(&file, tensor, row, V);
            asked[tensor - file.tensor] = 1;
            if (row->layout == VOCABULARY && !*part[p].prefix) wte = tensor;
        }
    for (int i = 0; i < file.count; i++)
        if (!asked[i]) check_unasked(&file, &file.tensor[i], wte);
    free(asked);

    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++)
            row_read(find_row(&file, part[p].prefix, &part[p].table->row[i]), &part[p].table->row[i]);
    safetensors_close(&file);
}

void params_write(const char *path, const Params *params, int V) {
    weights_write(path, &(Part){ .prefix = "", .table = &params->table }, 1, V);
}

void params_read(const char *path, Params *params, int V) {
    weights_read(path, &(Part){ .prefix = "", .table = &params->table }, 1, V);
}
