/* token.c - None: a CPU starts an op at no cost. */
#include "../token.h"

int token_forward(Tensor lnf, const TokenNetwork *n) {
    (void)lnf, (void)n;
    return 0;
}
