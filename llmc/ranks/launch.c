#include "launch.h"
#include <ctype.h>
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
#include "../../kernels/comm.h"
#include "../../kernels/device.h"
#include "../base/files.h"
#include "../base/os.h"
#include "../base/terminal.h"
#include "rendezvous.h"
#include "sockets.h"

enum { RANKS_MAX = 4096, KILL_SECONDS = 5 };    /* KILL_SECONDS: from SIGTERM to SIGKILL, after a failure */

int launch_local_rank;

/* ---- Variables of launchers */

typedef struct {
    const char *sign;                               /* set in the processes that it starts */
    const char *name, *rank, *local_rank, *size;    /* what it is called, and its variables */
    const char *job;                                /* the same in all ranks, another in other jobs */
    const char *host_size;                          /* number of ranks on this host; NULL = not known */
    const char *nodes;                              /* list of hosts; NULL = none */
} Launcher;

#define TORCHRUN       "torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", NULL, NULL
#define MPIRUN(V, job) "mpirun", V "RANK", V "LOCAL_RANK", V "SIZE", job, V "LOCAL_SIZE", NULL
#define MPIEXEC(local_rank, host_size) "mpiexec", "PMI_RANK", local_rank, "PMI_SIZE", "SLURM_JOB_ID", host_size, NULL
#define SRUN(size)     "srun", "SLURM_PROCID", "SLURM_LOCALID", size, "SLURM_JOB_ID", NULL, "SLURM_JOB_NODELIST"

