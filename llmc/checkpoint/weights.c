#include "weights.h"
#include "../files.h"
#include "safetensors.h"
#include "xxh64.h"
#include "../../kernels/check.h"
#include "../../kernels/device.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char MODEL_PREFIX[] = "transformer.";

static float *alloc_floats(int64_t count) {
    float *host = malloc((size_t)count * sizeof *host);
    REQUIRE(host, "out of memory: %lld numbers of a tensor between file and device", (long long)count);
    return host;
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

/* The row as it is in the file. */
static SafeTensor row_tensor(const TensorEntry *row, int V, DType dtype) {
    Tensor t = *row->field;
    SafeTensor tensor = { .name = row->name, .dtype = dtype == BF16 ? "BF16" : "F32", .ndim = t.ndim };
    for (int i = 0; i < t.ndim; i++) tensor.dim[i] = t.dim[row->layout == CONV1D ? t.ndim - 1 - i : i];
    if (row->layout == VOCABULARY) {
        REQUIRE(V <= t.dim[0], "%s: %d tokens do not fit %lld rows", row->name, V, (long long)t.dim[0]);
        tensor.dim[0] = V;
    }
    tensor.bytes = (int64_t)dtype_bytes(dtype);
    for (int i = 0; i < t.ndim; i++) tensor.bytes *= tensor.dim[i];
    return tensor;
}

/* ---- Writing */

/* Of a finite number, to nearest, ties to even. Numbers that round to 2^128 become infinite. */
static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static const float *row_values(const Part *part, const TensorEntry *row) {
    return (const float *)((const char *)part->memory + row->offset);
}

static void row_check(const Part *part, const TensorEntry *row, int V, const char *path) {
    const float *value = row_values(part, row);
    int64_t count = row_tensor(row, V, F32).bytes / 4, nonfinite = find_nonfinite(value, count);
    REQUIRE(nonfinite < 0, "%s: %s holds a NaN or an infinity (number %" PRId64 "): not saved; earlier checkpoints "
            "stay: take the last one and lower --lr", path, row->name, nonfinite);
    for (int64_t i = 0; part->dtype == BF16 && i < count; i++)
        REQUIRE((bf16_of(value[i]) & 0x7f80) != 0x7f80, "%s: %s holds a number that BF16 rounds to infinity: not "
                "saved; want F32", path, row->name);
}

typedef struct { FILE *file; XXH64 sum; } Output;

static void output_write(Output *output, const void *bytes, size_t size) {
    file_write(output->file, bytes, size);
    xxh64_add(&output->sum, bytes, size);
}

static void row_write(Output *output, const Part *part, const TensorEntry *row, int V) {
    int64_t count = row_tensor(row, V, F32).bytes / 4;
    float *host = alloc_floats(count);
    memcpy(host, row_values(part, row), (size_t)count * sizeof *host);
    if (row->layout == CONV1D) host = transposed(host, row->field->dim[0], row->field->dim[1]);
    for (int64_t i = 0; part->dtype == BF16 && i < count; i++) {       /* in place: number i never passes its source */
        uint16_t number = bf16_of(host[i]);
        memcpy((char *)host + 2 * i, &number, sizeof number);
    }
    output_write(output, host, (size_t)count * dtype_bytes(part->dtype));
    free(host);
}

uint64_t weights_write(const char *path, const Part *part, int parts, int V) {
    int count = 0;
    for (int p = 0; p < parts; p++) {
        count += part[p].table->count;
        for (int i = 0; i < part[p].table->count; i++) row_check(&part[p], &part[p].table->entry[i], V, path);
    }
    SafeTensor *tensor = calloc((size_t)count, sizeof *tensor), *next = tensor;
    REQUIRE(tensor, "%s: out of memory for %d tensors", path, count);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++, next++) {
            *next = row_tensor(&part[p].table->entry[i], V, part[p].dtype);
            next->name = format_string("%s%s", part[p].prefix, next->name);
        }
    size_t size;
    char *header = safetensors_header(tensor, count, &size);
    for (int i = 0; i < count; i++) free((char *)tensor[i].name);
    free(tensor);
    Output output = { file_create(path), xxh64_begin() };
    output_write(&output, header, size);
    free(header);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++) row_write(&output, &part[p], &part[p].table->entry[i], V);
    file_close_durably(output.file, path);
    return xxh64_end(&output.sum);
}

/* ---- Reading */

/* Files of HuggingFace also have names without "transformer.". */
static const SafeTensor *find_tensor(const SafeFile *file, const char *name) {
    const SafeTensor *tensor = safetensors_find(file, name);
    if (!tensor && !strncmp(name, MODEL_PREFIX, strlen(MODEL_PREFIX)))
        tensor = safetensors_find(file, name + strlen(MODEL_PREFIX));
    return tensor;
}

