#!/bin/sh
# run.sh PROGRAM... - Runs test programs and .sh scripts in sequence and adds up their results. Each must end with
# a line "N passed, N failed, N skipped"; the whole output is shown if a test failed, else the reasons for skipping.
# A crash, another exit code, a sanitizer report, a missing last line and a run time over 300 s also count as failures.
# The last line is "N passed, N failed" (", N skipped"); exit code 1 if a test failed.
LC_ALL=C
export LC_ALL
# Waiting threads sleep: spinning makes a test with more threads than cores ten times slower.
OMP_WAIT_POLICY=passive
export OMP_WAIT_POLICY
limit_s=300
[ $# -gt 0 ] || { echo "usage: test/run.sh PROGRAM..." >&2; exit 1; }
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
trap 'exit 130' INT TERM HUP

# The three counts in the last line, or nothing.
counts() {
    tail -n 1 "$output" | sed -En 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 0\4/p'
}
take_counts() { p=$1 f=$2 s=${3#0}; s=${s:-0}; }

passed=0 failed=0 skipped=0
for program in "$@"; do
    name=${program#build/}
    case $program in */*) ;; *) program=./$program ;; esac
    case $program in *.sh) shell='sh' ;; *) shell= ;; esac
    printf '%-26s ' "$name"
    began=$(date +%s.%N)
    if [ -f "$program" ]; then
        # --foreground: Ctrl-C also reaches the test
        timeout --foreground -k 5 $limit_s $shell "$program" </dev/null >"$output" 2>&1
        status=$?
    else
        echo "there is no such file" >"$output"
        status=127
    fi
    seconds=$(date +%s.%N | awk -v began="$began" '{ printf "%.1f", $1 - began }')

    why=
    case $status in
    0|1) ;;
    124) why="killed after $limit_s s" ;;
    129|13?|14?|15?) why="killed by signal $((status - 128))" ;;
    *) why="exit code $status" ;;
    esac
    sum=$(counts)
    if [ -z "$sum" ]; then
        why=${why:-"no last line with \"N passed, N failed\""}
        sum="0 0 0"
    fi
    # shellcheck disable=SC2086
    take_counts $sum
    if [ "$status" = 1 ] && [ "$f" = 0 ] && [ -z "$why" ]; then why="exit code 1, though no test failed"; fi
    if [ "$status" = 0 ] && [ "$f" != 0 ] && [ -z "$why" ]; then why="exit code 0, though a test failed"; fi
    if [ $((p + f + s)) = 0 ] && [ -z "$why" ]; then why="no test ran"; fi
    if grep -Eq '(ERROR|WARNING|SUMMARY): [A-Za-z]*Sanitizer|runtime error: ' "$output"; then
        why="${why:+$why; }a sanitizer's report"
    fi
    [ -z "$why" ] || [ "$f" != 0 ] || f=1

    line="$p passed"
    [ "$f" = 0 ] || line="$line, $f failed"
    [ "$s" = 0 ] || line="$line, $s skipped"
    printf '%-34s %6s s%s\n' "$line" "$seconds" "${why:+  ($why)}"
    if [ "$f" != 0 ]; then sed 's/^/    /' "$output"
    elif [ "$s" != 0 ]; then sed -n 's/^skip /    skip /p' "$output"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

echo
if [ "$skipped" -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"
else echo "$passed passed, $failed failed"; fi
[ "$failed" = 0 ]
