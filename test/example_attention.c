/* test/example_attention.c - The attention without the trainer, held against plain loops. It needs the headers of
   kernels/ and libtrain_gpt_kernels.a of either backend. Who has a CUDA stream gives it to device_use_stream(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "../kernels/attention.h"
#include "../kernels/check.h"
#include "../kernels/device.h"

enum { T = 200, NH = 3, HS = 64, C = NH * HS };
static float qkv[T][3][NH][HS], dqkv[T][3][NH][HS], out[T][NH][HS], dout[T][NH][HS];

static void on_error(const char *message) { fprintf(stderr, "example: %s\n", message); exit(2); }
static Tensor columns(Tensor t, int which) { return tensor_column_range(t, which * C, C); }

static Tensor to_device(float *host, int width, const char *name) {
    Tensor t = tensor_of(device_alloc(sizeof(float) * (size_t)(T * width), name), F32, 3, 1, T, width);
    device_upload(t.data, host, tensor_bytes(t));
    return t;
}

int main(int argc, char **argv) {
    fail_hook = on_error;
    device_open((DeviceOptions){0});
    AttentionSpec spec = { .B = 1, .Tq = T, .Tk = T, .NH = NH, .HS = HS, .scale = 1 / sqrtf(HS), .dtype = F32 };
    const Attention *attention = attention_pick(argc > 1 ? argv[1] : "auto", &spec);
    for (int i = 0; i < T * 3 * C; i++) (&qkv[0][0][0][0])[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < T * C; i++)     (&dout[0][0][0])[i]   = (float)rand() / (float)RAND_MAX - 0.5f;

    Tensor x = to_device(&qkv[0][0][0][0], 3 * C, "qkv"), dx = to_device(&dqkv[0][0][0][0], 3 * C, "dqkv");
    Tensor y = to_device(&out[0][0][0], C, "out"), dy = to_device(&dout[0][0][0], C, "dout");
    void *state = device_alloc(attention->state_bytes(&spec), "state");
    void *work = device_alloc(attention->workspace_bytes(&spec), "workspace");
    attention->forward(&spec, y, state, columns(x, 0), columns(x, 1), columns(x, 2), work);
    attention->backward(&spec, columns(dx, 0), columns(dx, 1), columns(dx, 2), dy,
                        y, state, columns(x, 0), columns(x, 1), columns(x, 2), work);
    device_download(out, y.data, tensor_bytes(y));
    device_download(dqkv, dx.data, tensor_bytes(dx));

    void *memory[] = { x.data, dx.data, y.data, dy.data, state, work };
    for (int i = 0; i < 6; i++) device_free(memory[i]);

    double out_error = 0, dv_error = 0;     /* of the last token; of the sum, which is dout's: rows of P sum to 1 */
    for (int h = 0; h < NH; h++) {
        double p[T], total = 0;
        for (int j = 0; j < T; j++) {
            double score = 0;
            for (int d = 0; d < HS; d++) score += (double)qkv[T - 1][0][h][d] * qkv[j][1][h][d];
            total += p[j] = exp(spec.scale * score);
        }
        for (int d = 0; d < HS; d++) {
            double want = 0, left = 0;
            for (int j = 0; j < T; j++) want += p[j] / total * qkv[j][2][h][d];
            for (int j = 0; j < T; j++) left += (double)dqkv[j][2][h][d] - dout[j][h][d];
            out_error += fabs(out[T - 1][h][d] - want) / C;
            dv_error += fabs(left) / C;
        }
    }
    printf("%s on %s: %zu bytes of state, %zu of workspace\n", attention->name, backend_name,
           attention->state_bytes(&spec), attention->workspace_bytes(&spec));
    printf("out %9.6f, mean error %.1e\n", out[T - 1][0][0], out_error);
    printf("dq  %9.6f, sum of dv off by %.1e\n", dqkv[T - 1][0][0][0], dv_error);
    return out_error < 1e-6 && dv_error < 1e-4 ? 0 : 1;
}
