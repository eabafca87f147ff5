/* tales.c - Generates English-like text of any size from a seed: short tales with long-range dependencies.

   The grammar (tales_grammar.h) is context-free with two extensions. Variables: a name, an object, a place or a number
   can be written again later, with its pronouns, and numbers can be added; this is not a random choice, so it adds
   nothing to -log p. Sampling without replacement: an alternative that was chosen is not chosen again in the same tale,
   so its probability is its weight divided by the sum of the remaining weights.

   The grammar is unambiguous: at every choice, the texts of two alternatives differ before one of them ends. So every
   text has exactly one derivation, and its probability is that of the derivation. The program adds up -log p of all
   choices in val.txt and writes the sum, in nats per byte, to val.txt.floor: the floor. A file contains whole tales and
   ends with the first that reaches the requested size; the text determines where it ends, so the end costs nothing,
   and the probabilities of all such files sum to 1.

   The floor is the loss of the grammar itself on this file. A model without access to val.txt is k nats below it, over
   the whole file, with a probability of at most exp(-k) (Markov's inequality for the ratio of the two probabilities of
   the file): a loss below the floor means a leak. Models stay above it by what they have not learned and by what their
   context cannot hold: a tale has some 550 bytes. */
#include "../llmc/options/options.h"
#include "tales_grammar.h"

enum { TALE_BYTES = 4096, TALE_CHOICES = 1024, VARIABLES = 16 };
enum { CLASSES = sizeof word_classes / sizeof *word_classes, RULES = sizeof rules / sizeof *rules };
typedef enum { TRAIN, VAL } Part;      /* the step of the random numbers: the parts share no random numbers */

typedef struct { const char *start; size_t length; } Name;      /* a substring of a body */
typedef struct { Name name; const char *word; } Variable;

typedef struct {
    uint64_t seed, index;                /* the tale's in its part */
    Part     part;
    uint64_t choices;                    /* number so far */
    double   nats;                       /* their -log p */
    uint64_t words_taken[CLASSES];       /* bit i = alternative i was chosen */
    uint64_t bodies_taken[RULES];
    Variable variable[VARIABLES];
    int      variables;
    char     text[TALE_BYTES];
    size_t   length;
} Tale;

static void write_rule(Tale *tale, Name rule, Name argument);

/* ---- names, memory, text */

static int is_named(Name name, const char *word) {
    return strncmp(name.start, word, name.length) == 0 && word[name.length] == 0;
}

static int same_name(Name a, Name b) {
    return a.length == b.length && memcmp(a.start, b.start, a.length) == 0;
}

/* The substring before the first of the stops. */
static Name name_until(const char *start, const char *stops) {
    return (Name){start, strcspn(start, stops)};
}

static const char *recall(const Tale *tale, Name name) {
    for (int i = 0; i < tale->variables; i++)
        if (same_name(tale->variable[i].name, name)) return tale->variable[i].word;
    fail("the grammar uses [%.*s] before it is drawn", (int)name.length, name.start);
}

static void write_text(Tale *tale, const char *text, size_t length) {
    REQUIRE(tale->length + length <= TALE_BYTES, "the grammar made a tale of more than %d bytes", TALE_BYTES);
    memcpy(tale->text + tale->length, text, length);
    tale->length += length;
}

/* word: "Mara/she" or "lamp"; form: that of the slot. */
static void write_word(Tale *tale, const char *word, Name form) {
    static const char *const pronouns[][3] = {
        { "he", "he", "she" }, { "He", "He", "She" }, { "him", "him", "her" }, { "his", "his", "her" } };
    const Name base = name_until(word, "/");
    for (int i = 0; i < 4; i++) {
        const char *text = pronouns[i][strcmp(word + base.length, "/she") ? 1 : 2];
        if (!is_named(form, pronouns[i][0])) continue;
        write_text(tale, text, strlen(text));
        return;
    }
    REQUIRE(!form.length || is_named(form, "a"), "the grammar wants the form .%.*s of %s", (int)form.length, form.start,
            word);
    const char *article = !form.length ? "" : strchr("aeiou", *word) ? "an " : "a ";
    write_text(tale, article, strlen(article));
    write_text(tale, base.start, base.length);
}

