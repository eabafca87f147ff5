#include "rendezvous.h"
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../kernels/check.h"
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
   FAILED: why a rank fails, to rank 0. END: the run ends early; from rank 0, after it has printed why; to rank 0, after
   a stop outside of a training step. */
typedef enum { HELLO = 1, DATA, REFUSED, ACCEPTED, WELCOME, HEARTBEAT, FAILED, END } Kind;

/* CANDIDATES: maximum number of connections without a HELLO; one more closes the oldest. */
enum { CANDIDATES = 64, HELLO_SECONDS = 5, TICK_MS = 100, ABORT_SECONDS = 3, REPORT_SECONDS = 5 };

typedef struct { char host[64]; int32_t rank, size, pid; } Identity;
typedef struct { char key[KEY_BYTES]; Identity who; } Hello;        /* text of HELLO and DATA, before the signature */

typedef struct {
    Connection c;
    Identity   who;                 /* size 0: not known */
    Message    last;                /* the last HEARTBEAT */
} Peer;

static Rendezvous  self;
static Identity    identity;
static const char *signature;
static Peer       *peers;           /* on rank 0 by rank, then the candidates; elsewhere rank 0 only */
static int        *sockets;         /* by rank, as peers; -1 = none */
static int         peer_count, connection_count;
static int         is_joined;
static char        comm_id[COMM_ID_BYTES];
static char        where[sizeof self.host + 10];      /* "host:port" of rank 0 */
static char        refusals[160];   /* on rank 0: the last refused connection, for messages */
static char        why[128];        /* why rank 0 was not reached */

static atomic_llong steps_done;
static atomic_int   is_leaving, is_busy;
static _Atomic(const char *) failure;       /* message of fail(), for heartbeat_thread */
static double       failure_s;
static pthread_t    thread;

/* "rank 1 (host b, ...)". Two results are valid at a time. */
static const char *name_of(const Identity *who) {
    static _Thread_local char texts[2][128];
    static _Thread_local int turn;
    char *text = texts[turn ^= 1];
    snprintf(text, 128, "rank %d (host %.63s, pid %d)", (int)who->rank, who->host, (int)who->pid);
    make_printable(text);
    return text;
}

/* Appends "2, 3" to a list that ends with "..." when it is full. */
static void list_rank(char list[200], int rank) {
    size_t length = strlen(list);
    if (length > 180) strcpy(list + length - (list[length - 1] == '.' ? 3 : 0), "...");
    else snprintf(list + length, 200 - length, "%s%d", length ? ", " : "", rank);
}

static void send_text(int fd, Kind kind, const void *text, size_t bytes) {
    message_send(fd, (Message){ .kind = kind, .bytes = (uint32_t)bytes }, text);
}

/* ---- The end of a run that fails */

static void exit_now(int signal) { (void)signal; _exit(1); }

static void end_peers(int is_stop) {
    for (int i = 0; i < peer_count && (!comm_rank || is_stop); i++)
        message_send(peers[i].c.fd, (Message){ .kind = END, .leaving = (uint32_t)is_stop }, NULL);
    stop_remove();
}

/* Ends the run on all ranks; the first message counts. NULL: it has been printed. */
__attribute__((noreturn, format(printf, 1, 2))) static void end_run(const char *format, ...) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    char message[FAIL_LENGTH + 200];
    pthread_mutex_lock(&once);                  /* never unlocked */
    signal(SIGALRM, exit_now);                  /* if comm_abort hangs */
    alarm(ABORT_SECONDS);
    if (format && !atomic_exchange(self.reported, 1)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
        make_printable(message);
        dprintf(STDERR_FILENO, "%strain_gpt: %s\n", isatty(STDOUT_FILENO) ? "\n" : "", message);
    }
    end_peers(0);
    comm_abort();
    usleep(100 * 1000);         /* else connections could be reset before END is read */
    _exit(1);
}

