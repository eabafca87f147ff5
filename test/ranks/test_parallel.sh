#!/bin/sh
# test_parallel.sh - Decisions that all ranks take together, faults of one of them, and hosts that differ. On the CPU
# backend with 2 and 4 ranks; on GPUs with as many as there are. That they train as one rank does: test_ranks.sh.
. "$(dirname "$0")/../shell.sh"

first=2 last=4
if [ "$cuda" ]; then
    case $(visible_gpus) in
    0|1) skip_test "several ranks" "one GPU"; close_tests ;;
    2|3) last=2 ;;
    esac
fi

make_text text 8000 1500
model="--data $dir/text/train.txt --val-data $dir/text/val.txt --dtype f32"
model="$model --layers 3 --heads 5 --channels 40 --context 31"

# ---- Without --total-batch every rank adds a micro-batch, and the checkpoint keeps the total
expect "two ranks" "$gpt" $model --steps 12 --warmup 2 --gpus 2 --batch 3 --save-every 6 --out "$dir/total"
is "tokens of a step" "$(cells "$dir/total" tokens | head -n 1)" $((2 * 3 * 31))
rm -r "$dir/total/step-00000012"
expect "one rank" "$gpt" --resume "$dir/total"
is "tokens of a step" "$(cells "$dir/total" tokens | awk '{ now = $1 - before; before = $1 } END { print now }')" \
    $((2 * 3 * 31))
close_test "the total batch stays when the number of ranks changes"

# ---- Two hosts with other files under the same name
for rank in 0 1; do
    mkdir "$dir/host-$rank"
    expect "weights" "$gpt" $model --steps 1 --seed $rank --out "$dir/host-$rank/start"
    cp -r "$dir/host-0/start" "$dir/host-$rank/model"
    cp "$dir/text/val.txt" "$dir/host-$rank"
done
port=$((20000 + $$ % 10000))
start_rank() { rank=$1; shift; (cd "$dir/host-$rank" && RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=$port exec "$gpt" "$@" --steps 2) > "$dir/host-$rank/out" 2>&1; }
hosts() {         # hosts CODE MESSAGE OPTIONS...: both ranks end with this code, one prints MESSAGE
    code=$1 message=$2; shift 2; port=$((port + 3))
    start_rank 1 "$@" & pid=$!
    start_rank 0 "$@"
    is "exit code of rank 0" $? "$code"
    wait $pid
    is "exit code of rank 1" $? "$code"
    is "what they say, once" "$(cat "$dir"/host-?/out | grep -c -- "$message")" 1
}
hosts 1 "the sum of the checkpoint's files differs from that of rank 0" $model --init start --out none
rm "$dir"/host-?/model/step-00000001/checksums.xxh64
printf '\1' | dd of="$dir/host-1/model/step-00000001/optimizer.safetensors" bs=1 seek=50000 conv=notrunc 2> /dev/null
hosts 1 "the sum of the checkpoint's files differs from that of rank 0" --resume model
sed 's/"n_head": 5/"n_head": 10/' "$dir/host-0/model/step-00000001/config.json" \
    > "$dir/host-1/model/step-00000001/config.json"
hosts 1 "the model, config.json of the checkpoint, differs from that of rank 0" --data "$dir/text/train.txt" \
    --context 31 --init model --out none
