#include "options.h"
#include "os.h"
#include "../kernels/check.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HELP_COLUMNS = 100, HELP_LEFT = 30, NAME_LENGTH = 64 };

static int at_end(const Option *option) {
    return !option->name && !option->help;
}

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

static const char *limit_text(const Option *option, double limit, char text[32]) {
    if (option->type == OPTION_REAL || fabs(limit) > 1e9) return real_text(limit, text);
    snprintf(text, 32, "%.0f", limit);
    return text;
}

/* "1 .. 65536", "0 or more", "", for --help and error messages. */
static const char *range_text(const Option *option, char text[80]) {
    char min[32], max[32];
    limit_text(option, option->min, min);
    limit_text(option, option->max, max);
    if (isinf(option->min) && isinf(option->max)) text[0] = 0;
    else if (isinf(option->max)) snprintf(text, 80, "%s or more", min);
    else if (isinf(option->min)) snprintf(text, 80, "%s or less", max);
    else                         snprintf(text, 80, "%s .. %s", min, max);
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

/* "--batch 0: want 1 .. 65536". Long values are cut. */
static _Noreturn void refuse(const Option *option, const char *value, const char *want, const char *range) {
    fail("--%s %.100s: want %s%s%s", option->name, value, want, *want && *range ? ", " : "", range);
}

static int is_choice(const char *choices, const char *value) {
    size_t length = strcspn(value, "|");
    if (value[length]) return 0;
    for (const char *choice = choices; choice; choice = strchr(choice, '|')) {
        choice += *choice == '|';
        if (!strncmp(choice, value, length) && (choice[length] == 0 || choice[length] == '|')) return 1;
    }
    return 0;
}

static void set_integer(const Option *option, const char *value) {
    char range[80];
    range_text(option, range);
    const char *digits = value + (*value == '-');
    if (!*digits || digits[strspn(digits, "0123456789")]) refuse(option, value, "an integer", range);
    errno = 0;
    int64_t number = strtoll(value, NULL, 10);
    if (errno) refuse(option, value, "an integer of 64 bits", range);
    if ((double)number < option->min || (double)number > option->max) refuse(option, value, "", range);
    *(int64_t *)option->value = number;
}

static void set_real(const Option *option, const char *value) {
    char range[80], *end;
    range_text(option, range);
    errno = 0;
    double number = strtod(value, &end);
    /* strtod also accepts " 1", "0x1p3", "inf" and "nan" */
    if (end == value || *end || value[strspn(value, "0123456789+-.eE")]) refuse(option, value, "a number", range);
    if (errno) refuse(option, value, "a number that a double can hold", range);
    if (!(number >= option->min && number <= option->max)) refuse(option, value, "", range);
    *(double *)option->value = number == 0 ? 0 : number;       /* no negative zero */
}

void option_set(const Option *option, const char *value) {
    if (!*value && !option->fallback) {
        memset(option->value, 0, option->type == OPTION_FLAG ? sizeof(int) : sizeof(int64_t));
        return;
    }
    switch (option->type) {
    case OPTION_FLAG:
        if (!is_choice("yes|no", value)) refuse(option, value, "yes or no, or the flag alone", "");
        *(int *)option->value = *value == 'y';
        break;
    case OPTION_INTEGER: set_integer(option, value); break;
    case OPTION_REAL:    set_real(option, value); break;
    case OPTION_CHOICE:
        if (!is_choice(option->choices, value)) refuse(option, value, option->choices, "");
        *(const char **)option->value = value;
        break;
    case OPTION_TEXT:    *(const char **)option->value = value; break;
    }
}

/* ---- names */

/* Edit distance (insertions, deletions and substitutions, Levenshtein 1966), without regard to case. */
static int edit_distance(const char *a, const char *b) {
    int row[NAME_LENGTH + 1], length = (int)strlen(b);
    for (int j = 0; j <= length; j++) row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < length; j++) {
            int best = diagonal + (tolower((unsigned char)a[i]) != tolower((unsigned char)b[j]));
            diagonal = row[j + 1];
            if (best > row[j + 1] + 1) best = row[j + 1] + 1;
            if (best > row[j] + 1)     best = row[j] + 1;
            row[j + 1] = best;
        }
    }
    return row[length];
}

