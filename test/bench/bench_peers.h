/* bench_peers.h - The other processes of bench_attention: PyTorch's attentions behind a socket, which answer a
   line with a line (scripts/bench_attention_peers.py), and nvidia-smi, which reports the clock. Both end with this
   one. */
#ifndef TEST_BENCH_PEERS_H
#define TEST_BENCH_PEERS_H
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "bench.h"

enum { SAMPLES_MAX = 1000 };

static FILE *peers;             /* NULL: there are none */
static int   peers_have_fa3;
static FILE *sensors;

/* A line to the peers, and what stands behind "ok" in their answer; NULL when it is another, which goes to stderr. */
__attribute__((format(printf, 1, 2)))
static const char *ask(const char *format, ...) {
    static char question[128], answer[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(question, sizeof question, format, arguments);
    va_end(arguments);
    char line[sizeof question + 1];
    int length = snprintf(line, sizeof line, "%s\n", question);
    REQUIRE(send(fileno(peers), line, (size_t)length, MSG_NOSIGNAL) == length && fgets(answer, sizeof answer, peers),
            "the peers' process ended at \"%s\"; --no-peers does without", question);
    answer[strcspn(answer, "\n")] = 0;
    if (strncmp(answer, "ok", 2) == 0) return answer + 2;
    fprintf(stderr, "%s: %s\n", question, answer);
    return NULL;
}

/* Says which they are, or why there are none. They find the inputs in the open file. */
static void peers_start(const char *python, int file, const char *dtype, const char *method) {
    char command[512], line[512] = "";
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket: out of file descriptors?");
    fcntl(ends[1], F_SETFD, 0);                 /* inherited, as file is */
    snprintf(command, sizeof command, "exec %s scripts/bench_attention_peers.py %d %d %s %s", python, file, ends[1],
             dtype, method);
    fflush(NULL);
    if (!popen(command, "w") || !(peers = fdopen(ends[0], "r"))) fail("cannot start %s", python);
    close(ends[1]);
    if (fgets(line, sizeof line, peers) && strncmp(line, "ok ", 3) == 0) {
        printf("Peers: %s\n", line + 3);
        peers_have_fa3 = strstr(line, "FlashAttention-3") != NULL;
        return;
    }
    peers = NULL;
    line[strcspn(line, "\n")] = 0;
    printf("Without peers: %s\n", *line ? line : "their process ended at once; --python COMMAND says which Python, and "
                                                 "scripts/ must lie in the working directory");
}

/* nvidia-smi writes a line every 50 ms; they wait in the pipe until they are read. */
static void sensors_start(void) {
    sensors = popen("exec 2>/dev/null; gpu=${CUDA_VISIBLE_DEVICES:-0}; exec stdbuf -oL nvidia-smi -i \"${gpu%%,*}\" "
                    "--query-gpu=clocks.sm,temperature.gpu,power.draw.instant --format=csv,noheader,nounits -lms 50",
                    "r");
    REQUIRE(sensors, "cannot start nvidia-smi");
    fcntl(fileno(sensors), F_SETFL, O_NONBLOCK);
}

/* MHz, degrees Celsius, W: the medians since the last call. */
static void sensors_read(double load[3]) {
    static double sample[3][SAMPLES_MAX];
    char line[128];
    int n = 0;
    while (fgets(line, sizeof line, sensors))
        if (sscanf(line, "%lf, %lf, %lf", &sample[0][n], &sample[1][n], &sample[2][n]) == 3)
            n += n < SAMPLES_MAX - 1;
    clearerr(sensors);
    for (int i = 0; i < 3; i++) load[i] = median(sample[i], n);
}

#endif
