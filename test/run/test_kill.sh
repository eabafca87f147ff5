#!/bin/sh
# test_kill.sh - Nothing is lost: the program killed at random moments, calls that write failing one by one, a full
# disk. $ROUNDS kills, every $STRIDE-th place of a fault, from one that varies with the time, with each error in turn;
# make test-kill: 200, and every error at every place. Fewer on a GPU, where a process takes a third of a second to
# start.
if [ -w /dev/shm ]; then export TMPDIR=/dev/shm; fi      # in memory: thousands of fsyncs
. "$(dirname "$0")/../shell.sh"
if [ "$cuda" ]; then rounds=${ROUNDS:-2} stride=${STRIDE:-30}
else                  rounds=${ROUNDS:-8} stride=${STRIDE:-6}
fi
faults=$PWD/$build/faults.so
can_preload() { [ -f "$faults" ] && ! grep -q __asan_init "$gpt"; }     # the sanitizer wants to be loaded first

make_text text 3000 1500
small="--data $dir/text/train.txt --val-data $dir/text/val.txt --layers 1 --heads 2 --channels 16 --context 16"
small="$small --dtype f32 --batch 2 --threads 1"

same_checkpoints() {  # same_checkpoints A B: every checkpoint of A is in B, byte for byte
    for step in "$1"/step-????????; do
        [ -d "$step" ] || continue
        other=$2/${step##*/}
        same_files "$step" "$other" ${checkpoint_files% state.json}
        same_state "$step" "$other"
    done
}
names_in() { (cd "$1" && ls -d step-* 2>/dev/null | grep -v '\.partial-'); }      # one of a run without locks stays
random_ms() {     # random_ms MAX
    od -An -N4 -tu4 /dev/urandom | awk -v max_ms="$1" '{ printf "%.3f", $1 % max_ms / 1000 }'
}

# ---- Killed at random moments, resumed each time: a run that saves every second step and every best, and prunes
run="$small --dropout 0.1 --steps 200 --save-every 2 --val-every 7 --keep 3"
began=$(date +%s%N)
expect "the undisturbed run" "$gpt" $run --out "$dir/whole"
max_ms=$((($(date +%s%N) - began) / 6000000 + 20))           # a sixth of it: many kills on the way to the end
"$gpt" ${run%% --keep*} --out "$dir/all" > /dev/null 2>&1      # with all its steps
sed -i 's/"keep": "0"/"keep": "3"/' "$dir"/all/*/state.json
wanted="step-00000196 step-00000198 step-00000200"
is "the undisturbed run left" "$(echo $(names_in "$dir/whole"))" "$wanted"
kills=0 ends=0
has_checkpoint() { ls "$1"/step-????????/state.json > /dev/null 2>&1; }
system=$((turn % 2))      # in every second run files cannot be locked
start_or_resume() {       # as a queue does
    [ $system = 0 ] || ! can_preload || export LD_PRELOAD="$faults" FAULT_NO_LOCKS=1
    exec "$gpt" $run --out "$dir/killed" --resume > "$dir/killed.out" 2>&1
}
check_best() {    # check_best RUN: the link, if there is one, names a whole checkpoint
    [ ! -L "$1/best" ] || [ -f "$1/best/checksums.xxh64" ] || wrong "$1/best names $(readlink "$1/best")"
}
check_killed() {
    is "the best" "$(readlink "$dir/killed/best")" "$(readlink "$dir/whole/best")"
    same_checkpoints "$dir/killed" "$dir/all"
    if grep -q 'all 200 steps are done' "$dir/killed.out"; then      # killed in the last pruning: no save did the rest
        names_in "$dir/killed" | grep '\.partial$' && wrong "what a kill left is still there"
    else
        is "left behind" "$(names_in "$dir/killed")" "$(names_in "$dir/whole")"
    fi
    same_steps "$dir/whole" "$dir/killed"
    rm -rf "$dir/killed"
    system=$((1 - system))
    ends=$((ends + 1))
}
while [ $kills -lt "$rounds" ] && [ $bad = 0 ]; do
    start_or_resume &
    pid=$!
    sleep "$(random_ms $max_ms)"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    status=$?
    check_best "$dir/killed"
    case $status in
    137) kills=$((kills + 1)) ;;
    0)   check_killed ;;
    *)   wrong "after $kills kills: $(tail -n 1 "$dir/killed.out")" ;;
    esac
done
if [ $bad = 0 ]; then
    (start_or_resume) || wrong "the last resume: $(tail -n 1 "$dir/killed.out")"
    check_killed
fi
close_test "$kills kills, $ends runs brought to their end with the same bits"

# ---- Calls that fail, at saves of which the next one removes those that no rule keeps. What must hold afterwards:
# every checkpoint there is whole, and so is the best; the run has all its steps; the exit code is 1 when the last step
# was not saved, and 0 otherwise; and a resume brings the bits of the undisturbed run.
run="$small --steps 8 --save-every 4 --val-every 1 --keep 1" steps=8 sound=$dir/eight all=$dir/every
faulty() {        # faulty PATH CALLS FIRST EVERY ERROR: $run into $dir/f under faults, to compare with $sound and $all
    rm -rf "$dir/f"
    env LD_PRELOAD="$faults" FAULT_PATH="$1" FAULT_CALLS="$2" FAULT_FIRST="$3" FAULT_EVERY="$4" FAULT_ERROR="$5" \
        "$gpt" $run --out "$dir/f" > "$dir/f.out" 2> "$dir/f.err"
    status=$? runs=$((runs + 1)) what="$5 at call $3 on $1${4:+, every $4}" last=$dir/f/step-0000000$steps
    [ "$(rows_of "$dir/f")" = $steps ] || wrong "$what: the run did not go on: $(tail -n 1 "$dir/f.err")"
    same_checkpoints "$dir/f" "$all"
    check_best "$dir/f"
    want=0
    if grep -q "step $steps is not saved: " "$dir/f.err"; then want=1
        grep -q 'the last checkpoint could not be written' "$dir/f.err" ||
            wrong "$what: the last line is $(tail -n 1 "$dir/f.err")"
    elif [ ! -s "$dir/f.err" ]; then
        is "$what: no message, but there is" "$(names_in "$dir/f")" "$(names_in "$sound")"
    fi
    [ $status = $want ] || wrong "$what: exit code $status, want $want: $(tail -n 1 "$dir/f.err")"
    grep -q "$(words_of "$5")" "$dir/f.err" && reported=$((reported + 1))
    [ $want = 0 ] || ended=$((ended + 1))
    has_checkpoint "$dir/f" || return
    expect "$what: the resume" "$gpt" --out "$dir/f" --resume --threads 1
    same_checkpoints "$dir/f" "$all"
    [ -d "$last" ] || wrong "$what: the resume has not saved the last step"
    best=$(sed -n 's/.*"best": {"step": \([0-9]*\),.*/\1/p' "$last/state.json")
    is "$what: best" "$(readlink "$dir/f/best")" "$(printf step-%08d "$best")"
}
words_of() {
    case $1 in
    ENOSPC) echo 'No space left on device' ;;
    EDQUOT) echo 'Disk quota exceeded' ;;
    EIO)    echo 'Input/output error' ;;
    esac
}
name="ENOSPC, EDQUOT and EIO at every call"
if ! can_preload; then skip_test "$name" "no $faults, or a sanitizer"
elif ! LD_PRELOAD="$faults" FAULT_PATH=/ FAULT_LOG="$dir/calls" "$gpt" $run --out "$sound" > "$dir/f.out" 2>&1; then
    skip_test "$name" "nothing can be preloaded here"
