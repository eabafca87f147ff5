#!/bin/sh
# test/test_stop.sh - A run that is told to stop saves, exits with 75 and goes on bit for bit: by SIGTERM, SIGINT and
# the clock, while it trains, validates, samples and starts; a second signal ends it at once; SIGUSR1 saves and goes on.
. "$(dirname "$0")/shell.sh"

start() {         # start NAME ARGUMENTS...: in the background, $pid
    name=$1; shift
    "$gpt" "$@" > "$dir/$name.out" 2>&1 &
    pid=$!
}
stop() {          # stop SIGNAL: of $pid; its exit code is in $status
    kill -s "$1" $pid 2> /dev/null      # which may have ended
    wait $pid 2> /dev/null
    status=$?
}

make_text text 60000 20000
small="--data $dir/text/train.txt --val-data $dir/text/val.txt --layers 2 --heads 2 --channels 32 --context 64"
small="$small --batch 4 --warmup 5 --seed 3 --deterministic"

# ---- Stopped in the middle, whenever that is, and resumed: the same bytes at the end.
run="$small --steps 400 --save-every 0 --val-every 150 --val-tokens 2000"
expect "the undisturbed run" "$gpt" $run --out "$dir/whole"
for signal in TERM INT; do
    start "$signal" $run --out "$dir/$signal"
    wait_for "^1[0-9][0-9]*," "$dir/$signal/log.csv"
    stop "$signal"
    is "exit code after SIG$signal" $status 75
    expect "it says so" \
        grep -q "^SIG$signal: saved at step [0-9]* of 400; --out $dir/$signal --resume goes on" "$dir/$signal.out"
    expect "the resume" "$gpt" --out "$dir/$signal" --resume
    same_files "$dir/whole/step-00000400" "$dir/$signal/step-00000400" ${checkpoint_files% state.json}
    same_steps "$dir/whole" "$dir/$signal"
done
close_test "SIGTERM and SIGINT save, exit with 75, and the resume is exact"

# ---- The clock. A step of this size takes milliseconds; 2 s are a part of the run.
"$gpt" $small --steps 1000000 --save-every 0 --val-every 0 --time-limit 2s --out "$dir/limit" > "$dir/limit.out" 2>&1
is "exit code after 2 s" $? 75
expect "it says so" grep -q "^--time-limit 2s: saved at step" "$dir/limit.out"
expect "the first save is foreseen" \
    grep -q "^--time-limit 2s: until a save was timed, [0-9.]* s of it are kept for the last one, of .* [KM]iB$" \
    "$dir/limit.out"
for time in 0 -1s 3x 1s2h '' h; do refuses "--time-limit" "$gpt" $small --time-limit="$time" --out "$dir/none"; done
close_test "--time-limit saves and exits with 75; a time that is none is refused"

# ---- At the start: a queue script that always says --resume comes to the same end, also with nothing there to go on
# from.
run="$small --steps 300 --save-every 0 --val-every 0 --resume"
expect "a resume of nothing begins" "$gpt" $run --out "$dir/begun"
cp "$dir/expect.out" "$dir/begun.out"
expect "it says so" grep -q "^--resume: no checkpoint in $dir/begun: the run starts from step 0" "$dir/begun.out"
"$gpt" $run --out "$dir/early" --time-limit 0.0001s > "$dir/limit.out" 2>&1
is "exit code" $? 75
expect "it says so" \
    grep -q "^--time-limit 0.0001s: before the first step: nothing was written; .* --resume begins" "$dir/limit.out"
expect "nothing was written" test ! -e "$dir/early"
for delay in 0 0.01 0.02 0.03 0.05; do
    start early $run --out "$dir/early"
    sleep $delay
    stop TERM
    # 143: not yet begun; 0: done before the signal came
    case $status in 0|75|143) ;; *) is "exit code $delay s after the start" $status 75 ;; esac
done
expect "the resume" "$gpt" $run --out "$dir/early"
same_files "$dir/begun/step-00000300" "$dir/early/step-00000300" ${checkpoint_files% state.json}
"$gpt" $run --out "$dir/early" --time-limit 0.0001s > "$dir/limit.out" 2>&1
is "exit code" $? 75
expect "it says so" grep -q "nothing was written; .* --resume goes on from $dir/early/step-00000300" "$dir/limit.out"
rm "$dir/begun/step-00000300/state.json"
"$gpt" $run --out "$dir/begun" > "$dir/out" 2>&1
is "exit code of a resume with a model alone" $? 1
expect "it says so" grep -q "step-00000300 has no state.json, and $dir/begun has no complete checkpoint" "$dir/out"
mv "$dir/begun/step-00000300" "$dir/moved"
expect "a resume without its checkpoints begins" "$gpt" $run --out "$dir/begun"
expect "the log is kept" test "$(grep -c '^[0-9]' "$dir/begun/log.csv.old")" = 300
rm -r "$dir"/begun/step-*
expect "once more" "$gpt" $run --out "$dir/begun"
expect "both logs are kept" test -e "$dir/begun/log.csv.old" -a -e "$dir/begun/log.csv.old.2"
expect "a resume goes on, wherever the run came from" "$gpt" $run --out "$dir/begun" --init "$dir/nowhere"
close_test "a stop at the start; --resume begins where there is nothing to go on from"

