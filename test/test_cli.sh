#!/bin/sh
# test/test_cli.sh - The program as a user runs it: what it prints, writes and refuses, and that a resume is exact.
. "$(dirname "$0")/shell.sh"

make_text text 3000 1500
text="--data $dir/text/train.txt --val-data $dir/text/val.txt"
model="$text --layers 2 --heads 2 --channels 32 --batch 4 --warmup 5"
small="$model --context 16"

# ---- A resume goes on bit for bit: with accumulation, across the end of an epoch (190 windows of 16; a step reads 8).
# Sequences of 400 take several blocks of keys, whose parts of dq a Hopper GPU adds in order only if asked to.
for kind in flash-f32 naive-f32 ${cuda:+flash-bf16 naive-bf16 long-bf16}; do
    shape="--attention ${kind%-*} --context 16 --total-batch 128"
    [ $kind != long-bf16 ] || shape="--context 400 --total-batch 3200 --deterministic"
    run="$model $shape --dtype ${kind#*-} --steps 60 --save-every 20 --val-every 7"
    expect "train" "$gpt" $run --out "$dir/a-$kind"
    copy_run "$dir/a-$kind" 00000020 "$dir/b-$kind"
    expect "resume" "$gpt" --out "$dir/b-$kind" --resume
    for step in step-00000040 step-00000060; do
        same_files "$dir/a-$kind/$step" "$dir/b-$kind/$step" $checkpoint_files
    done
    same_steps "$dir/a-$kind" "$dir/b-$kind"
    close_test "resume is exact ($kind)"
done

name="the same bits with 1, 2 and 3 threads"
if "$gpt" $small --threads 2 --dry-run 2>&1 | grep -q 'built without OpenMP'; then
    skip_test "$name" "built without OpenMP"
else
    expect "train" "$gpt" $small --steps 12 --out "$dir/one" --threads 1
    for threads in 2 3; do
        expect "train" "$gpt" $small --steps 12 --out "$dir/more-$threads" --threads $threads
        same_files "$dir/one/step-00000012" "$dir/more-$threads/step-00000012" model.safetensors
    done
    close_test "$name"
fi

# OpenMP prints this when it is loaded
starts() { OMP_DISPLAY_ENV=true "$@" "$gpt" --version 2>&1 | grep -c 'ENVIRONMENT BEGIN'; }
name="sets how long OpenMP threads spin, and executes itself again"
if [ -n "$cuda" ] || [ "$(starts env OMP_WAIT_POLICY=passive)" != 1 ]; then
    skip_test "$name" "the CPU backend with OpenMP does"
else
    is "starts without a wait policy" "$(starts env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT)" 2
    close_test "$name"
fi

expect "train" "$gpt" $small --steps 0 --out "$dir/start" --seed 3
expect "train" "$gpt" $small --steps 5 --out "$dir/direct" --seed 3
expect "train" "$gpt" $small --steps 5 --out "$dir/from-init" --seed 3 --init "$dir/start"
same_files "$dir/direct/step-00000005" "$dir/from-init/step-00000005" model.safetensors tokenizer.json \
    tokenizer_config.json
close_test "--init continues from saved weights"

# ---- A tokenizer's files go with the model, also when the folder that they came from is gone
cp -r "$dir/start/step-00000000" "$dir/named"
for file in vocab.json merges.txt tokenizer.json tokenizer_config.json special_tokens_map.json; do
    echo "the bytes of $file" > "$dir/named/$file"
