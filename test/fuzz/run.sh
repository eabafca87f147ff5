#!/bin/sh
# run.sh PROGRAM SECONDS [TARGET...] - Fuzzes every target, or those named, for SECONDS in all. What it learns
# stays in build/fuzz-corpus/TARGET and is where the next run begins. A line for each target; exit code 1, with the
# command that runs the input again, when one was found that crashes, hangs, leaks, or breaks a claim.
program=$1 seconds=$2
[ -x "$program" ] && [ "$seconds" -gt 0 ] || { echo "usage: test/fuzz/run.sh PROGRAM SECONDS [TARGET...]" >&2; exit 1; }
shift 2
here=$(dirname "$0") learned=build/fuzz-corpus
[ $# -gt 0 ] || { cd "$here/corpus" && set -- * && cd - >/dev/null; } || exit 1
export LC_ALL=C ASAN_OPTIONS=allocator_may_return_null=1
each=$((seconds / $#)) failed=0
[ $each -gt 0 ] || each=1
for target in "$@"; do
    mkdir -p "$learned/$target"
    log=$learned/$target.log
    FUZZ_TARGET=$target "$program" -max_total_time=$each -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=64 \
        -max_len=4096 -print_final_stats=1 -dict="$here/$target.dict" -artifact_prefix="$learned/$target-" \
        "$learned/$target" "$here/corpus/$target" >"$log" 2>&1
    status=$?
    awk -v target="$target" '/^#[0-9]+.* cov: / { cov = $0; sub(/.* cov: /, "", cov); sub(/ .*/, "", cov) }
        /number_of_executed_units/ { runs = $2 } /average_exec_per_sec/ { rate = $2 } /peak_rss_mb/ { rss = $2 }
        END { printf "%-12s %9d inputs, %6d a second, %5d edges, %4d MiB\n", target, runs, rate, cov, rss }' "$log"
    [ $status = 0 ] && continue
    failed=1
    grep -E 'ERROR: |SUMMARY: |runtime error: |^test/fuzz/.*: .*: ' "$log" | head -n 5
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "    again: FUZZ_TARGET=$target $program ${input:-   (see $log)}"
done
exit $failed
