#!/bin/sh
# test_launch.sh - Start-up, end and failures of a run of several processes, with test/ranks/launch_probe.c, which
# computes nothing. On the CPU; the processes, sockets and messages are the same on GPUs.
. "$(dirname "$0")/../shell.sh"
probe=$PWD/$build/launch_probe
unset RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TRAIN_GPT_SECRET TORCHELASTIC_RUN_ID
for name in $(env | sed -nE 's/^((SLURM|OMPI|PMI|MPI|MV2)_[A-Z_]*)=.*/\1/p'); do unset "$name"; done
quick="--steps 2000 --comm-timeout 1 --rendezvous-timeout 2"
short="--steps 50 --comm-timeout 1 --rendezvous-timeout 10"
host=$(hostname)
port=$((10000 + $$ % 8000))

# Most of the time they wait: the groups of tests, functions, run side by side, with a folder and ports of their own.
tests=
beside() {        # beside FUNCTION
    tests="$tests $1" port=$((port + 100))
    mkdir "$dir/$1"
    ( dir=$dir/$1 PROBE_DIR=$dir
      export PROBE_DIR
      "$1"
      echo "$passed $failed $skipped" > "$dir.counts" ) > "$dir/$1.log" 2>&1 &
}
close_groups() {
    wait
    for group in $tests; do
        cat "$dir/$group.log"
        read -r more_passed more_failed more_skipped < "$dir/$group.counts" || more_failed=1
        passed=$((passed + more_passed)) failed=$((failed + more_failed)) skipped=$((skipped + more_skipped))
    done
    close_tests
}

