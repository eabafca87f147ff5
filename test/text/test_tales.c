/* test_tales.c - The tales are what data/tales.c says: an unambiguous grammar, and the exact chance of its text.

   Tables first: words of a class, and bodies of a rule, differ before one of them ends, which is why a text has one
   derivation; and nothing is used before it is drawn. Then the text: a parser of its own, which follows every card of
   every deck and stops at nothing, finds one derivation of each tale and the same probability; and none when a
   remembered word or a sum is another. */
#include "../../data/tales_grammar.h"
#include "../scratch.h"
#include <stdarg.h>

enum { CLASSES = COUNT(word_classes), RULES = COUNT(rules) };
enum { VARIABLES = 64, CHOICES = 1024, SPANS = 256 };

static char *program;      /* build/cpu/tales */

/* ---- reading the tables */

typedef enum { DRAW, RECALL, SUM } SlotKind;
typedef struct {
    SlotKind kind;
    int  class;                     /* DRAW */
    char name[32];                  /* the variable; of a SUM, all of it; "" = not remembered */
    char form[8];
    int  length;                    /* in the body, with its brackets */
} Slot;

static int class_named(const char *name, size_t length) {
    for (int c = 0; c < CLASSES; c++)
        if (strlen(word_classes[c].name) == length && !strncmp(word_classes[c].name, name, length)) return c;
    fail("no class of words %.*s", (int)length, name);
}

/* The body starts with "[". The argument is what "*" stands for. */
static Slot read_slot(const char *body, const char *argument) {
    Slot slot = { .kind = RECALL, .length = (int)strcspn(body, "]") + 1 };
    char inside[64] = "";
    memcpy(inside, body + 1, (size_t)slot.length - 2);
    char *draw = strchr(inside, '='), *dot = strchr(inside, '.');
    if (dot) strcpy(slot.form, dot + 1), *dot = 0;
    if (draw) {
        slot.kind = DRAW;
        slot.class = class_named(draw + 1, strlen(draw + 1));
        *draw = 0;
    }
    if (inside[0] != '*' && strpbrk(inside, "+-*")) slot.kind = SUM;
    strcpy(slot.name, strcmp(inside, "*") ? inside : argument);
    return slot;
}

/* What is still to come: the rest of a body, then the bodies around it. */
typedef struct Rest { const char *body, *argument; const struct Rest *next; } Rest;

/* The body starts with "<". Returns the rule and moves past it. */
static int read_call(const char **body, const char *argument, char inner[32]) {
    size_t name = strcspn(*body + 1, " >"), all = strcspn(*body, ">");
    const char *start = *body + 1, *handed = start + name + 1;
    inner[0] = 0;
    if (1 + name < all) snprintf(inner, 32, "%.*s", (int)(*body + all - handed), handed);
    if (!strcmp(inner, "*")) strcpy(inner, argument);
    *body += all + 1;
    for (int r = 0; r < RULES; r++)
        if (strlen(rules[r].name) == name && !strncmp(rules[r].name, start, name)) return r;
    fail("no rule <%.*s>", (int)name, start);
}

static int word_count(int class) {
    int n = 0;
    while (n < MAX_WORDS && word_classes[class].word[n]) n++;
    return n;
}

static int body_count(int rule) {
    int n = 0;
    while (n < MAX_BODIES && rules[rule].body[n].weight) n++;
    return n;
}

/* The word in its form: "an apron", "her". */
static const char *form_of(const char *word, const char *form, char text[64]) {
    int base = (int)strcspn(word, "/"), she = !strcmp(word + base, "/she"), vowel = strchr("aeiou", *word) != NULL;
    if (!*form)               return snprintf(text, 64, "%.*s", base, word), text;
    if (!strcmp(form, "a"))   return snprintf(text, 64, "%s %.*s", vowel ? "an" : "a", base, word), text;
    if (!strcmp(form, "he"))  return she ? "she" : "he";
    if (!strcmp(form, "He"))  return she ? "She" : "He";
    if (!strcmp(form, "him")) return she ? "her" : "him";
    if (!strcmp(form, "his")) return she ? "her" : "his";
    fail("no form .%s of %s", form, word);
}

/* ---- the tables: words and bodies differ before one of them ends */

static struct { char name[32]; int class; } variable[VARIABLES];      /* of one class, in all bodies */
static int variables;

static int variable_named(const char *name) {
    for (int v = 0; v < variables; v++)
        if (!strcmp(variable[v].name, name)) return v;
    fail("[%s] is never drawn", name);
}

