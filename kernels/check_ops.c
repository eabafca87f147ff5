#include "check_ops.h"
#include <string.h>
#include "device.h"

void check_shape(const char *op, const char *name, Tensor t, DType dtype, int ndim, const int64_t dim[4]) {
    Tensor want = tensor_packed(NULL, dtype, ndim, dim);
    int same = t.data && t.dtype == dtype && t.ndim == ndim;
    for (int i = 0; i < ndim && same; i++) same = t.dim[i] == dim[i];
    if (same) return;
    char got_shape[80], want_shape[80];
    if (!t.data) fail("%s: %s is absent, want %s %s", op, name, dtype_name(dtype), tensor_shape(want, want_shape));
    fail("%s: %s is %s %s, want %s %s", op, name, dtype_name(t.dtype), tensor_shape(t, got_shape),
         dtype_name(dtype), tensor_shape(want, want_shape));
}

void check_like(const char *op, const char *name, Tensor t, DType dtype, Tensor like, int64_t columns) {
    int64_t dim[4] = { like.dim[0], like.dim[1], like.dim[2], like.dim[3] };
    dim[like.ndim - 1] = columns;
    check_shape(op, name, t, dtype, like.ndim, dim);
}

void check_packed(const char *op, const char *name, Tensor t) {
    char shape[80];
    REQUIRE(tensor_is_packed(t), "%s: %s %s has pitch %lld, want it packed", op, name, tensor_shape(t, shape),
            (long long)t.pitch);
}

/* Packed, of the type and shape of like. */
static void check_same(const char *op, const char *name, Tensor t, Tensor like) {
    check_like(op, name, t, like.dtype, like, tensor_columns(like));
    check_packed(op, name, t);
}

void check_per_row(const char *op, const char *name, Tensor t, DType dtype, Tensor like) {
    check_shape(op, name, t, dtype, like.ndim - 1, like.dim);
    check_packed(op, name, t);
}

void check_float(const char *op, const char *name, Tensor t, int min_ndim) {
    char shape[80];
    REQUIRE(t.data && t.ndim >= min_ndim, "%s: %s %s is absent or has too few dimensions, want %d or more", op, name,
            tensor_shape(t, shape), min_ndim);
    REQUIRE(t.dtype == F32 || t.dtype == BF16, "%s: %s is %s, want f32 or bf16", op, name, dtype_name(t.dtype));
    const char *refusal = device_refuse_dtype(t.dtype);
    REQUIRE(!refusal, "%s: %s is %s: %s", op, name, dtype_name(t.dtype), refusal);
}

void check_e4m3(const char *op, const char *name, Tensor t, int64_t rows, int64_t columns) {
    const char *refusal = device_refuse_dtype(E4M3);
    REQUIRE(!refusal, "%s: %s is e4m3: %s", op, name, refusal);
    check_tensor(op, name, tensor_flat(t), E4M3, 2, rows, columns);
    check_packed(op, name, t);
    REQUIRE(rows % 16 == 0 && columns % 16 == 0, "%s: %s is e4m3 (%lld,%lld), want multiples of 16", op, name,
            (long long)rows, (long long)columns);
    REQUIRE(t.max && ((uintptr_t)t.data | (uintptr_t)t.max) % 16 == 0,
            "%s: %s at %p with max at %p, want both, on 16 bytes", op, name, t.data, (void *)t.max);
}

void check_vocabulary(const char *op, int V, int64_t Vp) {
    REQUIRE(V >= 1 && V <= Vp, "%s: V is %d, want 1 .. %lld", op, V, (long long)Vp);
}

void check_embedding(const char *op, Tensor x, Tensor tokens, Tensor wte, Tensor wpe, Tensor position) {
    const int backward = strstr(op, "backward") != NULL;        /* x, wte and wpe are gradients then */
    check_float(op, "x", x, 3);
    int64_t C = tensor_columns(x);
    check_packed(op, "x", x);
    check_per_row(op, "tokens", tokens, I32, x);
    check_float(op, "wte", wte, 2);
    check_float(op, "wpe", wpe, 2);
    check_tensor(op, "wte", wte, backward ? F32 : x.dtype, 2, wte.dim[0], C);
    check_tensor(op, "wpe", wpe, wte.dtype, 2, wpe.dim[0], C);
    REQUIRE(wpe.dim[0] >= x.dim[1], "%s: %lld positions, want at most %lld, the rows of wpe", op, (long long)x.dim[1],
            (long long)wpe.dim[0]);
    if (position.data) check_tensor(op, "position", position, I32, 1, !backward && position.dim[0] == 1 ? 1 : x.dim[1]);
    if (position.data && backward) check_packed(op, "wpe", wpe);
}