done
cp -r "$dir/named" "$dir/gone"
expect "train" "$gpt" $small --steps 3 --save-every 1 --keep 1 --out "$dir/carried" --init "$dir/gone"
rm -r "$dir/gone"
expect "one is kept" test "$(ls "$dir/carried" | grep -c '^step-')" = 1
mv "$dir/carried/step-00000003" "$dir/last"
expect "train" "$gpt" $small --steps 2 --out "$dir/again" --init "$dir/named"
sed -i '/"xxh64"/,/}/d; s/"steps": "2"/"steps": "5"/' "$dir/again/step-00000002/state.json"
expect "a resume" "$gpt" --out "$dir/again" --resume --save-every 1 --keep 1
for file in vocab.json merges.txt tokenizer.json tokenizer_config.json special_tokens_map.json; do
    expect "the same bytes" cmp "$dir/named/$file" "$dir/last/$file"
    expect "the same bytes after a resume" cmp "$dir/named/$file" "$dir/again/step-00000005/$file"
done
close_test "the tokenizer's files of --init go into every checkpoint"

# ---- The log
log=$dir/a-flash-f32/log.csv
expect "command in the head" grep -q '^# command: .*train_gpt --data' "$log"
expect "version in the head" grep -q '^# version: train_gpt' "$log"
expect "device in the head" grep -q '^# device: ' "$log"
expect "settings in the head" grep -q '^# settings: .*lr=' "$log"
is "its rows" "$(rows_of "$dir/a-flash-f32")" 60
is "validations, every 7 steps and at the end" "$(grep '^[0-9]' "$log" | cut -d, -f9 | grep -c .)" 9
close_test "the log holds command, version, device, settings and every step"

# ---- Evaluation and samples
expect "evaluate" "$gpt" --eval "$dir/a-flash-f32" --data "$dir/text/val.txt"
logged=$(grep '^60,' "$log" | cut -d, -f9)
printed=$(sed -n 's/.*loss \([0-9.]*\) nats per byte.*/\1/p' "$dir/expect.out")
expect "--eval $printed is the val loss $logged of the log" awk "BEGIN { d = $printed - $logged; exit !(d * d < 1e-8) }"
sample="$gpt --sample $dir/a-flash-f32/step-00000040 --prompt Once --sample-tokens 40"
expect "sample" $sample --seed 5
cp "$dir/expect.out" "$dir/sample.1"
expect "starts with the prompt" grep -q 'Once' "$dir/sample.1"
expect "sample again" $sample --seed 5
cp "$dir/expect.out" "$dir/sample.2"
expect "the same seed, the same text" cmp "$dir/sample.1" "$dir/sample.2"
expect "another sample" $sample --seed 6
cp "$dir/expect.out" "$dir/sample.3"
refuse_same() { ! cmp -s "$1" "$2"; }
expect "another seed, another text" refuse_same "$dir/sample.1" "$dir/sample.3"
close_test "--eval gives the logged loss, --sample is repeatable"

# ---- A damaged checkpoint: the file, what is wrong with it, and the way out
expect "train" "$gpt" $small --steps 6 --save-every 2 --out "$dir/sound"
find "$dir/sound" -type f -exec cksum {} + | sort > "$dir/before"
damage() {        # damage WORDS FILE COMMAND...: of a copy of FILE, in the newest checkpoint; the resume says so
    words=$1 file=$2; shift 2
    rm -rf "$dir/damaged" && cp -r "$dir/sound" "$dir/damaged"
    "$@" < "$dir/sound/step-00000006/$file" > "$dir/damaged/step-00000006/$file"
    refuses "$words" "$gpt" --resume --out "$dir/damaged" --steps 6
    refuses "step-00000006/$file: " "$gpt" --resume --out "$dir/damaged" --steps 6
    advice="move it out of $dir/damaged: --resume then goes on from $dir/damaged/$earlier"
    refuses "; if $dir/damaged/step-00000006 is damaged, $advice" "$gpt" --resume --out "$dir/damaged"
}
earlier=step-00000004
for file in config.json state.json model.safetensors optimizer.safetensors; do
    damage "$file: " $file head -c 0
    damage "$file: " $file head -c 300
done
damage "is the file truncated?" model.safetensors head -c 20000
damage "is the file truncated?" optimizer.safetensors head -c 20000
damage "holds a NaN" model.safetensors sh -c 'head -c -400; head -c 400 /dev/zero | tr "\0" "\377"'
damage "the tensor exp_avg.transformer.wte.weight is missing" optimizer.safetensors \
    sed 's/exp_avg.transformer.wte/exp_avg.transformer.ute/'
