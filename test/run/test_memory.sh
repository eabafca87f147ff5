#!/bin/sh
# test_memory.sh - The memory plan against the memory in use. On a GPU it runs alone, for others change that.
. "$(dirname "$0")/../shell.sh"

if grep -q __asan_init "$gpt"; then skip_test "memory" "a sanitizer takes as much for itself"; close_tests; fi

make_text text 3000 1500
# In use: anonymous resident memory, or memory of the GPU (of which the plan says how much was in use before: the
# difference of "free" and all).
kib() { awk -v row="$1" -v field="$2" '$1 == row { n = $field; u = $(field + 1)
    print int(u == "GiB" ? n * 1048576 : u == "MiB" ? n * 1024 : n); exit }' "$dir/plan.out"; }
taken() {
    if [ "$cuda" ]; then
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk 'NR == 1 { print $1 * 1024 }'
    else
        sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null
    fi
}
if [ "$cuda" ]; then
    options="--model d12 --dtype bf16 --vocab 256 --context 1024 --batch 16 --total-batch 0 --steps 60" slack=524288
else options="--model d4 --context 256 --batch 24 --steps 1" slack=65536
fi
options="--data $dir/text/train.txt --val-fraction 0 --out $dir/run $options"      # with copies for checkpoints
expect "plan" "$gpt" $options --dry-run
cp "$dir/expect.out" "$dir/plan.out"
"$gpt" $options > /dev/null 2>&1 &
pid=$! peak=0
while kill -0 $pid 2>/dev/null; do
    now=$(taken)
    [ "${now:-0}" -gt $peak ] && peak=$now
    [ "$cuda" ] || sleep 0.02
done
wait $pid || bad=1
planned=$(kib total 2)
[ -z "$cuda" ] || planned=$((planned + $(kib free 5) - $(kib free 2)))
name="the memory plan is right to 5 % and $((slack / 1024)) MiB"
if [ $peak = 0 ] && [ $bad = 0 ]; then skip_test "$name" "no /proc here"
else
    expect "planned $planned KiB, took $peak" \
        awk "BEGIN { d = $peak - $planned; if (d < 0) d = -d; exit !(d < 0.05 * $planned + $slack) }"
    close_test "$name (planned $((planned / 1024)) MiB, took $((peak / 1024)))"
fi

# ---- Limits of control groups, v2 and v1: the process' own group and those above it; and of the process
grouped() {       # grouped "FREE of TOTAL"|THREADS LINE FILE TEXT...: a plan where LINE is /proc/self/cgroup
    want=$1 line=$2; shift 2
    unshare -rm sh -c '
        line=$1 gpt=$2 options=$3; shift 3
        mount -t tmpfs none /sys/fs/cgroup && echo "$line" > /sys/fs/cgroup/line &&
            mount --bind /sys/fs/cgroup/line /proc/$$/cgroup || exit 1
        while [ $# -gt 0 ]; do
            mkdir -p "/sys/fs/cgroup/${1%/*}"
            echo "$2" > "/sys/fs/cgroup/$1"
            shift 2
        done
        exec "$gpt" $options --dry-run' sh "$line" "$gpt" "$text --batch 1" "$@" > "$dir/group.out" 2>&1
    is "limits in $line" "$(sed -n 's/^  free *//p; s/^device .*, //p' "$dir/group.out" | grep -x "$want")" "$want"
}
name="limits of memory and cores" text="--data $dir/text/train.txt --val-fraction 0 --model d4 --context 256"
if [ "$cuda" ] || ! unshare -rm sh -c 'mount --bind /proc/self/status /proc/$$/cgroup' 2> /dev/null; then
    skip_test "$name" "for the CPU, where files can be mounted"
else
    grouped "600 MiB of 700 MiB" 0::/a/b a/b/memory.max 734003200 a/b/memory.current 104857600
    grouped "500 MiB of 600 MiB" 0::/a/b a/b/memory.max max a/memory.max 629145600 a/memory.current 209715200 \
        a/memory.stat "inactive_file 104857600"
    grouped "400 MiB of 400 MiB" 4:cpu,memory:/a memory/a/memory.limit_in_bytes 419430400 memory/memory.stat ""
    grouped "1 thread" 0::/a/b a/cpu.max "100000 100000" a/b/cpu.max "max 100000"
    grouped "300 MiB of 300 MiB" 4:memory:/elsewhere memory/memory.limit_in_bytes 314572800
    (ulimit -v 122880; expect "a save beside 97 MiB of a plan" "$gpt" --data "$dir/text/train.txt" --val-fraction 0 \
        --model d2 --batch 18 --steps 1 --threads 1 --out "$dir/limited"; exit $bad) || bad=1
    (ulimit -v 400000; refuses " MiB are free: " "$gpt" $text --batch 24; exit $bad) || bad=1
    is "the plan that does not fit" "$(grep -c "^  total\|^  --recompute\|^    block " "$dir/refuse.out")" 3
    close_test "$name"
fi

close_tests
