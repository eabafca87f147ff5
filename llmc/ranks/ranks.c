#include "ranks.h"
#include "../../kernels/update.h"

void ranks_sum(double *values, int count) {
    static double *device;
    const size_t bytes = (size_t)count * sizeof *values;
    if (comm_size == 1) return;
    if (!device) device = device_alloc(RANKS_SUM_MAX * sizeof *values, "sums over the ranks");
    device_upload(device, values, bytes);
    comm_wait(comm_all_reduce(tensor_of(device, F64, 1, count)));
    device_download(values, device, bytes);
}

/* An all-gather whose first slice is used. */
void ranks_copy_from_first(void *bytes, size_t size) {
    const int64_t words = (int64_t)(size + 3) / 4;
    if (comm_size == 1) return;
    Tensor all = tensor_of(device_alloc((size_t)(4 * words * comm_size), "bytes of rank 0"), I32, 2, comm_size, words);
    if (!comm_rank) device_upload(all.data, bytes, size);
    comm_wait(comm_all_gather(all));
    device_download(bytes, all.data, size);
    device_free(all.data);
}

double ranks_stops(void) {
    double stops = stop_requested() != NULL;
    ranks_sum(&stops, 1);
    return stops;
}

const char *ranks_stop(double stops) {
    const char *this_stop = stop_requested();
    if (comm_size == 1) return this_stop;
    return stops == 0 ? NULL : this_stop ? this_stop : "another rank's signal";
}

void ranks_leave_to_first(void) {
    while (comm_rank) pause();
}

void ranks_require_same(uint64_t hash, const char *what) {
    uint64_t first = hash;
    ranks_copy_from_first(&first, sizeof first);
    REQUIRE(first == hash, "%s differs from that of rank 0: want the same on all hosts", what);
}

void ranks_require_same_tensor(Tensor t, const char *what) {
    if (comm_size == 1) return;
    const TensorStats stats = tensor_stats(t);
    ranks_require_same(xxh64(&stats, sizeof stats), what);
}
