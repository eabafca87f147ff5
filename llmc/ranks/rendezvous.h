/* rendezvous.h - The connection of every rank to rank 0, over TCP: there they compare their settings and get the id of
   the communicator, and it stays open as a heartbeat. A connection without the key, and one that has not introduced
   itself within 5 s, is closed; neither delays the others. */
#ifndef LLMC_RENDEZVOUS_H
#define LLMC_RENDEZVOUS_H
#include <stdatomic.h>
#include <stdint.h>
#include "../../kernels/comm.h"

enum { KEY_BYTES = 128 };

typedef struct {
    char        host[256];          /* rank 0: its name, IPv4 or IPv6 address */
    int         port;
    int         listener;           /* rank 0: a listening socket; -1 = listens on port */
    char        key[KEY_BYTES];     /* a secret or the job's name, zero-padded: the same on all ranks */
    int         is_secret;
    double      join_s, silence_s;  /* --rendezvous-timeout, --comm-timeout */
    atomic_int *reported;           /* set by the first process that prints why the run ends; shared on one machine */
} Rendezvous;

/* From here on fail() in any thread ends the run on all ranks that have joined; its message is printed once. */
void rendezvous_open(const Rendezvous *rendezvous);

/* Returns when all ranks are connected, with the id of rank 0 and the sockets for comm_open, and starts the thread of
   the heartbeat, which also watches comm. Fails when ranks are missing, twice or of another size, and when the lines of
   their signatures differ. After 5 s rank 0 names the missing ranks on stderr, once, and a rank that has not reached
   rank 0 says so. Exits with EXIT_TRY_AGAIN on a stop (llmc/base/os.h). */
const int *rendezvous_join(const char *signature, char id[COMM_ID_BYTES]);

void heartbeat_note(int64_t step);  /* steps done, for messages */

/* On rank 0: the other ranks wait in a collective for what it does now, such as the end of a save; --comm-timeout does
   not count until it is done. */
void heartbeat_busy(int busy);
void heartbeat_end(void);           /* returns when all ranks have called it */

#endif