/* Ends all ranks as a stop does. who: the rank whose END arrived; NULL: this rank stopped, and has printed it. */
__attribute__((noreturn)) static void stop_run(const Identity *who) {
    static atomic_int is_printed;
    if (!atomic_exchange(&is_printed, 1) && who && !comm_rank)
        dprintf(STDOUT_FILENO, "%s has stopped, by a signal or its time limit: the run ends before the first step\n",
                name_of(who));
    end_peers(1);
    usleep(100 * 1000);
    _exit(EXIT_TRY_AGAIN);
}

static void stop_this_rank(void) { stop_run(NULL); }

static void exit_if_stopped(void) {
    if (!stop_requested()) return;
    printf("%s: while the ranks of the run were connecting; nothing was written\n", stop_requested());
    fflush(stdout);
    stop_run(NULL);
}

/* Receives the message of fail(). heartbeat_thread ends the run: it knows whether another rank is the cause. */
static void end_with_failure(const char *message) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static char copy[FAIL_LENGTH];
    if (!is_joined || pthread_equal(pthread_self(), thread)) end_run("%s: %s", name_of(&identity), message);
    pthread_mutex_lock(&once);                  /* never unlocked */
    snprintf(copy, sizeof copy, "%s", message);
    failure_s = seconds_now();
    failure = copy;
    for (;;) pause();
}

/* A failure of this process, from fail() or comm. Waits 0.2 s: if the cause is another rank's death, that is found
   first. */
static void check_failure(double now) {
    static double sent_s;
    const char *error = failure ? NULL : comm_error();
    if (error) {
        failure_s = now;
        failure = error;
    }
    if (!failure || now < failure_s + 0.2) return;
    if (!comm_rank || (sent_s && now > sent_s + 3)) end_run("%s: %s", name_of(&identity), failure);
    if (!sent_s) send_text(peers->c.fd, FAILED, failure, strlen(failure));
    sent_s = sent_s ? sent_s : now;
}

/* ---- New connections of rank 0 */

/* Constant time: the duration does not depend on where two keys differ. */
static int same_key(const char *a, const char *b) {
    volatile unsigned char differ = 0;
    for (int i = 0; i < KEY_BYTES; i++) differ |= (unsigned char)(a[i] ^ b[i]);
    return !differ;
}

/* Fails at the first line in which a rank's signature differs from that of rank 0. */
static void compare_signatures(const char *ours, const char *theirs, const Identity *who) {
    while (*ours || *theirs) {
        size_t our_length = strcspn(ours, "\n"), their_length = strcspn(theirs, "\n");
        if (our_length != their_length || memcmp(ours, theirs, our_length))
            end_run("rendezvous: %s has '%.*s', %s has '%.*s'; want the same on all ranks", name_of(&identity),
                    (int)fmin(300, (double)our_length), ours, name_of(who), (int)fmin(300, (double)their_length),
                    theirs);
        ours += our_length + (ours[our_length] == '\n');
        theirs += their_length + (theirs[their_length] == '\n');
    }
}

static void refuse(Connection *c) {
    char address[64] = "?";
    struct sockaddr_storage from;
    getpeername(c->fd, (struct sockaddr *)&from, &(socklen_t){ sizeof from });
    getnameinfo((struct sockaddr *)&from, sizeof from, address, sizeof address, NULL, 0, NI_NUMERICHOST);
    snprintf(refusals, sizeof refusals, "; refused one from %s with %s", address,
             self.is_secret ? "another secret" : "the id of another job, or a secret");
    send_text(c->fd, REFUSED, &self.is_secret, sizeof self.is_secret);
    connection_close(c);
}

