/* kernels/cpu/token.c - A CPU, which starts an op in no time, needs no kernel for a whole token. */
#include "../token.h"

int token_forward(Tensor lnf, const TokenNetwork *n) {
    (void)lnf, (void)n;
    return 0;
}
