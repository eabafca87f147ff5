#include "rendezvous.h"
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../base/files.h"
#include "../base/os.h"
#include "../base/terminal.h"
#include "sockets.h"

/* The states of a start:

     rank 1, 2, ..                                  rank 0

     CONNECTING ---- HELLO key, identity, ------>   candidate --- 5 s without a HELLO ---> closed
         ^  |        signature                          |-------- another key: REFUSED --> closed, the other rank ends
         |  |                                           |-------- another size or signature, or a rank twice:
         +--+ closed: again, until                      |         the run ends
         |    --rendezvous-timeout                      v
     ACCEPTED <----- ACCEPTED identity ----------   peer; from here on heartbeats both ways
         |                                              |
         |---------- DATA, as HELLO ------------>   the socket of the rank for comm_open (comm_uses_sockets)
         |                                              |-------- --rendezvous-timeout: names the missing ranks
         |                                              v
     JOINED <------- WELCOME id -----------------   all ranks have joined

   Until then the main thread calls watch_peers, afterwards heartbeat_thread does, until all ranks have called
   heartbeat_end. A peer whose connection is closed or silent ends the run in all states but CONNECTING.
   END: the run ends on all ranks. To rank 0 it has the reason, which rank 0 prints; from rank 0 the exit code alone. */
typedef enum { HELLO = 1, DATA, REFUSED, ACCEPTED, WELCOME, HEARTBEAT, END } Kind;

/* CANDIDATES: maximum number of connections without a HELLO; one more closes the oldest. OTHER_FILES: a trainer has
   fewer open at a time. */
enum { CANDIDATES = 64, OTHER_FILES = 32, HELLO_SECONDS = 5, TICK_MS = 100, END_SECONDS = 3, REPORT_SECONDS = 5 };

typedef struct { char host[64]; int32_t rank, pid; } Identity;
typedef struct { char key[KEY_BYTES]; Identity who; } Hello;        /* text of HELLO and DATA, before the signature */

typedef struct {
    Connection c;
    Identity   who;                 /* pid 0: not known */
    Message    last;                /* the last HEARTBEAT */
} Peer;

Rendezvous         root = { .listener = -1 };
static Identity    identity;        /* pid 0: rendezvous_open was not called, this process is alone */
static char       *signature;       /* number of ranks, settings_signature */
static Peer       *peers;           /* on rank 0 by rank, then the candidates; elsewhere rank 0 only */
static int        *sockets;         /* by rank, as peers; -1 = none */
static int         peer_count, connection_count;
static int         is_joined;
static char        comm_id[COMM_ID_BYTES];
static char        where[sizeof root.host + 10];      /* "host:port" of rank 0 */
static char        why[160];        /* why the last connection failed, or on rank 0 was refused, for messages */

static atomic_llong steps_done;
static atomic_int   is_leaving, is_busy;
static pthread_t    thread;

/* "rank 1 (host b, ...)". Two results are valid at a time. */
static const char *name_of(const Identity *who) {
    static _Thread_local char texts[2][128];
    static _Thread_local int turn;
    char *text = texts[turn ^= 1];
    snprintf(text, 128, "rank %d (host %.63s, pid %d)", (int)who->rank, who->host, (int)who->pid);
    return text;
}

/* Appends ", 3" to a list, or ", ..." once when it is full. */
static void list_rank(char list[200], int rank) {
    const size_t length = strlen(list);
    if (length < 180)                 snprintf(list + length, 20, "%s%d", length ? ", " : "", rank);
    else if (list[length - 1] != '.') strcat(list, ", ...");
}

static void send_text(int fd, Kind kind, const void *text, size_t bytes) {
    message_send(fd, (Message){ .kind = kind, .bytes = (uint32_t)bytes }, text);
}

/* ---- The early end of a run */

static void exit_now(int signal) { (void)signal; _exit(1); }

static void send_end(int is_stop, const char *message) {
    const Message end = { .kind = END, .is_stop = (uint8_t)is_stop, .bytes = (uint32_t)strlen(message) };
    for (int i = 0; i < peer_count; i++) message_send(peers[i].c.fd, end, message);
}

