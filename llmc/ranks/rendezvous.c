#include "rendezvous.h"
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

/* CANDIDATES: connections that have not introduced themselves, at most; one more closes the oldest. */
enum { MAGIC = 0x54504754, TEXT_MAX = 1 << 16, CANDIDATES = 64, HELLO_SECONDS = 5, TICK_MS = 100, ABORT_SECONDS = 3 };

/* HELLO: Identity and signature, from a rank to rank 0, which answers REFUSED, or BEAT and later WELCOME with its own
   Identity and the id of the communicator. FAILED: why a rank fails, to rank 0. END: the run is over early, from rank
   0, which has said why; from another rank, to rank 0: a stop ended it outside of a training step. */
typedef enum { HELLO = 1, REFUSED, WELCOME, BEAT, FAILED, END } Kind;

/* A message: this and its bytes of text. All ranks run the same build, so both sides have this layout. */
typedef struct {
    uint32_t magic, kind, bytes;
    uint32_t leaving;               /* BEAT: heartbeat_end was called, from rank 0: by all; END: stopped by a signal */
    int64_t  step;
    double   waits_s;               /* age of the oldest collective under way */
} Header;

typedef struct {
    char    key[KEY_BYTES], host[64];
    int32_t rank, size, pid;
} Identity;

typedef struct {
    int      fd;                    /* -1 = none */
    double   heard_s;               /* the last message; of a candidate: when it connected */
    Header   in;                    /* the message that is read, and its text */
    char    *text;
    size_t   got;                   /* bytes of both */
    Identity who;
    Header   last;                  /* the last BEAT */
} Peer;

static Rendezvous self;
static Identity   identity;
static Peer      *peers;            /* on rank 0 by rank; elsewhere rank 0 only */
static int        peer_count;
static char       where[300];       /* "host:port" of rank 0 */
static char       refusals[160];    /* of rank 0: the last connection that was refused */

static atomic_llong steps_done;
static atomic_int   leaving;
static _Atomic int busy;                    /* heartbeat_busy */
static _Atomic(const char *) failure;       /* message of fail(), for the thread of the heartbeat */
static double       failure_s;
static pthread_t    heart;
static int          beats;          /* the thread runs */

/* ---- Messages */

static void send_message(int fd, Kind kind, const void *text, size_t bytes) {
    Header header = { .magic = MAGIC, .kind = kind, .bytes = (uint32_t)bytes, .step = steps_done };
    struct iovec parts[] = { { &header, sizeof header }, { (void *)text, bytes } };
    if (fd >= 0) (void)!sendmsg(fd, &(struct msghdr){ .msg_iov = parts, .msg_iovlen = 2 }, MSG_NOSIGNAL);
}

/* 1: a message is complete in p->in and p->text; 0: not yet; -1: closed, or not of this protocol. */
static int receive(Peer *p) {
    const size_t head = sizeof p->in;
    if (p->got >= head && p->got == head + p->in.bytes) p->got = 0;
    for (;;) {
        int in_head = p->got < head;
        size_t all = in_head ? head : head + p->in.bytes;
        if (!in_head && p->got == all) return 1;
        char *to = in_head ? (char *)&p->in + p->got : p->text + p->got - head;
        ssize_t n = recv(p->fd, to, all - p->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (n <= 0) return -1;
        p->got += (size_t)n;
        if (memcmp(&p->in.magic, &(uint32_t){ MAGIC }, p->got < 4 ? p->got : 4)) return -1;
        if (p->got != head) continue;
        if (p->in.bytes > TEXT_MAX || !(p->text = realloc(p->text, p->in.bytes + 1))) return -1;
        p->text[p->in.bytes] = 0;
    }
}

static void close_peer(Peer *p) {
    if (p->fd >= 0) close(p->fd);
    free(p->text);
    *p = (Peer){ .fd = -1 };
}

static void set_options(int fd) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    /* of connect, too */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){ .tv_sec = 2 }, sizeof(struct timeval));
}

static const char *name_of(const Identity *who, char text[128]) {
    snprintf(text, 128, "rank %d (host %.63s, pid %d)", (int)who->rank, who->host, (int)who->pid);
    return text;
}

