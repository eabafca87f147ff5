/* nvml.c - What test_health takes for the driver's library: one card at 0001:c1:00.0, whose numbers are in the
   environment: NVML_REASONS in hexadecimal, NVML_FAILS with the names of functions that fail. The Makefile renames one
   function in each library that it makes of this. */
#include <stdlib.h>
#include <string.h>

enum { FINE = 0, INVALID = 2, NOT_FOUND = 6, LOST = 15 };
struct Card { int number; };
static struct Card the_card;
static int is_open;

static int outcome(const char *function, int asked_well) {
    const char *fails = getenv("NVML_FAILS");
    if (fails && strstr(fails, function)) return LOST;
    return is_open && asked_well ? FINE : INVALID;
}

int nvmlInit_v2(void) {
    is_open = 1;
    return outcome("nvmlInit_v2", 1);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *place, struct Card **card) {
    if (strcmp(place, "0001:c1:00.0")) return NOT_FOUND;
    *card = &the_card;
    return outcome("nvmlDeviceGetHandleByPciBusId_v2", 1);
}

/* Writes its answer even when it fails: nobody may take it then. */
int nvmlDeviceGetTemperature(struct Card *card, int sensor, unsigned *celsius) {
    *celsius = 64;
    return outcome("nvmlDeviceGetTemperature", card == &the_card && sensor == 0);
}

int nvmlDeviceGetPowerUsage(struct Card *card, unsigned *milliwatts) {
    *milliwatts = 698765;
    return outcome("nvmlDeviceGetPowerUsage", card == &the_card);
}

int nvmlDeviceGetClockInfo(struct Card *card, int which, unsigned *mhz) {
    *mhz = 1755;
    return outcome("nvmlDeviceGetClockInfo", card == &the_card && which == 1);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct Card *card, unsigned long long *bits) {
    const char *reasons = getenv("NVML_REASONS");
    *bits = reasons ? strtoull(reasons, NULL, 16) : 0;
    return outcome("nvmlDeviceGetCurrentClocksThrottleReasons", card == &the_card);
}
