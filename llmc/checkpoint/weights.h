/* weights.h - Parameters and moments as safetensors in HuggingFace's names and layouts, and back. */
#pragma once
#include "../model/gpt.h"

/* Tensors of a file: the entries of a table, with a prefix before their names, those with matrices for Muon with one of
   their own, NULL = not in the file; at the table's offsets in memory: host memory for a write, device memory for a
   read, or NULL to only require that they exist. */
typedef struct { const char *prefix, *matrix_prefix; void *memory; } Part;

/* One file of all parts, with the first V rows of the token tables. Returns its XXH64. Fails at a NaN or an infinity,
   before it creates the file. */
uint64_t weights_write(const char *path, const TensorTable *table, const Part *part, int parts, int V);

/* path: a file, or the index of several. Tensors without a prefix (a model) may be F32, F16 or BF16, which f32 holds
   exactly, and also named without "transformer."; attention-mask buffers (attn.bias, attn.masked_bias) are ignored, and
   so is an lm_head.weight that equals wte if the table has none; rows of wpe are repeated or cut to those of the table.
   Other tensors are F32. Fails at a NaN, an infinity, a missing tensor and one that is not in the table. Zeroes the
   token rows from V on. */
void weights_read(const char *path, const TensorTable *table, const Part *part, int parts, int V);

/* Sizes from the names and shapes of a model's file: L, C, T, V, untied (an lm_head.weight that differs from wte). */
GPTConfig weights_config(const char *path);