/* Ends the run on all ranks, with exit code 1 or EXIT_TRY_AGAIN. The first message counts; "": it has been printed. */
__attribute__((noreturn, format(printf, 2, 3))) static void end_run(int code, const char *format, ...) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    const int is_stop = code == EXIT_TRY_AGAIN, fd = is_stop ? STDOUT_FILENO : STDERR_FILENO;
    char message[FAIL_LENGTH + 200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    make_printable(message);
    if (comm_rank) send_end(is_stop, message);
    /* heartbeat_thread ends this process when rank 0 has printed the message and answers with END */
    if (comm_rank && is_joined && !pthread_equal(pthread_self(), thread)) sleep(END_SECONDS);
    pthread_mutex_lock(&once);                  /* never unlocked */
    signal(SIGALRM, exit_now);                  /* if comm_abort hangs */
    alarm(END_SECONDS);
    if (*message && !(is_stop && comm_rank) && !atomic_exchange(root.reported, 1))      /* rank 0 alone has stdout */
        dprintf(fd, "%s%s%s\n", isatty(STDOUT_FILENO) ? "\n" : "", is_stop ? "" : "train_gpt: ", message);
    if (!comm_rank) send_end(is_stop, "");
    stop_remove();
    if (!is_stop) comm_abort();
    usleep(100 * 1000);         /* else connections could be reset before END is read */
    _exit(is_stop ? EXIT_TRY_AGAIN : 1);
}

/* The fail_hook, in any thread. If the cause is another rank's death, heartbeat_thread finds that first. */
static void end_with_failure(const char *message) {
    if (is_joined && !pthread_equal(pthread_self(), thread)) usleep(500 * 1000);
    end_run(1, "%s: %s", name_of(&identity), message);
}

static void *end_with_comm_error(void *error) {
    end_with_failure(error);
    return NULL;
}

/* The stop_hook: this rank has printed why, which only rank 0's stdout shows. */
static void end_with_stop(void) {
    if (!comm_rank) end_run(EXIT_TRY_AGAIN, "%s", "");
    end_run(EXIT_TRY_AGAIN, "%s has stopped, by a signal or its time limit", name_of(&identity));
}

static void exit_if_stopped(void) {
    const char *why = stop_requested();
    if (why) end_run(EXIT_TRY_AGAIN, "%s: %s while the ranks of the run were connecting; nothing was written",
                     name_of(&identity), why);
}

/* ---- New connections of rank 0 */

/* Constant time: the duration does not depend on where two keys differ. */
static int same_key(const char *a, const char *b) {
    volatile unsigned char differ = 0;
    for (int i = 0; i < KEY_BYTES; i++) differ |= (unsigned char)(a[i] ^ b[i]);
    return !differ;
}

/* Fails at the first line in which a rank's signature differs from that of rank 0. */
static void compare_signatures(const char *theirs, const Identity *who) {
    size_t line = 0, i = 0;
    for (; signature[i] && signature[i] == theirs[i]; i++) if (signature[i] == '\n') line = i + 1;
    if (signature[i] == theirs[i]) return;
    const char *a = signature + line, *b = theirs + line;
    end_run(1, "rendezvous: %s has '%.*s', %s has '%.*s'; want the same on all ranks", name_of(&identity),
            (int)fmin(300, (double)strcspn(a, "\n")), a, name_of(who), (int)fmin(300, (double)strcspn(b, "\n")), b);
}

/* Handles the first message of a candidate: makes it a peer, or the socket of one. 0: to be closed. */
static int accept_peer(Connection *c) {
    Hello hello;
    if ((c->in.kind != HELLO && c->in.kind != DATA) || c->in.bytes < sizeof hello) return 0;
    memcpy(&hello, c->text, sizeof hello);
    if (!same_key(hello.key, root.key)) {
        const char *reason = root.is_secret ? "has another secret" : "belongs to another job, or has a secret";
        struct sockaddr_storage from;
        char address[64] = "?";
        getpeername(c->fd, (struct sockaddr *)&from, &(socklen_t){ sizeof from });
        getnameinfo((struct sockaddr *)&from, sizeof from, address, sizeof address, NULL, 0, NI_NUMERICHOST);
        snprintf(why, sizeof why, ": one from %s was refused, as it %s", address, reason);
        send_text(c->fd, REFUSED, reason, strlen(reason));
        return 0;
    }
    /* The key is right: errors from here on end the run. A rank without a slot takes slot 0, unused otherwise, to
       receive END. */
    const int rank = hello.who.rank, is_rank = rank > 0 && rank < comm_size;
    const int is_data = c->in.kind == DATA && is_rank && sockets[rank] < 0;
    Peer *p = &peers[is_rank && peers[rank].c.fd < 0 ? rank : 0];
    if (is_data) sockets[rank] = c->fd, free(c->text);
    else         *p = (Peer){ .c = *c, .who = hello.who };
    *c = (Connection){ .fd = -1 };
    if (is_data) return 1;
    compare_signatures(p->c.text + sizeof hello, &p->who);
    if (p == peers)
        end_run(1, "rendezvous: %s and %s: want ranks 0 .. %d, each once", name_of(&p->who),
                name_of(is_rank ? &peers[rank].who : &identity), comm_size - 1);
    send_text(p->c.fd, ACCEPTED, &identity, sizeof identity);
    return 1;
}

