/* test_tales.c - The tales are what data/tales.c says: an unambiguous grammar, and the exact probability of its text.
   A parser follows every derivation of a text, with probabilities of its own: each tale has one, of the probability
   that the program has added up. */
#include "../scratch.h"
#define main tales_main
#include "../../data/tales.c"
#undef main

enum { DECKS = CLASSES + RULES };

static struct { const char *name; Body body[MAX_WORDS]; int count; } deck[DECKS];      /* classes, then rules */

static void fill_decks(void) {
    for (int d = 0; d < DECKS; d++) {
        const int r = d - CLASSES;
        deck[d].name = r < 0 ? word_classes[d].name : rules[r].name;
        for (int i = 0; i < (r < 0 ? MAX_WORDS : MAX_BODIES); i++) {
            deck[d].body[i] = r < 0 ? (Body){ 1, word_classes[d].word[i] } : rules[r].body[i];
            deck[d].count += deck[d].body[i].body != NULL;
        }
    }
}

static int deck_named(Name name, int first, int last) {
    while (first < last && !is_named(name, deck[first].name)) first++;
    REQUIRE(first < last, "the grammar has no %.*s", (int)name.length, name.start);
    return first;
}

/* ---- The parser */

typedef struct Rest { const char *body; Name argument; const struct Rest *next; } Rest;     /* what follows */
typedef struct { int deck, card; uint64_t taken; } Choice;                                  /* taken: before it */
typedef struct { Tale tale; uint64_t taken[DECKS]; double nats; int choices; } Parser;      /* tale: the variables */

static Choice path[TALE_CHOICES];
static struct { int count; const char *end; double nats; int choices; Choice choice[TALE_CHOICES]; } found;

static double weight_left(int d, uint64_t taken) {
    double left = 0;
    for (int i = 0; i < deck[d].count; i++) if (!(taken >> i & 1)) left += deck[d].body[i].weight;
    return left;
}

/* The text of the slot or the word is at the start of at .. end. */
static int is_written(const Tale *tale, const char *at, const char *end) {
    return (size_t)(end - at) >= tale->length && !memcmp(at, tale->text, tale->length);
}

static void derive(const char *at, const char *end, Rest rest, const Parser *parser) {
    Parser p = *parser;
    for (;;) {
        while (rest.body && !*rest.body) rest = rest.next ? *rest.next : (Rest){0};
        if (!rest.body) break;
        if (!strchr("<[", *rest.body)) {
            if (at == end || *at++ != *rest.body++) return;
            continue;
        }
        const int is_rule = *rest.body == '<';
        const char *slot = rest.body + 1;
        const Name name = name_until(slot, is_rule ? " >" : "=.+-*]"), after = { slot + name.length, 0 };
        rest.body = strchr(slot, is_rule ? '>' : ']') + 1;
        if (!is_rule && *after.start != '=') {
            p.tale.length = 0;
            write_slot(&p.tale, slot, rest.argument);
            if (!is_written(&p.tale, at, end)) return;
            at += p.tale.length;
            continue;
        }
        const Name inner = name_until(after.start + (*after.start == ' '), ">");
        const Name none = {0}, class = is_rule ? none : name_until(after.start + 1, ".]");
        const Name form = is_rule ? none : name_until(class.start + class.length + 1, "]");
        const int d = is_rule ? deck_named(name, CLASSES, DECKS) : deck_named(class, 0, CLASSES);
        if (weight_left(d, p.taken[d]) == 0) {
            EXPECT(is_rule, "class %s runs out of words", deck[d].name);
            p.taken[d] = 0;
        }
        for (int i = 0; i < deck[d].count; i++) {
            const char *text = deck[d].body[i].body;
            if (p.taken[d] >> i & 1 || (is_rule && !strchr("<[", *text) && (at == end || *at != *text))) continue;
            Parser next = p;
            next.tale.length = 0;
            if (!is_rule) write_word(&next.tale, text, class.start[class.length] == '.' ? form : (Name){ text, 0 });
            if (!is_written(&next.tale, at, end)) continue;
            if (!is_rule && name.length) {
                for (int v = 0; v < p.tale.variables; v++)
                    EXPECT(!same_name(p.tale.variable[v].name, name), "[%.*s] is drawn twice", (int)name.length, slot);
                next.tale.variable[next.tale.variables++] = (Variable){ name, text };
            }
            path[next.choices++] = (Choice){ d, i, p.taken[d] };
            next.nats += log(weight_left(d, p.taken[d]) / deck[d].body[i].weight);
            next.taken[d] |= (uint64_t)1 << i;
            const Rest body = { text, *inner.start == '*' ? rest.argument : inner, &rest };
            derive(at + next.tale.length, end, is_rule ? body : rest, &next);
        }
        return;
    }
    found.count++;
    found.end = at;
    found.nats = p.nats;
    found.choices = p.choices;
    memcpy(found.choice, path, sizeof path);
}

/* ---- The text that the program writes */

static int run_program(const char *arguments) { return system(STRING("%s %s", built("tales"), arguments)); }

/* The count of a card compared with its expectation: the sum of (drawn - chance), whose variance is the sum of
   chance (1 - chance), is 6 sigmas off in one of 5e8 cases. */
