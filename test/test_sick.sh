#!/bin/sh
# test/test_sick.sh - Runs that go sick, as a user sees them: a stretch of foreign data, losses that are not finite, too
# little memory. Build folder in $BUILD; prints a line per test and closes with "N passed, N failed".
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build/cpu}
gpt=$PWD/$build/train_gpt
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
OMP_NUM_THREADS=1          # models so small that a second thread is only waited for
export OMP_NUM_THREADS
passed=0 failed=0 skipped=0 bad=0

expect() {        # expect WORDS COMMAND...: the command succeeds, else the words are an error of the running test
    words=$1; shift
    "$@" > "$dir/expect.out" 2>&1 || { echo "  $words: $*"; sed 's/^/    /' "$dir/expect.out" | head -n 8; bad=1; }
}
refuses() {       # refuses PART COMMAND...: exit code 1 and one line on stderr that holds PART
    part=$1; shift
    "$@" > "$dir/refuse.out" 2> "$dir/refuse.err"
    status=$?
    if [ $status != 1 ] || [ "$(wc -l < "$dir/refuse.err")" != 1 ] || ! grep -qF -- "$part" "$dir/refuse.err"; then
        echo "  want exit code 1 and one line with \"$part\", got $status: $*"; head -n 3 "$dir/refuse.err"; bad=1
    fi
}
close_test() {    # close_test NAME
    if [ $bad = 0 ]; then passed=$((passed + 1)); echo "ok   $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi
    bad=0
}
updates() { sed -n 's/.*"optimizer_step": \([0-9]*\).*/\1/p' "$1/state.json"; }      # that AdamW has counted
steps_of() { grep '^[0-9]' "$1" | cut -d, -f1-5; }                                    # a log without its times
fingerprint() {   # fingerprint TEXT: what a checkpoint that was made on it says
    [ -d "$dir/of-$1" ] || "$gpt" --data "$dir/$1.txt" --val-fraction 0 --layers 1 --heads 1 --channels 16 --context 32 \
        --steps 0 --out "$dir/of-$1" > /dev/null
    sed -n 's/.*"train tokens": "\([^"]*\)".*/\1/p' "$dir/of-$1/step-00000000/state.json"
}
continue_run() {  # continue_run FROM STEP TO TEXT OPTIONS...: resumes a copy of a checkpoint on another text
    from=$1 step=$2 to=$3 other=$4; shift 4
    mkdir "$dir/$to"
    cp -r "$dir/$from/step-$step" "$dir/$from/log.csv" "$dir/$to"
    cp "$dir/$other.txt" "$dir/data.txt"
    sed -i "s/\"train tokens\": \"[^\"]*\"/\"train tokens\": \"$(fingerprint "$other")\"/" "$dir/$to/step-$step/state.json"
    (cd "$dir" && "$gpt" --out "$to" --resume "$@") > "$dir/$to.out" 2>&1 ||
        { echo "  $to: no resume"; tail -n 3 "$dir/$to.out"; bad=1; }
}

# ---- A stretch of foreign data: a run on a text whose bytes turn into others after step 170, and back. A resume would
# refuse the other text, of the same length; so the checkpoint is made to say that it was made on it.
"$build/tales" --bytes 40000 --val-bytes 1500 --seed 7 --out "$dir/tales" > /dev/null || exit 2
mv "$dir/tales/train.txt" "$dir/good.txt"
tr ' -~' '\200-\336' < "$dir/good.txt" > "$dir/bad.txt"
cp "$dir/good.txt" "$dir/data.txt"
cd "$dir" || exit 2
expect "train" "$gpt" --data data.txt --val-fraction 0 --layers 2 --heads 2 --channels 32 --context 32 --batch 4 \
    --lr 3e-3 --warmup 5 --beta2 0.99 --steps 200 --save-every 5 --skip-spikes 6 --deterministic --out clean
cd - > /dev/null || exit 2
expect "nothing is refused on good data" test "$(updates "$dir/clean/step-00000200")" = 200
continue_run clean 00000170 spoilt bad
expect "10 steps are refused" test "$(updates "$dir/spoilt/step-00000180")" = 170
expect "the model stays as it was" cmp "$dir/clean/step-00000170/model.safetensors" "$dir/spoilt/step-00000180/model.safetensors"
expect "the moments stay as they were" cmp "$dir/clean/step-00000170/optimizer.safetensors" "$dir/spoilt/step-00000180/optimizer.safetensors"
expect "the next one is the way out" test "$(updates "$dir/spoilt/step-00000185")" = 171
expect "a line says so" grep -q '^step 171: loss [0-9.]* is [0-9.]* .*sigma above the last 128: not applied$' "$dir/spoilt.out"
expect "a line says when" grep -q '^step 180: .*: not applied; the next one will be, after so many in a row$' "$dir/spoilt.out"
expect "a row for every step" test "$(steps_of "$dir/spoilt/log.csv" | wc -l)" = 200
close_test "a stretch of foreign data is not applied and not counted"

continue_run spoilt 00000175 resumed bad
for step in 00000180 00000185 00000200; do
    for file in model.safetensors optimizer.safetensors state.json; do
        expect "the same bytes after a resume" cmp "$dir/spoilt/step-$step/$file" "$dir/resumed/step-$step/$file"
    done
