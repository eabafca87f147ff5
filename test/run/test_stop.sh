#!/bin/sh
# test_stop.sh - A run that is stopped saves, exits with 75 and is resumed bit for bit: by SIGTERM and SIGINT, while it
# trains, validates, samples and starts; a second signal ends it at once; SIGUSR1 saves and continues.
. "$(dirname "$0")/../shell.sh"

start() {         # start NAME ARGUMENTS...: in the background, $pid
    name=$1; shift
    rm -f "$dir/$name.out"              # else wait_for may read that of an earlier start
    "$gpt" "$@" > "$dir/$name.out" 2>&1 &
    pid=$!
}
stop() {          # stop SIGNAL: of $pid; its exit code is in $status
    kill -s "$1" $pid 2> /dev/null      # which may have ended
    wait $pid 2> /dev/null
    status=$?
}
says() {          # says NAME PATTERN: in $dir/NAME.out
    expect "it says so" grep -q -- "$2" "$dir/$1.out"
}

make_text text 60000 20000
small="--data $dir/text/train.txt --val-data $dir/text/val.txt --layers 2 --heads 2 --channels 32 --context 64"
small="$small --dtype f32 --batch 4 --warmup 5 --seed 3 --deterministic"
endless="$small --steps 1000000 --save-every 0 --val-every 0"

# ---- Stopped in the middle, whenever that is, and resumed: the same bytes at the end
events_of() {     # events_of NAME: the losses in its log.jsonl, and the last line
    sed -n 's/^{"event": "\([a-z]*\)", "step": \([0-9]*\),.*loss": \([0-9.]*\),.*}$/\1 \2 \3/p' "$dir/$1/log.jsonl"
    tail -n 1 "$dir/$1/log.jsonl" | sed 's/"seconds.*"reason"/"reason"/'
}
run="$small --steps 400 --save-every 0 --val-every 150 --val-tokens 2000"
expect "the undisturbed run" "$gpt" $run --out "$dir/whole"
for signal in TERM INT; do
    in_turn 2 || continue
    start "$signal" $run --out "$dir/$signal"
    wait_for "^1[0-9][0-9]*," "$dir/$signal/log.csv"
    stop "$signal"
    is "exit code after SIG$signal" $status 75
    says "$signal" "^SIG$signal: saved at step [0-9]* of 400; --resume $dir/$signal continues"
    expect "the resume" "$gpt" --out "$dir/$signal" --resume
    same_files "$dir/whole/step-00000400" "$dir/$signal/step-00000400" ${checkpoint_files% state.json}
    same_state "$dir/whole/step-00000400" "$dir/$signal/step-00000400"
    same_steps "$dir/whole" "$dir/$signal"
    is "the events of the resume" "$(events_of "$signal")" "$(events_of whole)"
    is "checkpoints among them" "$(grep -c '"event": "checkpoint", .*"path": "'"$dir/$signal/step-" \
        "$dir/$signal/log.jsonl")" 4        # also of the validations, whose loss falls
done
close_test "SIGTERM and SIGINT save, exit with 75, and the resume is exact"

# ---- At the start: a job script that always passes --resume comes to the same end, also with no checkpoint yet
run="$small --steps 300 --save-every 0 --val-every 0 --resume"
"$gpt" $run --out "$dir/begun" > "$dir/begun.out" 2>&1
is "exit code of a resume of nothing" $? 0
says begun "^--resume: no checkpoint in $dir/begun: the run starts from step 0"
start large $run --layers 12 --heads 12 --channels 768 --out "$dir/large"
wait_for "^memory" "$dir/large.out"         # its weights take longer, on a CPU; a GPU may have begun
stop TERM
is "exit code before the first step" $status 75
if [ -z "$cuda" ] || ! grep -q "^SIGTERM: saved at step" "$dir/large.out"; then
    says large "^SIGTERM: before the first step, nothing was written; .* --resume begins"
    expect "nothing was written" test ! -e "$dir/large"
fi
for delay in 0 0.02 0.05; do
    in_turn 3 || continue
    start early $run --out "$dir/early"
    sleep $delay
    stop TERM
    # 143: before the handler was there; 0: done before the signal came
    case $status in 0|75|143) ;; *) is "exit code $delay s after the start" $status 75 ;; esac
