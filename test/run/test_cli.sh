#!/bin/sh
# test_cli.sh - The program as a user runs it: what it prints, writes and refuses, and that a resume is exact.
. "$(dirname "$0")/../shell.sh"

make_text text 3000 1500
text="--data $dir/text/train.txt --val-data $dir/text/val.txt --dtype f32"
model="$text --layers 2 --heads 2 --channels 32 --batch 4 --warmup 5"
small="$model --context 16"

refuse_each() {   # refuse_each < LINES: a part of the message | the arguments; on a GPU every fifth
    while IFS='|' read -r part arguments; do
        in_turn 5 && refuses "${part% }" "$gpt" $arguments < /dev/null
    done
}

# ---- A resume goes on bit for bit: with accumulation, across the end of an epoch (190 windows of 16; a step reads 8).
# Sequences of 400 take several blocks of keys, whose parts of dq a Hopper GPU adds in order only if asked to.
has_fp8 && eight=flash-fp8 || eight=
for kind in flash-f32 naive-f32 ${cuda:+flash-bf16 naive-bf16 long-bf16} $eight; do
    case $kind in naive-*) in_turn 2 || continue ;; esac
    shape="--attention ${kind%-*} --context 16 --total-batch 128"
    [ $kind != long-bf16 ] || shape="--context 400 --total-batch 3200 --deterministic"
    dtype="--dtype ${kind#*-}"
    [ $kind != flash-fp8 ] || dtype="--dtype bf16 --matmul-dtype fp8"
    run="$model $shape $dtype --steps 60 --save-every 20 --val-every 7"
    expect "train" "$gpt" $run --out "$dir/a-$kind"
    copy_run "$dir/a-$kind" 00000020 "$dir/b-$kind"
    expect "resume" "$gpt" --out "$dir/b-$kind" --resume
    for step in step-00000040 step-00000060; do
        same_files "$dir/a-$kind/$step" "$dir/b-$kind/$step" $checkpoint_files
    done
    same_steps "$dir/a-$kind" "$dir/b-$kind"
    close_test "resume is exact ($kind)"
done

# OpenMP prints this when it is loaded
starts() { OMP_DISPLAY_ENV=true "$@" "$gpt" --version 2>&1 | grep -c 'ENVIRONMENT BEGIN'; }
name="sets how long OpenMP threads spin, and executes itself again"
if [ -n "$cuda" ] || [ "$(starts env OMP_WAIT_POLICY=passive)" != 1 ]; then
    skip_test "$name" "the CPU backend with OpenMP does"
else
    is "starts without a wait policy" "$(starts env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT)" 2
    close_test "$name"
fi

printf 'import time\nn_layer = 6 # blocks\nno such line\nblock_size = 64\nout_dir = '"'o u t'"'\n' > "$dir/names.py"
printf 'gradient_accumulation_steps = 5 * 8\neval_iters = 200\ndecay_lr = False\n' >> "$dir/names.py"
"$gpt" train.py "$dir/names.py" --block-size=32 --learning_rate 3e-4 --batch 2 --eval_iters=10 -q 0.5 -r 1 -y 0 \
    --warmup_ratio 0.1 2> "$dir/names.err"
is "the answers" "$(sed 's/ (.*//; s/, the value as.*//; s/, in tokens.*//; s/ --batch 2/\n&/' "$dir/names.err")" \
    "train_gpt: train.py: leave this word out: train_gpt is the program
train_gpt: --block-size: use --context N
train_gpt: --learning_rate: use --lr N
train_gpt: --eval_iters: use --val-tokens N
train_gpt: -q: use --min-lr N, with N = its value x --lr
train_gpt: -r: use --recompute gelu for 1, layernorm for 2
train_gpt: -y: use --resume for 1
train_gpt: --warmup_ratio: use --warmup N, with N = its value x --steps
train_gpt: $dir/names.py:2: --n_layer: use --layers N
train_gpt: $dir/names.py:3: 'no such line': want name = value
train_gpt: $dir/names.py:4: --block_size: use --context N
train_gpt: $dir/names.py:5: --out_dir: use --out DIR
train_gpt: $dir/names.py:6: --gradient_accumulation_steps: use --total-batch N
train_gpt: $dir/names.py:7: --eval_iters: use --val-tokens N
train_gpt: $dir/names.py:8: --decay_lr: use --schedule constant for False; remove it
train_gpt: $dir/names.py: what has a counterpart here: $gpt FILE --out 'o u t' --layers 6 --context 32 --recompute gelu
 --batch 2 --total-batch 2560 --lr 0.0003 --min-lr 0.00015 --schedule constant --val-tokens 640"
close_test "a command of other programs is answered at once, in a line each, and with a command"

for option in --help --version; do
    "$gpt" $option > /dev/full 2> "$dir/full.err"
    is "$option" "$? $(cat "$dir/full.err")" "1 train_gpt: cannot write to stdout: No space left on device"
done
close_test "--help and --version fail when stdout cannot be written"

expect "train" "$gpt" $small --steps 0 --out "$dir/start" --seed 3
expect "train" "$gpt" $small --steps 5 --out "$dir/direct" --seed 3
expect "train" "$gpt" $small --steps 5 --out "$dir/from-init" --seed 3 --init "$dir/start"
same_files "$dir/direct/step-00000005" "$dir/from-init/step-00000005" model.safetensors tokenizer.json \
    tokenizer_config.json
expect "a longer context" "$gpt" $model --context 40 --steps 2 --out "$dir/long-context" --init "$dir/start"
expect "its resume" "$gpt" --resume --steps 3 --out "$dir/long-context"
expect "a shorter context" "$gpt" $model --context 12 --steps 2 --out "$dir/short-context" --init "$dir/start"
expect "its resume" "$gpt" --resume --steps 3 --out "$dir/short-context"
refuses "--context 56: the model of" "$gpt" --resume --context 56 --out "$dir/long-context"
close_test "--init continues from saved weights, also with a longer or shorter context"

