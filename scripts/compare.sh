#!/bin/sh
# compare.sh [--out DIR] [OPTION...] - Trains one model from one seed on the same batches with flash attention, with
# naive attention, with flash from initial weights moved by one ulp (the twin), and with PyTorch where PYTHON (python3)
# has it (scripts/train_reference.py, its own attention). Prints the table of scripts/compare_curves.sh and writes a
# page of the curves. The exit code is its verdict: 0 if all are the same curve as flash.
#   DIR      directory of the runs (runs/compare), which is replaced
#   OPTION   of train_gpt, instead of the defaults: a small model on a text on a CPU, GPT-2 124M at T = 1024 on a GPU
#   DATA     text or token shards, 'dir/train_*.bin'; without it, a text made by tales
set -eu
export LC_ALL=C
case ${1-} in --help|-h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;; esac
here=$(dirname "$0") gpt=${TRAIN_GPT:-./train_gpt} curves=${CURVES:-./curves} python=${PYTHON:-python3}
out=runs/compare data=${DATA-} takes_out=
for word; do
    shift
    if [ "$takes_out" ]; then out=$word takes_out=; continue; fi
    case $word in --out) takes_out=yes ;; --out=*) out=${word#*=} ;; *) set -- "$@" "$word" ;; esac
done
[ "$out" ] && [ -z "$takes_out" ] || { echo "compare: --out: want a directory" >&2; exit 1; }
if [ -e "$out" ] && [ ! -f "$out/defaults.txt" ]; then
    echo "compare: $out is not a comparison; want another --out" >&2
    exit 1
fi
[ -z "$data" ] || [ ! -d "$out" ] || case $(cd "$(dirname "$data")" && pwd -P)/ in
"$(cd "$out" && pwd -P)"/*)
    echo "compare: $data is in $out, which is replaced; want a copy of it elsewhere" >&2; exit 1 ;;
esac
case " $* " in *" --steps"[\ =][0-9]" "*|*" --steps"[\ =]1[0-9]" "*)
    echo "compare: fewer than 20 --steps; the curves are compared by means over 20" >&2; exit 1 ;;
esac
[ -z "$data" ] ||        # one step, which warns of nothing that depends on the length of a run
    "$gpt" --data "$data" --val-fraction 0 --val-every 0 --steps 1 --warmup 0 --out none --dry-run > /dev/null
rm -rf "$out"
mkdir -p "$out"
case $("$gpt" --version) in
*cuda*) device=cuda bytes=40000000
    defaults="model=d12 context=1024 batch=32 dtype=bf16 steps=700 lr=6e-4 warmup=100 total-batch=0" ;;
*) device=cpu bytes=2000000
    defaults="layers=4 heads=4 channels=128 context=128 batch=8 steps=600 lr=3e-3" ;;
esac
printf '%s\n' val-fraction=0 val-every=0 save-every=0 $defaults > "$out/defaults.txt"
if [ -z "$data" ]; then
    data=$out/train.txt
    "${TALES:-build/$device/tales}" --bytes $bytes --val-bytes 100000 --seed 1 --out "$out" > /dev/null
fi
set -- --data "$data" --config "$out/defaults.txt" "$@"

train() {         # train NAME OPTION...: into $out/NAME, with the step lines in output.txt
    name=$1
    shift
    mkdir "$out/$name"
    echo "training $name" >&2
    "$gpt" "$@" --out "$out/$name" > "$out/$name/output.txt"
}
train flash "$@" --attention flash
train twin "$@" --attention flash --perturb
train naive "$@" --attention naive
torch=
if "$python" -c 'import numpy, torch' 2> /dev/null; then
    torch=$out/torch
    echo "training torch" >&2
    "$gpt" --config "$out/flash/settings.txt" --steps 0 --out "$out/start" > /dev/null 2>&1
    OMP_WAIT_POLICY=passive "$python" "$here/train_reference.py" --config "$out/flash/settings.txt" --device $device \
        --init "$out/start" --out "$torch" > "$out/torch.txt"
else
    echo "$python has no torch: no curve of PyTorch; PYTHON=... names another" >&2
fi
set -- "$out/flash" "$out/naive" ${torch:+"$torch"}
"$curves" "$out/flash" "$out/twin" "$out/naive" ${torch:+"$torch"} > "$out/curves.html"
code=0
"$here/compare_curves.sh" --twin "$out/twin" "$@" || code=$?
echo "curves: $out/curves.html"
exit $code
