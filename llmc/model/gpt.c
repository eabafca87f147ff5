#include "gpt.h"
#include "../../kernels/embedding.h"
#include "../../kernels/fp8.h"
#include "../../kernels/gelu.h"
#include "../../kernels/gemm.h"
#include "../../kernels/head.h"
#include "../../kernels/layernorm.h"
#include "../../kernels/matmul.h"
#include "../../kernels/profile.h"

void gpt_load(GPT *m, const int32_t *tokens, const int32_t *targets, const uint64_t *first) {
    const int drops = first && tensor_bytes(m->acts.sequence);
    device_upload_async(m->acts.tokens.data, tokens, tensor_bytes(m->acts.tokens));
    if (targets) device_upload_async(m->acts.targets.data, targets, tensor_bytes(m->acts.targets));
    if (drops) device_upload_async(m->acts.sequence.data, first, sizeof *first);
    m->dropout = drops ? m->config.dropout : 0;
    m->fp8 = first && m->acts.q8.data;
    m->loaded = tokens;
}

/* ---- The network */

static Tensor part(Tensor qkv, int which) {
    int64_t C = tensor_columns(qkv) / 3;
    return tensor_column_range(qkv, which * C, C);
}

/* Scores and P V, half of each under a causal mask. Where ranks share sequences, the mean of the ranks. */
static double attention_flop(const GPT *m) {
    return 2.0 * m->spec.B * (double)m->spec.Tq * m->spec.Tk * m->config.C * gpt_split(&m->config).size;
}

/* Numbers of the masks: the embedding 0; in block l, the attention's P 3 l + 1, the outputs of the two projections
   3 l + 2 and 3 l + 3. */
enum { EMBEDDING, P_MASK, PROJECTION, MLP_PROJECTION, MASKS_OF_BLOCK = 3 };

static Dropout mask_of(const GPT *m, int l, int which) {
    return (Dropout){ .rate = m->dropout, .site = RANDOM_DROPOUT | (uint32_t)(MASKS_OF_BLOCK * l + which) << 8,
                      .seed = m->config.dropout_seed, .sequence = m->acts.sequence.data };
}

/* x with dropout, in out; at a rate of 0 it is x itself. Its own backward pass. */
static Tensor drop(const GPT *m, Tensor out, Tensor x, int l, int which) {
    const Dropout d = mask_of(m, l, which);
    if (m->dropout > 0) dropout(out, x, &d);
    return m->dropout > 0 ? out : x;
}

/* The gradient of a branch's bias is summed by layernorm_backward, from dres, which it writes; with dropout by
   matmul_backward. */
static Tensor by_layernorm(const GPT *m, Tensor dbias) { return m->dropout > 0 ? ABSENT : dbias; }
static Tensor by_matmul   (const GPT *m, Tensor dbias) { return m->dropout > 0 ? dbias : ABSENT; }

static void self_attention_forward(GPT *m, int l, BlockActs *s) {
    const int64_t C = m->config.C;
    const Tensor q = part(s->qkv, 0), k = tensor_column_range(s->kv, 0, C), v = tensor_column_range(s->kv, C, C);
    const AttentionOperands o = { .q = q, .k = k, .v = v, .out = s->atty, .lse = s->lse, .kept = s->att.data,
                                  .work = m->acts.attwork.data };
    if (m->cached) cache_append(s->cache, tensor_column_range(s->qkv, C, 2 * C), m->acts.position);
    op_begin("attention", op_bytes(4, s->atty, s->lse, q, s->kv), attention_flop(m));
    m->spec.dropout = mask_of(m, l, P_MASK);
    if (m->ring.split.size) ring_forward(&m->ring, &o);
    else attention_forward(m->attention, &m->spec, &o);
    op_end();
}

static void self_attention_backward(GPT *m, int l, BlockActs *s) {
    const Tensor qkv = s->qkv, dqkv = m->acts.dqkv, datty = m->acts.dbranch;
    const AttentionOperands o = { part(qkv, 0), part(qkv, 1), part(qkv, 2), s->atty, s->lse, datty, part(dqkv, 0),
                                  part(dqkv, 1), part(dqkv, 2), s->att.data, m->acts.attwork.data };
    if (m->dropout > 0) device_overlap_wait();     /* dqkv and dproj share memory */
    op_begin("attention backward", op_bytes(5, dqkv, datty, s->atty, s->lse, qkv), 2.5 * attention_flop(m));
    m->spec.dropout = mask_of(m, l, P_MASK);
    if (m->ring.split.size) ring_backward(&m->ring, &o);
    else attention_backward(m->attention, &m->spec, &o);
    op_end();
}