# ---- The default output directory, and runs repeated, extended and changed
if in_turn 3; then
    mkdir "$dir/user" && cp "$dir/text/train.txt" "$dir/user/my.book.txt"
    for i in 0 1; do cp "$dir/text/val.txt" "$dir/user/val_$i.txt"; done
    short="--layers 1 --heads 2 --channels 16 --context 16 --batch 2 --warmup 2 --dtype f32"
    cd "$dir/user" || exit 2
    expect "a dry run" "$gpt" my.book.txt $short --steps 4 --dry-run
    expect "writes nothing" test ! -e runs
    expect "nothing kept" "$gpt" my.book.txt $short --steps 4 --out none
    expect "nothing is there" test ! -e runs
    expect "train" "$gpt" my.book.txt $short --steps 4
    is "the output is named" "$(sed -n 's/^output *//p' "$dir/expect.out")" runs/my.book
    refuses "runs/my.book/step-00000004 already exists: want another --out, or --resume runs/my.book to continue" \
        "$gpt" my.book.txt $short --steps 4
    expect "a dry run" "$gpt" my.book.txt $short --dry-run
    expect "a pattern" "$gpt" 'val_*.txt' $short --steps 4 --val-fraction 0
    is "what there is" "$(ls -d runs/*/step-* | sed 's,^runs/,,; s,/step-0*, ,' | tr '\n' ';')" "my.book 4;val 4;"
    ln -s nothing runs/link && cp my.book.txt link.txt
    refuses "runs/link: cannot make the directory: File exists" "$gpt" link.txt $short --steps 1
    cd runs || exit 2
    for run in val=val_*.txt my.book=my.book.txt; do
        refuses "${run#*=}: no such file, and no file matches it as a pattern" \
            "$gpt" --resume "${run%%=*}"
        expect "it says what to do" grep -q 'starts where the run was started, or with --data PATH' "$dir/refuse.err"
    done
    expect "the data by their path from here" "$gpt" --resume val --data '../val_*.txt' --dry-run
    cd ..
    cd - > /dev/null || exit 2
    close_test "the default output directory is named after the data and is new"
fi

if in_turn 2; then
    expect "a run" "$gpt" $small --steps 40 --seed 9 --min-lr 2e-4 --dropout 0.2 \
        --prompt ' #"it'"'"'s\' --out "$dir/once"
    expect "the same from its settings" "$gpt" --config "$dir/once/settings.txt" --out "$dir/twice"
    same_files "$dir/once/step-00000040" "$dir/twice/step-00000040" $checkpoint_files
    expect "the command line wins" "$gpt" --config "$dir/once/settings.txt" --out "$dir/thrice" --steps 3 --lr 0.5
    is "its last step" "$(cells "$dir/thrice" step | tail -n 1)" 3
    is "the rates" "$(grep -o '"[a-z]*_pdrop": [0-9.]*' "$dir/once/step-00000040/config.json" | tr '\n' ' ')" \
        '"resid_pdrop": 0.200000 "embd_pdrop": 0.200000 "attn_pdrop": 0.200000 '
    close_test "settings.txt repeats a run bit for bit"
fi

# ---- Weights that do not move: the training loss has dropout, the validation loss does not
for rate in 0 0.5; do
    expect "dropout $rate" "$gpt" $small --steps 2 --lr 0 --val-every 1 --dropout $rate --out "$dir/rate-$rate"
done
is "val loss" "$(cells "$dir/rate-0.5" val_loss)" "$(cells "$dir/rate-0" val_loss)"
expect "another loss" [ "$(cells "$dir/rate-0.5" loss)" != "$(cells "$dir/rate-0" loss)" ]
expect "the banner" "$gpt" $small --dropout 0.5 --dry-run
is "the rate in it" "$(grep -c '^model .* attention, dropout 0.5$' "$dir/expect.out")" 1
close_test "dropout is of training steps only"

if in_turn 2; then
    late="$text --layers 2 --heads 2 --channels 32 --batch 4 --context 16 --warmup 30"
    expect "the schedule to compare with" "$gpt" $late --steps 60 --out "$dir/last"
    expect "a finished run" "$gpt" $late --steps 40 --out "$dir/extended"
    expect "extended" "$gpt" --resume "$dir/extended" --steps 60
    changed="changed: --steps 40 -> 60; the learning rate goes from 1.2e-04 to 7.7e-04"
    is "it says so" "$(grep '^changed: ' "$dir/expect.out")" "$changed"
    expect "settings.txt says so" \
        grep -q "^# resumed: at step 40, ${changed#* }\$" "$dir/extended/settings.txt"
    is "the new schedule, without a second warm-up" "$(cells "$dir/extended" lr | tail -n 20)" \
        "$(cells "$dir/last" lr | tail -n 20)"
    refuses "--steps 50: $dir/extended/step-00000060 has more" "$gpt" --resume "$dir/extended" --steps 50 --dry-run
    expect "changed" "$gpt" --resume "$dir/extended" --steps 64 --batch 8 --lr 0.5 --min-lr 0.01 --clip 0.1 --dtype f32
    is "it says what" "$(grep '^changed: ' "$dir/expect.out" | tr ';' '\n')" \
        "changed: --steps 60 -> 64, --batch 4 -> 8, --lr 0.001 -> 0.5, --min-lr none -> 0.01, --clip 1 -> 0.1
 the learning rate goes from 1.0e-04 to 2.7e-02"
    is "tokens of a step" "$(cells "$dir/extended" tokens | tail -n 2 | paste -s | awk '{ print $2 - $1 }')" 128
    cp "$dir/text/train.txt" "$dir/edited.txt"
    printf '%s\n' 'prompt = "a\nb"' > "$dir/two-lines.txt"
    expect "a text of two lines" "$gpt" --resume "$dir/extended" --config "$dir/two-lines.txt"
    is "in one line" "$(grep '^changed: ' "$dir/expect.out")" "changed: --prompt none -> 'a?b'"
    expect "settings.txt is read" "$gpt" --config "$dir/extended/settings.txt" --dry-run
    expect "other data" "$gpt" --resume --out "$dir/extended" --steps 66 --data "$dir/edited.txt"
    expect "which is there now" grep -q "^data = $dir/edited.txt$" "$dir/extended/settings.txt"
    echo more >> "$dir/edited.txt"
    refuses "--data $dir/edited.txt has changed since $dir/extended/step-00000066 was made" \
        "$gpt" --resume "$dir/extended" --steps 67
    refuses "has changed since" "$gpt" --resume "$dir/extended" --steps 67 --val-fraction 0.2
    refuses "has changed since" "$gpt" --resume "$dir/extended" --steps 67 --val-data "$dir/text/train.txt"
    close_test "a resume extends and changes a run, and says so; a file that changed by itself is refused"
fi

