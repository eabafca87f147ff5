#include "options.h"
#include "os.h"
#include "../kernels/check.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_LEFT = 24 };      /* HELP_LEFT: where the help begins */

static int at_end(const Option *option) { return !option->name && !option->help; }

/* ---- values to text */

/* The shortest of %.6g, %.7g, ... that reads back as the same number: "0.0003", "1e-5", "1e6". */
static const char *real_text(double value, char text[32]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    char *exponent = strchr(text, 'e');
    if (exponent) {                                  /* "e-05" -> "e-5", "e+06" -> "e6" */
        char *to = exponent + 1, *from = to;
        if (*from == '-') to++;
        from += strspn(from, "+-0");
        memmove(to, from, strlen(from) + 1);
    }
    return text;
}

/* "1 .. 65536", for --help and error messages. */
static const char *range_text(const Option *option, char text[80]) {
    char min[32], max[32];
    snprintf(text, 80, "%s .. %s", real_text(option->min, min), real_text(option->max, max));
    return text;
}

const char *option_text(const Option *option, char text[256]) {
    int unset = !option->given && !option->fallback;
    const char *word = NULL;
    text[0] = 0;
    switch (option->type) {
    case OPTION_FLAG:    return strcpy(text, *(int *)option->value ? "yes" : "no");
    case OPTION_INTEGER: if (!unset) snprintf(text, 256, "%" PRId64, *(int64_t *)option->value); break;
    case OPTION_REAL:    if (!unset) real_text(*(double *)option->value, text); break;
    case OPTION_TEXT: case OPTION_CHOICE: word = *(const char **)option->value; break;
    }
    return word ? word : text;
}

/* ---- text to values */

static int is_choice(const char *choices, const char *value) {
    size_t length = strcspn(value, "|");
    if (value[length]) return 0;
    for (const char *choice = choices; choice; choice = strchr(choice, '|')) {
        choice += *choice == '|';
        if (!strncmp(choice, value, length) && (choice[length] == 0 || choice[length] == '|')) return 1;
    }
    return 0;
}

static void set_number(const Option *option, const char *value) {
    int is_integer = option->type == OPTION_INTEGER;
    const char *characters = is_integer ? "-0123456789" : "+-.0123456789eE";
    char *end, range[80];
    errno = 0;
    int64_t integer = is_integer ? strtoll(value, &end, 10) : 0;
    double number = is_integer ? (double)integer : strtod(value, &end);
    /* strtod also accepts " 1", "0x1p3", "inf" and "nan" */
    int valid = !errno && end > value && !*end && !value[strspn(value, characters)];
    REQUIRE(valid && number >= option->min && number <= option->max, "--%s %.100s: want %s, %s", option->name, value,
            is_integer ? "an integer" : "a number", range_text(option, range));
    if (is_integer) *(int64_t *)option->value = integer;
    else            *(double *)option->value = number == 0 ? 0 : number;       /* no negative zero */
}

void option_set(const Option *option, const char *value) {
    if (!*value && !option->fallback) {
        memset(option->value, 0, option->type == OPTION_FLAG ? sizeof(int) : sizeof(int64_t));
        return;
    }
    switch (option->type) {
    case OPTION_FLAG:
        REQUIRE(is_choice("yes|no", value), "--%s %.100s: want yes or no, or the flag alone", option->name, value);
        *(int *)option->value = *value == 'y';
        break;
    case OPTION_INTEGER: case OPTION_REAL: set_number(option, value); break;
    case OPTION_CHOICE:
        REQUIRE(is_choice(option->choices, value), "--%s %.100s: want %s", option->name, value, option->choices);
        *(const char **)option->value = value;
        break;
    case OPTION_TEXT: *(const char **)option->value = value; break;
    }
}

/* ---- the command line */

Option *options_find(Option *table, const char *name) {
    for (Option *option = table; !at_end(option); option++)
        if (option->name && !strcmp(option->name, name)) return option;
    return NULL;
}

/* Whether at most so many insertions, deletions and substitutions of a character turn a into b. */
static int within(int edits, const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    if (*a == *b) return 1;
    return edits > 0 && ((*a && within(edits - 1, a + 1, b)) || (*b && within(edits - 1, a, b + 1)) ||
                         (*a && *b && within(edits - 1, a + 1, b + 1)));
}

static int is_prefix(const char *start, const char *text) { return !strncmp(start, text, strlen(start)); }

/* 0 edits: one word begins with the other. */
static int resembles(int edits, const char *word, const char *name) {
    return edits ? within(edits, word, name) : is_prefix(word, name) || is_prefix(name, word);
}

static _Noreturn void fail_unknown(const Option *table, const char *name) {
    for (int edits = 0; edits <= 2 && *name; edits++)
        for (const Option *o = table; !at_end(o); o++)
            REQUIRE(!o->name || !resembles(edits, name, o->name), "--%s: no such option; did you mean --%s?", name,
                    o->name);
    fail("--%s: no such option (--help lists the options)", name);
}

