/* libfuzzer.c - The entry points for libFuzzer, which has main: FUZZ_TARGET=json build/fuzz/fuzz FILE */
#include "fuzz.h"

static const FuzzTarget *target;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    /* what readers print is not looked at; the buffer of stdout must not be an allocation of the first that prints */
    static char buffer[BUFSIZ];
    if (!freopen("/dev/null", "w", stdout) || setvbuf(stdout, buffer, _IOFBF, sizeof buffer)) exit(1);
    const char *name = getenv("FUZZ_TARGET");
    for (target = fuzz_targets; target->name; target++)
        if (name && !strcmp(target->name, name)) return 0;
    fprintf(stderr, "FUZZ_TARGET is %s, want one of", name ? name : "not set");
    for (target = fuzz_targets; target->name; target++) fprintf(stderr, " %s", target->name);
    fputc('\n', stderr);
    exit(1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fuzz_run(target, bytes, size);
    return 0;
}
