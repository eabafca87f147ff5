#include "stop.h"
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t asked, save_asked;
static struct timespec asked_at;
static double deadline, reserved;       /* by the monotonic clock, 0 = none; seconds */
static char limit_name[64];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_signal(int number) {
    if (number == SIGUSR1) {
        save_asked = 1;
        return;
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (!asked) {
        asked_at = t;
        asked = number;
    } else if (t.tv_sec - asked_at.tv_sec > 1) {     /* timeout(1) and some queues send the same signal twice at once */
        _exit(128 + number);
    }
}

static void take_over(int number) {
    struct sigaction before, action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    if (number == SIGHUP && !sigaction(number, NULL, &before) && before.sa_handler == SIG_IGN) return;     /* nohup */
    sigaction(number, &action, NULL);
}

void stop_open(double limit, const char *name) {
    deadline = limit > 0 ? now() + limit : 0;
    snprintf(limit_name, sizeof limit_name, "%s", name);
    take_over(SIGTERM);
    take_over(SIGINT);
    take_over(SIGHUP);
    take_over(SIGUSR1);
}

const char *stop_wanted(void) {
    if (asked) return asked == SIGTERM ? "SIGTERM" : asked == SIGINT ? "SIGINT" : "SIGHUP";
    return deadline > 0 && now() + reserved >= deadline ? limit_name : NULL;
}

void stop_reserve(double seconds) { reserved = seconds; }

int stop_save_wanted(void) {
    int wanted = save_asked;
    if (wanted) save_asked = 0;
    return wanted;
}

/* Units from the longest to the shortest, each at most once; a number alone is seconds. */
double duration_seconds(const char *text) {
    static const struct { char letter; double seconds; } units[] = { {'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1} };
    enum { UNITS = sizeof units / sizeof *units };
    double total = 0;
    int next = 0;
    if (!*text) return -1;
    while (*text) {
        size_t length = strspn(text, "0123456789.");
        char *end;
        double value = strtod(text, &end);
        if (!length || end != text + length) return -1;
        if (!*end && !next) return value;
        while (next < UNITS && units[next].letter != *end) next++;
        if (next == UNITS) return -1;
        total += value * units[next++].seconds;
        text = end + 1;
    }
    return total;
}
