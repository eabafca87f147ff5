#!/bin/sh
# bench_step.sh DATA [MODEL:BATCH:CONTEXT ...] - The training step: bf16 on a GPU, else f32; one micro-batch an
# update, clipping and AdamW included; median of STEPS steps (50) after 10. DATA: token shards, 'dir/train_*.bin'.
# Without models, those of the README, on a CPU d4; models with a context of 256 train on a text, made by tales.
# Memory, power and clock: from nvidia-smi, five times a second; the peak above the start, the highest power and its
# clock, which mean little for a run of less than a second.
# Beside ours, where they are set:
#   PEERS="reference huggingface ..."   naive (ours with naive attention), gpus-2 (ours on 2 GPUs, a batch each; memory
#                                       and power: GPU 0's), and programs of scripts/bench_step_torch.py;
#                                       "" = none; without it reference and huggingface where PYTHON (python3) has torch
#   NANOGPT=DIR   a checkout, for the peer nanogpt        LLMC=FILE   llm.c's train_gpt2cu
# CSV=FILE: the figures also as a table for scripts/plot_attention.sh FILE speed,memory
set -eu
export LC_ALL=C              # a decimal point
case ${1-} in --help|-h) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# -ge 1 ] || { echo "bench_step: want token shards: bench_step.sh DATA (--help explains)" >&2; exit 1; }
data=$1
shift
here=$(dirname "$0") steps=${STEPS:-50} python=${PYTHON:-python3} gpt=${TRAIN_GPT:-./train_gpt}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
nvidia-smi -L > "$dir/gpus" 2>/dev/null || : > "$dir/gpus"
dtype=f32 card=$(cut -d: -f2 "$dir/gpus" | head -n 1 | sed 's/ (UUID.*//; s/^ //')
large=
[ ! -s "$dir/gpus" ] || dtype=bf16 \
    large="d12:64:1024 d12:16:1024 d12:4:1024 d24:32:1024 d36:16:1024 d48:16:1024 d6:64:256"
