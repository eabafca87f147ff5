#!/bin/sh
# test_malformed.sh - Over 1,000 malformed inputs for the program: options, token shards, checkpoints, texts, places for
# results. Each must end with exit code 1, one line on stderr, and every file as it was. What a reader refuses, and in
# which words: test_settings, test_files, test_data, test_checkpoint, test_import, test_fuzz. $MALFORMED_STRIDE=4 runs
# every fourth case, from one that varies with the time, for a build that starts slowly.
. "$(dirname "$0")/../shell.sh"
stride=${MALFORMED_STRIDE:-1} phase=$((turn % stride)) cases=0 ran=0
mkdir "$dir/here" && cd "$dir/here" || exit 2

# Time and number of a file are in it: written anew is not untouched. "new" is the --out of runs that end early.
# known is what there is; it is taken again when the test itself has changed a file.
tree() { find . -path ./new -prune -o -type d -printf '%p\n' -o -printf '%p %y %i %T@ %s\n' | cksum; }
refused() {       # refused PART WORDS...: the program with these words; the line holds PART
    cases=$((cases + 1))
    [ $((cases % stride)) = $phase ] || return 0
    ran=$((ran + 1)) part=$1 known=${known:-$(tree)}; shift
    timeout -s KILL 20 "$gpt" "$@" < /dev/null > /dev/null 2> "$dir/err"
    status=$?
    complaint=$(awk -v part="$part" '
        /^(train_gpt: warning: |checkpoint |seed )/ { next }
        { lines++ }
        index($0, "train_gpt: ") != 1 || length < 23 || length > 2200 { print "another kind of line; " }
        !index($0, part) { print "no \"" part "\"; " }
        /[\001-\037\177]|\302[\200-\237]/ { print "control characters; " }
        END { if (lines != 1) print lines + 0 " lines; " }' "$dir/err")
    [ $status = 1 ] || complaint="$complaint exit code $status; "
    [ "$(tree)" = "$known" ] || complaint="$complaint files have changed;" known=
    if [ "$complaint" ]; then wrong "case $cases:" $complaint "$(echo "$@" | cut -c-200)"; head -c 600 "$dir/err"; fi
    [ ! -e new ] || rm -rf new
}
refused_words() { # refused_words PART WORDS < LINES: these words and those of each line
    while read -r line; do set -f; refused "$1" $2 $line; set +f; done
}
escaped() { printf '%b' "$1"; }

# ---- Sound inputs

base="--data text.txt --layers 1 --heads 2 --channels 16 --context 8 --batch 2 --steps 4 --save-every 2 --warmup 1"
base="$base --threads 1" step=step-00000002
shard() {         # shard FILE WIDTH LAST_ID: 64 ids of 2 or 4 bytes, 7 but for the last
    known=
    case $2 in 2) magic='\210\330' rest='\000' ;; 4) magic='\241\331' rest='\000\000\000' ;; esac
    { printf "$magic\\064\\001\\001\\000\\000\\000@\\000\\000\\000"; head -c 1012 /dev/zero
      for id in $(seq 63); do printf "\\007$rest"; done
      printf "\\$(printf %o "$3")$rest"; } > "$1"
}
yes "the cat sat on a mat, and then it ran." | head -c 600 > text.txt
shard good16.bin 2 99
shard good32.bin 4 99
mkdir dir && echo "a note" > dir/note.md
expect "train" "$gpt" $base --out run
expect "train on shards" "$gpt" $base --data good16.bin --val-data good32.bin --vocab 100 --out ids
rm -r run/step-00000004
restore() {       # a run with the files of a checkpoint, but their sums
    known=
    rm -rf broken && mkdir -p broken/$step && cp run/log.csv broken
    (cd run/$step && cp $checkpoint_files ../../broken/$step)
}
restore
expect "evaluate" "$gpt" --eval broken --data text.txt --batch 2 --threads 1
expect "sample" "$gpt" --sample broken --prompt a --sample-tokens 9 --threads 1
expect "train on" "$gpt" $base --init broken --out new
expect "resume" "$gpt" --out broken --resume --threads 1
rm -r new
close_test "sound inputs are accepted"

# ---- Options: each of --help; test_settings has more values, and names that there are not