# ---- The best checkpoint, a val loss that rises, and --early-stop. The validation text has the letters of the other,
# in reverse: the model learns the letters first, val loss 1.5 at step 15, then their order, val loss 9 at step 60.
awk 'BEGIN { for (i = 0; i < 300; i++) printf "abc" }' > "$dir/abc.txt"
awk 'BEGIN { for (i = 0; i < 100; i++) printf "cba" }' > "$dir/cba.txt"
worse="--data $dir/abc.txt --val-data $dir/cba.txt --layers 1 --heads 2 --channels 32 --context 16 --batch 4 --warmup 5"
worse="$worse --dtype f32 --lr 1e-2 --min-lr 1e-2 --steps 60 --val-every 5 --save-every 20"
says() { is "$1" "$(grep -ac -- "$2" "$dir/expect.out")" 1; }       # says WORDS PATTERN: on one line
best_of() {       # best_of RUN: the step
    cells "$1" step val_loss | awk -F, '$2 != "" && (min == "" || $2 < min) { min = $2; at = $1 } END { print at }'
}
expect "a run" "$gpt" $worse --out "$dir/worse"
best=$(printf 'step-%08d' "$(best_of "$dir/worse")")
val_loss=$(printf %.4f "$(cells "$dir/worse" val_loss | grep . | sort -n | head -n 1)")
is "the link" "$(readlink "$dir/worse/best")" "$best"
is "what is kept" "$(ls "$dir/worse" | grep step | tr '\n' ' ')" "$best step-00000020 step-00000040 step-00000060 "
says "the last line" "checkpoint $dir/worse/step-00000060, best $dir/worse/$best (val loss $val_loss)$"
expect "--eval takes it" "$gpt" --eval "$dir/worse" "$dir/cba.txt" --dtype f32
says "and says so" "^checkpoint $dir/worse/$best: the best of the run; the last is step 60"
says "its loss" "loss $val_loss nats"
expect "the link is a checkpoint" "$gpt" --eval "$dir/worse/best" "$dir/cba.txt" --dtype f32
is "of itself" "$(grep -c '^checkpoint ' "$dir/expect.out")$(grep -c "loss $val_loss nats" "$dir/expect.out")" 01
refuses "--resume --perturb yes: the run began with --perturb no" "$gpt" --resume "$dir/worse" --perturb
refuses "--resume --model d5: the run began with --model d4" "$gpt" --resume "$dir/worse" --model d5
for keep in 1 0; do        # the fourth validation after the best
    expect "a run that stops" "$gpt" $worse --keep $keep --early-stop 4 --out "$dir/early-$keep"
    ended=$(($(best_of "$dir/worse") + 20))
    is "its last step" "$(cells "$dir/early-$keep" step | tail -n 1)" $ended
    is "its last lines" "$(tail -n 2 "$dir/expect.out" | sed 's/, the best.*//; s/.*, checkpoint /checkpoint /')" \
        "--early-stop 4: ended at step $ended of 60
checkpoint $(last_step "$dir/early-$keep"), best $dir/early-$keep/$best (val loss $val_loss)"
    is "the event" "$(tail -n 1 "$dir/early-$keep/log.jsonl" | sed 's/.*"reason": "//; s/, the best.*//')" \
        "--early-stop 4: ended at step $ended of 60"
done
expect "a resume of it" "$gpt" --resume "$dir/early-1"
is "ends at once" "$(cells "$dir/early-1" step | tail -n 1)" $ended
expect "it may have no validations, as in earlier versions" "$gpt" --resume "$dir/early-1" --val-every 0 --dry-run
rm "$dir/early-1/best"
expect "a resume without it" "$gpt" --resume "$dir/early-1" --early-stop 0
same_files "$dir/worse/step-00000060" "$dir/early-1/step-00000060" model.safetensors optimizer.safetensors
is "the best is the same" "$(readlink "$dir/early-1/best")" "$best"
is "what is kept" "$(ls "$dir/early-1" | grep step | tr '\n' ' ')" "$best step-00000060 "
rm -r "$dir/early-0/$best"
expect "a resume without its checkpoint" "$gpt" --resume "$dir/early-0" --early-stop 0 --steps $((ended + 5))
says "says so" "^the best so far, step .*, does not count: its checkpoint is gone$"
is "a new best" "$(readlink "$dir/early-0/best")" "$(basename "$(last_step "$dir/early-0")")"
expect "another validation" "$gpt" --resume "$dir/early-1" --early-stop 0 --steps 61 --val-tokens 100
says "says so" "does not count: it was validated on other data$"
ended=$(best_of "$dir/worse")
expect "a run whose last step alone is validated" "$gpt" $worse --steps "$ended" --val-every 40 --out "$dir/last-best"
expect "a resume with more steps" "$gpt" --resume "$dir/last-best" --steps 60 --keep 1
is "the best is still that step" "$(readlink "$dir/last-best/best")" "$best"
for edit in tokens/99999999 optimizer_step/61 sequences_seen/59 val_step/61; do
    rm -rf "$dir/odd"
    mkdir "$dir/odd"
    cp -r "$dir/worse/step-00000060" "$dir/odd"
    rm "$dir/odd/step-00000060/checksums.xxh64"
    sed -i "s/\"${edit%/*}\": [0-9]*/\"${edit%/*}\": ${edit#*/}/" "$dir/odd/step-00000060/state.json"
    refuses "and best contradict each other" "$gpt" --resume "$dir/odd" --steps 61
done
echo abc >> "$dir/cba.txt"
refuses "--val-data $dir/cba.txt has changed since $dir/worse/step-00000060 was made" \
    "$gpt" --resume "$dir/worse" --steps 61
close_test "the best checkpoint is kept and taken; val losses that rise end the run with --early-stop"

train=$dir/text/train.txt
expect "a validation on the training data" "$gpt" --data "$train" --val-data "$train" --dry-run
is "the banner says so" "$(grep -c '^data .*, the training data: its loss shows no overfitting$' "$dir/expect.out")" 1

own_loss() {      # own_loss RUN UNIT PART: --eval RUN gives the last val loss of its log
    expect "--eval $1" "$gpt" --eval "$1" --dtype f32
    is "it says how much" "$(grep -c ", $3 [0-9]* tokens" "$dir/expect.out")" 1
    logged=$(cells "$1" val_loss | tail -n 1)
    printed=$(sed -n "s/.*loss \([0-9.]*\) $2.*/\1/p" "$dir/expect.out")
    expect "--eval $printed is the val loss $logged" awk "BEGIN { d = $printed - $logged; exit !(d * d < 1e-8) }"
}

