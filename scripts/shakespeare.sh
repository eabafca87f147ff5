#!/bin/sh
# shakespeare.sh [--gpu] [FILE] [RUNS] - nanoGPT's configurations on tinyshakespeare, beside the losses that its
# README reports. The best loss over the whole validation split, the last 10 % as in nanoGPT, of each of SEEDS="1 2 3"
# in each of DTYPES="f32 bf16" (f32 on a CPU), and their median, which must come close to the published one.
#
# Without --gpu: 4 layers, 4 heads, 128 channels, context 64, batch 12, 2000 steps, no dropout, with flash and with
# naive attention: 1.88, and at most 1.90 here. A minute per run on two cores, some seconds on a GPU.
# With --gpu: 6 layers, 6 heads, 384 channels, context 256, batch 64, 5000 steps, dropout 0.2, validated every 250
# steps: 1.4697, and at most 1.48 here. SEEDS=2 DTYPES=bf16 makes a single run.
set -eu
export LC_ALL=C              # a decimal point
case ${1-} in --help|-h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit ;; esac
if [ "${1:-}" = --gpu ]; then
    shift
    name=gpu attentions=auto published=1.4697 limit=1.48
    model="--layers 6 --heads 6 --channels 384 --context 256 --batch 64 --steps 5000 --dropout 0.2 --val-every 250"
else
    name=cpu attentions="flash naive" published=1.88 limit=1.90
    model="--layers 4 --heads 4 --channels 128 --context 64 --batch 12 --steps 2000 --val-every 0"
fi
file=${1:-data/tinyshakespeare.txt}
runs=${2:-runs/shakespeare}
[ -f "$file" ] || { echo "$file: no such file; scripts/download_shakespeare.sh downloads it" >&2; exit 1; }
make -s all
case $(./train_gpt --version) in *cuda*) dtypes="f32 bf16" ;; *) dtypes=f32 ;; esac
status=0
for dtype in ${DTYPES:-$dtypes}; do for attention in $attentions; do
    kind=$name-$attention-$dtype
    losses=
    for seed in ${SEEDS:-1 2 3}; do
        out=$runs/$kind-$seed
        rm -rf "$out"
        mkdir -p "$out"
        ./train_gpt --data "$file" --val-fraction 0.1 --val-tokens 0 --attention $attention --dtype $dtype \
            --seed $seed --out "$out" $model --lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --weight-decay 0.1 \
            --clip 1 --save-every 0 > "$out/output.txt"
        best=$(awk -F, 'NR == 1 { while ($column != "val_loss") column++; next }
            $column != "" && (!step || $column < best) { best = $column; step = $1 }
            END { print best, "at step", step }' "$out/log.csv")
        echo "$kind seed $seed: best val loss $best"
        losses="$losses ${best%% *}"
    done
    median=$(printf '%s\n' $losses | sort -n | awk '{ loss[NR] = $1 } END { print loss[int((NR + 1) / 2)] }')
    echo "$kind: median $median, published $published"
    awk "BEGIN { exit !($median <= $limit) }" || status=1
done; done
exit $status