static int class_of(const char *name) {
    return variable[variable_named(name)].class;
}

static void find_variables(void) {
    for (int r = 0; r < RULES; r++)
        for (int b = 0; b < body_count(r); b++)
            for (const char *at = rules[r].body[b].body; (at = strchr(at, '[')); at++) {
                Slot slot = read_slot(at, "*");
                if (slot.kind != DRAW || !slot.name[0]) continue;
                int v = 0;
                while (v < variables && strcmp(variable[v].name, slot.name)) v++;
                if (v == variables) {
                    strcpy(variable[variables].name, slot.name);
                    variable[variables++].class = slot.class;
                }
                EXPECT(variable[v].class == slot.class, "[%s] is drawn from two classes", slot.name);
            }
}

static int starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static void test_words_are_prefix_free(void) {
    char a[64], b[64];
    for (int c = 0; c < CLASSES; c++) {
        EXPECT(word_count(c) >= 2, "class %s has %d words", word_classes[c].name, word_count(c));
        for (int i = 0; i < word_count(c); i++)
            for (int j = 0; j < word_count(c); j++)
                for (int article = 0; article < 2 && i != j; article++) {
                    form_of(word_classes[c].word[i], article ? "a" : "", a);
                    form_of(word_classes[c].word[j], article ? "a" : "", b);
                    EXPECT(!starts_with(a, b), "%s: \"%s\" starts with \"%s\"", word_classes[c].name, a, b);
                }
    }
}

enum { ANY_NUMBER = 1 };      /* a byte in a text: a number that is not known here goes on, or has ended */

/* Can one of two texts be the beginning of the other, or be the same? The same choice on both sides differs (that is
   the test of its own rule or class) or is made alike. What memory holds is not known here: it may be any word of the
   class, but for two variables of a class, which are never the same word. May find more than there is, never less. */
static int clash(Rest a, Rest b) {
    for (;;) {
        while (a.body && !*a.body) a = a.next ? *a.next : (Rest){0};
        while (b.body && !*b.body) b = b.next ? *b.next : (Rest){0};
        if (!a.body || !b.body) return 1;
        if (*a.body == ANY_NUMBER || *b.body == ANY_NUMBER) return 1;
        int choice_a = strchr("[<", *a.body) != NULL, choice_b = strchr("[<", *b.body) != NULL;
        if (!choice_a && !choice_b) {
            if (*a.body++ != *b.body++) return 0;
            continue;
        }
        if (!choice_a || (*a.body == '[' && *b.body == '<')) {      /* below, a is opened: rules first */
            Rest swap = a;
            a = b;
            b = swap;
        }
        if (*a.body == '<') {
            char argument[32], other[32];
            Rest after = a, after_b = b;
            int rule = read_call(&after.body, a.argument, argument);
            if (*b.body == '<' && read_call(&after_b.body, b.argument, other) == rule && !strcmp(argument, other)) {
                a = after;
                b = after_b;
                continue;
            }
            for (int i = 0; i < body_count(rule); i++)
                if (clash((Rest){rules[rule].body[i].body, argument, &after}, b)) return 1;
            return 0;
        }
        Slot slot = read_slot(a.body, a.argument), other = { .kind = SUM };
        Rest after = a, after_b = b;
        after.body += slot.length;
        if (*b.body == '[') {
            other = read_slot(b.body, b.argument);
            after_b.body += other.length;
            int alike = slot.kind == DRAW ? slot.class == other.class : !strcmp(slot.name, other.name);
            if (slot.kind == other.kind && alike && !strcmp(slot.form, other.form)) {
                a = after;
                b = after_b;
                continue;
            }
        }
        if (slot.kind == SUM) {
            for (char digits[] = {'0', ANY_NUMBER, 0}; digits[0] <= '9'; digits[0]++)
                if (clash((Rest){digits, "", &after}, b)) return 1;
            return 0;
        }
        int class = slot.kind == DRAW ? slot.class : class_of(slot.name);
        int both_recall = slot.kind == RECALL && other.kind == RECALL && !slot.form[0] && !other.form[0];
        if (both_recall && class == class_of(other.name)) return 0;
        for (int i = 0; i < word_count(class); i++) {
            char text[64];
            if (clash((Rest){form_of(word_classes[class].word[i], slot.form, text), "", &after}, b)) return 1;
        }
        return 0;
    }
}