lengthy=$(head -c 100000 /dev/zero | tr '\000' A)
"$gpt" --help | sed -nE 's/^  --([a-z0-9-]+)  .*/\1 flag/p; s/^  --([a-z0-9-]+) ([^ ]+).*/\1 \2/p' > "$dir/options"
[ "$(grep -c . "$dir/options")" -gt 35 ] || wrong "$(grep -c . "$dir/options") options in --help, want all of them"
while read -r name argument; do
    refused "" $base "--${name}_=1"
    case $argument in
    flag) refused "$name" $base "--$name=maybe"; continue ;;
    *)    refused "want a value" $base "--$name" ;;
    esac
    case $argument in N|*'|'*) ;; *) continue ;; esac
    refused "$name" $base "--$name" ""
    refused "$name" $base "--$name" "$lengthy"
    for value in abc 1x nan "$(printf '1\033[0m')" 99999999999999999999999999999999 -9223372036854775809; do
        refused "$name" $base "--$name=$value"
    done
done < "$dir/options"
for value in word -X - -- --=3 "" steps=3 '\0342\0200\0224steps' -5 -steps ---steps / text.txt '\0033[31m' '\n' 'a\nb' \
    '--\0177' '= 3' '?'; do
    refused "" $base "$(escaped "$value")"
done
for value in '\0033[31mred' 'a\nb' 'a\rb' '\0177' '\0302\02332J' '\0377\0376' '%s%n%d' '[' 'no*' '??' / . .. dir/ \
    text.txt/x nowhere/x '~'; do
    for option in data val-data init eval sample; do refused "" $base --$option "$(escaped "$value")"; done
done
for value in nowhere dir text.txt run/log.csv good16.bin /dev/null; do
    refused "" --resume --out $value --threads 1
    refused "" --eval $value --data text.txt
    refused "" --sample $value
    refused "" --data text.txt --init $value
done
refused_words "" "--threads 1" <<'END'
--eval run --sample run --data text.txt
--eval run --data text.txt --resume
--sample run --init run
--resume --data nowhere
--eval run --val-fraction 0
--dry-run --resume
--eval run --data nowhere
--eval run --val-data nowhere --data text.txt
--out run --data text.txt
END
refused_words "" "$base" <<'END'
--data text.txt --val-data good16.bin
--data good16.bin --val-data text.txt
--data good*.bin
--data good32.bin --val-data text.txt
--data good16.bin --vocab 99
--data good32.bin --vocab 2
--data none*.bin
--data good16.bin --vocab 100 --val-data none*
--data good16.bin --vocab 1
--data directory --vocab 100
END
for option in data val-data init eval out; do refused "A: " $base --$option "$lengthy"; done
refused "" $base --out "$(printf 'new%0300d' 0)"
close_test "options"

# ---- Files: shards, checkpoints, texts

spoil() {         # spoil PATH KIND [SOUND]: what may stand where a file should be
    known=
    rm -rf "$1"
    case $2 in
    empty)     : > "$1" ;;
    directory) mkdir "$1" ;;
    nowhere)   ln -s nowhere "$1" ;;
    itself)    ln -s "${1##*/}" "$1" ;;
    pipe)      mkfifo "$1" ;;
    device)    ln -s /dev/null "$1" ;;
    foreign)   printf 'GGUF\003\000\000\000%052d' 0 > "$1" ;;
    cut)       head -c -3 "$3" > "$1" ;;
    longer)    { cat "$3"; printf '\200\004\225\033'; } > "$1" ;;
    esac
}
kinds="missing empty directory nowhere itself pipe device foreign"
eval_ids="--eval ids --threads 1 --batch 2"
for kind in $kinds cut longer id; do
    for command in "$base --data broken.bin --vocab 100 --out new" "$eval_ids --data broken.bin" \
        "$base --data good16.bin --val-data broken.bin --vocab 100 --out new" \
        "$eval_ids --val-data broken.bin --data good16.bin"; do
        for width in 2 4; do
            if [ $kind = id ]; then shard broken.bin $width $((100 + cases % 156))
            else spoil broken.bin $kind good$((8 * width)).bin; fi
            refused broken.bin $command
        done
    done
done
close_test "token shards"

refused_by() {    # refused_by PART FILE: each reader of this file of broken
    case $((cases % 3)) in 0) path=broken/ ;; 1) path=broken/$step ;; *) path=broken/$step/model.safetensors ;; esac
    case $2 in config.json|model.safetensors)
        refused "$1" --eval $path --data text.txt --batch 2 --threads 1
        refused "$1" --sample $path --prompt a --sample-tokens 9 --threads 1
        refused "$1" $base --init $path --out new ;;
    esac
    refused "$1" --out broken --resume --threads 1
}
for kind in $kinds cut longer; do
    for file in $checkpoint_files; do
        restore
        spoil broken/$step/$file $kind run/$step/$file
        refused_by broken $file
    done