/* Handles the first message of a candidate: makes it a peer, or the socket of one, or closes it. */
static void accept_peer(Connection *c) {
    Hello hello;
    if ((c->in.kind != HELLO && c->in.kind != DATA) || c->in.bytes < sizeof hello) {
        connection_close(c);
        return;
    }
    memcpy(&hello, c->text, sizeof hello);
    if (!same_key(hello.key, self.key)) {
        refuse(c);
        return;
    }
    /* The key is right: errors from here on end the run. A rank without a slot takes slot 0, unused otherwise, to
       receive END. */
    const int rank = hello.who.rank, is_rank = rank >= 0 && rank < comm_size;
    if (c->in.kind == DATA && is_rank && sockets[rank] < 0) {
        sockets[rank] = c->fd;
        c->fd = -1;
        connection_close(c);
        return;
    }
    Peer *p = &peers[is_rank && peers[rank].c.fd < 0 ? rank : 0];
    *p = (Peer){ .c = *c, .who = hello.who };
    *c = (Connection){ .fd = -1 };
    if (hello.who.size != comm_size || !is_rank)
        end_run("rendezvous: %s is one of %d ranks, %s one of %d: want the same number", name_of(&p->who),
                (int)hello.who.size, name_of(&identity), comm_size);
    if (p == peers)
        end_run("rendezvous: %s and %s: want ranks 0 .. %d, each once", name_of(&p->who),
                name_of(rank ? &peers[rank].who : &identity), comm_size - 1);
    compare_signatures(signature, p->c.text + sizeof hello, &p->who);
    send_text(p->c.fd, ACCEPTED, &identity, sizeof identity);
}

static void accept_candidate(void) {
    int fd = socket_accept(self.listener);
    if (fd < 0) return;
    Peer *candidate = &peers[peer_count];           /* a free slot, else the oldest */
    for (Peer *p = candidate; p < peers + connection_count && candidate->c.fd >= 0; p++)
        if (p->c.fd < 0 || p->c.heard_s < candidate->c.heard_s) candidate = p;
    connection_close(&candidate->c);
    candidate->c = (Connection){ .fd = fd, .heard_s = seconds_now() };
}

/* ---- The heartbeat */

static Message make_heartbeat(double since_s) {
    Message m = { .kind = HEARTBEAT, .leaving = (uint32_t)is_leaving, .step = steps_done };
    double age;
    if (!is_leaving && comm_pending(&age) > 0) m.waits_s = fmin(age, since_s);
    if (!comm_rank) for (int i = 1; i < peer_count; i++) m.leaving &= peers[i].last.leaving;
    return m;
}

/* On rank 0: ends the run when a collective takes too long. Names the ranks that take no part in it. */
static void check_collectives(void) {
    static double busy_s;               /* when this rank was last busy */
    double longest = 0;
    int64_t first = INT64_MAX, last = 0;
    int absent = 0, absent_rank = 0;
    char list[200] = "";
    for (int i = 0; i < peer_count; i++) {
        const Message *m = &peers[i].last;
        longest = fmax(longest, m->waits_s);
        first = m->step < first ? m->step : first;
        last = m->step > last ? m->step : last;
        if (!m->waits_s) list_rank(list, absent_rank = i), absent++;
    }
    if (is_busy) busy_s = seconds_now();
    if (fmin(longest, seconds_now() - busy_s) <= self.silence_s) return;
    const char *who = absent == 1 ? name_of(absent_rank ? &peers[absent_rank].who : &identity) : list;
    end_run("a collective has not ended for %.0f s, at steps %lld to %lld: %s%s%s; a longer pause needs a longer "
            "--comm-timeout", self.silence_s, (long long)first, (long long)last, absent ? "it waits for " : "",
            absent > 1 ? "ranks " : "", absent ? who : "all ranks take part, so the network between them fails");
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
    case FAILED:    end_run("%s: %s", name_of(&p->who), p->c.text);
    case END:
        if (p->c.in.leaving) stop_run(&p->who);
        end_run(NULL);
    case REFUSED:
        end_run(self.is_secret
                ? "rendezvous: rank 0 at %s refuses the secret of rank %d on host %s; want the same on all ranks"
                : "rendezvous: rank 0 at %s belongs to another job than rank %d on host %s, or wants a secret; "
                "want another MASTER_PORT, or the same TRAIN_GPT_SECRET", where, comm_rank, identity.host);
    }
    return 0;
}