next_port() { port=$((port + 3)); }
# Started by hand, as torchrun does: rank RANK SIZE [NAME=VALUE...] OPTIONS...; $dir/RANK.err, the pid in $pid
rank() {
    rank=$1 size=$2; shift 2
    rm -f "$dir/$rank.out"          # wait_for must not read an earlier one
    env RANK="$rank" LOCAL_RANK=0 WORLD_SIZE="$size" MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        "${bin:-$probe}" "$@" > "$dir/$rank.out" 2> "$dir/$rank.err" &
    pid=$!
}
run() {           # run OPTIONS...: with --gpus; its output, errors and exit code
    rm -f "$dir"/rank.*
    "$probe" "$@" > "$dir/run.out" 2> "$dir/run.err"
}
start() {         # start OPTIONS...: in the background; until its ranks have joined
    rm -f "$dir"/rank.* "$dir/run.out"
    "$probe" "$@" > "$dir/run.out" 2> "$dir/run.err" &
    pid=$!
    wait_for "joined" "$dir/run.out"
}
pid_of() { cat "$dir/rank.$1"; }
ends() {          # ends CODE [PID...]: these processes, or $pid, end with this exit code
    code=$1; shift
    for process in ${*:-$pid}; do
        wait "$process" 2> /dev/null
        is "exit code" $? "$code"
    done
}
one_line() {      # one_line FILE PATTERN: the file is one line that matches
    if [ "$(wc -l < "$1")" != 1 ] || ! grep -q -- "$2" "$1"; then
        wrong "want one line with \"$2\", got:"; head -n 3 "$1"
    fi
}
no_rank_is_left() {       # no_rank_is_left [FILE...]: the processes of these pid files end
    [ $# -gt 0 ] || set -- "$dir"/rank.*
    for file; do
        tries=0
        while kill -0 "$(cat "$file")" 2> /dev/null && [ $tries -lt 250 ]; do tries=$((tries + 1)); sleep 0.02; done
        [ $tries -lt 250 ] || { wrong "process $(cat "$file") of $file lives"; kill -KILL "$(cat "$file")"; }
        rm "$file"
    done
}
seconds_since() { date +%s.%N | awk -v began="$1" '{ print int(10 * ($1 - began)) }'; }      # tenths

# ---- --gpus

starts() {
    for size in 2 3 4; do
        run --gpus $size --steps 5
        is "exit code of $size ranks" $? 0
        is "stdout is that of rank 0" "$(cat "$dir/run.out")" "rank 0 of $size, local 0, joined
done at step 5"
        is "stderr" "$(cat "$dir/run.err")" ""
        is "processes" "$(ls "$dir"/rank.* | wc -l)" $size
        no_rank_is_left
    done
    if env --ignore-signal=CHLD true 2> /dev/null; then         # GNU, 8.31 or newer
        timeout -s KILL 20 env --ignore-signal=CHLD "$probe" --gpus 2 --steps 5 > "$dir/run.out" 2>&1
        is "exit code where SIGCHLD is ignored" $? 0
        no_rank_is_left
    fi
    { "$probe" --gpus 2 $short 2> "$dir/run.err"; echo $? > "$dir/code"; } | true
    is "exit code where stdout is closed" "$(cat "$dir/code" "$dir/run.err")" 0
    expect "a soft limit of open files is raised" sh -c 'ulimit -S -n 50; exec "$@"' sh "$probe" --gpus 2 --steps 5
    refuses "6 ranks: rank 0 has up to 108 open files, the limit is 8; want \`ulimit -n 108\`" \
        sh -c 'ulimit -n 8; exec "$@"' sh "$probe" --gpus 6
    [ "$cuda" ] || refuses "--gpus all: this program was built for the CPU" "$probe" --gpus all
    refuses "--gpus 0: want all or an integer, 1 .. 4096" "$probe" --gpus 0
    for count in some " 1" +1; do refuses "--gpus $count: want all or" "$probe" --gpus "$count"; done
    refuses "--gpus 2: built without NCCL" env PROBE_REFUSE="built without NCCL" "$probe" --gpus 2
    refuses "--eval and --sample do not train, and use one GPU" "$gpt" --sample x --gpus 2
    small="--dry-run --data $0 --layers 1 --channels 32 --heads 2 --batch 2 --context 8"
    if [ ! "$cuda" ]; then              # a GPU for each rank may not be there
        expect "a dry run starts no processes" "$gpt" --gpus 2 --dry-run --data "$0" --layers 1 --channels 16 \
            --heads 2 --batch auto
        is "banners of 2 ranks" "$(grep -c '^device *2 x' "$dir/expect.out")" 1
        moments() { "$gpt" $small "$@" 2> /dev/null | awk '/^  optimizer / { print $2 }'; }     # KiB
        expect "a share of the moments" test $((4 * $(moments --gpus 4))) -lt $((2 * $(moments)))
    fi
    refuses "want a multiple of --batch x --context x the ranks = 32" "$gpt" $small --gpus 2 --total-batch 16
    expect "a dry run of another rank" env RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        "$gpt" $small
    is "what that prints" "$(cat "$dir/expect.out")" ""
    close_test "--gpus starts 2, 3 and 4 ranks, and rank 0 prints"

    PROBE_1=late "$probe" --gpus 3 $short > "$dir/run.out" 2>&1 & late=$!
    expect "rank 0 is late" env PROBE_0=late "$probe" --gpus 3 $short
    ends 0 $late
    close_test "an end of the ranks at different times is no failure"
}

# ---- A rank fails

failures() {
    for who in 0 2; do
        eval "PROBE_$who=fail run --gpus 3 \$quick"
        is "exit code" $? 1
        one_line "$dir/run.err" "^train_gpt: rank $who (host .*, pid $(pid_of $who)): disk full$"
        no_rank_is_left
    done
    PROBE_0=early PROBE_1=early PROBE_2=early run --gpus 3 $quick
    is "exit code" $? 1
    one_line "$dir/run.err" "^train_gpt: rank . (.*): no such device$"
    no_rank_is_left
    PROBE_1=error PROBE_ABORT=hangs run --gpus 2 $quick
    is "exit code of one whose abort hangs" $? 1
    one_line "$dir/run.err" "^train_gpt: rank 1 (.*): remote process exited$"
    close_test "an error of a rank, or of all, ends the run and is printed once, also when the abort hangs"

    for who in 0 1; do
        start --gpus 3 $quick
        kill -KILL "$(pid_of $who)"
        ends 1
        one_line "$dir/run.err" "^train_gpt: rank $who (host $host, pid $(pid_of $who)) was killed or crashed;"
        no_rank_is_left
    done
    PROBE_1=exit run --gpus 2 $quick
    is "exit code after that of a rank" $? 3
    one_line "$dir/run.err" "^train_gpt: rank 1 (.*) was killed or crashed;"
    close_test "a rank that is killed ends the run"

    start --gpus 3 $quick
    kill -KILL $pid
    wait $pid 2> /dev/null
    no_rank_is_left
    close_test "the ranks end with the process that started them"
}

silence() {       # rank 0, rank 1, or all stop and go on
    for who in 0 1 all; do
        mkdir "$dir/$who"
        [ $who = all ] && slow=slow || slow=
        PROBE_1=$slow PROBE_DIR=$dir/$who "$probe" --gpus 3 $quick > "$dir/$who/out" 2> "$dir/$who/err" &
        echo $! > "$dir/$who/pid"
    done
    for who in 0 1 all; do wait_for "joined" "$dir/$who/out"; done
    kill -STOP $(cat "$dir/0/rank.0" "$dir/1/rank.1" "$dir"/all/rank.*)
    sleep 2
    kill -CONT $(cat "$dir"/all/rank.*)
    for who in 0 1; do
        ends 1 "$(cat "$dir/$who/pid")"
        one_line "$dir/$who/err" "^train_gpt: rank $who (.*, pid $(cat "$dir/$who/rank.$who")) has not answered for \
1 s: "
    done
    sleep 1.2
    kill -TERM "$(cat "$dir/all/pid")"
    ends 75 "$(cat "$dir/all/pid")"
    is "stderr" "$(cat "$dir/all/err")" ""
    no_rank_is_left "$dir"/*/rank.*
    close_test "a rank that is stopped ends the run; all of them can be stopped and continued"
}

collectives() {
    PROBE_0=wait PROBE_1=wait "$probe" --gpus 3 $quick 2> "$dir/wait-1" > "$dir/run.out" & one=$!
    PROBE_0=hang PROBE_1=wait PROBE_2=hang "$probe" --gpus 3 $quick 2> "$dir/wait-2" > "$dir/run.out" & two=$!
    PROBE_0=wait PROBE_1=wait "$probe" --gpus 2 $quick 2> "$dir/wait-3" > "$dir/run.out" & three=$!
    PROBE_0=wait PROBE_1=busy "$probe" --gpus 2 $quick 2> "$dir/busy" > "$dir/run.out" & four=$!
    ends 1 $one $two $three $four
    one_line "$dir/wait-1" "a collective has not ended for 1 s: it waits for rank 2 (host .*);"
    one_line "$dir/wait-2" "it waits for rank 0 (host .*), rank 2 (host .*);"
    one_line "$dir/wait-3" "all ranks take part"
    is "a busy rank has time" "$(sed 's/ (.*)//; s/ 1 s: .*/ 1 s/' "$dir/busy")" \
        "train_gpt: waiting for rank 1: at work on texts, samples or checkpoints
still there
train_gpt: a collective has not ended for 1 s"
    close_test "a collective that does not end ends the run"
}

signals() {
    for signal in TERM INT HUP; do
        start --gpus 2 $quick
        kill -$signal $pid
        ends 75
        expect "it stopped" grep -q "^SIG$signal at step" "$dir/run.out"
        is "stderr" "$(cat "$dir/run.err")" ""
    done
    start --gpus 2 $quick
    kill -USR1 $pid
    wait_for "rank 0 saves" "$dir/run.err"
    wait_for "rank 1 saves" "$dir/run.err"
    kill -STOP "$(pid_of 0)"; kill -TERM $pid "$(pid_of 0)"; kill -CONT "$(pid_of 0)"       # twice at once
    ends 75
    export PROBE_0=hang PROBE_1=hang
    start --gpus 2 $quick
    sleep 0.3                   # to step 5
    kill -TERM $pid
    sleep 1.2
    kill -INT $pid
    ends 130
    unset PROBE_0 PROBE_1
    no_rank_is_left
    rank 0 2 $quick
    sleep 0.3
    kill -TERM $pid
    ends 75
    expect "it says so" grep -q "^rank 0 (.*): SIGTERM while the ranks of the run were connecting" "$dir/0.out"
    rank 0 3 $quick; zero=$pid
    rank 1 3 $quick; one=$pid
    sleep 0.3
    kill -TERM $one
    ends 75 $one $zero
    is "output of rank 0" "$(sed 's/host .*, pid/host, pid/' "$dir/0.out")" \
        "rank 1 (host, pid $one): SIGTERM while the ranks of the run were connecting; nothing was written"
    close_test "signals are passed on; a second one ends the ranks at once; one ends the rendezvous"
}

# ---- Processes that were started by hand, and by srun

by_hand() {
    rank 1 3 $short; one=$pid
    rank 2 3 $short; two=$pid
    sleep 0.5
    rank 0 3 $short
    ends 0 $pid $one $two
    is "output of rank 2" "$(cat "$dir/2.out" "$dir"/?.err)" ""
    expect "all are connected" grep -q "rank 0 of 3, local 0, joined" "$dir/0.out"
    for rank0 in "env MASTER_ADDR=::1" "env SLURM_STEP_ID=1"; do
        case $rank0 in *::1) grep -q '^0*1 .* lo$' /proc/net/if_inet6 2> /dev/null || continue ;; esac
        rank 0 2 $short
        RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.2 MASTER_PORT=$port $rank0 "$probe" $short
        is "exit code by $rank0" $? 0
        ends 0
        next_port
    done
    close_test "ranks started by hand, in any order, over IPv4 and IPv6"
}