done
flawed() {        # flawed FILE SED: refused with this change
    restore
    sed "$2" run/$step/$1 > broken/$step/$1
    cmp -s run/$step/$1 broken/$step/$1 && wrong "$2 changes nothing in $1"
    refused_by "" $1
}
for member in n_layer n_head n_embd n_positions vocab_size \
    step sequences_seen tokens val_step optimizer_step nonfinite spikes; do
    case $member in n_*|vocab_size) file=config.json ;; *) file=state.json ;; esac
    flawed $file "s/\"$member\": /\"${member}_\": /"
    for value in null '"\\u009b2J"' -5 1.5 1e99 [] 0x10; do
        flawed $file "s/\"$member\": [^,]*/\"$member\": $value/"
    done
done
while read -r file change; do flawed $file "$change"; done <<'END'
config.json s/"n_positions": 8/"n_positions": 4611686018427387904/
config.json s/"n_embd": 16/"n_embd": 24/
config.json s/}/}}/
config.json s/_/\x01/
state.json s/,/\x07,/
state.json s/"step": 2/"step": 3/
state.json s/"optimizer_step": 2/"optimizer_step": 3/
state.json s/"window_loss": \[/&1, /
state.json s/"train": "/&a/
state.json s/"settings"/"setting"/
state.json s/"settings": /&5, "x": /
state.json s/"settings": /&[], "x": /
state.json s/"batch": "2"/"batch": 2/
state.json s/"batch": "2"/"batch": "two"/
state.json s/"layers": "1"/"layers": "2"/
state.json s/"channels": "16"/"channels": "32"/
state.json s/"heads": "2"/"heads": "3"/
state.json s/"steps": "4"/"steps": "-1"/
state.json s/"lr": "/&nan/
state.json s/"clip": "/&\\u0000/
state.json s/"attention": "/&x/
state.json s/"schedule": "/&\\u001b[1m/
state.json s/"data": "/&nowhere\//
state.json s/"seed": "/&-/
END
restore
for size in layers=2 channels=160 context=16; do
    refused ": the model of" --out broken --resume --threads 1 --$size
done
refused_words "" "--out broken --resume --threads 1" <<'END'
--heads 4
--vocab 300
--dtype bf16
--data nowhere
--data good16.bin
--val-data good16.bin
--data dir
--min-lr 0.5
--total-batch 17
--out none
END
rm -r broken && known=
close_test "checkpoints"

for command in "$base --data broken.txt --out new" "$base --val-data broken.txt --out new" \
    "--eval run --threads 1 --batch 2 --data broken.txt" \
    "--eval run --threads 1 --batch 2 --data text.txt --val-data broken.txt"; do
    for kind in $kinds; do
        spoil broken.txt $kind
        refused broken.txt $command
    done
done
known= && rm -f broken.txt && printf 7 > broken.txt
refused broken.txt $base --val-data broken.txt --out new
for count in 2 3 9 19; do           # a validation part of at most one byte
    known= && head -c $count text.txt > broken.txt
    refused "too few" $base --data broken.txt --out new --val-fraction "$(awk "BEGIN { print 0.95 / $count }")"
done
known= && { head -c 500 /dev/zero | tr '\000' ' '; printf '\201'; } > broken.txt
refused broken.txt $eval_ids --data broken.txt
cp text.txt broken.txt
for floor in "" abc -1 nan inf 1e400 'nats 1.5' '\n\n' '\0033[31m' '{"floor": 1}' '\0377\0376' x1.5 7.5; do
    known= && escaped "$floor" > broken.txt.floor
    refused "" $base --val-data broken.txt --out new
done
spoil broken.txt.floor directory
refused "" $base --val-data broken.txt --out new
spoil dangling nowhere
spoil itself itself
spoil pipe pipe
for out in text.txt text.txt/ text.txt/a/b/c /proc/none /dev/null /dev/null/x run run/ dir/../run dangling itself pipe \
    run/log.csv run/$step/config.json /proc/self/fd/none; do
    refused "" $base --out $out
done
for out in text.txt/x ids run itself; do
    refused "" $base --init run --out $out
    refused "" $base --data good16.bin --vocab 100 --out $out
done
mkdir -p new/log.csv
refused log.csv $base --out new
close_test "texts, and places for the results"

echo "  $cases cases, $ran of them run"
[ $cases -ge 1000 ] || wrong "$cases cases, want 1,000"
close_test "all cases"
close_tests
