/* rendezvous.h - The connection of every rank to rank 0, over TCP: they meet there, compare their settings, get
   the id of the communicator, and stay connected as a heartbeat. A connection without the key, and one that has not
   introduced itself within 5 s, is closed; neither delays the others. */
#ifndef LLMC_RENDEZVOUS_H
#define LLMC_RENDEZVOUS_H
#include <stdatomic.h>
#include <stdint.h>
#include "../../kernels/comm.h"

enum { KEY_BYTES = 128 };

typedef struct {
    const char *host;               /* of rank 0: a name, IPv4 or IPv6 */
    int         port;
    int         listener;           /* of rank 0: a listening socket; -1 = listens on port */
    char        key[KEY_BYTES];     /* a secret or the job's name, zero-padded: the same on all ranks */
    int         is_secret;
    double      join_s, silence_s;  /* --rendezvous-timeout, --comm-timeout */
    atomic_int *reported;           /* set by the first process that prints why the run ends; shared on one machine */
} Rendezvous;

/* A socket that listens on the port, 0 = any. local: on 127.0.0.1 only. Fails when the port is in use. */
int rendezvous_listen(int port, int local);

/* From here on fail() in any thread ends the run on all ranks that have joined; its message is printed once. */
void rendezvous_open(const Rendezvous *rendezvous);

/* Returns when all ranks are there, with the id that rank 0 has made. Fails when ranks are missing, twice or of another
   size, and when the lines of their signatures differ. After 5 s rank 0 names the missing ranks on stderr, once, and a
   rank that has not reached rank 0 says so. Exits with EXIT_TRY_AGAIN on a stop (llmc/base/os.h). */
void rendezvous_join(const char *signature, char id[COMM_ID_BYTES]);

/* The heartbeat, a thread that also watches comm: starts after join. */
void heartbeat_start(void);
void heartbeat_note(int64_t step);  /* steps done, for messages */

/* On rank 0: the other ranks wait in a collective for what it does now, such as the end of a save; --comm-timeout does
   not count until it is done. */
void heartbeat_busy(int busy);
void heartbeat_end(void);           /* returns when all ranks have called it */

#endif