done
steps_of "$dir/spoilt/log.csv" > "$dir/spoilt.steps"
steps_of "$dir/resumed/log.csv" > "$dir/resumed.steps"
expect "the same losses" cmp "$dir/spoilt.steps" "$dir/resumed.steps"
close_test "a resume in the middle of the stretch takes the same decisions"

continue_run spoilt 00000175 over good
expect "all of the rest is applied" test "$(updates "$dir/over/step-00000200")" = 195
close_test "good data after the stretch is applied"

continue_run spoilt 00000175 allowed bad --skip-spikes 0
expect "all is applied" test "$(updates "$dir/allowed/step-00000200")" = 195
expect "no line" test "$(grep -c 'not applied' "$dir/allowed.out")" = 0
mkdir "$dir/windowless"
cp -r "$dir/clean/step-00000170" "$dir/windowless"
sed -i '/"guard":/d' "$dir/windowless/step-00000170/state.json"
cd "$dir" || exit 2
cp good.txt data.txt
expect "a checkpoint without a window goes on" "$gpt" --out windowless --resume
cp bad.txt data.txt; refuses '--data data.txt is other data (' "$gpt" --out windowless --resume; cp good.txt data.txt
sed -i 's/"guard": "[0-9]*/"guard": "200/' "$dir/over/step-00000200/state.json"
refuses 'step-00000200/state.json: the window of losses is damaged at "200 0 0' "$gpt" --out over --resume
cd - > /dev/null || exit 2
close_test "--skip-spikes may change on a resume; a window may lack, and not be damaged"

# ---- What is not finite
wild="--data $dir/good.txt --val-fraction 0 --layers 2 --heads 2 --channels 32 --context 16 --batch 4 --steps 50 --lr 1e6 --min-lr 1e6 --warmup 5 --clip 0 --weight-decay 1000"
refuses "nothing was applied. First sick tensor: activation h.0." "$gpt" $wild
expect "no line before" test "$(grep -c 'nothing was applied' "$dir/refuse.out")" = 0
refuses "10 such steps without an update between them" "$gpt" $wild --on-nan skip --out "$dir/wild" --save-every 1
expect "9 lines before" test "$(grep -c '^step [0-9]*: loss .*, gradient norm .*: nothing was applied. First sick tensor: .* NaN, .*Last good checkpoint: .*/step-' "$dir/refuse.out")" = 9
last=$(ls -d "$dir"/wild/step-* | tail -n 1)
first=$(sed -n 's/^step \([0-9]*\): loss .*nothing was applied.*/\1/p' "$dir/refuse.out" | head -n 1)
expect "9 steps were reported and the 10th ended the run" test "$((first + 8))" = "$(echo "$last" | sed 's/.*step-0*//')"
expect "sick steps are not counted" test "$(updates "$last")" = $((first - 1))
close_test "--on-nan skip goes on for 10 steps, stop for none"

step() { printf 'step-%08d' "$1"; }
same_as_wild() {  # same_as_wild DIR STEP
    for file in model.safetensors optimizer.safetensors; do
        expect "the same bytes" cmp "$dir/wild/$(step "$2")/$file" "$dir/$1/$(step "$2")/$file"
    done
}
refuses "Last good checkpoint: $dir/stopped/$(step $((first - 1))). A lower --lr or --clip may help; --resume --on-nan skip goes on" \
    "$gpt" $wild --out "$dir/stopped" --save-every 0
same_as_wild stopped $((first - 1))
refuses "10 such steps without an update between them" "$gpt" --out "$dir/stopped" --resume --on-nan skip
same_as_wild stopped $((first + 8))
for run in wild stopped; do grep -v '"save-every"' "$dir/$run/$(step $((first + 8)))/state.json" > "$dir/$run.state"; done
expect "the state and the window of losses, too" cmp "$dir/wild.state" "$dir/stopped.state"
refuses "nothing was applied" "$gpt" ${wild%% --lr*} --lr 10 --min-lr 10 --clip 0 --weight-decay 1000 --warmup 5 --save-every 4 --keep 1 --out "$dir/pruned"
last=$(($(sed -n 's/^train_gpt: step \([0-9]*\):.*/\1/p' "$dir/refuse.err") - 1))
expect "what was before step $((last + 1))" test -d "$dir/pruned/$(step $last)"
expect "nothing is pruned for it" test -d "$dir/pruned/$(step $((last - last % 4)))"
close_test "--on-nan stop saves what was before the sick step"

# ---- Memory
name="out of memory names what is wanted, what is free and which option helps"
limited() { (ulimit -v 3000000 && exec "$@"); }
small="--data $dir/good.txt --val-fraction 0 --steps 1 --dry-run"
case $("$gpt" --version) in *cpu*) can_limit=yes ;; *) can_limit= ;; esac
if [ -n "$can_limit" ] && limited "$gpt" --version > /dev/null 2>&1; then
    refuses " are free; the largest that fits is --batch " limited "$gpt" $small --batch 100000
    refuses " are free; with --attention flash instead of naive it fits" limited "$gpt" $small --layers 2 --context 1024 --attention naive --batch 40
    refuses "not even --batch 1 fits: want a smaller --model or a shorter --context" limited "$gpt" $small --context 1000000
    close_test "$name"
else
    skipped=$((skipped + 1)); echo "skip $name: wants a CPU's build that ulimit -v can hold"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
