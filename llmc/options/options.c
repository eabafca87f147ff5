#include "options.h"

enum { HELP_COLUMNS = 79, HELP_LEFT = 24 };      /* HELP_LEFT: where the help begins */
#define BLANKS " \t"

static int at_end(const Option *row) { return !row->name && !row->help; }

/* ---- values to text */

/* The shortest of %.6g, %.7g, ... that reads back as the same number: "0.0003", "1e-5", "1e6". */
static const char *real_text(double value, char text[32]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    char *exponent = strchr(text, 'e');
    if (exponent) {                                  /* "e-05" -> "e-5", "e+06" -> "e6" */
        char *to = exponent + 1 + (exponent[1] == '-'), *from = exponent + 1;
        from += strspn(from, "+-0");
        memmove(to, from, strlen(from) + 1);
    }
    return text;
}

const char *option_text(const Option *option, char text[256]) {
    const void *value = option->value;
    const int is_word = option->type == OPTION_TEXT || option->type == OPTION_CHOICE;
    if (is_word)                             return *(const char **)value ? *(const char **)value : "";
    if (option->type == OPTION_FLAG)         return *(int *)value ? "yes" : "no";
    if (!option->given && !option->fallback) return "";
    if (option->type == OPTION_REAL)         return real_text(*(double *)value, text);
    if (option->choices && !*(int64_t *)value) return option->choices;
    snprintf(text, 256, "%" PRId64, *(int64_t *)value);
    return text;
}

/* ---- text to values */

int choice_index(const char *choices, const char *word) {
    size_t length = strcspn(word, "| ");
    if (word[length]) return -1;
    for (int i = 0; choices; i++, choices = strpbrk(choices, "| ")) {
        choices += i > 0;
        if (!strncmp(choices, word, length) && strchr("| ", choices[length])) return i;     /* or the end */
    }
    return -1;
}

/* The value of "1500", "1.5e3", "1.5k" or "1.5Ki"; NAN for another text (strtod also accepts " 1", "0x1p3", "inf"). The
   64 bits of a long double hold every int64_t; a double is rounded once. */
static long double number_of(const char *text, int is_integer) {
    static const struct { const char *name; int tens, twos; } units[] = {
        { "", 0, 0 }, { "k", 3, 0 }, { "K", 3, 0 }, { "M", 6, 0 }, { "G", 9, 0 },
        { "Ki", 0, 10 }, { "Mi", 0, 20 }, { "Gi", 0, 30 },
    };
    char decimal[64], *end;
    size_t length = strspn(text, "+-.0123456789eE"), i = 0, count = sizeof units / sizeof *units;
    while (i < count && strcmp(text + length, units[i].name)) i++;
    if (i == count || length >= sizeof decimal - 4) return NAN;
    snprintf(decimal, sizeof decimal, "%.*s", (int)length, text);
    if (units[i].tens) sprintf(decimal + length, "e%d", units[i].tens);    /* 1.005 x 1000 would be inexact */
    errno = 0;
    long double number = is_integer ? strtold(decimal, &end) : strtod(decimal, &end);
    return errno || end == decimal || *end ? NAN : ldexpl(number, units[i].twos);
}

static void set_number(const Option *option, const char *text) {
    const int is_integer = option->type == OPTION_INTEGER, is_word = option->choices && !strcmp(text, option->choices);
    const long double number = is_word ? 0 : number_of(text, is_integer);
    char min[32], max[32];
    REQUIRE(is_word || (number >= option->min && number <= option->max && (!is_integer || number == rintl(number))),
            "--%s %.100s: want %s, %s .. %s%s%s", option->name, text, is_integer ? "an integer" : "a number",
            real_text(option->min, min), real_text(option->max, max), option->choices ? ", or " : "",
            option->choices ? option->choices : "");
    if (is_integer) *(int64_t *)option->value = (int64_t)number;
    else            *(double *)option->value = (double)number + 0.0;       /* no negative zero */
}

void option_set(const Option *option, const char *value) {
    const int is_flag = option->type == OPTION_FLAG, is_number = option->type == OPTION_INTEGER ||
              option->type == OPTION_REAL;
    const char *choices = is_flag ? "yes|no" : option->choices;
    if (!*value && !option->fallback) {
        memset(option->value, 0, is_flag ? sizeof(int) : sizeof(int64_t));
        if (option->type == OPTION_REAL) *(double *)option->value = NAN;
        return;
    }
    REQUIRE(is_number || option->type == OPTION_TEXT || choice_index(choices, value) >= 0, "--%s %.100s: want %s%s",
            option->name, value, choices, is_flag ? ", or the flag alone" : "");
    if (is_number)    set_number(option, value);
    else if (is_flag) *(int *)option->value = *value == 'y';
    else              *(const char **)option->value = value;
}