/* The operands of a linear layer, and in E4M3: xt, the transpose of x or gelu(x_pre_gelu), made by the forward pass for
   the backward pass, and weight8, the weight and its transpose. */
typedef struct { Tensor x, x_pre_gelu, xt, weight, weight8, bias; } Linear;
#define LINEAR(x, pre_gelu, of) (Linear){ s->x, pre_gelu, s->x##t, w->of##w, s->of##w8, w->of##b }

/* (rows,columns) of the memory of t, from an element on, with this max. */
static Tensor e4m3(Tensor t, int64_t first, int64_t rows, int64_t columns, float *max) {
    return (Tensor){ (char *)t.data + first, E4M3, 2, { rows, columns }, columns, max };
}

static void linear_forward(GPT *m, Tensor out, Tensor pre_gelu, Linear n) {
    if (!m->fp8) {
        matmul_forward(out, pre_gelu, n.x, n.weight, n.bias);
        return;
    }
    const int64_t N = n.weight.dim[0], K = n.weight.dim[1];
    const Tensor weight8 = e4m3(n.weight8, 0, N, K, n.weight8.max), weightt = e4m3(n.weight8, N * K, K, N, weight8.max);
    const Tensor x8 = e4m3(m->acts.q8, 0, tensor_rows(out), K, n.xt.max);
    if (!m->weights_kept) quantize(weight8, weightt, n.weight);
    if (n.x_pre_gelu.data) quantize_gelu(x8, n.xt, n.x_pre_gelu);
    else                   quantize(x8, n.xt, n.x);
    matmul_fp8_forward(pre_gelu.data ? pre_gelu : out, x8, weight8, n.bias);
}

static void linear_backward(GPT *m, Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_bias, Tensor dout, Linear n,
                            Into into) {
    if (!m->fp8) {
        matmul_backward(dx, dweight, dbias, dx_bias, dout, n.x, n.x_pre_gelu, n.weight, into);
        return;
    }
    const int64_t rows = tensor_rows(dout), N = n.weight.dim[0], K = n.weight.dim[1];
    const Tensor dout8t = e4m3(m->acts.dout8t, 0, N, rows, m->acts.dout8t.max);
    const Tensor dout8 = e4m3(m->acts.q8, 0, rows, N, dout8t.max);
    if (dbias.data) column_sums(dbias, dout, into);
    quantize(dout8, dout8t, dout);
    matmul_fp8_backward(dx, dweight, dout8, dout8t, n.xt, e4m3(n.weight8, N * K, K, N, n.weight8.max), into);
    if (n.x_pre_gelu.data) gelu_backward(dx, dx, n.x_pre_gelu, dx_bias, into);
}

/* Called before the forward pass of a group, or after its backward pass, with each launch where it is recorded. */
static void at_group(GroupHook *hook, void *context, int group) {
    if (!hook) return;
    device_overlap_wait();
    device_graph_call(hook, context, group);
}

/* x + branch -> gelu: a block's MLP without its last op. An absent branch: x is res1. */
static void block_forward(GPT *m, int l, Tensor x, Tensor branch) {
    BlockParams *w = &m->params.block[l];
    BlockActs *s = &m->acts.block[l];
    Acts *a = &m->acts;
    residual_layernorm_forward(s->res1, s->ln1, s->ln1_mean, s->ln1_rstd, x, branch, w->ln1w, w->ln1b);
    linear_forward(m, s->qkv, ABSENT, LINEAR(ln1, ABSENT, qkv));
    self_attention_forward(m, l, s);
    linear_forward(m, a->branch, ABSENT, LINEAR(atty, ABSENT, proj));
    drop(m, a->branch, a->branch, l, PROJECTION);
    residual_layernorm_forward(s->res2, s->ln2, s->ln2_mean, s->ln2_rstd, s->res1, a->branch, w->ln2w, w->ln2b);
    linear_forward(m, s->gelu, s->fch, LINEAR(ln2, ABSENT, fc));
}

void gpt_forward(GPT *m) {
    Params *p = &m->params;
    Acts *a = &m->acts;
    Tensor x = a->block[0].res1, branch = ABSENT;
    at_group(m->before_group, m->before_context, FIRST_GROUP);
    embedding_forward(x, a->tokens, p->wte, p->wpe, a->position);
    drop(m, x, x, 0, EMBEDDING);
    for (int l = 0; l < m->config.L; l++) {
        BlockParams *w = &p->block[l];
        BlockActs *s = &a->block[l];
        at_group(m->before_group, m->before_context, l);
        block_forward(m, l, x, branch);
        linear_forward(m, a->branch, ABSENT, LINEAR(gelu, s->fch, fcproj));
        drop(m, a->branch, a->branch, l, MLP_PROJECTION);
        x = s->res2;
        branch = a->branch;
    }
    at_group(m->before_group, m->before_context, m->config.L);
    residual_layernorm_forward(a->res, a->lnf, a->lnf_mean, a->lnf_rstd, x, branch, p->lnfw, p->lnfb);
}

