/* attention_flash_sm90.cu - Attention for Hopper (compute capability 9.0, compiled for sm_90a): host code of both
   passes. Tiles have 64 or 128 columns of a head: missing ones are read as zero. */
#include "attention_flash_sm90.cuh"
#include "tensor_map.cuh"

CUtensorMap tensor_map(const char *name, const AttentionSpec *s, Tensor t, int rows) {
    const int64_t pitch = t.pitch * (int64_t)sizeof(bf16);
    return tensor_map_of(name, t.data, { s->HS, s->NH, t.dim[1], s->B },
                         { s->HS * (int64_t)sizeof(bf16), pitch, pitch * t.dim[1] }, { 64, 1, rows, 1 });
}

Result make_result(const char *name, const AttentionSpec *s, Tensor t, Into into) {
    const bool is_bf16 = t.dtype == BF16;
    require_aligned_rows("attention", { t });
    return { is_bf16 ? tensor_map(name, s, t, EPILOGUE_ROWS) : CUtensorMap{}, (float *)t.data, t.pitch, (int)t.dim[1],
             into, is_bf16 };
}

Part part_of(const AttentionSpec *s, Into into) {
    if (!s->causal) return RECTANGLE;
    if (s->out_dtype == F32 || into == ACCUMULATE) return SQUARE;
    return s->dropout.rate > 0 ? DROPPED : WHOLE;
}

/* Zero between launches: all are on the one stream of this library, in replayed graphs, too. */
static __device__ unsigned tile_counter;

Problem make_problem(const AttentionSpec *s, const AttentionOperands *o, int64_t heads_in_flight) {
    static unsigned *counter;               /* looked up once: not while a CUDA graph is recorded */
    if (!counter) CUDA(cudaGetSymbolAddress((void **)&counter, tile_counter));
    const int heads = s->B * s->NH;
    return { s->NH, s->HS, s->Tq, s->Tk, heads, s->q0, (int)o->lse.pitch, 0, 0,
             heads_in_flight < 1 ? 1 : heads_in_flight < heads ? (int)heads_in_flight : heads, s->deterministic,
             s->scale, counter, 0, 0 };
}

int persistent_blocks(Problem &p, int cluster) {
    const int64_t tiles = (int64_t)p.heads * p.tiles;
    REQUIRE(tiles * cluster <= INT32_MAX / 2, "attention: %lld tiles, want at most %d: a smaller batch",
            (long long)tiles, INT32_MAX / 2 / cluster);
    const int blocks = (int)min(tiles * cluster, (int64_t)cuda_sm_count());
    p.fetches = (unsigned)(tiles + blocks / cluster);
    return blocks;
}

static const char *refuse(const AttentionSpec *s) {
    const char *shared_reason = attention_refuse_in_bf16(s);
    if (shared_reason)                      return shared_reason;
    if (s->causal && (s->Tq != s->Tk || (s->q0 != 0 && (s->q0 != -1 || s->out_dtype != F32))))
        return "this kernel takes rectangles without a mask, and causal squares with q0 = 0 or, with results in f32, "
               "-1";
    if (s->out_dtype != F32 && (s->dq_into || s->dkv_into))
        return "this kernel adds to gradients in f32 only";
    if (s->dropout.rate > 0 && part_of(s, s->out_into) != DROPPED)
        return "this kernel has dropout in whole causal squares with results in bf16 only";
    if (cuda_arch() != 90)                  return "the GPU is not a Hopper (compute capability 9.0)";
    return NULL;
}

/* In bf16 where registers allow it. Out in f32 does not fit where the kernel reads what it merges. */
static int merges(const AttentionSpec *s) { return s->out_dtype == BF16 && s->HS > 64; }

const Attention attention_flash_sm90 = {
    "flash", refuse, attention_no_bytes, attention_flash_sm90_workspace, attention_flash_sm90_forward,
    attention_flash_sm90_backward, merges
};