/* Ends the run, or before ACCEPTED closes the connection, when p's is closed or silent. */
static void check_peer(Peer *p, int is_closed, double heard_s) {
    const double limit_s = is_joined ? self.silence_s : fmax(self.silence_s, 3);
    char when[64] = "before all ranks were there";
    if (is_joined) snprintf(when, sizeof when, "at step %lld", (long long)steps_done);
    if (is_closed && !is_joined) exit_if_stopped();     /* the signal ended that rank, too */
    if (is_closed && p->who.size)
        end_run("%s was killed or crashed %s; look for its last output, and for the out-of-memory killer in dmesg "
                "there", name_of(&p->who), when);
    if (is_closed) {
        snprintf(why, sizeof why, "it closes the connection, or another program answers");
        connection_close(&p->c);
        usleep(TICK_MS * 1000);
    } else if (p->who.size && seconds_now() > heard_s + limit_s)
        end_run("%s has not answered for %.0f s %s: it is stopped, or its host or network is down",
                name_of(&p->who), limit_s, when);
}

/* One round of TICK_MS at most: receives, checks, and sends heartbeats. Returns 1 when all ranks are leaving. */
static int watch_peers(void) {
    static double tick_s, resumed_s, sent_s;
    static struct pollfd *polls;
    int is_over = 0;
    if (!polls) {
        polls = host_alloc((size_t)(connection_count + 1) * sizeof *polls, "the heartbeat");
        tick_s = resumed_s = seconds_now();
    }
    for (int i = 0; i < connection_count; i++) polls[i] = (struct pollfd){ peers[i].c.fd, POLLIN, 0 };
    polls[connection_count] = (struct pollfd){ self.listener, POLLIN, 0 };
    poll(polls, (nfds_t)connection_count + 1, TICK_MS);
    const double now = seconds_now();
    /* after SIGSTOP and SIGCONT, or a suspended virtual machine: silence counts from here */
    if (now > tick_s + self.silence_s / 2) resumed_s = now;
    tick_s = now;
    for (int i = 0; i < connection_count; i++) {
        Peer *p = &peers[i];
        const int is_candidate = i >= peer_count;
        int got = 0;
        while (p->c.fd >= 0 && (got = message_receive(&p->c)) > 0) {
            if (is_candidate) accept_peer(&p->c);
            else if (!handle_message(p)) got = -1;
            if (got < 0) break;
        }
        is_over = comm_rank && p->last.leaving;     /* rank 0 may close the connection now */
        if (is_over || p->c.fd < 0) continue;
        if (!is_candidate) check_peer(p, got < 0, fmax(p->c.heard_s, resumed_s));
        else if (got < 0 || now > p->c.heard_s + HELLO_SECONDS) connection_close(&p->c);
    }
    if (polls[connection_count].revents) accept_candidate();
    check_failure(now);
    if (now < sent_s + fmin(1, self.silence_s / 4) && !is_leaving) return is_over;
    sent_s = now;
    const Message m = make_heartbeat(now - resumed_s);
    for (int i = 0; i < peer_count; i++) if (peers[i].who.size) message_send(peers[i].c.fd, m, NULL);
    if (comm_rank) return is_over;
    peers->last = m;
    check_collectives();
    return (int)m.leaving;
}

static void *heartbeat_thread(void *unused) {
    while (!watch_peers()) { }
    return unused;
}

void heartbeat_note(int64_t step) { steps_done = step; }
void heartbeat_busy(int busy)     { is_busy = busy; }

void heartbeat_end(void) {
    is_leaving = 1;
    pthread_join(thread, NULL);
    fail_hook = NULL;
    stop_hook = NULL;
}

/* ---- The start */

void rendezvous_open(const Rendezvous *rendezvous) {
    self = *rendezvous;
    identity = (Identity){ .rank = comm_rank, .size = comm_size, .pid = (int32_t)getpid() };
    gethostname(identity.host, sizeof identity.host - 1);
    snprintf(where, sizeof where, strchr(self.host, ':') ? "[%s]:%d" : "%s:%d", self.host, self.port);
    fail_hook = end_with_failure;
}

/* On rank 0: lists the missing ranks and returns their number. */
static int list_missing(char list[200]) {
    int count = 0;
    *list = 0;
    for (int i = 1; i < comm_size; i++)
        if (peers[i].c.fd < 0 || (comm_uses_sockets && sockets[i] < 0)) list_rank(list, i), count++;
    return count;
}