/* The memory of a chunk of logits, with rows of F32. */
static Tensor f32_logits(const Acts *a) {
    const int64_t ratio = (int64_t)(dtype_bytes(F32) / dtype_bytes(a->logits.dtype));
    return tensor_of(a->logits.data, F32, 2, a->logits.dim[0] / ratio, a->logits.dim[1]);
}

void gpt_loss(GPT *m) {
    Acts *a = &m->acts;
    Tensor lm_head = m->params.lm_head;
    head_loss(a->losses, ABSENT, ABSENT, a->lnf, lm_head, a->targets, m->config.V, 0.0f, OVERWRITE, f32_logits(a));
}

void gpt_loss_of(GPT *m, const TokenRange *range, int ranges) {
    const Acts *a = &m->acts;
    int64_t count = 0;
    for (int i = 0; i < ranges; count += range[i++].count) {
        const Tensor from = tensor_row_range(a->lnf, range[i].first, range[i].count);
        device_copy(tensor_row_range(a->res, count, range[i].count).data, from.data, tensor_bytes(from));
    }
    const Tensor x = tensor_of(a->res.data, a->res.dtype, 3, 1, count, m->config.C);
    head_loss(tensor_of(a->losses.data, F32, 2, 1, count), ABSENT, ABSENT, x, m->params.lm_head,
              tensor_of(a->targets.data, I32, 2, 1, count), m->config.V, 0.0f, OVERWRITE, f32_logits(a));
}

/* Recomputes, by the same ops, what the backward pass of the MLP reads and the forward pass did not keep. */
static void recompute_mlp(GPT *m, int l) {
    BlockParams *w = &m->params.block[l];
    BlockActs *s = &m->acts.block[l];
    const Recompute level = m->config.recompute;
    if (level == RECOMPUTE_BLOCK) block_forward(m, l, s->res1, ABSENT);
    if (level == RECOMPUTE_LAYERNORM)
        residual_layernorm_forward(ABSENT, s->ln2, s->ln2_mean, s->ln2_rstd, s->res2, ABSENT, w->ln2w, w->ln2b);
    if (level == RECOMPUTE_LAYERNORM && m->fp8) quantize(ABSENT, s->ln2t, s->ln2);
    if (level >= RECOMPUTE_GELU && m->fp8) quantize_gelu(ABSENT, s->gelut, s->fch);
    else if (level == RECOMPUTE_GELU || level == RECOMPUTE_LAYERNORM) gelu_forward(s->gelu, s->fch);
}

