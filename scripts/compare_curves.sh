#!/bin/sh
# scripts/compare_curves.sh RUN TWIN OTHER - Are RUN and OTHER the same loss curve? The logs of three runs on the same
# batches: TWIN is RUN from initial weights moved by one ulp, so that their distance is what rounding alone does.
# Compares means over 20 steps: RUN and OTHER are the same when they differ by at most twice the twins' largest
# difference.
set -eu
[ $# = 3 ] || { echo "usage: scripts/compare_curves.sh RUN.csv TWIN.csv OTHER.csv" >&2; exit 1; }
awk -F, '
    FNR == 1 { file++ }
    /^[0-9]/ { sum[file, int(($1 - 1) / 20)] += $3; count[file, int(($1 - 1) / 20)]++; steps[file] = $1 }
    function distance(a, b,    k, d, greatest) {
        for (k = 0; (a, k) in sum && (b, k) in sum; k++) {
            d = sum[a, k] / count[a, k] - sum[b, k] / count[b, k]
            if (d < 0) d = -d
            if (d > greatest) greatest = d
        }
        return greatest + 0
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
