#include "os.h"
#include "base.h"
#include <spawn.h>

void *host_alloc(size_t bytes, const char *what) {
    void *memory = calloc(1, bytes);
    REQUIRE(memory, "out of memory: %s, %zu bytes", what, bytes);
    return memory;
}

void *host_grow(void *array, size_t count, size_t *room, size_t size, const char *what) {
    if (count < *room) return array;
    *room = *room ? 2 * *room : 16;
    array = realloc(array, *room * size);
    REQUIRE(array, "out of memory: %s, %zu bytes", what, *room * size);
    return array;
}

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void stdio_open(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) _exit(1);
}

int stdio_flush(void) {
    REQUIRE(!fflush(stdout) && !ferror(stdout), "cannot write to stdout: %s", strerror(errno));
    return 0;
}

const char *duration_text(double seconds, char text[32]) {
    if (!(seconds >= 0 && seconds < 1e14)) return strcpy(text, "unknown");
    const int64_t s = (int64_t)(seconds + 0.5), minutes = s / 60, hours = s / 3600, days = s / 86400;
    if (days)         sprintf(text, "%" PRId64 "d%02dh", days, (int)(hours % 24));
    else if (hours)   sprintf(text, "%dh%02dm", (int)hours, (int)(minutes % 60));
    else if (minutes) sprintf(text, "%dm%02ds", (int)minutes, (int)(s % 60));
    else              sprintf(text, "%ds", (int)s);
    return text;
}

const char *bytes_text(double bytes, char text[32]) {
    static const char *const names[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int n = 0;
    for (; n < 5 && bytes >= 1023.5; n++) bytes /= 1024;
    snprintf(text, 32, "%.*f %s", n < 3 ? 0 : 2, bytes, names[n]);
    return text;
}

size_t utf8_length(const unsigned char *text, size_t size) {
    static const uint32_t min[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned c = text[0];
    const size_t length = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    uint32_t code = length > 1 ? c & 0x7fu >> length : c;
    if (!length || length > size) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return code < min[length] || code >> 11 == 0xd800 >> 11 || code > 0x10ffff ? 0 : length;
}

size_t utf8_mark(const void *text, size_t size) { return size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; }

/* ---- Lines */

void print_line(FILE *file, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    REQUIRE(vasprintf(&text, format, arguments) >= 0, "out of memory: a line of output");
    va_end(arguments);
    make_printable(text);
    fflush(stdout);
    fprintf(file, "%s%s%s\n", file == stderr ? fail_program : "", file == stderr ? ": " : "", text);
    fflush(file);
    free(text);
}

void print_progress(const char *what, double share, double start_s) {
    static double printed_s;
    char left[32];
    const double now = seconds_now(), before = printed_s > start_s ? printed_s : start_s;
    if (share <= 0 || now - before < LINE_SECONDS || !isatty(STDERR_FILENO)) return;
    printed_s = now;
    fprintf(stderr, "%s: %.0f %% done, %s left\n", what, 100 * share,
            duration_text((now - start_s) * (1 / share - 1), left));
}

/* ---- Stopping */

static volatile sig_atomic_t stop_signal, save_signal;
static volatile double stop_signal_s;   /* time of the first signal, monotonic clock */

static const int stop_signals[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1 };

static void on_signal(int number) {
    if (number == SIGUSR1) {
        save_signal = 1;
    } else if (!stop_signal) {
        stop_signal_s = seconds_now();
        stop_signal = number;
    } else if (seconds_now() - stop_signal_s > 1) {     /* timeout(1) and some queues send it twice */
        _exit(128 + number);
    }
}

void stop_open(void) {
    for (int i = 0; i < 4; i++) {
        struct sigaction before, action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
        sigaction(stop_signals[i], &action, &before);
        if (stop_signals[i] == SIGHUP && before.sa_handler == SIG_IGN) sigaction(SIGHUP, &before, NULL);     /* nohup */
    }
}

void (*stop_hook)(void);

const char *stop_requested(void) {
    return !stop_signal ? NULL : stop_signal == SIGTERM ? "SIGTERM" : stop_signal == SIGINT ? "SIGINT" : "SIGHUP";
}

int save_requested(void) {
    int requested = save_signal;
    if (requested) save_signal = 0;
    return requested;
}

pid_t start_program(const char **argv) {
    static Path program;
    Path self = {0};
    sigset_t stops, before;
    pid_t pid;
    if (readlink("/proc/self/exe", self.text, sizeof self.text - 1) < 0) *self.text = 0;
    program = path_of(file_parent(self.text).text, argv[0]);
    argv[0] = program.text;
    signal(SIGCHLD, SIG_DFL);       /* with an inherited SIG_IGN its exit code is lost */
    sigemptyset(&stops);
    for (int i = 0; i < 4; i++) sigaddset(&stops, stop_signals[i]);
    pthread_sigmask(SIG_BLOCK, &stops, &before);
    errno = posix_spawn(&pid, argv[0], NULL, NULL, (char **)argv, environ);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errno ? -1 : pid;
}
