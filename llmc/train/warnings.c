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
    if (T >= count)
        report_warning(report, "--context %d is longer than the data, %lld tokens: the rest of a sequence is padding",
                       T, count);
    if (epochs >= 2)
        report_warning(report, "%lld steps read the data %.*f times: when the val loss rises, the model memorises it",
                       steps, epochs < 100, epochs);
}
