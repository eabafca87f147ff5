#include "options.h"
#include "../base/files.h"
#include "../base/os.h"
#include "../../kernels/check.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 79, HELP_LEFT = 24 };      /* HELP_LEFT: where the help begins */

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
    case OPTION_INTEGER:
        if (option->choices && *(int64_t *)option->value == 0) return option->choices;
        if (!unset) snprintf(text, 256, "%" PRId64, *(int64_t *)option->value);
        break;
    case OPTION_REAL:    if (!unset) real_text(*(double *)option->value, text); break;
    case OPTION_TEXT: case OPTION_CHOICE: word = *(const char **)option->value; break;
    }
    return word ? word : text;
}

/* ---- text to values */

int choice_index(const char *choices, const char *word) {
    size_t length = strcspn(word, "|");
    if (word[length]) return -1;
    for (int i = 0; choices; i++, choices = strchr(choices, '|')) {
        choices += *choices == '|';
        if (!strncmp(choices, word, length) && (!choices[length] || choices[length] == '|')) return i;
    }
    return -1;
}

static int is_choice(const char *choices, const char *word) { return choice_index(choices, word) >= 0; }

/* The value of "1500", "1.5e3", "1.5k" or "1.5Ki"; NAN for another text (strtod also accepts " 1", "0x1p3", "inf"). */
static double number_of(const char *text) {
    static const struct { const char *name; int tens, twos; } units[] = {
        { "", 0, 0 }, { "k", 3, 0 }, { "K", 3, 0 }, { "M", 6, 0 }, { "G", 9, 0 },
        { "Ki", 0, 10 }, { "Mi", 0, 20 }, { "Gi", 0, 30 },
    };
    char decimal[64], *end;
    size_t length = strspn(text, "+-.0123456789eE");
    for (size_t i = 0; i < sizeof units / sizeof *units && length < sizeof decimal - 4; i++) {
        if (strcmp(text + length, units[i].name)) continue;
        snprintf(decimal, sizeof decimal, "%.*s", (int)length, text);
        if (units[i].tens) sprintf(decimal + length, "e%d", units[i].tens);    /* 1.005 x 1000 would be inexact */
        errno = 0;
        double number = strtod(decimal, &end);
        return errno || end == decimal || *end ? NAN : ldexp(number, units[i].twos);
    }
    return NAN;
}

