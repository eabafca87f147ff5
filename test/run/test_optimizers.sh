#!/bin/sh
# test_optimizers.sh - Runs with --optimizer muon: their state, resumes, also with the other optimizer, updates that are
# not applied, and damaged files, also on two ranks if there are as many GPUs. Accumulation and more ranks:
# test_ranks.sh.
. "$(dirname "$0")/../shell.sh"

sizes="1 2"
[ ! "$cuda" ] || [ "$(visible_gpus)" -ge 2 ] || sizes=1
near=${cuda:+1e-3}              # updates are rounded to bf16 there
make_text text 8000 1500
model="--data $dir/text/train.txt --val-data $dir/text/val.txt --dtype f32"
model="$model --layers 3 --heads 5 --channels 40 --context 31"
train="$model --optimizer muon --steps 24 --warmup 5 --val-every 12 --val-tokens 1000 --save-every 12 --lr 3e-3"
train="$train --total-batch $((12 * 31 * 2)) --deterministic"
has() { grep -aoE '"(momentum_buffer|exp_avg|exp_avg_sq)\.transformer\.h\.0\.[a-z_.0-9]*"' "$1/optimizer.safetensors" |
    sed 's/.transformer.*//; s/"//' | sort | uniq -c | awk '{ printf "%s %s ", $2, $1 }'; }
of_muon="exp_avg 8 exp_avg_sq 8 momentum_buffer 4 " of_adamw="exp_avg 12 exp_avg_sq 12 "

resume() {        # resume FROM NAME OPTIONS...: the run FROM, continued from step 12
    copy_run "$dir/$1" 00000012 "$dir/$2"; name=$2; shift 2
    expect "a resume: $name" "$gpt" --resume "$dir/$name" "$@"
}

expect "one rank" "$gpt" $train --batch 12 --out "$dir/one"
is "its state of a block" "$(has "$dir/one/step-00000024")" "$of_muon"
resume one again --steps 24
same_files "$dir/one/step-00000024" "$dir/again/step-00000024" model.safetensors optimizer.safetensors
expect "AdamW" "$gpt" $train --optimizer adamw --batch 12 --out "$dir/adamw"
is "its state of a block" "$(has "$dir/adamw/step-00000024")" "$of_adamw"
expect "another curve" test "$(cells "$dir/one" loss | tail -n 1)" != "$(cells "$dir/adamw" loss | tail -n 1)"
close_test "muon: state of its own, and a resume to the bit"

# ---- The other optimizer
for n in $sizes; do
    for from in one adamw; do
        to=$([ $from = one ] && echo adamw || echo muon)
        resume $from $to-$n --gpus $n --optimizer $to
        is "lines about it" "$(grep -c 'momentum of the blocks. matrices starts from zero' "$dir/expect.out")" 1
        is "the state of a block" "$(has "$dir/$to-$n/step-00000024")" \
            "$([ $to = muon ] && echo "$of_muon" || echo "$of_adamw")"
        is "updates" "$(sed -n 's/.*"optimizer_step": \([0-9]*\).*/\1/p' "$dir/$to-$n/step-00000024/state.json")" 24
        close_to "$to on $n ranks as on one" "$dir/$to-1" "$dir/$to-$n" $near
    done
done
expect "a resume" "$gpt" --resume "$dir/one" --steps 25
is "lines about it" "$(grep -c 'starts from zero' "$dir/expect.out")" 0
close_test "a resume with another optimizer says what starts from zero"

# ---- An update that is not applied leaves the state alone, as with AdamW and after a spike: test_nonfinite.sh
for n in $sizes; do
    "$gpt" $model --optimizer muon --gpus $n --steps 60 --lr 1e6 --min-lr 1e6 --warmup 2 --clip 0 --weight-decay 1000 \
        --on-nan skip --batch 4 --save-every 1 --keep 0 --out "$dir/wild-$n" > "$dir/skips.out" 2>&1
    at=$(sed -n 's/.*step \([0-9]*\): .*not applied.*/\1/p' "$dir/skips.out" | head -n 1)
    expect "a skipped step" test "$at" -gt 1
    same_files "$dir/wild-$n/$(printf 'step-%08d' $((at - 1)))" "$dir/wild-$n/$(printf 'step-%08d' "$at")" \
        model.safetensors optimizer.safetensors
done
close_test "muon: a non-finite step leaves weights and momentum"

# ---- Damage
damaged() {       # damaged FILE CHANGE PART: a resume is refused after this change of sed's
    rm -rf "$dir/damaged"
    copy_run "$dir/one" 00000012 "$dir/damaged"
    rm "$dir/damaged/step-00000012/checksums.xxh64"
    sed -i "$2" "$dir/damaged/step-00000012/$1"
    refuses "$3" "$gpt" --resume "$dir/damaged" --optimizer adamw
}
name=momentum_buffer.transformer.h
damaged optimizer.safetensors "s/$name.0.attn.c_proj/$name.0.attn.c_proh/" "$name.0.attn.c_proj.weight is missing"
damaged state.json 's/"optimizer": "muon"/"optimizer": "lion"/' 'state.json: --optimizer lion: want adamw|muon'
close_test "a missing momentum and an unknown optimizer are refused"

close_tests
