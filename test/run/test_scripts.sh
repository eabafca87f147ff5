#!/bin/sh
# test_scripts.sh - The readers of a run's log or a benchmark's table: curves, and with every awk that is installed
# compare_curves.sh, plot_loss.sh and plot_attention.sh; and compare.sh, on a tiny model.
. "$(dirname "$0")/../shell.sh"
curves=$build/curves compare=$PWD/scripts/compare_curves.sh plot=$PWD/scripts/plot_loss.sh
attention=$PWD/scripts/plot_attention.sh

# make_run NAME OFFSET COLUMN...: 60 steps; the loss falls from 5 + OFFSET to 2 + OFFSET, every 20 steps a validation
# 0.5 above it. A column that is not known stays empty.
make_run() {
    name=$1 offset=$2; shift 2
    mkdir -p "$dir/$name"
    awk -v offset="$offset" -v header="$*" 'BEGIN {
        n = split(header, column, " ")
        for (i = 1; i <= n; i++) printf "%s%s", column[i], i < n ? "," : "\n"
        for (step = 1; step <= 60; step++) {
            value["step"] = step; value["loss"] = sprintf("%.9g", 5 - 3 * (step - 1) / 59 + offset)
            value["val_loss"] = step % 20 ? "" : value["loss"] + 0.5
            value["tokens"] = 100 * step; value["seconds"] = 60 * step; value["norm"] = 1 + step % 2
            value["lr"] = 0.001; value["ms"] = 50; value["tokens_per_s"] = 2000
            for (i = 1; i <= n; i++) printf "%s%s", value[column[i]], i < n ? "," : "\n"
        }
    }' > "$dir/$name/log.csv"
}
count() { grep -c "$1" "$2"; }
well_formed() {
    if command -v xmllint > /dev/null; then xmllint --noout "$1"
    else python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$1"
    fi
}
can_parse_xml() { command -v xmllint > /dev/null || python3 -c 'import xml.dom.minidom' 2> /dev/null; }

make_run runs/a 0 step seconds tokens loss val_loss norm lr ms tokens_per_s
make_run runs/b 0.01 norm loss lr step                           # other columns in another order, no validation
make_run runs/twin -0.006 step loss
{
    printf '# train_gpt 0.1, cpu\n# memory: 213 MiB of 7.60 GiB free\n# floor: 1.250000\n'
    printf 'steps = 60\nprompt = "</script> \\"\n'
} > "$dir/runs/a/settings.txt"
make_run 'odd/a&b=<c>' 0 step loss

# ---- curves
page=$dir/page.html
printf '%s\n' '{"event": "sample", "step": 3, "text": "</script> ]}]"}' \
    '{"event": "end", "step": 60, "reason": "done"}' > "$dir/runs/a/log.jsonl"
cp "$dir/runs/b/log.csv" "$dir/x=y.csv"
"$curves" "$dir/runs/a" "$dir/runs/b/log.csv" "$dir/odd/a&b=<c>/" "$dir/x=y.csv" > "$page"
is "exit code" $? 0
data='/^<script type="application\/json" id="data">$/'
is "one element of data, at the end" "$(sed -n "$data,\$p" "$page" | grep -c '</script>')" 1
is "the last line" "$(tail -n 1 "$page")" "</script>"
is "what it may load, but for a namespace" "$(grep -v www.w3.org "$page" | grep -cE 'src=|href=|//|@import')" 0
if python3 -c '' 2> /dev/null; then
    sed "1,${data}d" "$page" | sed '$d' > "$dir/page.json"
    expect "the data" python3 - "$dir/page.json" <<'END'
