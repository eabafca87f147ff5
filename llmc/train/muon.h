/* muon.h - Muon (kernels/muon.h) for the matrices of the blocks. A group of parameters has a block for each rank, whose
   slice it is: nothing is sent but gradients and parameters, as with AdamW. */
#ifndef LLMC_MUON_H
#define LLMC_MUON_H
#include "optimizer.h"

void muon_step(const Optimizer *o);     /* issues the update of this rank's matrices, where stats->apply */

#endif