void check_cache_append(Tensor cache, Tensor rows, Tensor position) {
    const char *op = "cache";
    check_float(op, "rows", rows, 3);
    check_float(op, "cache", cache, 3);
    check_tensor(op, "cache", cache, rows.dtype, 3, rows.dim[0], cache.dim[1], rows.dim[2]);
    check_tensor(op, "position", position, I32, 1, 1);
    REQUIRE(rows.dim[1] <= cache.dim[1], "cache: %lld rows, want at most %lld", (long long)rows.dim[1],
            (long long)cache.dim[1]);
}

void check_residual_layernorm(Tensor sum, Tensor normed, Tensor mean, Tensor rstd,
                              Tensor x, Tensor branch, Tensor weight, Tensor bias) {
    const char *op = "layernorm";
    check_float(op, "x", x, 2);
    int64_t C = tensor_columns(x);
    check_packed(op, "x", x);
    check_same(op, "normed", normed, x);
    check_per_row(op, "mean", mean, F32, x);
    check_per_row(op, "rstd", rstd, F32, x);
    check_tensor(op, "weight", weight, x.dtype, 1, C);
    check_tensor(op, "bias", bias, x.dtype, 1, C);
    if (branch.data) {
        check_same(op, "branch", branch, x);
        check_same(op, "sum", sum, x);
    }
}

void check_layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dx_sum, Tensor dnormed,
                              Tensor x, Tensor mean, Tensor rstd, Tensor weight) {
    const char *op = "layernorm backward";
    check_float(op, "x", x, 2);
    int64_t C = tensor_columns(x);
    check_packed(op, "x", x);
    check_same(op, "dx", dx, x);
    check_same(op, "dnormed", dnormed, x);
    check_per_row(op, "mean", mean, F32, x);
    check_per_row(op, "rstd", rstd, F32, x);
    check_tensor(op, "weight", weight, x.dtype, 1, C);
    check_tensor(op, "dweight", dweight, F32, 1, C);
    check_tensor(op, "dbias", dbias, F32, 1, C);
    if (dx_sum.data) check_tensor(op, "dx_sum", dx_sum, F32, 1, C);
}

void check_gelu(const char *op, Tensor y, Tensor x) {
    check_float(op, "x", x, 1);
    check_packed(op, "x", x);
    check_same(op, "y", y, x);
}

void check_gelu_backward(Tensor dx, Tensor dy, Tensor x, Tensor dx_sum) {
    const char *op = "gelu backward";
    check_gelu(op, dx, x);
    check_gelu(op, dy, x);
    if (dx_sum.data) check_tensor(op, "dx_sum", dx_sum, F32, 1, tensor_columns(x));
}

void check_quantize(Tensor q, Tensor qt, Tensor x) {
    const char *op = "quantize";
    const int64_t rows = tensor_rows(x), columns = tensor_columns(x);
    REQUIRE(q.data || qt.data, "%s: q and qt are absent, want at least one", op);
    if (q.data) check_e4m3(op, "q", q, rows, columns);
    if (qt.data) check_e4m3(op, "qt", qt, columns, rows);
    REQUIRE(!q.data || !qt.data || q.max == qt.max, "%s: q and qt have two max, want one", op);
    check_like(op, "x", x, BF16, x, columns);
    check_packed(op, "x", x);
}

void check_dropout(Tensor out, Tensor x, float rate) {
    const char *op = "dropout";
    check_float(op, "x", x, 3);
    check_tensor(op, "x", x, x.dtype, 3, x.dim[0], x.dim[1], x.dim[2]);
    check_packed(op, "x", x);
    check_same(op, "out", out, x);
    REQUIRE(rate >= 0 && rate <= 0.95f, "%s: a rate of %g, want 0 .. 0.95", op, rate);
}