# ---- A tokenizer: trained, used for a text, carried by checkpoints, which then speak text
if in_turn 3; then
    mkdir "$dir/bpe"
    cp "$dir/text/train.txt" "$dir/bpe/text.txt"
    expect "train a tokenizer" "$tokenize" "$dir/bpe/text.txt" --train-tokenizer --vocab-size 400 --out "$dir/bpe/tok"
    tokens="--data $dir/bpe/text.txt --tokenizer $dir/bpe/tok --layers 1 --heads 1 --channels 16 --context 64 --batch 2"
    expect "train" "$gpt" $tokens --steps 2 --warmup 0 --dtype f32 --out "$dir/bpe/run"
    is "the text is tokenized once" "$(grep -c '^tokenized ' "$dir/expect.out")" 1
    same_files "$dir/bpe/tok" "$dir/bpe/run/step-00000002" tokenizer.json
    expect "the context" grep -q '"model_max_length": 64,$' "$dir/bpe/run/step-00000002/tokenizer_config.json"
    is "config.json" "$(sed -n 's/.*os_token_id": //p' "$dir/bpe/run/step-00000002/config.json" | tr -d '\n')" 399,399,
    mv "$dir/bpe/tok" "$dir/bpe/gone"
    expect "a resume" "$gpt" --resume "$dir/bpe/run" --steps 3
    is "the cache is used" "$(grep -c '^tokenized ' "$dir/expect.out")" 0
    expect "fine-tuning" "$gpt" --data "$dir/bpe/text.txt" --init "$dir/bpe/run" --steps 1 --batch 2 \
        --out "$dir/bpe/more"
    expect "sample" "$gpt" --sample "$dir/bpe/more" --prompt "Once upon" --sample-tokens 3
    is "it begins with the prompt" "$(sed 1,2d "$dir/expect.out" | head -c 9)" "Once upon"
    rm "$dir"/bpe/text.txt.tokens-*
    expect "evaluate" "$gpt" --eval "$dir/bpe/more" --data "$dir/bpe/text.txt" --documents line
    is "no tokens stay" "$(ls "$dir"/bpe/text.txt*)" "$dir/bpe/text.txt"
    bytes=$(tr -d '\n' < "$dir/bpe/text.txt" | wc -c)
    awk -v bytes="$bytes" '/ per byte / { ratio = $9 * bytes / ($3 * $(NF - 3)) }
        END { exit !(ratio > 0.99 && ratio < 1.01) }' "$dir/expect.out" ||
        wrong "per byte: the loss of all tokens over the bytes, of which the end of text has none"
    expect "and of its checkpoint" "$gpt" --eval "$dir/bpe/more" "$dir/bpe/text.txt" \
        --tokenizer "$dir/bpe/run/step-00000003"
    expect "shards" "$tokenize" "$dir/bpe/text.txt" --tokenizer "$dir/bpe/gone" --out "$dir/bpe/shards" \
        --shard-tokens 1k --val-fraction 0.1
    command=$(sed -n 's/^\.\/train_gpt \(.*\)    trains on them$/\1/p' "$dir/expect.out")
    expect "the command that it names" eval '"$gpt"' "$command" --dry-run
    is "vocabulary and validation of the shards" \
        "$(grep -c -e 'vocabulary 400,' -e "to validate on: $dir/bpe/shards/val_" "$dir/expect.out")" 2
    is "the name of a run" "$(sed -n 's/^output *//p' "$dir/expect.out")" runs/shards
    is "bytes of the first shard" "$(wc -c < "$dir/bpe/shards/train_000000.bin")" 3024
    mkdir "$dir/bpe/empty" "$dir/bpe/gpt2" "$dir/bpe/no-end"
    echo "# GPT-2's" > "$dir/bpe/gpt2/vocab.bpe"
    : > "$dir/bpe/none.txt"
    sed '/"content": "<|endoftext|>"/d; s/, "<|endoftext|>": 399//' "$dir/bpe/gone/tokenizer.json" \
        > "$dir/bpe/no-end/tokenizer.json"
    expect "documents are joined" "$tokenize" "$dir/text/train.txt" "$dir/bpe/text.txt" --tokenizer "$dir/bpe/no-end" \
        --out "$dir/bpe/joined"
    is "which is printed" "$(sed -n 's/: the tokenizer has no end-of-text token.*//p' "$dir/expect.out")" \
        "2 documents are joined"
    long=$dir/bpe/$(printf '%0215d' 0)
    for i in $(seq 2400); do echo "$i" > "$long$i.txt"; done
    expect "names too long for the arguments of a program" sh -c 'ulimit -s 2048 && exec "$@"' sh "$gpt" $tokens \
        --data "$long*.txt" --tokenizer "$dir/bpe/gone" --steps 1 --out none
    says "all of them" "^tokenized .* 2400 documents"
    expect "a text from stdin" "$gpt" $tokens --data /dev/stdin --tokenizer "$dir/bpe/gone" --steps 1 --out none \
        < "$dir/bpe/text.txt"
    says "nothing is written beside it" "^tokenized .* -> memory$"
    echo "Once upon a time" > "$dir/bpe/tiny.txt"
    expect "a tiny text" "$tokenize" "$dir/bpe/tiny.txt" --tokenizer "$dir/bpe/gone" --out "$dir/bpe/tiny"
    says "its validation" "^train [0-9]* tokens, val [01] tokens$"
    refuse_each <<END
