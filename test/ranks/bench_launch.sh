#!/bin/sh
# bench_launch.sh [RANKS...] - Start, heartbeat and end of many ranks, processes of this machine that compute nothing
# (launch_probe.c). Prints a row for each number: seconds until all have joined, memory and open files of
# rank 0, its share of a core while they run, seconds until all have ended after SIGTERM, and after SIGKILL of one rank.
. "$(dirname "$0")/../shell.sh"
export PROBE_DIR="$dir" PROBE_STEP_MS=1000
since() { date +%s.%N | awk -v began="$1" '{ printf "%.1f", $1 - began }'; }
ticks() { awk '{ print $14 + $15 }' "/proc/$(cat "$dir/rank.0")/stat"; }          # CPU time, 100 a second
start() {         # start RANKS: until all have joined; $seconds
    rm -f "$dir"/rank.* "$dir/out"
    began=$(date +%s.%N)
    "$build/launch_probe" --gpus "$1" --steps 1000000 --rendezvous-timeout 300 > "$dir/out" 2> "$dir/err" &
    pid=$!
    wait_for joined "$dir/out"
    seconds=$(since "$began")
}
end() {           # end CODE: of the run, whose ranks were sent a signal; $seconds
    began=$(date +%s.%N)
    wait $pid
    is "exit code" $? "$1"
    seconds=$(since "$began")
}

echo "| ranks | joined, s | rank 0, MiB | its open files | its CPU, % | SIGTERM to end, s | SIGKILL of one to end, s |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
for ranks in ${*:-8 64 512 1024 2048}; do
    start "$ranks"
    row="| $ranks | $seconds"
    rank0=/proc/$(cat "$dir/rank.0")
    before=$(ticks)
    sleep 5
    row="$row | $(awk '/VmRSS/ { printf "%.1f", $2 / 1024 }' "$rank0/status") | $(ls "$rank0/fd" | wc -l)"
    row="$row | $(awk -v before="$before" -v now="$(ticks)" 'BEGIN { printf "%.1f", (now - before) / 5 }')"
    kill -TERM $pid
    end 75
    row="$row | $seconds"
    start "$ranks"
    killed=$((ranks / 2))
    process=$(cat "$dir/rank.$killed")
    kill -KILL "$process"
    end 1
    echo "$row | $seconds |"
    expect "it is named" grep "^train_gpt: rank $killed (host .*, pid $process) was killed or crashed;" "$dir/err"
    is "lines" "$(wc -l < "$dir/err")" 1
    close_test "$ranks ranks start, stop, and name the one that was killed"
done
close_tests