import json, sys
page = json.load(open(sys.argv[1]))
a, b, *others = page["runs"]
names = [run["name"] for run in page["runs"]]
assert names == ["a", "b", "a&b=<c>", "x=y"] and not page["live"], names
assert 'prompt = "</script> \\"' in a["settings.txt"] and b["settings.txt"] == b["log.jsonl"] == "", a["settings.txt"]
assert [json.loads(line)["event"] for line in a["log.jsonl"].splitlines()] == ["sample", "end"], a["log.jsonl"]
assert [len(run["points"]) for run in page["runs"]] == [61] * 4
val_losses = [[point[4] for point in run["points"][1:] if point[4] is not None] for run in (a, b)]
assert [len(losses) for losses in val_losses] == [3, 0] and a["points"][0][4] == "val_loss", val_losses
row = dict(zip(a["points"][0], a["points"][60]))
assert row["step"] == 60 and row["loss"] == row["loss_min"] == 2 and row["power_w"] is None, row
END
fi
mkdir "$dir/none"
refuses "want runs: ./curves RUN" "$curves"
refuses "want runs: ./curves RUN" "$curves" --frobnicate "$dir/runs/a"
refuses "want runs: ./curves RUN" "$curves" "$dir/runs/a" -o
expect "help" "$curves" --help
refuses "curves: $dir/none/log.csv: no such file; want a run's directory" "$curves" "$dir/runs/a" "$dir/none"
refuses "settings.txt: not a log of training steps: no column step" "$curves" "$dir/runs/a/settings.txt"
close_test "curves writes one page of several runs"

mkdir "$dir/lone"
cp "$gpt" "$dir/lone"
"$dir/lone/train_gpt" --data "$dir/runs/a/log.csv" --steps 2 --model d2 --context 8 --batch 1 --out "$dir/lone/run" \
    > "$dir/lone.out" 2> "$dir/lone.err"
is "a train_gpt without curves beside it: exit code" $? 0
is "its only message" "$(cat "$dir/lone.err")" \
    "train_gpt: warning: $dir/lone/curves: No such file or directory; no report.html is written"
is "files that its last line names" "$(tail -n 1 "$dir/lone.out")" \
    "log $dir/lone/run/log.csv, checkpoint $dir/lone/run/step-00000002"
refuses "$dir/lone/tokenize: No such file or directory; want tokenize of this build beside train_gpt" \
    "$dir/lone/train_gpt" "$dir/runs/a/log.csv" --tokenizer test/reference/bpe --dry-run
expect "tokens" "$gpt" "$dir/runs/a/log.csv" --tokenizer test/reference/bpe --dry-run
expect "which are there" "$dir/lone/train_gpt" "$dir/runs/a/log.csv" --tokenizer test/reference/bpe --dry-run
close_test "a train_gpt alone says once that it has no page, and that it cannot make tokens"

# ---- compare_curves.sh
"$compare" "$dir/runs/a" "$dir/runs/b" > "$dir/two.out"
is "exit code" $? 0
expect "RUN" grep -q '^a  *2\.0000  *-  *-  *2\.0 k  *213 MiB$' "$dir/two.out"
expect "the difference" grep -q '^b  *2\.0100  *0\.01  *[0-9]* to [0-9]*  *-  *-$' "$dir/two.out"
expect "how to make the twin" grep -q -- '--twin TWIN decides: the first run again, with --perturb' "$dir/two.out"
"$compare" "$dir/runs/b" "$dir/runs/a/log.csv" > "$dir/two.out"          # no settings.txt
odd="$dir/odd/x; it's$(printf '\033')[m"
cp -r "$dir/runs/a" "$odd"
"$compare" "$odd" "$dir/runs/b" > "$dir/odd.out"
is "control characters" "$(tr -d '\n -~' < "$dir/odd.out" | wc -c)" 0
refuses "compare_curves: $dir/odd/none?: no such run" "$compare" "$dir/odd/none$(printf '\033')" "$odd"
close_test "compare_curves.sh without a twin prints the differences and how to make the twin"

make_run runs/far 0.013 step loss
make_run runs/other 0.121 step loss
make_run runs/near 0.0002 step loss                              # 1e-4 of the loss is 0.00025
while read -r twin other code verdict; do
    "$compare" --twin "$dir/runs/$twin" "$dir/runs/a" "$dir/runs/b" "$dir/runs/$other" > "$dir/three.out"
    is "exit code of $other by $twin" $? "$code"
    expect "$other by $twin: $verdict" grep -q "^$other .*  $verdict  " "$dir/three.out"
    [ $twin = a ] || expect "the verdict of b" grep -q '^b .*  the same curve  ' "$dir/three.out"
done <<'END'
twin b 0 the same curve
twin far 2 cannot tell
twin other 1 ANOTHER curve
a near 1 the same curve
END
"$compare" --twin "$dir/runs/a" "$dir/runs/a" "$dir/runs/near" > "$dir/three.out" || wrong "a twin without noise"
close_test "compare_curves.sh decides by twice the distance of the twin, and 1e-4 of the loss"

