/* example_attention.c - The attention without the trainer. Link it with libtrain_gpt_kernels.a of either
   backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "../../kernels/attention.h"
#include "../../kernels/check.h"
#include "../../kernels/device.h"

enum { T = 200, HALF = T / 2, NH = 3, HS = 64, C = NH * HS };
static float qkv[T][3 * C], dqkv[T][3 * C], out[T][C], merged[T][C], dout[T][C];

static void on_error(const char *message) { fprintf(stderr, "example: %s\n", message); exit(2); }
static Tensor columns(Tensor t, int which) { return tensor_column_range(t, which * C, C); }
static Tensor keys(Tensor t, int first, int count) {        /* a range of rows of one sequence */
    t.data = (float *)t.data + first * t.pitch;
    t.dim[1] = count;
    return t;
}
static Tensor on_device(int width) {
    return tensor_of(device_alloc(4 * T * (size_t)width, "a tensor"), F32, 3, 1, T, width);
}

int main(int argc, char **argv) {
    fail_hook = on_error;                           /* instead of exit(1) */
    device_open((DeviceOptions){0});                /* then device_use_stream(yours), if you have one */
    const char *name = argc > 1 ? argv[1] : "auto";
    AttentionSpec spec = { .B = 1, .Tq = T, .Tk = T, .NH = NH, .HS = HS, .causal = 1, .scale = 1 / sqrtf(HS) };
    const Attention *a = attention_pick(name, &spec);
    for (int i = 0; i < T * 3 * C; i++) (&qkv[0][0])[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < T * C; i++)     (&dout[0][0])[i] = (float)rand() / (float)RAND_MAX - 0.5f;

    Tensor x = on_device(3 * C), dx = on_device(3 * C), y = on_device(C), dy = on_device(C);
    Tensor lse = tensor_of(device_alloc(4 * NH * T, "lse"), F32, 3, 1, NH, T);
    device_upload(x.data, qkv, sizeof qkv);
    device_upload(dy.data, dout, sizeof dout);
    AttentionOperands o = {
        .q = columns(x, 0), .k = columns(x, 1), .v = columns(x, 2), .out = y, .lse = lse,
        .dq = columns(dx, 0), .dk = columns(dx, 1), .dv = columns(dx, 2), .dout = dy,
        .kept = device_alloc(a->kept_bytes(&spec), "kept"),
        .work = device_alloc(attention_workspace_bytes(a, &spec), "work")
    };
    attention_forward (a, &spec, &o);
    attention_backward(a, &spec, &o);
    device_download(out, y.data, sizeof out);
    device_download(dqkv, dx.data, sizeof dqkv);

    /* The same with the keys in two parts, as in a ring: each call sees its own, the second one merges its result into
       the out and lse of the first. Backward takes these out and lse for either part (kernels/attention.h). */
    AttentionSpec part = spec;
    part.Tk = HALF;
    for (int first = 0; first < T; first += HALF) {
        part.q0 = -first;                           /* row i sees key j of the part if first + j <= i */
        part.out_into = first ? ACCUMULATE : OVERWRITE;
        const Attention *b = attention_pick(name, &part);
        o.work = device_alloc(attention_workspace_bytes(b, &part), "work");
        o.kept = device_alloc(b->kept_bytes(&part), "kept");
        o.k = keys(columns(x, 1), first, HALF);
        o.v = keys(columns(x, 2), first, HALF);
        attention_forward(b, &part, &o);
    }
    device_download(merged, y.data, sizeof merged);

    /* the first token sees itself alone: out = v; rows of P sum to 1: so do dv and dout */
    double first = 0, sum = 0, parts = 0;
    for (int c = 0; c < C; c++) first = fmax(first, fabs(out[0][c] - qkv[0][2 * C + c]));
    for (int i = 0; i < T * C; i++) {
        sum += dqkv[i / C][2 * C + i % C] - dout[i / C][i % C];
        parts = fmax(parts, fabs(merged[i / C][i % C] - out[i / C][i % C]));
    }
    printf("%s on %s: out[0] - v[0] = %.0e, sum of dv - sum of dout = %.0e, out in parts - out = %.0e\n", a->name,
           backend_name, first, sum, parts);
    return first < 1e-6 && fabs(sum) < 1e-3 && parts < 1e-6 ? 0 : 1;
}
