#include "launch.h"
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>

/* The states of a start:

     rank 1, 2, ..                                  rank 0

     CONNECTING ---- HELLO key, signature ------>   candidate -------- another key, or 64 newer ones: closed
         ^  |                                           |-------- another signature, or a rank twice: the run ends
         +--+ closed: again                             v
     ACCEPTED <----- HEARTBEAT ------------------   peer; from here on heartbeats both ways
         |---------- DATA key ------------------>       |         its socket for comm_open (comm_uses_sockets)
         v                                              v
     JOINED <------- WELCOME id -----------------   all ranks have joined

   Until then the main thread calls watch_ranks, afterwards heartbeat_thread does, until all ranks have called
   heartbeat_end. A rank that closes its connection or is silent ends the run in all states but CONNECTING.
   END, STOP: the run ends on all ranks, with exit code 1 or EXIT_TRY_AGAIN. The text is the reason, to be printed; ""
   from rank 0, which has printed it. */
typedef enum { HELLO = 1, DATA, HEARTBEAT, WELCOME, END, STOP } Kind;

/* CANDIDATES: maximum number of connections without a HELLO; one more closes the oldest. OTHER_FILES: a trainer has
   fewer open at a time. KILL_SECONDS: from a failure to the end of the ranks that do not end by themselves. */
enum { RANKS_MAX = 4096, CANDIDATES = 64, OTHER_FILES = 32, TICK_MS = 100, END_SECONDS = 3, KILL_SECONDS = 4,
       REPORT_SECONDS = 5, MAGIC = 0x54504754, KEY_BYTES = 128, TEXT_MAX = 1 << 20, LIST_MAX = 300 };

/* A message is this and its bytes of text. All ranks run the same build, so both sides have this layout. */
typedef struct {
    uint32_t magic, kind, bytes;
    int32_t  rank;                  /* the sender's */
    char     name[112];             /* "rank 1 (host b, pid 4)" */
    uint8_t  busy, leaving;         /* leaving: heartbeat_end was called, from rank 0: by all */
    double   waits_s;               /* age of the oldest pending collective */
} Message;

typedef struct {
    int     fd;                     /* -1 = none */
    double  heard_s;                /* time of the last message, else of the connection; 0 = no connection */
    Message in, last;               /* the message being received; the last complete one, kind 0 = none */
    char   *text;                   /* its text, which ends with a 0 */
    size_t  got;                    /* bytes of `in` and its text */
} Connection;

int launch_local_rank;

static struct {                     /* set by launch_start */
    char        host[256];          /* rank 0: its name, IPv4 or IPv6 address */
    int         port;
    int         listener;           /* rank 0: a listening socket; -1 = none yet */
    char        key[KEY_BYTES];     /* a secret or the job's name, zero-padded: the same on all ranks */
    double      join_s, silence_s;  /* --rendezvous-timeout, --comm-timeout */
    atomic_int *reported;           /* set by the first process that prints why the run ends; shared on one machine */
} root = { .listener = -1 };
static Message      self;           /* this rank, as in each message that it sends; magic 0: it is alone */
static Connection   links[RANKS_MAX + CANDIDATES];      /* on rank 0 by rank, then candidates; elsewhere rank 0 only */
static int          sockets[RANKS_MAX];                 /* for comm_open; -1 = none */
static int          peer_count, link_count;
static int          is_joined;
static char        *hello;          /* text of HELLO and DATA: the key, then number of ranks and settings_signature */
static char         comm_id[COMM_ID_BYTES];
static char         why[200];       /* ": " and why the last connection failed, for messages */
static atomic_int   is_leaving, is_busy;
static pthread_t    thread;

/* Appends ", rank 3 (...)" to a list, or ", ..." once when it is full. */
static void list_rank(char list[LIST_MAX], int rank) {
    const size_t length = strlen(list);
    const char *name = length < LIST_MAX / 2 ? links[rank].last.name : "...";
    if (!length || list[length - 1] != '.')
        snprintf(list + length, LIST_MAX - length, "%s%s", length ? ", " : "", name);
}

/* ---- Connections and messages */

