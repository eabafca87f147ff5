# shell.sh - What the test_*.sh share: each sources it first. It goes to the root of the project and makes $dir, a
# directory that is removed at the end. A test is some claims and then its name; the file closes with "N passed, ...":
#
#     expect "the run" "$gpt" $small --steps 60 --out "$dir/a"
#     is "its rows" "$(rows_of "$dir/a")" 60
#     close_test "a run writes a row for every step"
#     close_tests
#
# $BUILD is the build directory (build/cpu), $gpt the program in it; $cuda is "yes" where that computes on a GPU.
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 2
build=${BUILD:-build/cpu}
gpt=$PWD/$build/train_gpt
tokenize=${gpt%train_gpt}tokenize
dir=$(mktemp -d) || exit 2
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
export OMP_NUM_THREADS=1      # models so small that a second thread is only waited for
export XDG_CACHE_HOME="$dir/cache"      # choices made by measurement: a script's first run makes them
case $("$gpt" --version) in *cuda*) cuda=yes ;; *cpu*) cuda= ;; *) echo "$gpt does not run" >&2; exit 2 ;; esac
passed=0 failed=0 skipped=0 bad=0
turn=$(($(date +%s) % 5040))  # divisible by 1 .. 10
checkpoint_files="config.json model.safetensors optimizer.safetensors state.json"

# ---- Claims: one that does not hold says so, and fails the test that is closed next

wrong() { echo "  $*"; bad=1; }
expect() {        # expect WORDS COMMAND...: the command succeeds; what it printed is in $dir/expect.out
    words=$1; shift
    "$@" > "$dir/expect.out" 2>&1 || { wrong "$words: $*"; tail -n 8 "$dir/expect.out" | sed 's/^/    /'; }
}
is() {            # is WORDS GOT WANT
    [ "$2" = "$3" ] || wrong "$1: got $2, want $3"
}
refuses() {       # refuses PART COMMAND...: exit code 1 and one line on stderr, $dir/refuse.err, that holds PART
    part=$1; shift
    "$@" > "$dir/refuse.out" 2> "$dir/refuse.err"
    status=$?
    if [ $status != 1 ] || [ "$(wc -l < "$dir/refuse.err")" != 1 ] || ! grep -qF -- "$part" "$dir/refuse.err"; then
        wrong "want exit code 1 and one line with \"$part\", got $status: $*"; head -n 3 "$dir/refuse.err"
    fi
}
same_files() {    # same_files A B FILE...: of two folders, byte for byte
    a=$1 b=$2; shift 2
    for file; do expect "the same bytes" cmp "$a/$file" "$b/$file"; done
}
same_state() {    # same_state A B: of two checkpoints, but for the best: its save may have failed, or been due anyway
    grep -v '^ *"best": ' "$1/state.json" > "$dir/a.state"
    grep -v '^ *"best": ' "$2/state.json" > "$dir/b.state"
    expect "the same state in $1 and $2" cmp "$dir/a.state" "$dir/b.state"
}
same_steps() {    # same_steps A B: the rows of two runs' logs are the same but for their times
    steps_of "$1" > "$dir/a.steps"
    steps_of "$2" > "$dir/b.steps"
    expect "the same rows in the logs of $1 and $2" cmp "$dir/a.steps" "$dir/b.steps"
}

# Checks that do not depend on the backend: all of them on the CPU; on a GPU, where a process takes 0.4 s or more, one
# of N, selected by the time, so that repeated runs cover all.
in_turn() {       # in_turn N
    turn=$((turn + 1))
    [ -z "$cuda" ] || [ $((turn % $1)) = 0 ]
}

close_test() {    # close_test NAME
    if [ $bad = 0 ]; then passed=$((passed + 1)); echo "ok   $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi
    bad=0
}
skip_test() {     # skip_test NAME REASON
    skipped=$((skipped + 1)); echo "skip $1: $2"
}
close_tests() {
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
}

# ---- Texts and runs

has_fp8() { "$gpt" --dtype bf16 --matmul-dtype fp8 --dry-run > /dev/null 2>&1; }

visible_gpus() {
    if [ "${CUDA_VISIBLE_DEVICES:-}" ]; then echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .
    else nvidia-smi -L | grep -c '^GPU'; fi
}

make_text() {     # make_text FOLDER BYTES VAL_BYTES: $dir/FOLDER/train.txt and val.txt, the same whenever it is made
    "$build/tales" --bytes "$2" --val-bytes "$3" --seed 7 --out "$dir/$1" > /dev/null || exit 2
}
cells() {         # cells RUN COLUMN...: these columns of a run's log, a line per step; "" for a column that it lacks
    cells_of=$1; shift
    awk -F, -v names="$*" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; n = split(names, name, " "); next }
        { for (i = 1; i <= n; i++) printf "%s%s", name[i] in at ? $at[name[i]] : "", i < n ? "," : "\n" }' \
        "$cells_of/log.csv"
}
steps_of() { cells "$1" step tokens loss val_loss norm lr; }      # a run's rows without their times
close_to() {      # close_to WORDS RUN OTHER [BOUND]: losses, norms, validations of common steps differ by at most 1e-5
    cells "$2" step loss norm val_loss tokens > "$dir/close.a"
    cells "$3" step loss norm val_loss tokens > "$dir/close.b"
    expect "$1" awk -F, -v near="${4:-1e-5}" '
        NR == FNR { for (i = 2; i <= 5; i++) want[$1, i] = $i; next }
        ($1, 2) in want {
            rows++
            for (i = 2; i <= 5; i++) {
                d = $i - want[$1, i]
                if (d < 0) d = -d
                if (d <= near * (want[$1, i] > 1 ? want[$1, i] : 1)) continue
                print "step " $1 ": " $i " and " want[$1, i]
                bad = 1
            }
        }
        END { exit bad || rows < 10 }' "$dir/close.a" "$dir/close.b"
}
rows_of() { cells "$1" step | grep -c .; }
last_step() { ls -d "$1"/step-* 2> /dev/null | tail -n 1; }
copy_run() {      # copy_run FROM STEP TO: a run that has come to STEP, eight digits, and no further
    mkdir "$3" && cp -r "$1/step-$2" "$1/log.csv" "$3"
}
wait_for() {      # wait_for PATTERN FILE: at most 30 s until a line of the file, whose name may be a pattern, has it
    tries=0
    until grep -q "$1" $2 2> /dev/null; do
        tries=$((tries + 1))
        [ $tries -le 1500 ] || { wrong "no \"$1\" in $2"; return; }
        sleep 0.02
    done
}
