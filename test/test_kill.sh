#!/bin/sh
# test/test_kill.sh - Nothing is lost: the program killed at random moments, and calls that write failing one by one, on a
# disk that is full, too. $ROUNDS kills (8), every $STRIDE-th place of a fault (9): `make test-kill` takes 200 and 1.
# Build folder in $BUILD; prints a line per test and closes with "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build/cpu} rounds=${ROUNDS:-8} stride=${STRIDE:-9}
gpt=$PWD/$build/train_gpt
faults=$PWD/$build/faults.so
dir=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) || exit 2      # in memory: thousands of fsyncs
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
passed=0 failed=0 skipped=0 bad=0

wrong() { echo "  $*"; bad=1; }
close_test() {    # close_test NAME
    if [ $bad = 0 ]; then passed=$((passed + 1)); echo "ok   $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi
    bad=0
}
skip_test() { skipped=$((skipped + 1)); echo "skip $1: $2"; }

"$build/tales" --bytes 3000 --val-bytes 1500 --seed 7 --out "$dir/text" > /dev/null || exit 2
small="--data $dir/text/train.txt --val-data $dir/text/val.txt --layers 1 --heads 2 --channels 16 --context 16 --batch 2 --threads 1"

same_folders() {  # same_folders A B: every checkpoint of A is in B, byte for byte
    for step in "$1"/step-????????; do
        [ -d "$step" ] || continue
        for file in config.json model.safetensors optimizer.safetensors state.json; do
            cmp -s "$step/$file" "$2/${step##*/}/$file" || wrong "$step/$file differs from that of $2"
        done
    done
}
names_in() { (cd "$1" && ls -d step-* 2>/dev/null); }
rows_of() { grep '^[0-9]' "$1/log.csv" | cut -d, -f1-5,9; }
random_ms() {     # random_ms MOST
    od -An -N4 -tu4 /dev/urandom | awk -v most="$1" '{ printf "%.3f", $1 % most / 1000 }'
}