/* The most similar option: one that begins with the word, else the one at the smallest edit distance. */
static const char *closest(const Option *table, const char *word) {
    const char *best = "help";
    int min = 1 << 20;
    for (const Option *option = table; !at_end(option); option++) {
        if (!option->name) continue;
        int edits = *word && !strncasecmp(option->name, word, strlen(word)) ? 0 : edit_distance(word, option->name);
        if (edits < min) {
            min = edits;
            best = option->name;
        }
    }
    return best;
}

Option *options_find(Option *table, const char *name) {
    for (Option *option = table; !at_end(option); option++)
        if (option->name && !strcmp(option->name, name)) return option;
    return NULL;
}

/* ---- the command line */

static _Noreturn void refuse_word(const Option *table, const char *word, const Option *before) {
    if (word[0] == '-' && word[1])
        fail("%.100s: options begin with two dashes; did you mean --%s?", word, closest(table, word + 1));
    if (before && before->type == OPTION_FLAG)
        fail("%.100s: unexpected; --%s takes no value (--help lists the options)", *word ? word : "''", before->name);
    fail("%.100s: unexpected; options begin with --, and a value of several words needs quotes "
         "(--help lists the options)", *word ? word : "''");
}

/* The command line goes into the log and into JSON, which are UTF-8. */
static void check_utf8(const char *word, int number) {
    const unsigned char *begin = (const unsigned char *)word, *c = begin;
    for (size_t left = strlen(word), length; left; c += length, left -= length) {
        length = utf8_length(c, left);
        REQUIRE(length, "word %d of the command line: byte 0x%02x after '%.*s' is not UTF-8; rename a file of such a "
                "name", number, *c, (int)(c - begin), word);
    }
}

void options_parse(Option *table, int argc, char **argv) {
    for (Option *option = table; !at_end(option); option++) {
        option->given = 0;
        if (!option->name) continue;
        REQUIRE(strlen(option->name) < NAME_LENGTH, "--%s: the name is too long for the table", option->name);
        option_set(option, option->fallback ? option->fallback : "");
    }
    Option *option = NULL;
    for (int i = 1; i < argc; i++) check_utf8(argv[i], i);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2)) refuse_word(table, argv[i], option);
        char name[NAME_LENGTH];
        const char *equals = strchr(argv[i], '='), *value = equals ? equals + 1 : NULL;
        size_t length = equals ? (size_t)(equals - argv[i] - 2) : strlen(argv[i] + 2);
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), argv[i] + 2);

        REQUIRE(length, "%.100s: want the name of an option after the dashes (--help lists them)", argv[i]);
        option = length < sizeof name ? options_find(table, name) : NULL;
        REQUIRE(option, "--%s: no such option; did you mean --%s?", name, closest(table, name));
        REQUIRE(!option->given, "--%s: given twice", name);
        option->given = 1;
        if (option->type == OPTION_FLAG) {
            if (!value) value = "yes";
        } else if (!value) {
            REQUIRE(i + 1 < argc, "--%s: want a value, got the end of the command line", name);
            value = argv[++i];
            REQUIRE(strncmp(value, "--", 2), "--%s: want a value, got %.100s (write a value that begins with dashes as "
                    "--%s=VALUE)", name, value, name);
        }
        REQUIRE(*value, "--%s: want a value, got an empty one", name);
        option_set(option, value);
    }
}

/* ---- --help */

#define NO_BREAK '\037'      /* a space at which no line is broken, within "default 12" */

