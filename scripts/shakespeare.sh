#!/bin/sh
# scripts/shakespeare.sh [FILE] [RUNS] - nanoGPT's CPU configuration on tinyshakespeare, three seeds each with flash and
# naive attention: 4 layers, 4 heads, 128 channels, context 64, batch 12, 2000 steps, no dropout. The loss is over the
# whole validation split, nanoGPT's: the last 10 %. nanoGPT's README reports 1.88; here the median of three is at most 1.90.
# Takes about 1.5 minutes a run on two cores.
set -eu
file=${1:-data/tinyshakespeare.txt}
runs=${2:-runs/shakespeare}
[ -f "$file" ] || { echo "$file: no such file; scripts/download_shakespeare.sh fetches it" >&2; exit 1; }
make -s all
status=0
for attention in flash naive; do
    losses=
    for seed in 1 2 3; do
        out=$runs/$attention-$seed
        rm -rf "$out"
        mkdir -p "$out"
        ./train_gpt --data "$file" --val-fraction 0.1 --val-tokens 0 --attention $attention --seed $seed --out "$out" \
            --layers 4 --heads 4 --channels 128 --context 64 --batch 12 --steps 2000 --lr 1e-3 --min-lr 1e-4 --warmup 100 \
            --beta2 0.99 --weight-decay 0.1 --clip 1 --val-every 0 > "$out/output.txt"
        loss=$(awk -F, '/^[0-9]/ && $9 != "" { last = $9 } END { print last }' "$out/log.csv")
        echo "$attention seed $seed: val loss $loss"
        losses="$losses $loss"
    done
    median=$(printf '%s\n' $losses | sort -n | sed -n 2p)
    echo "$attention: median $median, published 1.88"
    awk "BEGIN { exit !($median <= 1.90) }" || status=1
done
exit $status
