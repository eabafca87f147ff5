/* muon.h - Muon (kernels/muon.h) for the matrices of the blocks. Each rank has a slice of the momentum, as of AdamW's
   moments, and orthogonalises whole blocks: the slices of a block's update go to its rank and come back, 2 x 2 bytes
   per parameter over all ranks (4 x 2 in f32), beside the 6 of gradients and parameters. */
#ifndef LLMC_MUON_H
#define LLMC_MUON_H
#include "optimizer.h"

extern const OptimizerMethod muon_method;

#endif
