#!/bin/sh
# scripts/shakespeare.sh [FILE] [RUNS] - nanoGPT's CPU configuration on tinyshakespeare, three seeds each with flash and
# naive attention, in every data type that the backend supports: 4 layers, 4 heads, 128 channels, context 64, batch 12,
# 2000 steps, no dropout. The loss is over the whole validation split, the last 10 % as in nanoGPT. nanoGPT's README
# reports 1.88; the median of three must be at most 1.90. Takes a minute per run on two cores, some seconds on a GPU.
set -eu
file=${1:-data/tinyshakespeare.txt}
runs=${2:-runs/shakespeare}
[ -f "$file" ] || { echo "$file: no such file; scripts/download_shakespeare.sh downloads it" >&2; exit 1; }
make -s all
case $(./train_gpt --version) in *cuda*) dtypes="f32 bf16" ;; *) dtypes=f32 ;; esac
status=0
for kind in $(for dtype in $dtypes; do echo "flash-$dtype naive-$dtype"; done); do
    losses=
    for seed in 1 2 3; do
        out=$runs/$kind-$seed
        rm -rf "$out"
        mkdir -p "$out"
        ./train_gpt --data "$file" --val-fraction 0.1 --val-tokens 0 --attention "${kind%-*}" --dtype "${kind#*-}" \
            --seed $seed --out "$out" --layers 4 --heads 4 --channels 128 --context 64 --batch 12 --steps 2000 \
            --lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --weight-decay 0.1 --clip 1 --val-every 0 \
            > "$out/output.txt"
        loss=$(awk -F, 'NR == 1 { while ($column != "val_loss") column++ }
            $column != "" { last = $column } END { print last }' "$out/log.csv")
        echo "$kind seed $seed: val loss $loss"
        losses="$losses $loss"
    done
    median=$(printf '%s\n' $losses | sort -n | sed -n 2p)
    echo "$kind: median $median, published 1.88"
    awk "BEGIN { exit !($median <= 1.90) }" || status=1
done
exit $status