/* ---- names */

Option *options_find(Option *table, const char *name) {
    for (Option *option = table; !at_end(option); option++)
        if (option->name && !strcmp(option->name, name)) return option;
    return NULL;
}

int option_is_typed(Option *table, const char *name) {
    return (options_find(table, name)->given & ON_COMMAND_LINE) != 0;
}

/* The row that has the name among its aliases, or NULL. */
static Option *find_alias(const Option *table, const char *name) {
    for (const Option *row = table; !at_end(row); row++)
        if (choice_index(row->aliases, name) >= 0) return (Option *)row;
    return NULL;
}

const Option *options_find_gone(const Option *table, const char *name, const char *value) {
    const Option *row = find_alias(table, name);
    return row && !row->name && row->choices && choice_index(row->choices, value) < 0 ? row : NULL;
}

/* ---- the command line and --config: names and values as they are typed */

/* The value's name in --help, "" for a flag. */
static const char *argument_of(const Option *o) {
    const int is_number = o->type == OPTION_INTEGER || o->type == OPTION_REAL;
    return o->argument ? o->argument : o->type == OPTION_FLAG ? "" : is_number ? "N" : o->choices ? o->choices : "NAME";
}

/* An option as it is typed, on the command line or in a file. */
typedef struct {
    Option     *table;
    const char *where;              /* "FILE:LINE: ", or "" */
    char        typed[64];          /* the name with its dashes */
    char        name[64];           /* as it is in the table */
    const char *value;              /* NULL = none */
    char       *line;               /* line of a file, with the value; NULL = the command line */
    int         is_foreign;         /* there were names of other programs, which are answered; errors are printed */
    int         is_python;
} Typed;

static void set_name(Typed *t, const char *dashes, const char *word) {
    snprintf(t->typed, sizeof t->typed, "%s%.*s", dashes, (int)strcspn(word, *dashes ? " \t=#" : "="), word);
    snprintf(t->name, sizeof t->name, "%s", t->typed + (strncmp(t->typed, "--", 2) ? 0 : 2));
    for (char *c = t->name; (c = strchr(c, '_')); ) *c = '-';
}

/* The value of a line `name = value`, which ends with a zero byte then; NULL = no such line. */
static char *value_of_line(char *line) {
    char *at = line + strcspn(line, " \t=#"), *value, *end;
    at += strspn(at, BLANKS);
    if (at == line || *line == '-' || *at++ != '=') return NULL;
    at += strspn(at, BLANKS);
    const char quote = *at == '"' || *at == '\'' ? *at++ : 0;
    for (value = end = at; *at && !(quote ? *at == quote : *at == '#' && strchr(BLANKS "=", at[-1])); at++) {
        if (quote == '"' && *at == '\\') {
            if (!*++at || !strchr("nt\"\\", *at)) return NULL;
            *at = *at == 'n' ? '\n' : *at == 't' ? '\t' : *at;
        }
        *end++ = *at;
    }
    while (!quote && end > value && strchr(BLANKS, end[-1])) end--;
    if (quote && !*at++) return NULL;
    at += strspn(at, BLANKS);
    if (*at && *at != '#') return NULL;
    *end = 0;
    return value;
}

/* A name of another program, or an option that is gone. */
static void answer(Typed *t, Option *row) {
    const int is_gone = !row->name && row->choices;
    if (is_gone && t->value && !options_find_gone(t->table, t->name, t->value)) return;
    t->is_foreign = 1;
    if (row->ours && (!t->line || !row->value)) row->value = (void *)t->value;      /* the command line wins */
    const char *argument = row->name ? argument_of(row) : "", *space = *argument ? " " : "";
    if (row->name) print_line(stderr, "%s%s: use --%s%s%s (%s)", t->where, t->typed, row->name, space, argument,
                              row->help);
    else           print_line(stderr, "%s%s: %s%s", t->where, t->typed, is_gone ? "this option is gone; " : "",
                              row->help);
}

