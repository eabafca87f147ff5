/* device.h - The device of the linked backend: its memory and its properties.
   One process drives one device with one stream of work, and one beside it during an overlap (below); they belong to
   the backend, so no op takes them. */
#pragma once
#include "tensor.h"

typedef struct {
    int threads;               /* CPU backend; 0 = one per core */
    int index;                 /* which of the visible GPUs: the rank on this machine. 0 where one GPU is visible: then
                                  the launcher has given each process its own (or NCCL refuses to share it) */
} DeviceOptions;

typedef struct {
    char    name[128];         /* "AMD EPYC 9654", "NVIDIA H200" */
    char    detail[128];       /* "2 threads" */
    double  peak_flops[4];     /* by DType; 0 = unknown */
    int64_t total_bytes;
    int64_t free_bytes;        /* available to this process */
    char    pci_bus_id[32];    /* "0000:17:00.0"; "" = none */
} DeviceInfo;

/* 0 and NULL = unknown, which is not an error. */
typedef struct {
    double      temperature_c, power_w, clock_mhz;
    const char *throttle;      /* the most severe reason of a reduced clock: "none", "settings", "power", "thermal",
                                  "hw-slowdown", "power-brake", "other" */
    int         is_abnormal;   /* the reason is heat or the hardware; a power limit is normal operation */
} DeviceHealth;

extern const char *const backend_name;          /* "cpu" or "cuda" */

/* First in main. OpenMP reads how long waiting threads spin when the program is loaded: where neither OMP_WAIT_POLICY
   nor GOMP_SPINCOUNT is set, the CPU backend sets a short time and executes the program again, once. */
void         device_start(char **argv);
void         device_open(DeviceOptions options);     /* sets OMP_NUM_THREADS on a CPU, for started programs */
/* GPUs visible to this process (CUDA_VISIBLE_DEVICES); 0 on the CPU, which processes may share. It initializes CUDA,
   which a fork does not survive: a process that forks ranks calls it in a child. */
int          device_count(void);
DeviceInfo   device_info(void);
DeviceHealth device_health(void);               /* a call can take milliseconds, the first one much longer */
const char  *device_refuse_dtype(DType dtype);  /* NULL, or why this backend cannot compute in it */
/* NULL, or the row lengths that this backend wants: a GPU's ops other than matmul and attention access rows 16 bytes at
   a time. */
const char  *device_refuse_channels(int64_t channels);

void *device_alloc(size_t bytes, const char *what);    /* zeroed, aligned to 256 bytes; errors name what */
void  device_free(void *memory);
void  device_upload(void *device, const void *host, size_t bytes);
void  device_download(void *host, const void *device, size_t bytes);      /* after all work issued so far */
void  device_zero(void *device, size_t bytes);
void  device_copy(void *to, const void *from, size_t bytes);               /* on the device; no overlap */
/* Host memory that is copied to and from often: a GPU copies page-locked memory several times as fast. Without effect
   where it cannot be locked. unpin before it is freed. */
void  device_pin(void *host, size_t bytes);
void  device_unpin(void *host);
/* Page-locked host memory, zeroed, for asynchronous copies. The host may write it (after an upload) or read it (after a
   download) when it has waited for a mark made after the copy. An upload from pageable memory has read all bytes when
   it returns. */
void *device_host_alloc(size_t bytes, const char *what);
void  device_host_free(void *host);
void  device_upload_async(void *device, const void *host, size_t bytes);
void  device_download_async(void *host, const void *device, size_t bytes);
/* A point between the work issued before and after it (a CUDA event); {0} = not set, which counts as reached. */
typedef struct { void *event; double seconds; } DeviceMark;
void   device_mark(DeviceMark *mark);                   /* sets it, also again */
void   device_wait_mark(const DeviceMark *mark);
double device_mark_ms(const DeviceMark *from, const DeviceMark *to);   /* time between them; waits for both */
void   device_mark_free(DeviceMark *mark);
/* Work that is issued repeatedly with the same operands, as a CUDA graph: one launch.
       if (device_graph_begin(&graph, key)) { ... issue the work ... }
       device_graph_end(&graph);
   key: a number passed by value that may change. A call is recorded when the one before it had the same key: ops
   allocate in their first call. One key's recording is kept; calls with another one issue their work as usual, as do
   all on the CPU. Same work, same bits. */
typedef struct { struct DeviceGraphPart *part; int parts; double key, last_key; int calls, mode; } DeviceGraph;
int    device_graph_begin(DeviceGraph *graph, double key);
void   device_graph_end(DeviceGraph *graph);
void   device_graph_free(DeviceGraph *graph);
/* Overlap: between device_overlap_begin and _end an op may issue a part of its work, named in its header, beside the
   stream of work: device_side_begin, the part, device_side_end. A part comes after all work issued before it, and after
   other parts. The caller lets nothing read its results or write its operands until device_overlap_wait: work issued
   from then on comes after all parts. Outside, on the CPU, and in a profile, where an op's time is its own, parts are
   ordinary work. */
void   device_overlap_begin(void);
void   device_overlap_wait(void);
void   device_overlap_end(void);                        /* waits, too */
void   device_side_begin(void);
void   device_side_end(void);
/* Calls call(context, argument) now, and in recorded work again with each launch, between the work before and after it:
   for collectives, which are not recorded. */
void   device_graph_call(void (*call)(void *context, int argument), void *context, int argument);
/* Between device_freeze_weights(1) and (0) the caller issues nothing that writes weights or biases, and nothing beside
   the stream. A GPU kernel may then read weights before the kernel in front of it has ended. */
void   device_freeze_weights(int frozen);
/* For a program that uses the kernels as a library: the cudaStream_t on which all work is issued from now on; NULL =
   the backend's own. The CPU ignores it. */
void  device_use_stream(void *stream);
void  device_wait(void);                               /* until all work issued so far is done */