empty: no tokenizer: want tokenizer.json | $dir/bpe/text.txt --tokenizer $dir/bpe/empty
is a directory, want a file, or shards as '$dir/bpe/shards/train_*.bin' | $dir/bpe/shards
--field a: want --documents jsonl | $dir/bpe/text.txt --tokenizer $dir/bpe/gone --field a
--documents line: want --tokenizer DIR | $dir/bpe/text.txt --documents line
(scripts/download_gpt2.sh downloads GPT-2's to data/gpt2) | $dir/bpe/text.txt --tokenizer gpt2
text.txt: is a file, want a directory with a tokenizer | $dir/bpe/text.txt --tokenizer $dir/bpe/text.txt
the tokens of $dir/start/step-00000000 are bytes | --eval $dir/start $dir/bpe/text.txt --tokenizer $dir/bpe/gone
END
    gpt=$tokenize refuse_each <<END
has no end-of-text token; want "eos_token" | $dir/bpe/text.txt --documents mark --tokenizer $dir/bpe/no-end --out $dir/y
none.txt: the texts are empty | $dir/bpe/none.txt --train-tokenizer --out $dir/y
tokenize: --vocab-size: want --train-tokenizer | $dir/bpe/text.txt --vocab-size 300 --tokenizer $dir/x --out $dir/y
tokenize: want texts first, then options: FILE... | --tokenizer $dir/bpe/gone --out $dir/y $dir/bpe/text.txt
--field a: want --documents jsonl | $dir/bpe/text.txt --field a --train-tokenizer --out $dir/y
vocab.bpe exists: want another --out | $dir/bpe/text.txt --train-tokenizer --out $dir/bpe/gpt2
END
    refuses ": cannot write: File too large" sh -c 'ulimit -f 1; exec "$@"' - \
        "$tokenize" "$dir/bpe/text.txt" --train-tokenizer --out "$dir/bpe/full"
    is "what is left" "$(ls "$dir/bpe/full")" ""
    expect "train on shards" "$gpt" --data "$dir/bpe/shards/train_*.bin" --val-data "$dir/bpe/shards/val_*.bin" \
        --init "$dir/bpe/more" --steps 1 --batch 2 --dtype f32 --out "$dir/bpe/sharded"
    is "its tokenizer" "$(sed -n 's/^  "tokenizer": "\(.*\)",/\1/p' "$dir/bpe/sharded/step-00000001/state.json")" bpe
    own_loss "$dir/bpe/run" 'nats per token' "all of the last"
    own_loss "$dir/bpe/sharded" 'nats per token' "all of"
    close_test "a tokenizer is trained, used and carried by checkpoints"
fi

# ---- Evaluation and samples
own_loss "$dir/a-flash-f32" 'nats per byte' "all of"
cp "$dir/text/train.txt" "$dir/grows.txt"
for part in 0 0.5; do
    expect "a part of a text" "$gpt" "$dir/grows.txt" --layers 1 --heads 1 --channels 16 --context 16 --batch 4 \
        --steps 2 --val-fraction $part --val-tokens 160 --dtype f32 --out "$dir/part-$part"
done
own_loss "$dir/part-0.5" 'nats per byte' "the first 160 of the last"
echo more >> "$dir/grows.txt"
refuse_each <<END
grows.txt: has changed since $dir/part-0.5/step-00000002 was made | --eval $dir/part-0.5
--eval $dir/part-0: is not of a run with validation data: want a text, too | --eval $dir/part-0
END
expect "evaluate a part" "$gpt" --eval "$dir/a-flash-f32" --data "$dir/text/val.txt" --val-tokens 64
is "it says how much" "$(grep -c ', the first 64 of [0-9]* tokens' "$dir/expect.out")" 1
val=$dir/text/val.txt
tail -c $((($(wc -c < "$val") + 3) / 4)) "$val" > "$dir/quarter.txt"
loss_of() {
    "$gpt" --eval "$dir/a-flash-f32" --dtype f32 "$@" > "$dir/loss.out" 2> "$dir/loss.err"
    sed -n 's/the last //; s/.*: loss \(.*\) tokens.*/\1/p' "$dir/loss.out"
}
quarter=$(loss_of "$dir/quarter.txt")
is "the part that --val-fraction keeps" "$(loss_of "$val" --val-fraction 0.25)" "$quarter"
is "it says which part" "$(grep -c ', all of the last [0-9]* tokens' "$dir/loss.out")" 1
settings="--config $dir/a-flash-f32/settings.txt"
is "the same beside the settings of a run" "$(loss_of "$val" --val-fraction 0.25 $settings)" "$quarter"
is "what is typed, all of it, and not what the settings say" "$(loss_of "$dir/quarter.txt" $settings)" "$quarter"
is "the text of that run" "$(loss_of "$val")" "$(loss_of)"
cp "$dir/text/train.txt" "$dir/grows.txt"
expect "a resume that validates another part" "$gpt" --resume "$dir/part-0.5" --steps 3 --val-fraction 0.25
close_test "--eval gives the logged loss, alone that of the run"

sample() {        # sample FILE OPTIONS...: what is sampled into $dir/FILE, without the words about it
    into=$1; shift
    "$gpt" --sample "$dir/a-flash-f32" --dtype f32 --sample-tokens 30 "$@" > "$dir/$into" 2> "$dir/$into.err" ||
        wrong "sample $*"
}
sample drawn
seed=$(sed -n 's/^seed \([0-9]*\)$/\1/p' "$dir/drawn.err")
sample repeated --seed "$seed"
expect "the seed that it drew gives the same text" cmp "$dir/drawn" "$dir/repeated"
sample another
is "no seed: another one" "$(grep -c "^seed $seed$" "$dir/another.err")" 0
printf 'two\n\tlines\\\n' > "$dir/prompt"
printf 'two\n\tlines\\' > "$dir/prompt.bare"
sample escaped --seed 5 --prompt 'two\n\tlines\\' --num-samples 3
expect "it starts with the prompt, and escapes in it" cmp -n 11 "$dir/escaped" "$dir/prompt.bare"
is "three samples" "$(grep -ac '^---$' "$dir/escaped")" 2
sample from.stdin --seed 5 --prompt - < "$dir/prompt"
bytes=$(wc -c < "$dir/from.stdin")
expect "a prompt from stdin; a sample alone is the first of several" cmp -n "$bytes" "$dir/from.stdin" "$dir/escaped"
sample other --seed 6 --prompt - < "$dir/prompt"
expect "another seed, another text" sh -c '! cmp -s "$1" "$2"' - "$dir/from.stdin" "$dir/other"
sample likely --prompt x --temperature 0
for cut in "top-k 1" "top-p 1e-6"; do
    in_turn 3 || continue
    sample cut --prompt x --$cut
    expect "only the most likely tokens: --$cut" cmp "$dir/likely" "$dir/cut"
done
printf '\357\273\277two\r\n\tlines\\\r\n' > "$dir/prompt.crlf"
sample from.windows --seed 5 --prompt - < "$dir/prompt.crlf"
expect "a prompt with CRLF and a byte order mark" cmp "$dir/from.stdin" "$dir/from.windows"
for end in '\n' '\r\n'; do printf "ab${end}cd${end%??}" | sample "lines${#end}" --seed 5 --interactive; done
expect "lines with CRLF" cmp "$dir/lines2" "$dir/lines4"
expect "longer than the context" "$gpt" --sample "$dir/a-flash-f32" --sample-tokens 300 --temperature 0
is "neither a warning nor a seed" "$(grep -ac 'warning\|^seed' "$dir/expect.out")" 0
expect "a prompt longer than the context" "$gpt" --sample "$dir/a-flash-f32" --prompt "Once upon a time there was"
is "it says so once" "$(grep -ac 'the prompt has 26 tokens, the context 16: the model sees' "$dir/expect.out")" 1
printf 'a\000b' > "$dir/zero"
# magic, version, 4000 tokens
{ printf '\210\330\064\001\001\000\000\000\240\017\000\000'; head -c 9012 /dev/zero; } > "$dir/zeros.bin"
refuse_each <<END
--matmul-dtype fp8: | $small --matmul-dtype fp8 --dtype f32
want --sample | $small --prompt -
--interactive reads from stdin, and writes one sample | --sample $dir/a-flash-f32 --interactive --num-samples 2
--stop 'x': the text of token ids is not known | --data $dir/zeros.bin --context 64 --sample-every 9 --stop x
END
refuses "a zero byte at position 1" "$gpt" --sample "$dir/a-flash-f32" --prompt - < "$dir/zero"
mkfifo "$dir/endless"
{ yes | head -c 99999999 2> "$dir/yes.err" || : > "$dir/not-read"; } > "$dir/endless" &
refuses "more than 16777216 bytes" "$gpt" --sample "$dir/a-flash-f32" --prompt - < "$dir/endless"
wait $!
expect "the rest is not read" test -e "$dir/not-read"
close_test "--sample: seeds, prompts from stdin, escapes, several samples, --top-k and --top-p"
expect "samples of a run" "$gpt" $small --steps 5 --sample-every 2 --sample-tokens 1 --out none
is "samples at steps" "$(sed -n 's/^step \([0-9]*\): a sample$/\1/p' "$dir/expect.out" | tr '\n' ' ')" "2 4 5 "
close_test "a run samples when due and at its end"
expect "a run that validates often" "$gpt" $small --batch 1 --steps 8 --val-every 1 --out "$dir/often"
is "whether its steps take less than half of the time" "$(cells "$dir/often" seconds ms |
    awk -F, 'NR == 1 { first = $1; next } { ms += $2; last = $1 } END { print ms < 500 * (last - first) }')" 1