task() {          # task PROCID LOCALID NAME=VALUE... COMMAND...: with the variables of srun
    procid=$1 localid=$2; shift 2
    env SLURM_JOB_ID=2147483647 SLURM_STEP_ID=$port SLURM_NTASKS=2 SLURM_PROCID="$procid" SLURM_LOCALID="$localid" \
        PMI_RANK="$procid" PMI_SIZE=2 "$@"
}
by_srun() {
    task 0 0 SLURM_JOB_NODELIST='127.0.0.[2-3]' "$probe" $short > "$dir/0.out" 2>&1 &
    pid=$!
    expect "task 1" task 1 0 SLURM_JOB_NODELIST='127.0.0.[2-3]' "$probe" $short
    ends 0
    is "output of task 1" "$(cat "$dir/expect.out")" ""
    expect "output of task 0" grep -q "rank 0 of 2, local 0, joined" "$dir/0.out"
    lists=
    for list in "127.0.0.9" "127.0.0.9,x" "127.0.0.[9-12,20],x" "127.0.0.[9,20]"; do
        task 1 1 SLURM_JOB_NODELIST="$list" "$probe" --rendezvous-timeout 1 2> "$dir/list-$list" &
        lists="$lists $!"
    done
    refuses "SLURM_JOB_NODELIST: want the hosts" task 1 1 "$probe"
    expect "one task" task 0 0 SLURM_NTASKS=1 "$probe" --steps 1
    expect "the task of a batch script" env SLURM_JOB_ID=3 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 \
        "$probe" --steps 1
    mv "$dir/expect.out" "$dir/alone.out"
    expect "alone" grep -q "rank 0 of 1" "$dir/alone.out"
    expect "a warning" grep -q "warning: SLURM_NTASKS is 4, but srun did not start this process: it" "$dir/alone.out"
    ends 1 $lists
    for file in "$dir"/list-*; do
        one_line "$file" "did not reach rank 0 at 127.0.0.9:2[0-9]* within 1 s: Connection refused;"
    done
    close_test "tasks of srun; the first host of a node list; a batch script's own process is alone"
}

