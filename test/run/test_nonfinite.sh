#!/bin/sh
# test_nonfinite.sh - Runs with faults in data or losses: spikes from a part with other data, non-finite losses, a file
# that is truncated while it is read.
. "$(dirname "$0")/../shell.sh"

fingerprint_in() { sed -n 's/.*"train": "\([^"]*\)".*/\1/p' "$1/state.json"; }
updates() { sed -n 's/.*"optimizer_step": \([0-9]*\).*/\1/p' "$1/state.json"; }      # that AdamW has counted
fingerprint() {   # fingerprint TEXT: of a checkpoint that was trained on it; clean was trained on good
    [ "$1" != good ] || { fingerprint_in "$dir/clean/step-00000170"; return; }
    [ -d "$dir/of-$1" ] || "$gpt" --data "$dir/$1.txt" --val-fraction 0 --steps 0 --out "$dir/of-$1" \
        --layers 1 --heads 1 --channels 16 --context 32 > /dev/null
    fingerprint_in "$dir/of-$1/step-00000000"
}
continue_run() {  # continue_run FROM STEP TO TEXT OPTIONS...: resumes a copy of a checkpoint on another text
    from=$1 step=$2 to=$3 other=$4; shift 4
    copy_run "$dir/$from" $step "$dir/$to"
    cp "$dir/$other.txt" "$dir/data.txt"
    rm "$dir/$to/step-$step/checksums.xxh64"
    sed -i "s/\(\"train\": \)\"[^\"]*\"/\1\"$(fingerprint "$other")\"/" \
        "$dir/$to/step-$step/state.json"
    (cd "$dir" && "$gpt" --out "$to" --resume "$@") > "$dir/$to.out" 2>&1 ||
        { wrong "$to: no resume"; tail -n 3 "$dir/$to.out"; }
}

# ---- A stretch of other data: a run on a text whose bytes are replaced by others after step 170, and back. A resume
# refuses the other text, of the same length, so its fingerprint is put into the checkpoint.
make_text tales 40000 1500
mv "$dir/tales/train.txt" "$dir/good.txt"
tr ' -~' '\200-\336' < "$dir/good.txt" > "$dir/bad.txt"
cp "$dir/good.txt" "$dir/data.txt"
cd "$dir" || exit 2
expect "train" "$gpt" --data data.txt --val-fraction 0 --layers 2 --heads 2 --channels 32 --context 32 --batch 4 \
    --dtype f32 --lr 3e-3 --warmup 5 --beta2 0.99 --steps 200 --save-every 5 --skip-spikes 6 --deterministic --out clean
cd - > /dev/null || exit 2
is "updates on good data" "$(updates "$dir/clean/step-00000200")" 200
continue_run clean 00000170 spoilt bad
is "updates with 10 steps refused" "$(updates "$dir/spoilt/step-00000180")" 170
same_files "$dir/clean/step-00000170" "$dir/spoilt/step-00000180" model.safetensors optimizer.safetensors
is "updates: the next one is applied" "$(updates "$dir/spoilt/step-00000185")" 171
expect "a line says so" \
    grep -q '^step 171: loss [0-9.]* (limit [0-9.]*), gradient norm .* (limit [0-9.]*): not applied$' "$dir/spoilt.out"
expect "a line says when" \
    grep -q '^step 180: .*: not applied; the next update is applied after so many in a row$' "$dir/spoilt.out"
is "rows in the log" "$(rows_of "$dir/spoilt")" 200
close_test "a stretch of other data is not applied and not counted"

if in_turn 3; then
    continue_run spoilt 00000175 resumed bad
    for step in 00000180 00000185 00000200; do
        same_files "$dir/spoilt/step-$step" "$dir/resumed/step-$step" $checkpoint_files
    done
    same_steps "$dir/spoilt" "$dir/resumed"
    close_test "a resume in the middle of the stretch takes the same decisions"
fi

if in_turn 3; then
    continue_run spoilt 00000175 over good
    is "updates: all of the rest" "$(updates "$dir/over/step-00000200")" 195
    close_test "good data after the stretch is applied"
fi

if in_turn 3; then
    continue_run spoilt 00000175 allowed bad --skip-spikes 0
    is "updates: all of them" "$(updates "$dir/allowed/step-00000200")" 195
    is "lines about it" "$(grep -c 'not applied' "$dir/allowed.out")" 0
    cd "$dir" || exit 2
    cp bad.txt data.txt; refuses '--data data.txt has changed since clean/step-' "$gpt" --out clean --resume
    sed -i 's/"spikes": [0-9]*/"spikes": 200/' allowed/step-00000200/state.json
    refuses "step-00000200/state.json: XXH64 is " "$gpt" --out allowed --resume
    rm allowed/step-00000200/checksums.xxh64
    refuses '"spikes" is 200' "$gpt" --out allowed --resume
    cd - > /dev/null || exit 2
    close_test "--skip-spikes may change on a resume; other data and a damaged window are refused"
