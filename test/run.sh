#!/bin/sh
# run.sh PROGRAM... [--alone PROGRAM...] - Runs test programs and .sh scripts, as many at a time as there are cores, at
# most $JOBS (4), those behind --alone one after the other at the end; adds up their results. Each must end with a line
# "N passed, N failed, N skipped"; the whole output is shown if a test failed, else the reasons for skipping. A crash,
# another exit code, a sanitizer report, a missing last line and a run time over 300 s also count as failures.
# The last line is "N passed, N failed" (", N skipped"); exit code 1 if a test failed.
LC_ALL=C
export LC_ALL
# Waiting threads sleep: spinning makes a test with more threads than cores ten times slower.
OMP_WAIT_POLICY=passive
export OMP_WAIT_POLICY
limit_s=300
[ $# -gt 0 ] || { echo "usage: test/run.sh PROGRAM... [--alone PROGRAM...]" >&2; exit 1; }

if [ "$1" != --one ]; then
    RESULTS=$(mktemp -d) || exit 1
    export RESULTS
    trap 'rm -rf "$RESULTS"' EXIT
    trap 'exit 130' INT TERM HUP
    cores=$(nproc 2>/dev/null || echo 2) jobs=${JOBS:-4} list=beside
    [ "$jobs" -le "$cores" ] || jobs=$cores
    : > "$RESULTS/beside"
    : > "$RESULTS/alone"
    for program; do
        if [ "$program" = --alone ]; then list=alone; else echo "$program" >> "$RESULTS/$list"; fi
    done
    xargs -r -n 1 -P "$jobs" sh "$0" --one < "$RESULTS/beside"
    xargs -r -n 1 sh "$0" --one < "$RESULTS/alone"
    echo
    cat "$RESULTS"/counts.* | awk -v programs="$(cat "$RESULTS/beside" "$RESULTS/alone" | grep -c .)" '
        { passed += $1; failed += $2; skipped += $3 }
        END {
            if (NR != programs) { print programs - NR " programs have no result"; failed++ }
            printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
            exit failed > 0
        }'
    exit
fi

# ---- One program: its line and, where something is to be shown, its output, printed at once

program=$2 output=$RESULTS/output.$$ text=$RESULTS/text.$$
began=$(date +%s.%N)
case $program in */*) ;; *) program=./$program ;; esac
case $program in *.sh) shell=sh ;; *) shell= ;; esac
if [ -f "$program" ]; then
    # --foreground: Ctrl-C also reaches the test
    timeout --foreground -k 5 $limit_s $shell "$program" </dev/null >"$output" 2>&1
    status=$?
else
    echo "there is no such file" >"$output"
    status=127
fi
seconds=$(date +%s.%N | awk -v began="$began" '{ printf "%.1f", $1 - began }')
case $status in
0|1) why= ;;
124) why="killed after $limit_s s" ;;
129|13?|14?|15?) why="killed by signal $((status - 128))" ;;
*) why="exit code $status" ;;
esac
sum=$(tail -n 1 "$output" | sed -En 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 0\4/p')
[ -n "$sum" ] || why=${why:-"no last line with \"N passed, N failed\""}
# shellcheck disable=SC2086
set -- ${sum:-0 0 0}
passed=$1 failed=$2 skipped=${3#0}
skipped=${skipped:-0}
if [ -z "$why" ]; then
    case $status$failed in
    10) why="exit code 1, though no test failed" ;;
    0[1-9]*) why="exit code 0, though a test failed" ;;
    esac
    [ $((passed + failed + skipped)) != 0 ] || why="no test ran"
fi
if grep -Eq '(ERROR|WARNING|SUMMARY): [A-Za-z]*Sanitizer|runtime error: ' "$output"; then
    why="${why:+$why; }a sanitizer's report"
fi
[ -z "$why" ] || [ "$failed" != 0 ] || failed=1
{
    line="$passed passed"
    [ "$failed" = 0 ] || line="$line, $failed failed"
    [ "$skipped" = 0 ] || line="$line, $skipped skipped"
    printf '%-36s %-34s %6s s%s\n' "${program#build/}" "$line" "$seconds" "${why:+  ($why)}"
    if [ "$failed" != 0 ]; then sed 's/^/    /' "$output"
    elif [ "$skipped" != 0 ]; then sed -n 's/^skip /    skip /p' "$output"
    fi
} > "$text"
cat "$text"
echo "$passed $failed $skipped" > "$RESULTS/counts.$$"