/* A socket that is connected to root.port of host, or listens there (NULL = on all addresses); connections that it
   accepts inherit its options. -1: failed, sets why. */
static int open_socket(const char *host, int family, int listens) {
    const struct addrinfo hints = { .ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    const int type = SOCK_STREAM | SOCK_CLOEXEC | (listens ? SOCK_NONBLOCK : 0), on = 1;
    const struct timeval limit = { .tv_sec = 2 };       /* for connect, too */
    struct addrinfo *list;
    char port[16];
    int fd = -1;
    snprintf(port, sizeof port, "%d", root.port);
    const int error = getaddrinfo(host, port, &hints, &list);
    if (error) snprintf(why, sizeof why, ": %s", gai_strerror(error));
    for (struct addrinfo *a = error ? NULL : list; a; a = a->ai_next) {
        fd = socket(a->ai_family, type, 0);
        if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on)
            && !setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)
            && !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit)
            && !(listens ? bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, SOMAXCONN)
                         : connect(fd, a->ai_addr, a->ai_addrlen))) break;
        snprintf(why, sizeof why, ": %s", errno == EINPROGRESS ? "no answer" : strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    if (!error) freeaddrinfo(list);
    return fd;
}

/* Sets root.listener, on root.port; port 0: on a free port of 127.0.0.1, and sets host and port. */
static void start_listening(void) {
    const char *local = root.port ? NULL : "127.0.0.1";
    struct sockaddr_in address;
    if (!local) root.listener = open_socket(NULL, AF_INET6, 1);     /* can be disabled */
    if (root.listener < 0) root.listener = open_socket(local, AF_INET, 1);
    REQUIRE(root.listener >= 0, "rendezvous: rank 0 cannot listen on port %d%s; want a free port, by another "
            "MASTER_PORT on all ranks", root.port, why);
    if (!local) return;
    getsockname(root.listener, (struct sockaddr *)&address, &(socklen_t){ sizeof address });
    root.port = ntohs(address.sin_port);
    strcpy(root.host, local);
}

/* Waits at most 2 s, without a text not at all. Errors show when something is received. */
static void send_message(int fd, Kind kind, const void *text, size_t bytes) {
    Message m = self;
    m.kind = kind;
    m.bytes = (uint32_t)bytes;
    struct iovec parts[] = { { &m, sizeof m }, { (void *)text, bytes } };
    const int flags = MSG_NOSIGNAL | (bytes ? 0 : MSG_DONTWAIT);        /* a stopped rank must not delay heartbeats */
    (void)!sendmsg(fd, &(struct msghdr){ .msg_iov = parts, .msg_iovlen = 2 }, flags);
}

