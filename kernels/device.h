/* kernels/device.h - The device that the linked backend drives: its memory and what it can do.
   One process drives one device with one stream of work; both belong to the backend, so that no op takes them. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H
#include "tensor.h"

typedef struct {
    int threads;               /* CPU: how many threads; 0 = one per core. The CUDA backend ignores it. */
} DeviceOptions;

typedef struct {
    char    name[128];         /* "AMD EPYC 9654", "NVIDIA H200" */
    char    detail[128];       /* "2 threads, matrix products by OpenBLAS 0.3.21" */
    double  peak_flops[4];     /* by DType; 0 = unknown */
    int64_t total_bytes;
    int64_t free_bytes;        /* that this process may still take */
    char    pci_bus_id[32];    /* "0000:17:00.0"; "" = it has none */
    char    advice[160];       /* what would make it faster here and now, a line for the user; "" = nothing */
} DeviceInfo;

/* 0 and NULL = unknown: what a machine does not tell is no error. */
typedef struct {
    double      temperature_c, power_w, clock_mhz;
    const char *throttle;      /* what keeps its clock down, the worst of it: "none", "settings", "power", "thermal",
                                  "hw-slowdown", "power-brake", "other" */
    int         in_distress;   /* it is heat or the hardware; a power limit is part of a normal day */
} DeviceHealth;

extern const char *const backend_name;          /* "cpu" or "cuda" */

void        device_open(DeviceOptions options);
DeviceInfo  device_info(void);
DeviceHealth device_health(void);               /* now; a call can take milliseconds, the first one much longer */
const char *device_refuse_dtype(DType dtype);   /* NULL, or why this backend cannot compute in it */

void *device_alloc(size_t bytes, const char *what);    /* zeroed, on 256 bytes; fails with a line that names what */
void  device_free(void *memory);
void  device_upload(void *device, const void *host, size_t bytes);
void  device_download(void *host, const void *device, size_t bytes);      /* after all work issued so far */
void  device_zero(void *device, size_t bytes);
/* Host memory that is copied to and from often: a GPU copies locked pages several times as fast. Where that cannot be
   had it stays as it is. unpin before it is freed. */
void  device_pin(void *host, size_t bytes);
void  device_unpin(void *host);
/* For a program that lifts the kernels out: a cudaStream_t of its own, on which all work is issued from now on; NULL =
   back to the backend's. The CPU has no streams and ignores it. */
void  device_use_stream(void *stream);
void  device_wait(void);                               /* until all work issued so far is done */

#endif