static void accept_candidate(void) {
    int fd = socket_accept(root.listener);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        end_run(1, "rendezvous: rank 0 cannot accept a connection: %s; want a higher `ulimit -n`", strerror(errno));
    if (fd < 0) return;
    Peer *candidate = &peers[peer_count];           /* a free slot, else the oldest */
    for (Peer *p = candidate; p < peers + connection_count && candidate->c.fd >= 0; p++)
        if (p->c.fd < 0 || p->c.heard_s < candidate->c.heard_s) candidate = p;
    connection_close(&candidate->c);
    candidate->c = (Connection){ .fd = fd, .heard_s = seconds_now() };
}

/* ---- The heartbeat */

/* On rank 0: ends the run when a collective takes too long. Names the ranks that take no part in it; while one of them
   is busy, it has time, and is named once. */
static void check_collectives(double now) {
    static double busy_s;               /* when a rank was last busy outside of the collective */
    static int is_printed;
    double longest = 0;
    int64_t first = INT64_MAX, last = 0;
    int absent = 0, absent_rank = 0, busy = 0;
    char list[200] = "";
    for (int i = 0; i < peer_count; i++) {
        const Message *m = &peers[i].last;
        longest = fmax(longest, m->waits_s);
        first = m->step < first ? m->step : first;
        last = m->step > last ? m->step : last;
        if (!m->waits_s) list_rank(list, absent_rank = i), absent++, busy |= m->busy;
    }
    if (busy) busy_s = now;
    if (longest <= root.silence_s) return;
    const char *ranks = absent > 1 ? "ranks " : "";
    const char *who = absent == 1 ? name_of(absent_rank ? &peers[absent_rank].who : &identity) : list;
    if (busy && !is_printed++)
        print_line(stderr, "waiting for %s%s: at work on texts, samples or checkpoints", ranks, who);
    if (now <= busy_s + root.silence_s) return;
    end_run(1, "a collective has not ended for %.0f s, at steps %lld to %lld: %s%s%s; a longer pause needs a longer "
            "--comm-timeout", root.silence_s, (long long)first, (long long)last, absent ? "it waits for " : "", ranks,
            absent ? who : "all ranks take part, so the network between them fails");
}

static int copy_text(const Connection *c, void *to, size_t bytes) {
    return c->in.bytes == bytes && memcpy(to, c->text, bytes);
}

/* Handles a message of a peer. 0: not the protocol, another program. */
static int handle_message(Peer *p) {
    switch (p->c.in.kind) {
    case HEARTBEAT: p->last = p->c.in; return 1;
    case ACCEPTED:  return copy_text(&p->c, &p->who, sizeof p->who);
    case WELCOME:   return is_joined = copy_text(&p->c, comm_id, sizeof comm_id);
    case END:       end_run(p->c.in.is_stop ? EXIT_TRY_AGAIN : 1, "%s", p->c.text);
    case REFUSED:
        end_run(1, "rendezvous: rank 0 at %s refuses rank %d on host %s, as it %s; want the same TRAIN_GPT_SECRET, or "
                "another MASTER_PORT", where, comm_rank, identity.host, p->c.text);
    }
    return 0;
}