zeroed() { head -c 20000; head -c 512 /dev/zero; tail -c +513; }
for file in model.safetensors optimizer.safetensors; do
    damage "/$file: XXH64 is " $file zeroed
done
sed '/"xxh64"/,/}/d' < "$dir/sound/step-00000006/state.json" > "$dir/damaged/step-00000006/state.json"
expect "one of an older version has no checksums" "$gpt" --resume --out "$dir/damaged"
damage "/config.json: layers 2, channels 65536" config.json sed 's/"n_embd": 32/"n_embd": 65536/'
damage "/config.json: \"n_head\" is 4, want 2 by state.json" config.json sed 's/"n_head": 2/"n_head": 4/'
damage "/state.json: XXH64 is " state.json sed 's/"warmup": "5"/"warmup": "7"/'
no_sum() { damage "the \"xxh64\" of $1, want 16 digits of 0-9 and a-f (without any" state.json sed "$2"; }
no_sum "model.safetensors is missing" 's/"xxh64": {/"xxh64": 5, "was": {/'
no_sum "model.safetensors is 1234" 's/"model.safetensors": .*,/"model.safetensors": 1234,/'
no_sum "optimizer.safetensors is 12ab" 's/\("optimizer.safetensors": \)"[^"]*"/\1"12ab"/'
no_sum "optimizer.safetensors is missing" '/"optimizer.safetensors"/d'
expect "nothing is removed" test "$(ls -d "$dir"/damaged/step-* | wc -l)" = 3
rm -rf "$dir/damaged" && cp -r "$dir/sound" "$dir/damaged"
sed -i '/"xxh64"/,/}/d; s/"lr": "0.001"/"lr": "0.0x1"/' "$dir/damaged/step-00000006/state.json"
refuses "--lr 0.0x1: want a number, 0 .. 1e6; if $dir/damaged/step-00000006 is damaged, move it out" \
    "$gpt" --resume --out "$dir/damaged"
rm -rf "$dir/lacking" && cp -r "$dir/sound" "$dir/lacking" && rm "$dir/lacking/step-00000006/state.json"
"$gpt" --resume --out "$dir/lacking" > "$dir/lacking.out" 2>&1 || wrong "a resume beside one that is not whole"
expect "it says so" grep -q "^--resume: $dir/lacking/step-00000006 lacks state.json and is passed over" \
    "$dir/lacking.out"
rm -r "$dir"/lacking/step-0000000[24] && rm "$dir/lacking/step-00000006/model.safetensors"
find "$dir/lacking" -type f -exec cksum {} + > "$dir/lacking.before"
refuses "step-00000006 lacks model.safetensors, and there is no other checkpoint; bring it back, or move" \
    "$gpt" $small --steps 6 --resume --out "$dir/lacking"
find "$dir/lacking" -type f -exec cksum {} + > "$dir/lacking.after"
expect "nothing is begun beside it" cmp "$dir/lacking.before" "$dir/lacking.after"
: > "$dir/damaged/step-00000006/model.safetensors"
mv "$dir/damaged/step-00000004" "$dir/damaged/step-00000004.old"
refuses "move it out of $dir/damaged: --resume then goes on from $dir/damaged/step-00000004.old" \
    "$gpt" --resume --out "$dir/damaged"
mv "$dir/damaged/step-00000004.old" "$dir/damaged/step-00000004"
: > "$dir/damaged/step-00000004/model.safetensors"
refuses "move it and step-00000004 out of $dir/damaged: --resume then goes on from $dir/damaged/step-00000002" \
    "$gpt" --resume --out "$dir/damaged"