/* Appends "2, 3" to a list that ends with "..." when it is full. */
static void list_rank(char list[200], int rank) {
    size_t length = strlen(list);
    if (length > 180) strcpy(list + length - (list[length - 1] == '.' ? 3 : 0), "...");
    else snprintf(list + length, 200 - length, "%s%d", length ? ", " : "", rank);
}

/* ---- The end of a run that fails */

static void exit_now(int signal) { (void)signal; _exit(1); }

static void end_peers(int stopped) {
    Header header = { .magic = MAGIC, .kind = END, .leaving = (uint32_t)stopped };
    for (int i = 0; i < peer_count && (!comm_rank || stopped); i++)
        if (peers[i].fd >= 0) send(peers[i].fd, &header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT);
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
        dprintf(STDERR_FILENO, "%strain_gpt: %s\n", isatty(STDOUT_FILENO) ? "\n" : "", message);
    }
    end_peers(0);
    stop_remove();
    comm_abort();
    usleep(100 * 1000);         /* else connections could be reset before END is read */
    _exit(1);
}

/* Ends all ranks as a stop does: after a stop of this one, NULL, which has said so, or an END of `who`. */
__attribute__((noreturn)) static void stop_run(const Identity *who) {
    static atomic_int is_said;
    char name[128];
    if (!atomic_exchange(&is_said, 1) && who && !comm_rank)
        dprintf(STDOUT_FILENO, "%s has stopped, by a signal or its time limit: the run ends before the first step\n",
                name_of(who, name));
    end_peers(1);
    stop_remove();
    usleep(100 * 1000);
    _exit(EXIT_TRY_AGAIN);
}

static void stop_this_rank(void) { stop_run(NULL); }

/* Receives the message of fail(). The heartbeat's thread ends the run: it knows whether another rank is the cause. */
static void end_with_failure(const char *message) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static char copy[FAIL_LENGTH];
    char name[128];
    if (!beats || pthread_equal(pthread_self(), heart)) end_run("%s: %s", name_of(&identity, name), message);
    pthread_mutex_lock(&once);                  /* never unlocked */
    snprintf(copy, sizeof copy, "%s", message);
    failure_s = seconds_now();
    failure = copy;
    for (;;) pause();
}

void rendezvous_open(const Rendezvous *rendezvous) {
    self = *rendezvous;
    identity = (Identity){ .rank = comm_rank, .size = comm_size, .pid = (int32_t)getpid() };
    memcpy(identity.key, self.key, sizeof identity.key);
    gethostname(identity.host, sizeof identity.host - 1);
    snprintf(where, sizeof where, strchr(self.host, ':') ? "[%s]:%d" : "%s:%d", self.host, self.port);
    fail_hook = end_with_failure;
}

static void exit_if_stopped(void) {
    if (!stop_requested()) return;
    printf("%s: while the ranks of the run were connecting; nothing was written\n", stop_requested());
    fflush(stdout);
    stop_run(NULL);
}

/* ---- Rank 0 */

int rendezvous_listen(int port, int local) {
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY) };
    for (int is_6 = !local; is_6 >= 0; is_6--) {        /* an IPv6 socket serves IPv4, too, but can be disabled */
        int fd = socket(is_6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (is_6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 0 }, sizeof(int));
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
        if (!bind(fd, is_6 ? (void *)&any : &any4, is_6 ? sizeof any : sizeof any4) && !listen(fd, SOMAXCONN))
            return fd;
        if (errno == EADDRINUSE) break;
        if (fd >= 0) close(fd);
    }
    fail("rendezvous: rank 0 cannot listen on port %d: %s; want a free port, by --rendezvous-port on all ranks", port,
         strerror(errno));
}

/* Constant time: how long it takes says nothing about where two keys differ. */
static int same_key(const char *a, const char *b) {
    volatile unsigned char differ = 0;
    for (int i = 0; i < KEY_BYTES; i++) differ |= (unsigned char)(a[i] ^ b[i]);
    return !differ;
}

