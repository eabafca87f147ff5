/* test.h - The few lines that a test program needs. A test is TEST(its_name) { ... }; main returns test_all(), which
   runs all in the order of the file, or runs functions by name with RUN() and returns test_close(). Each prints "ok",
   "FAIL" or "skip" and its name; the last line is "N passed, N failed, N skipped". */
#ifndef TEST_TEST_H
#define TEST_TEST_H
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

/* Of the device, until the test ends. */
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
    snprintf(test_message, sizeof test_message, "%s", message);
    longjmp(test_jump, 1);
}

/* Wants fail() with a message of one line that holds part. What f had allocated stays behind. */
static inline void expect_fails_here(const char *part, void (*f)(void *), void *argument) {
    *test_message = 0;
    fail_hook = test_jump_back;
    if (!setjmp(test_jump)) f(argument);
    fail_hook = NULL;
    EXPECT(*test_message && !strchr(test_message, '\n'), "want one line with \"%s\", got: %s", part, test_message);
    EXPECT(strstr(test_message, part), "want \"%s\", got: %s", part, test_message);
}

/* Runs f(argument) in a child; text is what that writes to stderr, status as in wait. Returns the text's length. */
static inline size_t test_in_child(void (*f)(void *), void *argument, char *text, size_t size, int *status) {
    int pipe_ends[2];
    size_t length = 0;
    fflush(NULL);
    if (pipe(pipe_ends)) { perror("pipe"); exit(2); }
    pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], 2);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        fail_hook = test_fail;
        alarm(60);
        f(argument);
        _exit(0);
    }
    close(pipe_ends[1]);
    for (ssize_t n; length < size - 1 && (n = read(pipe_ends[0], text + length, size - 1 - length)) > 0; )
        length += (size_t)n;
    text[length] = 0;
    close(pipe_ends[0]);
    *status = 0;
    waitpid(child, status, 0);
    return length;
}

/* Wants f(argument) to end through fail(), in a child: exit code 1, one line on stderr that holds part. */
static inline void expect_fails(const char *part, void (*f)(void *), void *argument) {
    if (test_in_process) {
        expect_fails_here(part, f, argument);
        return;
    }
    char text[4096];
    int status;
    size_t length = test_in_child(f, argument, text, sizeof text, &status);
    char *newline = strchr(text, '\n');
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 1, "want exit code 1 with \"%s\", got status %d: %s",
           part, status, text);
    EXPECT(newline && newline == text + length - 1, "want one line with \"%s\", got: %s", part, text);
    EXPECT(strstr(text, part), "want \"%s\", got: %s", part, text);
}

#endif
