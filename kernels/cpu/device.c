/* device.c - The CPU as a device: its memory is the host's, every call is synchronous. */
#include "../device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#include <sys/auxv.h>
#endif
#include "../check.h"

const char *const backend_name = "cpu";
static int thread_count = 1;

/* A step of 4 layers of 128 channels, batch 12 x 64, two cores, libgomp 12: its default of 300,000 spins takes 16 ms on
   an idle machine and 170 to 710 where other programs want the cores; 1000 spins take 17 and 37 to 92, sleeping at once
   (OMP_WAIT_POLICY=passive) 21 to 24 and 33 to 77. */
void device_start(char **argv) {
#ifdef _OPENMP
    char program[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || length < 0) return;
    if (!getauxval(AT_BASE)) return;    /* started as "ld.so PROGRAM ...": /proc/self/exe is ld.so; also if static */
    program[length] = 0;
    setenv("GOMP_SPINCOUNT", "1000", 1);
    setenv("KMP_BLOCKTIME", "0", 0);    /* libomp */
    execv(program, argv);               /* returns on failure only: then threads spin as long as by default */
#else
    (void)argv;
#endif
}

int device_count(void) { return 0; }

/* The value of the first line "key: value" or "key value" of a file in /proc or /sys; for the key "" the first line.
   0 = not found. */
static int proc_line(const char *dir, const char *name, const char *key, char value[128]) {
    char path[5000], line[512];
    int found = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file)) {
        char *rest = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0 || (*key && !strchr(" \t:", *rest))) continue;
        rest += strspn(rest, " \t:");
        rest[strcspn(rest, "\n")] = 0;
        snprintf(value, 128, "%s", rest);
        found = 1;
    }
    if (file) fclose(file);
    return found;
}

/* The number there; `otherwise` for another text, such as "max". */
static int64_t proc_number(const char *dir, const char *name, const char *key, int64_t otherwise) {
    char text[128], *end = text;
    const int64_t number = proc_line(dir, name, key, text) ? strtoll(text, &end, 10) : 0;
    return end > text ? number : otherwise;
}

static void apply_limit(DeviceInfo *info, int64_t limit, int64_t used) {
    const int64_t left = used >= limit ? 0 : used > 0 ? limit - used : limit;
    if (limit < info->total_bytes) info->total_bytes = limit;
    if (left < info->free_bytes) info->free_bytes = left;
}

/* Limits of this process' control group and of those above it: memory, where the page cache counts as used but is
   reclaimable, and cores, the CPU quota / period, rounded up. A line of the file is "NUMBER:CONTROLLERS:GROUP", in v2
   without controllers. */
static void apply_groups(DeviceInfo *info, int *cores) {
    FILE *file = fopen("/proc/self/cgroup", "r");
    for (char line[4400], dir[4500], text[128]; file && fgets(line, sizeof line, file); ) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(++controllers, ':') : NULL;
        const int is_v2 = group == controllers;
        if (!group || (!is_v2 && !strstr(controllers, "memory"))) continue;
        *strchr(++group, '\n') = 0;
        for (char *end = strchr(group, 0); end; end = strrchr(group, '/')) {       /* the last one is "", the root */
            long long quota, period;
            *end = 0;
            snprintf(dir, sizeof dir, "/sys/fs/cgroup%s%s", is_v2 ? "" : "/memory", group);
            apply_limit(info, proc_number(dir, is_v2 ? "memory.max" : "memory.limit_in_bytes", "", INT64_MAX),
                        proc_number(dir, is_v2 ? "memory.current" : "memory.usage_in_bytes", "", 0) -
                        proc_number(dir, "memory.stat", is_v2 ? "inactive_file" : "total_inactive_file", 0));
            if (is_v2 && proc_line(dir, "cpu.max", "", text) && sscanf(text, "%lld %lld", &quota, &period) == 2 &&
                quota > 0 && period > 0 && (quota + period - 1) / period < *cores)
                *cores = (int)((quota + period - 1) / period);
        }
    }
    if (file) fclose(file);
}

