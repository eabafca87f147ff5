/* launch_probe.c - A program of several ranks that computes nothing, for test_launch.sh: it takes the options of
   train_gpt, "trains" steps of 10 ms, or $PROBE_STEP_MS, and does at step 5 what the variable PROBE_<rank> says:

     fail     fail()                       wait     has a pending collective from then on
     error    comm reports an error        late     calls heartbeat_end 1 s after the others
     exit     exits without heartbeat_end  hang     stays in that step
     busy     is busy for 2 s, says so,    early    fail(), before the ranks join
              and hangs                    slow     has a pending collective when it is stopped for
                                                    more than 1 s, which ends 0.5 s after that

   Writes rank.RANK with its pid into the directory $PROBE_DIR, if any.

     launch_probe garbage PORT     connects to 127.0.0.1 with other protocols, and keeps the connections open */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include "../../llmc/ranks/launch.h"

/* ---- Instead of a backend */

int comm_rank, comm_size = 1;
static _Atomic double waits_since_s;
static const char *_Atomic error;

const char *comm_refuse(void) { return getenv("PROBE_REFUSE"); }
void comm_make_id(char id[COMM_ID_BYTES]) { snprintf(id, COMM_ID_BYTES, "made on rank %d", comm_rank); }
void comm_abort(void) { if (getenv("PROBE_ABORT")) pause(); }       /* may hang */
const char *comm_error(void) { return error; }

/* Checks that rank 0 receives every rank's number on that rank's socket. */
const int comm_uses_sockets = 1;
void comm_open(int rank, int size, const char id[COMM_ID_BYTES], const int *sockets) {
    comm_rank = rank;
    comm_size = size;
    REQUIRE(size == 1 || !strcmp(id, "made on rank 0"), "the id is '%.20s'", id);
    if (rank) REQUIRE(write(sockets[0], &rank, sizeof rank) == sizeof rank, "no socket to rank 0");
    for (int r = 1, got; r < size && !rank; r++)
        REQUIRE(read(sockets[r], &got, sizeof got) == sizeof got && got == r, "the socket of rank %d is wrong", r);
}

int comm_pending(double *seconds) {
    *seconds = waits_since_s > 0 ? seconds_now() - waits_since_s : 0;
    return waits_since_s > 0;
}

/* Never called: the ranks of the probe exchange nothing. */
void  *comm_alloc(size_t bytes, const char *what) { return device_alloc(bytes, what); }
void   comm_free(void *memory)       { device_free(memory); }
size_t comm_scratch_bytes(size_t bytes) { (void)bytes; return 0; }
void   comm_reserve(size_t bytes) { (void)bytes; }
CommOp comm_all_reduce(Tensor t)     { (void)t; abort(); }
CommOp comm_reduce_scatter(Tensor t) { (void)t; abort(); }
CommOp comm_all_gather(Tensor t)     { (void)t; abort(); }
CommOp comm_exchange(const CommTransfer *transfers, int count) { (void)transfers, (void)count; abort(); }
void   comm_wait(CommOp op)          { (void)op; abort(); }
double comm_waited_ms(void)          { return 0; }
void   comm_close(void)              { }

/* ---- Connections that are no ranks */

static int connect_to(int port) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    while (connect(fd, (struct sockaddr *)&to, sizeof to)) usleep(10 * 1000);       /* until rank 0 listens */
    return fd;
}

/* Silent connections, more than rank 0 keeps; HTTP; noise; the start of a message of 4 GiB; one sent byte by byte. */
static void send_garbage(int port) {
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const struct { uint32_t magic, kind, bytes; char rest[200]; } huge = { 0x54504754, 1, UINT32_MAX, "" };
    char noise[5000];
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(i * i * 2654435761u >> 13);
    for (int i = 0; i < 100; i++) connect_to(port);
    (void)!write(connect_to(port), http, sizeof http);
    (void)!write(connect_to(port), noise, sizeof noise);
    (void)!write(connect_to(port), &huge, sizeof huge);
    int slow = connect_to(port);
    puts("all are connected");
    fflush(stdout);
    for (size_t i = 0; ; i++) {
        (void)!write(slow, (const char *)&huge + i % sizeof huge, 1);
        usleep(100 * 1000);
    }
}

/* ---- A run */

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "garbage")) send_garbage(atoi(argv[2]));
    static Settings s;
    static Option options[SETTINGS_ROWS];
    char name[512], line[64];
    settings_parse(&s, options, argc, argv);
    launch_start(&s);
    snprintf(name, sizeof name, "PROBE_%d", comm_rank);
    const char *what = getenv(name) ? getenv(name) : "";
    const char *directory = getenv("PROBE_DIR");
    if (directory && *directory) {
        snprintf(name, sizeof name, "%s/rank.%d", directory, comm_rank);
        FILE *file = fopen(name, "w");
        REQUIRE(file, "%s", name);
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
    }
    if (!strcmp(what, "early")) fail("no such device");
    rendezvous_join(options);
    printf("rank %d of %d, local %d, joined\n", comm_rank, comm_size, launch_local_rank);
    fflush(stdout);
    const char *step_ms = getenv("PROBE_STEP_MS");
    int64_t step = 0;
    for (; step < s.steps && !stop_requested(); step++) {
        const double before_s = seconds_now();
        usleep(1000 * (step_ms ? (useconds_t)atoi(step_ms) : 10));
        if (!strcmp(what, "slow") && seconds_now() > before_s + 1) {
            waits_since_s = before_s;
            usleep(500 * 1000);
            waits_since_s = 0;
        }
        if (save_requested()) fprintf(stderr, "rank %d saves\n", comm_rank);
        if (step != 5) continue;
        if (!strcmp(what, "fail"))  fail("disk full");
        if (!strcmp(what, "error")) error = "remote process exited";
        if (!strcmp(what, "exit"))  return 3;
        if (!strcmp(what, "wait"))  waits_since_s = seconds_now();
        heartbeat_busy(!strcmp(what, "busy"));
        if (!strcmp(what, "busy")) sleep(2), fputs("still there\n", stderr);
        heartbeat_busy(0);
        while (!strcmp(what, "busy") || !strcmp(what, "hang") || !strcmp(what, "wait")) pause();
    }
    if (!strcmp(what, "late")) sleep(1);
    heartbeat_end();
    snprintf(line, sizeof line, "%s at step %lld\n", stop_requested() ? stop_requested() : "done", (long long)step);
    fputs(line, stdout);
    return stop_requested() ? EXIT_TRY_AGAIN : 0;
}