/* The command line goes into the log and into JSON, which are UTF-8. */
static void check_utf8(const char *word, int number) {
    for (size_t at = 0, length; word[at]; at += length) {
        length = utf8_length((const unsigned char *)word + at, strnlen(word + at, 4));
        REQUIRE(length, "word %d of the command line: byte 0x%02x after '%.*s' is not UTF-8; rename a file of such a "
                "name", number, (unsigned char)word[at], (int)at, word);
    }
}

void options_parse(Option *table, int argc, char **argv) {
    for (Option *option = table; !at_end(option); option++) {
        option->given = 0;
        if (option->name) option_set(option, option->fallback ? option->fallback : "");
    }
    for (int i = 1; i < argc; i++) check_utf8(argv[i], i);
    for (int i = 1; i < argc; i++) {
        REQUIRE(is_prefix("--", argv[i]), "'%.100s': unexpected; options begin with --, a flag takes no value, and a "
                "value of several words needs quotes (--help lists the options)", argv[i]);
        char name[64];
        const char *equals = strchr(argv[i], '='), *value = equals ? equals + 1 : NULL;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(argv[i] + 2, "="), argv[i] + 2);
        Option *option = options_find(table, name);
        if (!option) fail_unknown(table, name);
        REQUIRE(!option->given, "--%s: given twice", name);
        option->given = 1;
        if (!value) value = option->type == OPTION_FLAG ? "yes" : i + 1 < argc ? argv[++i] : "";
        REQUIRE(*value && (equals || !is_prefix("--", value)), "--%s: want a value, got '%.100s' (write a value that "
                "begins with dashes as --%s=VALUE)", name, value, name);
        option_set(option, value);
    }
}

/* ---- --help */

/* Prints the words of a text between the columns HELP_LEFT and HELP_COLUMNS. column: of the cursor. */
static void print_wrapped(FILE *file, int column, const char *text) {
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column + 1 + length > HELP_COLUMNS) {
            fputc('\n', file);
            column = 0;
        }
        column += fprintf(file, "%*s%.*s", column < HELP_LEFT ? HELP_LEFT - column : 1, "", length, text);
        text += length + (text[length] == ' ');
    }
    fputc('\n', file);
}

void options_help(FILE *file, const Option *table) {
    for (const Option *o = table; !at_end(o); o++) {
        if (!o->name) {
            fprintf(file, "%s%s\n", o > table ? "\n" : "", o->help);
            continue;
        }
        int is_number = o->type == OPTION_INTEGER || o->type == OPTION_REAL;
        char range[80], text[1024];
        const char *allowed = o->type == OPTION_CHOICE ? o->choices : is_number ? range_text(o, range) : "";
        const char *argument = o->argument ? o->argument : o->type == OPTION_FLAG ? "" : is_number ? "N" : "NAME";
        const char *fallback = o->fallback ? o->fallback : "";
        int any = *allowed || *fallback;
        snprintf(text, sizeof text, "%s%s%s%s%s%s%s", o->help, any ? " (" : "", allowed,
                 *allowed && *fallback ? "; " : "", *fallback ? "default " : "", fallback, any ? ")" : "");
        print_wrapped(file, fprintf(file, "  --%s%s%s", o->name, *argument ? " " : "", argument), text);
    }
}

/* ---- the banner and the log */

/* Quoted for a shell, except for control characters. */
static void print_quoted(FILE *file, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+";
    const char *quote = *word && !word[strspn(word, plain)] ? "" : "'";
    fputs(quote, file);
    for (; *word; word++) {
        if (*word == '\'') fputs("'\\''", file);
        else fputc((unsigned char)*word < ' ' ? '?' : *word, file);
    }
    fputs(quote, file);
}

void options_print(FILE *file, const Option *table, int all) {
    char text[256];
    for (const Option *o = table; !at_end(o); o++) {
        if (!o->name || (o->type == OPTION_FLAG && !o->fallback)) continue;
        const char *value = option_text(o, text);
        if (!*value || (!all && o->fallback && !strcmp(value, o->fallback))) continue;
        fprintf(file, " --%s=", o->name);
        print_quoted(file, value);
    }
}

int option_is_setting(const Option *o) {
    char text[256];
    return o->name && o->resume != FREE_ON_RESUME && *option_text(o, text);
}

void options_write(FILE *file, const Option *table) {
    char text[256];
    for (const Option *o = table; !at_end(o); o++)
        if (option_is_setting(o)) fprintf(file, "%s = %s\n", o->name, option_text(o, text));
}

char *command_line(int argc, char **argv) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    REQUIRE(file, "out of memory: the command line");
    for (int i = 0; i < argc; i++) {
        if (i) fputc(' ', file);
        print_quoted(file, argv[i]);
    }
    fclose(file);
    return text;
}
