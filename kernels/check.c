#include "check.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void (*fail_hook)(const char *message);

typedef struct { jmp_buf place; char *message; } Catch;
static _Thread_local Catch *catching;      /* where fail() goes in this thread; NULL = it ends the process */

int fails(void (*f)(void *), void *argument, char message[FAIL_LENGTH]) {
    Catch *outer = catching, inner = { .message = message };
    catching = &inner;
    int failed = setjmp(inner.place);
    if (!failed) f(argument);
    catching = outer;
    return failed;
}

void fail(const char *format, ...) {
    char message[FAIL_LENGTH];
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(message, sizeof message, format, arguments);
    char *whole;
    if (length >= (int)sizeof message && vasprintf(&whole, format, again) > 0) {   /* what is wrong stands at the end */
        snprintf(message, sizeof message, "%.1000s ... %s", whole, whole + length - 1000);
        free(whole);
    }
    va_end(again);
    va_end(arguments);
    /* names and keys of strangers' files may hold anything, and be cut in the middle of a character: stay on one line
       of UTF-8, and send no order to the terminal, which takes U+0080 to U+009F for orders, too */
    for (unsigned char *c = (unsigned char *)message; *c; c++) {
        int length = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4, whole = length > 0;
        for (int i = 1; i < length && whole; i++) whole = (c[i] & 0xc0) == 0x80;
        if (!whole || *c < 32 || *c == 127 || (*c == 0xc2 && c[1] < 0xa0)) *c = '?';
        else c += length - 1;
    }
    if (catching) {
        memcpy(catching->message, message, sizeof message);
        longjmp(catching->place, 1);
    }
    if (fail_hook) fail_hook(message);
    fflush(stdout);
    fprintf(stderr, "train_gpt: %s\n", message);
    _exit(1);      /* what was being worked on goes back to the system: that is no leak to report */
}

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

void check_packed(const char *op, const char *name, Tensor t) {
    char shape[80];
    REQUIRE(tensor_is_packed(t), "%s: %s %s has pitch %lld, want it packed", op, name, tensor_shape(t, shape),
            (long long)t.pitch);
}