close_test "validations do not count as time of a step"

items=$dir/items.jsonl
printf '%s\n' '{"context": "Once", "choices": ["upon", "the"], "label": 0}' '' \
    '{"context": "a context of 16", "choices": ["or", "a", "b"], "label": 1}' \
    '{"context": "a", "choices": ["0123456789012345", "b"], "label": 1}' > "$items"
echo '{"text": "Once upon a time"}' > "$dir/words.jsonl"
evaluate="$gpt --eval $dir/a-flash-f32 --dtype f32"
printed() { is "$1" "$(grep -Ec "$2" "$dir/expect.out")" 1; }       # printed WORDS PATTERN: on one line
expect "a task" $evaluate "$items" --task multiple-choice
share='[01]\.[05]000 \+- 0\.[05]000'
printed "its figures" "items.jsonl: multiple-choice, items 2, left out 1, contexts cut 1: acc $share, acc_norm $share, "
expect "with a file" $evaluate "$items" --task multiple-choice --out "$dir/scored.jsonl" --batch 1
printed "its figures" "items.jsonl: multiple-choice, items 2, left out 1, contexts cut 1: acc $share, acc_norm $share, "
is "lines of the file" "$(cut -d, -f1,2 "$dir/scored.jsonl" | tr '\n' ';')" \
    '{"event": "item", "line": 1;{"event": "item", "line": 3;{"event": "task", "task": "multiple-choice";'
expect "three choices" grep -q '"label": 1, "log_probabilities": \[-[0-9.]*, -[0-9.]*, -[0-9.]*\]}$' "$dir/scored.jsonl"
refuses "--out $items: exists; want a new file" $evaluate "$items" --task multiple-choice --out "$items"
expect "a word" $evaluate "$dir/words.jsonl" --task lambada
printed "its figures" ': lambada, items 1, left out 0, contexts cut 0: acc [01]\.0000, perplexity [0-9.]*, '
refuse_each <<END
words.jsonl: line 1: "activity_label" is missing | --eval $dir/a-flash-f32 $dir/words.jsonl --task hellaswag
--task lambada: want --eval CHECKPOINT | $dir/words.jsonl --task lambada
want a file of items, too: --eval $dir/a-flash-f32 --task lambada FILE | --eval $dir/a-flash-f32 --task lambada
END
close_test "--eval --task prints accuracies, and writes a file of JSON"

# ---- A damaged checkpoint: the message names the file, what is wrong with it, and the checkpoint that is left
expect "train" "$gpt" $small --steps 6 --save-every 2 --out "$dir/sound"
step=$dir/damaged/step-00000006
damage() {        # damage FILE COMMAND...: a copy of the run with FILE of the newest checkpoint changed by a filter
    file=$1; shift
    rm -rf "$dir/damaged" && cp -r "$dir/sound" "$dir/damaged"
    "$@" < "$dir/sound/step-00000006/$file" > "$step/$file"
}
resume="$gpt --resume --out $dir/damaged"
zeroed() { head -c 200; head -c 16 /dev/zero; tail -c +17; }
advice="move $step out of $dir/damaged: --resume then continues from $dir/damaged/step-00000004"
damage model.safetensors zeroed
refuses "/model.safetensors: XXH64 is " $resume
expect "the advice" grep -qF "$advice" "$dir/refuse.err"
in_turn 3 && refuses "/model.safetensors: XXH64 is " "$gpt" --eval "$step" --data "$dir/text/val.txt"
in_turn 3 && refuses "/model.safetensors: XXH64 is " "$gpt" --sample "$step"
in_turn 3 && refuses "/model.safetensors: XXH64 is " "$gpt" $small --steps 0 --init "$step"
expect "nothing is removed" test "$(ls -d "$dir"/damaged/step-* | wc -l)" = 3
mv "$step" "$dir/moved-6"
expect "the advice helps" $resume
same_files "$dir/sound/step-00000006" "$step" model.safetensors optimizer.safetensors state.json
set_option() {    # set_option SETTINGS: the newest checkpoint has these, too, or others; no sum says so
    damage state.json sed "s/\"lr\": \"0.001\"/$1/"
    rm "$step/checksums.xxh64"
}
set_option '"lr": "0.0x1"'
in_turn 3 && refuses "$step/state.json: --lr 0.0x1: want a number, 0 .. 1e6" $resume
set_option '"keep-every": "5", &'
in_turn 3 && refuses "sets --keep-every 5, which this version does not have: --keep 0 keeps all" $resume
set_option '"log-jsonl": "yes", "keep-every": "0", "zero": "1", &'
in_turn 3 && expect "an option of earlier versions" $resume --steps 8
damage state.json cat
rm "$step/state.json"
in_turn 3 && expect "a resume beside an incomplete checkpoint" $resume &&
    says "it says so" "^--resume: $step has no state.json and is ignored"
