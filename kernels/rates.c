/* rates.c - How fast the device copies and multiplies, measured: the lower bounds of a profile. */
#include <math.h>
#include "device.h"
#include "gemm.h"
#include "normal.h"
#include "profile.h"
#include "update.h"

static void multiply(Tensor c, Tensor a) {
    const int64_t n = tensor_rows(a);
    gemm((Gemm){ .M = n, .N = n, .K = n, .dtype = a.dtype, .a = { a.data, n, ROW_MAJOR },
                 .b = { a.data, n, COLUMN_MAJOR }, .c = c.data, .c_dtype = c.dtype, .c_pitch = n });
}

/* Milliseconds per call on random numbers: a GPU multiplies zeros faster, with less power. */
static double call_ms(void (*call)(Tensor to, Tensor from), DType dtype, int64_t n) {
    enum { WARM_UP = 2, CALLS = 10 };
    static DeviceMark begin, end;
    const size_t bytes = (size_t)(n * n) * sizeof(float);
    void *memory = device_alloc(3 * bytes, "the matrices of a profile");
    const Tensor to = tensor_of(memory, dtype, 2, n, n), from = tensor_of((char *)memory + bytes, dtype, 2, n, n);
    const Tensor normal = tensor_of((char *)memory + 2 * bytes, F32, 2, n, n);
    fill_normal(normal, 0, 1, 1, 0, 0);
    tensor_convert(from, normal);
    for (int i = 0; i < WARM_UP + CALLS; i++) {
        if (i == WARM_UP) device_mark(&begin);
        call(to, from);
    }
    device_mark(&end);
    const double ms = device_mark_ms(&begin, &end) / CALLS;
    device_free(memory);
    return ms;
}

Rates rates_measure(DType dtype) {
    enum { COPIED = 6144 };         /* 144 MiB, more than any cache holds */
    Rates rates = { .bytes_per_ms = 2.0 * COPIED * COPIED * sizeof(float) / call_ms(tensor_convert, F32, COPIED) };
    double ms = 0;
    for (int64_t n = 512; n <= 8192 && ms < 2; n *= 2) {
        ms = call_ms(multiply, dtype, n);
        rates.flop_per_ms = fmax(rates.flop_per_ms, 2.0 * (double)(n * n * n) / ms);
    }
    return rates;
}
