#include "sockets.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../kernels/check.h"
#include "../base/os.h"

enum { MAGIC = 0x54504754 };

int socket_listen(int port, int local) {
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY) };
    for (int is_6 = !local; is_6 >= 0; is_6--) {        /* an IPv6 socket serves IPv4, too, but can be disabled */
        int fd = socket(is_6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        if (is_6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 0 }, sizeof(int));
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
        if (!bind(fd, is_6 ? (void *)&any : &any4, is_6 ? sizeof any : sizeof any4) && !listen(fd, SOMAXCONN))
            return fd;
        if (errno == EADDRINUSE) break;
        close(fd);
    }
    fail("rendezvous: rank 0 cannot listen on port %d: %s%s", port, strerror(errno), errno != EADDRINUSE ? "" :
         "; want a free port, by another MASTER_PORT on all ranks");
}

static int with_options(int fd) {
    if (fd < 0) return fd;          /* errno says why */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    /* limits connect, too */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){ .tv_sec = 2 }, sizeof(struct timeval));
    return fd;
}

int socket_accept(int listener) { return with_options(accept4(listener, NULL, NULL, SOCK_CLOEXEC)); }

int socket_connect(const char *host, int port, char why[128]) {
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list;
    char port_text[16];
    int fd = -1;
    snprintf(port_text, sizeof port_text, "%d", port);
    int error = getaddrinfo(host, port_text, &hints, &list);
    if (error) {
        snprintf(why, 128, "%s", gai_strerror(error));
        return -1;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = with_options(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen)) break;
        snprintf(why, 128, "%s", errno == EINPROGRESS ? "no answer" : strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

void message_send(int fd, Message m, const void *text) {
    m.magic = MAGIC;
    struct iovec parts[] = { { &m, sizeof m }, { (void *)text, m.bytes } };
    int flags = MSG_NOSIGNAL | (m.bytes ? 0 : MSG_DONTWAIT);        /* a stopped peer must not delay heartbeats */
    (void)!sendmsg(fd, &(struct msghdr){ .msg_iov = parts, .msg_iovlen = 2 }, flags);
}

int message_receive(Connection *c) {
    const size_t head = sizeof c->in;
    if (c->got >= head && c->got == head + c->in.bytes) c->got = 0;
    for (;;) {
        int in_head = c->got < head;
        size_t all = in_head ? head : head + c->in.bytes;
        if (!in_head && c->got == all) break;
        char *to = in_head ? (char *)&c->in + c->got : c->text + c->got - head;
        ssize_t n = recv(c->fd, to, all - c->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (n <= 0) return -1;
        c->got += (size_t)n;
        if (memcmp(&c->in.magic, &(uint32_t){ MAGIC }, c->got < 4 ? c->got : 4)) return -1;
        if (c->got != head) continue;
        if (c->in.bytes > TEXT_MAX || !(c->text = realloc(c->text, c->in.bytes + 1))) return -1;
        c->text[c->in.bytes] = 0;
    }
    c->heard_s = seconds_now();
    return 1;
}

void connection_close(Connection *c) {
    if (c->fd >= 0) close(c->fd);
    free(c->text);
    *c = (Connection){ .fd = -1 };
}
