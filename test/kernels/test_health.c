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

/* without: the function that the library lacks; NULL: there is no library. */
typedef struct { const char *want, *reasons, *without, *fails, *bus_id; } Machine;

static void ask_twice(const Machine *machine) {
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

#define CARD "0001:c1:00.0"
#define REASONS(word, bits)          { "64,698.765,1755," word, bits, "nothing", "", CARD }
/* The same is lost whether the library lacks a function or the function fails. */
#define LOST(function, want)         { want, "4", function, "", CARD }, { want, "4", "nothing", function, CARD }
#define NOTHING "0,0.000,0,"

static const Machine machines[] = {
    REASONS("none", "0"), REASONS("none", "1"), REASONS("settings", "2"), REASONS("power", "4"),
    REASONS("hw-slowdown!", "8"), REASONS("settings", "10"), REASONS("thermal!", "20"), REASONS("thermal!", "40"),
    REASONS("power-brake!", "80"), REASONS("settings", "100"), REASONS("other", "200"),
    REASONS("other", "8000000000000000"),
    /* several: the worst, and a cause rather than the slowdown */
    REASONS("power", "5"), REASONS("power", "6"), REASONS("thermal!", "24"), REASONS("thermal!", "48"),
    REASONS("power-brake!", "88"), REASONS("hw-slowdown!", "c"), REASONS("power", "204"), REASONS("thermal!", "1ff"),
    LOST("nvmlInit_v2", NOTHING),
    LOST("nvmlDeviceGetHandleByPciBusId_v2", NOTHING),
    LOST("nvmlDeviceGetTemperature", "0,698.765,1755,power"),
    LOST("nvmlDeviceGetPowerUsage", "64,0.000,1755,power"),
    LOST("nvmlDeviceGetClockInfo", "64,698.765,0,power"),
    LOST("nvmlDeviceGetCurrentClocksThrottleReasons", "64,698.765,1755,"),
    { NOTHING, "4", "nothing", "nvmlDeviceGetTemperature nvmlDeviceGetPowerUsage "
        "nvmlDeviceGetClockInfo nvmlDeviceGetCurrentClocksThrottleReasons", CARD },
    { NOTHING, "0", "nothing", "", "0000:c1:00.0" },           /* another card */
    { NOTHING, "0", "nothing", "", "" },
    { NOTHING, "0", NULL, "", "ffff:ff:1f.0" },         /* nor does the driver's library, where it is there, know it */
};

/* Each in a fresh process, which asks twice. */
TEST(health_of_machines) {
    for (int i = 0; i < COUNT(machines); i++) {
        const Machine *m = &machines[i];
        char got[256], twice[256];
        int status;
        if (test_child_begin()) ask_twice(m);
        test_child_end(got, sizeof got, &status);
        snprintf(twice, sizeof twice, "%s %s", m->want, m->want);
        EXPECT(status == 0 && !strcmp(got, twice),
               "without %s, failing \"%s\", reasons %s, card %s: status %d, got %s, want %s",
               m->without ? m->without : "a library", m->fails, m->reasons, m->bus_id, status, got, twice);
    }
}

int main(void) {
    return test_all();
}