fi

# ---- Non-finite losses
wild="--data $dir/good.txt --val-fraction 0 --layers 2 --heads 2 --channels 32 --context 16 --batch 4 --steps 50"
wild="$wild --dtype f32 --lr 1e6 --min-lr 1e6 --warmup 5 --clip 0 --weight-decay 1000"
refuses "not applied. First non-finite tensor: activation h.0." "$gpt" $wild --out none
is "lines before" "$(grep -c 'not applied' "$dir/refuse.out")" 0
refuses "10 such steps without an update between them" "$gpt" $wild --on-nan skip --out "$dir/wild" --save-every 1
line='^step [0-9]*: loss .*, gradient norm .*: not applied. First non-finite tensor: '
is "lines before" "$(grep -c "$line" "$dir/refuse.out")" 9
is "of them with -nan" "$(grep -c -e -nan "$dir/refuse.out")" 0
last=$(last_step "$dir/wild")
first=$(sed -n 's/^step \([0-9]*\): loss .*not applied.*/\1/p' "$dir/refuse.out" | head -n 1)
is "the last step: 9 were reported, the 10th ended the run" "$(echo "$last" | sed 's/.*step-0*//')" $((first + 8))
is "updates: non-finite steps are not counted" "$(updates "$last")" $((first - 1))
close_test "--on-nan skip continues for 10 steps, stop for none"

step() { printf 'step-%08d' "$1"; }
same_as_wild() {  # same_as_wild DIR STEP
    same_files "$dir/wild/$(step "$2")" "$dir/$1/$(step "$2")" model.safetensors optimizer.safetensors
}
good=$dir/stopped/$(step $((first - 1)))
refuses "Last good checkpoint: $good. A lower --lr or --clip may help; --resume --on-nan skip continues" \
    "$gpt" $wild --out "$dir/stopped" --save-every 0
same_as_wild stopped $((first - 1))
is "rows in the log: every step before" "$(rows_of "$dir/stopped")" $((first - 1))
sed 's/ Last good checkpoint.*//' "$dir/refuse.err" > "$dir/ahead.err"
refuses "step $first: loss " "$gpt" $wild --out "$dir/each" --save-every 1     # each step is read before the next one
sed 's/ Last good checkpoint.*//' "$dir/refuse.err" > "$dir/each.err"
expect "the same tensor is named" cmp "$dir/each.err" "$dir/ahead.err"
same_files "$dir/each/$(step $((first - 1)))" "$good" model.safetensors optimizer.safetensors
same_steps "$dir/each" "$dir/stopped"
refuses "10 such steps without an update between them" "$gpt" --out "$dir/stopped" --resume --on-nan skip
same_as_wild stopped $((first + 8))
for run in wild stopped; do
    grep -vE '"(save-every|state.json)"' "$dir/$run/$(step $((first + 8)))/state.json" > "$dir/$run.state"
done
expect "the state and the window of losses, too" cmp "$dir/wild.state" "$dir/stopped.state"
if in_turn 2; then
    refuses "not applied. First non-finite tensor" "$gpt" ${wild%% --lr*} --lr 10 --min-lr 10 --clip 0 \
        --weight-decay 1000 --warmup 5 --save-every 4 --keep 1 --out "$dir/pruned"
    last=$(($(sed -n 's/^train_gpt: step \([0-9]*\):.*/\1/p' "$dir/refuse.err") - 1))
    expect "the state before step $((last + 1))" test -d "$dir/pruned/$(step $last)"
    expect "no older checkpoint is removed" test -d "$dir/pruned/$(step $((last - last % 4)))"
fi
close_test "--on-nan stop saves the state before the step"

# ---- Data that is emptied in place while it is read
cp "$dir/good.txt" "$dir/emptied.txt"
timeout 60 "$gpt" --data "$dir/emptied.txt" --val-fraction 0 --layers 1 --heads 1 --channels 16 --context 32 \
    --steps 100000000 --save-every 0 --out "$dir/emptied" > /dev/null 2> "$dir/emptied.err" &
until_done=$!
wait_for '^10,' "$dir/emptied/log.csv"
: > "$dir/emptied.txt"
wait $until_done
is "exit code" $? 1
is "what it says" "$(tail -n 1 "$dir/emptied.err")" \
    "train_gpt: a mapped file cannot be read: was it truncated meanwhile, or does its disk fail?"
expect "the log says it, too" grep -q '"reason": "a mapped file' "$dir/emptied/log.jsonl"
close_test "data that is emptied while it is read ends with an error message"

close_tests
