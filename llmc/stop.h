/* llmc/stop.h - What ends a run before its last step: SIGTERM, SIGINT, SIGHUP, or the clock. SIGUSR1 asks for a
   checkpoint. */
#ifndef LLMC_STOP_H
#define LLMC_STOP_H

enum { EXIT_TRY_AGAIN = 75 };     /* of sysexits.h, EX_TEMPFAIL: saved, not done; a queue script can start it again */

/* From here on the first of these signals only asks, another one two seconds later or more ends the process at once.
   limit: seconds from now; 0 = none; name: what set it, for the reason. */
void stop_open(double limit, const char *name);

/* Why the run should stop now, "SIGTERM" or "--time-limit 3h50m", or NULL. The clock says so as long before the limit
   as was reserved last: for a step and a save. */
const char *stop_wanted(void);
void        stop_reserve(double seconds);

int stop_save_wanted(void);       /* SIGUSR1 came since the last call */

#endif
