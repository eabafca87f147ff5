#include "launch.h"
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/device.h"
#include "../base/os.h"
#include "rendezvous.h"
#include "sockets.h"

enum { RANKS_MAX = 4096, KILL_SECONDS = 5 };    /* KILL_SECONDS: from SIGTERM to SIGKILL, after a failure */

int launch_local_rank;
static Rendezvous ranks = { .listener = -1 };

/* ---- Variables of torchrun and Slurm */

static int is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

static int integer_of(const char *text, int max) {       /* -1 = none of 0 .. max */
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return !errno && end > text && !*end && value >= 0 && value <= max ? (int)value : -1;
}

static int require_variable(const char *name, int min, int max) {
    REQUIRE(is_set(name), "%s is not set, though other variables of several processes are: want RANK, LOCAL_RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of them", name);
    int value = integer_of(getenv(name), max);
    REQUIRE(value >= min, "%s=%.100s: want an integer, %d .. %d", name, getenv(name), min, max);
    return value;
}

static void read_ranks(const char *rank, const char *local_rank, const char *size) {
    comm_size = require_variable(size, 1, RANKS_MAX);
    comm_rank = require_variable(rank, 0, comm_size - 1);
    launch_local_rank = require_variable(local_rank, 0, comm_size - 1);
    REQUIRE(launch_local_rank <= comm_rank, "%s=%d with %s=%d: want at most that", local_rank, launch_local_rank,
            rank, comm_rank);
}

/* The first of "node[03-07,9],x": node03. Brackets can be anywhere in a name, and there can be several. */
static void read_first_host(const char *list) {
    const char *whole = list;
    size_t length = 0;
    for (; *list && *list != ',' && length < sizeof ranks.host - 1; list++) {
        if (*list != '[') {
            ranks.host[length++] = *list;
            continue;
        }
        const char *close = strchr(list, ']');
        REQUIRE(close, "node list of Slurm '%.100s': want a ] after [", whole);
        while (length < sizeof ranks.host - 1 && !strchr("-,]", *++list)) ranks.host[length++] = *list;
        list = close;
    }
    ranks.host[length] = 0;
    REQUIRE(length, "SLURM_JOB_NODELIST: want the hosts of the job");
}

static const char *value_of(const char *name, const char *otherwise) { return is_set(name) ? getenv(name) : otherwise; }

/* Sets rank and size, and the job's name as the key. */
static void read_variables(void) {
    int by_torchrun = is_set("RANK") || is_set("LOCAL_RANK"), by_srun = !by_torchrun && is_set("SLURM_STEP_ID");
    const char *tasks = is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    if (by_srun) {
        read_ranks("SLURM_PROCID", "SLURM_LOCALID", tasks);
        REQUIRE(!is_set("WORLD_SIZE") || integer_of(getenv("WORLD_SIZE"), INT_MAX) == comm_size,
                "WORLD_SIZE=%.100s, but %s=%d: unset WORLD_SIZE", getenv("WORLD_SIZE"), tasks, comm_size);
        snprintf(ranks.key, sizeof ranks.key, "slurm:%.50s.%.50s", value_of("SLURM_JOB_ID", ""),
                 getenv("SLURM_STEP_ID"));
    } else if (by_torchrun || is_set("WORLD_SIZE")) {
        read_ranks("RANK", "LOCAL_RANK", "WORLD_SIZE");
        const char *job = value_of("TORCHELASTIC_RUN_ID", value_of("SLURM_JOB_ID", ""));
        snprintf(ranks.key, sizeof ranks.key, "torchrun:%.100s", job);
    }
    if (comm_size == 1) return;
    REQUIRE(by_srun || is_set("MASTER_ADDR"), "MASTER_ADDR is not set: want the host of rank 0");
    if (is_set("MASTER_ADDR")) snprintf(ranks.host, sizeof ranks.host, "%s", getenv("MASTER_ADDR"));
    else read_first_host(value_of("SLURM_STEP_NODELIST", value_of("SLURM_JOB_NODELIST", "")));
    /* jobs that share a machine have ports of their own, below the range that the system gives to connections */
    ranks.port = is_set("MASTER_PORT") || !by_srun ? require_variable("MASTER_PORT", 1, 65534) + 1
               : 20000 + (atoi(value_of("SLURM_JOB_ID", "0")) + atoi(getenv("SLURM_STEP_ID"))) % 10000;
}

static void read_secret(void) {
    const char *secret = value_of("TRAIN_GPT_SECRET", NULL);
    if (!secret) return;
    size_t length = strlen(secret);
    REQUIRE(length < KEY_BYTES - 1, "the secret has %zu characters: want at most %d", length, KEY_BYTES - 2);
    memset(ranks.key, 0, sizeof ranks.key);
    snprintf(ranks.key, sizeof ranks.key, "!%s", secret);       /* no job's name begins so */
    ranks.is_secret = 1;
}

/* ---- --gpus */

/* Counts the GPUs in a child: CUDA does not survive a fork. */
static int count_gpus(void) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(device_count());
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* 1 = this process alone. */
static int processes_wanted(const char *gpus) {
    int is_all = !strcmp(gpus, "all"), count = is_all ? count_gpus() : integer_of(gpus, RANKS_MAX);
    REQUIRE(!is_all || count, "--gpus all: %s; want a number of processes", strcmp(backend_name, "cuda") ?
            "this program was built for the CPU" : "no GPU is visible: `nvidia-smi -L` lists them");
    REQUIRE(count >= 1, "--gpus %.100s: want all or an integer, 1 .. %d", gpus, RANKS_MAX);
    return count;
}

