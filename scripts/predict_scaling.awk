# predict_scaling.awk - awk -f scripts/predict_scaling.awk: the training step at more GPUs than one has, from the step of
# one and measured bandwidths. Time in ms, sizes in bytes; forward takes a third of a step, backward two.
#   A gather of a group's parameters (bf16) runs beside the forward pass up to that group, a reduce-scatter of its
#   gradients (f32) beside the backward pass behind it, one after the other. Each takes latency + (N-1)/N bytes/bandwidth.
#   Steps of one GPU vary: N in step take the maximum, of normal variables with the deviation `spread`.

function bandwidth(n, inside) { return (n > 8 ? between : inside) * 1e6 }       # bytes/ms
function collective(n, bytes, inside) { return latency(n) + (n - 1) / n * bytes / bandwidth(n, inside) }
function latency(n) { return 0.03 + 0.01 * log(n) / log(2) }

# A step of n GPUs in ms; sets exposed, what compute waits.
function step_of(n,    table, block, head, work, gathered, now, busy, l) {
    table = (50304 + 1024) * C                  # parameters of the groups: both tables, a block
    block = 12 * C * C + 13 * C
    head = 50304 * C / (50304 * C + L * block)  # the head's share of a pass, that of a block
    work = (1 - head) / L
    gathered = now = collective(n, 2 * table, gather)
    for (l = 0; l < L; l++) {
        gathered += collective(n, 2 * block, gather)
        if (now < gathered) now = gathered
        now += work * ms / 3
    }
    now += head * ms
    busy = now
    for (l = 0; l < L; l++) {
        now += work * ms * 2 / 3
        busy = (busy > now ? busy : now) + collective(n, 4 * block, scatter)
    }
    busy += collective(n, 4 * table, scatter)   # complete last: the embedding's gradients
    exposed = busy + latency(n) - ms
    return (ms + exposed) * (1 + spread * expected_max[n])
}

function row(title, layers, channels, step,    n, one) {
    L = layers; C = channels; ms = step
    printf "| %s | %.1f |", title, ms
    for (n = 2; n <= 512; n *= n < 8 ? 4 : 8) {
        one = step_of(n)
        printf " %.1f | %.1f | %.0f %% |", one, exposed, 100 * ms / one
    }
    print ""
}

BEGIN {
    scatter = 203; gather = 299     # GB/s on the bus at 64 MiB, two H200 over NVLink (make bench-comm)
    between = 45                    # GB/s of a GPU: nine tenths of 400 Gb/s
    spread = 0.01                   # (90 % - 10 %) / 2.56 of the steps of one GPU over their median
    # of n standard normal variables: the quantile at (n - 0.375) / (n + 0.25) (Blom 1958)
    expected_max[2] = 0.589; expected_max[8] = 1.434; expected_max[64] = 2.337; expected_max[512] = 3.031
    print "| GPUs | 1 | 2 | exposed | | 8 | exposed | | 64 | exposed | | 512 | exposed | |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    row("124M, B = 64", 12, 768, 101.7)
    row("124M, B = 16", 12, 768, 26.6)
    row("1558M, B = 16", 48, 1600, 291.7)
    row("1558M, B = 4", 48, 1600, 291.7 / 4)
}