head -n 41 "$dir/runs/a/log.csv" > "$dir/short.csv"
sed 5d "$dir/runs/a/log.csv" > "$dir/gap.csv"
refuses "usage: scripts/compare_curves.sh" "$compare" "$dir/runs/a"
refuses "usage: scripts/compare_curves.sh" "$compare" --twin
refuses "usage: scripts/compare_curves.sh" "$compare" --twins "$dir/runs/a" "$dir/runs/b"
refuses "short.csv: 40 steps, want 60" "$compare" "$dir/runs/a" "$dir/short.csv"
refuses "gap.csv: steps 1 to 20 are not all there" "$compare" "$dir/runs/a" "$dir/gap.csv"
refuses "nothing: no such run" "$compare" "$dir/runs/a" "$dir/nothing"
refuses "none: no log.csv in it; want a run's directory" "$compare" "$dir/runs/a" "$dir/none"
: > "$dir/empty.csv"
refuses "empty.csv: empty" "$compare" "$dir/runs/a" "$dir/empty.csv"
refuses "settings.txt: not a log of training steps: no column step" "$compare" "$dir/runs/a" "$dir/runs/a/settings.txt"
expect "help" "$compare" --help
is "what a twin is" "$("$compare" --help | grep -c 'one ulp')" 1
close_test "compare_curves.sh refuses runs that cannot be compared"

# ---- compare.sh. So short a run has no verdict to rely on: twin and naive each differ by one sample of rounding. What
# must hold is that the differences are of that size (some 1e-5 in 60 steps) and the verdict is that of the rule.
TRAIN_GPT=$gpt TALES=$build/tales CURVES=$curves PYTHON=false OUT=$dir/elsewhere scripts/compare.sh --model d2 \
    --out "$dir/compare" --context 32 --batch 2 --dtype f32 --steps 60 > "$dir/compare.out" 2> "$dir/compare.err"
is "exit code" $? "$(awk '/  cannot tell  / { code = 2 } /  ANOTHER curve  / { code = 1 } END { print code + 0 }' \
    "$dir/compare.out")"
for name in flash twin naive; do expect "$name" grep -q "^$name  *[0-9]" "$dir/compare.out"; done
is "verdicts" "$(grep -cE '^naive .*  (the same curve|cannot tell|ANOTHER curve)  ' "$dir/compare.out")" 1
expect "rounding" awk '/^(twin|naive) / { n += $3 ~ /^[0-9]/ && $3 < 1e-3 } END { exit n != 2 }' "$dir/compare.out"
expect "their losses differ" sh -c '! cmp -s "$1/flash/log.csv" "$1/twin/log.csv"' - "$dir/compare"
expect "the page" grep -q '"name": "naive"' "$dir/compare/curves.html"
expect "OUT of the environment is not ours" test ! -e "$dir/elsewhere"
refuses "is not a comparison; want another --out" env TRAIN_GPT="$gpt" scripts/compare.sh "--out=$dir/runs"
for data in "$dir/compare/train.txt" "$dir/runs/../compare/flash/log.csv"; do
    refuses "is in $dir/compare, which is replaced" env DATA="$data" scripts/compare.sh --out "$dir/compare"
done
head -c 9000 "$dir/compare/train.txt" > "$dir/short.txt"      # 2000 steps would read it many times
DATA=$dir/short.txt TRAIN_GPT=$gpt scripts/compare.sh --out "$dir/checked" --frobnicate 2> "$dir/checked.err"
is "what it prints" "$(cut -c-29 "$dir/checked.err")" "training flash
train_gpt: --frobnicate: no s"
for steps in "--steps 19" "--steps=5"; do
    refuses "fewer than 20 --steps" env TRAIN_GPT="$gpt" scripts/compare.sh --out "$dir/short" $steps --lr 1e-3
done
close_test "compare.sh trains flash, twin and naive, and compares them"

