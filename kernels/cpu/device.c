/* The CPU as a device: memory is the host's, work is done when the call returns. */
#include "../device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "../check.h"
#include "gemm.h"

const char *const backend_name = "cpu";
static int thread_count = 1;

void device_open(DeviceOptions options) {
#ifdef _OPENMP
    static int cores;                        /* asked before the first omp_set_num_threads changes the answer */
    if (!cores) cores = omp_get_max_threads();
    thread_count = options.threads ? options.threads : cores;
    omp_set_num_threads(thread_count);
    omp_set_dynamic(0);
#else
    REQUIRE(options.threads <= 1, "--threads %d: this program was built without OpenMP, want 1", options.threads);
#endif
}

/* The value of the first line "key : value" of a file in /proc; 0 when it is not there. */
static int proc_line(const char *path, const char *key, char *value, size_t size) {
    FILE *file = fopen(path, "r");
    char line[512];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(value, size, "%s", colon);
        found = 1;
    }
    if (file) fclose(file);
    return found;
}

/* A number in a file of the control group, or most when there is none ("max"). */
static int64_t group_bytes(const char *path, int64_t most) {
    FILE *file = fopen(path, "r");
    long long bytes = most;
    if (file) {
        if (fscanf(file, "%lld", &bytes) != 1 || bytes > most) bytes = most;
        fclose(file);
    }
    return bytes;
}

DeviceInfo device_info(void) {
    DeviceInfo info = {0};
    char text[128];
    if (!proc_line("/proc/cpuinfo", "model name", info.name, sizeof info.name)) snprintf(info.name, sizeof info.name, "CPU");
    snprintf(info.detail, sizeof info.detail, "%d thread%s, matrix products by %s", thread_count,
             thread_count == 1 ? "" : "s", gemm_name());
    info.total_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    info.free_bytes = proc_line("/proc/meminfo", "MemAvailable", text, sizeof text) ? atoll(text) * 1024 : info.total_bytes;
    int64_t limit = group_bytes("/sys/fs/cgroup/memory.max", info.total_bytes);      /* a container's share */
    int64_t used = group_bytes("/sys/fs/cgroup/memory.current", info.total_bytes);
    if (limit < info.total_bytes) {
        info.total_bytes = limit;
        if (limit - used < info.free_bytes) info.free_bytes = limit - used;
    }
    return info;
}

const char *device_refuse_dtype(DType dtype) {
    return dtype == F32 ? NULL : "the CPU computes in f32 only";
}

void *device_alloc(size_t bytes, const char *what) {
    size_t rounded = (bytes + 255) & ~(size_t)255;
    void *memory = rounded < bytes ? NULL : aligned_alloc(256, rounded ? rounded : 256);
    REQUIRE(memory, "out of memory: %s needs %.2f GiB; a smaller --batch, --context or model needs less", what,
            (double)bytes / (1 << 30));
    memset(memory, 0, rounded);
    return memory;
}

void device_free(void *memory)                                          { free(memory); }
void device_upload(void *device, const void *host, size_t bytes)        { memcpy(device, host, bytes); }
void device_download(void *host, const void *device, size_t bytes)      { memcpy(host, device, bytes); }
void device_zero(void *device, size_t bytes)                            { memset(device, 0, bytes); }
void device_use_stream(void *stream)                                    { (void)stream; }
void device_wait(void)                                                  { }