by_mpirun() {     # which may start its processes by srun; Open MPI can number those of a host in another order
    for names in "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE" \
                 "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE" \
                 "PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS"; do
        set -- $names
        env SLURM_STEP_ID=1 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 "$1=1" "$2=2" "$3=0" "$4=2" \
            "$probe" $short & one=$!
        expect "rank 0" env "$1=0" "$2=2" "$3=1" "$4=2" SLURM_STEP_ID=1 "$probe" $short
        is "it joins" "$(head -n 1 "$dir/expect.out")" "rank 0 of 2, local 1, joined"
        ends 0 $one
        refuses "MASTER_ADDR is not set: want the host of rank 0, as there are several" \
            env "$1=1" "$2=4" "$3=1" "$4=2" "$probe"
        expect "one process" env "$1=0" "$2=1" "$3=0" "$4=1" "$probe" --steps 1
    done
    refuses "MASTER_PORT is not set" env PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=127.0.0.1 "$probe"
    refuses "--gpus 2: this is one of 2 processes that mpiexec has" env PMI_RANK=1 PMI_SIZE=2 "$probe" --gpus 2
    close_test "ranks started by mpirun, of several hosts with MASTER_ADDR only"
}

variables() {
    while read -r set message; do
        refuses "$message" env $(echo "$set" | tr ',' ' ') "$probe"
    done <<END
RANK=0,LOCAL_RANK=0 WORLD_SIZE is not set
WORLD_SIZE=2 RANK is not set
RANK=0,WORLD_SIZE=2 LOCAL_RANK is not set
RANK=0,LOCAL_RANK=0,WORLD_SIZE=2 MASTER_ADDR is not set
RANK=0,LOCAL_RANK=0,WORLD_SIZE=2,MASTER_ADDR=127.0.0.1 MASTER_PORT is not set
RANK=0,LOCAL_RANK=0,WORLD_SIZE=2,MASTER_ADDR=127.0.0.1,MASTER_PORT=65535 MASTER_PORT=65535: want an integer, 1 .. 65534
RANK=2,LOCAL_RANK=0,WORLD_SIZE=2 RANK=2: want an integer, 0 .. 1
RANK=x,LOCAL_RANK=0,WORLD_SIZE=2 RANK=x: want an integer
RANK=0,LOCAL_RANK=0,WORLD_SIZE=0 WORLD_SIZE=0: want an integer, 1 .. 4096
END
    refuses "did not reach rank 0 at a?[31m:$((port + 1)) within 1 s:" env RANK=1 LOCAL_RANK=1 \
        WORLD_SIZE=2 MASTER_ADDR="$(printf 'a\033[31m')" MASTER_PORT=$port "$probe" --rendezvous-timeout 1
    refuses "--gpus 2: this is one of 2 processes that torchrun" env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 \
        MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$probe" --gpus 2
    expect "a job of one process" env RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 "$probe" --gpus 2 --steps 1
    close_test "variables that do not agree are refused"
}

