#!/bin/sh
# scripts/compare_curves.sh RUN OTHER | RUN TWIN OTHER - Are RUN and OTHER the same loss curve?
# Each is a run's directory or its log.csv, of runs on the same batches. Prints how far the means over 20 steps differ.
# Rounding alone makes curves differ, and more with every step; TWIN measures by how much: it is RUN with initial
# weights moved by one ulp. With TWIN the answer is the exit code: RUN and OTHER are the same curve (0) if their largest
# difference is at most twice that of RUN and TWIN, else not (1). With two runs the commands that make TWIN are printed.
usage="usage: scripts/compare_curves.sh RUN OTHER | RUN TWIN OTHER"
case ${1-} in --help|-h) echo "$usage"; sed -n '2,/^usage=/s/^# \{0,1\}//p' "$0" | sed 1d; exit ;; esac
case $# in 2|3) ;; *) echo "$usage   (each a run's directory or its log.csv; --help explains)" >&2; exit 1 ;; esac
first=${1%/log.csv} second=$2
first=${first%/}
scripts=$(dirname "$0")
. "$scripts/logs.sh"

awk -F, -v script="$script" "$read_columns"'
FNR == 1 { want_columns("step loss", "a log of training steps"); path[++file] = shown(FILENAME); next }
is_number(cell("step")) && is_number(cell("loss")) {
    block = int((cell("step") - 1) / 20)
    sum[file, block] += cell("loss")
    steps[file] = cell("step") + 0
    count[file, block]++
}
# Of the means of a and b over 20 steps: largest, the block where it is, mean.
function compare(a, b,   k, d, total) {
    largest = where = 0
    for (k = 0; k < blocks; k++) {
        d = sum[a, k] / count[a, k] - sum[b, k] / count[b, k]
        if (d < 0) d = -d
        if (d > largest) { largest = d; where = k }
        total += d
    }
    mean = total / blocks
}
END {
    if (failed) exit 1
    blocks = int(steps[1] / 20)
    for (i = 1; i < ARGC; i++) {
        if (!steps[i]) stop(path[i] ": no row with a loss")
        if (steps[i] != steps[1])
            stop(path[i] ": " steps[i] " steps, want " steps[1] " as in " path[1] "; compare runs of equal length")
        for (k = 0; k < blocks; k++)
            if (count[i, k] != 20) stop(path[i] ": steps " 20 * k + 1 " to " 20 * k + 20 " are not all there")
    }
    if (!blocks) stop(path[1] ": " steps[1] " steps, want 20 or more")
    if (file == 3) { compare(1, 2); twin = largest }
    compare(1, file)
    printf "%d steps, means over 20 steps: they differ by at most %.2g (steps %d to %d), by %.2g on average\n",
        steps[1], largest, 20 * where + 1, 20 * where + 20, mean
    if (file == 3) {
        printf("the twin: by at most %.2g; allowed is twice that: %s\n", twin,
            largest <= 2 * twin ? "the same curve" : "NOT the same curve")
        exit !(largest <= 2 * twin)
    }
}' "$@" || exit 1
[ $# = 2 ] || exit 0

config="OPTIONS" note="
OPTIONS are those of the first run."
[ ! -f "$first/settings.txt" ] || config="--config $first/settings.txt" note=
cat <<END

Is that rounding? A third run decides, a twin of the first with initial weights moved by one ulp:

    ./train_gpt $config --steps 0 --save-dtype f32 --out $first-start
    scripts/train_reference.py --init $first-start --twin $first-start-twin
    ./train_gpt $config --init $first-start-twin --out $first-twin
    scripts/compare_curves.sh $first $first-twin $second

They are the same curve if they differ by at most twice as much as the first run and its twin.$note
END
