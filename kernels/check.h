/* check.h - Errors end the program at once, with one line: what, got, want, and what to do. */
#pragma once

#define REQUIRE(condition, ...) do { if (!(condition)) fail(__VA_ARGS__); } while (0)

extern const char *fail_program;        /* "train_gpt", the name in front of the message */

/* Names and keys of files and of other hosts may hold any bytes, or be cut within a character: bytes that are not UTF-8
   and control characters, U+0080 to U+009F as well, become '?'. */
void make_printable(char *text);

/* Prints "train_gpt: message" as one printable line on stderr and exits with 1. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Receives the message instead, in a program that uses the kernels as a library; must not return (longjmp, exit). */
extern void (*fail_hook)(const char *message);

/* Runs f(argument); a fail() in it ends f alone, not the process. Returns 1 then, with the message as one line; what f
   had allocated is leaked. Affects the calling thread only, and may be nested. */
enum { FAIL_LENGTH = 2048 };
int fails(void (*f)(void *), void *argument, char message[FAIL_LENGTH]);
