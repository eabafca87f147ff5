/* stream.c - Marks (CUDA events), recorded work (CUDA graphs), and the side stream. */
#include <stdlib.h>
#include <unistd.h>
#include "../device.h"
#include "../profile.h"
#include "cuda.h"

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

/* Work and the call after it; either may be NULL. */
struct DeviceGraphPart {
    cudaGraphExec_t work;
    void (*call)(void *, int);
    void *context;
    int argument;
};

enum { ISSUE, RECORD, REPLAY };
static DeviceGraph *recording;

/* thread-local: an allocation or a wait of this thread while it records is an error, not a part of the graph */
static void begin_part(void) { CUDA(cudaStreamBeginCapture(cuda_stream, cudaStreamCaptureModeThreadLocal)); }

static void launch(const struct DeviceGraphPart *part) {
    if (part->work) CUDA(cudaGraphLaunch(part->work, cuda_stream));
    if (part->call) part->call(part->context, part->argument);
}

/* Ends the part that is recorded, and launches it. */
static void end_part(DeviceGraph *graph, struct DeviceGraphPart part) {
    cudaGraph_t recorded;
    size_t nodes;
    CUDA(cudaStreamEndCapture(cuda_stream, &recorded));
    CUDA(cudaGraphGetNodes(recorded, NULL, &nodes));
    if (nodes) CUDA(cudaGraphInstantiate(&part.work, recorded, 0));
    CUDA(cudaGraphDestroy(recorded));
    graph->part = realloc(graph->part, (size_t)(graph->parts + 1) * sizeof part);
    REQUIRE(graph->part, "out of memory: %d parts of recorded work", graph->parts + 1);
    graph->part[graph->parts++] = part;
    launch(&part);
}

int device_graph_begin(DeviceGraph *graph, double key) {
    const int is_repeated = graph->calls++ && key == graph->last_key;
    graph->last_key = key;
    graph->mode = profile_is_on ? ISSUE : graph->parts && key == graph->key ? REPLAY : is_repeated ? RECORD : ISSUE;
    if (graph->mode == RECORD) {
        device_graph_free(graph);
        recording = graph;
        begin_part();
    }
    for (int i = 0; graph->mode == REPLAY && i < graph->parts; i++) launch(&graph->part[i]);
    return graph->mode != REPLAY;
}

void device_graph_end(DeviceGraph *graph) {
    if (graph->mode != RECORD) return;
    recording = NULL;
    graph->key = graph->last_key;
    end_part(graph, (struct DeviceGraphPart){0});
}

void device_graph_call(void (*call)(void *, int), void *context, int argument) {
    if (!recording) {
        call(context, argument);
        return;
    }
    end_part(recording, (struct DeviceGraphPart){ .call = call, .context = context, .argument = argument });
    begin_part();
}

/* A graph that is running is freed when it has completed. */
void device_graph_free(DeviceGraph *graph) {
    for (int i = 0; i < graph->parts; i++)
        if (graph->part[i].work) CUDA(cudaGraphExecDestroy(graph->part[i].work));
    free(graph->part);
    graph->part = NULL;
    graph->parts = 0;
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

/* ---- Early reads */

int cuda_frozen, cuda_early_reads;

void device_freeze_weights(int frozen) {
    cuda_frozen = frozen;
    cuda_early_reads = 0;
}
