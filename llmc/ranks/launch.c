#include "launch.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../../kernels/device.h"
#include "../base/files.h"
#include "../base/os.h"
#include "rendezvous.h"

enum { KILL_SECONDS = 4 };      /* from a failure to the end of the ranks that do not end by themselves */

int launch_local_rank;

/* ---- Variables of launchers */

typedef struct {
    const char *sign, *name;                /* a variable of the processes that it starts; what it is called */
    const char *rank, *local_rank, *size;   /* its variables */
    const char *job;                        /* the same in all ranks, another in other jobs */
    const char *host_size;                  /* number of ranks on this host; NULL = not known */
} Launcher;

#define OMPI "OMPI_COMM_WORLD_"
#define MV2  "MV2_COMM_WORLD_"
#define SRUN(size) "srun", "SLURM_PROCID", "SLURM_LOCALID", size, "SLURM_JOB_ID", NULL

/* The first with its sign is the launcher: mpirun can start its processes by srun, and srun sets PMI_SIZE, too. The
   process that runs a batch script of Slurm has no SLURM_STEP_ID, and is alone. */
static const Launcher launchers[] = {
    { "RANK", "torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL },
    { OMPI "SIZE", "mpirun", OMPI "RANK", OMPI "LOCAL_RANK", OMPI "SIZE", "PMIX_NAMESPACE", OMPI "LOCAL_SIZE" },
    { MV2 "SIZE", "mpirun", MV2 "RANK", MV2 "LOCAL_RANK", MV2 "SIZE", "SLURM_JOB_ID", MV2 "LOCAL_SIZE" },
    { "MPI_LOCALRANKID", "mpiexec", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "SLURM_JOB_ID", "MPI_LOCALNRANKS" },
    { "SLURM_STEP_NUM_TASKS", SRUN("SLURM_STEP_NUM_TASKS") },
    { "SLURM_STEP_ID", SRUN("SLURM_NTASKS") },
    { "PMI_SIZE", "mpiexec", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_JOB_ID", "PMI_SIZE" },      /* one host */
    { "WORLD_SIZE", "torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL },
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static const char *value_of(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int integer_of(const char *text, int max) {       /* -1 = none of 0 .. max */
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return !errno && isdigit((unsigned char)*text) && !*end && value <= max ? (int)value : -1;
}

static int require_variable(const char *name, int min, int max) {
    const char *text = value_of(name, NULL);
    REQUIRE(text, "%s is not set, though other variables of several processes are: want RANK, LOCAL_RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT, or none of them", name);
    int value = integer_of(text, max);
    REQUIRE(value >= min, "%s=%.100s: want an integer, %d .. %d", name, text, min, max);
    return value;
}

static const Launcher *find_launcher(void) {
    for (int i = 0; i < LAUNCHERS; i++) if (value_of(launchers[i].sign, NULL)) return &launchers[i];
    return NULL;
}

/* The first of "node[03-07,9],x": node03. */
static void read_first_host(const char *list) {
    const int name = (int)strcspn(list, "[,");
    const char *number = list[name] == '[' ? list + name + 1 : "";
    snprintf(root.host, sizeof root.host, "%.*s%.*s", name, list, (int)strcspn(number, "-,]"), number);
    REQUIRE(*root.host, "SLURM_JOB_NODELIST: want the hosts of the job");
}

/* Sets host and port of rank 0, and as the key the secret, else the job's name, else the process that started the ranks
   of one host. */
static void read_address(const Launcher *l) {
    const char *address = value_of("MASTER_ADDR", NULL), *secret = value_of("TRAIN_GPT_SECRET", NULL);
    const int is_srun = !strcmp(l->name, "srun");
    char parent[16] = "";
    if (address)       snprintf(root.host, sizeof root.host, "%s", address);
    else if (is_srun)  read_first_host(value_of("SLURM_STEP_NODELIST", value_of("SLURM_JOB_NODELIST", "")));
    else {
        REQUIRE(l->host_size && integer_of(value_of(l->host_size, ""), RANKS_MAX) == comm_size,
                "MASTER_ADDR is not set: want the host of rank 0%s", l->host_size ? ", as there are several" : "");
        strcpy(root.host, "127.0.0.1");
        snprintf(parent, sizeof parent, "%d", (int)getppid());
    }
    char *job = format_string("%s:%.80s.%.20s", l->name, value_of(l->job, value_of("SLURM_JOB_ID", parent)),
                              is_srun ? value_of("SLURM_STEP_ID", "") : "");
    /* jobs that share a machine have ports of their own, below the range that the system gives to connections */
    root.port = value_of("MASTER_PORT", NULL) || (address && !is_srun) ? require_variable("MASTER_PORT", 1, 65534) + 1
                : 20000 + (int)(xxh64(job, strlen(job)) % 10000);
    /* no job's name begins with ! */
    const int length = snprintf(root.key, KEY_BYTES, "%s%s", secret ? "!" : "", secret ? secret : job);
    REQUIRE(length < KEY_BYTES, "TRAIN_GPT_SECRET has %d characters: want at most %d", length - 1, KEY_BYTES - 2);
    free(job);
}

/* Sets rank and size. */
static void read_variables(void) {
    const Launcher *l = find_launcher();
    if (!l) return;
    comm_size = require_variable(l->size, 1, RANKS_MAX);
    comm_rank = require_variable(l->rank, 0, comm_size - 1);
    launch_local_rank = require_variable(l->local_rank, 0, comm_size - 1);
    if (comm_size > 1) read_address(l);
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

static void signal_ranks(const pid_t *pids, int count, int signal) {
    for (int i = 0; i < count; i++) if (pids[i]) kill(pids[i], signal);
}

/* Waits for all processes, passes signals on, and exits. After a failure the ranks end each other; the kernel kills
   those that are left when this process exits (PR_SET_PDEATHSIG). */
__attribute__((noreturn)) static void wait_for_ranks(pid_t *pids, int count, const sigset_t *signals) {
    char killed[128] = "";
    double end_s = INFINITY;
    int code = 0;
    for (int left = count, status; left && seconds_now() < end_s; ) {
        const int signal = sigtimedwait(signals, NULL, &(struct timespec){ .tv_sec = 1 });
        if (signal > 0 && signal != SIGCHLD) signal_ranks(pids, count, signal);
        for (int i = 0; i < count; i++) {
            if (!pids[i] || waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
            const int result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            pids[i] = 0;
            left--;
            if (result && (!code || code == EXIT_TRY_AGAIN)) code = result;
            if (!result || result == EXIT_TRY_AGAIN || end_s < INFINITY) continue;
            end_s = seconds_now() + KILL_SECONDS;
            if (WIFEXITED(status)) signal_ranks(pids, count, SIGTERM);      /* those that are not connected, too */
            else snprintf(killed, sizeof killed, "rank %d was killed by signal %d (%s)", i, WTERMSIG(status),
                          strsignal(WTERMSIG(status)));
        }
    }
    if (*killed && !atomic_exchange(root.reported, 1)) print_line(stderr, "%s", killed);
    exit(code);
}

/* Returns in the children. They inherit the key, and rank 0 its socket: no other program can take the port. */
static void start_processes(int count) {
    static const int passed_on[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
    pid_t pids[RANKS_MAX];
    sigset_t signals, before;
    rendezvous_listen();
    REQUIRE(getrandom(root.key, KEY_BYTES, 0) == KEY_BYTES, "--gpus %d: %s", count, strerror(errno));
    sigemptyset(&signals);
    for (int i = 0; i < 5; i++) sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        REQUIRE(pids[i] >= 0, "--gpus %d: cannot start process %d: %s", count, i, strerror(errno));
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        comm_rank = launch_local_rank = i;
        comm_size = count;
        if (i) close(root.listener), root.listener = -1;
        return;
    }
    close(root.listener);
    wait_for_ranks(pids, count, &signals);
}

/* ---- The start */

void launch_start(const Settings *s) {
    signal(SIGCHLD, SIG_DFL);       /* with an inherited SIG_IGN waitpid fails with ECHILD */
    int count = processes_wanted(s->gpus);
    if (!s->profile) stop_open();      /* a profile has nothing to save: a signal ends it */
    root.reported = mmap(NULL, sizeof *root.reported, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(root.reported != MAP_FAILED, "shared memory: %s", strerror(errno));
    read_variables();
    REQUIRE(count == 1 || comm_size == 1, "--gpus %s: this is one of %d processes that %s has started: want one GPU "
            "each, without --gpus", s->gpus, comm_size, find_launcher()->name);
    int tasks = integer_of(value_of("SLURM_NTASKS", ""), INT_MAX);
    if (count == 1 && tasks > 1 && !find_launcher())
        print_line(stderr, "warning: SLURM_NTASKS is %d, but srun did not start this process: it trains alone", tasks);
    const char *refusal = count > 1 || comm_size > 1 ? comm_refuse() : NULL;
    REQUIRE(!refusal, "--gpus %d: %s", count > 1 ? count : comm_size, refusal);
    if (count > 1 && s->dry_run) comm_size = count;
    else if (count > 1)          start_processes(count);
    REQUIRE(!comm_rank || freopen("/dev/null", "w", stdout), "/dev/null: %s", strerror(errno));
    root.join_s = (double)s->rendezvous_timeout;
    root.silence_s = (double)s->comm_timeout;
    if (comm_size > 1 && !s->dry_run) rendezvous_open();
}
