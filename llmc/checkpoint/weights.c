#include "weights.h"
#include "../files.h"
#include "safetensors.h"
#include "xxh64.h"
#include "../../kernels/check.h"
#include "../../kernels/device.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char MODEL_PREFIX[] = "transformer.";

/* ---- Numbers in a file, little-endian and of any alignment. A NaN or an infinity has an exponent of ones. */

static const struct { const char *name; int bytes; uint32_t exponent; } formats[] = {
    { "F32", 4, 0x7f800000 }, { "BF16", 2, 0x7f80 }, { "F16", 2, 0x7c00 },
};
enum { FORMAT_F32, FORMAT_BF16, FORMAT_F16, FORMAT_COUNT };

/* Of a data type that a parameter may have; -1 otherwise. */
static int format_of(const char *dtype) {
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (!strcmp(dtype, formats[i].name)) return i;
    return -1;
}

static uint32_t number_at(const void *numbers, int64_t i, int bytes) {
    uint32_t wide;
    uint16_t narrow;
    if (bytes == 4) memcpy(&wide, (const char *)numbers + 4 * i, sizeof wide);
    else            memcpy(&narrow, (const char *)numbers + 2 * i, sizeof narrow);
    return bytes == 4 ? wide : narrow;
}

/* The first of the numbers that is a NaN or an infinity; -1 when all are finite. */
static int64_t find_nonfinite(const void *numbers, int64_t count, int format) {
    const int bytes = formats[format].bytes;
    const uint32_t exponent = formats[format].exponent;
    for (int64_t i = 0; i < count; i++)
        if ((number_at(numbers, i, bytes) & exponent) == exponent) return i;
    return -1;
}

/* Exact, of finite numbers. A half's bits, moved to where f32 has them, are the number times 2^(15 - 127), those of a
   subnormal half too. */
static float float_of(uint32_t bits, int format) {
    float value;
    if (format == FORMAT_BF16) bits <<= 16;
    if (format == FORMAT_F16)  bits = (bits & 0x8000) << 16 | (bits & 0x7fff) << 13;
    memcpy(&value, &bits, sizeof value);
    return format == FORMAT_F16 ? value * 0x1p112f : value;
}

/* Of a finite number, to the nearest, ties to even; what is nearer to 2^128 than to the greatest becomes infinite. */
static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- Writing */