static void test_bodies_are_prefix_free(void) {
    for (int r = 0; r < RULES; r++)
        for (int i = 0; i < body_count(r); i++)
            for (int j = 0; j < i; j++)
                for (int v = 0; v < variables; v++) {      /* handed to the rule */
                    if (variable[v].class != class_named("person", 6)) continue;
                    Rest a = {rules[r].body[i].body, variable[v].name, NULL};
                    Rest b = {rules[r].body[j].body, variable[v].name, NULL};
                    EXPECT(!clash(a, b), "%s: nothing tells \"%s\" from \"%s\"", rules[r].name, a.body, b.body);
                }
    Rest plain = {"[hero=person] had [=dish]", "", NULL}, rich = {"[friend=person] had <meal>", "", NULL};
    EXPECT(clash(plain, rich), "want the check to see that \"soup with plums\" starts with \"soup\"");
}

/* ---- the tables: nothing is used before it is drawn, and no class runs out of words */

typedef struct { int drawn[VARIABLES]; int left[CLASSES]; } Budget;      /* drawn on every way; left on the worst way */

static Budget walk(const char *body, const char *argument, Budget budget, int depth) {
    REQUIRE(depth < 50, "the grammar is recursive");
    while (*(body += strcspn(body, "[<"))) {
        if (*body == '<') {
            char inner[32];
            int rule = read_call(&body, argument, inner);
            Budget all = walk(rules[rule].body[0].body, inner, budget, depth + 1);
            for (int i = 1; i < body_count(rule); i++) {
                Budget one = walk(rules[rule].body[i].body, inner, budget, depth + 1);
                for (int v = 0; v < VARIABLES; v++) if (one.drawn[v] < all.drawn[v]) all.drawn[v] = one.drawn[v];
                for (int c = 0; c < CLASSES; c++)   if (one.left[c]  < all.left[c])  all.left[c]  = one.left[c];
            }
            budget = all;
            continue;
        }
        Slot slot = read_slot(body, argument);
        body += slot.length;
        if (slot.kind == DRAW) budget.left[slot.class]--;
        for (char *name = strtok(slot.name, "+-*"); name; name = strtok(NULL, "+-*"))
            if (*name > '9') {      /* not a number */
                int v = variable_named(name);
                if (slot.kind == DRAW) budget.drawn[v]++;
                else EXPECT(budget.drawn[v] == 1, "[%s] is drawn %d times before it is used", name, budget.drawn[v]);
            }
    }
    return budget;
}

static void test_memory_and_decks(void) {
    Budget budget = {0};
    for (int c = 0; c < CLASSES; c++) budget.left[c] = word_count(c);
    budget = walk("<tale>", "", budget, 0);
    for (int c = 0; c < CLASSES; c++)
        EXPECT(budget.left[c] >= 0, "class %s lacks %d words", word_classes[c].name, -budget.left[c]);
}

/* ---- the text: a parser that follows every derivation */

typedef struct { uint64_t before; const int *weight; int cards, card, row; } Choice;      /* row: of card, below */
typedef struct { const char *start; int length, class; char form[8]; } Span;      /* from memory; class -1: a sum */

typedef struct {
    uint64_t words_taken[CLASSES], bodies_taken[RULES];
    const char *word[VARIABLES];
    double nats;
    int choices, spans;
} Memory;

static struct { int count; const char *end; double nats; int choices, spans; } found;
static Choice choice[CHOICES], found_choice[CHOICES];
static Span   span[SPANS], found_span[SPANS];

/* Takes the card out of the deck, pays for it, and notes it for the test of the chances. */
static void pay(Memory *m, uint64_t *taken, const int *weight, int cards, int card, int row) {
    double left = 0;
    for (int i = 0; i < cards; i++) if (!(*taken >> i & 1)) left += weight[i];
    choice[m->choices++] = (Choice){ *taken, weight, cards, card, row };
    m->nats -= log(weight[card] / left);
    *taken |= (uint64_t)1 << card;
}

/* A deck of which every card was taken is full again. */
static void refill(uint64_t *taken, int cards) {
    if (*taken == (cards == 64 ? ~(uint64_t)0 : ((uint64_t)1 << cards) - 1)) *taken = 0;
}

static long number_of(const Memory *m, const char *term, size_t length) {
    char name[32] = "";
    memcpy(name, term, length);
    return atol(name[0] >= '0' && name[0] <= '9' ? name : m->word[variable_named(name)]);
}