echo 9.0 > "$dir/host-1/val.txt.floor"
hosts 0 "^step 2: val loss " --out none --data "$dir/text/train.txt" --val-data val.txt ${model#*val.txt}
close_test "other weights or sizes on another host are an error; a floor is that of rank 0"

# ---- Two runs of one text; a stop while one rank makes its tokens and another waits for them
if [ ! "$cuda" ]; then
    yes "the quick brown fox jumps over the lazy dog" | head -c 100000000 > "$dir/fox.txt"
    expect "a tokenizer" "${gpt%/*}/tokenize" "$dir/text/train.txt" --train-tokenizer --vocab-size 300 --out "$dir/bpe"
    for i in 1 2; do "$gpt" "$dir/fox.txt" --tokenizer "$dir/bpe" --dry-run > "$dir/both-$i" 2>&1 & done
    wait
    is "two runs at once: one writes" "$(cat "$dir"/both-? | grep -c -e '^tokenized ' -e ' to validate on')" 3
    rm "$dir"/fox.txt.tokens-*
    "$gpt" "$dir/fox.txt" --tokenizer "$dir/bpe" ${model#*val.txt} --batch 2 --gpus 2 --threads 1 --out none \
        > "$dir/fox.out" 2>&1 &
    pid=$! tries=0
    until ls "$dir" | grep -q 'fox.*tokens' || [ $tries -ge 500 ]; do tries=$((tries + 1)); sleep 0.02; done
    kill -TERM $pid
    wait $pid
    is "exit code" $? 75
    is "what it says" "$(cat "$dir/fox.out")" "SIGTERM: the tokens are not complete; the same command makes them again"
    is "what is left" "$(ls "$dir" | grep fox)" "$(printf 'fox.out\nfox.txt')"
    rm "$dir/fox.txt"
    close_test "a text is tokenized by one of two runs, and by none that is stopped"
fi

# ---- Decisions of all ranks: a signal, a non-finite step
endless="$model --gpus $first --batch 2 --steps 1000000 --val-every 0 --save-every 0"
"$gpt" $endless --out "$dir/stopped" > "$dir/stopped.out" 2>&1 &
pid=$!
wait_for "^2," "$dir/stopped/log.csv"
kill -TERM $pid; wait $pid
is "exit code after SIGTERM" $? 75
expect "it says so once" test "$(grep -c "^SIGTERM: saved at step .* --gpus $first continues" "$dir/stopped.out")" = 1
is "steps, checkpoint and rows" "$(last_step "$dir/stopped" | sed 's/.*step-0*//')" "$(rows_of "$dir/stopped")"
for share in "" "--context-parallel $first"; do       # in a validation; the ranks of a sequence stop together, too
    cut=$dir/cut${share:+-shared}
    "$gpt" --layers ${model#*--layers } --context 32 $share --data "$dir/text/train.txt" \
        --val-data "$dir/text/train.txt" --val-tokens 0 --gpus $first --batch 2 --steps 1000000 --val-every 1 \
        --save-every 0 --out "$cut" > "$cut.out" 2>&1 &
    pid=$!
    wait_for "^2," "$cut/log.csv"
    sleep 0.05
    kill -TERM "$(cut -d ' ' -f $first "/proc/$pid/task/$pid/children")"; wait $pid         # one rank alone
    is "exit code after SIGTERM in a validation" $? 75
    steps=$(rows_of "$cut")
    expect "the resume that it prints" "$gpt" $(sed -n 's/.*; \(--resume .*\) continues$/\1/p' "$cut.out") \
        --steps $((steps + 1))
    is "validations" "$(cells "$cut" val_loss | grep -c .)" $((steps + 1))
done
wild="$model --gpus $first --steps 50 --batch 2 --lr 1e6 --min-lr 1e6 --warmup 2 --clip 0 --weight-decay 1000"
"$gpt" $wild --out "$dir/wild" > "$dir/wild.out" 2> "$dir/wild.err"
is "exit code of a non-finite step" $? 1
is "what it says, once" "$(grep -c 'not applied. First non-finite tensor: .* Last good checkpoint: ' "$dir/wild.err")" 1
if [ ! "$cuda" ] && ! grep -q __asan_init "$gpt"; then       # a sanitizer must be loaded first
    LD_PRELOAD=$PWD/$build/faults.so FAULT_PATH=.partial FAULT_CALLS=rename FAULT_FIRST=1 FAULT_ERROR=SLOW \
        "$gpt" $wild --comm-timeout 1 --out "$dir/slow" > "$dir/slow.out" 2> "$dir/slow.err"
    is "what it says on a slow disk" "$(grep -c 'Last good checkpoint: .*/step-' "$dir/slow.err")" 1
fi
close_test "signals and non-finite steps are decisions of all ranks"

# ---- One rank is killed, stopped, or has no memory: all end after --comm-timeout, and a resume continues
last_rank=$((last - 1))
faults="KILL STOP"          # and no memory: of the CPU, without a sanitizer, which maps terabytes
[ "$cuda" ] || grep -q __asan_init "$gpt" || ! prlimit --version > /dev/null 2>&1 || faults="$faults memory"
for fault in $faults; do
    out=$dir/rank-$fault
    MALLOC_MMAP_THRESHOLD_=65536 "$gpt" $model --gpus $last --batch 2 --steps 1000000 --val-every 0 --save-every 20 \
        --keep 0 --comm-timeout 2 --out "$out" > "$out.out" 2> "$out.err" &
    pid=$!
    wait_for "^4.," "$out/log.csv"
    process=$(cut -d ' ' -f $last "/proc/$pid/task/$pid/children")
    began=$(date +%s)
    if [ $fault = memory ]; then prlimit --pid "$process" --as=1000000; else kill -$fault "$process"; fi
    wait $pid
    is "exit code" $? 1
    expect "seconds" test $(($(date +%s) - began)) -le 8
    case $fault in
    KILL)   want="was killed or crashed;" ;;
    STOP)   want="has not answered for 2 s:" ;;
    memory) want="out of memory: .* bytes" ;;
    esac
    is "lines" "$(grep -vc "^train_gpt: warning" "$out.err")" 1
    expect "it is named" grep "^train_gpt: rank $last_rank (host .*, pid $process).*$want" "$out.err"
    steps=$(ls "$out" | sed -n 's/^step-0*\([1-9][0-9]*\)$/\1/p' | tail -n 1)       # one may be incomplete
    expect "a checkpoint of step 20 or later" test "$steps" -ge 20
    expect "the resume" "$gpt" --resume "$out" --gpus $last --steps $((steps + 5))
    is "rows" "$(rows_of "$out")" $((steps + 5))
