/* sockets.h - TCP connections between rank 0 and the other ranks, and the messages on them. */
#ifndef LLMC_SOCKETS_H
#define LLMC_SOCKETS_H
#include <stddef.h>
#include <stdint.h>

/* A message is this and its bytes of text. All ranks run the same build, so both sides have this layout. */
typedef struct {
    uint32_t magic, kind, bytes;
    uint8_t  leaving;               /* HEARTBEAT: heartbeat_end was called, from rank 0: by all */
    uint8_t  busy;                  /* HEARTBEAT: of heartbeat_busy */
    uint8_t  is_stop;               /* END: with EXIT_TRY_AGAIN */
    int64_t  step;                  /* HEARTBEAT: steps done */
    double   waits_s;               /* HEARTBEAT: age of the oldest pending collective */
} Message;

typedef struct {
    int     fd;                     /* -1 = none */
    double  heard_s;                /* time of the last message, else of the connection */
    Message in;                     /* the message being received; its text ends with a 0 */
    char   *text;
    size_t  got;                    /* bytes of both */
} Connection;

enum { TEXT_MAX = 1 << 16 };        /* bytes of a message's text */

/* A non-blocking socket that listens on the port, 0 = any. local: on 127.0.0.1 only. Fails when the port is in use. */
int socket_listen(int port, int local);

/* Within 2 s; -1 and `why` on failure. socket_accept: -1 when no connection waits. */
int socket_connect(const char *host, int port, char why[128]);
int socket_accept(int listener);

/* Sends m and m.bytes of text; waits at most 2 s, without a text not at all. Errors show when something is received. */
void message_send(int fd, Message m, const void *text);

/* 1: a message is complete in c->in and c->text; 0: not yet; -1: closed, or not of this protocol. */
int  message_receive(Connection *c);
void connection_close(Connection *c);

#endif