# ---- Killed at random moments, resumed each time: a run that saves every step, and prunes
run="$small --steps 200 --save-every 1 --val-every 7 --keep 3 --keep-every 50"
began=$(date +%s%N)
"$gpt" $run --out "$dir/whole" > "$dir/whole.out" 2>&1 || wrong "the undisturbed run: $(tail -n 1 "$dir/whole.out")"
most=$((($(date +%s%N) - began) / 6000000 + 20))           # a sixth of it: many kills on the way to the end
"$gpt" ${run%% --keep*} --out "$dir/all" > /dev/null 2>&1
sed -i 's/"keep": "0"/"keep": "3"/; s/"keep-every": "0"/"keep-every": "50"/' "$dir"/all/*/state.json    # with all its steps
wanted="step-00000050 step-00000100 step-00000150 step-00000198 step-00000199 step-00000200"
[ "$(echo $(names_in "$dir/whole"))" = "$wanted" ] || wrong "the undisturbed run left $(echo $(names_in "$dir/whole"))"
kills=0 ends=0
has_checkpoint() { ls "$1"/step-????????/state.json > /dev/null 2>&1; }
start_or_resume() { exec "$gpt" $run --out "$dir/killed" --resume > "$dir/killed.out" 2>&1; }    # as a queue does
check_killed() {
    same_folders "$dir/killed" "$dir/all"
    if grep -q 'all 200 steps are done' "$dir/killed.out"; then      # a kill in the last pruning: no save came to do the rest
        ls "$dir/killed" | grep '\.partial$\|\.old$' && wrong "what a kill left is still there"
    else
        [ "$(names_in "$dir/killed")" = "$(names_in "$dir/whole")" ] || wrong "left behind: $(echo $(names_in "$dir/killed"))"
    fi
    rows_of "$dir/whole" > "$dir/whole.rows"
    rows_of "$dir/killed" > "$dir/killed.rows"
    cmp -s "$dir/whole.rows" "$dir/killed.rows" || wrong "other rows in the log"
    rm -rf "$dir/killed"
    ends=$((ends + 1))
}
while [ $kills -lt "$rounds" ] && [ $bad = 0 ]; do
    start_or_resume &
    pid=$!
    sleep "$(random_ms $most)"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    case $? in
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

# ---- Calls that fail. What must hold afterwards: every checkpoint there is whole; the run has all its steps; the exit code
# is 1 when the last step was not saved, and 0 otherwise; and a resume brings the bits of the undisturbed run.
run="$small --steps 6 --save-every 2 --val-every 0 --keep 2"
faulty() {        # faulty PATH CALLS FIRST EVERY ERROR: a run into $dir/f under faults
    rm -rf "$dir/f"
    env LD_PRELOAD="$faults" FAULT_PATH="$1" FAULT_CALLS="$2" FAULT_FIRST="$3" FAULT_EVERY="$4" FAULT_ERROR="$5" \
        "$gpt" $run --out "$dir/f" > "$dir/f.out" 2> "$dir/f.err"
    status=$? runs=$((runs + 1)) what="$5 at call $3${4:+, every $4}"
    [ "$(grep -c '^[0-9]' "$dir/f/log.csv")" = 6 ] || wrong "$what: the run did not go on: $(tail -n 1 "$dir/f.err")"
    same_folders "$dir/f" "$dir/six"
    want=0
    if grep -q 'step 6 is not saved: ' "$dir/f.err"; then want=1
        grep -q 'the last checkpoint could not be written' "$dir/f.err" || wrong "$what: the last line is $(tail -n 1 "$dir/f.err")"
    elif [ ! -s "$dir/f.err" ]; then
        [ "$(names_in "$dir/f")" = "$(names_in "$dir/two")" ] || wrong "$what: not a word, but there is $(echo $(names_in "$dir/f"))"
    fi
    [ $status = $want ] || wrong "$what: exit code $status, want $want: $(tail -n 1 "$dir/f.err")"
    grep -q "$(words_of "$5")" "$dir/f.err" && told=$((told + 1))
    [ $want = 0 ] || ended=$((ended + 1))
    { has_checkpoint "$dir/f" && [ ! -d "$dir/f/step-00000006" ]; } || return
    "$gpt" --out "$dir/f" --resume --threads 1 > "$dir/f.out" 2>&1 || wrong "$what: the resume: $(tail -n 1 "$dir/f.out")"
    same_folders "$dir/f" "$dir/six"
    [ -d "$dir/f/step-00000006" ] || wrong "$what: the resume has not saved the last step"
}
words_of() {
    case $1 in ENOSPC) echo 'No space left on device' ;; EDQUOT) echo 'Disk quota exceeded' ;; EIO) echo 'Input/output error' ;; esac
}
name="ENOSPC, EDQUOT and EIO at every call"
if [ ! -f "$faults" ]; then skip_test "$name" "no $faults"
elif grep -q __asan_init "$gpt"; then skip_test "$name" "the sanitizer wants to be loaded first"
elif ! LD_PRELOAD="$faults" FAULT_PATH=/ FAULT_LOG="$dir/calls" "$gpt" $run --out "$dir/two" > "$dir/f.out" 2>&1; then
    skip_test "$name" "nothing can be preloaded here"
else
    "$gpt" $run --keep-every 1 --out "$dir/six" > /dev/null 2>&1      # with all its checkpoints, to compare with
    sed -i 's/"keep-every": "1"/"keep-every": "0"/' "$dir"/six/*/state.json
    runs=0 told=0 ended=0
    calls=$(grep -c "$dir/two/step-" "$dir/calls")
    [ "$calls" -gt 80 ] || wrong "only $calls calls on checkpoints are seen"
    for error in ENOSPC EDQUOT EIO; do
        n=$((1 + runs % stride))
        while [ $n -le "$calls" ]; do
            faulty "$dir/f/step-" "write,fsync,rename,open,mkdir,unlink" $n "" $error
            n=$((n + stride))
        done
    done
    [ $told = $runs ] || wrong "$((runs - told)) faults were not told"
    echo "  $runs runs with one fault at one of $calls calls: all told, $ended ended with code 1"
    for error in ENOSPC EDQUOT EIO; do
        for every in 1 3 10 30 50; do
            [ "$stride" = 1 ] || [ $every != 3 ] || continue
            faulty "$dir/f/step-" "write,fsync,rename,open,mkdir,unlink" $every $every $error
        done
        faulty "$dir/f/log.csv" write,fsync 4 2 $error          # the first 3 are made at the start, which they would end
    done
    echo "  $runs runs with faults in all: told in $told, $ended ended with code 1"
    close_test "$name ($runs runs)"

    # ---- The order of what makes it durable: the files, their folder, the new name, the folder above; then the pruning
    order=$(awk -v d="$dir/two" '{ gsub(d "/step-00000006.partial", "P"); gsub(d "/step-00000002.partial", "Q"); gsub(d, "OUT") }
        /^fsync P/ || /^rename / || $0 == "fsync OUT" || /^unlink Q/ { print }' "$dir/calls" | awk '
        /^fsync P\/config/ { on = 1 } on && !seen[$0]++ { printf "%s; ", $0 }')
    want="fsync P/config.json; fsync P/model.safetensors; fsync P/optimizer.safetensors; fsync P/state.json; fsync P; rename P; fsync OUT; rename OUT/step-00000002; unlink Q; "
    [ "$order" = "$want" ] || wrong "the order is $order"
    awk -v d="$dir" '$0 == "mkdir " d "/two" { on = 1 } on && $0 == "fsync " d { ok = 1 } /two\/log.csv/ { exit } END { exit !ok }' \
        "$dir/calls" || wrong "the folder above --out is not synced"
    close_test "what is on the disk comes before the name that stands for it"
fi

# ---- A limit on the size of files, as queues and ulimit -f set it: the moments are beyond, the log is not
run="$small --steps 6 --save-every 2 --val-every 0"
(ulimit -f 40; "$gpt" $run --out "$dir/limited" > "$dir/f.out" 2> "$dir/f.err")
[ $? = 1 ] || wrong "want exit code 1"
[ "$(grep -c 'step [246] is not saved: .*File too large' "$dir/f.err")" = 3 ] || wrong "want three errors: $(cat "$dir/f.err")"
[ "$(grep -c '^[0-9]' "$dir/limited/log.csv")" = 6 ] || wrong "the run did not go on"
[ "$(names_in "$dir/limited")" = "" ] || wrong "left behind: $(names_in "$dir/limited")"
close_test "a limit on the size of files"

# ---- A disk that is really full: a file system of 300 KiB, on which two checkpoints find room
name="a full disk"
if ! unshare -rm mount -t tmpfs -o size=300k none "$dir/text" 2>/dev/null; then skip_test "$name" "no file system can be mounted here"
else
    mkdir "$dir/disk"
    cat > "$dir/full.sh" <<'END'
gpt=$1 dir=$2 small=$3
mount -t tmpfs -o size=300k none "$dir/disk" || exit 2
"$gpt" $small --steps 12 --save-every 2 --val-every 0 --out "$dir/disk/a" > "$dir/disk.out" 2> "$dir/disk.err"
echo "code $?, $(grep -c 'is not saved: .*No space left on device' "$dir/disk.err") of 6 not saved"
dd if=/dev/zero of="$dir/disk/filler" 2>/dev/null                   # now the log finds no room either
"$gpt" --resume --out "$dir/disk/a" --threads 1 > "$dir/disk.out" 2>&1
echo "code $?, $(tail -n 1 "$dir/disk.out")"
rm -r "$dir/disk/a/step-00000002" "$dir/disk/filler"
"$gpt" --resume --keep 1 --out "$dir/disk/a" --threads 1 > "$dir/disk.out" 2>&1
echo "code $?, $(grep -c '^[0-9]' "$dir/disk/a/log.csv") rows, $(cd "$dir/disk/a" && echo step-*)"
END
    unshare -rm sh "$dir/full.sh" "$gpt" "$dir" "$small" > "$dir/full.out" 2>&1
    cat "$dir/full.out"
    grep -q '^code 1, [1-5] of 6 not saved' "$dir/full.out" || wrong "the run on the full disk: $(cat "$dir/disk.err")"
    grep -q 'log.csv.*: cannot [a-z]*: No space left on device' "$dir/full.out" || wrong "the resume on the full disk"
    grep -q '^code 0, 12 rows, step-00000012$' "$dir/full.out" || wrong "the resume with room: $(tail -n 1 "$dir/disk.out")"
    close_test "$name"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