/* 1: a message is complete in c->last and c->text; 0: not yet; -1: closed, or not of this protocol. */
static int receive_message(Connection *c) {
    const size_t head = sizeof c->in;
    for (size_t all; c->got < (all = c->got < head ? head : head + c->in.bytes); ) {
        char *to = c->got < head ? (char *)&c->in + c->got : c->text + c->got - head;
        const ssize_t n = recv(c->fd, to, all - c->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (n <= 0) return -1;
        c->got += (size_t)n;
        if (c->got != head) continue;
        if (c->in.magic != MAGIC || c->in.bytes > TEXT_MAX || !(c->text = realloc(c->text, c->in.bytes + 1))) return -1;
        c->text[c->in.bytes] = 0;
    }
    c->got = 0;
    c->in.name[sizeof c->in.name - 1] = 0;
    c->last = c->in;
    c->heard_s = seconds_now();
    return 1;
}

static void close_connection(Connection *c) {
    if (c->fd >= 0) close(c->fd);
    free(c->text);
    *c = (Connection){ .fd = -1 };
}

/* ---- The early end of a run */

static void exit_now(int signal) { (void)signal; _exit(1); }

static int outside_of_heartbeat(void) { return is_joined && !pthread_equal(pthread_self(), thread); }

/* Ends the run on all ranks. kind: END, STOP. The first message counts; "": it has been printed. */
__attribute__((noreturn, format(printf, 2, 3))) static void end_run(Kind kind, const char *format, ...) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    const int is_stop = kind == STOP;
    char message[FAIL_LENGTH + 200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    make_printable(message);
    for (int i = 0; i < link_count && comm_rank; i++) send_message(links[i].fd, kind, message, strlen(message));
    /* heartbeat_thread ends this process when rank 0 has printed the message and answers */
    if (comm_rank && outside_of_heartbeat()) sleep(END_SECONDS);
    pthread_mutex_lock(&once);                  /* never unlocked */
    signal(SIGALRM, exit_now);                  /* if comm_abort hangs */
    alarm(END_SECONDS);
    if (*message && !(is_stop && comm_rank) && !atomic_exchange(root.reported, 1))      /* rank 0 alone has stdout */
        dprintf(is_stop ? STDOUT_FILENO : STDERR_FILENO, "%s%s\n", is_stop ? "" : "train_gpt: ", message);
    for (int i = 0; i < link_count && !comm_rank; i++) send_message(links[i].fd, kind, NULL, 0);
    if (!is_stop) comm_abort();
    usleep(100 * 1000);         /* else connections could be reset before END is read */
    _exit(is_stop ? EXIT_TRY_AGAIN : 1);
}

/* The fail_hook, in any thread. If the cause is another rank's death, heartbeat_thread finds that first. */
static void end_with_failure(const char *message) {
    if (outside_of_heartbeat()) usleep(500 * 1000);
    end_run(END, "%s: %s", self.name, message);
}

static void *end_with_comm_error(void *error) {
    end_with_failure(error);
    return NULL;
}

/* The stop_hook: this rank has printed why, which only rank 0's stdout shows. */
static void end_with_stop(void) {
    end_run(STOP, "%s%s", comm_rank ? self.name : "", comm_rank ? " has stopped, by a signal" : "");
}

static void exit_if_stopped(void) {
    const char *stop = stop_requested();
    if (stop) end_run(STOP, "%s: %s while the ranks of the run were connecting; nothing was written", self.name,
                      stop);
}

/* ---- New connections of rank 0 */

/* Fails at the first line in which the signature of a HELLO differs from that of rank 0. */
static void compare_signatures(const Message *m, const char *text) {
    const char *ours = hello + KEY_BYTES, *theirs = text + KEY_BYTES, *a = ours, *b = theirs;
    for (; *ours && *ours == *theirs; ours++, theirs++) if (*ours == '\n') a = ours + 1, b = theirs + 1;
    if (*ours != *theirs)
        end_run(END, "rendezvous: %s has '%.*s', %s has '%.*s'; want the same on all ranks", self.name,
                (int)fmin(300, (double)strcspn(a, "\n")), a, m->name, (int)fmin(300, (double)strcspn(b, "\n")), b);
}

/* Handles the first message of a candidate: makes it a peer, or the socket of one. 0: to be closed. */
static int accept_rank(Connection *c) {
    const Message *m = &c->last;
    const int rank = m->rank, is_rank = rank > 0 && rank < comm_size;
    if ((m->kind != HELLO && m->kind != DATA) || m->bytes < KEY_BYTES) return 0;
    if (memcmp(c->text, root.key, KEY_BYTES)) {
        snprintf(why, sizeof why, ": %s has another secret or belongs to another job", m->name);
        return 0;
    }
    if (m->kind == DATA && is_rank && sockets[rank] < 0) {
        sockets[rank] = c->fd;
        c->fd = -1;
        return 0;
    }
    compare_signatures(m, c->text);
    if (!is_rank || links[rank].fd >= 0)
        end_run(END, "rendezvous: %s and %s: want ranks 0 .. %d, each once", m->name,
                is_rank ? links[rank].last.name : self.name, comm_size - 1);
    send_message(c->fd, HEARTBEAT, NULL, 0);
    links[rank] = *c;
    *c = (Connection){ .fd = -1 };
    return 1;
}

static void accept_connection(void) {
    Connection *c = &links[peer_count];             /* a free one, else the oldest */
    for (Connection *other = c; other < links + link_count; other++) if (other->heard_s < c->heard_s) c = other;
    close_connection(c);
    c->fd = accept4(root.listener, NULL, NULL, SOCK_CLOEXEC);
    c->heard_s = c->fd < 0 ? 0 : seconds_now();
}

/* ---- The heartbeat */

/* On rank 0: ends the run when a collective takes too long. Names the ranks that take no part in it; while one of them
   is busy, it has time, and is named once. */
static void check_collectives(double now) {
    static double busy_s;               /* when a rank was last busy outside of the collective */
    static int is_printed;
    double longest = 0;
    int busy = 0;
    char list[LIST_MAX] = "";
    for (int i = 0; i < peer_count; i++) {
        const Message *m = &links[i].last;
        longest = fmax(longest, m->waits_s);
        if (!m->waits_s) list_rank(list, i), busy |= m->busy;
    }
    if (busy) busy_s = now;
    if (longest <= root.silence_s) return;
    if (busy && !is_printed++) print_line(stderr, "waiting for %s: at work on texts, samples or checkpoints", list);
    if (now <= busy_s + root.silence_s) return;
    end_run(END, "a collective has not ended for %.0f s: %s%s; a longer pause needs a longer --comm-timeout",
            root.silence_s, *list ? "it waits for " : "",
            *list ? list : "all ranks take part, so the network between them fails");
}

/* Handles a message of a peer. 0: not the protocol, another program. */
static int handle_message(const Connection *c) {
    const Kind kind = (Kind)c->last.kind;
    if (kind == END || kind == STOP) end_run(kind, "%s", c->text);
    if (kind == WELCOME && c->last.bytes == COMM_ID_BYTES) {
        memcpy(comm_id, c->text, COMM_ID_BYTES);
        is_joined = 1;
    }
    return kind == HEARTBEAT || kind == WELCOME;
}

/* Ends the run, or before ACCEPTED closes the connection, when that of a peer is closed or silent. */
static void check_peer(Connection *c, int is_closed, double heard_s) {
    const double limit_s = is_joined ? root.silence_s : fmax(root.silence_s, 3);
    if (is_closed && !is_joined) exit_if_stopped();     /* the signal ended that rank, too */
    if (is_closed && !c->last.kind) {
        close_connection(c);
        usleep(TICK_MS * 1000);
    } else if (is_closed)
        end_run(END, "%s was killed or crashed; look for its last output, and for the out-of-memory killer in dmesg "
                "there", c->last.name);
    else if (c->last.kind && seconds_now() > heard_s + limit_s)
        end_run(END, "%s has not answered for %.0f s: it is stopped, or its host or network is down", c->last.name,
                limit_s);
}

/* One round of TICK_MS at most: receives, checks, and sends heartbeats. Returns 1 when all ranks are leaving. */
static int watch_ranks(void) {
    static double tick_s, resumed_s, sent_s;
    static int is_failing;
    static struct pollfd polls[RANKS_MAX + CANDIDATES + 1];
    double age = 0;
    for (int i = 0; i < link_count; i++) polls[i] = (struct pollfd){ links[i].fd, POLLIN, 0 };
    polls[link_count] = (struct pollfd){ root.listener, POLLIN, 0 };
    poll(polls, (nfds_t)link_count + 1, TICK_MS);
    const double now = seconds_now();
    /* after SIGSTOP and SIGCONT, or a suspended virtual machine: silence counts from here */
    if (now > tick_s + root.silence_s / 2) resumed_s = now;
    tick_s = now;
    for (int i = 0; i < link_count; i++) {
        Connection *c = &links[i];
        int is_closed = 0, got;
        while (c->fd >= 0 && polls[i].revents && !is_closed && (got = receive_message(c)))
            is_closed = got < 0 || !(i < peer_count ? handle_message(c) : accept_rank(c));
        if (comm_rank && c->last.leaving) return 1;     /* rank 0 may close the connection now */
        if (i < peer_count && c->fd >= 0) check_peer(c, is_closed, fmax(c->heard_s, resumed_s));
        else if (is_closed)               close_connection(c);
    }
    if (polls[link_count].revents) accept_connection();
    if (comm_error() && !is_failing++)
        pthread_create(&(pthread_t){0}, NULL, end_with_comm_error, (void *)comm_error());
    if (now < sent_s + fmin(1, root.silence_s / 4) && !is_leaving) return 0;
    sent_s = now;
    self.leaving = (uint8_t)is_leaving;
    self.busy = (uint8_t)is_busy;
    self.waits_s = !is_leaving && comm_pending(&age) > 0 ? fmin(age, now - resumed_s) : 0;
    for (int i = 1; i < peer_count; i++) self.leaving &= links[i].last.leaving;         /* on rank 0 */
    for (int i = 0; i < peer_count; i++) send_message(links[i].fd, HEARTBEAT, NULL, 0);
    if (comm_rank) return 0;
    links->last = self;
    check_collectives(now);
    return self.leaving;
}

static void *heartbeat_thread(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);         /* signals are for the main thread */
    while (!watch_ranks()) { }
    return unused;
}