/* The row as it lies in the file. */
static SafeEntry row_entry(const TensorEntry *row, int V, DType dtype) {
    Tensor t = *row->field;
    SafeEntry entry = { .name = row->name, .dtype = dtype, .ndim = t.ndim };
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

/* A new (columns, rows) for in (rows, columns), which is freed. In tiles of 16 by 16: a tile's lines of 64 bytes stay
   in the first cache on both sides. */
static float *transposed(float *in, int64_t rows, int64_t columns) {
    float *out = host_alloc(rows * columns * (int64_t)sizeof *out);
    for (int64_t r0 = 0; r0 < rows; r0 += 16)
        for (int64_t c0 = 0; c0 < columns; c0 += 16)
            for (int64_t r = r0; r < r0 + 16 && r < rows; r++)
                for (int64_t c = c0; c < c0 + 16 && c < columns; c++) out[c * rows + r] = in[r * columns + c];
    free(in);
    return out;
}

/* The row's values in new memory, of the token table the first V rows. */
static float *row_copy(const Part *part, const TensorEntry *row, int64_t bytes) {
    float *host = host_alloc(bytes);
    if (part->host) memcpy(host, (const char *)part->host + row->offset, (size_t)bytes);
    else            device_download(host, row->field->data, (size_t)bytes);
    return host;
}

/* That all can be written as it is to be. */
static void row_check(const Part *part, const TensorEntry *row, int V, const char *path) {
    SafeEntry entry = row_entry(row, V, F32);
    int64_t bytes = safetensors_bytes(&entry), count = bytes / 4;
    float *own = part->host ? NULL : row_copy(part, row, bytes);
    const float *values = own ? own : (const float *)((const char *)part->host + row->offset);
    int64_t sick = find_nonfinite(values, count, FORMAT_F32), large = -1;
    for (int64_t i = 0; part->dtype == BF16 && sick < 0 && large < 0 && i < count; i++)
        if ((bf16_of(values[i]) & 0x7f80) == 0x7f80) large = i;
    free(own);
    REQUIRE(sick < 0, "%s: %s holds a NaN or an infinity (number %" PRId64 "): not saved; the checkpoints before it "
            "stay, take the last and lower --lr", path, row->name, sick);
    REQUIRE(large < 0, "%s: %s holds a number that BF16 rounds to infinity: not saved; want F32", path, row->name);
}

typedef struct { FILE *file; XXH64 sum; } Output;

static void output_write(Output *output, const void *bytes, size_t size) {
    file_write(output->file, bytes, size);
    xxh64_add(&output->sum, bytes, size);
}

static void row_write(Output *output, const Part *part, const TensorEntry *row, int V) {
    SafeEntry entry = row_entry(row, V, F32);
    int64_t bytes = safetensors_bytes(&entry), count = bytes / 4;
    float *host = row_copy(part, row, bytes);
    if (row->layout == CONV1D) host = transposed(host, row->field->dim[0], row->field->dim[1]);
    if (part->dtype == BF16) {
        uint16_t *rounded = (uint16_t *)host;               /* moves forward only: i never passes its source */
        for (int64_t i = 0; i < count; i++) {
            uint16_t number = bf16_of(host[i]);
            memcpy(&rounded[i], &number, sizeof number);
        }
        bytes = 2 * count;
    }
    output_write(output, host, (size_t)bytes);
    free(host);
}

uint64_t weights_write(const char *path, const Part *part, int parts, int V) {
    int count = 0;
    for (int p = 0; p < parts; p++) {        /* before there is a file: a failure that is caught leaves none open */
        count += part[p].table->count;
        for (int i = 0; i < part[p].table->count; i++) row_check(&part[p], &part[p].table->entry[i], V, path);
    }
    SafeEntry *entry = calloc((size_t)count, sizeof *entry);
    REQUIRE(entry, "%s: out of memory for %d entries", path, count);
    count = 0;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++, count++) {
            entry[count] = row_entry(&part[p].table->entry[i], V, part[p].dtype);
            entry[count].name = format_string("%s%s", part[p].prefix, entry[count].name);
        }
    size_t size;
    char *header = safetensors_header(entry, count, &size);
    for (int i = 0; i < count; i++) free((char *)entry[i].name);
    free(entry);
    Output output = { file_create(path), xxh64_begin() };
    output_write(&output, header, size);
    free(header);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++) row_write(&output, &part[p], &part[p].table->entry[i], V);
    file_close_durably(output.file, path);
    return xxh64_end(&output.sum);
}

/* ---- Reading */

/* HuggingFace's own files also come without the prefix "transformer.". */
static const SafeTensor *find_tensor(const SafeFile *file, const char *name) {
    const SafeTensor *tensor = safetensors_find(file, name);
    if (!tensor && !strncmp(name, MODEL_PREFIX, strlen(MODEL_PREFIX)))
        tensor = safetensors_find(file, name + strlen(MODEL_PREFIX));
    return tensor;
}

static const SafeTensor *find_row(const SafeFile *file, const char *prefix, const TensorEntry *row) {
    char *name = format_string("%s%s", prefix, row->name);
    const SafeTensor *tensor = find_tensor(file, name);
    REQUIRE(tensor, "%s: the tensor %s is missing: is it a GPT-2 of the same number of layers?", file->path, name);
    free(name);
    return tensor;
}

static void check_tensor_fits(const SafeTensor *tensor, const char *prefix, const TensorEntry *row, int V) {
    SafeEntry want = row_entry(row, V, F32);
    int format = format_of(tensor->dtype);
    int same = (*prefix ? format == FORMAT_F32 : format >= 0) && tensor->ndim == want.ndim &&
               !memcmp(tensor->dim, want.dim, (size_t)want.ndim * sizeof *want.dim);
    char got_text[256], want_text[256];
    REQUIRE(same, "%s: %s is %s, want %s%s", tensor->path, tensor->name,
            safetensors_shape(tensor->dtype, tensor->ndim, tensor->dim, got_text),
            safetensors_shape("F32", want.ndim, want.dim, want_text), *prefix ? "" : ", or F16 or BF16");
    int64_t sick = find_nonfinite(tensor->data, tensor->bytes / formats[format].bytes, format);
    REQUIRE(sick < 0, "%s: %s holds a NaN or an infinity (number %" PRId64 "): this checkpoint is sick, take an "
            "earlier one", tensor->path, tensor->name, sick);
}