mv "$dir"/damaged/step-00000006 "$dir/moved-6"; mv "$dir"/damaged/step-00000004 "$dir/moved-4"
expect "the way out" "$gpt" --resume --out "$dir/damaged"
for file in model.safetensors optimizer.safetensors state.json; do
    expect "the same bytes" cmp "$dir/sound/step-00000006/$file" "$dir/damaged/step-00000006/$file"
done
: > "$dir/damaged/step-00000006/state.json"; rm -r "$dir"/damaged/step-00000004 "$dir"/damaged/step-00000002
refuses "--resume then begins, no earlier checkpoint is whole" "$gpt" --resume --out "$dir/damaged"
refuses "--lr is 0.5, the checkpoint $dir/sound/step-00000006 was made with 0.001; a resume goes on as it began" \
    "$gpt" --resume --out "$dir/sound" --lr 0.5
expect "that is no damage" test "$(grep -c damaged "$dir/refuse.err")" = 0
close_test "a damaged checkpoint is named, with the one that is whole"

# ---- Where it runs: a closed stdout is no log, an --init run resumes, a folder has one run
one="$text --layers 1 --heads 2 --channels 16 --context 16 --batch 2 --steps 4 --save-every 2 --val-every 1"
"$gpt" $one --out "$dir/closed" >&- 2>&- <&- || bad=1
is "rows in the log" "$(rows_of "$dir/closed")" 4
rm -r "$dir/closed/step-00000004"
expect "it resumes" "$gpt" --resume --out "$dir/closed"
expect "train on" "$gpt" $text --init "$dir/closed" --steps 4 --save-every 2 --min-lr 0 --out "$dir/onward"
rm -r "$dir/onward/step-00000004"
expect "a run from --init resumes" "$gpt" --resume --out "$dir/onward"
refuses "--layers 3: the model of" "$gpt" --eval "$dir/onward" --data "$dir/text/val.txt" --layers 3
"$gpt" $text --layers 2 --heads 2 --channels 64 --steps 100000 --out "$dir/locked" > "$dir/locked.out" 2>&1 &
pid=$!
wait_for . "$dir/locked/log.csv"
mv "$dir/locked/log.csv" "$dir/locked/moved.csv"
refuses "another train_gpt writes to this folder" "$gpt" $one --out "$dir/locked"
kill -9 $pid; wait $pid 2>/dev/null
rm "$dir/locked/moved.csv"
expect "the lock ends with its process" "$gpt" $one --out "$dir/locked"
rm "$dir"/locked/step-*/optimizer.safetensors "$dir/locked/log.csv"
refuses "is there already" "$gpt" $one --out "$dir/locked"
close_test "one run per folder; closed files; a run from --init resumes"

# ---- What it refuses, and that nothing is harmed by it
find "$dir/a-flash-f32" -type f -exec cksum {} + | sort > "$dir/before"
refuses "is there already" "$gpt" $small --out "$dir/a-flash-f32"
refuses "--min-lr is 0.5, the checkpoint" "$gpt" --resume --out "$dir/a-flash-f32" --min-lr 0.5
refuses "--lr is 0.5, the checkpoint" "$gpt" --resume --out "$dir/a-flash-f32" --lr 0.5
refuses "layers is 2, the options want 3; it must stay" "$gpt" --resume --out "$dir/a-flash-f32" --layers 3
refuses "channels is 32, the options want 64; it must stay" "$gpt" $text --init "$dir/a-flash-f32" \
    --layers 2 --heads 2 --channels 64 --context 16
refuses "no checkpoint in $dir/none" "$gpt" --resume --out "$dir/none"
refuses "want --out DIR" "$gpt" --resume
refuses "did you mean --layers" "$gpt" --lr 1 --layer 2
refuses "nothing to train on" "$gpt"
[ "$cuda" ] || refuses "computes in f32 only" "$gpt" $small --dtype bf16
refuses "no multiple of --batch x --context = 64" "$gpt" $small --total-batch 100
refuses "do not divide among 3 heads" "$gpt" $text --channels 32 --heads 3
refuses "the largest that fits is --batch" "$gpt" $text --batch 1000000
refuses "not even --batch 1 fits" "$gpt" $text --model d48 --context 4000000
find "$dir/a-flash-f32" -type f -exec cksum {} + | sort > "$dir/after"
expect "nothing in an earlier run has changed" cmp "$dir/before" "$dir/after"
close_test "errors are one line, exit code 1, and harm nothing"