/* Writes text wrapped between column left and HELP_COLUMNS, and a newline. column: of the cursor. */
static void write_wrapped(FILE *file, const char *text, int left, int column) {
    for (int first = 1; *(text += strspn(text, " ")); first = 0) {
        int length = (int)strcspn(text, " ");
        int new_line = first ? column > 0 && column + 2 > left : column + 1 + length > HELP_COLUMNS;
        if (new_line) {
            fputc('\n', file);
            column = 0;
        }
        column += fprintf(file, "%*s", first || new_line ? left - column : 1, "") + length;
        for (; length > 0; length--, text++) fputc(*text == NO_BREAK ? ' ' : *text, file);
    }
    fputc('\n', file);
}

/* " (1 .. 65536; default 12)": the values that are allowed, and the default. */
static void note_text(const Option *option, char *text, size_t size) {
    char range[80] = "";
    const char *allowed = option->type == OPTION_CHOICE ? option->choices : range, *fallback = option->fallback;
    if (option->type == OPTION_INTEGER || option->type == OPTION_REAL) range_text(option, range);
    if (option->type == OPTION_FLAG && fallback && !strcmp(fallback, "no")) fallback = NULL;
    text[0] = 0;
    if (!*allowed && !fallback) return;
    snprintf(text, size, " (%s%s%s%s)", allowed, *allowed && fallback ? "; " : "", fallback ? "default " : "",
             fallback ? fallback : "");
    for (char *c = text + 1; *c; c++) if (*c == ' ' && c[-1] != ';') *c = NO_BREAK;
}

/* "  --name ARGUMENT" */
static int left_text(const Option *option, char *text, size_t size) {
    const char *argument = option->argument ? option->argument : option->type == OPTION_FLAG ? "" :
                           option->type == OPTION_INTEGER || option->type == OPTION_REAL ? "N" : "NAME";
    return snprintf(text, size, "  --%s%s%s", option->name, *argument ? " " : "", argument);
}

void options_help(FILE *file, const Option *table) {
    char left[256], note[512], text[4096];
    int width = 0;
    for (const Option *option = table; !at_end(option); option++) {
        int length = option->name ? left_text(option, left, sizeof left) : 0;
        if (length > width && length <= HELP_LEFT) width = length;
    }
    for (const Option *option = table; !at_end(option); option++) {
        if (!option->name) {
            if (option > table) fputc('\n', file);
            write_wrapped(file, option->help, 0, 0);
            continue;
        }
        left_text(option, left, sizeof left);
        note_text(option, note, sizeof note);
        snprintf(text, sizeof text, "%s%s", option->help ? option->help : "", note);
        write_wrapped(file, text, width + 2, fprintf(file, "%s", left));
    }
}

/* ---- The banner and the log */

static int is_setting(const Option *o) { return o->name && (o->type != OPTION_FLAG || o->fallback); }

/* Quoted for a shell, a new string. */
static char *quoted(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+";
    char *text = host_alloc(4 * strlen(word) + 3, "an option's value"), *end = text;
    if (word[0] && !word[strspn(word, plain)]) return strcpy(text, word);
    *end++ = '\'';
    for (const char *c = word; *c; c++) end += sprintf(end, *c == '\'' ? "'\\''" : "%c", *c);
    strcpy(end, "'");
    return text;
}

void options_print(FILE *file, const Option *table) {
    char text[256];
    for (const Option *o = table; !at_end(o); o++)
        if (is_setting(o)) fprintf(file, " %s=%s", o->name, option_text(o, text));
}

void options_print_changed(FILE *file, const Option *table) {
    char text[256];
    for (const Option *o = table; !at_end(o); o++) {
        if (!is_setting(o) || !strcmp(option_text(o, text), o->fallback ? o->fallback : "")) continue;
        char *value = quoted(option_text(o, text));
        fprintf(file, " --%s=%s", o->name, value);
        free(value);
    }
}

char *command_line(int argc, char **argv) {
    size_t size = 1;
    for (int i = 0; i < argc; i++) size += 4 * strlen(argv[i]) + 3;
    char *text = host_alloc(size, "the command line"), *end = text;
    for (int i = 0; i < argc; i++) {
        char *word = quoted(argv[i]);
        end += sprintf(end, "%s%s", i ? " " : "", word);
        free(word);
    }
    return text;
}
