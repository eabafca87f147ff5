/* The CPU backend has no FP8: the checks fail. */
#include "../fp8.h"
#include "../check_ops.h"

void quantize(Tensor q, Tensor qt, Tensor x)      { check_quantize(q, qt, x); }
void quantize_gelu(Tensor q, Tensor qt, Tensor x) { check_quantize(q, qt, x); }