/* Ends the run, or before ACCEPTED closes the connection, when p's is closed or silent. */
static void check_peer(Peer *p, int is_closed, double heard_s) {
    const double limit_s = is_joined ? root.silence_s : fmax(root.silence_s, 3);
    const long long step = steps_done;
    if (is_closed && !is_joined) exit_if_stopped();     /* the signal ended that rank, too */
    if (is_closed && p->who.pid)
        end_run(1, "%s was killed or crashed at step %lld; look for its last output, and for the out-of-memory killer "
                "in dmesg there", name_of(&p->who), step);
    if (is_closed) {
        snprintf(why, sizeof why, ": it closes the connection, or another program answers");
        connection_close(&p->c);
        usleep(TICK_MS * 1000);
    } else if (p->who.pid && seconds_now() > heard_s + limit_s)
        end_run(1, "%s has not answered for %.0f s at step %lld: it is stopped, or its host or network is down",
                name_of(&p->who), limit_s, step);
}

/* One round of TICK_MS at most: receives, checks, and sends heartbeats. Returns 1 when all ranks are leaving. */
static int watch_peers(void) {
    static double tick_s, resumed_s, sent_s;
    static int is_failing;
    static struct pollfd *polls;
    int is_over = 0;
    if (!polls) {
        polls = host_alloc((size_t)(connection_count + 1) * sizeof *polls, "the heartbeat");
        tick_s = resumed_s = seconds_now();
    }
    for (int i = 0; i < connection_count; i++) polls[i] = (struct pollfd){ peers[i].c.fd, POLLIN, 0 };
    polls[connection_count] = (struct pollfd){ root.listener, POLLIN, 0 };
    poll(polls, (nfds_t)connection_count + 1, TICK_MS);
    const double now = seconds_now();
    /* after SIGSTOP and SIGCONT, or a suspended virtual machine: silence counts from here */
    if (now > tick_s + root.silence_s / 2) resumed_s = now;
    tick_s = now;
    for (int i = 0; i < connection_count; i++) {
        Peer *p = &peers[i];
        int is_closed = 0, got;
        while (p->c.fd >= 0 && polls[i].revents && !is_closed && (got = message_receive(&p->c)))
            is_closed = got < 0 || !(i < peer_count ? handle_message(p) : accept_peer(&p->c));
        is_over = comm_rank && p->last.leaving;     /* rank 0 may close the connection now */
        if (is_over || p->c.fd < 0) continue;
        if (i < peer_count) check_peer(p, is_closed, fmax(p->c.heard_s, resumed_s));
        else if (is_closed || now > p->c.heard_s + HELLO_SECONDS) connection_close(&p->c);
    }
    if (polls[connection_count].revents) accept_candidate();
    if (comm_error() && !is_failing++)
        pthread_create(&(pthread_t){0}, NULL, end_with_comm_error, (void *)comm_error());
    if (now < sent_s + fmin(1, root.silence_s / 4) && !is_leaving) return is_over;
    sent_s = now;
    double age = 0;
    Message m = { .kind = HEARTBEAT, .leaving = is_leaving, .busy = is_busy, .step = steps_done };
    if (!is_leaving && comm_pending(&age) > 0) m.waits_s = fmin(age, now - resumed_s);
    for (int i = 1; i < peer_count; i++) m.leaving &= peers[i].last.leaving;        /* on rank 0 */
    for (int i = 0; i < peer_count; i++) if (peers[i].who.pid) message_send(peers[i].c.fd, m, NULL);
    if (comm_rank) return is_over;
    peers->last = m;
    check_collectives(now);
    return (int)m.leaving;
}

static void *heartbeat_thread(void *unused) {
    while (!watch_peers()) { }
    return unused;
}

void heartbeat_note(int64_t step) { steps_done = step; }
void heartbeat_busy(int busy)     { is_busy = busy; }

void heartbeat_end(void) {
    if (!identity.pid) return;
    is_leaving = 1;
    pthread_join(thread, NULL);
    fail_hook = NULL;
    stop_hook = NULL;
}

/* ---- The start */