# ---- Faults of the rendezvous

missing() {
    rank 0 4 --rendezvous-timeout 1; zero=$pid
    rank 1 4 --rendezvous-timeout 1
    ends 1 $zero $pid
    one_line "$dir/0.err" "^train_gpt: rendezvous: rank 2, rank 3 did not reach rank 0 at 127.0.0.1:$((port + 1)) \
within 1 s;"
    is "what rank 1 says, which is there" "$(cat "$dir/1.err")" ""
    rank 1 2 --rendezvous-timeout 1
    ends 1
    one_line "$dir/1.err" "^train_gpt: rendezvous: rank 1 (host $host, .*) did not reach rank 0 at \
127.0.0.1:$((port + 1)) within 1 s: Connection refused;"
    close_test "missing ranks are named, and so is a rank 0 that is missing"

    next_port
    rank 0 2 $quick; zero=$pid
    sleep 0.3
    refuses "rank 0 cannot listen on port $((port + 1)): Address already in use; want a free port" env RANK=0 \
        LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$probe"
    kill $zero; wait $zero
    close_test "a port that is in use"
}

garbage() {
    rank 0 2 $short; zero=$pid
    "$probe" garbage $((port + 1)) > "$dir/garbage.out" & garbage=$!
    wait_for "all are connected" "$dir/garbage.out"
    began=$(date +%s.%N)
    rank 1 2 $short
    ends 0 $pid $zero
    expect "rank 1 joins at once" test "$(seconds_since "$began")" -lt 15
    is "rank 0 says nothing" "$(cat "$dir/0.err")" ""
    kill $garbage; wait $garbage 2> /dev/null
    close_test "connections of other programs, silent, slow, HTTP and noise, neither join nor delay"
}

secrets() {
    other="did not reach rank 0 at 127.0.0.1:$((port + 1)) within 1 s: it does not accept this rank: want the same"
    export TRAIN_GPT_SECRET=hunter2
    rank 0 2 --rendezvous-timeout 4; zero=$pid
    wait_for . "$dir/rank.0"
    TRAIN_GPT_SECRET=hunter3; rank 1 2 --rendezvous-timeout 1; one=$pid
    ends 1 $one
    one_line "$dir/1.err" "^train_gpt: rendezvous: rank 1 (host $host, pid $one) $other"
    unset TRAIN_GPT_SECRET; rank 1 2 --rendezvous-timeout 1; one=$pid
    ends 1 $one
    one_line "$dir/1.err" "$other"
    ends 1 $zero
    one_line "$dir/0.err" "rank 1 did not reach rank 0 at .* within 4 s: rank 1 (.*, pid $one) has another secret"
    next_port
    TRAIN_GPT_SECRET=hunter2 rank 0 2 $short
    TRAIN_GPT_SECRET=hunter2 rank 1 2 $short
    ends 0
    make_text text 3000 1500
    expect "a run" env TRAIN_GPT_SECRET=hunter2 "$gpt" --data "$dir/text/train.txt" --out "$dir/secret" \
        --steps 1 --layers 1 --channels 16 --heads 2 --context 16
    expect "no file has it" test -z "$(grep -r hunter "$dir/secret" "$dir/expect.out")"
    next_port
    TORCHELASTIC_RUN_ID=a rank 0 2 $quick; zero=$pid
    wait_for . "$dir/rank.0"
    TORCHELASTIC_RUN_ID=b rank 1 2 --rendezvous-timeout 1
    ends 1
    one_line "$dir/1.err" "within 1 s: it does not accept this rank: want the same"
    kill $zero; wait $zero
    close_test "another secret or job cannot join; the secret is in no file"
}