damage state.json head -c 300
rm -r "$dir"/damaged/step-0000000[24]
in_turn 3 && refuses "has no earlier checkpoint, and without one --resume starts over from step 0" $resume
damage state.json cat
rm -r "$dir"/damaged/step-0000000[24] "$step/model.safetensors"
refuses "step-00000006 has no model.safetensors, and $dir/damaged has no complete checkpoint: restore that file" \
    "$gpt" $small --steps 6 --resume --out "$dir/damaged"
close_test "a damaged checkpoint is named, with the one that is left; every load verifies checksums"

# ---- A closed stdout is no log, an --init run resumes, a directory has one run
one="$text --layers 1 --heads 2 --channels 16 --context 16 --batch 2 --steps 4 --save-every 2 --val-every 1"
"$gpt" $one --out "$dir/closed" >&- 2>&- <&- || bad=1
is "rows in the log" "$(rows_of "$dir/closed")" 4
expect "train on" "$gpt" $text --init "$dir/closed" --steps 4 --save-every 2 --min-lr 0 --out "$dir/onward"
rm -r "$dir/onward/step-00000004"
expect "a run from --init resumes" "$gpt" --resume --out "$dir/onward"
if in_turn 4; then
    "$gpt" $text --layers 2 --heads 2 --channels 64 --steps 100000 --val-every 0 --out "$dir/locked" \
        > "$dir/locked.out" 2>&1 &
    pid=$!
    wait_for . "$dir/locked/log.csv"
    refuses "another train_gpt writes to this directory" "$gpt" $one --out "$dir/locked"
    kill -9 $pid; wait $pid 2>/dev/null
    refuses "log.csv already exists" "$gpt" $one --out "$dir/locked"
    rm "$dir/locked/log.csv"
    expect "the lock ends with its process" "$gpt" $one --out "$dir/locked"
    rm "$dir"/locked/step-*/optimizer.safetensors "$dir/locked/log.csv"
    refuses "already exists" "$gpt" $one --out "$dir/locked"
fi
close_test "one run per directory; closed files; a run from --init resumes"

# ---- What it refuses, and that an earlier run is not changed by it
find "$dir/a-flash-f32" -type f -exec cksum {} + | sort > "$dir/before"
mkdir "$dir/lora"
: > "$dir/lora/adapter_config.json"
refuse_each <<END
already exists | $small --out $dir/a-flash-f32
--resume --init x: the run began with --init none; want --resume alone | --resume $dir/a-flash-f32 --init x
--layers 3: the model of $dir/a-flash-f32/step-00000060 has 2 | --resume --out $dir/a-flash-f32 --layers 3
--channels 64: the model of | $text --init $dir/a-flash-f32 --channels 64
--layers 3: the model of | --eval $dir/onward --data $dir/text/val.txt --layers 3
--resume $dir/none: want the directory of a run, with checkpoints | --resume --out $dir/none
want the directory of the run, such as --resume runs/book | --resume
--resume --out none: want the directory of a run | --resume --out none
nothing to train on |
--model d5: want one of | --dry-run --model d5
lora: is a LoRA adapter: want it merged into its model, in Python model.merge_and_unload() | $text --init $dir/lora
(scripts/download_gpt2.sh downloads GPT-2 to data/gpt2) | $text --init gpt2
--resume $dir/nothere: no such directory: want that of the run | --resume $dir/nothere
step-00000040/: want the directory of a run, with checkpoints | --resume $dir/a-flash-f32/step-00000040/
settings.txt: no such directory: want that of the run | --resume $dir/a-flash-f32/settings.txt
want a multiple of --batch x --context = 64 | $small --total-batch 100
--early-stop 3: want validations | $text --early-stop 3 --val-every 0
--heads 3: want a divisor of --channels 32 | $text --channels 32 --heads 3
--vocab 512: want 256, the tokens of a text are bytes; or --tokenizer DIR | $small --vocab 512
want a smaller batch, --recompute (the table above), --attention flash rather than naive, | $text --batch 1000000
END
if [ -z "$cuda" ]; then      # 3 TiB with naive attention, 1 GiB with flash
    refuses "which computes in f32 only; want --dtype f32" "$gpt" $small --dtype bf16
    refuses "out of memory: --batch 1 needs " "$gpt" $text --steps 1 --dry-run --layers 2 \
        --heads 1 --channels 8 --context 524288 --attention naive --batch 1