static void set_typed(void *argument) {
    Typed *t = argument;
    char shown[101] = "";
    if (t->line) {
        snprintf(shown, sizeof shown, "%s", t->line);
        t->value = value_of_line(t->line);
    }
    Option *option = options_find(t->table, t->name);
    if (!option && (option = find_alias(t->table, t->name))) {
        answer(t, option);
        if (!option->name || !t->value) return;
    }
    REQUIRE(!t->line || t->value, "'%s': want name = value, the value as it is, in '...', or in \"...\" with \\n, \\t, "
            "\\\", \\\\ only", shown);
    REQUIRE(option, "%s: no such option (--help lists the options)", t->typed);
    REQUIRE(!t->line || option->role != ROLE_COMMAND || !strcmp(option->name, "out"), "--%s belongs on the command "
            "line", option->name);
    REQUIRE(t->value && (*t->value || (option->fallback && !*option->fallback)), "--%s: want a value, got %s (one that "
            "begins with dashes: --%s=VALUE)", option->name, t->value ? "''" : "nothing", option->name);
    Option copy = *option;
    int64_t unused;
    if (t->line && option->given & ON_COMMAND_LINE) copy.value = &unused;    /* it wins: the value is only checked */
    option_set(&copy, t->value);
    option->given |= t->line ? IN_FILE : ON_COMMAND_LINE;
}

static void read_typed(Typed *t) {
    char why[FAIL_LENGTH];
    if (!fails(set_typed, t, why)) return;
    if (!t->is_foreign) fail("%s%s%s", t->where, why, t->is_python ? "; a text to train on needs --data" : "");
    print_line(stderr, "%s%s", t->where, why);
}

static void read_file(Typed *t, const char *path) {
    static char *text;                      /* not freed: text options point into it */
    const FileMap map = file_map(path);
    char where[sizeof(Path)];
    text = memcpy(host_alloc((size_t)map.size + 1, path), map.bytes, (size_t)map.size);
    REQUIRE(strlen(text) == (size_t)map.size, "%s: has a zero byte, want a text of lines name = value", path);
    file_unmap(map);
    t->where = where;
    t->is_python = ends_with(path, ".py");         /* a config file of nanoGPT */
    for (FileLine line = {0}; file_next_line((FileMap){ (unsigned char *)text, map.size }, &line); ) {
        t->line = (char *)line.text;
        t->line[line.size] = 0;
        t->line += strspn(t->line, BLANKS);
        snprintf(where, sizeof where, "%s:%lld: ", path, (long long)line.number);
        set_name(t, "--", t->line);
        if (*t->line && *t->line != '#' && !(t->is_python && !strncmp(t->line, "import ", 7))) read_typed(t);
    }
}

/* 40 for "5 * 8", as files of nanoGPT have it; NAN for other texts. */
static double product_of(const char *text) {
    double product = 1;
    for (char *end; ; text = end + 1) {
        product *= strtod(text, &end);
        if (end == text) return NAN;
        end += strspn(end, BLANKS);
        if (*end != '*') return *end ? NAN : product;
    }
}

/* Sets the option that a row with ours stands for, unless a factor is not known. */
static void convert(Option *table, const Option *row) {
    char *rest = format_string("%s", row->ours), text[256];     /* not freed: the option may point into it */
    Typed t = { .table = table, .where = "", .is_foreign = 1 };
    set_name(&t, "--", strsep(&rest, " "));
    double product = product_of(row->value);
    for (char *word; (word = strsep(&rest, " ")); ) {
        char *equals = strchr(word, '=');
        const Option *factor = equals ? NULL : options_find(table, word);
        if (equals) *equals = 0;
        if (equals && !strcmp(word, row->value)) t.value = equals + 1;
        if (factor) product *= factor->given ? product_of(option_text(factor, text)) : NAN;
    }
    const Option *option = options_find(table, t.name);
    if (!option->choices && option->type != OPTION_FLAG && !isnan(product))
        t.value = format_string("%.15g", option->type == OPTION_INTEGER ? rint(product) : product);
    if (t.value && !option->given) read_typed(&t);
}

/* Ends with a command of the same values, FILE where data are missing; what has no counterpart was answered. */
static void fail_with_command(const Option *table, const Option *data, const Option *config, const char *program) {
    char *command, text[256];
    const char *name = data && data->given ? *(const char **)data->value : NULL;
    const char *path = config && config->given ? *(const char **)config->value : "";
    size_t size;
    FILE *file = string_open(&command, &size, "the command");
    for (const Option *o = table; !at_end(o); o++) {
        if (!o->given || o == data || o == config) continue;
        const char *value = option_text(o, text);
        fprintf(file, " --%s", o->name);
        if (o->type != OPTION_FLAG || *value == 'n')
            fprintf(file, " %s", command_line(1, (char *[]){ (char *)value }));   /* shell_word would keep it */
        if (o->role == ROLE_COMMAND && strcmp(o->name, "out")) data = NULL;      /* --sample needs none */
    }
    fclose(file);
    const char *start = command_line(name ? 2 : 1, (char *[]){ (char *)program, (char *)name });
    name = name || !data ? "" : argument_of(data);
    fail("%s%swhat has a counterpart here: %s%s%s%s", path, *path ? ": " : "", start, *name ? " " : "", name, command);
}

