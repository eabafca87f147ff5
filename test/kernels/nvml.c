/* nvml.c - A fake of the driver's library NVML for test_health: one card at 0001:c1:00.0, whose numbers are in the
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

/* Each sets its result even when it returns an error: a caller must not use it then. */
#define ANSWER(function, arguments, asked_well, answer) \
    int function arguments { answer; return outcome(#function, card == &the_card && (asked_well)); }
ANSWER(nvmlDeviceGetTemperature, (struct Card *card, int sensor, unsigned *celsius), sensor == 0, *celsius = 64)
ANSWER(nvmlDeviceGetPowerUsage, (struct Card *card, unsigned *milliwatts), 1, *milliwatts = 698765)
ANSWER(nvmlDeviceGetClockInfo, (struct Card *card, int which, unsigned *mhz), which == 1, *mhz = 1755)
ANSWER(nvmlDeviceGetCurrentClocksThrottleReasons, (struct Card *card, unsigned long long *bits), 1,
       *bits = getenv("NVML_REASONS") ? strtoull(getenv("NVML_REASONS"), NULL, 16) : 0)