/* Fails at the first line in which a rank's signature differs from that of rank 0. */
static void compare_signatures(const char *ours, const char *theirs, const Identity *who) {
    char a[128], b[128];
    while (*ours || *theirs) {
        size_t our_length = strcspn(ours, "\n"), their_length = strcspn(theirs, "\n");
        if (our_length != their_length || memcmp(ours, theirs, our_length))
            end_run("rendezvous: %s has '%.*s', %s has '%.*s'; want the same on all ranks", name_of(&identity, a),
                    (int)fmin(300, (double)our_length), ours, name_of(who, b), (int)fmin(300, (double)their_length),
                    theirs);
        ours += our_length + (ours[our_length] == '\n');
        theirs += their_length + (theirs[their_length] == '\n');
    }
}

/* A candidate has sent a whole message: makes it a peer, or closes it. */
static void admit(Peer *c, const char *signature) {
    char a[128], b[128], address[64] = "?";
    struct sockaddr_storage from;
    Identity *who = &c->who;
    if (c->in.kind != HELLO || c->in.bytes < sizeof *who) {
        close_peer(c);
        return;
    }
    memcpy(who, c->text, sizeof *who);
    who->host[sizeof who->host - 1] = 0;
    if (!same_key(who->key, self.key)) {
        getpeername(c->fd, (struct sockaddr *)&from, &(socklen_t){ sizeof from });
        getnameinfo((struct sockaddr *)&from, sizeof from, address, sizeof address, NULL, 0, NI_NUMERICHOST);
        snprintf(refusals, sizeof refusals, "; refused one from %s with %s", address,
                 self.is_secret ? "another secret" : "the id of another job, or a secret");
        send_message(c->fd, REFUSED, &self.is_secret, sizeof self.is_secret);
        close_peer(c);
        return;
    }
    /* It belongs to the job: what is wrong now ends the run. Slot 0, our own, is for a peer that only gets END. */
    int is_rank = who->rank >= 0 && who->rank < comm_size;
    Peer *p = &peers[is_rank && who->rank && peers[who->rank].fd < 0 ? who->rank : 0];
    *p = *c;
    *c = (Peer){ .fd = -1 };
    who = &p->who;
    if (who->size != comm_size || !is_rank)
        end_run("rendezvous: %s is one of %d ranks, %s one of %d: want the same number", name_of(who, a),
                (int)who->size, name_of(&identity, b), comm_size);
    if (p == peers)
        end_run("rendezvous: %s and %s: want ranks 0 .. %d, each once", name_of(who, a),
                name_of(who->rank ? &peers[who->rank].who : &identity, b), comm_size - 1);
    compare_signatures(signature, p->text + sizeof *who, who);
    p->heard_s = seconds_now();
    send_message(p->fd, BEAT, NULL, 0);
}

static Peer *free_candidate(Peer *candidates) {
    Peer *oldest = candidates;
    for (Peer *c = candidates; c < candidates + CANDIDATES; c++) {
        if (c->fd < 0) return c;
        if (c->heard_s < oldest->heard_s) oldest = c;
    }
    close_peer(oldest);
    return oldest;
}

/* Says which ranks are missing; in the end it fails. */
static void report_missing(int in_the_end) {
    char missing[200] = "";
    int count = 0;
    for (int i = 1; i < comm_size; i++)
        if (peers[i].fd < 0) list_rank(missing, i), count++;
    const char *s = count > 1 ? "s" : "";
    if (in_the_end)
        end_run("rendezvous: rank%s %s of %d did not connect within %.0f s to %s%s; look for errors there, or a "
                "firewall", s, missing, comm_size, self.join_s, where, refusals);
    fprintf(stderr, "train_gpt: waiting for rank%s %s of %d at %s%s\n", s, missing, comm_size, where, refusals);
}

