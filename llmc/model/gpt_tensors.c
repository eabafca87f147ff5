#include "gpt_tensors.h"
#include "../../kernels/normal.h"
#include "../../kernels/muon.h"

/* ---- Sizes */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static const struct { const char *name, *gpt2_name; int L, NH, C, T; } named[] = {
    { "d2",  "",             2,  2,  128,  256 }, { "d4",  "",            4,  4,  256,  256 },
    { "d6",  "",             6,  6,  384,  256 }, { "d8",  "",            8,  8,  512,  256 },
    { "d12", "gpt2",        12, 12,  768, 1024 }, { "d24", "gpt2-medium", 24, 16, 1024, 1024 },
    { "d36", "gpt2-large",  36, 20, 1280, 1024 }, { "d48", "gpt2-xl",     48, 25, 1600, 1024 },
};

int gpt_named(const char *name, GPTConfig *config) {
    for (size_t i = 0; *name && i < sizeof named / sizeof *named; i++)
        if (!strcmp(name, named[i].name) || !strcmp(name, named[i].gpt2_name)) {
            *config = (GPTConfig){ .L = named[i].L, .NH = named[i].NH, .C = named[i].C, .T = named[i].T };
            return 1;
        }
    return 0;
}

int64_t gpt_parameter_count(const GPTConfig *config) {
    int64_t C = config->C, tables = config->untied ? 2 : 1;
    return tables * config->V * C + config->T * C + 2 * C + config->L * (12 * C * C + 13 * C);
}

double gpt_flops_per_token(const GPTConfig *config) {
    int64_t head = config->untied ? (int64_t)config->V * config->C : 0;
    return 6.0 * (double)(gpt_parameter_count(config) - head) + 12.0 * config->L * config->C * (double)config->T;
}