# ---- plot_loss.sh
"$plot" "$dir/runs/a" "$dir/runs/b/log.csv" > "$dir/loss.svg"
is "exit code" $? 0
is "curves" "$(count '<path class="curve"' "$dir/loss.svg")" 2
is "points of the validation" "$(count 'class="dot"' "$dir/loss.svg")" 3
is "background" "$(count '<rect width="100%"' "$dir/loss.svg")" 0
(cd "$dir" && "$plot" x=y.csv "odd/a&b=<c>") > "$dir/odd.svg"
is "dashed curves of b" "$(grep -c 'class="curve" .* stroke-dasharray="7 4"' "$dir/loss.svg")" 1
mkdir "$dir/begun"
echo step,loss > "$dir/begun/log.csv"
"$plot" "$dir/begun" "$dir/runs/a" > "$dir/begun.svg" 2> "$dir/begun.err" || wrong "a run that has begun: exit code $?"
# steps of 1 and 3 with one of -9.1 and one that is unknown; of 2500, 4 become a point, their mean is 2
awk 'BEGIN { print "step,loss"; for (i = 1; i <= 2500; i++)
    print i "," (i == 1500 ? -9.1 : i == 1200 ? "nan" : 1 + i % 2 * 2) }' > "$dir/long.csv"
"$plot" "$dir/long.csv" > "$dir/long.svg"
is "points" "$(grep 'class="curve"' "$dir/long.svg" | tr ML '\n' | grep -c ',')" 625
for steps in 705 2533; do
    awk -v n=$steps 'BEGIN { print "step,loss"
        for (i = 1; i <= n; i++) print i "," (i == n && n == 705 ? "nan" : 99 / (99 + i)) }' > "$dir/end.csv"
    "$plot" "$dir/end.csv" > "$dir/end.svg"
    mean=$("$compare" "$dir/end.csv" "$dir/end.csv" | awk '$1 == "end" { print $2; exit }')
    expect "the loss that compare_curves.sh prints, $mean" grep -qF ">end $mean<" "$dir/end.svg"
done
is "minima and maxima" "$(grep 'class="raw"' "$dir/long.svg" | tr ML '\n' | grep -c ',')" 1250
is "lines that are interrupted" "$(count 'd="M[^M]*M' "$dir/long.svg")" 0
awk 'BEGIN { print "step,loss"; for (i = 1; i <= 9; i++) print i "," (i == 5 ? "1e400" : i) }' > "$dir/broken.csv"
timeout 10 "$plot" "$dir/broken.csv" > "$dir/broken.svg"
is "lines that are interrupted by a loss that is no number" "$(count 'd="M[^M]*M[^M]*"' "$dir/broken.svg")" 2
while read -r name text; do
    expect "$name: $text" grep -qF ">$text<" "$dir/$name.svg"
done <<'END'
loss a 2.0000
loss b 2.0100
loss validation 2.5000
loss floor 1.2500
odd x=y 2.0100
odd a&amp;b=&lt;c&gt; 2.0000
loss 60
begun a 2.0000
long long 2.0000
long thin: each step; bold: mean of up to 52 steps
long -8
END
expect "the run that is left out" grep -q 'begun/log.csv: no row with a loss yet' "$dir/begun.err"
close_test "plot_loss.sh draws runs and axes, and thins long curves"

while IFS='|' read -r message arguments; do
    refuses "$message" sh -c 'cd "$1" && shift && exec "$@"' - "$dir" "$plot" $arguments
done <<'END'
usage: scripts/plot_loss.sh|
usage: scripts/plot_loss.sh|--html runs/a
runs/c: no such run; want a run's directory or its log.csv|runs/c
begun/log.csv: no row with a loss yet|begun
runs/a/settings.txt: not a log of training steps: no column step|runs/a/settings.txt
END
close_test "plot_loss.sh says what is missing"

