/* kernels/cuda/stream.c - Marks (CUDA events), recorded work (CUDA graphs), and NVTX ranges. */
#include <unistd.h>
#include "../comm.h"
#include "../device.h"
#include "../profile.h"
#include "cuda.h"
#if __has_include(<nvtx3/nvToolsExt.h>)     /* a package of its own in some distributions of the toolkit */
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(name) (void)(name)
#define nvtxRangePop()
#endif

/* ---- Marks */

void device_mark(DeviceMark *mark) {
    if (!mark->event) CUDA(cudaEventCreate((cudaEvent_t *)&mark->event));
    CUDA(cudaEventRecord(mark->event, cuda_stream));
}

void device_wait_mark(const DeviceMark *mark) {
    if (mark->event) CUDA(cudaEventSynchronize(mark->event));
    while (cuda_aborted) pause();
}

double device_mark_ms(const DeviceMark *from, const DeviceMark *to) {
    float ms = 0;
    device_wait_mark(from);
    device_wait_mark(to);
    CUDA(cudaEventElapsedTime(&ms, from->event, to->event));
    return (double)ms;
}

void device_mark_free(DeviceMark *mark) {
    if (mark->event) CUDA(cudaEventDestroy(mark->event));
    *mark = (DeviceMark){0};
}

/* ---- Graphs */

enum { ISSUE, RECORD, REPLAY };

int device_graph_begin(DeviceGraph *graph, double key) {
    const int is_repeated = graph->calls++ && key == graph->last_key;
    graph->last_key = key;
    graph->mode = comm_size > 1 || profile_is_on      ? ISSUE
                : graph->executable && key == graph->key ? REPLAY : is_repeated ? RECORD : ISSUE;
    /* thread-local: an allocation or a wait of this thread while it records is an error, not a part of the graph */
    if (graph->mode == RECORD) CUDA(cudaStreamBeginCapture(cuda_stream, cudaStreamCaptureModeThreadLocal));
    return graph->mode != REPLAY;
}

void device_graph_end(DeviceGraph *graph) {
    if (graph->mode == RECORD) {
        cudaGraph_t recorded;
        CUDA(cudaStreamEndCapture(cuda_stream, &recorded));
        device_graph_free(graph);
        CUDA(cudaGraphInstantiate((cudaGraphExec_t *)&graph->executable, recorded, 0));
        CUDA(cudaGraphDestroy(recorded));
        graph->key = graph->last_key;
    }
    if (graph->mode != ISSUE) CUDA(cudaGraphLaunch(graph->executable, cuda_stream));
}

/* A graph that is running is freed when it has completed. */
void device_graph_free(DeviceGraph *graph) {
    if (graph->executable) CUDA(cudaGraphExecDestroy(graph->executable));
    graph->executable = NULL;
}

/* ---- Overlap */

static cudaStream_t side_stream, main_stream;
static cudaEvent_t begun, done;
static int is_overlapping, is_pending;
int cuda_side;
int64_t cuda_joins;

void device_overlap_begin(void) {
    is_overlapping = !profile_is_on;
    if (side_stream) return;
    CUDA(cudaStreamCreateWithFlags(&side_stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
}

void device_side_begin(void) {
    if (!is_overlapping) return;
    CUDA(cudaEventRecord(begun, cuda_stream));
    CUDA(cudaStreamWaitEvent(side_stream, begun, 0));
    main_stream = cuda_stream;
    cuda_stream = side_stream;
    cuda_side = 1;
}

void device_side_end(void) {
    if (!cuda_side) return;
    cuda_stream = main_stream;
    cuda_side = 0;
    is_pending = 1;
}

void device_overlap_wait(void) {
    if (!is_pending) return;
    CUDA(cudaEventRecord(done, side_stream));
    CUDA(cudaStreamWaitEvent(cuda_stream, done, 0));
    is_pending = 0;
    cuda_joins++;
}

void device_overlap_end(void) {
    device_overlap_wait();
    is_overlapping = 0;
}

/* ---- Ranges */

void device_range_begin(const char *name) { nvtxRangePushA(name); }
void device_range_end(void)               { nvtxRangePop(); }
