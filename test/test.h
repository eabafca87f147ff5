/* test.h - The few lines that a test program needs. A test is TEST(its_name) { ... }; main returns test_all(), which
   runs all in the order of the file, or runs functions by name with RUN() and returns test_close(). Each prints "ok",
   "FAIL" or "skip" and its name; the last line is "N passed, N failed, N skipped". */
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../kernels/check.h"
#include "../kernels/device.h"

static int test_passed, test_failed, test_skipped, test_errors;
static const char *test_skip_reason;

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define EXPECT(condition, ...) do { if (!(condition)) { test_errors++; \
    printf("  %s:%d: %s: ", __FILE__, __LINE__, #condition); printf(__VA_ARGS__); printf("\n"); } } while (0)
#define RUN(test) test_run(#test, test)

/* What is freed when the test ends, in reverse order, or with test_release but for the first ones. What main keeps
   before its tests lives as long as the program. */
static struct { void *block; void (*release)(void *); } test_block[1 << 17];
static int test_blocks;

static inline void *test_keep_by(void (*release)(void *), void *block) {
    REQUIRE(block && test_blocks < COUNT(test_block), "out of memory for a test, or too many blocks");
    test_block[test_blocks].release = release;
    return test_block[test_blocks++].block = block;
}

static inline void *test_keep(void *block) { return test_keep_by(free, block); }

/* Zeros, until the test ends. */
static inline void *new_array(int64_t count, size_t bytes) { return test_keep(calloc((size_t)count + !count, bytes)); }

/* Device memory until the test ends. */
static inline void *new_device_memory(size_t bytes) { return test_keep_by(device_free, device_alloc(bytes, "a test")); }

static inline void test_release(int blocks) {
    for (; test_blocks > blocks; test_blocks--) test_block[test_blocks - 1].release(test_block[test_blocks - 1].block);
}

static inline void test_run(const char *name, void (*test)(void)) {
    const int blocks = test_blocks;
    test_errors = 0;
    test_skip_reason = NULL;
    test();
    test_release(blocks);
    if (test_skip_reason)    { test_skipped++; printf("skip %s: %s\n", name, test_skip_reason); }
    else if (test_errors)    { test_failed++;  printf("FAIL %s\n", name); }
    else                     { test_passed++;  printf("ok   %s\n", name); }
    fflush(stdout);
}

/* run: test_run, or a function that calls it. */
typedef struct { const char *name; void (*test)(void), (*run)(const char *name, void (*test)(void)); } Test;
static Test test_list[64];

#define TEST(name) TEST_RUN_BY(test_run, name)
#define TEST_RUN_BY(run, name) \
    static void name(void); \
    __attribute__((constructor)) static void test_add_##name(void) { \
        test_list[__COUNTER__] = (Test){ #name, name, run }; } \
    static void name(void)

static inline int test_close(void) {
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed ? 1 : 0;
}

static inline int test_all(void) {
    for (const Test *t = test_list; t->test; t++) t->run(t->name, t->test);
    return test_close();
}

/* The path of a program of this build: $BUILD is its directory, as make test sets it. Valid until 16 others were asked
   for. */
static inline char *built(const char *name) {
    static char path[16][4096];
    static int count;
    const char *build = getenv("BUILD");
    char *next = path[count++ % 16];
    snprintf(next, sizeof *path, "%s/%s", build ? build : "build/cpu", name);
    return next;
}

static void test_fail(const char *message) {
    fprintf(stderr, "%s\n", message);
    _exit(1);      /* no leak report: the program that fails leaves its memory to the system */
}

/* A child of a process that has opened a GPU cannot use it: such a program stays in one process. */
static int test_in_process;

static inline void test_device_open(DeviceOptions options) {
    device_open(options);
    test_in_process = strcmp(backend_name, "cpu") != 0;
}

static jmp_buf test_jump;
static char    test_message[4096];

static void test_jump_back(const char *message) {
    snprintf(test_message, sizeof test_message, "%s\n", message);
    longjmp(test_jump, 1);
}

static struct { pid_t id; int stderr_end; } test_child;

/* 1 in a child, which a failure ends with exit code 1, and 0 in its parent; both go on to test_child_end. */
static inline int test_child_begin(void) {
    int ends[2];
    fflush(NULL);
    if (pipe(ends)) { perror("pipe"); exit(2); }
    test_child.id = fork();
    test_child.stderr_end = ends[0];
    if (test_child.id == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        fail_hook = test_fail;
        alarm(60);
    }
    close(ends[1]);
    return test_child.id == 0;
}

/* Ends the child. In the parent: text is what that wrote to stderr, status as in wait. Returns the text's length. */
static inline size_t test_child_end(char *text, size_t size, int *status) {
    size_t length = 0;
    if (test_child.id == 0) _exit(0);
    for (ssize_t n; length < size - 1 && (n = read(test_child.stderr_end, text + length, size - 1 - length)) > 0; )
        length += (size_t)n;
    text[length] = 0;
    close(test_child.stderr_end);
    *status = 0;
    waitpid(test_child.id, status, 0);
    return length;
}

static inline int expect_begin(void) {
    if (!test_in_process) return test_child_begin();
    *test_message = 0;
    fail_hook = test_jump_back;
    return 1;
}

static inline void expect_end(const char *part) {
    int status = 0;
    size_t length = test_in_process ? strlen(test_message)
                                    : test_child_end(test_message, sizeof test_message, &status);
    const char *newline = strchr(test_message, '\n');
    if (test_in_process) fail_hook = NULL;
    EXPECT(test_in_process || (WIFEXITED(status) && WEXITSTATUS(status) == 1),
           "want exit code 1 with \"%s\", got status %d: %s", part, status, test_message);
    EXPECT(newline && newline == test_message + length - 1, "want one line with \"%s\", got: %s", part, test_message);
    EXPECT(strstr(test_message, part), "want \"%s\", got: %s", part, test_message);
}

#if defined __GNUC__ && !defined __clang__
#pragma GCC diagnostic ignored "-Wclobbered"    /* gcc warns of loop counters, which do not change before the longjmp */
#endif

/* Wants the statements to end through fail(), with a message of one line that holds part: in a child with exit code 1,
   or test_in_process, where what they had allocated stays. Variables that they set are indeterminate afterwards. */
#define EXPECT_FAILS(part, ...) do { if (expect_begin()) if (!setjmp(test_jump)) { __VA_ARGS__; } \
    expect_end(part); } while (0)