static void accept_peers(void) {
    const double start_s = seconds_now();
    int is_reported = 0, missing;
    char list[200];
    if (self.listener < 0) self.listener = socket_listen(self.port, 0);
    while ((missing = list_missing(list))) {
        const char *s = missing > 1 ? "s" : "";
        watch_peers();
        exit_if_stopped();
        if (seconds_now() > start_s + self.join_s)
            end_run("rendezvous: rank%s %s of %d did not connect within %.0f s to %s%s; look for errors there, or a "
                    "firewall", s, list, comm_size, self.join_s, where, refusals);
        if (seconds_now() < start_s + REPORT_SECONDS || is_reported++) continue;
        print_line(stderr, "waiting for rank%s %s of %d at %s%s", s, list, comm_size, where, refusals);
    }
    close(self.listener);
    self.listener = -1;
    for (int i = peer_count; i < connection_count; i++) connection_close(&peers[i].c);
    connection_count = peer_count;
    comm_make_id(comm_id);              /* after: its failure ends the other ranks, too */
    exit_if_stopped();
    is_joined = 1;
    for (int i = 1; i < comm_size; i++) send_text(peers[i].c.fd, WELCOME, comm_id, sizeof comm_id);
}

/* Connects to rank 0 and sends the message; -1: failed, sets why. */
static int connect_as(Kind kind) {
    static struct { Hello hello; char signature[TEXT_MAX]; } text;
    const int fd = socket_connect(self.host, self.port, why);
    text.hello.who = identity;
    memcpy(text.hello.key, self.key, sizeof self.key);
    strcpy(text.signature, signature);
    if (fd >= 0) snprintf(why, sizeof why, "a program that does not answer listens there");
    if (fd >= 0) send_text(fd, kind, &text, sizeof text.hello + strlen(signature));
    return fd;
}

/* Retries closed connections until rank 0 has answered. */
static void connect_to_root(void) {
    const double start_s = seconds_now();
    int is_reported = 0;
    while (!is_joined) {
        const int is_known = peers->who.size > 0;
        if (!is_known && seconds_now() > start_s + self.join_s)
            end_run("rendezvous: rank %d on host %s did not reach rank 0 at %s within %.0f s: %s; want rank 0 running "
                    "there, and the port open", comm_rank, identity.host, where, self.join_s, why);
        if (!is_known && seconds_now() > start_s + REPORT_SECONDS && !is_reported++)
            print_line(stderr, "rank %d does not reach rank 0 at %s: %s", comm_rank, where, why);
        if (peers->c.fd < 0) peers->c.fd = connect_as(HELLO);
        if (is_known && comm_uses_sockets && *sockets < 0) *sockets = connect_as(DATA);
        watch_peers();
        if (!is_joined) exit_if_stopped();      /* after WELCOME the ranks stop together */
    }
}

const int *rendezvous_join(const char *this_signature, char id[COMM_ID_BYTES]) {
    sigset_t all, before;
    signature = this_signature;
    REQUIRE(strlen(signature) < TEXT_MAX - sizeof(Hello), "rendezvous: the options have %zu bytes, want at most %zu",
            strlen(signature), TEXT_MAX - sizeof(Hello));
    peer_count = comm_rank ? 1 : comm_size;
    connection_count = peer_count + (comm_rank ? 0 : CANDIDATES);
    peers = host_alloc((size_t)connection_count * sizeof *peers, "the rendezvous");
    sockets = host_alloc((size_t)peer_count * sizeof *sockets, "the rendezvous");
    for (int i = 0; i < connection_count; i++) peers[i].c.fd = -1;
    for (int i = 0; i < peer_count; i++) sockets[i] = -1;
    if (comm_rank) connect_to_root(); else accept_peers();
    memcpy(id, comm_id, sizeof comm_id);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);          /* signals are for the main thread */
    int error = pthread_create(&thread, NULL, heartbeat_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) end_run("cannot start the thread of the heartbeat: %s", strerror(error));
    stop_hook = stop_this_rank;
    return sockets;
}
