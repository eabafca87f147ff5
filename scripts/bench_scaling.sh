#!/bin/sh
# bench_scaling.sh DATA [GPUS [STEPS]] - The training step on several GPUs of this machine and on one, in turn:
# bf16, T = 1024, one micro-step, medians of STEPS steps (50) after 10. DATA: token shards. GPUS: how many, "2 4" (2, 4,
# 8 and so on, as many as there are).
#   scaling   tokens/s over those of one GPU times the number of GPUs
#   floor     ms that the collectives of a step take at the bandwidth measured first (bench_comm, 64 MiB): (n-1)/n times
#             4 bytes per parameter for the reduce-scatter, 2 for the all-gather
#   waiting   ms of the step in which compute stood still for communication
set -eu
export LC_ALL=C              # sort and mawk expect a decimal comma otherwise, where the language has one
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 1; }
data=$1
all=$(nvidia-smi -L | grep -c '^GPU')
counts=${2:-$(n=2; while [ $n -le "$all" ]; do echo $n; n=$((2 * n)); done)} steps=${3:-50}
[ -n "$counts" ] || { echo "$0: $all GPU, want 2 or more" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP

# prints ms, tokens/s, waiting (medians), 10th and 90th percentile of ms, a line each
medians() {
    for figure in ms:0.5 tok/s:0.5 waiting:0.5 ms:0.1 ms:0.9; do
        awk -v unit="${figure%:*}" '/^step .*tok\/s/ && ++seen > 10 {
            value = 0
            for (i = 2; i <= NF; i++) if (index($i, unit) == 1) value = $(i - 1)
            sub(/^\(/, "", value)
            print value
        }' "$1" | sort -n | awk -v q="${figure#*:}" '{ value[NR] = $1 }
            END { i = int(q * NR + 0.5); if (i) print value[i]; else exit 1 }' || return 1
    done
}

run() {           # run NAME GPUS MODEL BATCH: its medians are in $dir/NAME, clock and power of GPU 0 too
    nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -i 0 -lms 200 > "$dir/$1.smi" &
    smi=$!
    ./train_gpt --data "$data" --model "$3" --dtype bf16 --context 1024 --batch "$4" --total-batch 0 \
        --steps $((steps + 10)) --lr 1e-3 --warmup 5 --val-every 0 --out none --log-every 1 --gpus "$2" \
        > "$dir/$1.out" 2> "$dir/$1.err" ||
        { kill $smi; tail -n 2 "$dir/$1.err" >&2; return 1; }
    kill $smi
    medians "$dir/$1.out" > "$dir/$1"
    awk -F', ' '$2 > 300 { clock += $1; power += $2; n++ }
        END { printf "%.0f %.0f\n", n ? clock / n : 0, n ? power / n : 0 }' "$dir/$1.smi" >> "$dir/$1"
    echo "$1: $(tr '\n' ' ' < "$dir/$1")" >&2
}

row() {           # row TITLE MODEL BATCH PARAMETERS ONE: ONE is the run on one GPU that it is compared with
    [ -s "$dir/$2-$3-$gpus" ] || run "$2-$3-$gpus" "$gpus" "$2" "$3" || { echo "| $1 | failed |"; return; }
    { cat "$dir/$5" "$dir/$2-$3-$gpus"; } | tr '\n' ' ' | awk -v title="$1" -v n="$gpus" -v count="$4" \
        -v scatter="$scatter" -v gather="$gather" '{
            share = (n - 1) / n
            floor = share * count * (4 / scatter + 2 / gather)
            printf "| %s | %s | %s (%s to %s) | %.1f %% | %.0f k | %.1f | %s | %s MHz, %s W |\n",
                title, $1, $8, $11, $12, 100 * $9 / (n * $2), $9 / 1000, floor / 1e6, $10, $13, $14
        }'
}

run one-64 1 d12 64
run one-16 1 d12 16
run one-xl 1 d48 16 || true
for gpus in $counts; do
    build/cuda/bench_comm --ranks "$gpus" > "$dir/comm"
    cat "$dir/comm"
    # GB/s on the bus at 64 MiB, about a block of 124M to 1558M
    read -r scatter gather <<END
$(awk -F'|' '$2 + 0 == 64 { print $4 + 0, $5 + 0 }' "$dir/comm")
END
    {
        echo
        echo "| $gpus GPUs | one GPU, ms | ms (10 % to 90 %) | scaling | tokens/s | floor, ms | waiting, ms | GPU 0 |"
        echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
        row "124M, B = 64" d12 64 124e6 one-64
        row "124M, B = 16, beside one GPU at B = 64" d12 16 124e6 one-64
        row "124M, B = 16, beside one GPU at B = 16" d12 16 124e6 one-16
        [ ! -s "$dir/one-xl" ] || row "1558M, B = 16" d48 16 1558e6 one-xl
    } >> "$dir/table"
done
cat "$dir/table"