/* ---- choices */

/* Chooses one of the remaining alternatives i, with a probability proportional to weight[i]. */
static int take(Tale *tale, uint64_t *taken, const int *weight, int count) {
    uint64_t all = 0, left = 0;
    for (int i = 0; i < count; i++) all |= (uint64_t)1 << i;
    if (*taken == all) *taken = 0;
    for (int i = 0; i < count; i++) left += (*taken >> i & 1) ? 0 : (uint64_t)weight[i];
    REQUIRE(tale->choices < TALE_CHOICES, "the grammar made a tale of more than %d choices", TALE_CHOICES);
    uint64_t position = tale->index * TALE_CHOICES + tale->choices++;
    uint64_t place = random_below(tale->seed, RANDOM_TEXT, tale->part, position, left);
    int choice = 0;
    for (;; choice++) {
        uint64_t width = (*taken >> choice & 1) ? 0 : (uint64_t)weight[choice];
        if (place < width) break;
        place -= width;
    }
    *taken |= (uint64_t)1 << choice;
    tale->nats += log((double)left / weight[choice]);
    return choice;
}

static const char *draw_word(Tale *tale, Name name) {
    int class = 0, count = 0, weight[MAX_WORDS];
    while (class < CLASSES && !is_named(name, word_classes[class].name)) class++;
    REQUIRE(class < CLASSES, "the grammar has no words [=%.*s]", (int)name.length, name.start);
    for (; count < MAX_WORDS && word_classes[class].word[count]; count++) weight[count] = 1;
    return word_classes[class].word[take(tale, &tale->words_taken[class], weight, count)];
}

/* ---- slots: [=class.form] [x=class.form] [x.form] [x+y-1] */

/* A term is a number or a variable with a number. */
static void write_sum(Tale *tale, const char *slot) {
    long sum = 0;
    for (char operation = '+'; operation != ']'; operation = *slot++) {
        Name term = name_until(slot, "+-*]");
        long value = strtol(strchr("0123456789", *slot) ? slot : recall(tale, term), NULL, 10);
        sum = operation == '*' ? sum * value : operation == '-' ? sum - value : sum + value;
        slot += term.length;
    }
    char digits[24];
    write_text(tale, digits, (size_t)snprintf(digits, sizeof digits, "%ld", sum));
}

static void write_slot(Tale *tale, const char *slot, Name argument) {
    Name name = name_until(slot, *slot == '*' ? ".]" : "=.+-*]");
    const char *rest = slot + name.length, *word;
    if (strchr("+-*", *rest)) {
        write_sum(tale, slot);
        return;
    }
    if (*rest == '=') {
        Name class = name_until(rest + 1, ".]");
        word = draw_word(tale, class);
        rest = class.start + class.length;
        if (name.length) {
            REQUIRE(tale->variables < VARIABLES, "the grammar remembers more than %d words", VARIABLES);
            tale->variable[tale->variables++] = (Variable){name, word};
        }
    } else {
        word = recall(tale, *slot == '*' ? argument : name);
    }
    write_word(tale, word, *rest == '.' ? name_until(rest + 1, "]") : (Name){rest, 0});
}

/* ---- rules and tales */

static void write_body(Tale *tale, const char *body, Name argument) {
    while (*body) {
        Name plain = name_until(body, "<[");
        write_text(tale, body, plain.length);
        body += plain.length;
        if (*body == '[') {
            write_slot(tale, body + 1, argument);
            body = strchr(body, ']') + 1;
        } else if (*body == '<') {
            Name rule = name_until(body + 1, " >");
            Name inner = name_until(rule.start + rule.length + strspn(rule.start + rule.length, " "), ">");
            write_rule(tale, rule, *inner.start == '*' ? argument : inner);
            body = strchr(body, '>') + 1;
        }
    }
}

