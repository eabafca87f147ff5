#include "tokenizer_choice.h"
#include <stdlib.h>
#include "../../kernels/check.h"
#include "../../kernels/comm.h"
#include "../base/terminal.h"
#include "../text/bpe_files.h"
#include "run_dir.h"

/* DIR of --tokenizer has tokenizer files, or is a run directory: then those of its newest model. */
static Tokenizer open_tokenizer(const char *dir) {
    char *newest = bpe_has_files(dir) ? NULL : run_dir_find(dir, ANY_FILES, NULL);
    char *resolved = newest ? run_dir_resolve(dir, NULL) : NULL;
    Tokenizer tokenizer = tokenizer_open(resolved ? resolved : dir);
    free(resolved);
    free(newest);
    return tokenizer;
}

Tokenizer tokenizer_choose(const Settings *s, int is_given, const char *from, int V) {
    Tokenizer saved = from ? checkpoint_tokenizer(from, V) : NULL;
    const int is_bpe = saved && tokenizer_bpe(saved);
    if (!s->tokenizer || (is_bpe && !is_given)) return saved;
    REQUIRE(saved != TOKENIZER_BYTES, "--tokenizer %s: the tokens of %s are bytes; want no --tokenizer", s->tokenizer,
            from);
    Tokenizer named = open_tokenizer(s->tokenizer);
    REQUIRE(!is_bpe || bpe_fingerprint(tokenizer_bpe(saved)) == bpe_fingerprint(tokenizer_bpe(named)),
            "--tokenizer %s: not the one of %s; want no --tokenizer: a checkpoint has its own", s->tokenizer, from);
    const int ids = tokenizer_vocabulary(named);
    if (from && !is_bpe && V - ids >= 128 && !comm_rank)        /* vocabularies are padded to multiples of up to 128 */
        print_line(stderr, "warning: %s: a tokenizer of %d tokens, the model has %d: is it the model's own?",
                   s->tokenizer, ids, V);
    if (is_bpe) tokenizer_close(named);
    return is_bpe ? saved : named;
}

TextFormat text_format(const Settings *s, Tokenizer tokenizer) {
    const TextFormat format = { .tokenizer = tokenizer, .documents = choice_index(DOCUMENT_NAMES, s->documents),
                                .field = s->field };
    const int is_bpe = tokenizer && tokenizer_bpe(tokenizer);
    document_check_field(format.documents, s->field);
    REQUIRE(is_bpe || format.documents == DOCUMENT_FILE, "--documents %s: want --tokenizer DIR; without one, the "
            "bytes of a text are its tokens", s->documents);
    return format;
}