done
rm -rf "$dir/early"         # in whose log step 1 may be already, before the handler of the new run is there
start early $run --out "$dir/early"
wait_for "^step .*/300\|^all 300 steps are done" "$dir/early.out"     # the log may have rows of an earlier start
stop TERM
case $status in 0|75) ;; *) is "exit code after the first steps" $status 75 ;; esac
expect "the resume, wherever the run came from" "$gpt" $run --out "$dir/early"
same_files "$dir/begun/step-00000300" "$dir/early/step-00000300" ${checkpoint_files% state.json}
same_state "$dir/begun/step-00000300" "$dir/early/step-00000300"
if in_turn 2; then
    mv "$dir/begun/step-00000300" "$dir/moved"
    expect "a resume without its checkpoints begins" "$gpt" $run --out "$dir/begun"
    expect "the log is kept" test "$(grep -c '^[0-9]' "$dir/begun/log.csv.old")" = 300
fi
close_test "a stop at the start; --resume begins when there is no checkpoint"

# ---- While it validates and while it samples
val_bytes=400000; [ -z "$cuda" ] || val_bytes=40000000       # about a second
make_text long 60000 $val_bytes
start val --data "$dir/long/train.txt" --val-data "$dir/long/val.txt" --layers 2 --heads 2 --channels 32 --context 64 \
    --steps 1 --val-tokens 0 --out "$dir/val"
wait_for "^step," "$dir/val/log.csv"
sleep 0.2
stop TERM
is "exit code while it validates" $status 75
expect "a checkpoint" ls "$dir"/val/step-0000000*/state.json
expect "it was cut short" grep -q '"val_step": -1,' "$dir"/val/step-0000000*/state.json
expect "the resume repeats the validation" "$gpt" --out "$dir/val" --resume
event=$(sed -n 's/.*"event": "validation", "step": 1,.* "val_loss": \([0-9.]*\).*/\1/p' "$dir/val/log.jsonl")
logged=$(cells "$dir/val" val_loss)
expect "its row of the log has the loss $event, got '$logged'" \
    awk "BEGIN { d = ${event:-0} - ${logged:-1}; exit !(d * d < 1e-12) }"
is "rows of the log" "$(rows_of "$dir/val")" 1
start sample $small --steps 2 --val-every 0 --sample-every 1 --sample-tokens 1000000 --out "$dir/sample"
wait_for "a sample" "$dir/sample.out"
stop INT
is "exit code while it samples" $status 75
expect "what it sampled is an event" grep -q '^{"event": "sample", "step": 1, .*"text": "..*"}$' "$dir/sample/log.jsonl"
expect "a checkpoint" ls "$dir"/sample/step-0000000*/state.json
close_test "a stop while it validates and while it samples"

# ---- A script starts its background jobs with SIGINT ignored
start text --sample "$dir/whole" --sample-tokens 100000000
wait_for . "$dir/text.out"
stop INT
is "exit code of --sample after SIGINT" $status 130
close_test "SIGINT ends --sample also in the background"

# ---- A second signal, and SIGUSR1
start again $small --steps 2 --val-every 0 --total-batch 25600000 --out "$dir/again"
wait_for "^step," "$dir/again/log.csv"
if [ -z "$cuda" ]; then sleep 0.2; else sleep 1; fi      # the log is there before the saver has its host memory
kill -TERM $pid
sleep 1.2
stop INT
is "exit code after a second signal, in the middle of a long step" $status 130
start usr1 $endless --out "$dir/usr1"
wait_for "^5," "$dir/usr1/log.csv"
kill -USR1 $pid
wait_for '"step": ' "$dir/usr1/step-*/state.json"
expect "it continues" kill -0 $pid
refuses "$dir/usr1: another train_gpt writes to this directory: wait for it" "$gpt" --resume --out "$dir/usr1"
mv "$dir/usr1" "$dir/usr1-moved"
mkdir -p "$dir/usr1/step-00000009.partial"
touch "$dir/usr1/log.csv"
kill -USR1 $pid
wait_for "is not saved: $dir/usr1: the directory was moved or removed" "$dir/usr1.out"
wait_for "$dir/usr1/log.csv: cannot write: it was moved or removed" "$dir/usr1.out"
sleep 4                       # the page is due
is "what another directory of that name has" "$(ls -A "$dir/usr1" | tr '\n' ' ')" "log.csv step-00000009.partial "
rm -r "$dir/usr1"
mv "$dir/usr1-moved" "$dir/usr1"
kept=$(last_step "$dir/usr1")
kill -STOP $pid; kill -TERM $pid; kill -TERM $pid; kill -CONT $pid      # as timeout(1) does
wait $pid
is "exit code after the same signal twice at once" $? 75
is "rows of the log" "$(rows_of "$dir/usr1")" "$(sed -n '$s/,.*//p' "$dir/usr1/log.csv")"
expect "moved back, it is saved" test "$(last_step "$dir/usr1")" != "$kept"
close_test "a second signal ends it at once; SIGUSR1 saves and continues; a moved directory is an error of the save"

close_tests
