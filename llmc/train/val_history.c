#include "val_history.h"
#include <math.h>

int val_history_add(ValHistory *h, int64_t step, double loss, double before) {
    if (isfinite(loss) && (!h->best.step || loss < h->best.loss)) {
        *h = (ValHistory){ .best = { .step = step, .loss = loss, .outdated = h->best.is_extra ? h->best.step : 0 } };
        return 0;
    }
    h->since_best++;
    if (h->rises == RISES_MAX) return 0;
    h->rises = loss > before ? h->rises + 1 : 0;
    return h->rises == RISES_MAX;
}
