/* rendezvous.h - The TCP connection of every rank to rank 0, which compares the settings and sends the communicator's
   id; the connection then carries the heartbeat. Connections of others are closed, and do not delay the start. */
#ifndef LLMC_RENDEZVOUS_H
#define LLMC_RENDEZVOUS_H
#include <stdatomic.h>
#include <stdint.h>
#include "../options/settings.h"

enum { RANKS_MAX = 4096, KEY_BYTES = 128 };

typedef struct {
    char        host[256];          /* rank 0: its name, IPv4 or IPv6 address */
    int         port;
    int         listener;           /* rank 0: a listening socket; -1 = none yet */
    char        key[KEY_BYTES];     /* a secret or the job's name, zero-padded: the same on all ranks */
    double      join_s, silence_s;  /* --rendezvous-timeout, --comm-timeout */
    atomic_int *reported;           /* set by the first process that prints why the run ends; shared on one machine */
} Rendezvous;
extern Rendezvous root;                 /* set before rendezvous_open */

/* Sets root.listener, on root.port; port 0: on a free port of 127.0.0.1, and sets host and port. */
void rendezvous_listen(void);

/* From here on fail() in any thread ends the run on all ranks that have joined; its message is printed once. */
void rendezvous_open(void);

/* Called after device_open: returns when all ranks are connected and comm is open, and starts the thread of the
   heartbeat, which also watches comm. Fails when ranks are missing, twice or of another size, and when the lines of
   their settings_signature differ. Prints who is missing, once, after 5 s. Exits with EXIT_TRY_AGAIN on a stop
   (llmc/base/os.h). */
void rendezvous_join(const Option *options);

/* 1 while this rank does what others may wait for in a collective, as long as it takes: tokens of a text, a save.
   --comm-timeout does not count until 0. */
void heartbeat_busy(int busy);
void heartbeat_end(void);           /* normal end: returns when all ranks have called it */

#endif
