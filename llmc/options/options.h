/* options.h - Options, from the command line and from a file. One table is read by the parser, --help, the log and
   the checkpoints. It ends with a row of zeros. */
#pragma once
#include "../base/base.h"

typedef enum { OPTION_FLAG, OPTION_INTEGER, OPTION_REAL, OPTION_TEXT, OPTION_CHOICE } OptionType;

/* COMMAND: what to do now, neither in settings.txt nor in a checkpoint. FREE: in settings.txt. KEPT: in both, and a
   resume keeps it unless another value is given. */
typedef enum { ROLE_COMMAND, ROLE_FREE, ROLE_KEPT } OptionRole;

enum { ON_COMMAND_LINE = 1, IN_FILE = 2 };

/* A row without a name is the title of a group, its help, or, with aliases, what an error message answers to these: its
   help. The aliases are then options of earlier versions if it has choices, the values with which they do nothing; with
   ours, options in other units, whose value the command in the message has in ours. */
typedef struct {
    const char *name;          /* without the dashes */
    OptionType  type;
    void       *value;         /* int * (flag), int64_t *, double *, const char ** (text and choice) */
    const char *fallback;      /* the default as text; NULL = none (no, 0, NaN, NULL) */
    double      min, max;      /* numbers: the range, ends included; of integers within 2^63 */
    const char *choices;       /* "cosine|linear|wsd"; of an integer: a word that stands for 0, below its range */
    const char *argument;      /* the value's name in --help: "FILE"; NULL = "N" for a number, the choices, or "NAME" */
    const char *help;
    const char *aliases;       /* names in other programs, for messages; '-' for '_', between blanks; "-b": one dash */
    const char *ours;          /* an option, and factors, or values and ours: "min-lr lr", "recompute 0=none 1=gelu" */
    int         given;         /* set by the parser: 0 = the default, or ON_COMMAND_LINE | IN_FILE */
    OptionRole  role;
} Option;

/* Sets every default, then reads argv: --name value, --name=value, --flag (or --flag yes, --flag=no), -h for --help,
   -v for --version; '_' in a name is '-'. Of an option given twice the later value counts. positional: the option whose
   value is a word without dashes, which must not have one yet; config: the option whose value is a file to read then,
   as is a word FILE.py; NULL = none. Text and choice values point into argv.
   Fails on an unknown option and a missing or bad value. Only an option whose default is "" takes an empty value.
   Aliases are answered in a line each, then all errors are printed, and a command with the same values ends the
   message.
   The file has lines name = value; what the command line has is checked, not set. A value is "...", with the escapes
   \n \t \" \\, or '...', or all up to the end or to white space and #, which begins a comment. Its errors have
   FILE:LINE: in front; commands except out are errors. Values live until the process ends. */
void options_parse(Option *table, const char *positional, const char *config, int argc, char **argv);

/* Writes all FREE and KEPT options that have a value, for config, which then sets the same values to the bit. */
void options_write(FILE *file, const Option *table);

/* The number of a word among choices, between '|' or blanks: of "linear" in "cosine|linear|wsd" 1; -1 = none of
   them. */
int choice_index(const char *choices, const char *word);

/* Sets one option as the command line would. Numbers are "1500", "1.5e3", "1.5k", with k M G = 1000^n and Ki Mi Gi =
   1024^n; an integer option takes all that is exactly an integer. "" removes the value of an option without a default,
   so that option_set(o, option_text(o)) changes nothing. The option keeps the pointer to a text or choice. */
void option_set(const Option *option, const char *value);

/* The value as text that option_set accepts: "0.0003", "flash", "yes"; "" for an option with neither value nor default.
   Returns text, the value itself of a text or choice, or a constant. */
const char *option_text(const Option *option, char text[256]);

Option *options_find(Option *table, const char *name);              /* NULL when there is none */
void options_help(FILE *file, const Option *table);                 /* 79 columns at most */

/* Whether the user typed it, also where a file of --config has another value. */
int  option_is_typed(Option *table, const char *name);

/* The row of an option of earlier versions with a value that this one cannot have; NULL for all others. */
const Option *options_find_gone(const Option *table, const char *name, const char *value);

/* argv, a new string, and one word, of which two results are valid at a time, quoted for a shell: plain words as they
   are, others in '...' (a ' in them as '\''). Printable (kernels/check.h). */
char       *command_line(int argc, char **argv);
const char *shell_word(const char *word);
