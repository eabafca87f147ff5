#include "stop.h"
#include "units.h"
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t asked, save_asked;
static volatile double asked_at;        /* by the monotonic clock */
static double deadline, reserved;       /* by the monotonic clock, 0 = none; seconds */
static char limit_name[64];

static void on_signal(int number) {
    if (number == SIGUSR1) {
        save_asked = 1;
        return;
    }
    if (!asked) {
        asked_at = seconds_now();
        asked = number;
    } else if (seconds_now() - asked_at > 1) {      /* timeout(1) and some queues send the same signal twice at once */
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
    deadline = limit > 0 ? seconds_now() + limit : 0;
    snprintf(limit_name, sizeof limit_name, "%s", name);
    take_over(SIGTERM);
    take_over(SIGINT);
    take_over(SIGHUP);
    take_over(SIGUSR1);
}

const char *stop_wanted(void) {
    if (asked) return asked == SIGTERM ? "SIGTERM" : asked == SIGINT ? "SIGINT" : "SIGHUP";
    return deadline > 0 && seconds_now() + reserved >= deadline ? limit_name : NULL;
}

void stop_reserve(double seconds) { reserved = seconds; }

int stop_save_wanted(void) {
    int wanted = save_asked;
    if (wanted) save_asked = 0;
    return wanted;
}