void check_softmax_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets, int V) {
    const char *op = "softmax";
    check_float(op, "logits", logits, 2);
    check_tensor(op, "logits", logits, logits.dtype, 2, logits.dim[0], logits.dim[1]);
    check_per_row(op, "losses", losses, F32, logits);
    check_per_row(op, "targets", targets, I32, logits);
    check_vocabulary(op, V, logits.dim[1]);
    if (!dlogits.data) return;
    check_like(op, "dlogits", dlogits, logits.dtype, logits, logits.dim[1]);
    REQUIRE(dlogits.data == logits.data && dlogits.pitch == logits.pitch,
            "softmax: dlogits is other memory than logits, want the same");
}

void check_sample_tokens(Tensor tokens, Tensor logits, Tensor uniform, int V) {
    const char *op = "sample";
    check_float(op, "logits", logits, 2);
    check_tensor(op, "logits", logits, F32, 2, logits.dim[0], logits.dim[1]);
    check_tensor(op, "tokens", tokens, I32, 1, logits.dim[0]);
    check_tensor(op, "uniform", uniform, F64, 1, logits.dim[0]);
    check_vocabulary(op, V, logits.dim[1]);
}

void check_update(const char *op, Tensor param, Tensor param_bf16, Tensor m, Tensor grad, int64_t rows) {
    check_float(op, "param", param, 1);
    const int64_t columns = tensor_columns(param);
    check_like(op, "param", param, F32, param, columns);
    check_like(op, "m", m, F32, param, columns);
    check_like(op, "grad", grad, F32, param, columns);
    if (param_bf16.data) check_like(op, "param_bf16", param_bf16, BF16, param, columns);
    if (param_bf16.data) check_float(op, "param_bf16", param_bf16, 1);
    REQUIRE(rows >= 1 && columns % rows == 0, "%s: want rows that divide the elements of a matrix", op);
}

void check_convert(const char *op, Tensor to, Tensor from) {
    check_float(op, "from", from, 1);
    check_float(op, "to", to, 1);
    if (tensor_columns(to) == tensor_columns(from) && tensor_rows(to) == tensor_rows(from)) return;
    check_packed(op, "from", from);
    check_packed(op, "to", to);
    REQUIRE(tensor_count(to) == tensor_count(from), "%s: to has %lld elements, want %lld as in from", op,
            (long long)tensor_count(to), (long long)tensor_count(from));
}

void check_add(Tensor to, Tensor sum, Tensor from) {
    check_convert("add", to, from);
    check_convert("add", to, sum);
    REQUIRE(sum.dtype == F32 || (to.dtype == BF16 && from.dtype == BF16), "add: sum is %s, want f32",
            dtype_name(sum.dtype));
}

void check_fill(Tensor t) {
    check_float("fill", "t", t, 1);
    check_packed("fill", "t", t);
    check_like("fill", "t", t, F32, t, tensor_columns(t));
}

void check_attention_merge(Tensor merged, Tensor lse, Tensor out, Tensor part, Tensor part_lse) {
    REQUIRE(lse.ndim == 3 && lse.dim[1] >= 1 && out.ndim == 3 && out.dim[2] % lse.dim[1] == 0,
            "attention_merge: want out (B,T,NH*HS) and lse (B,NH,T), got %d and %d dimensions, %lld columns and "
            "%lld heads", out.ndim, lse.ndim, (long long)out.dim[2], (long long)lse.dim[1]);
    const char *op = "attention_merge";
    const DType narrow = merged.dtype == BF16 ? out.dtype : F32;
    check_float(op, "merged", merged, 3);
    check_tensor(op, "merged", merged, merged.dtype, 3, lse.dim[0], lse.dim[2], out.dim[2]);
    check_like(op, "out", out, narrow, merged, out.dim[2]);
    check_like(op, "part", part, F32, merged, out.dim[2]);
    check_like(op, "lse", lse, F32, lse, lse.dim[2]);
    check_like(op, "part_lse", part_lse, F32, lse, lse.dim[2]);
}
