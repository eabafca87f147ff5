#include "warnings.h"

void warn_of_mistakes(Report *report, const Settings *s, const Corpus *corpus, int T, int64_t sequences) {
    Tokens *train = corpus->train, *val = corpus->val;
    long long steps = s->steps, count = tokens_count(train);
    double epochs = (double)steps * (double)sequences / (double)tokens_windows(train, T);
    if (!val && !tokens_are_text(train))
        report_warning(report, "no validation: token shards need --val-data");
    if (s->early_stop && (!val || !s->val_every))
        report_warning(report, "--early-stop %lld: without %s, no validation can stop the run",
                       (long long)s->early_stop, val ? "--val-every" : "--val-data");
    if (val && s->val_data && tokens_fingerprint(val) == tokens_fingerprint(train))
        report_warning(report, "--val-data %s is the training data: its loss does not show overfitting", s->val_data);
    if (s->warmup >= s->steps && s->steps > 0)
        report_warning(report, "--warmup %lld: a run of %lld step%s ends before it reaches --lr", (long long)s->warmup,
                       steps, steps == 1 ? "" : "s");
    if (T >= count)
        report_warning(report, "--context %d is longer than the data, %lld tokens: the rest of a sequence is padding",
                       T, count);
    if (epochs >= 2)
        report_warning(report, "%lld steps read the data %.*f times: when the val loss rises, the model memorises it",
                       steps, epochs < 100, epochs);
}

void warn_of_rise(Report *report, double loss, const BestLoss *best) {
    report_warning(report, "val loss rose in %d validations in a row, to %.4f; the best is %.4f at step %lld. While "
                   "the training loss falls, the model memorises the data: --dropout, more --weight-decay, a smaller "
                   "--model or more data help, --early-stop N ends such runs. If it rises as well: lower --lr",
                   RISES_MAX, loss, best->loss, (long long)best->step);
}
