#include "check.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void (*fail_hook)(const char *message);
const char *fail_program = "train_gpt";

typedef struct { jmp_buf target; char *message; } Catch;
static _Thread_local Catch *catching;      /* where fail() jumps to in this thread; NULL = it ends the process */

int fails(void (*f)(void *), void *argument, char message[FAIL_LENGTH]) {
    Catch *outer = catching, inner = { .message = message };
    catching = &inner;
    int failed = setjmp(inner.target);
    if (!failed) f(argument);
    catching = outer;
    return failed;
}

void make_printable(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        int length = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4, whole = length > 0;
        for (int i = 1; i < length && whole; i++) whole = (c[i] & 0xc0) == 0x80;
        if (!whole || *c < 32 || *c == 127 || (*c == 0xc2 && c[1] < 0xa0)) *c = '?';
        else c += length - 1;
    }
}

void fail(const char *format, ...) {
    char message[FAIL_LENGTH];
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(message, sizeof message, format, arguments);
    char *whole;
    if (length >= (int)sizeof message && vasprintf(&whole, format, again) > 0) {   /* the end names the error */
        snprintf(message, sizeof message, "%.1000s ... %s", whole, whole + length - 1000);
        free(whole);
    }
    va_end(again);
    va_end(arguments);
    make_printable(message);
    if (catching) {
        memcpy(catching->message, message, sizeof message);
        longjmp(catching->target, 1);
    }
    if (fail_hook) fail_hook(message);
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", fail_program, message);
    _exit(1);      /* without exit handlers: memory in use at this point is not a leak */
}
