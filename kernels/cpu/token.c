/* token.c - No fused kernel: starting an op costs nothing on a CPU. */
#include "../token.h"

int token_forward(Tensor lnf, const TokenNetwork *n) {
    (void)lnf, (void)n;
    return 0;
}