void heartbeat_busy(int busy) { is_busy = busy; }

void heartbeat_end(void) {
    if (!self.magic) return;
    is_leaving = 1;
    pthread_join(thread, NULL);
    fail_hook = NULL;
    stop_hook = NULL;
}

/* ---- The rendezvous */

/* From here on fail() in any thread ends the run on all ranks that have joined; its message is printed once. */
static void open_rendezvous(void) {
    struct rlimit limit;
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    self = (Message){ .magic = MAGIC, .rank = comm_rank };
    snprintf(self.name, sizeof self.name, "rank %d (host %s, pid %d)", comm_rank, host, (int)getpid());
    signal(SIGPIPE, SIG_IGN);       /* a closed stdout must not end rank 0 without a message */
    fail_hook = end_with_failure;
    if (comm_rank) return;
    /* connections and the trainer's files may be more than the soft limit, usually 1024 */
    const rlim_t want = (rlim_t)(comm_size * (1 + comm_uses_sockets) + CANDIDATES + OTHER_FILES);
    getrlimit(RLIMIT_NOFILE, &limit);
    REQUIRE(limit.rlim_max >= want, "%d ranks: rank 0 has up to %d open files, the limit is %d; want `ulimit -n %d`",
            comm_size, (int)want, (int)limit.rlim_max, (int)want);
    if (limit.rlim_cur < want) limit.rlim_cur = want;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Connects to rank 0 and sends HELLO or DATA; -1: failed, sets why. */
static int connect_as(Kind kind) {
    const int fd = open_socket(root.host, AF_UNSPEC, 0);
    if (fd < 0) return fd;
    snprintf(why, sizeof why, ": it does not accept this rank: want the same TRAIN_GPT_SECRET and job, or another "
             "MASTER_PORT");
    send_message(fd, kind, hello, KEY_BYTES + strlen(hello + KEY_BYTES));
    return fd;
}

/* The number of ranks that have not joined, this one or on rank 0 any, and their names. */
static int missing_ranks(char list[LIST_MAX]) {
    int count = comm_rank && !is_joined;
    snprintf(list, LIST_MAX, "%s", comm_rank ? self.name : "");
    for (int i = 1; i < peer_count; i++)
        if (links[i].fd < 0 || (comm_uses_sockets && sockets[i] < 0)) list_rank(list, i), count++;
    return count;
}

static void connect_ranks(void) {
    const double start_s = seconds_now();
    int is_printed = 0;
    for (char list[LIST_MAX]; missing_ranks(list); ) {
        const double waited_s = links->last.kind ? 0 : seconds_now() - start_s;      /* accepted: rank 0 counts */
        if (waited_s > root.join_s)
            end_run(END, "rendezvous: %s did not reach rank 0 at %s:%d within %.0f s%s; look for errors there, or a "
                    "firewall", list, root.host, root.port, root.join_s, why);
        if (waited_s > REPORT_SECONDS && !is_printed++)
            print_line(stderr, "%s did not reach rank 0 at %s:%d so far%s", list, root.host, root.port, why);
        if (comm_rank && links->fd < 0) links->fd = connect_as(HELLO);
        if (comm_rank && links->last.kind && comm_uses_sockets && *sockets < 0) *sockets = connect_as(DATA);
        watch_ranks();
        if (!is_joined) exit_if_stopped();      /* after WELCOME the ranks stop together */
    }
    if (comm_rank) return;
    close(root.listener);
    root.listener = -1;
    for (int i = peer_count; i < link_count; i++) close_connection(&links[i]);
    link_count = peer_count;
    comm_make_id(comm_id);              /* after: its failure ends the other ranks, too */
    is_joined = 1;
    for (int i = 1; i < comm_size; i++) send_message(links[i].fd, WELCOME, comm_id, COMM_ID_BYTES);
}

void rendezvous_join(const Option *options) {
    if (!self.magic) return;
    char *settings = settings_signature(options);
    hello = format_string("%*sranks = %d\n%s", KEY_BYTES, "", comm_size, settings);
    memcpy(hello, root.key, KEY_BYTES);
    peer_count = comm_rank ? 1 : comm_size;
    link_count = peer_count + (comm_rank ? 0 : CANDIDATES);
    for (int i = 0; i < link_count; i++) {
        links[i].fd = -1;
        snprintf(links[i].last.name, sizeof links[i].last.name, "rank %d", i);
    }
    memset(sockets, -1, sizeof sockets);
    if (!comm_rank && root.listener < 0) start_listening();
    connect_ranks();
    REQUIRE(!pthread_create(&thread, NULL, heartbeat_thread, NULL), "cannot start the thread of the heartbeat");
    stop_hook = end_with_stop;
    free(settings);
    free(hello);
    comm_open(comm_rank, comm_size, comm_id, sockets);
}

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
static void read_variables(const Launcher *l) {
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
    start_listening();
    REQUIRE(getrandom(root.key, KEY_BYTES, 0) == KEY_BYTES, "--gpus %d: %s", count, strerror(errno));
    sigemptyset(&signals);
    for (int i = 0; i < 5; i++) sigaddset(&signals, passed_on[i]);
    sigprocmask(SIG_BLOCK, &signals, &before);
    fflush(NULL);
    for (int i = 0, parent = (int)getpid(); i < count; i++) {
        pids[i] = fork();
        REQUIRE(pids[i] >= 0, "--gpus %d: cannot start process %d: %s", count, i, strerror(errno));
        if (pids[i]) continue;
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent) _exit(1);      /* it was killed before */
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
    const Launcher *launcher = NULL;
    for (int i = 0; i < LAUNCHERS && !launcher; i++) if (value_of(launchers[i].sign, NULL)) launcher = &launchers[i];
    const int count = processes_wanted(s->gpus), tasks = integer_of(value_of("SLURM_NTASKS", ""), INT_MAX);
    if (!s->profile) stop_open();      /* a profile has nothing to save: a signal ends it */
    root.reported = mmap(NULL, sizeof *root.reported, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(root.reported != MAP_FAILED, "shared memory: %s", strerror(errno));
    if (launcher) read_variables(launcher);
    REQUIRE(count == 1 || comm_size == 1, "--gpus %s: this is one of %d processes that %s has started: want one GPU "
            "each, without --gpus", s->gpus, comm_size, launcher->name);
    if (count == 1 && tasks > 1 && !launcher)
        print_line(stderr, "warning: SLURM_NTASKS is %d, but srun did not start this process: it trains alone", tasks);
    const char *refusal = count > 1 || comm_size > 1 ? comm_refuse() : NULL;
    REQUIRE(!refusal, "--gpus %d: %s", count > 1 ? count : comm_size, refusal);
    if (count > 1 && s->dry_run) comm_size = count;
    else if (count > 1)          start_processes(count);
    REQUIRE(!comm_rank || freopen("/dev/null", "w", stdout), "/dev/null: %s", strerror(errno));
    root.join_s = (double)s->rendezvous_timeout;
    root.silence_s = (double)s->comm_timeout;
    if (comm_size > 1 && !s->dry_run) open_rendezvous();
}
