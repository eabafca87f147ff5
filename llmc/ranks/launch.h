/* launch.h - The ranks of a run: one process per GPU, started by --gpus, torchrun, srun or mpirun. Each has a TCP
   connection to rank 0, which compares the settings, sends the communicator's id, and ends the run when a rank fails;
   the connection then carries the heartbeat. Connections of others are closed, and do not delay the start. */
#pragma once
#include "../options/settings.h"

extern int launch_local_rank;           /* number on this machine; 0 with one rank */

/* Sets comm_rank, comm_size and launch_local_rank: of N processes that --gpus N starts, which return from here, or of
   those of torchrun, srun or mpirun, by their variables (launchers in launch.c). The parent of N passes signals on, and
   exits with the code of the first failure, else 75 if one ended so, or 0. Calls stop_open, but not for --profile.
   Rank 0 alone keeps stdout. Before any device call. With --dry-run no process is started and comm is not opened:
   comm_size is for the plan. With several ranks, fail() in any thread from here on ends the run on all that have
   joined; its message is printed once. */
void launch_start(const Settings *settings);

/* Called after device_open: returns when all ranks are connected and comm is open, and starts the thread of the
   heartbeat, which also watches comm. Fails when ranks are missing, twice or of another size, and when the lines of
   their settings_signature differ. Prints who is missing, once, after 5 s. Exits with EXIT_TRY_AGAIN on a stop
   (llmc/base/os.h). */
void rendezvous_join(const Option *options);

/* 1 while this rank does what others may wait for in a collective, as long as it takes: tokens of a text, a save.
   --comm-timeout does not count until 0. */
void heartbeat_busy(int busy);
void heartbeat_end(void);           /* normal end: returns when all ranks have called it */
