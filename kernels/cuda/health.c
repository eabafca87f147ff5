/* health.c - Temperature, power, clock and throttling of the GPU, from the driver's library NVML. It is
   loaded at run time: without it these values are unknown. API: docs.nvidia.com/deploy/nvml-api. */
#include <dlfcn.h>
#include "../device.h"

typedef struct Card *Card;              /* nvmlDevice_t */
enum { SUCCESS = 0, SENSOR_OF_GPU = 0, CLOCK_OF_SM = 1 };

static struct {
    Card card;
    int (*temperature)(Card, int sensor, unsigned *celsius);
    int (*power)      (Card, unsigned *milliwatts);
    int (*clock)      (Card, int which, unsigned *mhz);
    int (*reasons)    (Card, unsigned long long *bits);
} nvml;                                 /* NULL = not available */

/* By PCI bus id: NVML numbers all GPUs, CUDA those of CUDA_VISIBLE_DEVICES, in another order. */
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
    /* driver 535 added another name; this one exists in all */
    nvml.reasons     = dlsym(library, "nvmlDeviceGetCurrentClocksThrottleReasons");
}

/* Most severe last: several bits can be set, a hardware slowdown together with its cause where that is known. */
static const struct { unsigned long long bits; const char *word; int is_abnormal; } reasons[] = {
    { ~0x01ull,            "other",       0 },      /* newer than this table; 0x01 is idle */
    { 0x02 | 0x10 | 0x100, "settings",    0 },      /* clocks set by the user, synchronised boost, display */
    { 0x04,                "power",       0 },      /* power limit */
    { 0x08,                "hw-slowdown", 1 },
    { 0x80,                "power-brake", 1 },      /* requested by the power supply */
    { 0x20 | 0x40,         "thermal",     1 },      /* by the driver, by the hardware */
};

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
    if (!nvml.reasons || nvml.reasons(nvml.card, &bits) != SUCCESS) return health;
    health.throttle = "none";
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (bits & reasons[i].bits) {
            health.throttle = reasons[i].word;
            health.is_abnormal = reasons[i].is_abnormal;
        }
    return health;
}