/* Waits for all other ranks. */
static void gather(const char *signature) {
    enum { FIRST_PEER = 1 + CANDIDATES };
    Peer candidates[CANDIDATES];
    struct pollfd *polls = host_alloc((size_t)(FIRST_PEER + comm_size) * sizeof *polls, "the rendezvous");
    int listener = self.listener >= 0 ? self.listener : rendezvous_listen(self.port, 0);
    double deadline = seconds_now() + self.join_s, beat_s = 0, report_s = seconds_now() + 5;
    char name[128];
    for (int i = 0; i < CANDIDATES; i++) candidates[i] = (Peer){ .fd = -1 };
    for (int missing = comm_size - 1; missing; ) {
        polls[0] = (struct pollfd){ listener, POLLIN, 0 };
        for (int i = 0; i < CANDIDATES; i++) polls[1 + i] = (struct pollfd){ candidates[i].fd, POLLIN, 0 };
        for (int i = 0; i < comm_size; i++) polls[FIRST_PEER + i] = (struct pollfd){ peers[i].fd, POLLIN, 0 };
        poll(polls, (nfds_t)(FIRST_PEER + comm_size), TICK_MS);
        double now = seconds_now();
        exit_if_stopped();
        if (now > deadline) report_missing(1);
        if (now > report_s) {
            report_missing(0);
            report_s = INFINITY;
        }
        for (int i = 1; i < comm_size; i++) {
            if (peers[i].fd < 0) continue;
            if (now > beat_s + 1) send_message(peers[i].fd, BEAT, NULL, 0);
            int got = receive(&peers[i]);
            if (got > 0 && peers[i].in.kind == FAILED) end_run("%s: %s", name_of(&peers[i].who, name), peers[i].text);
            if (got > 0 && peers[i].in.kind == END) stop_run(&peers[i].who);
            if (got < 0) exit_if_stopped();         /* the signal ended that rank, too */
            if (got < 0) end_run("rendezvous: %s ended before all ranks were there", name_of(&peers[i].who, name));
        }
        if (now > beat_s + 1) beat_s = now;
        for (Peer *c = candidates; c < candidates + CANDIDATES; c++) {
            int got = c->fd < 0 ? 0 : receive(c);
            if (got < 0 || (c->fd >= 0 && now > c->heard_s + HELLO_SECONDS)) close_peer(c);
            else if (got > 0) admit(c, signature);
        }
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            set_options(fd);
            *free_candidate(candidates) = (Peer){ .fd = fd, .heard_s = now };
        }
        missing = -1;
        for (int i = 0; i < comm_size; i++) missing += peers[i].fd < 0;
    }
    for (int i = 0; i < CANDIDATES; i++) close_peer(&candidates[i]);
    close(listener);
    free(polls);
}

/* ---- The other ranks */