void gpt_check(GPTConfig *c) {
    const struct { const char *what; int value, max; } sizes[] = {
        { "layers", c->L, 1000 }, { "channels", c->C, 65536 }, { "heads", c->NH, c->C },
        { "tokens of context", c->T, 1 << 24 }, { "tokens in the vocabulary", c->V, 1 << 24 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        REQUIRE(sizes[i].value >= 1 && sizes[i].value <= sizes[i].max, "model: %d %s, want 1 .. %d", sizes[i].value,
                sizes[i].what, sizes[i].max);
    const char *refusal = device_refuse_channels(c->C);
    REQUIRE(!refusal, "--channels %d: %s", c->C, refusal);
    REQUIRE(c->C % c->NH == 0, "model: %d channels, want a multiple of the %d heads", c->C, c->NH);
    REQUIRE(c->C / c->NH <= HS_MAX, "model: a head size of %d, want at most %d", c->C / c->NH, HS_MAX);
    c->Vp = (c->V + 63) / 64 * 64;
}

static int sharing_ranks(const GPTConfig *c) { return c->context_parallel > 1 ? c->context_parallel : 1; }

RingSplit gpt_split(const GPTConfig *c) {
    const int size = sharing_ranks(c);
    return (RingSplit){ size, comm_rank % size, c->T };
}

int gpt_local_tokens(const GPTConfig *c) {
    const RingSplit split = gpt_split(c);
    return ring_tokens(&split, split.rank);
}

int gpt_groups(const GPTConfig *c) { return comm_size / sharing_ranks(c); }

/* ---- Tables of tensors */

/* Appends an entry named prefix + name; *entry.field = shape, its data is set by place. */
static void add_entry(TensorTable *table, const char *prefix, const char *name, Tensor shape, TensorEntry entry) {
    snprintf(entry.name, sizeof entry.name, "%s%s", prefix, name);
    entry.bytes = (size_t)(ceil_div(tensor_count(shape), 128) * 128) * dtype_bytes(shape.dtype);
    if (shape.dtype == E4M3 && entry.bytes) entry.bytes = (entry.bytes / 256 + 1) * 256;     /* and its max */
    entry.offset = table->bytes;
    *entry.field = shape;
    table->entry = host_grow(table->entry, (size_t)table->count, &table->room, sizeof entry, "a table of tensors");
    table->entry[table->count++] = entry;
    if (!entry.phases && !entry.same) table->bytes += entry.bytes;
}

/* Whether two entries have a common phase and overlap in memory. */
static int collides(const TensorEntry *a, const TensorEntry *b) {
    return (a->phases & b->phases) && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Places the entries with phases behind all others; two share memory only if they have no common phase. Returns the
   bytes of that memory. First fit, the last entry first: each moves up past those before it that it collides with.
   While they need more than the phase with the most bytes, the entry that ends last is the first one of another try
   (Joslin and Clements 1999, "Squeaky wheel optimization"): 124M at B = 64 needs 683 MiB, where the largest first need
   870. Models need up to 18 tries; a few stay 1 KiB above that phase. */
static size_t overlap_phases(TensorTable *table) {
    const size_t start = table->bytes;
    TensorEntry *end = table->entry + table->count;
    TensorEntry **shared = host_alloc((size_t)table->count * sizeof *shared, "a table of tensors");
    size_t phase_bytes[32] = {0}, max_bytes = 0;
    int count = 0, last = 0;
    for (TensorEntry *entry = end; entry-- > table->entry; ) {
        if (entry->phases) shared[count++] = entry;
        for (int k = 0; k < 32; k++)
            if (entry->phases >> k & 1 && (phase_bytes[k] += entry->bytes) > max_bytes) max_bytes = phase_bytes[k];
    }
    for (int tries = 0; tries < 32 && table->bytes != start + max_bytes; tries++) {
        TensorEntry *first = shared[last];
        memmove(shared + 1, shared, (size_t)last * sizeof *shared);
        shared[0] = first;
        table->bytes = start;
        for (int i = 0; i < count; i++) {
            TensorEntry *entry = shared[i];
            entry->offset = start;
            for (int j = 0; j < i; j++) {
                if (!collides(entry, shared[j])) continue;
                entry->offset = shared[j]->offset + shared[j]->bytes;
                j = -1;                         /* after a move it may collide with an earlier one */
            }
            if (entry->offset + entry->bytes <= table->bytes) continue;
            table->bytes = entry->offset + entry->bytes;
            last = i;
        }
    }
    for (TensorEntry *entry = table->entry; entry < end; entry++)
        if (entry->same) entry->offset = entry[-1].offset;
    free(shared);
    return table->bytes - start;
}

/* Sets the addresses of all tensors; empty ones are absent. */
static void place_table(TensorTable *table, void *memory) {
    table->memory = memory;
    for (int i = 0; i < table->count; i++) {
        const TensorEntry *entry = &table->entry[i];
        char *data = entry->bytes ? (char *)memory + entry->offset : NULL;
        entry->field->data = data;
        if (entry->field->dtype == E4M3 && data) entry->field->max = (float *)(data + entry->bytes - 128);
    }
}

Tensor tensor_table_flat(const TensorTable *table, DType dtype) {
    return tensor_of(table->memory, dtype, 1, (int64_t)(table->bytes / dtype_bytes(dtype)));
}

/* ---- Parameters: each X macro of gpt_tensors.h becomes entries */

#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[4]){__VA_ARGS__}

static void begin_group(Params *params, DType dtype) {
    const int64_t unit = 128 * comm_size, end = (int64_t)(params->table.bytes / dtype_bytes(dtype));
    const int64_t start = ceil_div(end, unit) * unit;
    params->table.bytes = (size_t)start * dtype_bytes(dtype);
    params->group_start[params->groups++] = start;
}

static void params_layout(Params *params, const GPTConfig *config, DType dtype) {
    int64_t C = config->C, T = config->T, Vp = config->Vp;
    const int blocks = config->optimizer == OPTIMIZER_ADAMW ? 1 : comm_size;
    size_t begin = 0;           /* the current block's */
    char prefix[40] = "";
    *params = (Params){ .block = host_alloc((size_t)config->L * sizeof *params->block, "the table of blocks"),
                        .group_start = host_alloc(((size_t)config->L + 3) * sizeof(int64_t), "the table of groups"),
                        .group_blocks = blocks };
#define ADD(member, name, shape, in_file, initial, decays, count) \
    add_entry(&params->table, prefix, name, tensor_packed(NULL, dtype, shape), \
              (TensorEntry){ .field = &p->member, .layout = in_file, .init = initial, .decay = decays, \
                             .matrices = count, .watched = 1 });
    Params *p = params;         /* p: the struct that has the member */
    begin_group(params, dtype);
    FIRST_PARAMS(ADD)
    for (int l = 0; l < config->L; l++) {
        BlockParams *p = &params->block[l];
        snprintf(prefix, sizeof prefix, "transformer.h.%d.", l);
        if (l % blocks == 0) begin_group(params, dtype);
        begin = params->table.bytes;
        BLOCK_PARAMS(ADD)
    }
    *prefix = '\0';
    /* all slices of the last group have the size of a block */
    params->table.bytes += (params->table.bytes - begin) * (size_t)((blocks - config->L % blocks) % blocks);
    begin_group(params, dtype);
    LAST_PARAMS(ADD)
    if (config->untied) { HEAD_PARAMS(ADD) }
#undef ADD
    begin_group(params, dtype);
    params->groups--;           /* the last start is the end */
}

Tensor params_group(const Params *params, int index, DType dtype) {
    const int64_t *start = params->group_start + index;
    char *memory = params->table.memory;
    return tensor_of(memory + (size_t)start[0] * dtype_bytes(dtype), dtype, 1, start[1] - start[0]);
}

void params_create(Params *params, const GPTConfig *config, DType dtype, void *memory, const char *what) {
    params_layout(params, config, dtype);
    if (!memory) memory = (comm_size > 1 ? comm_alloc : device_alloc)(params->table.bytes, what);
    place_table(&params->table, memory);
    if (!config->untied) params->lm_head = params->wte;
}

void params_free(Params *params) {
    comm_free(params->table.memory);
    free(params->table.entry);
    free(params->block);
    free(params->group_start);
    *params = (Params){0};
}

size_t gpt_param_bytes(const GPTConfig *config, DType dtype) {
    Params params;
    params_layout(&params, config, dtype);
    const size_t bytes = params.table.bytes;
    params_free(&params);
    return bytes;
}

/* c_fc, its next iterate and two products have at most 107 Mi elements: 12 blocks of 124M (C = 768), 4 of
   1558M (C = 1600). */
OptimizerMemory gpt_optimizer_memory(const GPTConfig *config) {
    const int64_t C = config->C, largest = (1 << 26) / (6 * C * C);
    const int blocks = (int)ceil_div(config->L, comm_size);
    Params params;
    params_layout(&params, config, F32);
    const size_t all = params.table.bytes / (size_t)comm_size;
    OptimizerMemory memory = { .m = all, .v = all };
    for (int i = 0; comm_size > 1 && i < params.groups; i++) {
        const int64_t count = params.group_start[i + 1] - params.group_start[i];
        const size_t bytes = comm_scratch_bytes((size_t)count * sizeof(float));
        if (bytes > memory.reduce) memory.reduce = bytes;
    }
    params_free(&params);
    if (config->optimizer == OPTIMIZER_ADAMW) return memory;
    memory.batch = largest < 1 ? 1 : largest < blocks ? (int)largest : blocks;
    memory.v -= (size_t)(blocks * 12 * C * C) * sizeof(float);
    memory.scratch = muon_scratch_bytes(4 * C, C, memory.batch);
    return memory;
}

/* ---- Activations */

/* The phases of a micro-step, in the order of time. A block goes through QKV, ATTENTION and MLP; in the backward pass
   through RECOMPUTATION (its forward pass, with RECOMPUTE_BLOCK), D_MLP, D_ATTENTION and D_QKV. */
enum {
    QKV           = 1 << 0,   /* ln1 and qkv */
    ATTENTION     = 1 << 1,   /* with its projection */
    MLP           = 1 << 2,   /* with ln2 */
    FINAL         = 1 << 3,   /* lnf */
    HEAD          = 1 << 4,   /* head_loss */
    D_FINAL       = 1 << 5,
    RECOMPUTATION = 1 << 6,
    D_MLP         = 1 << 7,
    D_ATTENTION   = 1 << 8,
    D_QKV         = 1 << 9,
    FORWARD       = QKV | ATTENTION | MLP | FINAL | HEAD,
    ALL           = (1 << 10) - 1,
    KEPT          = 0,        /* memory of its own */
    SAME          = 1 << 10
};
enum { NEVER = RECOMPUTE_BLOCK + 1 };

static int is_training(const GPT *m) { return m->purpose == TRAIN && !m->cached; }

#define IN_BF16(dropped) (m->config.matmul_dtype == E4M3 ? RECOMPUTE_NONE : (dropped))

static int is_shared(const GPT *m, int dropped) {
    return !is_training(m) || (int)m->config.recompute >= dropped;
}

/* Phases of a tensor that the blocks share: what RECOMPUTATION writes is kept until the phase that reads it. */
static unsigned block_phases(const GPT *m, unsigned phases) {
    if (m->config.recompute < RECOMPUTE_BLOCK || phases == SAME) return phases;
    if (phases & D_QKV) phases |= D_ATTENTION;
    if (phases & D_ATTENTION) phases |= D_MLP;
    return phases & D_MLP ? phases | RECOMPUTATION : phases;
}

static void add_act(GPT *m, Tensor *field, const char *prefix, const char *name, Tensor shape, unsigned phases) {
    TensorTable *table = &m->acts.table;
    if (!is_training(m) && phases != KEPT && !(phases &= FORWARD)) return;
    if (phases == SAME) table->entry[table->count - 1].watched = 0;        /* its value is overwritten */
    add_entry(table, prefix, name, shape, (TensorEntry){
        .field = field, .same = phases == SAME,
        .watched = phases == KEPT && shape.dtype != I32 && shape.dtype != E4M3 && tensor_count(shape),
        .phases = phases == SAME ? 0 : phases });
}

static int64_t words_of(size_t bytes) { return ceil_div((int64_t)bytes, 4); }

/* Rows of logits in a chunk of the head: the fewest chunks of up to 512 MiB, since each reads and writes all of dwte
   (309 MB at 124M), equal in size, in whole tiles of a GEMM. For GPT-2's vocabulary in bf16, 65536 rows are 12 chunks
   of 5120 and one of 4096. At least two rows a sequence: in bf16 they hold the f32 logits of its last token. A smaller
   batch can want a larger chunk, 5120 rows one of 5120 where 6144 have two of 3072. */
static int64_t head_chunk(const GPTConfig *config, int B, int T) {
    const int64_t rows = (int64_t)B * T, tile = 128, row_bytes = config->Vp * (int64_t)dtype_bytes(config->dtype);
    int64_t max = (INT64_C(512) << 20) / row_bytes / tile * tile;
    if (max < tile) max = tile;
    const int64_t chunk = ceil_div(ceil_div(rows, ceil_div(rows, max)), tile) * tile;
    const int64_t min = 2 * (int64_t)B, fitted = chunk < rows ? chunk : rows;
    return fitted < min ? min : fitted;
}

/* Chooses the attention and sets the shapes of the activations, without addresses, for B sequences of T tokens. With a
   cache they are at positions first and up, and the caches lie in front, where T does not move them. A single token
   reads its position on the device: the calls of a step then are the same for every token. Returns the bytes of the
   memory that blocks and phases share. */
static size_t acts_layout(GPT *m, int batch, int tokens, int first) {
    const GPTConfig *config = &m->config;
    int64_t B = batch, T = tokens, NH = config->NH, C = config->C, Vp = config->Vp;
    int HS = config->C / config->NH;
    const int step = m->cached && tokens == 1, from_cache = step || first > 0;
    const float rate = is_training(m) ? config->dropout : 0;
    static const int32_t anywhere;          /* the choice only depends on there being a position */
    m->spec = (AttentionSpec){ .B = batch, .Tq = tokens, .Tk = from_cache ? m->context : tokens, .NH = config->NH,
                               .HS = HS, .causal = 1, .q0 = step ? 0 : first, .position = step ? &anywhere : NULL,
                               .scale = 1.0f / sqrtf((float)HS), .dtype = config->dtype, .out_dtype = config->dtype,
                               .deterministic = config->deterministic, .dq_into = OVERWRITE, .dkv_into = OVERWRITE,
                               .dropout.rate = rate };
    m->attention = attention_pick(m->attention_name, &m->spec);
    m->ring = (Ring){0};
    if (!m->cached && sharing_ranks(config) > 1) {
        RingSplit split = gpt_split(config);
        split.T = tokens * split.size;
        m->ring = ring_create(split, m->attention_name, m->spec);
        const char *refusal = ring_refuse(&m->ring);
        REQUIRE(!refusal, "--context-parallel %d: %s", split.size, refusal);
    }

    int64_t chunk = m->cached ? 2 * B : head_chunk(config, batch, tokens);      /* 2: logits of the last tokens only */
    int64_t kept = words_of(m->attention->kept_bytes(&m->spec));
    int64_t work = words_of(m->ring.split.size ? ring_workspace_bytes(&m->ring)
                                               : attention_workspace_bytes(m->attention, &m->spec));
    int64_t word = rate > 0 ? 2 : 0, samples = m->cached, positions = m->cached ? 1 : m->ring.split.size ? tokens : 0;
    const int64_t is_fp8 = is_training(m) && config->matmul_dtype == E4M3, fp8 = is_fp8 ? B * T : 0, two = 2 * is_fp8;
    const DType ACT = config->dtype;
    char prefix[40] = "";
    Acts *model = &m->acts;
    if (!model->block) model->block = host_alloc((size_t)config->L * sizeof *model->block, "the table of blocks");
    model->table.bytes = 0;
    model->table.count = 0;
    for (int l = 0; l < config->L && m->cached; l++)
        add_entry(&model->table, prefix, "cache", tensor_of(NULL, ACT, 3, m->cached, m->context, 2 * C),
                  (TensorEntry){ .field = &model->block[l].cache });
#define ADD(field, shape, dtype, dropped, phases) \
    if (l == 0 || !is_shared(m, dropped)) \
        add_act(m, &a->field, prefix, #field, tensor_packed(NULL, dtype, shape), \
                is_shared(m, dropped) ? block_phases(m, phases) : (phases) & SAME);
    for (int l = 0; l < config->L; l++) {                   /* block 0 has the tensors that all blocks share */
        BlockActs *a = &model->block[l];
        snprintf(prefix, sizeof prefix, "h.%d.", l);
        BLOCK_ACTS(ADD)
    }
#undef ADD
#define ADD(field, shape, dtype, phases) \
    add_act(m, &model->field, "", #field, tensor_packed(NULL, dtype, shape), phases);
    MODEL_ACTS(ADD)
#undef ADD
    return overlap_phases(&model->table);
}

/* The largest layout: a batch, or the windows of generation, in training of one sample. Attention of up to 8 queries
   over a cache can need more scratch than that of more. The last layout stays: the batch, or the longest window. */
static ActPlan acts_plan(GPT *m, int B, int T) {
    const int room = m->purpose == GENERATE ? T : m->purpose == TRAIN ? m->config.cache_tokens : 0;
    const int windows[] = { 1, room > 8 ? 8 : room > 1 ? room - 1 : 1, room, T };
    ActPlan plan = {0};
    m->context = room;
    for (int i = room ? 0 : 3; i < (m->purpose == GENERATE ? 3 : 4); i++) {
        m->cached = i == 3 ? 0 : m->purpose == TRAIN ? 1 : B;
        plan.workspace = acts_layout(m, i == 3 ? B : m->cached, windows[i], i == 1 ? room - windows[i] : 0);
        if (m->acts.table.bytes > plan.bytes) plan.bytes = m->acts.table.bytes;
    }
    plan.attention = m->attention->name;
    return plan;
}

ActPlan gpt_act_plan(const GPTConfig *config, const char *attention, int B, int T, Purpose purpose) {
    GPT m = { .config = *config, .purpose = purpose, .attention_name = attention };
    const ActPlan plan = acts_plan(&m, B, T);
    free(m.acts.table.entry);
    free(m.acts.block);
    return plan;
}

/* ---- Creation */

void gpt_create(GPT *m, GPTConfig config, const char *attention, int B, int T, Purpose purpose) {
    gpt_check(&config);
    REQUIRE(B >= 1 && T >= 1 && T <= config.T,
            "model: a batch of %d x %d tokens, want at least 1 and at most the context %d", B, T, config.T);
    REQUIRE(config.matmul_dtype != E4M3 || purpose != TRAIN || (config.C % 16 == 0 && (int64_t)B * T % 16 == 0),
            "--matmul-dtype fp8: %d channels, micro-batches of %d x %d tokens: want multiples of 16", config.C, B, T);
    *m = (GPT){ .config = config, .purpose = purpose, .attention_name = attention };
    params_create(&m->params, &config, config.dtype, NULL, "the parameters");
    if (purpose == TRAIN) params_create(&m->grads, &config, F32, NULL, "the gradients");
    void *shared = comm_size > 1 ? m->grads.table.memory : NULL;
    if (config.dtype == F32) m->master = m->params;
    else                     params_create(&m->master, &config, F32, shared, "the parameters in f32");
    m->act_bytes = acts_plan(m, B, T).bytes;
    m->acts.table.memory = device_alloc(m->act_bytes, "the activations");
    if (purpose == GENERATE) gpt_set_cache(m, B, T);
    else                     gpt_set_batch(m, B, T);
}

/* The same shapes have the same addresses, which CUDA graphs record. */
static void set_shapes(GPT *m, int B, int T, int first) {
    TensorTable *table = &m->acts.table;
    REQUIRE(T <= m->config.T, "model: a batch of %d x %d tokens, want at most the context %d", B, T, m->config.T);
    acts_layout(m, B, T, first);
    REQUIRE(table->bytes <= m->act_bytes, "model: a batch of %d x %d tokens needs %zu bytes, %zu are allocated", B, T,
            table->bytes, m->act_bytes);
    place_table(table, table->memory);
    if (m->spec.position) m->spec.position = m->acts.position.data;
    m->acts.dres.max = m->acts.dqkv.max = m->acts.dout8t.max;
    for (int l = 0; l < m->config.L; l++) {
        BlockActs *a = &m->acts.block[l];
#define SHARE(field, shape, dtype, dropped, phases) \
        if (is_shared(m, dropped)) a->field = m->acts.block->field;
        BLOCK_ACTS(SHARE)
#undef SHARE
        a->ln1.max = a->ln1t.max;           /* for quantize, by layernorm and the like */
        a->ln2.max = a->ln2t.max;
        a->dfch.max = m->acts.dout8t.max;
        a->kv = m->spec.Tk == T ? tensor_column_range(a->qkv, m->config.C, 2 * m->config.C) : a->cache;
    }
}

void gpt_set_batch(GPT *m, int B, int T) {
    if (!m->cached && m->acts.block[0].kv.data && m->spec.B == B && m->spec.Tq == T) return;
    m->cached = 0;
    set_shapes(m, B, T, 0);
    const RingSplit *split = &m->ring.split;
    if (!split->size) return;
    int32_t *all = host_alloc((size_t)split->T * 2 * sizeof *all, "positions"), *local = all + split->T;
    for (int t = 0; t < split->T; t++) all[t] = t;
    ring_copy_local(split, local, all);
    device_upload(m->acts.position.data, local, tensor_bytes(m->acts.position));
    free(all);
}

void gpt_set_cache(GPT *m, int B, int context) {
    REQUIRE(context >= 1 && context <= m->config.T, "model: a cache of %d tokens, want 1 .. %d, the context", context,
            m->config.T);
    m->cached = B;
    m->context = context;
    device_graph_free(&m->step);
    m->step = (DeviceGraph){0};
    set_shapes(m, B, 1, 0);
    for (int l = 0; l < m->config.L; l++)
        device_zero(m->acts.block[l].cache.data, tensor_bytes(m->acts.block[l].cache));
}

void gpt_set_window(GPT *m, int first, int T) {
    const int32_t position = first;
    REQUIRE(m->cached && first >= 0 && T >= 1 && first + T <= m->context,
            "model: tokens %d .. %d of a cache of %d x %d", first, first + T - 1, m->cached, m->context);
    if (T > 1 || m->spec.Tq > 1 || !m->spec.position) set_shapes(m, m->cached, T, first);
    device_upload(m->acts.position.data, &position, sizeof position);
}

/* Random numbers are indexed in the order of memory, so an element is the same for any padding of the vocabulary. The
   padding is zero. */
void gpt_init(GPT *m, uint64_t seed) {
    const double deviations[] = { [INIT_NORMAL] = 0.02, [INIT_RESIDUAL] = 0.02 / sqrt(2.0 * m->config.L) };
    for (int i = 0; i < m->master.table.count; i++) {
        const TensorEntry *entry = &m->master.table.entry[i];
        const Tensor t = *entry->field, rows = entry->layout == VOCABULARY ? tensor_row_range(t, 0, m->config.V) : t;
        device_zero(t.data, tensor_bytes(t));
        if (entry->init == INIT_ZERO) continue;
        fill_normal(rows, entry->init == INIT_ONE, deviations[entry->init], seed, (uint32_t)i, RANDOM_INIT);
    }
    gpt_cast_params(m);
}

void gpt_perturb(GPT *m) {
    const int is_f32 = m->config.dtype == F32;
    const uint32_t ulp = is_f32 ? 1 : 1 << 16;        /* BF16 is the upper half of F32 */
    for (int i = 0; i < m->master.table.count; i++) {
        const Tensor t = *m->master.table.entry[i].field;
        const size_t bytes = tensor_bytes(t);
        uint32_t *bits = host_alloc(bytes, "weights to perturb");
        device_download(bits, t.data, bytes);
        for (size_t k = 0; k < bytes / 4; k++)
            if ((bits[k] & INT32_MAX) >= ulp) bits[k] += is_f32 || k % 2 ? ulp : -ulp;
        device_upload(t.data, bits, bytes);
        free(bits);
    }
    gpt_cast_params(m);
}

void gpt_cast_params(GPT *m) {
    if (m->config.dtype != F32)
        tensor_convert(tensor_table_flat(&m->params.table, m->config.dtype), tensor_table_flat(&m->master.table, F32));
}