void options_parse(Option *table, const char *positional, const char *config, int argc, char **argv) {
    Typed t = { .table = table, .where = "" };
    for (Option *option = table; !at_end(option); option++) {
        option->given = 0;
        if (option->name) option_set(option, option->fallback ? option->fallback : "");
        else              option->value = NULL;
    }
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL, *equals = strchr(word, '=');
        const int is_short = !next || *next < '0' || *next > '9';           /* llm.c's -h and -v have a number */
        if (is_short && (!strcmp(word, "-h") || (i == 1 && !strcmp(word, "help")))) word = "--help";
        if (is_short && !strcmp(word, "-v")) word = "--version";
        const int is_first = i == 1 && *word != '-' && !file_exists(word);
        const Option *command = is_first ? find_alias(table, word) : NULL;      /* train_gpt train FILE */
        const int is_word = *word != '-' && !command, is_python = is_word && config && ends_with(word, ".py");
        const char *for_word = is_python ? config : positional;
        if (is_word && t.is_foreign && options_find(table, for_word)->given) continue;
        REQUIRE(!is_word || (for_word && !options_find(table, for_word)->given), "'%.100s': unexpected; options "
                "begin with --, a flag takes no value; a value of several words needs quotes, and so does a pattern "
                "that the shell must not expand, 'dir/*.bin' (--help lists the options)", word);
        set_name(&t, is_word ? "--" : "", is_word ? for_word : word);
        const Option *option = options_find(table, t.name);
        const int is_flag = option && option->type == OPTION_FLAG;
        const int takes_next = !is_word && !equals && next && (is_flag ? choice_index("yes|no|true|false", next) >= 0 :
                               option ? strncmp(next, "--", 2) != 0 : *next != '-' && (!command || command->name));
        t.value = is_word ? word : equals ? equals + 1 : takes_next ? argv[++i] : is_flag ? "yes" : NULL;
        read_typed(&t);
    }
    const Option *file = config ? options_find(table, config) : NULL;
    if (file && file->given) read_file(&t, *(const char **)file->value);
    for (const Option *row = table; !at_end(row); row++)
        if (!row->name && row->value) convert(table, row);
    if (t.is_foreign) fail_with_command(table, positional ? options_find(table, positional) : NULL, file, argv[0]);
}

static int is_plain(const char *word) {
    return *word && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+")];
}

void options_write(FILE *file, const Option *table) {
    for (const Option *o = table; !at_end(o); o++) {
        char text[256];
        const char *value = o->name && o->role != ROLE_COMMAND ? option_text(o, text) : "";
        const char *quote = is_plain(value) ? "" : "\"";
        if (!*value) continue;
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
        if (!o->name && !o->aliases) fprintf(file, "%s%s\n", o > table ? "\n" : "", o->help);
        if (!o->name) continue;
        char text[1024];
        const int has_default = o->fallback && *o->fallback && !(o->type == OPTION_FLAG && *o->fallback == 'n');
        snprintf(text, sizeof text, "%s%s%s%s", o->help, has_default ? " (default " : "",
                 has_default ? o->fallback : "", has_default ? ")" : "");
        const char *argument = argument_of(o);
        print_wrapped(file, fprintf(file, "  --%s%s%s", o->name, *argument ? " " : "", argument), text);
    }
}

/* ---- the log */

char *command_line(int argc, char **argv) {
    char *text = NULL;
    size_t size;
    FILE *file = string_open(&text, &size, "the command line");
    for (int i = 0; i < argc; i++) {
        const char *quote = is_plain(argv[i]) ? "" : "'";
        fprintf(file, "%s%s", i ? " " : "", quote);
        for (const char *c = argv[i]; *c; c++) {
            if (*c == '\'') fputs("'\\''", file);
            else            fputc(*c, file);
        }
        fputs(quote, file);
    }
    fclose(file);
    make_printable(text);
    return text;
}

const char *shell_word(const char *word) {
    static char *results[2];
    static int turn;
    char **result = &results[turn ^= 1];
    free(*result);
    return *result = command_line(1, (char *[]){ (char *)word });
}