static const SafeTensor *find_row(const SafeFile *file, const char *prefix, const TensorEntry *row, int V) {
    char *name = format_string("%s%s", prefix, row->name), got_text[256], want_text[256];
    const SafeTensor *got = find_tensor(file, name), want = row_tensor(row, V, F32);
    REQUIRE(got, "%s: the tensor %s is missing: is it a GPT-2 of the same number of layers?", file->path, name);
    free(name);
    int fits = !strcmp(got->dtype, "F32") || !strcmp(got->dtype, *prefix ? "F32" : "BF16") ||
               !strcmp(got->dtype, *prefix ? "F32" : "F16");
    fits &= got->ndim == want.ndim && !memcmp(got->dim, want.dim, sizeof want.dim);
    REQUIRE(fits, "%s: %s is %s, want %s%s", got->path, got->name, safetensors_shape(got, got_text),
            safetensors_shape(&want, want_text), *prefix ? "" : ", or F16 or BF16");
    return got;
}

static int is_same(const SafeTensor *a, const SafeTensor *b) {
    return !strcmp(a->dtype, b->dtype) && a->ndim == b->ndim && !memcmp(a->dim, b->dim, sizeof a->dim) &&
           !memcmp(a->data, b->data, (size_t)a->bytes);
}

static void check_unasked(const SafeTensor *tensor, const SafeTensor *wte) {
    if (ends_with(tensor->name, ".attn.bias") || ends_with(tensor->name, ".attn.masked_bias")) return;
    REQUIRE(!strcmp(tensor->name, "lm_head.weight") && wte, "%s: unexpected tensor %.80s: is it a GPT-2 of the same "
            "number of layers?", tensor->path, tensor->name);
    REQUIRE(is_same(tensor, wte), "%s: lm_head.weight differs from %s: want a head tied to the token table",
            tensor->path, wte->name);
}

/* Exact. The bits of a half, moved to their places in f32, are the number times 2^(15 - 127), also of a subnormal. */
static float half_to_float(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (half & 0x7c00) == 0x7c00 ? NAN : value * 0x1p112f;          /* an infinity or a NaN: either is refused */
}

static void row_read(const SafeTensor *tensor, const Part *part, const TensorEntry *row) {
    Tensor t = *row->field;
    char *to = (char *)part->memory + row->offset;
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
    if (row->layout == CONV1D) host = transposed(host, t.dim[1], t.dim[0]);
    device_upload(to, host, (size_t)count * 4);
    free(host);
    if (row->layout == VOCABULARY) device_zero(to + 4 * count, tensor_bytes(t) - 4 * (size_t)count);
}

void weights_read(const char *path, const Part *part, int parts, int V) {
    SafeFile file = safetensors_open(path);
    char *asked = calloc((size_t)file.count + 1, 1);
    REQUIRE(asked, "%s: out of memory for %d tensors", path, file.count);
    const SafeTensor *wte = NULL;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++) {
            const TensorEntry *row = &part[p].table->entry[i];
            const SafeTensor *tensor = find_row(&file, part[p].prefix, row, V);
            asked[tensor - file.tensor] = 1;
            if (row->layout == VOCABULARY && !*part[p].prefix) wte = tensor;
            row_read(tensor, &part[p], row);
        }
    for (int i = 0; i < file.count; i++)
        if (!asked[i]) check_unasked(&file.tensor[i], wte);
    free(asked);
    safetensors_close(&file);
}

/* ---- Contents of a model's file */

static int size_of(const SafeTensor *tensor, int dim, int max) {
    char text[256];
    REQUIRE(tensor->ndim == 2 && tensor->dim[dim] >= 1 && tensor->dim[dim] <= max, "%s: %s is %s, want two dimensions, "
            "dimension %d from 1 to %d", tensor->path, tensor->name, safetensors_shape(tensor, text), dim, max);
    return (int)tensor->dim[dim];
}

GPTConfig weights_config(const char *path) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *wte = find_tensor(&file, "transformer.wte.weight");
    const SafeTensor *wpe = find_tensor(&file, "transformer.wpe.weight");
    REQUIRE(wte && wpe, "%s: the tensor wte.weight or wpe.weight is missing: is it a GPT-2?", path);
    GPTConfig config = { .V = size_of(wte, 0, 1 << 24), .C = size_of(wte, 1, 65536), .T = size_of(wpe, 0, 1 << 24) };
    for (int found = 1; found && config.L <= 1000; config.L += found) {
        char *name = format_string("%sh.%d.ln_1.weight", MODEL_PREFIX, config.L);
        found = find_tensor(&file, name) != NULL;
        free(name);
    }
    safetensors_close(&file);
    return config;
}

Head weights_head(const char *path) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *head = safetensors_find(&file, "lm_head.weight");
    const SafeTensor *wte = find_tensor(&file, "transformer.wte.weight");
    Head found = !head ? NO_HEAD : wte && is_same(head, wte) ? SAME_HEAD : OWN_HEAD;
    safetensors_close(&file);
    return found;
}

int weights_is_f32(const char *path) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *wte = find_tensor(&file, "transformer.wte.weight");
    int is_f32 = wte && !strcmp(wte->dtype, "F32");
    safetensors_close(&file);
    return is_f32;
}