/* The first with its sign is the launcher: mpirun can start its processes by srun, and srun sets PMI_SIZE, too. */
static const Launcher launchers[] = {
    { "RANK",                 TORCHRUN },
    { "OMPI_COMM_WORLD_SIZE", MPIRUN("OMPI_COMM_WORLD_", "PMIX_NAMESPACE") },   /* Open MPI */
    { "MV2_COMM_WORLD_SIZE",  MPIRUN("MV2_COMM_WORLD_", "SLURM_JOB_ID") },      /* MVAPICH2 */
    { "MPI_LOCALRANKID",      MPIEXEC("MPI_LOCALRANKID", "MPI_LOCALNRANKS") },  /* MPICH, Intel MPI */
    { "SLURM_STEP_NUM_TASKS", SRUN("SLURM_STEP_NUM_TASKS") },
    { "SLURM_STEP_ID",        SRUN("SLURM_NTASKS") },       /* not in the process that runs a batch script, alone */
    { "PMI_SIZE",             MPIEXEC("PMI_RANK", "PMI_SIZE") },                /* others, on one host */
    { "LOCAL_RANK",           TORCHRUN },
    { "WORLD_SIZE",           TORCHRUN },
};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static int is_set(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

static int integer_of(const char *text, int max) {       /* -1 = none of 0 .. max */
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return !errno && isdigit((unsigned char)*text) && !*end && value <= max ? (int)value : -1;
}

static int require_variable(const char *name, int min, int max) {
    REQUIRE(is_set(name), "%s is not set, though other variables of several processes are: want RANK, LOCAL_RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none of them", name);
    int value = integer_of(getenv(name), max);
    REQUIRE(value >= min, "%s=%.100s: want an integer, %d .. %d", name, getenv(name), min, max);
    return value;
}

/* The first of "node[03-07,9],x": node03. Brackets can be anywhere in a name, and there can be several. */
static void read_first_host(const char *list) {
    const char *whole = list;
    size_t length = 0;
    for (; *list && *list != ',' && length < sizeof root.host - 1; list++) {
        if (*list != '[') {
            root.host[length++] = *list;
            continue;
        }
        const char *close = strchr(list, ']');
        REQUIRE(close, "node list of Slurm '%.100s': want a ] after [", whole);
        while (length < sizeof root.host - 1 && !strchr("-,]", *++list)) root.host[length++] = *list;
        list = close;
    }
    root.host[length] = 0;
    REQUIRE(length, "SLURM_JOB_NODELIST: want the hosts of the job");
}

static const char *value_of(const char *name, const char *otherwise) { return is_set(name) ? getenv(name) : otherwise; }

static const Launcher *find_launcher(void) {
    for (int i = 0; i < LAUNCHERS; i++) if (is_set(launchers[i].sign)) return &launchers[i];
    return NULL;
}

/* Sets host and port of rank 0, and as the key the job's name, else the process that started the ranks of one host. */
static void read_address(const Launcher *l) {
    const int has_address = is_set("MASTER_ADDR");
    const int is_one_host = l->host_size && (is_set(l->host_size) ? atoi(getenv(l->host_size)) == comm_size
                                                                  : launch_local_rank == comm_rank);
    char parent[16] = "";
    REQUIRE(has_address || l->nodes || is_one_host, "MASTER_ADDR is not set: want the host of rank 0%s",
            l->host_size ? ", as there are several" : "");
    if (has_address)   snprintf(root.host, sizeof root.host, "%s", getenv("MASTER_ADDR"));
    else if (l->nodes) read_first_host(value_of("SLURM_STEP_NODELIST", value_of(l->nodes, "")));
    else {
        strcpy(root.host, "127.0.0.1");
        snprintf(parent, sizeof parent, "%d", (int)getppid());
    }
    for (const char *c = root.host; *c; c++)
        REQUIRE(isgraph((unsigned char)*c), "MASTER_ADDR=%s: want a host's name or address", root.host);
    snprintf(root.key, sizeof root.key, "%s:%.80s.%.20s", l->name, value_of(l->job, value_of("SLURM_JOB_ID", parent)),
             l->nodes ? value_of("SLURM_STEP_ID", "") : "");
    /* jobs that share a machine have ports of their own, below the range that the system gives to connections */
    root.port = is_set("MASTER_PORT") || (has_address && !l->nodes) ? require_variable("MASTER_PORT", 1, 65534) + 1
               : 20000 + (int)(xxh64(root.key, strlen(root.key)) % 10000);
}

/* Sets rank and size. */
static void read_variables(void) {
    const Launcher *l = find_launcher();
    if (!l) return;
    comm_size = require_variable(l->size, 1, RANKS_MAX);
    comm_rank = require_variable(l->rank, 0, comm_size - 1);
    launch_local_rank = require_variable(l->local_rank, 0, comm_size - 1);
    REQUIRE(launch_local_rank <= comm_rank || l->host_size, "%s=%d with %s=%d: want at most that", l->local_rank,
            launch_local_rank, l->rank, comm_rank);        /* mpirun of Open MPI numbers them in another order */
    REQUIRE(!is_set("WORLD_SIZE") || integer_of(getenv("WORLD_SIZE"), INT_MAX) == comm_size,
            "WORLD_SIZE=%.100s, but %s=%d: unset WORLD_SIZE", getenv("WORLD_SIZE"), l->size, comm_size);
    if (comm_size > 1) read_address(l);
}

static void read_secret(void) {
    const char *secret = value_of("TRAIN_GPT_SECRET", NULL);
    if (!secret) return;
    REQUIRE(strlen(secret) < KEY_BYTES - 1, "the secret has %zu characters: want at most %d", strlen(secret),
            KEY_BYTES - 2);
    memset(root.key, 0, sizeof root.key);
    snprintf(root.key, sizeof root.key, "!%s", secret);       /* no job's name begins so */
    root.is_secret = 1;
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
    char killed[128] = "";
    double kill_at = 0;
    int code = 0;
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
                if (WIFSIGNALED(status))
                    snprintf(killed, sizeof killed, "rank %d (pid %d) was killed by signal %d (%s)", i, (int)pids[i],
                             WTERMSIG(status), strsignal(WTERMSIG(status)));
                for (int other = 0; other < count; other++)
                    if (pids[other] && other != i) kill(pids[other], SIGTERM), kill(pids[other], SIGCONT);
            }
            pids[i] = 0;
            left--;
        }
        if (kill_at && seconds_now() > kill_at)
            for (int i = 0; i < count; i++) if (pids[i]) kill(pids[i], SIGKILL);
    }
    if (*killed && !atomic_exchange(root.reported, 1)) print_line(stderr, "%s", killed);
    exit(code);
}

/* Returns in the children. They inherit the key, and rank 0 its socket: no other program can take the port. */
static void start_processes(int count) {
    static const int passed_on[] = { SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1 };
    pid_t pids[RANKS_MAX], parent = getpid();
    sigset_t signals, before;
    struct sockaddr_in address;
    root.listener = socket_listen(0, 1);
    REQUIRE(!getsockname(root.listener, (struct sockaddr *)&address, &(socklen_t){ sizeof address }) &&
            (root.is_secret || getrandom(root.key, KEY_BYTES, 0) == KEY_BYTES), "--gpus %d: %s", count,
            strerror(errno));
    root.port = ntohs(address.sin_port);
    strcpy(root.host, "127.0.0.1");
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
        if (i) close(root.listener);
        return;
    }
    close(root.listener);
    wait_for_ranks(pids, count, &signals);
}

/* ---- The start */

void launch_start(const Settings *s) {
    signal(SIGCHLD, SIG_DFL);       /* with an inherited SIG_IGN waitpid fails with ECHILD */
    int count = processes_wanted(s->gpus);
    if (!s->profile) stop_open(s->time_limit);      /* a profile has nothing to save: a signal ends it */
    root.reported = mmap(NULL, sizeof *root.reported, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(root.reported != MAP_FAILED, "shared memory: %s", strerror(errno));
    read_variables();
    read_secret();
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