static void write_rule(Tale *tale, Name name, Name argument) {
    int rule = 0, count = 0, weight[MAX_BODIES];
    while (rule < RULES && !is_named(name, rules[rule].name)) rule++;
    REQUIRE(rule < RULES, "the grammar has no rule <%.*s>", (int)name.length, name.start);
    const Body *body = rules[rule].body;
    for (; count < MAX_BODIES && body[count].weight; count++) weight[count] = body[count].weight;
    write_body(tale, body[take(tale, &tale->bodies_taken[rule], weight, count)].body, argument);
}

typedef struct { int64_t bytes; double nats; } Amount;

/* Whole tales, at least `bytes` in all. The file is renamed to its name when it is complete. */
static Amount write_tales(const char *path, uint64_t seed, Part part, int64_t bytes) {
    char *unfinished = format_string("%s.part", path);
    FILE *file = file_create(unfinished);
    Amount sum = {0, 0};
    Name start = name_until("tale", "");
    for (uint64_t index = 0; sum.bytes < bytes && !ferror(file); index++) {
        Tale tale = { .seed = seed, .index = index, .part = part };
        write_rule(&tale, start, (Name){NULL, 0});
        fwrite(tale.text, 1, tale.length, file);
        sum.bytes += (int64_t)tale.length;
        sum.nats  += tale.nats;
    }
    file_close_durably(file, unfinished);
    file_rename(unfinished, path);
    free(unfinished);
    return sum;
}

static void write_floor(const char *path, Amount val) {
    FILE *file = file_create(path);
    fprintf(file, "%.12f nats per byte: -log p of val.txt (%lld bytes) under the grammar that wrote it\n",
            val.nats / (double)val.bytes, (long long)val.bytes);
    file_close_durably(file, path);
}

int main(int argc, char **argv) {
    int64_t bytes, val_bytes, seed;
    const char *out;
    int help;
    Option table[] = {
        { .name = "bytes", .type = OPTION_INTEGER, .value = &bytes, .fallback = "4000000",
          .min = 1, .max = 1e13, .argument = "N", .help = "write train.txt, whole tales of at least N bytes" },
        { .name = "val-bytes", .type = OPTION_INTEGER, .value = &val_bytes, .fallback = "200000",
          .min = 1, .max = 1e13, .argument = "N", .help = "the same for val.txt, from other random numbers" },
        { .name = "seed", .type = OPTION_INTEGER, .value = &seed, .fallback = "1", .min = 0, .max = 9e18,
          .argument = "N", .help = "the same seed generates the same tales" },
        { .name = "out", .type = OPTION_TEXT, .value = &out,
          .argument = "DIR", .help = "directory of train.txt, val.txt and val.txt.floor, created if missing" },
        { .name = "help", .type = OPTION_FLAG, .value = &help, .help = "print this and exit" },
        { 0 }
    };
    fail_program = "tales";
    options_parse(table, NULL, NULL, argc, argv);
    if (help) {
        printf("tales generates English-like text and computes its -log p under the grammar, in nats per byte.\n");
        options_help(stdout, table);
        return 0;
    }
    REQUIRE(out, "no --out: want the directory of train.txt, val.txt and val.txt.floor");

    directory_make(out);
    const Path floor = path_of(out, "val.txt.floor");
    REQUIRE(!unlink(floor.text) || errno == ENOENT, "%s: cannot replace it: %s", floor.text, strerror(errno));
    write_tales(path_of(out, "train.txt").text, (uint64_t)seed, TRAIN, bytes);
    write_floor(floor.text, write_tales(path_of(out, "val.txt").text, (uint64_t)seed, VAL, val_bytes));
    return 0;
}
