/* kernels/cuda/health.c - Temperature, power, clock and throttling of the card, from NVML, the driver's own library. It
   is looked for when the program runs: nothing links it, and a machine without it lacks these numbers and nothing else.
   Its interface as far as it is used here: docs.nvidia.com/deploy/nvml-api. */
#include <dlfcn.h>
#include "../device.h"

typedef struct Card *Card;              /* NVML's handle */
enum { SUCCESS = 0, SENSOR_OF_GPU = 0, CLOCK_OF_SM = 1 };

static struct {
    Card card;
    int (*temperature)(Card, int sensor, unsigned *celsius);
    int (*power)      (Card, unsigned *milliwatts);
    int (*clock)      (Card, int which, unsigned *mhz);
    int (*reasons)    (Card, unsigned long long *bits);
} nvml;                                 /* what is NULL is not known here */

/* By its place on the bus: NVML counts all cards, CUDA those that CUDA_VISIBLE_DEVICES names, in its own order. */
static void open_nvml(void) {
    const DeviceInfo device = device_info();
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    int (*init)(void) = dlsym(library, "nvmlInit_v2");
    int (*find)(const char *, Card *) = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    if (!init || !find || init() != SUCCESS || find(device.pci_bus_id, &nvml.card) != SUCCESS) return;
    nvml.temperature = dlsym(library, "nvmlDeviceGetTemperature");
    nvml.power       = dlsym(library, "nvmlDeviceGetPowerUsage");
    nvml.clock       = dlsym(library, "nvmlDeviceGetClockInfo");
    /* has another name since driver 535, too; this one is there in all */
    nvml.reasons     = dlsym(library, "nvmlDeviceGetCurrentClocksThrottleReasons");
}

/* The worst first: several hold at a time, and a slowdown by the hardware comes with its cause where that is known. */
static const struct { unsigned long long bits; const char *word; int in_distress; } reasons[] = {
    { 0x20 | 0x40,         "thermal",     1 },      /* the driver's doing, the hardware's */
    { 0x80,                "power-brake", 1 },      /* the machine's power supply asks for it */
    { 0x08,                "hw-slowdown", 1 },
    { 0x04,                "power",       0 },      /* the card's power limit */
    { 0x02 | 0x10 | 0x100, "settings",    0 },      /* clocks set by hand, for several cards alike, for a display */
    { ~0x01ull,            "other",       0 },      /* newer than this table; 0x01 is an idle card, which is none */
};

static void explain(DeviceHealth *health, unsigned long long bits) {
    health->throttle = "none";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (bits & reasons[i].bits) {
            health->throttle = reasons[i].word;
            health->in_distress = reasons[i].in_distress;
            return;
        }
}

DeviceHealth device_health(void) {
    static int opened;
    DeviceHealth health = {0};
    unsigned celsius, milliwatts, mhz;
    unsigned long long bits;
    if (!opened) open_nvml();
    opened = 1;
    if (nvml.temperature && nvml.temperature(nvml.card, SENSOR_OF_GPU, &celsius) == SUCCESS)
        health.temperature_c = celsius;
    if (nvml.power && nvml.power(nvml.card, &milliwatts) == SUCCESS) health.power_w = milliwatts / 1e3;
    if (nvml.clock && nvml.clock(nvml.card, CLOCK_OF_SM, &mhz) == SUCCESS) health.clock_mhz = mhz;
    if (nvml.reasons && nvml.reasons(nvml.card, &bits) == SUCCESS) explain(&health, bits);
    return health;
}