# ---- While it validates and while it samples.
if [ "$cuda" ]; then val_bytes=60000000; else val_bytes=3000000; fi      # some seconds
make_text long 60000 $val_bytes
start val --data "$dir/long/train.txt" --val-data "$dir/long/val.txt" --layers 2 --heads 2 --channels 32 --context 64 \
    --steps 1 --val-tokens 0 --out "$dir/val"
wait_for "^# model" "$dir/val/log.csv"
sleep 0.3
stop TERM
is "exit code while it validates" $status 75
expect "a checkpoint" ls "$dir"/val/step-0000000*/state.json
expect "it was cut short" grep -q '"val_step": -1,' "$dir"/val/step-0000000*/state.json
if ! [ "$cuda" ]; then
    "$gpt" --out "$dir/val" --resume --threads 1 --time-limit 0.7s > "$dir/out" 2>&1
    is "exit code where there is never time for it" $? 1
    expect "it says so" grep -q "^train_gpt: --time-limit 0.7s: the validation of step . alone takes longer" "$dir/out"
fi
expect "the resume makes up for the validation" "$gpt" --out "$dir/val" --resume
expect "validated" grep -q '"val_step": 1,' "$dir/val/step-00000001/state.json"
saved=$(sed -n 's/.*"val_loss": \([0-9.]*\),/\1/p' "$dir/val/step-00000001/state.json")
logged=$(grep '^1,' "$dir/val/log.csv" | cut -d, -f9)
expect "its row of the log has the loss $saved, got '$logged'" \
    awk "BEGIN { d = ${saved:-0} - ${logged:-1}; exit !(d * d < 1e-12) }"
is "rows of the log" "$(grep -c '^[0-9]' "$dir/val/log.csv")" 1
start sample $small --steps 2 --val-every 0 --sample-every 1 --sample-tokens 1000000 --out "$dir/sample"
wait_for "a sample" "$dir/sample.out"
stop INT
is "exit code while it samples" $status 75
expect "a checkpoint" ls "$dir"/sample/step-0000000*/state.json
close_test "a stop while it validates and while it samples"

# ---- A second signal, and SIGUSR1.
start twice $small --steps 1000000 --save-every 0 --val-every 0 --out "$dir/twice"
wait_for "^2," "$dir/twice/log.csv"
kill -STOP $pid; kill -TERM $pid; kill -TERM $pid; kill -CONT $pid      # as timeout(1) does
wait $pid
is "exit code after the same signal twice at once" $? 75
start again $small --steps 2 --val-every 0 --total-batch 25600000 --out "$dir/again"
sleep 1
kill -TERM $pid
sleep 2.5
stop INT
is "exit code after a second signal, in the middle of a long step" $status 130
start usr1 $small --steps 1000000 --save-every 0 --val-every 0 --out "$dir/usr1"
wait_for "^5," "$dir/usr1/log.csv"
kill -USR1 $pid
n=0
until ls "$dir"/usr1/step-*/state.json > /dev/null 2>&1 || [ $n -gt 100 ]; do n=$((n + 1)); sleep 0.05; done
expect "a checkpoint after SIGUSR1" ls "$dir"/usr1/step-*/state.json
expect "it goes on" kill -0 $pid
refuses "$dir/usr1: another train_gpt writes to this directory (process $pid " "$gpt" --resume --out "$dir/usr1"
mv "$dir/usr1" "$dir/usr1-moved"
mkdir "$dir/usr1"
kill -USR1 $pid
wait_for "is not saved: $dir/usr1: the directory was moved or removed" "$dir/usr1.out"
expect "nothing is written to another directory of that name" test -z "$(ls -A "$dir/usr1")"
refuses "$dir/usr1-moved: another train_gpt writes to this directory (process $pid " \
    "$gpt" --resume --out "$dir/usr1-moved"
rmdir "$dir/usr1"
mv "$dir/usr1-moved" "$dir/usr1"
kept=$(last_step "$dir/usr1")
stop TERM
is "exit code" $status 75
expect "the log says so" \
    grep -q "^train_gpt: $dir/usr1/log.csv: was moved or removed while the run writes it" "$dir/usr1.out"
expect "moved back, it is saved" test "$(last_step "$dir/usr1")" != "$kept"
close_test "a second signal ends it at once; SIGUSR1 saves and goes on; a moved directory is an error of the save"

close_tests