[ $# -gt 0 ] || set -- $large d4:16:256
"$python" -c 'import torch' 2>/dev/null && default="reference huggingface" || default=
[ -z "${LLMC:-}" ] || default="llmc $default"
peers=${PEERS-$default}

gpu=${CUDA_VISIBLE_DEVICES:-0}
query="--query-gpu=memory.used,power.draw,clocks.sm --format=csv,noheader,nounits -i ${gpu%%,*}"

# run NAME PROGRAM ARGUMENTS...: its output in $dir/NAME.out; $dir/NAME.smi: the memory before, then samples
run() {
    name=$1
    shift
    smi=
    : > "$dir/$name.smi"
    if [ -s "$dir/gpus" ]; then
        nvidia-smi $query > "$dir/$name.smi"
        nvidia-smi $query -lms 200 >> "$dir/$name.smi" &
        smi=$!
    fi
    code=0
    "$@" > "$dir/$name.out" 2> "$dir/$name.err" || code=$?
    [ -z "$smi" ] || { kill "$smi"; wait "$smi" 2>/dev/null || :; }
    return $code
}

# row TITLE PROGRAM TOKENS OURS: a row of the table, and the median in $dir/median
row() {
    awk -v title="$1" -v program="$2" -v tokens="$3" -v ours="$4" -v skip=10 -v median="$dir/median" \
        -v csv="${CSV:+$dir/csv}" -v key="$card,$dtype,$model,$B,$T" '
        function at(q,   i) { i = int(q * n + 0.5); return ms[i < 1 ? 1 : i] }
        FILENAME ~ /smi$/ {
            split($0, f, ", ")
            if (FNR == 1) before = f[1]
            if (f[1] > peak) peak = f[1]
            if (f[2] > power) { power = f[2]; clock = f[3] }     # under load, before the next sample
            samples = FNR
            next
        }
        /^step .* ms/ {
            if (++seen <= skip) next
            for (i = 2; i <= NF; i++) if ($i == "ms" || $i == "ms,") value = $(i - 1)
            sub(/^\(/, "", value)
            if (program ~ /^(train_gpt|naive|gpus-)/)               # their ms have one digit
                for (i = 2; i <= NF; i++) if ($i == "tok/s") value = 1000 * tokens / $(i - 1)
            for (i = ++n; i > 1 && ms[i - 1] > value + 0; i--) ms[i] = ms[i - 1]
            ms[i] = value + 0
        }
        END {
            if (!n) exit 1
            middle = at(0.5)
            print middle > median
            printf("| %s | %s | %.2f (%.2f to %.2f) | %.1f k | %s | %s | %s |\n", title, program, middle, at(0.1),
                at(0.9), tokens / middle, samples > 1 ? sprintf("%.1f GiB", (peak - before) / 1024) : "-",
                samples > 1 ? sprintf("%.0f W, %.0f MHz", power, clock) : "-",
                ours == "" ? "1" : sprintf("%.3f", middle / ours))
            if (csv != "") printf("%s,%s,%.3f,%.1f,%s\n", key, program, middle, 1000 * tokens / middle,
                samples > 1 ? sprintf("%.3f", (peak - before) / 1024) : "") >> csv
        }' "$dir/$2.smi" "$dir/$2.out"
}

exec 3> "$dir/table"
for spec in "$@"; do
    model=${spec%%:*} rest=${spec#*:}
    B=${rest%%:*} T=${rest#*:} source=$data
    if [ "$T" = 256 ]; then
        source=$dir/train.txt
        [ -f "$source" ] || "${TALES:-build/$([ $dtype = bf16 ] && echo cuda || echo cpu)/tales}" --bytes 4000000 \
            --val-bytes 100000 --seed 1 --out "$dir" > /dev/null
    fi
    title="$model, B = $B, T = $T" all=$((steps + 10)) ours=
    for program in train_gpt $peers; do
        n=1 options=
        case $program in naive) options="--attention naive" ;; gpus-*) n=${program#gpus-} options="--gpus $n" ;; esac
        case $program in
        train_gpt|naive|gpus-*)
            set -- "$gpt" $options --data "$source" --out none --model "$model" \
                --context "$T" --batch "$B" --total-batch 0 --steps "$all" --dtype $dtype --lr 3e-4 --warmup 0 \
                --val-every 0 --val-fraction 0 --log-every 1 ;;
        llmc) set -- stdbuf -oL "$LLMC" -i "$source" -j "$source" -e "$model" -b "$B" -t "$T" -d $((B * T)) -x "$all" \
            -l 3e-4 -c 0.1 -v $((all + 1)) -m 1 -s 0 -r 0 -pi fs -pf "$dir" -pn 1 -pr 0 -pg 1 ;;
        *) set -- "$python" "$here/bench_step_torch.py" "$program" "$source" "$model" "$B" "$T" "$all" ${NANOGPT:-} ;;
        esac
        if run "$program" "$@" && row "$title" "$program" $((n * B * T)) "$ours" > "$dir/row"; then
            [ $program != train_gpt ] || ours=$(cat "$dir/median")
        else
            why=$(cat "$dir/$program.err" "$dir/$program.out" | grep -v '^$' | tail -n 1 | cut -c 1-90 | tr '|' ' ')
            case $(cat "$dir/$program.err") in *"out of memory"*) why="out of memory" ;; esac
            echo "| $title | $program | $why | | | | |" > "$dir/row"
            [ "$why" != "out of memory" ] || echo "$card,$dtype,$model,$B,$T,$program,,,$why" >> "$dir/csv"
        fi
        cat "$dir/row" >&2
        cat "$dir/row" >&3
    done
done
echo
echo "$card"
echo "$(date -u +%Y-%m-%d), $dtype, medians of $steps steps (10 % to 90 %); the last column: times our step"
echo
echo "| model | program | ms | tokens/s | memory | power, clock | ratio |"
echo "| --- | --- | --- | --- | --- | --- | --- |"
cat "$dir/table"
[ -z "${CSV:-}" ] || { echo device,dtype,model,batch,T,attention,ms,tokens_per_s,memory_gib; cat "$dir/csv"; } > "$CSV"