fi
find "$dir/a-flash-f32" -type f -exec cksum {} + | sort > "$dir/after"
expect "nothing in an earlier run has changed" cmp "$dir/before" "$dir/after"
for plan in "0.46M --model d2" "124.44M --model gpt2 --recompute block --batch 1" "0.95M --model d2 --vocab 4096"; do
    expect "a plan without data" "$gpt" --dry-run ${plan#* }
    says "its parameters" " ${plan%% *} parameters,"
done
close_test "errors are one line, exit code 1, and change nothing"

# ---- --profile: every op of 4 steps of two micro-batches. $ms etc. are columns, counted from the last one.
"$gpt" $small --total-batch 128 --profile 4 --out "$dir/profiled" > "$dir/profile.out" 2>&1
is "exit code" $? 0
expect "nothing is written" test ! -e "$dir/profiled"
for op in "embedding" "embedding backward" "residual layernorm" "layernorm backward" "attention" "attention backward" \
    "matmul 96x32" "matmul dx 32x128" "matmul dweight 32x128" "matmul dweight \+= 32x128" "matmul dx 256x32" \
    "softmax cross-entropy" "gradient norm" "adamw" "loss" "sum of the ops" "step, not profiled" "gap"; do
    expect "a row of $op" grep -qE "^$op +[0-9.-]+" "$dir/profile.out"
done
is "matmuls of one name" "$(cut -c1-36 "$dir/profile.out" | grep matmul | sort | uniq -d)" ""
expect "at most 110 columns" awk '/^op /, 0 { if (length > 110) exit 1 }' "$dir/profile.out"
# floor <= ms; the sum is that of the rows; rows by time; GEMMs of 6 (24 C^2 + C V) FLOP for 128 tokens
expect "the figures agree" awk '
    /^op / { inside = 1; last = 1e9; next }
    /^sum of the ops/ { inside = 0; total = $(NF - 3); floors = $(NF - 2) }
    inside { sum += $(NF - 3); floor += $(NF - 2); if ($(NF - 3) > last) exit failed = 2; last = $(NF - 3) }
    inside && /matmul/ { gflop += $(NF - 4) }
    inside && /^loss/ && $(NF - 6) != 2 { exit failed = 3 }
    inside && /^adamw/ && ($(NF - 6) != 1 || $(NF - 5) < 0.9) { exit failed = 4 }
    END {
        if (failed) exit failed
        gap = sum - total; left = floor - floors; want = 6e-9 * (24 * 32 * 32 + 32 * 256) * 128
        exit gap * gap > 1e-3 || left * left > 1e-3 || gflop < 0.99 * want || gflop > 1.01 * want
    }' "$dir/profile.out"
"$gpt" $small --total-batch 6400000 --profile 1000 > "$dir/profile.out" 2>&1 &      # a step takes seconds
pid=$!
wait_for "^memory " "$dir/profile.out"
sleep 0.1
kill -TERM $pid
sleep 1
kill -9 $pid 2> /dev/null
wait $pid 2> /dev/null
is "exit code after SIGTERM" $? 143
close_test "--profile prints every op, and writes nothing"

# ---- The reader of stdout exits: the run continues, with its log and its checkpoint
"$gpt" $small --steps 30 --val-every 1 --out "$dir/unread" 2> "$dir/unread.err" | head -n 1 > /dev/null
is "rows in the log" "$(rows_of "$dir/unread")" 30
expect "the last checkpoint" test -f "$dir/unread/step-00000030/state.json"
expect "nothing on stderr" test ! -s "$dir/unread.err"
close_test "a closed stdout does not end a run"

# ---- Names: on the terminal printable, in a suggested command quoted for a shell
odd=$dir/$(printf "x; it's\033[31m\nz")
cp "$dir/text/train.txt" "$odd.txt"
{
    "$gpt" "$odd.txt" --layers 1 --heads 1 --channels 16 --context 16 --batch 1 --steps 1 --out "$odd"
    "$gpt" --resume "$odd"
    "$gpt" --eval "$odd" "$odd.txt"
    "$gpt" --sample "$odd" --sample-tokens 1 2>&1 > /dev/null
    "$tokenize" "$odd.txt" --train-tokenizer --vocab-size 300 --out "$odd.bpe"
} > "$dir/odd.out" 2>&1
is "lines with ESC, or that begin within a name" "$(grep -ac "$(printf '\033\\|^z')" "$dir/odd.out")" 0
expect "a suggested command" grep -qF -e "--resume '$dir/x; it'\\''s?[31m?z' --steps N" "$dir/odd.out"
expect "the last one" grep -qF -- "-> $dir/x; it's?[31m?z.bpe" "$dir/odd.out"
close_test "a name has no control characters on the terminal, and suggested commands are quoted"

# ---- --recompute, of whose levels test_gpt has the gradients, and --batch auto
several="--threads 3"           # not on a GPU, or without OpenMP
{ [ "$cuda" ] || "$gpt" $small --threads 2 --dry-run 2>&1 | grep -q 'built without OpenMP'; } && several=
expect "train" "$gpt" $small --steps 6 --out "$dir/kept"
expect "train" "$gpt" $small --steps 6 --save-every 3 --recompute block $several --out "$dir/block"
same_files "$dir/kept/step-00000006" "$dir/block/step-00000006" model.safetensors
rm -r "$dir/block/step-00000006"
expect "resume" "$gpt" --resume "$dir/block"
same_files "$dir/kept/step-00000006" "$dir/block/step-00000006" model.safetensors
expect "keeps the level" grep -q "^recompute = block" "$dir/block/settings.txt"
close_test "--recompute and the number of threads change no bit of the weights, and a resume keeps the level"

auto="$text --layers 1 --heads 1 --channels 16 --context 16 --batch auto"
expect "train" "$gpt" $auto --total-batch 192 --steps 2 --out "$dir/auto"
cp "$dir/expect.out" "$dir/auto.out"
expect "it is printed" grep -qx -e "--batch auto -> 12" "$dir/auto.out"
expect "settings.txt" grep -q "^batch = 12$" "$dir/auto/settings.txt"
expect "resume" "$gpt" --resume "$dir/auto" --steps 3
expect "keeps the number" grep -q "^batch = 12$" "$dir/auto/settings.txt"
expect "evaluate" "$gpt" --eval "$dir/auto" --val-data "$dir/text/val.txt" --batch auto
refuses "--total-batch 200: want a multiple of --batch x --context = 16" "$gpt" $auto --total-batch 200 --out none
refuses "--batch 0: want an integer, 1 .. 1048576, or auto" "$gpt" $text --batch 0
close_test "--batch auto divides the update, is printed, and a resume keeps the number"

# ---- A leak: the model gets below the floor
cp "$dir/text/val.txt" "$dir/leak.txt"
echo "5.5 nats per byte" > "$dir/leak.txt.floor"
refuses "must have leaked" "$gpt" --data "$dir/text/train.txt" --val-data "$dir/leak.txt" \
    --layers 1 --heads 1 --channels 32 --context 16 --batch 8 --steps 40 --warmup 9 --val-every 0 --out "$dir/leak"
expect "its checkpoint is saved" test -f "$dir/leak/step-00000040/state.json"
refuses "the loss is below the floor" "$gpt" --eval "$dir/leak/step-00000040" "$dir/leak.txt"
expect "a part of the text has no floor" "$gpt" --eval "$dir/leak/step-00000040" "$dir/leak.txt" --val-tokens 16
rm "$dir/leak.txt.floor"
mkfifo "$dir/leak.txt.floor"
refuses "leak.txt.floor: is a pipe" timeout 20 "$gpt" --data "$dir/text/train.txt" --val-data "$dir/leak.txt"
close_test "a val loss below the floor is called a leak"

close_tests