else
    "$gpt" $run --keep 0 --save-every 1 --out "$all" > /dev/null 2>&1      # with all its checkpoints
    sed -i 's/"keep": "0"/"keep": "1"/; s/"save-every": "1"/"save-every": "4"/' "$all"/*/state.json
    runs=0 reported=0 ended=0
    every_call="write,fsync,rename,open,mkdir,unlink"
    errors() {        # errors N: those to try at place N
        if [ "$stride" = 1 ]; then echo ENOSPC EDQUOT EIO; return; fi
        case $(($1 % 3)) in 0) echo ENOSPC ;; 1) echo EDQUOT ;; 2) echo EIO ;; esac
    }
    n=$((1 + turn % stride)) place=$((turn / stride))
    for path in step- best; do
        calls=$(grep -c "$sound/$path" "$dir/calls")
        [ "$calls" -gt $([ $path = best ] && echo 5 || echo 200) ] || wrong "only $calls calls on $path are seen"
        while [ $n -le "$calls" ]; do
            for error in $(errors $place); do faulty "$dir/f/$path" $every_call $n "" $error; done
            n=$((n + stride)) place=$((place + 1))
        done
        n=1
    done
    [ $reported = $runs ] || wrong "$((runs - reported)) faults were not reported"
    echo "  $runs runs with one fault: all reported, $ended ended with code 1"
    for every in 1 3 10 30 50; do
        place=$((place + 1))
        in_turn 5 || continue
        for error in $(errors $place); do faulty "$dir/f/step-" $every_call $every $every $error; done
    done
    for error in $(errors $place); do
        faulty "$dir/f/log.csv" write,fsync 4 2 $error
        same_steps "$sound" "$dir/f"      # rows that were cut short are completed, none is written twice
    done
    echo "  $runs runs with faults in all: reported in $reported, $ended ended with code 1"
    close_test "$name ($runs runs)"

    # ---- The order: the files, their directory, the new name, the directory above; then old checkpoints are removed
    LD_PRELOAD="$faults" FAULT_PATH=/ FAULT_LOG="$dir/order" \
        "$gpt" $small --steps 6 --save-every 2 --val-every 0 --keep 2 --out "$dir/two" > "$dir/f.out" 2>&1
    order=$(awk -v d="$dir/two" '
        { gsub(d "/step-00000006.partial", "P"); gsub(d "/step-00000002.partial", "Q"); gsub(d, "OUT") }
        /report\.html/ { next }
        sub(/^unlink Q.*/, "unlink Q") || /^fsync P/ || /^rename / || $0 == "fsync OUT" { print }' "$dir/order" | awk '
        /^fsync P\/config/ { on = 1 } on && !seen[$0]++ { printf "%s; ", $0 }')
    want="fsync P/config.json; fsync P/model.safetensors; fsync P/optimizer.safetensors; fsync P/state.json; "
    want="$want${cuda:+fsync P/choices.txt; }"
    want="${want}fsync P/tokenizer.json; fsync P/tokenizer_config.json; fsync P/checksums.xxh64; fsync P; "
    want="${want}rename P; fsync OUT; rename OUT/best.new; rename OUT/step-00000002; unlink Q; "
    is "the order" "$order" "$want"
    expect "the directory above --out is synced" awk -v d="$dir" '
        $0 == "mkdir " d "/two" { on = 1 } on && $0 == "fsync " d { ok = 1 }
        /two\/log.csv/ { exit } END { exit !ok }' "$dir/order"
    close_test "files are durable before their directory gets its name"

    # ---- Killed before every call of a save, and thus after every call: it is there completely, or not at all
    run="$small --steps 4 --save-every 2 --val-every 2"
    saving="env LD_PRELOAD=$faults FAULT_PATH=/step-00000004 FAULT_NO_LOCKS=1 FAULT_CALLS=$every_call"
    expect "no kill" env FAULT_LOG="$dir/calls.save" $saving "$gpt" $run --out "$dir/saved"
    expect "calls of the save" test -s "$dir/calls.save"
    killed=0
    for n in $(seq $((1 + turn % stride)) $stride "$(wc -l < "$dir/calls.save")"); do
        rm -rf "$dir/f"
        FAULT_FIRST=$n FAULT_ERROR=KILL $saving "$gpt" $run --out "$dir/f" > "$dir/f.out" 2>&1
        is "killed at call $n" $? 137
        expect "$n: the resume" $saving "$gpt" $run --out "$dir/f" --resume
        same_files "$dir/saved/step-00000004" "$dir/f/step-00000004" $checkpoint_files
        is "$n: the best" "$(readlink "$dir/f/best")" "$(readlink "$dir/saved/best")"
        killed=$((killed + 1))
    done
    close_test "a save that is killed at any call ($killed kills)"

    # ---- Two runs in one directory without locks: neither removes what the other writes
    run="$small --steps 60 --save-every 1 --val-every 0"
    for name in one two; do
        FAULT_NO_LOCKS=1 LD_PRELOAD="$faults" "$gpt" $run --out "$dir/shared" --resume > "$dir/$name.out" \
            2> "$dir/$name.err" &
    done
    wait
    for step in "$dir"/shared/step-????????; do
        for file in $checkpoint_files; do [ -f "$step/$file" ] || wrong "$step has no $file"; done
    done
    grep -q 'warning: .*shared: cannot be locked: Bad file descriptor' "$dir/one.err" || wrong "no warning"
    close_test "two runs in a directory without locks leave complete checkpoints"

    # ---- Two runs of one text without locks: a stop of one, before its tokenize writes, takes no tokens from the other
    expect "a tokenizer" "$tokenize" "$dir/text/train.txt" --train-tokenizer --vocab-size 300 --out "$dir/bpe"
    text="$small --val-every 0 --steps 2 --out none --tokenizer $dir/bpe"
    slow="env LD_PRELOAD=$faults FAULT_NO_LOCKS=1 FAULT_PATH=.tokens- FAULT_ERROR=SLOW FAULT_FIRST=1"
    $slow FAULT_CALLS=open FAULT_LOG="$dir/opens" "$gpt" $text > "$dir/stopped.out" 2>&1 &
    pid=$!
    wait_for tokens- "$dir/opens"
    kill -TERM $pid
    expect "the other run" $slow FAULT_CALLS=write "$gpt" $text
    wait $pid
    is "exit code of the stopped run" $? 75
    close_test "without locks, a stop of one run leaves the tokens that another writes"

    # ---- Killed before the link of the best, whose checkpoint is complete: the resume makes it
    run="$small --steps 6 --save-every 2 --val-every 3"
    LD_PRELOAD="$faults" FAULT_PATH=/best FAULT_CALLS=rename FAULT_FIRST=2 FAULT_ERROR=KILL \
        "$gpt" $run --out "$dir/pending" > "$dir/f.out" 2>&1
    is "exit code" $? 137
    expect "no kill" "$gpt" $run --out "$dir/valid"
    expect "the resume" "$gpt" --resume --out "$dir/pending" --threads 1
    same_files "$dir/valid/step-00000006" "$dir/pending/step-00000006" $checkpoint_files
    same_steps "$dir/valid" "$dir/pending"
    is "the best" "$(readlink "$dir/pending/best")" "$(readlink "$dir/valid/best")"
    close_test "the link of a best that is complete is made by a resume"
fi

close_tests
