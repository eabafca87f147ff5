#include "ranks.h"
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../../kernels/device.h"
#include "../../kernels/update.h"
#include "../base/files.h"
#include "../base/os.h"

void ranks_sum(double *values, int count) {
    static double *device;
    const size_t bytes = (size_t)count * sizeof *values;
    if (comm_size == 1) return;
    if (!device) device = device_alloc(RANKS_SUM_MAX * sizeof *values, "sums over the ranks");
    device_upload(device, values, bytes);
    comm_wait(comm_all_reduce(tensor_of(device, F64, 1, count)));
    device_download(values, device, bytes);
}

void ranks_copy_from_first(void *bytes, int size) {
    char *byte = bytes;
    double part[RANKS_SUM_MAX];
    for (int first = 0; first < size && comm_size > 1; first += RANKS_SUM_MAX) {
        const int count = size - first < RANKS_SUM_MAX ? size - first : RANKS_SUM_MAX;
        for (int i = 0; i < count; i++) part[i] = comm_rank ? 0 : byte[first + i];
        ranks_sum(part, count);
        for (int i = 0; i < count; i++) byte[first + i] = (char)part[i];
    }
}

double ranks_stops(void) {
    double stops = stop_requested() != NULL;
    ranks_sum(&stops, 1);
    return stops;
}

const char *ranks_stop(double stops) {
    const char *own = stop_requested();
    if (comm_size == 1) return own;
    return stops == 0 ? NULL : own ? own : "another rank's signal or time limit";
}

void ranks_leave_to_first(void) {
    while (comm_rank) pause();
}

void ranks_require_same(uint64_t hash, const char *what) {
    const double half[] = { (double)(hash >> 32), (double)(hash & 0xffffffff) };
    double zero[] = { comm_rank ? 0 : half[0], comm_rank ? 0 : half[1] };       /* of rank 0 */
    ranks_sum(zero, 2);
    REQUIRE(zero[0] == half[0] && zero[1] == half[1], "%s differs from that of rank 0: want the same on all hosts",
            what);
}

void ranks_require_same_tensor(Tensor t, const char *what) {
    if (comm_size == 1) return;
    const TensorStats stats = tensor_stats(t);
    ranks_require_same(xxh64(&stats, sizeof stats), what);
}
