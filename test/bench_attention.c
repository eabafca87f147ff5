/* test/bench_attention.c - Times every attention of the linked backend, forward and backward, on packed qkv: TFLOP/s by
   the usual count (forward 4 B NH T^2 HS, halved by causality; backward 2.5 times that), median of rounds. Inputs are
   random and rotate among sets that together exceed the L2 cache. Argument: the head size, 64 or 128. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <math.h>
#include "../kernels/attention.h"
#include "../kernels/check.h"
#include "../kernels/device.h"
#include "../llmc/random.h"

enum { SETS = 3, ROUNDS = 15 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Tensor random_bf16(int64_t B, int64_t T, int64_t C, int set) {
    Tensor t = tensor_of(NULL, BF16, 3, B, T, C);
    size_t bytes = tensor_bytes(t);
    uint16_t *host = malloc(bytes);
    #pragma omp parallel for
    for (int64_t i = 0; i < tensor_count(t); i++) {
        float x = (float)random_normal(1, RANDOM_TEST, (uint32_t)set, (uint64_t)i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    t.data = device_alloc(bytes, "a tensor");
    device_upload(t.data, host, bytes);
    free(host);
    return t;
}

int main(int argc, char **argv) {
    REQUIRE(argc <= 2, "usage: bench_attention [HEAD_SIZE]");
    int HS = argc > 1 ? atoi(argv[1]) : 64, NH = HS == 64 ? 12 : 16, tokens = HS == 64 ? 65536 : 32768, C = NH * HS;
    device_open((DeviceOptions){0});
    printf("%s, head size %d, %d heads, B*T = %d\n", device_info().name, HS, NH, tokens);
    Tensor qkv[SETS], out[SETS], dout[SETS], dqkv = random_bf16(1, tokens, 3 * C, 99);
    for (int s = 0; s < SETS; s++) {
        qkv[s] = random_bf16(1, tokens, 3 * C, s);
        dout[s] = random_bf16(1, tokens, C, 10 + s);
        out[s] = random_bf16(1, tokens, C, 20 + s);
    }
    for (int T = 512; T <= 16384; T *= 2) {
        AttentionSpec spec = { .B = tokens / T, .Tq = T, .Tk = T, .NH = NH, .HS = HS, .scale = 1.0f / sqrtf((float)HS), .dtype = BF16, .out_dtype = BF16 };
        for (int a = 0; attention_list[a]; a++) {
            const Attention *att = attention_list[a];
            if (att->refuse(&spec) || (T > 4096 && a > 1)) continue;
            void *state[SETS], *work = device_alloc(att->workspace_bytes(&spec) + 4, "workspace");
            Tensor q[SETS][3], dq[3], o[SETS], go[SETS];
            for (int s = 0; s < SETS; s++) {
                state[s] = device_alloc(att->state_bytes(&spec), "state");
                Tensor whole = tensor_of(qkv[s].data, BF16, 3, spec.B, T, 3 * C);
                for (int i = 0; i < 3; i++) q[s][i] = tensor_column_range(whole, (int64_t)i * C, C);
                o[s] = tensor_of(out[s].data, BF16, 3, spec.B, T, C);
                go[s] = tensor_of(dout[s].data, BF16, 3, spec.B, T, C);
            }
            for (int i = 0; i < 3; i++) dq[i] = tensor_column_range(tensor_of(dqkv.data, BF16, 3, spec.B, T, 3 * C), (int64_t)i * C, C);
            double ms[2][ROUNDS];
            for (int r = -2; r < ROUNDS; r++) {
                for (int pass = 0; pass < 2; pass++) {
                    device_wait();
                    double start = now();
                    for (int s = 0; s < SETS; s++)
                        if (pass == 0) att->forward(&spec, o[s], state[s], q[s][0], q[s][1], q[s][2], work);
                        else att->backward(&spec, dq[0], dq[1], dq[2], go[s], o[s], state[s], q[s][0], q[s][1], q[s][2], work);
                    device_wait();
                    if (r >= 0) ms[pass][r] = 1e3 * (now() - start) / SETS;
                }
            }
            double flop = 2.0 * spec.B * NH * (double)T * T * HS;
            for (int pass = 0; pass < 2; pass++) qsort(ms[pass], ROUNDS, sizeof(double), by_value);
            printf("T %5d  %-6s  forward %7.3f ms %6.1f TFLOP/s  backward %7.3f ms %6.1f TFLOP/s\n", T, att->name,
                   ms[0][ROUNDS / 2], flop / ms[0][ROUNDS / 2] * 1e-9, ms[1][ROUNDS / 2], 2.5 * flop / ms[1][ROUNDS / 2] * 1e-9);
            for (int s = 0; s < SETS; s++) device_free(state[s]);
            device_free(work);
        }
    }
    return 0;
}