done
close_test "a rank that is killed, stopped, or out of memory ends the run, is named, and the resume continues"

# ---- The best checkpoint and --early-stop: as with one rank, also when the first save of a best fails on rank 0
awk 'BEGIN { for (i = 0; i < 300; i++) printf "abc" }' > "$dir/abc.txt"
awk 'BEGIN { for (i = 0; i < 100; i++) printf "cba" }' > "$dir/cba.txt"
worse="--data $dir/abc.txt --val-data $dir/cba.txt --layers 1 --heads 2 --channels 32 --context 16 --warmup 5"
worse="$worse --lr 1e-2 --min-lr 1e-2 --steps 60 --val-every 5 --save-every 0 --early-stop 4 --total-batch $((16 * 4))"
expect "one rank" "$gpt" $worse --batch 4 --out "$dir/best-1"
expect "two ranks" "$gpt" $worse --batch 2 --gpus 2 --out "$dir/best-2"
is "the last step" "$(cells "$dir/best-2" step | tail -n 1)" "$(cells "$dir/best-1" step | tail -n 1)"
is "the best" "$(readlink "$dir/best-2/best")" "$(readlink "$dir/best-1/best")"
is "what is kept" "$(ls "$dir/best-2")" "$(ls "$dir/best-1")"
is "messages" "$(grep -c '^--early-stop 4: ended' "$dir/expect.out")" 1
expect "a resume ends at once" "$gpt" --resume "$dir/best-2" --gpus 2
is "rows" "$(rows_of "$dir/best-2")" "$(rows_of "$dir/best-1")"
if [ ! "$cuda" ] && ! grep -q __asan_init "$gpt"; then
    best=$(readlink "$dir/best-1/best")
    expect "a save fails" env LD_PRELOAD=$PWD/$build/faults.so FAULT_PATH="/$best.partial" FAULT_CALLS=write \
        FAULT_FIRST=1 FAULT_ERROR=ENOSPC "$gpt" $worse --batch 2 --gpus 2 --out "$dir/best-3"
    is "the best of those that are saved" "$(readlink "$dir/best-3/best")" "$(cells "$dir/best-1" step val_loss |
        awk -F, -v no="${best##*-}" '$2 != "" && $1 != no + 0 && (min == "" || $2 < min) { min = $2; at = $1 }
            END { printf "step-%08d", at }')"
fi
close_test "the best checkpoint and --early-stop are decisions of all ranks"

# ---- Rank 0 samples for longer than --comm-timeout: the others wait
expect "a long sample" "$gpt" $model --gpus $first --batch 2 --steps 2 --val-every 0 --sample-every 1 --comm-timeout 1 \
    --sample-tokens ${cuda:+1}8000 --out none
close_test "a long pause of rank 0 is no failure"

close_tests