void gpt_backward(GPT *m, float dloss, Into into, GroupHook *ready, void *context) {
    Params *p = &m->params, *g = &m->grads;
    Acts *a = &m->acts;
    REQUIRE(m->fp8 || !a->q8.data, "model: a batch in bf16, want gpt_load of a sequence before gpt_backward");
    device_overlap_begin();
    embedding_sort(a->tokens, m->config.Vp);
    head_loss(a->losses, a->dlnf, g->lm_head, a->lnf, p->lm_head, a->targets, m->config.V, dloss, into, a->logits);
    layernorm_backward(a->dres, g->lnfw, g->lnfb, by_layernorm(m, g->block[m->config.L - 1].fcprojb), a->dlnf, a->res,
                       a->lnf_mean, a->lnf_rstd, p->lnfw, OVERWRITE, into);
    at_group(ready, context, m->config.L);
    for (int l = m->config.L - 1; l >= 0; l--) {
        BlockParams *w = &p->block[l], *dw = &g->block[l];
        BlockActs *s = &a->block[l];
        Tensor before = l > 0 ? g->block[l - 1].fcprojb : ABSENT;
        device_overlap_wait();                  /* the memory of dqkv and ln1 is reused */
        recompute_mlp(m, l);
        Tensor dmlp = drop(m, a->dbranch, a->dres, l, MLP_PROJECTION);
        linear_backward(m, s->dfch, dw->fcprojw, by_matmul(m, dw->fcprojb), dw->fcb, dmlp, LINEAR(gelu, s->fch, fcproj),
                        into);
        linear_backward(m, a->dbranch, dw->fcw, ABSENT, ABSENT, s->dfch, LINEAR(ln2, ABSENT, fc), into);
        layernorm_backward(a->dres, dw->ln2w, dw->ln2b, by_layernorm(m, dw->projb), a->dbranch, s->res2, s->ln2_mean,
                           s->ln2_rstd, w->ln2w, ACCUMULATE, into);
        device_overlap_wait();                  /* the memory of dfch and ln2 is reused */
        Tensor dproj = drop(m, a->dproj, a->dres, l, PROJECTION);
        linear_backward(m, a->dbranch, dw->projw, by_matmul(m, dw->projb), ABSENT, dproj, LINEAR(atty, ABSENT, proj),
                        into);
        self_attention_backward(m, l, s);
        if (m->config.recompute == RECOMPUTE_LAYERNORM)
            residual_layernorm_forward(ABSENT, s->ln1, s->ln1_mean, s->ln1_rstd, s->res1, ABSENT, w->ln1w, w->ln1b);
        if (m->config.recompute == RECOMPUTE_LAYERNORM && m->fp8) quantize(ABSENT, s->ln1t, s->ln1);
        device_overlap_wait();                  /* dprojw is computed from dres */
        linear_backward(m, a->dbranch, dw->qkvw, dw->qkvb, ABSENT, a->dqkv, LINEAR(ln1, ABSENT, qkv), into);
        layernorm_backward(a->dres, dw->ln1w, dw->ln1b, by_layernorm(m, before), a->dbranch, s->res1, s->ln1_mean,
                           s->ln1_rstd, w->ln1w, ACCUMULATE, into);
        at_group(ready, context, l);
    }
    /* a tied head has written dwte */
    if (m->config.untied && into == OVERWRITE) device_zero(g->wte.data, tensor_bytes(g->wte));
    drop(m, a->dres, a->dres, 0, EMBEDDING);
    embedding_backward(g->wte, g->wpe, a->dres, a->tokens, a->position, into);
    device_overlap_end();
    at_group(ready, context, FIRST_GROUP);
}

Tensor gpt_last_logits(GPT *m) {
    Tensor lnf = m->acts.lnf, logits = tensor_row_range(f32_logits(&m->acts), 0, lnf.dim[0]);
    Tensor last = tensor_row_range(lnf, lnf.dim[1] - 1, 1);
    last.dim[0] = lnf.dim[0];
    last.pitch = lnf.dim[1] * lnf.pitch;
    matmul_forward(logits, ABSENT, last, m->params.lm_head, ABSENT);
    return logits;
}

void gpt_next(GPT *m, Sampling sampling, const double *uniform, int32_t *next) {
    const int is_step = m->spec.position != NULL, B = m->cached;
    device_upload(m->acts.uniform.data, uniform, sizeof *uniform * (size_t)B);
    if (!is_step || device_graph_begin(&m->step, 1)) {
        device_freeze_weights(!m->before_group);       /* before_group may write weights */
        gpt_forward(m);
        sample_tokens(m->acts.next, gpt_last_logits(m), m->acts.uniform, m->config.V, sampling);
        device_freeze_weights(0);
    }
    if (is_step) device_graph_end(&m->step);
    device_download(next, m->acts.next.data, sizeof *next * (size_t)B);
}

void gpt_logits(GPT *m, int64_t token, float *logits) {
    Acts *a = &m->acts;
    Tensor row = tensor_of(a->logits.data, F32, 2, 1, m->config.Vp);
    matmul_forward(row, ABSENT, tensor_row_range(a->lnf, token, 1), m->params.lm_head, ABSENT);
    device_download(logits, row.data, (size_t)m->config.V * sizeof *logits);
}

int gpt_find_nonfinite(const GPT *m, char name[96]) {
    const struct { const char *what; const TensorTable *table; } lists[] = {
        { "parameter", comm_size > 1 ? &m->params.table : &m->master.table },
        { "activation", &m->acts.table }, { "gradient of", &m->grads.table } };
    for (int k = 0; k < 3; k++) {
        const TensorTable *table = lists[k].table;
        for (int i = 0; i < table->count; i++) {
            const TensorEntry *entry = &table->entry[k == 2 ? table->count - 1 - i : i];
            if (!entry->watched) continue;
            const TensorStats stats = tensor_stats(*entry->field);
            if (stats.nan_count + stats.inf_count == 0) continue;
            snprintf(name, 96, "%s %s", lists[k].what, entry->name);
            return 1;
        }
    }
    return 0;
}
