/* data/tales.c - Writes English-like text, as much as asked, from a seed: short tales, each with a memory.

   The grammar (tales_grammar.h) is context-free but for two things. It remembers: a name, an object, a place or a
   number that was drawn can be written again, with its pronouns, and numbers can be added; what comes from memory is no
   choice, so it costs nothing to one who has read the tale with attention. And its choices are decks of cards: what was
   taken is not taken again in the same tale, so the chance of a card is its weight among those that are left.

   The grammar is unambiguous: at every choice, the texts that two cards lead to differ before one of them ends. So a
   reader who knows the past knows every choice from the text alone, there is one derivation for every text, and the
   chance of the derivation is that of the text. The program adds up the -log p of all choices in val.txt and writes it
   beside it, in nats per byte: the floor. A file holds whole tales and ends with the first that reaches the size asked;
   where it ends follows from the text, so the end has no price, and the chances of all such files sum to 1.

   The floor is what the grammar itself pays, hence what a perfect reader pays, on this very file. A model that never
   saw val.txt gets k nats below it, over the whole file, with a chance of at most exp(-k) (Markov's inequality for its
   chance of the file over the grammar's): one that does has seen the answers. It stays above by what it has not
   learned, and by what it cannot see: a tale has some 550 bytes, and a shorter context forgets its beginning. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../kernels/check.h"
#include "../llmc/files.h"
#include "../llmc/options.h"
#include "../llmc/random.h"
#include "tales_grammar.h"

enum { TALE_BYTES = 4096, TALE_CHOICES = 1024, VARIABLES = 16 };
enum { CLASSES = sizeof word_classes / sizeof *word_classes, RULES = sizeof rules / sizeof *rules };
typedef enum { TRAIN, VAL } Part;      /* the step of the random numbers: the parts share none */

typedef struct { const char *start; size_t length; } Name;      /* a stretch of a body */
typedef struct { Name name; const char *word; } Variable;

typedef struct {
    uint64_t seed, index;                /* which tale of the part this is */
    Part     part;
    uint64_t choices;                    /* made so far */
    double   nats;                       /* their -log p */
    uint64_t words_taken[CLASSES];       /* the decks: bit i = card i was taken */
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

/* The stretch before the first of the stops, which the rest starts with. */
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

/* The word is "Mara/she" or "lamp"; the form is that of the slot. */
static void write_word(Tale *tale, const char *word, Name form) {
    Name base = name_until(word, "/");
    int she = base.start[base.length] == '/' && base.start[base.length + 1] == 's';
    const char *text = NULL;
    if (form.length == 0) {
        write_text(tale, base.start, base.length);
        return;
    }
    if (is_named(form, "a")) {
        text = strchr("aeiou", *word) ? "an " : "a ";
        write_text(tale, text, strlen(text));
        write_text(tale, base.start, base.length);
        return;
    }
    if (is_named(form, "he"))  text = she ? "she" : "he";
    if (is_named(form, "He"))  text = she ? "She" : "He";
    if (is_named(form, "him")) text = she ? "her" : "him";
    if (is_named(form, "his")) text = she ? "her" : "his";
    REQUIRE(text, "the grammar wants the form .%.*s of %s", (int)form.length, form.start, word);
    write_text(tale, text, strlen(text));
}

/* ---- choices */

/* Takes a card of the deck: card i has a chance of weight[i] among those that are left. */
static int take(Tale *tale, uint64_t *taken, const int *weight, int count) {
    uint64_t all = 0, left = 0;
    for (int i = 0; i < count; i++) all |= (uint64_t)1 << i;
    if (*taken == all) *taken = 0;
    for (int i = 0; i < count; i++) left += (*taken >> i & 1) ? 0 : (uint64_t)weight[i];
    REQUIRE(tale->choices < TALE_CHOICES, "the grammar made a tale of more than %d choices", TALE_CHOICES);
    uint64_t position = tale->index * TALE_CHOICES + tale->choices++;
    uint64_t place = random_below(tale->seed, RANDOM_TEXT, tale->part, position, left);
    int card = 0;
    for (;; card++) {
        uint64_t width = (*taken >> card & 1) ? 0 : (uint64_t)weight[card];
        if (place < width) break;
        place -= width;
    }
    *taken |= (uint64_t)1 << card;
    tale->nats += log((double)left / weight[card]);
    return card;
}

static const char *draw_word(Tale *tale, Name name) {
    int class = 0, count = 0, weight[MAX_WORDS];
    while (class < CLASSES && !is_named(name, word_classes[class].name)) class++;
    REQUIRE(class < CLASSES, "the grammar has no words [=%.*s]", (int)name.length, name.start);
    for (; count < MAX_WORDS && word_classes[class].word[count]; count++) weight[count] = 1;
    return word_classes[class].word[take(tale, &tale->words_taken[class], weight, count)];
}

/* ---- slots: [=class.form] [x=class.form] [x.form] [x+y-1] */

/* A term is a number, or a variable that holds one. */
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

/* Whole tales until their size is at least that asked. The file appears under its name when it is whole. */
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

static void fail_as_tales(const char *message) {
    fprintf(stderr, "tales: %s\n", message);
    exit(1);
}

int main(int argc, char **argv) {
    int64_t bytes, val_bytes, seed;
    const char *out;
    int help;
    Option table[] = {
        { .name = "bytes", .type = OPTION_INTEGER, .value = &bytes, .fallback = "4000000",
          .min = 1, .max = 1e13, .argument = "N", .help = "write train.txt with whole tales of at least N bytes" },
        { .name = "val-bytes", .type = OPTION_INTEGER, .value = &val_bytes, .fallback = "200000",
          .min = 1, .max = 1e13, .argument = "N", .help = "the same for val.txt, drawn from other random numbers" },
        { .name = "seed", .type = OPTION_INTEGER, .value = &seed, .fallback = "1", .min = 0, .max = INFINITY,
          .argument = "N", .help = "the same seed writes the same tales" },
        { .name = "out", .type = OPTION_TEXT, .value = &out,
          .argument = "DIR", .help = "where train.txt, val.txt and val.txt.floor go; is made when it is not there" },
        { .name = "help", .type = OPTION_FLAG, .value = &help, .help = "print this and end" },
        { 0 }
    };
    fail_hook = fail_as_tales;
    options_parse(table, argc, argv);
    if (help) {
        printf("tales writes English-like text, and the nats per byte that it takes at least to predict it.\n");
        options_help(stdout, table);
        return 0;
    }
    REQUIRE(out, "no --out: want the directory that train.txt, val.txt and val.txt.floor shall go to");

    directory_make(out);
    char *train_path = format_string("%s/train.txt", out), *val_path = format_string("%s/val.txt", out);
    char *floor_path = format_string("%s/val.txt.floor", out);
    REQUIRE(!file_exists(floor_path) || unlink(floor_path) == 0, "%s: cannot replace it: %s", floor_path,
            strerror(errno));
    write_tales(train_path, (uint64_t)seed, TRAIN, bytes);
    write_floor(floor_path, write_tales(val_path, (uint64_t)seed, VAL, val_bytes));
    free(train_path);
    free(val_path);
    free(floor_path);
    return 0;
}
