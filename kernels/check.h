/* kernels/check.h - Fail at once, in one line: what, got, want, and what to do. */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H
#include "tensor.h"

#define REQUIRE(condition, ...) do { if (!(condition)) fail(__VA_ARGS__); } while (0)

/* Prints "train_gpt: message" as one line on stderr (control characters become '?') and exits with 1. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Gets the message instead, for a program that uses the kernels as a library; it must not return (longjmp, exit). */
extern void (*fail_hook)(const char *message);

/* Runs f(argument), in which a fail() ends f alone, not the process: returns 1 then, with the message as one line. What
   f had allocated stays behind. Of this thread only, and may be nested. */
enum { FAIL_LENGTH = 2048 };
int fails(void (*f)(void *), void *argument, char message[FAIL_LENGTH]);

/* "matmul: weight is f32 (5,3), want f32 (5,4)". Compares data type and shape; an absent tensor fails. */
#define check_tensor(op, name, t, dtype, ndim, ...) \
    check_shape(op, name, t, dtype, ndim, (const int64_t[4]){__VA_ARGS__})
void check_shape(const char *op, const char *name, Tensor t, DType dtype, int ndim, const int64_t dim[4]);

/* "layernorm: x has pitch 10, want it packed (8)". */
void check_packed(const char *op, const char *name, Tensor t);

#endif
