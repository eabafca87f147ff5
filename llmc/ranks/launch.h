/* launch.h - The ranks of a run: one process per GPU, started by --gpus, torchrun, srun or mpirun. All connect to
   rank 0 (llmc/ranks/rendezvous.h), which ends the run when one of them fails. */
#ifndef LLMC_LAUNCH_H
#define LLMC_LAUNCH_H
#include "../options/settings.h"

extern int launch_local_rank;           /* number on this machine; 0 with one rank */

/* Sets comm_rank, comm_size and launch_local_rank. In this order:
     --gpus N|all   starts N processes. They return from here; the parent does not: it passes signals on, ends the
                    others when one fails, and exits with the code of the first failure, else 75 if one ended so, or 0.
     torchrun       RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; also for processes started by hand
     srun           SLURM_PROCID, SLURM_LOCALID, SLURM_STEP_NUM_TASKS or else SLURM_NTASKS, MASTER_ADDR or else the
                    first host of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST. SLURM_STEP_ID tells its tasks from the one
                    that runs a batch script, which is alone.
     mpirun         of Open MPI, MPICH, Intel MPI, MVAPICH2: on several hosts also MASTER_ADDR and MASTER_PORT
   Calls stop_open, but not for --profile. Rank 0 alone keeps stdout. Before
   any device call. With --dry-run no process is started and comm is not opened: comm_size is for the plan. */
void launch_start(const Settings *settings);

#endif