static const char *sum_of(const Memory *m, const char *sum, char text[64]) {
    size_t length = strcspn(sum, "+-*");
    long value = number_of(m, sum, length);
    for (sum += length; *sum; sum += 1 + length) {
        length = strcspn(sum + 1, "+-*");
        long term = number_of(m, sum + 1, length);
        value = *sum == '+' ? value + term : *sum == '-' ? value - term : value * term;
    }
    snprintf(text, 64, "%ld", value);
    return text;
}

static int weight_of[RULES][MAX_BODIES], weight_one[MAX_WORDS];

/* Counts in found every way to read a tale at the beginning of at .. end. */
static void derive(const char *at, const char *end, Rest rest, Memory m) {
    char text[64];
    for (;;) {
        while (rest.body && !*rest.body) rest = rest.next ? *rest.next : (Rest){0};
        if (!rest.body) break;
        if (*rest.body == '<') {
            char argument[32];
            Rest after = rest;
            int rule = read_call(&after.body, rest.argument, argument), cards = body_count(rule);
            refill(&m.bodies_taken[rule], cards);
            for (int i = 0; i < cards; i++) {
                const char *body = rules[rule].body[i].body;
                if (m.bodies_taken[rule] >> i & 1) continue;
                if (!strchr("[<", *body) && (at == end || *at != *body)) continue;
                Memory next = m;
                pay(&next, &next.bodies_taken[rule], weight_of[rule], cards, i, CLASSES + rule);
                derive(at, end, (Rest){body, argument, &after}, next);
            }
            return;
        }
        if (*rest.body == '[') {
            Slot slot = read_slot(rest.body, rest.argument);
            rest.body += slot.length;
            if (slot.kind == DRAW) {
                int cards = word_count(slot.class);
                refill(&m.words_taken[slot.class], cards);
                for (int i = 0; i < cards; i++) {
                    const char *word = word_classes[slot.class].word[i];
                    if (m.words_taken[slot.class] >> i & 1) continue;
                    if (!slot.form[0] && (at == end || *at != *word)) continue;
                    const char *want = form_of(word, slot.form, text);
                    size_t length = strlen(want);
                    if ((size_t)(end - at) < length || memcmp(at, want, length)) continue;
                    Memory next = m;
                    pay(&next, &next.words_taken[slot.class], weight_one, cards, i, slot.class);
                    if (slot.name[0]) next.word[variable_named(slot.name)] = word;
                    derive(at + length, end, rest, next);
                }
                return;
            }
            const char *want = slot.kind == SUM ? sum_of(&m, slot.name, text)
                                                : form_of(m.word[variable_named(slot.name)], slot.form, text);
            size_t length = strlen(want);
            if ((size_t)(end - at) < length || memcmp(at, want, length)) return;
            Span *s = &span[m.spans++];
            *s = (Span){ at, (int)length, slot.kind == SUM ? -1 : class_of(slot.name), "" };
            strcpy(s->form, slot.form);
            at += length;
            continue;
        }
        if (at == end || *at != *rest.body) return;
        at++;
        rest.body++;
    }
    found.count++;
    found.end = at;
    found.nats = m.nats;
    found.choices = m.choices;
    found.spans = m.spans;
    memcpy(found_choice, choice, sizeof *choice * (size_t)m.choices);
    memcpy(found_span, span, sizeof *span * (size_t)m.spans);
}

static void parse_tale(const char *at, const char *end) {
    found.count = 0;
    derive(at, end, (Rest){"<tale>", "", NULL}, (Memory){0});
}

/* ---- the text: written by the program */

