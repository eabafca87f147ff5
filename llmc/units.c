#include "units.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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

const char *duration_text(double seconds, char text[32]) {
    if (!(seconds >= 0 && seconds < 1e14)) return strcpy(text, "unknown");
    int64_t s = (int64_t)(seconds + 0.5);
    if      (s < 60)    snprintf(text, 32, "%ds", (int)s);
    else if (s < 3600)  snprintf(text, 32, "%dm%02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400) snprintf(text, 32, "%dh%02dm", (int)(s / 3600), (int)(s % 3600 / 60));
    else                snprintf(text, 32, "%" PRId64 "d%02dh", s / 86400, (int)(s % 86400 / 3600));
    return text;
}

const char *bytes_text(double bytes, char text[32]) {
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int u = 0;
    if (!isfinite(bytes)) return strcpy(text, "unknown");
    for (; u < 5 && fabs(bytes) >= (u < 3 ? 1023.5 : 1023.995); u++) bytes /= 1024;
    snprintf(text, 32, "%.*f %s", u < 3 ? 0 : 2, bytes, unit[u]);
    return text;
}