static int is_same(const SafeTensor *a, const SafeTensor *b) {
    return !strcmp(a->dtype, b->dtype) && a->ndim == b->ndim && !memcmp(a->dim, b->dim, sizeof a->dim) &&
           !memcmp(a->data, b->data, (size_t)a->bytes);
}

/* A tensor that no row asked for: a mask that HuggingFace keeps as a tensor, the head again, or an error. */
static void check_unasked(const SafeTensor *tensor, const SafeTensor *wte) {
    if (ends_with(tensor->name, ".attn.bias") || ends_with(tensor->name, ".attn.masked_bias")) return;
    REQUIRE(!strcmp(tensor->name, "lm_head.weight") && wte, "%s: unexpected tensor %.80s: is it a GPT-2 of the same "
            "number of layers?", tensor->path, tensor->name);
    REQUIRE(is_same(tensor, wte), "%s: lm_head.weight differs from %s: want a head tied to the token table",
            tensor->path, wte->name);
}

static void row_read(const SafeTensor *tensor, const TensorEntry *row) {
    Tensor t = *row->field;
    int format = format_of(tensor->dtype), bytes = formats[format].bytes;
    int64_t count = tensor->bytes / bytes;
    float *host = host_alloc(count * 4);
    for (int64_t i = 0; i < count; i++) host[i] = float_of(number_at(tensor->data, i, bytes), format);
    if (row->layout == CONV1D) host = transposed(host, t.dim[1], t.dim[0]);
    device_upload(t.data, host, (size_t)count * 4);
    free(host);
    if (row->layout == VOCABULARY) device_zero((char *)t.data + 4 * count, tensor_bytes(t) - 4 * (size_t)count);
}

void weights_read(const char *path, const Part *part, int parts, int V) {
    SafeFile file = safetensors_open(path);
    char *asked = calloc((size_t)file.count + 1, 1);
    REQUIRE(asked, "%s: out of memory for %d tensors", path, file.count);
    const SafeTensor *wte = NULL;
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++) {
            const TensorEntry *row = &part[p].table->entry[i];
            const SafeTensor *tensor = find_row(&file, part[p].prefix, row);
            check_tensor_fits(tensor, part[p].prefix, row, V);
            asked[tensor - file.tensor] = 1;
            if (row->layout == VOCABULARY && !*part[p].prefix) wte = tensor;
        }
    for (int i = 0; i < file.count; i++)
        if (!asked[i]) check_unasked(&file.tensor[i], wte);
    free(asked);

    for (int p = 0; p < parts; p++)
        for (int i = 0; i < part[p].table->count; i++)
            row_read(find_row(&file, part[p].prefix, &part[p].table->entry[i]), &part[p].table->entry[i]);
    safetensors_close(&file);
}

void params_read(const char *path, Params *params, int V) {
    weights_read(path, &(Part){ .prefix = "", .table = &params->table }, 1, V);
}

/* ---- What a file tells */

static int size_of(const SafeTensor *tensor, int dim, int most) {
    char text[256];
    REQUIRE(tensor->ndim == 2 && tensor->dim[dim] >= 1 && tensor->dim[dim] <= most, "%s: %s is %s, want two "
            "dimensions, dimension %d from 1 to %d", tensor->path, tensor->name,
            safetensors_shape(tensor->dtype, tensor->ndim, tensor->dim, text), dim, most);
    return (int)tensor->dim[dim];
}

GPTConfig weights_config(const char *path) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *wte = find_tensor(&file, "transformer.wte.weight");
    const SafeTensor *wpe = find_tensor(&file, "transformer.wpe.weight");
    REQUIRE(wte && wpe, "%s: the tensor wte.weight or wpe.weight is missing: is it a GPT-2?", path);
    GPTConfig config = { .V = size_of(wte, 0, 1 << 24), .C = size_of(wte, 1, 65536), .T = size_of(wpe, 0, 1 << 24) };
    int wide = size_of(wpe, 1, 65536);
    REQUIRE(wide == config.C, "%s: %s has %d columns, %s has %d: want as many",
            path, wpe->name, wide, wte->name, config.C);
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

int weights_has(const char *path, const char *name, DType dtype) {
    SafeFile file = safetensors_open(path);
    const SafeTensor *tensor = find_tensor(&file, name);
    int has = tensor && !strcmp(tensor->dtype, safetensors_dtype(dtype));
    safetensors_close(&file);
    return has;
}