# pair WANT OPTIONS...: a rank 0, and another rank with these; rank 0 prints WANT
pair() {
    want=$1; shift
    next_port
    rank 0 3 $quick; zero=$pid
    rank 1 3 $quick; one=$pid
    wait_for . "$dir/rank.1"
    sleep 0.3
    bin=$other_bin rank ${rank1:-2} ${size1:-3} $quick "$@"
    ends 1 $zero $one $pid
    one_line "$dir/0.err" "$want"
    is "what the others say" "$(cat "$dir/1.err" "$dir/2.err" 2> /dev/null)" ""
}
differences() {
    pair "rank 0 (host $host, .*) has '--lr = 0.001', rank 2 (host $host, .*) has '--lr = 0.002'; want the same" \
        --lr 2e-3
    pair "rank 0 (.*) has '--out = ', rank 2 (.*) has '--out = a?b'; want" --out "$(printf 'a\033b')"
    { cat "$probe"; echo "another one"; } > "$dir/other_probe"; chmod +x "$dir/other_probe"
    other_bin=$dir/other_probe
    pair "rank 0 (.*) has 'build = train_gpt .*, [a-z]*, [0-9a-f]*', rank 2 (.*) has 'build = .*'; want the same"
    other_bin=
    rank1=1
    pair "rendezvous: rank 1 (host .*, pid .*) and rank 1 (host .*, pid .*): want ranks 0 .. 2, each once"
    rank1= size1=4
    pair "rank 0 (.*) has 'ranks = 3', rank 2 (.*) has 'ranks = 4'; want the same"
    close_test "other options, builds, numbers of ranks, and a rank that is there twice"
}

# Two hosts: two network namespaces with a link between them, which fails.
hosts() {
    cat > "$dir/hosts.sh" <<'END'
hostname a
ip link add to_b type veth peer name to_a
unshare -nu sh -c 'hostname b; touch "$PROBE_DIR/b"; sleep 1; ip link set lo up; ip addr add 10.9.0.2/24 dev to_a
    ip link set to_a up; RANK=1 exec "$@"' b "$@" > "$PROBE_DIR/1.out" 2> "$PROBE_DIR/1.err" & other=$!
while ! [ -e "$PROBE_DIR/b" ]; do sleep 0.02; done
ip link set to_a netns $other && ip link set lo up && ip addr add 10.9.0.1/24 dev to_b && ip link set to_b up || exit 9
RANK=0 "$@" > "$PROBE_DIR/0.out" 2> "$PROBE_DIR/0.err" & pid=$!
tries=0
until grep -q joined "$PROBE_DIR/0.out" || [ $tries -gt 300 ]; do tries=$((tries + 1)); sleep 0.02; done
ip link set to_b down
wait $pid; echo $?
wait $other; echo $?
END
    name="two hosts, and a network that fails"
    if ! unshare -rnu sh -c "ip link add x type veth peer name y && hostname a" 2> /dev/null; then
        skip_test "$name" "no network namespaces here"
        return
    fi
    codes=$(LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.9.0.1 MASTER_PORT=$port \
        unshare -rnu sh "$dir/hosts.sh" "$probe" --comm-timeout 1 --rendezvous-timeout 10)
    is "exit codes" "$(echo $codes)" "1 1"
    one_line "$dir/0.err" "^train_gpt: rank 1 (host b, .*) has not answered for 1 s:"
    one_line "$dir/1.err" "^train_gpt: rank 0 (host a, .*) has not answered for 1 s:"
    close_test "$name"
}

waits() {
    rank 0 2 --rendezvous-timeout 6; zero=$pid
    next_port
    rank 1 2 --rendezvous-timeout 6
    ends 1 $zero $pid
    for line in "0 train_gpt: rank 1 did not reach rank 0 at 127.0.0.1:[0-9]* so far" \
                "1 train_gpt: rank 1 (host .*) did not reach rank 0 at 127.0.0.1:[0-9]* so far: Connection refused"
    do
        file=$dir/${line%% *}.err
        head -n 1 "$file" | grep -q -- "^${line#* }" && [ "$(wc -l < "$file")" = 2 ] || {
            wrong "want a line \"${line#* }\" and one more, got:"; cat "$file"
        }
    done
    close_test "a rank that waits for others reports it after 5 s"
}

for group in waits silence signals failures collectives starts by_hand by_srun by_mpirun variables missing garbage \
             secrets differences hosts; do
    beside $group
done
close_groups
