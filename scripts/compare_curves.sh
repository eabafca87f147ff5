#!/bin/sh
# compare_curves.sh [--twin TWIN] RUN OTHER... - Are RUN and each OTHER the same loss curve? Each is a run's directory
# or its log.csv, of runs of equal length on the same batches. Prints of each the loss at the end of its mean line
# (plot_loss.sh, report.html), how far its means over 20 steps differ from those of RUN, its speed after the first 20
# steps, and the memory that settings.txt beside the log gives.
# Rounding alone makes curves differ, and more with every step. TWIN measures by how much: it is RUN again with initial
# weights moved by one ulp (./train_gpt --config RUN/settings.txt --perturb --out TWIN). With it the verdict of each
# OTHER is, by its largest difference:
#   the same curve      at most twice that of TWIN, or 1e-4 of the loss
#   cannot tell         at most ten times as much: one twin is one sample of rounding; longer runs decide
#   another curve       more
# The exit code is 0 if all are the same curve, 2 if that cannot be told of one, 1 if one is another curve.
usage="usage: scripts/compare_curves.sh [--twin TWIN] RUN OTHER..."
twin=
while :; do
    case ${1-} in
    --help|-h) echo "$usage"; echo; sed -n '2,/^usage=/s/^# \{0,1\}//p' "$0"; exit ;;
    --twin) [ $# -ge 2 ] || break; twin=$2; shift 2 ;;
    --twin=*) twin=${1#*=}; shift ;;
    *) break ;;
    esac
done
case ${1-} in -*) set -- ;; esac
if [ $# -lt 1 ] || { [ $# = 1 ] && [ -z "$twin" ]; }; then
    echo "$usage   (each a run's directory or its log.csv; --help explains)" >&2
    exit 1
fi
given=$1
shift
set -- "$given" ${twin:+"$twin"} "$@"
scripts=$(dirname "$0")
. "$scripts/logs.sh"

awk -F, -v script="$script" -v has_twin="${twin:+1}" "$read_columns"'
FNR == 1 {
    want_columns("step loss", "a log of training steps")
    path[++file] = shown(FILENAME)
    memory[file] = setting_comment(FILENAME, "memory")
    sub(/ of .*/, "", memory[file])
    next
}
is_number(cell("step")) { y_at[file, ++rows[file]] = is_number(cell("loss")) ? cell("loss") + 0 : "" }
is_number(cell("step")) && is_number(cell("loss")) {
    block = int((cell("step") - 1) / 20)
    sum[file, block] += cell("loss")
    steps[file] = cell("step") + 0
    count[file, block]++
    if (block) { ms[file] += cell("ms"); tokens[file] += cell("ms") * cell("tokens_per_s") / 1000 }
}
# The difference of the means of two runs over 20 steps: largest, and the block where it is.
function compare(a, b,   k, d) {
    largest = where = 0
    for (k = 0; k < blocks; k++) {
        d = sum[a, k] / count[a, k] - sum[b, k] / count[b, k]
        if (d < 0) d = -d
        if (d > largest) { largest = d; where = k }
    }
}
function row(name, loss, difference, at, verdict, speed, memory) {
    printf "%-" widest "s  %8s  %-10s  %-15s  %-18s  %9s  %s\n", name, loss, difference, at, verdict, speed, memory
}
END {
    if (failed) exit 1
    blocks = int(steps[1] / 20)
    widest = 3
    for (i = 1; i <= file; i++) {
        if (!steps[i]) stop(path[i] ": no row with a loss")
        if (steps[i] != steps[1])
            stop(path[i] ": " steps[i] " steps, want " steps[1] " as in " path[1] "; compare runs of equal length")
        for (k = 0; k < blocks; k++)
            if (count[i, k] != 20) stop(path[i] ": steps " 20 * k + 1 " to " 20 * k + 20 " are not all there")
        if (length(name_of(path[i])) > widest) widest = length(name_of(path[i]))
    }
    if (!blocks) stop(path[1] ": " steps[1] " steps, want 20 or more")
    print steps[1] " steps; loss: the end of the mean line; difference: the largest of the means over 20 steps"
    print ""
    row("run", "loss", "difference", "at steps", "verdict", "tokens/s", "memory")
    for (i = 1; i <= file; i++) {
        compare(1, i)
        verdict = ""
        if (has_twin && i == 2) {
            verdict = "the twin"
            allowed = 2 * largest
            bound = "twice that of the twin"
            floor = 1e-4 * sum[1, blocks - 1] / 20
            if (allowed < floor) { allowed = floor; bound = "1e-4 of the loss" }
        }
        if (has_twin && i > 2) {
            verdict = largest <= allowed ? "the same curve" : largest <= 10 * allowed ? "cannot tell" : "ANOTHER curve"
            if (largest > 10 * allowed) code = 1
            else if (largest > allowed && !code) code = 2
        }
        for (end = points = thin(i, rows[i]); !seen[end]; ) end--
        row(name_of(path[i]), sprintf("%.4f", running_mean(end, points)), i == 1 ? "-" : sprintf("%.2g", largest),
            i == 1 ? "-" : 20 * where + 1 " to " 20 * where + 20, verdict,
            ms[i] > 0 ? sprintf("%.1f k", tokens[i] / ms[i]) : "-", memory[i] == "" ? "-" : memory[i])
    }
    if (has_twin) printf "\nThe same curve: differences up to %.2g, %s; another one: ten times that.\n", allowed, bound
    else print "\nIs this rounding? --twin TWIN decides: the first run again, with --perturb; --help explains"
    exit code
}' "$@"