/* Waits for all processes, and exits. A Ctrl-C on the terminal reaches them by itself (its si_code is SI_KERNEL);
   signals that a process sent to this one are passed on. */
__attribute__((noreturn)) static void wait_for_ranks(pid_t *pids, int count, const sigset_t *signals) {
    int code = 0, killed_rank = -1, killed_by = 0;
    pid_t killed_pid = 0;
    double kill_at = 0;
    for (int left = count; left; ) {
        siginfo_t info;
        int signal = sigtimedwait(signals, &info, &(struct timespec){ .tv_sec = 1 }), status;
        if (signal > 0 && signal != SIGCHLD && info.si_code <= 0)
            for (int i = 0; i < count; i++) if (pids[i]) kill(pids[i], signal);
        for (int i = 0; i < count; i++) {
            if (!pids[i] || waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
            int result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            if (result && (!code || code == EXIT_TRY_AGAIN)) code = result;
            if (result && result != EXIT_TRY_AGAIN && !kill_at) {
                kill_at = seconds_now() + KILL_SECONDS;
                if (WIFSIGNALED(status)) killed_rank = i, killed_by = WTERMSIG(status), killed_pid = pids[i];
                for (int other = 0; other < count; other++)
                    if (pids[other] && other != i) kill(pids[other], SIGTERM), kill(pids[other], SIGCONT);
            }
            pids[i] = 0;
            left--;
        }
        if (kill_at && seconds_now() > kill_at)
            for (int i = 0; i < count; i++) if (pids[i]) kill(pids[i], SIGKILL);
    }
    if (killed_rank >= 0 && !atomic_exchange(ranks.reported, 1))
        fprintf(stderr, "train_gpt: rank %d (pid %d) was killed by signal %d (%s)\n", killed_rank, (int)killed_pid,
                killed_by, strsignal(killed_by));
    exit(code);
}

/* Returns in the children. They inherit the key, and rank 0 its socket: no other program can take the port. */
static void start_processes(int count) {
    static const int passed_on[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
    pid_t pids[RANKS_MAX], parent = getpid();
    sigset_t signals, before;
    unsigned char bytes[16];
    struct sockaddr_in address;
    ranks.listener = socket_listen(0, 1);
    REQUIRE(!getsockname(ranks.listener, (struct sockaddr *)&address, &(socklen_t){ sizeof address }) &&
            getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "--gpus %d: %s", count, strerror(errno));
    ranks.port = ntohs(address.sin_port);
    for (int i = 0; i < 16 && !ranks.is_secret; i++) sprintf(ranks.key + 2 * i, "%02x", bytes[i]);
    strcpy(ranks.host, "127.0.0.1");
    void *shared = mmap(NULL, sizeof *ranks.reported, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED, "--gpus %d: %s", count, strerror(errno));
    ranks.reported = shared;
    sigemptyset(&signals);
    for (int i = 0; i < 5; i++) sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        REQUIRE(pids[i] >= 0, "--gpus %d: cannot start process %d: %s", count, i, strerror(errno));
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        sigprocmask(SIG_SETMASK, &before, NULL);
        comm_rank = launch_local_rank = i;
        comm_size = count;
        if (i) close(ranks.listener);
        return;
    }
    close(ranks.listener);
    wait_for_ranks(pids, count, &signals);
}

/* ---- Start and end */

void launch_start(const Settings *s) {
    static atomic_int reported;
    signal(SIGCHLD, SIG_DFL);       /* with an inherited SIG_IGN waitpid fails with ECHILD */
    int count = processes_wanted(s->gpus);
    if (!s->profile) stop_open(s->time_limit);      /* a profile has nothing to save: a signal ends it */
    ranks.reported = &reported;
    read_variables();
    read_secret();
    REQUIRE(count == 1 || comm_size == 1, "--gpus %s: this is one of %d processes that %s has started: want one GPU "
            "each, without --gpus", s->gpus, comm_size, is_set("RANK") ? "torchrun (RANK, WORLD_SIZE)" : "srun");
    int tasks = integer_of(value_of("SLURM_NTASKS", ""), INT_MAX);
    if (count == 1 && tasks > 1 && !is_set("SLURM_STEP_ID") && !is_set("RANK"))
        fprintf(stderr, "train_gpt: warning: SLURM_NTASKS is %d, but this process was not started by srun: it trains "
                "alone\n", tasks);
    const char *refusal = count > 1 || comm_size > 1 ? comm_refuse() : NULL;
    REQUIRE(!refusal, "--gpus %d: %s", count > 1 ? count : comm_size, refusal);
    if (count > 1 && s->dry_run) comm_size = count;
    else if (count > 1)          start_processes(count);
    REQUIRE(!comm_rank || freopen("/dev/null", "w", stdout), "/dev/null: %s", strerror(errno));
    ranks.join_s = (double)s->rendezvous_timeout;
    ranks.silence_s = (double)s->comm_timeout;
    if (comm_size > 1 && !s->dry_run) rendezvous_open(&ranks);
}

void launch_join(const Settings *s, const Option *options) {
    char id[COMM_ID_BYTES];
    if (comm_size == 1 || s->dry_run) return;
    char *signature = settings_signature(options);
    const int *sockets = rendezvous_join(signature, id);
    free(signature);
    comm_open(comm_rank, comm_size, id, sockets);
}

void launch_end(void) { if (comm_size > 1) heartbeat_end(); }