__attribute__((format(printf, 2, 3)))
static int run_program(const char *before, const char *format, ...) {
    char arguments[1024], command[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    snprintf(command, sizeof command, "%s %s %s", before, program, arguments);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static FileMap map(const char *directory, const char *name) {
    return file_map(IN_SCRATCH("%s/%s", directory, name));
}

/* How often a card came, against how often its chances say: the sum of (came - chance), which has the variance of the
   sum of chance (1 - chance), is 6 sigmas off in one of 5e8 cases. */
static struct { double came, chance, variance; } card[CLASSES + RULES][MAX_WORDS];

static void count_choices(void) {
    for (const Choice *c = found_choice; c < found_choice + found.choices; c++) {
        double left = 0;
        for (int i = 0; i < c->cards; i++) if (!(c->before >> i & 1)) left += c->weight[i];
        for (int i = 0; i < c->cards; i++) {
            double p = c->before >> i & 1 ? 0 : c->weight[i] / left;
            card[c->row][i].chance += p;
            card[c->row][i].variance += p * (1 - p);
        }
        card[c->row][c->card].came++;
    }
}

static void test_one_derivation_each(void) {
    const char *name[] = { "train.txt", "val.txt" };
    EXPECT(!run_program("", "--bytes 1000000 --val-bytes 1000000 --seed 7 --out %s/big", scratch), "the program fails");
    for (int part = 0; part < 2; part++) {
        FileMap text = map("big", name[part]);
        const char *at = (const char *)text.bytes, *end = at + text.size;
        double nats = 0;
        int tales = 0;
        for (; at < end; at = found.end, tales++) {
            parse_tale(at, end);
            EXPECT(found.count == 1, "%s has %d derivations at byte %td: %.60s", name[part], found.count,
                   at - (const char *)text.bytes, at);
            if (found.count != 1) return;
            EXPECT(found.end[-1] == '\n' && found.end[-2] == '\n', "a tale ends without a blank line");
            EXPECT(found.end == end || found.end - (const char *)text.bytes < 1000000, "a tale after the end");
            nats += found.nats;
            count_choices();
        }
        printf("  %s: %d tales, %lld bytes, %.6f nats per byte\n", name[part], tales, (long long)text.size,
               nats / (double)text.size);
        EXPECT(text.size >= 1000000, "%s has %lld bytes, want 1000000", name[part], (long long)text.size);
        if (part == 1) {
            FileMap floor = map("big", "val.txt.floor");
            double said = strtod((const char *)floor.bytes, NULL), read = nats / (double)text.size;
            EXPECT(fabs(said - read) < 1e-9 * read, "val.txt.floor says %.12f, want %.12f", said, read);
            file_unmap(floor);
        }
        file_unmap(text);
    }
    for (int row = 0; row < CLASSES + RULES; row++) {
        const char *of = row < CLASSES ? word_classes[row].name : rules[row - CLASSES].name;
        for (int i = 0; i < (row < CLASSES ? word_count(row) : body_count(row - CLASSES)); i++)
            EXPECT(fabs(card[row][i].came - card[row][i].chance) <= 6 * sqrt(card[row][i].variance),
                   "%s: card %d came %.0f times, want %.1f", of, i, card[row][i].came, card[row][i].chance);
    }
}

/* The tale with its stretch at .. at + length written as another: how many derivations? */
static int derivations_with(const char *tale, const char *end, const char *at, int length, const char *other) {
    static char text[8192];
    const char *after = at + length;
    int n = snprintf(text, sizeof text, "%.*s%s%.*s", (int)(at - tale), tale, other, (int)(end - after), after);
    parse_tale(text, text + n);
    return found.count;
}

static void test_memory_is_binding(void) {
    FileMap text = map("big", "val.txt");
    const char *at = (const char *)text.bytes, *end;
    int words = 0, sums = 0, bytes = 0, broken = 0;
    for (int t = 0; t < 100; t++, at = end) {
        parse_tale(at, (const char *)text.bytes + text.size);
        REQUIRE(found.count == 1, "val.txt: a tale with %d derivations", found.count);
        Span kept[SPANS];
        int spans = found.spans;
        memcpy(kept, found_span, sizeof *kept * (size_t)spans);
        end = found.end;
        for (Span *s = kept; s < kept + spans; s++) {
            char other[64];
            if (s->class < 0) {      /* one more than the sum */
                snprintf(other, sizeof other, "%d", atoi(s->start) + 1);
                sums++;
                EXPECT(!derivations_with(at, end, s->start, s->length, other), "the sum may be %s: %.*s", other,
                       (int)(end - at), at);
                continue;
            }
            for (int i = 0; i < word_count(s->class); i++) {
                const char *form = form_of(word_classes[s->class].word[i], s->form, other);
                if ((int)strlen(form) == s->length && !memcmp(form, s->start, strlen(form))) continue;
                words++;
                EXPECT(!derivations_with(at, end, s->start, s->length, form), "%.*s may be %s: %.*s", s->length,
                       s->start, form, (int)(end - at), at);
            }
        }
        for (uint64_t i = 0; i < 100; i++) {      /* a byte of any place: mostly none, and never two ways */
            uint64_t place = random_below(1, RANDOM_TEST, (uint32_t)t, 2 * i, (uint64_t)(end - at));
            char other[2] = { (char)(' ' + random_below(1, RANDOM_TEST, (uint32_t)t, 2 * i + 1, 95)), 0 };
            if (other[0] == at[place]) continue;
            int count = derivations_with(at, end, at + place, 1, other);
            EXPECT(count <= 1, "%d derivations with a changed byte", count);
            bytes++;
            broken += count == 0;
        }
    }
    printf("  %d other words and %d other sums tried; of %d changed bytes %d leave no tale\n",
           words, sums, bytes, broken);
    EXPECT(words > 10000 && sums > 50 && broken > 9000, "want more to be tried");
    file_unmap(text);
}

static void test_files(void) {
    EXPECT(run_program("", "--bytes 30000 --val-bytes 20000 --seed 3 --out %s/a", scratch) == 0, "the program fails");
    EXPECT(run_program("", "--bytes 60000 --val-bytes 20000 --seed 3 --out %s/b", scratch) == 0, "the program fails");
    EXPECT(run_program("", "--bytes 30000 --val-bytes 20000 --seed 4 --out %s/b/c", scratch) == 0, "the program fails");
    EXPECT(same_files(IN_SCRATCH("a/val.txt"), IN_SCRATCH("b/val.txt")), "the same seed writes another val.txt");
    EXPECT(same_files(IN_SCRATCH("a/val.txt.floor"), IN_SCRATCH("b/val.txt.floor")),
           "the same seed writes another floor");
    EXPECT(!same_files(IN_SCRATCH("a/val.txt"), IN_SCRATCH("b/c/val.txt")), "another seed writes the same val.txt");
    FileMap short_one = map("a", "train.txt"), long_one = map("b", "train.txt"), val = map("a", "val.txt");
    EXPECT(short_one.size < long_one.size && !memcmp(short_one.bytes, long_one.bytes, (size_t)short_one.size),
           "a longer text of the same seed starts otherwise");
    int bad = 0, shared = 0, tales = 0;
    for (int64_t i = 0; i < long_one.size; i++)
        bad += long_one.bytes[i] != '\n' && (long_one.bytes[i] < 32 || long_one.bytes[i] > 126);
    EXPECT(bad == 0, "%d bytes are not printable ASCII", bad);
    for (int64_t first = 0, i = 1; i < val.size; i++) {
        if (val.bytes[i] != '\n' || val.bytes[i - 1] != '\n') continue;
        tales++;
        shared += memmem(long_one.bytes, (size_t)long_one.size, val.bytes + first, (size_t)(i + 1 - first)) != NULL;
        first = i + 1;
    }
    EXPECT(shared == 0 && tales > 25, "%d of %d tales of val.txt stand in train.txt", shared, tales);
    file_unmap(short_one);
    file_unmap(long_one);
    file_unmap(val);
}

static void test_bad_arguments(void) {
    const char *bad[] = { "", "--out", "--bytes 0 --out %s/x", "--bytes many --out %s/x", "--val-bytes -1 --out %s/x",
                          "--seed 1.5 --out %s/x", "--out %s/a/train.txt", "--out %s/a/train.txt/x",
                          "--colour --out %s/x", "--bytes 1 --out %s/x more", "--bytes 100000 --out %s/full" };
    for (int i = 0; i < COUNT(bad); i++) {
        char arguments[512], message[512] = "";
        snprintf(arguments, sizeof arguments, bad[i], scratch);
        /* the last one writes where a file may have 8 blocks: as if the disk were full */
        const char *before = i == COUNT(bad) - 1 ? "trap '' XFSZ; ulimit -f 8;" : "";
        const char *log = IN_SCRATCH("log");
        EXPECT(run_program(before, "%s 2>%s", arguments, log) == 1, "want exit code 1 of tales %s", arguments);
        FileMap said = file_map(log);
        snprintf(message, sizeof message, "%.*s", (int)said.size, (const char *)said.bytes);
        EXPECT(starts_with(message, "tales: ") && strchr(message, '\n') == message + strlen(message) - 1,
               "tales %s: want one line, got %s", arguments, message);
        file_unmap(said);
    }
    EXPECT(!file_exists(IN_SCRATCH("full/train.txt")), "an unfinished train.txt lies there under its name");
}

int main(void) {
    scratch_open();
    program = built("tales");
    for (int i = 0; i < MAX_WORDS; i++) weight_one[i] = 1;
    for (int r = 0; r < RULES; r++)
        for (int b = 0; b < body_count(r); b++) weight_of[r][b] = rules[r].body[b].weight;
    find_variables();
    RUN(test_words_are_prefix_free);
    RUN(test_bodies_are_prefix_free);
    RUN(test_memory_and_decks);
    RUN(test_one_derivation_each);
    RUN(test_memory_is_binding);
    RUN(test_files);
    RUN(test_bad_arguments);
    return test_close();
}