static void expect_chances(int is_end) {
    static struct { double drawn, chance, variance; } card[DECKS][64];
    for (const Choice *c = found.choice; c < found.choice + found.choices; c++) {
        for (int i = 0; i < deck[c->deck].count; i++) {
            double p = c->taken >> i & 1 ? 0 : deck[c->deck].body[i].weight / weight_left(c->deck, c->taken);
            card[c->deck][i].chance += p;
            card[c->deck][i].variance += p * (1 - p);
        }
        card[c->deck][c->card].drawn++;
    }
    for (int d = 0; d < DECKS && is_end; d++)
        for (int i = 0; i < deck[d].count; i++)
            EXPECT(fabs(card[d][i].drawn - card[d][i].chance) <= 6 * sqrt(card[d][i].variance),
                   "%s: card %d drawn %.0f times, want %.1f", deck[d].name, i, card[d][i].drawn, card[d][i].chance);
}

TEST(one_derivation_each) {
    static const Parser empty;
    enum { BYTES = 1000000 };
    EXPECT(!run_program(STRING("--bytes %d --val-bytes %d --seed 7 --out %s/big", BYTES, BYTES, scratch)), "fails");
    for (int is_val = 0; is_val < 2; is_val++) {
        FileMap text = file_map(IN_SCRATCH(is_val ? "big/val.txt" : "big/train.txt"));
        const char *start = (const char *)text.bytes, *end = start + text.size;
        double nats = 0;
        for (const char *at = start; at < end; at = found.end) {
            found.count = 0;
            derive(at, end, (Rest){ .body = "<tale>" }, &empty);
            EXPECT(found.count == 1, "%d derivations at byte %td: %.60s", found.count, at - start, at);
            if (found.count != 1) return;
            EXPECT(found.end == end || found.end - start < BYTES, "a tale after the end");
            nats += found.nats;
            expect_chances(is_val && found.end == end);
        }
        EXPECT(text.size >= BYTES, "%lld bytes, want %d", (long long)text.size, BYTES);
        double floor = strtod(text_of(IN_SCRATCH("big/val.txt.floor")), NULL), want = nats / (double)text.size;
        EXPECT(!is_val || fabs(floor - want) < 1e-9 * want, "val.txt.floor has %.12f, want %.12f", floor, want);
        file_unmap(text);
    }
}

/* A slot writes the word in its form, which the parser above takes from the program. */
TEST(forms_and_sums) {
    static const struct { const char *slot, *want; } cases[] = {
        { "a.a]", "an apron" }, { "b.a]", "a lamp" }, { "a]", "apron" }, { "*]", "apron" }, { "*.he]", "he" },
        { "she]", "Mara" }, { "she.he]", "she" }, { "she.He]", "She" }, { "she.him]", "her" }, { "she.his]", "her" },
        { "he]", "Tom" }, { "he.he]", "he" }, { "he.He]", "He" }, { "he.him]", "him" }, { "he.his]", "his" },
        { "n+m]", "10" }, { "n-m]", "4" }, { "n*m+1]", "22" }, { "20-n-m]", "10" },
    };
    for (int i = 0; i < COUNT(cases); i++) {
        Tale tale = { .variables = 6, .variable = { { { "a", 1 }, "apron" }, { { "b", 1 }, "lamp" },
                      { { "she", 3 }, "Mara/she" }, { { "he", 2 }, "Tom/he" }, { { "n", 1 }, "7" },
                      { { "m", 1 }, "3" } } };
        write_slot(&tale, cases[i].slot, (Name){ "a", 1 });
        EXPECT(!strcmp(tale.text, cases[i].want), "[%s: %s, want %s", cases[i].slot, tale.text, cases[i].want);
    }
}

TEST(files) {
    static const struct { int bytes, seed; } runs[] = { { 30000, 3 }, { 60000, 3 }, { 30000, 4 } };
    const char *train[3], *val[3], *floor[3];
    for (int i = 0; i < 3; i++) {
        const char *arguments = STRING("--bytes %d --seed %d --val-bytes 20000 --out %s/new/%d", runs[i].bytes,
                                       runs[i].seed, scratch, i);
        EXPECT(!run_program(arguments), "tales %s fails", arguments);
        train[i] = text_of(IN_SCRATCH("new/%d/train.txt", i));
        val[i]   = text_of(IN_SCRATCH("new/%d/val.txt", i));
        floor[i] = text_of(IN_SCRATCH("new/%d/val.txt.floor", i));
    }
    EXPECT(!strcmp(val[0], val[1]) && !strcmp(floor[0], floor[1]), "the same seed writes another val.txt");
    EXPECT(strcmp(val[0], val[2]), "another seed writes the same val.txt");
    EXPECT(strlen(train[1]) > strlen(train[0]) && !strncmp(train[0], train[1], strlen(train[0])),
           "a longer text of the same seed begins differently");
    for (const char *c = train[1]; *c; c++) EXPECT(*c == '\n' || (*c >= 32 && *c <= 126), "byte 0x%02x", *c);
    int tales = 0;
    for (const char *at = val[0], *end; (end = strstr(at, "\n\n")); at = end + 2, tales++)
        EXPECT(!memmem(train[1], strlen(train[1]), at, (size_t)(end - at)), "a tale of val.txt is in train.txt");
    EXPECT(tales > 25, "%d tales", tales);
}

int main(void) {
    scratch_open();
    fill_decks();
    return test_all();
}
