/* test_health.c - The health of a GPU, as kernels/cuda/health.c reads it from a library of the test's own
   (nvml.c), which is in the process already under the name of the driver's. Needs no GPU and no other part of a
   backend. */
#include "../test.h"
#include <dlfcn.h>

static const char *bus_id;

/* What stands for the backend, for health.c asks for the card's place. */
DeviceInfo device_info(void) {
    DeviceInfo info = {0};
    snprintf(info.pci_bus_id, sizeof info.pci_bus_id, "%s", bus_id);
    return info;
}

typedef struct {
    const char *without;        /* the function that the library lacks; NULL: there is no library */
    const char *fails, *reasons, *bus_id;
} Machine;

static const Machine healthy = { "nothing", "", "0", "0001:c1:00.0" };

static void ask_twice(void *argument) {
    const Machine *machine = argument;
    char library[64];
    snprintf(library, sizeof library, "nvml/%s.so", machine->without ? machine->without : "");
    if (machine->without && !dlopen(built(library), RTLD_NOW)) fprintf(stderr, "%s: %s", library, dlerror());
    setenv("NVML_FAILS", machine->fails, 1);
    setenv("NVML_REASONS", machine->reasons, 1);
    bus_id = machine->bus_id;
    for (int i = 0; i < 2; i++) {
        DeviceHealth h = device_health();
        fprintf(stderr, "%s%g,%.3f,%g,%s%s", i ? " " : "", h.temperature_c, h.power_w, h.clock_mhz,
                h.throttle ? h.throttle : "", h.is_abnormal ? "!" : "");
    }
}

/* Of a fresh process, which asks twice. */
static const char *health_of(const Machine *machine) {
    static char text[256];
    int status;
    test_in_child(ask_twice, (void *)machine, text, sizeof text, &status);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    return text;
}

static void expect_health(const char *want, Machine machine) {
    char twice[256];
    snprintf(twice, sizeof twice, "%s %s", want, want);
    const char *got = health_of(&machine);
    EXPECT(!strcmp(got, twice), "without %s, failing \"%s\", reasons %s, card %s: got %s, want %s",
           machine.without ? machine.without : "a library", machine.fails, machine.reasons, machine.bus_id, got, twice);
}

static void a_healthy_card(void) {
    expect_health("64,698.765,1755,none", healthy);
}

static void each_reason_has_its_word(void) {
    static const struct { const char *bits, *want; } rows[] = {
        { "0", "none" }, { "1", "none" }, { "2", "settings" }, { "4", "power" }, { "8", "hw-slowdown!" },
        { "10", "settings" }, { "20", "thermal!" }, { "40", "thermal!" }, { "80", "power-brake!" },
        { "100", "settings" }, { "200", "other" }, { "8000000000000000", "other" },
        /* several: the worst, and a cause rather than the slowdown */
        { "5", "power" }, { "6", "power" }, { "24", "thermal!" }, { "48", "thermal!" }, { "88", "power-brake!" },
        { "c", "hw-slowdown!" }, { "204", "power" }, { "1ff", "thermal!" },
    };
    for (int i = 0; i < COUNT(rows); i++) {
        char want[64];
        Machine machine = healthy;
        machine.reasons = rows[i].bits;
        snprintf(want, sizeof want, "64,698.765,1755,%s", rows[i].want);
        expect_health(want, machine);
    }
}

/* The same is lost whether the library lacks a function or the function fails. */
static const struct { const char *function, *want; } losses[] = {
    { "nvmlInit_v2", "0,0.000,0," },
    { "nvmlDeviceGetHandleByPciBusId_v2", "0,0.000,0," },
    { "nvmlDeviceGetTemperature", "0,698.765,1755,power" },
    { "nvmlDeviceGetPowerUsage", "64,0.000,1755,power" },
    { "nvmlDeviceGetClockInfo", "64,698.765,0,power" },
    { "nvmlDeviceGetCurrentClocksThrottleReasons", "64,698.765,1755," },
};

static void a_function_that_is_missing_is_unknown(void) {
    for (int i = 0; i < COUNT(losses); i++) {
        Machine machine = healthy;
        machine.reasons = "4";
        machine.without = losses[i].function;
        expect_health(losses[i].want, machine);
    }
}

static void a_query_that_fails_is_unknown(void) {
    Machine machine = healthy;
    machine.reasons = "4";
    for (int i = 0; i < COUNT(losses); i++) {
        machine.fails = losses[i].function;
        expect_health(losses[i].want, machine);
    }
    machine.fails = "nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage nvmlDeviceGetClockInfo "
                    "nvmlDeviceGetCurrentClocksThrottleReasons";
    expect_health("0,0.000,0,", machine);
}

static void no_library_and_no_card_are_unknown(void) {
    Machine machine = healthy;
    machine.bus_id = "0000:c1:00.0";            /* another card */
    expect_health("0,0.000,0,", machine);
    machine.bus_id = "";
    expect_health("0,0.000,0,", machine);
    machine.bus_id = "ffff:ff:1f.0";            /* nor does the driver's own library, where it is there, know it */
    machine.without = NULL;
    expect_health("0,0.000,0,", machine);
}

int main(void) {
    RUN(a_healthy_card);
    RUN(each_reason_has_its_word);
    RUN(a_function_that_is_missing_is_unknown);
    RUN(a_query_that_fails_is_unknown);
    RUN(no_library_and_no_card_are_unknown);
    return test_close();
}