# ---- plot_attention.sh: naive lacks the last length
bench=$dir/bench.csv
{
    echo device,dtype,head_size,heads,batch,T,attention,forward_ms,backward_ms,forward_tflops,backward_tflops,memory_gb
    for size in 64 128; do
        for T in 512 1024 2048; do
            echo "Card,bf16,$size,12,$((65536 / T)),$T,flash,1,3,400,200,1.5"
            [ $T = 2048 ] || echo "Card,bf16,$size,12,$((65536 / T)),$T,naive,2,6,20,$((size / 2)),$((T / 64))"
        done
    done
} > "$bench"
svg=$dir/attention.svg
"$attention" "$bench" > "$svg"
is "curves in two panels" "$(count '<path class="curve dots"' "$svg")" 4
is "points" "$(count 'class="dot"' "$svg")" 10
is "lengths on the axes" "$(count '>2048<' "$svg")" 2
expect "the setting" grep -q 'bf16, head size 64, 12 heads, B×T = 65536' "$svg"
expect "the labels" grep -q '>naive 32<' "$svg"
"$attention" "$bench" both,memory naive,flash=ours 128 > "$dir/memory.svg"
expect "both passes: (1 x 400 + 3 x 200) / 4" grep -q '>ours 250<' "$dir/memory.svg"
expect "memory" grep -q '>naive 16<' "$dir/memory.svg"
{
    echo device,dtype,model,batch,T,attention,ms,tokens_per_s,memory_gib
    for T in 512 1024; do
        echo "Card,bf16,d12,$((16384 / T)),$T,train_gpt,25,660000,8"
        echo "Card,bf16,d12,$((16384 / T)),$T,naive,50,330000,$((T / 64))"
    done
    echo "Card,bf16,d12,8,2048,train_gpt,25,660000,8"
    echo "Card,bf16,d12,8,2048,naive,,,out of memory"
} > "$dir/step.csv"
"$attention" "$dir/step.csv" speed,memory train_gpt=flash,naive > "$dir/step.svg" || wrong "step: exit code $?"
expect "speed of the step" grep -q '>flash 660<' "$dir/step.svg"
expect "memory of the step" grep -q '>naive 16<' "$dir/step.svg"
is "why a curve ends, in both panels" "$(count '>then out of memory<' "$dir/step.svg")" 2
is "points" "$(count 'class="dot"' "$dir/step.svg")" 10
expect "the setting" grep -q 'bf16, d12, B×T = 16384' "$dir/step.svg"
close_test "plot_attention.sh draws panels, attentions and head size as asked, and the training step"

refuses "usage: scripts/plot_attention.sh BENCH.csv" "$attention"
refuses "panel latency: want forward, backward, both, speed or memory" "$attention" "$bench" latency
refuses "no rows of cuDNN at head size 64" "$attention" "$bench" forward cuDNN
refuses "no rows with head size 32" "$attention" "$bench" forward flash 32
refuses "not a table of bench_attention: no column device" "$attention" "$dir/runs/a"
close_test "plot_attention.sh says what is missing"

if can_parse_xml; then
    for file in "$dir"/*.svg; do expect "well-formed" well_formed "$file"; done
    close_test "the plots are well-formed XML"
else
    skip_test "the plots are well-formed XML" "neither xmllint nor python3"
fi

# ---- awk differs: each that is here draws the same
mkdir "$dir/bin"
for name in mawk gawk original-awk busybox; do
    awk=$(command -v $name) || continue
    [ $name != busybox ] || awk="$awk awk"
    printf '#!/bin/sh\nexec %s "$@"\n' "$awk" > "$dir/bin/awk"
    chmod +x "$dir/bin/awk"
    with="env PATH=$dir/bin:$PATH"
    $with "$attention" "$bench" | cmp - "$dir/attention.svg" || wrong "$name: plot_attention.sh"
    $with "$plot" "$dir/runs/a" "$dir/runs/b/log.csv" | cmp - "$dir/loss.svg" || wrong "$name: plot_loss.sh"
    $with "$plot" "$dir/long.csv" | cmp - "$dir/long.svg" || wrong "$name: plot_loss.sh of a long run"
    $with "$compare" "$dir/runs/b" "$dir/runs/a/log.csv" | cmp - "$dir/two.out" || wrong "$name: compare_curves.sh"
done
close_test "every awk that is installed draws the same"

# ---- train_reference.py reads the settings of a run; without PyTorch
if python3 -c '' 2> /dev/null; then
    mkdir -p "$dir/python/torch/nn"
    for module in numpy torch/__init__ torch/nn/functional; do : > "$dir/python/$module.py"; done
    echo "class Module: pass" > "$dir/python/torch/nn/__init__.py"
    printf 'class optim: Optimizer = object\nno_grad = lambda: lambda function: function\n' \
        > "$dir/python/torch/__init__.py"
    for schedule in wsd exotic; do
        printf 'data = text\nmodel = d4\nmin-lr = 1e-4\nschedule = %s\n' $schedule > "$dir/settings.txt"
        PYTHONPATH=$dir/python python3 scripts/train_reference.py --config "$dir/settings.txt" --init "$dir/none" \
            --out "$dir/reference" > "$dir/$schedule.out" 2>&1
    done
    expect "wsd" grep -q 'none: no checkpoint' "$dir/wsd.out"
    expect "another" grep -q "argument --schedule: invalid choice: 'exotic'" "$dir/exotic.out"
    close_test "train_reference.py refuses a schedule that it does not have"
fi
close_tests