static int connect_to_host(char why[128]) {
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
    char port[8];
    int fd = -1;
    snprintf(port, sizeof port, "%d", self.port);
    int error = getaddrinfo(self.host, port, &hints, &list);
    if (error) {
        snprintf(why, 128, "%s", gai_strerror(error));
        return -1;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        if ((fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0) set_options(fd);
        if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) break;
        snprintf(why, 128, "%s", errno == EINPROGRESS ? "no answer" : strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

/* Connects to rank 0 and waits for its WELCOME. Connections that are closed are tried again until it has answered. */
static void visit(const char *signature) {
    Peer *p = peers;
    double deadline = seconds_now() + self.join_s, report_s = seconds_now() + 5;
    size_t bytes = sizeof identity + strlen(signature);
    char *hello = host_alloc(bytes, "the rendezvous"), why[128] = "";
    int is_known = 0;
    memcpy(hello, &identity, sizeof identity);
    memcpy(hello + sizeof identity, signature, bytes - sizeof identity);
    for (;;) {
        if (!is_known && seconds_now() > deadline)
            end_run("rendezvous: rank %d on host %s did not reach rank 0 at %s within %.0f s: %s; want rank 0 running "
                    "there, and the port open", comm_rank, identity.host, where, self.join_s, why);
        if (!is_known && seconds_now() > report_s) {
            fprintf(stderr, "train_gpt: rank %d does not reach rank 0 at %s: %s\n", comm_rank, where, why);
            report_s = INFINITY;
        }
        if (p->fd < 0) {
            p->fd = connect_to_host(why);
            if (p->fd >= 0) snprintf(why, sizeof why, "a program that does not answer listens there");
            send_message(p->fd, HELLO, hello, bytes);
        }
        poll(&(struct pollfd){ p->fd, POLLIN, 0 }, 1, TICK_MS);
        int got = p->fd < 0 ? 0 : receive(p);
        Kind kind = got > 0 ? p->in.kind : 0;
        if (got > 0) p->heard_s = seconds_now();
        if (kind == REFUSED)
            end_run(self.is_secret
                    ? "rendezvous: rank 0 at %s refuses the secret of rank %d on host %s; want the same on all ranks"
                    : "rendezvous: rank 0 at %s belongs to another job than rank %d on host %s, or wants a secret; "
                    "want another --rendezvous-port, or the same TRAIN_GPT_SECRET", where, comm_rank, identity.host);
        if (kind == END && p->in.leaving) stop_run(&p->who);
        if (kind == END) end_run(NULL);
        if (kind == WELCOME && p->in.bytes == sizeof p->who + COMM_ID_BYTES) break;
        if (got <= 0) exit_if_stopped();        /* no WELCOME waits behind this message: then the ranks stop together */
        is_known |= kind == BEAT;
        int is_silent = is_known && seconds_now() > p->heard_s + fmax(self.silence_s, 3);
        if (got >= 0 && !is_silent && kind != HELLO) continue;
        if (is_known)
            end_run("rendezvous: rank 0 at %s %s before all ranks were there", where, got < 0 ? "ended" : "hangs");
        snprintf(why, sizeof why, "it closes the connection, or another program answers");
        close_peer(p);
        usleep(TICK_MS * 1000);
    }
    free(hello);
}

void rendezvous_join(const char *signature, char id[COMM_ID_BYTES]) {
    char text[sizeof identity + COMM_ID_BYTES];
    REQUIRE(strlen(signature) < TEXT_MAX - sizeof identity, "rendezvous: the options have %zu bytes, want at most %zu",
            strlen(signature), TEXT_MAX - sizeof identity);
    peer_count = comm_rank ? 1 : comm_size;
    peers = host_alloc((size_t)peer_count * sizeof *peers, "the rendezvous");
    for (int i = 0; i < peer_count; i++) peers[i].fd = -1;
    if (comm_rank) {
        visit(signature);
        memcpy(&peers->who, peers->text, sizeof peers->who);
        memcpy(id, peers->text + sizeof peers->who, COMM_ID_BYTES);
    } else {
        gather(signature);
        comm_make_id(id, self.host);        /* after: its failure ends the other ranks, too */
        exit_if_stopped();
        memcpy(text, &identity, sizeof identity);
        memcpy(text + sizeof identity, id, COMM_ID_BYTES);
        for (int i = 1; i < comm_size; i++) send_message(peers[i].fd, WELCOME, text, sizeof text);
    }
}

/* ---- The heartbeat */

static Header own_beat(double since_s) {
    Header beat = { .magic = MAGIC, .kind = BEAT, .leaving = leaving, .step = steps_done };
    double age;
    if (!leaving && comm_pending(&age) > 0) beat.waits_s = fmin(age, since_s);
    if (!comm_rank) for (int i = 1; i < peer_count; i++) beat.leaving &= peers[i].last.leaving;
    return beat;
}

/* On rank 0: ends the run when a collective takes too long. Names the ranks that take no part in it. */
static void check_collectives(const Header *own) {
    static double busy_s;               /* when this rank was last busy */
    double longest = own->waits_s;
    int64_t first = own->step, last = own->step;
    int absent = 0, absent_rank = 0;
    char list[200] = "", name[128];
    for (int i = 0; i < peer_count; i++) {
        const Header *beat = i ? &peers[i].last : own;
        longest = fmax(longest, beat->waits_s);
        first = beat->step < first ? beat->step : first;
        last = beat->step > last ? beat->step : last;
        if (!beat->waits_s) list_rank(list, absent_rank = i), absent++;
    }
    if (busy) busy_s = seconds_now();
    if (fmin(longest, seconds_now() - busy_s) <= self.silence_s) return;
    const char *who = absent == 1 ? name_of(absent_rank ? &peers[absent_rank].who : &identity, name) : list;
    end_run("a collective has not ended for %.0f s, at steps %lld to %lld: %s%s%s; a longer pause needs a longer "
            "--comm-timeout", self.silence_s, (long long)first, (long long)last, absent ? "it waits for " : "",
            absent > 1 ? "ranks " : "", absent ? who : "all ranks take part, so the network between them fails");
}

static void handle(Peer *p) {
    char name[128];
    p->heard_s = seconds_now();
    if (p->in.kind == BEAT)   p->last = p->in;
    if (p->in.kind == END && p->in.leaving) stop_run(&p->who);
    if (p->in.kind == END)    end_run(NULL);
    if (p->in.kind == FAILED) end_run("%s: %s", name_of(&p->who, name), p->text);
}

/* Of this process, from fail() or comm. Waits 0.2 s: if the cause is another rank's death, that is found first. */
static void check_failure(double now) {
    static double told_s;
    char name[128];
    const char *error = failure ? NULL : comm_error();
    if (error) {
        failure_s = now;
        failure = error;
    }
    if (!failure || now < failure_s + 0.2) return;
    if (!comm_rank || (told_s && now > told_s + 3)) end_run("%s: %s", name_of(&identity, name), failure);
    if (!told_s) send_message(peers->fd, FAILED, failure, strlen(failure));
    told_s = told_s ? told_s : now;
}

static void *beat(void *unused) {
    struct pollfd *polls = host_alloc((size_t)peer_count * sizeof *polls, "the heartbeat");
    double tick = seconds_now(), resumed = tick, beat_s = 0;
    char name[128];
    Header own = {0};
    int over = 0;
    while (!over) {
        for (int i = 0; i < peer_count; i++) polls[i] = (struct pollfd){ peers[i].fd, POLLIN, 0 };
        poll(polls, (nfds_t)peer_count, TICK_MS);
        double now = seconds_now();
        /* stopped and continued, such as a suspended virtual machine: silence counts from here */
        if (now > tick + self.silence_s / 2) resumed = now;
        tick = now;
        for (int i = 0; i < peer_count; i++) {
            Peer *p = &peers[i];
            int got = 0;
            while (p->fd >= 0 && (got = receive(p)) > 0) handle(p);
            over = comm_rank && p->last.leaving;
            if (over || p->fd < 0) continue;
            if (got < 0)
                end_run("%s was killed or crashed at step %lld; look for its last output, and for the out-of-memory "
                        "killer in dmesg there", name_of(&p->who, name), (long long)steps_done);
            if (now > fmax(p->heard_s, resumed) + self.silence_s)
                end_run("%s has not answered for %.0f s at step %lld: it is stopped, or its host or network is down",
                        name_of(&p->who, name), self.silence_s, (long long)steps_done);
        }
        check_failure(now);
        if (now < beat_s + fmin(1, self.silence_s / 4) && !leaving) continue;
        beat_s = now;
        own = own_beat(now - resumed);
        for (int i = 0; i < peer_count; i++)
            if (peers[i].fd >= 0) (void)!send(peers[i].fd, &own, sizeof own, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (!comm_rank) check_collectives(&own);
        over |= !comm_rank && own.leaving;
    }
    free(polls);
    return unused;
}

void heartbeat_start(void) {
    sigset_t all, before;
    for (int i = 0; i < peer_count; i++) peers[i].heard_s = seconds_now();
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);          /* signals are for the main thread */
    int error = pthread_create(&heart, NULL, beat, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    REQUIRE(!error, "cannot start the thread of the heartbeat: %s", strerror(error));
    beats = 1;
    stop_hook = stop_this_rank;
}

void heartbeat_note(int64_t step) { steps_done = step; }
void heartbeat_busy(int is_busy)  { busy = is_busy; }

void heartbeat_end(void) {
    leaving = 1;
    pthread_join(heart, NULL);
    fail_hook = NULL;
    stop_hook = NULL;
}