static void set_number(const Option *option, const char *value) {
    if (option->choices && !strcmp(value, option->choices)) {
        *(int64_t *)option->value = 0;
        return;
    }
    int is_integer = option->type == OPTION_INTEGER, is_digits = !value[strspn(value, "-0123456789")];
    char *end, range[80];
    double number = number_of(value);
    int valid = !isnan(number);
    int64_t integer = 0;
    if (is_integer && is_digits) {
        errno = 0;
        number = (double)(integer = strtoll(value, &end, 10));
        valid = !errno && end > value && !*end;
    } else if (is_integer) {
        /* a number of 15 digits that is not an integer does not round to one */
        valid = number == rint(number) && fabs(number) <= 1e15 && strlen(value) <= 16;
        if (valid) integer = (int64_t)number;
    }
    REQUIRE(valid && number >= option->min && number <= option->max, "--%s %.100s: want %s, %s%s%s", option->name,
            value, is_integer ? "an integer" : "a number", range_text(option, range), option->choices ? ", or " : "",
            option->choices ? option->choices : "");
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

int option_is_typed(Option *table, const char *name) {
    return (options_find(table, name)->given & ON_COMMAND_LINE) != 0;
}

/* Whether at most so many insertions, deletions and substitutions of a character turn a into b. */
static int within(int edits, const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    if (*a == *b) return 1;
    return edits > 0 && ((*a && within(edits - 1, a + 1, b)) || (*b && within(edits - 1, a, b + 1)) ||
                         (*a && *b && within(edits - 1, a + 1, b + 1)));
}

static int is_prefix(const char *start, const char *text) { return !strncmp(start, text, strlen(start)); }

/* The answer to a name of another program, or NULL. */
static const char *foreign_answer(const ForeignOption *foreign, const char *name) {
    size_t length = strlen(name);
    for (; length && foreign && foreign->names; foreign++)
        for (const char *at = foreign->names; (at = strstr(at, name)); at += length)
            if ((at == foreign->names || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return foreign->answer;
    return NULL;
}

/* The option that a misspelt or abbreviated name must mean, or NULL: at most 1 edit away, 2 where both names are longer
   than 4, or the only one that begins so. A name of 1 or 2 characters could mean anything. */
static const Option *similar_option(const Option *table, const char *name) {
    const Option *found = NULL;
    size_t length = strlen(name);
    int count = 0;
    for (int edits = 1; edits <= 2 && length >= 3; edits++)
        for (const Option *o = table; !at_end(o); o++)
            if (o->name && within(edits, name, o->name) && (edits == 1 || (length > 4 && strlen(o->name) > 4)))
                return o;
    for (const Option *o = table; !at_end(o) && length >= 3; o++)
        if (o->name && is_prefix(name, o->name)) found = o, count++;
    return count == 1 ? found : NULL;
}

/* The name in the table of one typed with its dashes. */
static const char *name_of(const char *typed, char name[64]) {
    snprintf(name, 64, "%s", typed + (is_prefix("--", typed) ? 2 : 0));
    for (char *c = name; (c = strchr(c, '_')); ) *c = '-';
    return name;
}

/* Whether a name with its dashes is of another program: then message is its answer, and the one before is printed. */
static int is_foreign(Option *table, const ForeignOption *foreign, const char *where, const char *typed,
                      char message[FAIL_LENGTH]) {
    char name[64];
    const char *answer = options_find(table, name_of(typed, name)) ? NULL : foreign_answer(foreign, name);
    if (!answer) return 0;
    if (*message) fprintf(stderr, "%s: %s\n", fail_program, message);
    snprintf(message, FAIL_LENGTH, "%s%s: %s", where, typed, answer);
    return 1;
}

static const ObsoleteOption *find_obsolete(const ObsoleteOption *obsolete, const char *name) {
    while (obsolete && obsolete->name && strcmp(obsolete->name, name)) obsolete++;
    return obsolete && obsolete->name ? obsolete : NULL;
}

int option_is_obsolete(const ObsoleteOption *obsolete, const char *name, const char *value) {
    obsolete = find_obsolete(obsolete, name);
    REQUIRE(!obsolete || is_choice(obsolete->accepted, value), "--%s %.100s: this version no longer has that option; "
            "want %s", name, value, obsolete->accepted);
    return obsolete != NULL;
}

static Option *require_option(Option *table, const char *typed) {
    char name[64];
    Option *option = options_find(table, name_of(typed, name));
    if (option) return option;
    const Option *similar = similar_option(table, name);
    REQUIRE(!similar, "%s: no such option; did you mean --%s?", typed, similar->name);
    fail("%s: no such option (--help lists the options)", typed);
}

static int takes_empty(const Option *option) { return option->fallback && !*option->fallback; }

/* The words of the command line go into the log and into JSON, which are UTF-8. */
static void check_utf8(const char *word, const char *where) {
    for (size_t at = 0, length; word[at]; at += length) {
        length = utf8_length((const unsigned char *)word + at, strnlen(word + at, 4));
        REQUIRE(length, "%sbyte 0x%02x after '%.*s' is not UTF-8; rename a file of such a name", where,
                (unsigned char)word[at], (int)at, word);
    }
}

/* word: the rest of the command line, whose names of other programs are answered as well. */
static void fail_foreign(Option *table, const ForeignOption *foreign, char **word, char message[FAIL_LENGTH]) {
    char typed[64];
    while (*++word) {
        snprintf(typed, sizeof typed, "%.*s", (int)strcspn(*word, "="), *word);
        if (*typed == '-') is_foreign(table, foreign, "", typed, message);
    }
    fail("%s", message);
}

void options_parse(Option *table, const char *positional, const ForeignOption *foreign, int argc, char **argv) {
    char typed[64], message[FAIL_LENGTH] = "";
    for (Option *option = table; !at_end(option); option++) {
        option->given = 0;
        if (option->name) option_set(option, option->fallback ? option->fallback : "");
    }
    for (int i = 1; i < argc; i++) {
        snprintf(typed, sizeof typed, "word %d of the command line: ", i);
        check_utf8(argv[i], typed);
    }
    for (int i = 1; i < argc; i++) {
        int is_word = *argv[i] != '-';
        const char *equals = strchr(argv[i], '='), *value = is_word ? argv[i] : equals ? equals + 1 : NULL;
        REQUIRE(!is_word || positional, "'%.100s': unexpected; options begin with --, a flag takes no value, and a "
                "value of several words needs quotes (--help lists the options)", argv[i]);
        snprintf(typed, sizeof typed, "%s%.*s", is_word ? "--" : "", (int)strcspn(argv[i], "="), argv[i]);
        if (!is_word && is_foreign(table, foreign, "", typed, message))
            fail_foreign(table, foreign, argv + i, message);
        Option *option = require_option(table, is_word ? positional : strcmp(typed, "-h") ? typed : "--help");
        const char *name = option->name;
        if (!value) value = option->type == OPTION_FLAG ? "yes" : i + 1 < argc ? argv[++i] : NULL;
        REQUIRE(!option->given || !positional || strcmp(name, positional), "--%s: given twice, the second time as "
                "'%.100s'; a word without dashes is --%s; a pattern that the shell must not expand needs quotes, "
                "'dir/*.bin', and so does a value of several words", name, value ? value : "", name);
        REQUIRE(!option->given, "--%s: given twice", name);
        option->given = ON_COMMAND_LINE;
        REQUIRE(option->type != OPTION_FLAG || equals || i + 1 == argc || !is_choice("yes|no|true|false", argv[i + 1]),
                "--%s %s: a flag takes no value; write --%s or --%s=no", name, argv[i + 1], name, name);
        REQUIRE(value, "--%s: want a value, got nothing", name);
        const int is_value = (*value || takes_empty(option)) && (equals || is_word || !is_prefix("--", value));
        REQUIRE(is_value, "--%s: want a value, got '%.100s' (write a value that begins with dashes as --%s=VALUE)",
                name, value, name);
        option_set(option, value);
    }
}

/* ---- --config */

static const char BLANKS[] = " \t\r";

/* Ends the value that begins at text with a zero byte, without quotes and escapes. */
static void end_value(char *text) {
    char quote = *text, *from = text, *to = text;
    if (quote != '"' && quote != '\'') {
        while (*from && !(*from == '#' && (from == text || strchr(BLANKS, from[-1])))) from++;
        while (from > text && strchr(BLANKS, from[-1])) from--;
        *from = 0;
        return;
    }
    while (*++from && *from != quote) {
        char c = *from;
        if (c == '\\' && quote == '"') {
            c = *++from;
            REQUIRE(c && strchr("nt\"\\", c), "\\%.1s: want \\n, \\t, \\\" or \\\\ in \"...\"", from);
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        *to++ = c;
    }
    REQUIRE(*from, "want a closing %c", quote);
    from++;
    from += strspn(from, BLANKS);
    REQUIRE(!*from || *from == '#', "'%.100s' after the closing %c: want the end of the line or #", from, quote);
    *to = 0;
}

typedef struct { Option *table; const ObsoleteOption *obsolete; char *line; } ConfigLine;

/* The name at the start of a line, with dashes. Returns its end. */
static char *line_name(char *line, char typed[64]) {
    char *name = line + strspn(line, BLANKS);
    int length = (int)strcspn(name, " \t\r=#");
    snprintf(typed, 64, "--%.*s", length, name);
    return name + length;
}

static void read_line(void *argument) {
    ConfigLine *config = argument;
    char *name = config->line + strspn(config->line, BLANKS), typed[64], *end = line_name(config->line, typed);
    char *value = end + strspn(end, BLANKS);
    if (!*name || *name == '#') return;
    check_utf8(config->line, "");
    REQUIRE(end > name && *name != '-' && *value == '=', "'%.100s': want name = value", name);
    value++;
    value += strspn(value, BLANKS);
    int is_quoted = *value == '"' || *value == '\'';
    end_value(value);
    if (option_is_obsolete(config->obsolete, typed + 2, value)) return;
    Option *option = require_option(config->table, typed), copy = *option;
    REQUIRE(option->role != ROLE_COMMAND || !strcmp(option->name, "out"), "--%s belongs on the command line",
            option->name);
    REQUIRE(!(option->given & IN_FILE), "--%s: given twice", option->name);
    REQUIRE(*value || (is_quoted && takes_empty(option)), "--%s: want a value", option->name);
    int64_t unused[1];
    if (option->given) copy.value = unused;         /* the command line wins: the value is only checked */
    option_set(&copy, value);
    option->given |= IN_FILE;
}

void options_read(Option *table, const ForeignOption *foreign, const ObsoleteOption *obsolete, const char *path) {
    static char *text;                      /* not freed: text options point into it */
    FileMap map = file_map(path);
    char why[FAIL_LENGTH], message[FAIL_LENGTH] = "", typed[64], where[sizeof(Path)];
    text = memcpy(host_alloc((size_t)map.size + 1, path), map.bytes, (size_t)map.size);
    REQUIRE(strlen(text) == (size_t)map.size, "%s: has a zero byte, want a text of lines name = value", path);
    file_unmap(map);
    for (int number = 1; *text; number++) {
        char *end = text + strcspn(text, "\n"), *next = end + (*end == '\n');
        *end = 0;
        ConfigLine line = { table, obsolete, text };
        snprintf(where, sizeof where, "%s:%d: ", path, number);
        line_name(text, typed);
        const int is_option = find_obsolete(obsolete, typed + 2) || !is_foreign(table, foreign, where, typed, message);
        if (is_option && fails(read_line, &line, why) && !*message)
            fail("%s%s", where, why);
        text = next;
    }
    REQUIRE(!*message, "%s", message);
}

static int is_plain(const char *word) {
    return *word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+")];
}

int option_is_setting(const Option *o) {
    char text[256];
    return o->name && o->role != ROLE_COMMAND && *option_text(o, text);
}

void options_write(FILE *file, const Option *table) {
    for (const Option *o = table; !at_end(o); o++) {
        char text[256];
        if (!option_is_setting(o)) continue;
        const char *value = option_text(o, text), *quote = is_plain(value) ? "" : "\"";
        fprintf(file, "%s = %s", o->name, quote);
        for (; *value; value++) {
            if (strchr("\n\t\"\\", *value)) fputc('\\', file);
            fputc(*value == '\n' ? 'n' : *value == '\t' ? 't' : *value, file);
        }
        fprintf(file, "%s\n", quote);
    }
}

/* ---- --help */

/* Prints the words of a text between the columns HELP_LEFT and HELP_COLUMNS, on a new line where the cursor is beyond
   HELP_LEFT. column: of the cursor. */
static void print_wrapped(FILE *file, int column, const char *text) {
    const char *start = text;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column + 1 + length > HELP_COLUMNS || (column >= HELP_LEFT && text == start)) {
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
        int is_number = o->type == OPTION_INTEGER || o->type == OPTION_REAL, is_flag = o->type == OPTION_FLAG;
        const char *values = is_flag ? "" : is_number ? "N" : o->choices ? o->choices : "NAME";
        const char *argument = o->argument ? o->argument : values;
        char text[1024];
        const char *fallback = o->fallback && !(is_flag && !strcmp(o->fallback, "no")) ? o->fallback : "";
        snprintf(text, sizeof text, "%s%s%s%s", o->help, *fallback ? " (default " : "", fallback, *fallback ? ")" : "");
        print_wrapped(file, fprintf(file, "  --%s%s%s", o->name, *argument ? " " : "", argument), text);
    }
}

/* ---- the log */

void print_quoted(FILE *file, const char *word) {
    const char *quote = is_plain(word) ? "" : "'";
    fputs(quote, file);
    for (; *word; word++) {
        if (*word == '\'') fputs("'\\''", file);
        else fputc((unsigned char)*word < ' ' ? '?' : *word, file);
    }
    fputs(quote, file);
}

char *command_line(int argc, char **argv) {
    char *text = NULL;
    size_t size;
    FILE *file = string_open(&text, &size, "the command line");
    for (int i = 0; i < argc; i++) {
        if (i) fputc(' ', file);
        print_quoted(file, argv[i]);
    }
    fclose(file);
    return text;
}