# ---- Nobody reads on: the run goes on, with its log and its checkpoint
"$gpt" $small --steps 30 --val-every 1 --out "$dir/unread" 2> "$dir/unread.err" | head -n 1 > /dev/null
is "rows in the log" "$(rows_of "$dir/unread")" 30
expect "the last checkpoint" test -f "$dir/unread/step-00000030/state.json"
expect "no word on stderr" test ! -s "$dir/unread.err"
close_test "a closed stdout does not end a run"

expect "dry run" "$gpt" $small --out "$dir/dry" --dry-run
cp "$dir/expect.out" "$dir/dry.out"
expect "prints a plan" grep -q '^  total ' "$dir/dry.out"
expect "writes nothing" test ! -e "$dir/dry"
close_test "--dry-run prints the plan and writes nothing"

# ---- A sick step is not applied; the last checkpoint is whole and goes on.
refuses "nothing was applied. First sick tensor: activation h.0." "$gpt" $small --out "$dir/sick" \
    --steps 50 --save-every 1 --lr 1e6 --min-lr 1e6 --clip 0 --weight-decay 1000
last=$(last_step "$dir/sick")
expect "a checkpoint before the sick step" test -n "$last"
expect "it can be read" "$gpt" $text --init "$last" --steps 0 --out "$dir/sick-again"
close_test "a non-finite loss stops the run before the update"

# ---- The leak alarm: a floor above what the model reaches
cp "$dir/text/val.txt" "$dir/leak.txt"
echo "5.5 nats per byte" > "$dir/leak.txt.floor"
refuses "must have leaked" "$gpt" --data "$dir/text/train.txt" --val-data "$dir/leak.txt" \
    --layers 1 --heads 1 --channels 32 --context 16 --batch 8 --steps 40 --val-every 0
close_test "a val loss below the floor is called a leak"

# ---- The memory plan against what is taken: resident memory that is no file's, or memory of the GPU (for which the
# plan says what was taken before: the difference of "free" and all).
kib() { awk -v row="$1" -v field="$2" '$1 == row { n = $field; u = $(field + 1)
    print int(u == "GiB" ? n * 1048576 : u == "MiB" ? n * 1024 : n); exit }' "$dir/plan.out"; }
taken() {
    if [ "$cuda" ]; then
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk 'NR == 1 { print $1 * 1024 }'
    else
        sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status" 2>/dev/null
    fi
}
if [ "$cuda" ]; then options="--model d12 --dtype bf16 --vocab 256 --context 1024 --batch 16 --steps 60" slack=524288
else                 options="--model d4 --context 256 --batch 24 --steps 3" slack=65536
fi
"$gpt" --data "$dir/text/train.txt" --val-fraction 0 $options > "$dir/plan.out" 2>&1 &
pid=$! peak=0
while kill -0 $pid 2>/dev/null; do
    now=$(taken)
    [ "${now:-0}" -gt $peak ] && peak=$now
    [ "$cuda" ] || sleep 0.02
done
wait $pid || bad=1
planned=$(kib total 2)
[ -z "$cuda" ] || planned=$((planned + $(kib free 5) - $(kib free 2)))
name="the memory plan is right to 5 % and $((slack / 1024)) MiB"
if [ $peak = 0 ] && [ $bad = 0 ]; then skip_test "$name" "no /proc here"
else
    expect "planned $planned KiB, took $peak" \
        awk "BEGIN { d = $peak - $planned; if (d < 0) d = -d; exit !(d < 0.05 * $planned + $slack) }"
    close_test "$name (planned $((planned / 1024)) MiB, took $((peak / 1024)))"
fi

close_tests
