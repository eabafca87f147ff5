#!/bin/sh
# test_memory.sh - The memory plan against the memory in use. On a GPU it runs alone, for others change that.
. "$(dirname "$0")/../shell.sh"

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
if [ "$cuda" ]; then options="--model d12 --dtype bf16 --vocab 256 --context 1024 --batch 16 --steps 60" slack=524288
else                 options="--model d4 --context 256 --batch 24 --steps 1" slack=65536
fi
options="--data $dir/text/train.txt --val-fraction 0 --out none $options"
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

close_tests
