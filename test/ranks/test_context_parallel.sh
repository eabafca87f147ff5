#!/bin/sh
# test_context_parallel.sh - Sequences that several ranks share: tokens, memory, samples, what is refused, and questions
# about a word far back. On the CPU backend with 2 and 4 ranks; on GPUs with as many as there are. That they train as
# one rank does: test_ranks.sh; a stop, and faults: test_parallel.sh.
. "$(dirname "$0")/../shell.sh"

first=2 last=4
if [ "$cuda" ]; then
    case $(visible_gpus) in 0|1) skip_test "sequences over several ranks" "one GPU"; close_tests ;; 2|3) last=2 ;; esac
fi

make_text text 8000 1500
model="--data $dir/text/train.txt --val-data $dir/text/val.txt --dtype f32"
model="$model --layers 3 --heads 5 --channels 40 --context 48"

# ---- The whole job: tokens of a step, memory, samples
share="$model --gpus $first --context-parallel $first"
expect "a step" "$gpt" $share --batch 3 --steps 2 --val-every 0 --out "$dir/total"
is "tokens of a step" "$(cells "$dir/total" tokens | head -n 1)" $((3 * 48))
expect "a prompt that is longer than the context" "$gpt" $share --batch 2 --steps 2 --val-every 0 --sample-every 1 \
    --sample-tokens 60 --prompt "Once there was a tale that took more than a few words" --out none
is "that the model sees its end" "$(grep -c "the model sees the last 25 to 48" "$dir/expect.out")" 1
expect "a model that says more than one word" "$gpt" $model --batch 8 --steps 120 --lr 1e-2 --val-every 0 \
    --out "$dir/teller"
for prompt in On "Once there was a tale that"; do    # within a rank's 24 tokens, and longer; the sample has all 48
    tokens=$((48 - ${#prompt}))
    expect "a sample" "$gpt" $share --batch 1 --recompute block --init "$dir/teller" --steps 1 --lr 1e-3 --val-every 0 \
        --sample-every 1 --sample-tokens $tokens --temperature 0 --prompt "$prompt" --out "$dir/sample-$tokens"
    sed '1,/: a sample$/d; /^log /,$d' "$dir/expect.out" > "$dir/sample.of-rank"
    "$gpt" --sample "$dir/sample-$tokens" --dtype f32 --sample-tokens $tokens --temperature 0 --prompt "$prompt" \
        > "$dir/sample.of-all" 2> /dev/null
    expect "the text of its checkpoint, which one rank has" cmp "$dir/sample.of-rank" "$dir/sample.of-all"
    is "its bytes" "$(wc -c < "$dir/sample.of-all")" 49
done
expect "a profile" "$gpt" $share --batch 2 --profile 2
plan() {          # KiB
    "$gpt" --dry-run --data "$0" --layers 4 --heads 2 --channels 64 --context 4096 --batch 1 --gpus $last "$@" \
        2> /dev/null | awk '
        /^  activations|^  workspace/ { sum += $2 * ($3 == "MiB" ? 1024 : $3 == "GiB" ? 1048576 : 1) }
        END { print int(sum) }'
}
whole=$(plan) part=$(plan --context-parallel $last)
[ "$whole" -gt 0 ] && [ $((part * last)) -lt $((whole * 13 / 10)) ] || wrong "a rank plans $part KiB of $whole"
close_test "tokens, samples, profile and memory plan are those of shared sequences"

# ---- Refused
refuses "--context-parallel 3: want a divisor of the number of ranks, $first" \
    "$gpt" $model --gpus $first --context-parallel 3 --dry-run
refuses "--context 50: want a multiple of 4 for --context-parallel 2" "$gpt" \
    ${model%48}50 --gpus 2 --context-parallel 2 --dry-run
refuses "--context-parallel 2: naive attention runs on one rank only; want flash" "$gpt" $model \
    --gpus 2 --context-parallel 2 --attention naive --dry-run
refuses "want --dropout 0" "$gpt" $model --gpus 2 --context-parallel 2 --dropout 0.1 --dry-run
refuses "head size" "$gpt" ${model%--heads*} --heads 1 --channels 136 --context 48 --gpus 2 --context-parallel 2 \
    --attention flash --dry-run
[ -z "$cuda" ] || refuses "flash attention refuses this head size, and naive runs on one rank only" "$gpt" \
    ${model%--heads*} --heads 4 --channels 40 --context 48 --dtype bf16 --gpus 2 --context-parallel 2 --dry-run
close_test "what cannot be shared is refused in one line"

# ---- data/needle.awk: the name in a question occurs once before, with the word of the label
make_text long 60000 1000
awk -f data/needle.awk -v far=16 -v seed=2 -v items=8 -v file="$dir/items.jsonl" "$dir/long/train.txt" \
    > "$dir/needle.txt"
is "questions" "$(wc -l < "$dir/items.jsonl")" 8
expect "their answers" awk '{
    name = substr($0, index($0, "\", \"choices\"") - 3, 3)
    label = substr($0, length($0) - 1, 1)
    place = index($0, "Remember: " name " ")
    word = substr($0, place + 14, 3)
    split(substr($0, index($0, "\"choices\": [") + 12), choice, "\"")
    if (!place || choice[2 + 2 * label] != word || gsub(": " name, "&") != 2) { print; bad = 1 }
} END { exit bad }' "$dir/items.jsonl"
expect "a model answers" "$gpt" --eval "$dir/total" --task multiple-choice "$dir/items.jsonl"
close_test "questions about a word far back in the text"

close_tests
