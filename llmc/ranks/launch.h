/* launch.h - The ranks of a run: one process per GPU, started by --gpus, torchrun, srun or mpirun. All connect to
   rank 0 (llmc/ranks/rendezvous.h), which ends the run when one of them fails. */
#ifndef LLMC_LAUNCH_H
#define LLMC_LAUNCH_H
#include "../options/settings.h"

extern int launch_local_rank;           /* number on this machine; 0 with one rank */

/* Sets comm_rank, comm_size and launch_local_rank: of N processes that --gpus N starts, which return from here, or of
   those of torchrun, srun or mpirun, by their variables (launchers in launch.c). The parent of N passes signals on, and
   exits with the code of the first failure, else 75 if one ended so, or 0. Calls stop_open, but not for --profile.
   Rank 0 alone keeps stdout. Before any device call. With --dry-run no process is started and comm is not opened:
   comm_size is for the plan. */
void launch_start(const Settings *settings);

#endif
