#!/bin/sh
# test_ranks.sh - Training on several ranks, of every kind: the curve of one rank with as many sequences in an update;
# resumes on as many ranks to the bit, on one, and from one. On the CPU backend with 2, 3 and 4 ranks; on GPUs with as
# many as there are.
. "$(dirname "$0")/../shell.sh"

ranks="2 3 4" even="2 4" four=4
if [ "$cuda" ]; then
    case $(visible_gpus) in
    0|1) skip_test "several ranks" "one GPU"; close_tests ;;
    2|3) ranks=2 even=2 four= ;;
    *)   ranks="2 4" ;;
    esac
fi

make_text text 8000 1500
# Nothing divides: 40 channels, 5 heads, 3 blocks, of which two ranks have two and one, and one of four ranks none; an
# epoch ends in step 11. Sequences are shared in chunks of 6 tokens at 4 ranks.
train="--data $dir/text/train.txt --val-data $dir/text/val.txt --dtype f32 --layers 3 --heads 5 --channels 40"
train="$train --steps 16 --warmup 5 --val-every 6 --val-tokens 1000 --save-every 8 --deterministic"
odd="--context 31 --total-batch $((12 * 31 * 2))" shared="--context 48 --total-batch $((12 * 48 * 2))"
muon="--optimizer muon --lr 3e-3"
# FP8 wants multiples of 16; a rank's operands have a scale of their own, so the rounding differs
fp8="--dtype bf16 --matmul-dtype fp8 --channels 80 --context 32 --total-batch $((12 * 32 * 2))"
has_fp8 && eight=2 || eight=

resume() {        # resume FROM TO OPTIONS...: a copy of the run FROM, continued from step 8
    copy_run "$dir/$1" 00000008 "$dir/$2"; to=$2; shift 2
    expect "a resume: $to" "$gpt" --resume "$dir/$to" "$@"
    close_to "$to as one rank" "$dir/$kind-1" "$dir/$to" $near
    is "its rows" "$(rows_of "$dir/$to")" 16
}
while IFS='|' read -r kind sizes options split; do       # split: the ranks that share a sequence, or all
    [ "$sizes" ] || continue
    [ $kind = plain ] || in_turn 2 || continue
    case $kind in fp8*) near=0.05 ;; *muon) near=${cuda:+1e-3} ;; *) near= ;; esac      # Muon: updates in bf16
    expect "one rank" "$gpt" $train $options --batch 12 --out "$dir/$kind-1"
    for n in $sizes; do
        case $split in all) parallel="--gpus $n --context-parallel $n" ;; *) parallel="--gpus $n $split" ;; esac
        expect "$n ranks" "$gpt" $train $options $parallel --batch $((12 / n)) --out "$dir/$kind-$n"
        close_to "$n ranks as one" "$dir/$kind-1" "$dir/$kind-$n" $near
        is "a column for the communication" "$(head -n 1 "$dir/$kind-$n/log.csv" | grep -c comm_wait_ms)" 1
        same_files "$dir/$kind-1/step-00000016" "$dir/$kind-$n/step-00000016" config.json
        resume $kind-$n $kind-$n-again $parallel
        same_files "$dir/$kind-$n/step-00000016" "$dir/$kind-$n-again/step-00000016" ${checkpoint_files% state.json}
        same_state "$dir/$kind-$n/step-00000016" "$dir/$kind-$n-again/step-00000016"     # copy_run leaves out the best
        resume $kind-$n $kind-$n-to-1
        resume $kind-1 $kind-1-to-$n $parallel
        close_test "$kind: $n ranks train as one, also after a resume, and resume to the bit"
    done
done <<END
plain|$ranks|$odd|
dropout|$even|$odd --dropout 0.2|
muon|$even|$odd $muon|
context|$even|$shared|all
context-recompute|2|$shared --recompute block|all
context-muon|2|$shared $muon|all
context-groups|$four|$shared|--context-parallel 2
fp8|$eight|$fp8|
fp8-context|$eight|$fp8|all
fp8-muon|$eight|$fp8 $muon|
END

kind=plain near= last=${ranks##* }
resume plain-$last plain-$last-to-2 --gpus 2
[ ! -d "$dir/context-$last" ] || { kind=context; resume context-$last context-to-data --gpus 2; }
expect "--eval with its settings" "$gpt" --eval "$dir/plain-2" --config "$dir/plain-2/settings.txt"
expect "again" "$gpt" --config "$dir/plain-2/settings.txt" --out "$dir/again"
same_files "$dir/plain-2/step-00000016" "$dir/again/step-00000016" $checkpoint_files
same_steps "$dir/plain-2" "$dir/again"
[ "$cuda" ] ||
    refuses "--total-batch 744: want a multiple of --batch x --context x the ranks = 217" \
        "$gpt" --resume "$dir/plain-1" --steps 17 --gpus 7
close_test "resumes from several ranks on others; settings.txt repeats a run bit for bit"

close_tests