/* Connections and the trainer's files may be more than the soft limit, usually 1024. */
static void raise_file_limit(void) {
    const rlim_t want = (rlim_t)(comm_size * (1 + comm_uses_sockets) + CANDIDATES + OTHER_FILES);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    REQUIRE(limit.rlim_max >= want, "%d ranks: rank 0 has up to %d open files, the limit is %d; want `ulimit -n %d`",
            comm_size, (int)want, (int)limit.rlim_max, (int)want);
    if (limit.rlim_cur < want) limit.rlim_cur = want;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void rendezvous_open(void) {
    identity = (Identity){ .rank = comm_rank, .pid = (int32_t)getpid() };
    gethostname(identity.host, sizeof identity.host - 1);
    snprintf(where, sizeof where, strchr(root.host, ':') ? "[%s]:%d" : "%s:%d", root.host, root.port);
    signal(SIGPIPE, SIG_IGN);       /* a closed stdout must not end rank 0 without a message */
    fail_hook = end_with_failure;
    if (!comm_rank) raise_file_limit();
}

/* Connects to rank 0 and sends the message; -1: failed, sets why. */
static int connect_as(Kind kind) {
    static struct { Hello hello; char signature[TEXT_MAX]; } text;
    char error[128];
    const int fd = socket_connect(root.host, root.port, error);
    text.hello.who = identity;
    memcpy(text.hello.key, root.key, sizeof root.key);
    strcpy(text.signature, signature);
    snprintf(why, sizeof why, ": %s", fd < 0 ? error : "a program that does not answer listens there");
    if (fd >= 0) send_text(fd, kind, &text, sizeof text.hello + strlen(signature));
    return fd;
}

/* Sets what keeps the run from starting, "" = rank 0 is to answer. 0: all ranks have joined. */
static int is_waiting(char text[600]) {
    char list[200] = "";
    int count = 0;
    *text = 0;
    if (comm_rank && !peers->who.pid)
        snprintf(text, 600, "rank %d on host %s did not reach rank 0 at %s", comm_rank, identity.host, where);
    if (comm_rank) return !is_joined;
    for (int i = 1; i < comm_size; i++)
        if (peers[i].c.fd < 0 || (comm_uses_sockets && sockets[i] < 0)) list_rank(list, i), count++;
    snprintf(text, 600, "rank%s %s of %d did not connect to %s", count > 1 ? "s" : "", list, comm_size, where);
    return count;
}

static void connect_ranks(void) {
    const double start_s = seconds_now();
    int is_printed = 0;
    for (char text[600]; is_waiting(text); ) {
        const double waited_s = *text ? seconds_now() - start_s : 0;
        if (waited_s > root.join_s)
            end_run(1, "rendezvous: %s within %.0f s%s; look for errors there, or a firewall", text, root.join_s, why);
        if (waited_s > REPORT_SECONDS && !is_printed++) print_line(stderr, "%s so far%s", text, why);
        if (comm_rank && peers->c.fd < 0) peers->c.fd = connect_as(HELLO);
        if (comm_rank && peers->who.pid && comm_uses_sockets && *sockets < 0) *sockets = connect_as(DATA);
        watch_peers();
        if (!is_joined) exit_if_stopped();      /* after WELCOME the ranks stop together */
    }
    if (comm_rank) return;
    close(root.listener);
    root.listener = -1;
    for (int i = peer_count; i < connection_count; i++) connection_close(&peers[i].c);
    connection_count = peer_count;
    comm_make_id(comm_id);              /* after: its failure ends the other ranks, too */
    is_joined = 1;
    for (int i = 1; i < comm_size; i++) send_text(peers[i].c.fd, WELCOME, comm_id, sizeof comm_id);
}

void rendezvous_join(const Option *options) {
    sigset_t all, before;
    if (!identity.pid) return;
    char *settings = settings_signature(options);
    signature = format_string("ranks = %d\n%s", comm_size, settings);
    free(settings);
    REQUIRE(strlen(signature) < TEXT_MAX - sizeof(Hello), "rendezvous: the options have %zu bytes, want at most %zu",
            strlen(signature), TEXT_MAX - sizeof(Hello));
    peer_count = comm_rank ? 1 : comm_size;
    connection_count = peer_count + (comm_rank ? 0 : CANDIDATES);
    peers = host_alloc((size_t)connection_count * sizeof *peers, "the rendezvous");
    sockets = host_alloc((size_t)peer_count * sizeof *sockets, "the rendezvous");
    for (int i = 0; i < connection_count; i++) peers[i].c.fd = -1;
    for (int i = 0; i < peer_count; i++) sockets[i] = -1;
    if (!comm_rank && root.listener < 0) root.listener = socket_listen(root.port, 0);
    connect_ranks();
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);          /* signals are for the main thread */
    int error = pthread_create(&thread, NULL, heartbeat_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) end_run(1, "cannot start the thread of the heartbeat: %s", strerror(error));
    stop_hook = end_with_stop;
    free(signature);
    comm_open(comm_rank, comm_size, comm_id, sockets);
}