void device_open(DeviceOptions options) {
#ifdef _OPENMP
    static int cores;                        /* read once: omp_set_num_threads changes it */
    if (!cores) {
        cores = omp_get_max_threads();
        apply_groups(&(DeviceInfo){0}, &cores);
    }
    thread_count = options.threads ? options.threads : cores;
    omp_set_num_threads(thread_count);
    omp_set_dynamic(0);
    char count[16];
    snprintf(count, sizeof count, "%d", thread_count);
    setenv("OMP_NUM_THREADS", count, 1);        /* for programs that this one starts */
#else
    REQUIRE(options.threads <= 1, "--threads %d: this program was built without OpenMP, want 1", options.threads);
#endif
}

DeviceInfo device_info(void) {
    DeviceInfo info = {0};
    struct rlimit limit;
    if (!proc_line("/proc", "cpuinfo", "model name", info.name))
        snprintf(info.name, sizeof info.name, "CPU");
    snprintf(info.detail, sizeof info.detail, "%d thread%s", thread_count, thread_count == 1 ? "" : "s");
    info.total_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    info.free_bytes = 1024 * proc_number("/proc", "meminfo", "MemAvailable", info.total_bytes / 1024);
    apply_groups(&info, &(int){0});
    /* ulimit -v and -d */
    if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur <= INT64_MAX)
        apply_limit(&info, (int64_t)limit.rlim_cur, 1024 * proc_number("/proc/self", "status", "VmSize", 0));
    if (!getrlimit(RLIMIT_DATA, &limit) && limit.rlim_cur <= INT64_MAX)
        apply_limit(&info, (int64_t)limit.rlim_cur, 1024 * proc_number("/proc/self", "status", "VmData", 0));
    return info;
}

DeviceHealth device_health(void)                     { return (DeviceHealth){0}; }
const char  *device_refuse_channels(int64_t channels) { (void)channels; return NULL; }

const char *device_refuse_dtype(DType dtype) {
    if (dtype == E4M3) return "needs a GPU of compute capability 8.9 or newer";
    return dtype == F32 ? NULL : "this program was built for the CPU, which computes in f32 only";
}

void *device_alloc(size_t bytes, const char *what) {
    size_t rounded = (bytes + 255) & ~(size_t)255;
    void *memory = rounded < bytes ? NULL : aligned_alloc(256, rounded ? rounded : 256);
    REQUIRE(memory, "out of memory: %s: %.2f GiB wanted, %.2f GiB are free; a smaller --batch, --context or --model, "
            "or --attention flash, needs less", what, (double)bytes / (1 << 30),
            (double)device_info().free_bytes / (1 << 30));
    memset(memory, 0, rounded);
    return memory;
}

void device_free(void *memory)                                          { free(memory); }
void device_upload(void *device, const void *host, size_t bytes)        { memcpy(device, host, bytes); }
void device_download(void *host, const void *device, size_t bytes)      { memcpy(host, device, bytes); }
void device_pin(void *host, size_t bytes)                              { (void)host; (void)bytes; }
void device_unpin(void *host)                                           { (void)host; }
void device_zero(void *device, size_t bytes)                            { memset(device, 0, bytes); }
void device_copy(void *to, const void *from, size_t bytes)              { memcpy(to, from, bytes); }
void device_upload_async(void *device, const void *host, size_t bytes)  { memcpy(device, host, bytes); }
void device_download_async(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void *device_host_alloc(size_t bytes, const char *what)                 { return device_alloc(bytes, what); }
void device_host_free(void *host)                                       { free(host); }
void device_use_stream(void *stream)                                    { (void)stream; }
void device_wait(void)                                                  { }

void device_mark(DeviceMark *mark) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    mark->seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double device_mark_ms(const DeviceMark *from, const DeviceMark *to) { return 1e3 * (to->seconds - from->seconds); }
void   device_wait_mark(const DeviceMark *mark)                     { (void)mark; }
void   device_mark_free(DeviceMark *mark)                           { *mark = (DeviceMark){0}; }
int    device_graph_begin(DeviceGraph *graph, double key)           { (void)graph; (void)key; return 1; }
void   device_graph_end(DeviceGraph *graph)                         { (void)graph; }
void   device_graph_free(DeviceGraph *graph)                        { (void)graph; }
void   device_overlap_begin(void)                                   { }
void   device_overlap_wait(void)                                    { }
void   device_overlap_end(void)                                     { }
void   device_side_begin(void)                                      { }
void   device_side_end(void)                                        { }
void   device_freeze_weights(int frozen)                            { (void)frozen; }
void   device_graph_call(void (*call)(void *, int), void *context, int argument) { call(context, argument); }
