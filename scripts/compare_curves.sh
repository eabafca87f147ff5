#!/bin/sh
# scripts/compare_curves.sh RUN TWIN OTHER - Are RUN and OTHER the same loss curve? The arguments are logs of three
# runs on the same batches. TWIN is RUN with initial weights moved by one ulp: their distance is the effect of rounding
# alone. Compares 20-step means: the curves are the same if RUN and OTHER differ by at most twice the maximum
# difference between RUN and TWIN.
set -eu
[ $# = 3 ] || { echo "usage: scripts/compare_curves.sh RUN.csv TWIN.csv OTHER.csv" >&2; exit 1; }
awk -F, '
    FNR == 1 { file++ }
    /^[0-9]/ { sum[file, int(($1 - 1) / 20)] += $3; count[file, int(($1 - 1) / 20)]++; steps[file] = $1 }
    function distance(a, b,    k, d, max_distance) {
        for (k = 0; (a, k) in sum && (b, k) in sum; k++) {
            d = sum[a, k] / count[a, k] - sum[b, k] / count[b, k]
            if (d < 0) d = -d
            if (d > max_distance) max_distance = d
        }
        return max_distance + 0
    }
    END {
        if (file != 3 || steps[1] < 20 || steps[1] != steps[2] || steps[1] != steps[3]) {
            print "want three logs of as many steps, 20 or more" > "/dev/stderr"; exit 1
        }
        twin = distance(1, 2); other = distance(1, 3)
        printf "%d steps, largest difference of the means over 20 steps: twin %.2g, other %.2g: %s\n",
            steps[1], twin, other, other <= 2 * twin ? "the same curve" : "NOT the same curve"
        exit !(other <= 2 * twin)
    }' "$1" "$2" "$3"
