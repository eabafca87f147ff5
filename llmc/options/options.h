/* options.h - Options, from the command line and from a file. One table is read by the parser, --help, the log and
   the checkpoints. */
#ifndef LLMC_OPTIONS_H
#define LLMC_OPTIONS_H
#include <stdint.h>
#include <stdio.h>

typedef enum { OPTION_FLAG, OPTION_INTEGER, OPTION_REAL, OPTION_TEXT, OPTION_CHOICE } OptionType;

/* COMMAND: what to do now, neither in settings.txt nor in a checkpoint. FREE: in settings.txt. KEPT: in both, and a
   resume keeps it unless another value is given. */
typedef enum { ROLE_COMMAND, ROLE_FREE, ROLE_KEPT } OptionRole;

enum { ON_COMMAND_LINE = 1, IN_FILE = 2 };

typedef struct {
    const char *name;          /* without the dashes; NULL with help = the title of a group of options */
    OptionType  type;
    void       *value;         /* int * (flag), int64_t *, double *, const char ** (text and choice) */
    const char *fallback;      /* the default as text; NULL = none (no, 0, NULL) */
    double      min, max;      /* numbers: the range, ends included */
    const char *choices;       /* "cosine|linear|wsd"; of an integer: a word that stands for 0, below its range */
    const char *argument;      /* the value's name in --help: "FILE"; NULL = "N" for a number, the choices, or "NAME" */
    const char *help;
    int         given;         /* set by the parser: 0 = the default, or ON_COMMAND_LINE | IN_FILE */
    OptionRole  role;
} Option;

/* Names that other programs use, with '-' for '_', separated by blanks ("-b": with one dash), and what an error message
   answers: "use --batch". The table ends with a row of zeros. */
typedef struct { const char *names, *answer; } ForeignOption;

/* An option that earlier versions had, and those of its values, "no|auto", with which this version does the same. The
   table ends with a row of zeros. */
typedef struct { const char *name, *accepted; } ObsoleteOption;

/* Sets every default, then reads argv: --name value, --name=value, --flag (or --flag=yes, --flag=no), -h for --help;
   '_' in a name is '-'. positional: the option whose value is a word without dashes, NULL = none. foreign: may be NULL.
   Fails on an unknown option (the message names the one that is meant, if that is clear; all names of other programs
   are answered at once, in a line each), on a missing or bad value, an option given twice, and a word that is not
   UTF-8. Only an option whose default is "" takes an empty value. Text and choice values point into argv. The table
   ends with a row of zeros. */
void options_parse(Option *table, const char *positional, const ForeignOption *foreign, int argc, char **argv);

/* Reads a file of lines name = value, after options_parse: what the command line has is checked, but not set. A value
   is "...", with the escapes \n \t \" \\, or '...', or all up to the end or to white space and #, which begins a
   comment. Lines that set obsolete options to accepted values are ignored. Fails as options_parse, with FILE:LINE: in
   front, and on commands except out. Values live until the process ends. */
void options_read(Option *table, const ForeignOption *foreign, const ObsoleteOption *obsolete, const char *path);

/* Whether the name is of an obsolete option; fails if its value is not accepted. obsolete may be NULL. */
int  option_is_obsolete(const ObsoleteOption *obsolete, const char *name, const char *value);

/* Writes all FREE and KEPT options that have a value, for options_read, which then sets the same values to the bit. */
void options_write(FILE *file, const Option *table);

/* The number of a word among choices: of "linear" in "cosine|linear|wsd" 1; -1 = none of them. */
int choice_index(const char *choices, const char *word);

/* Sets one option as the command line would. Numbers are "1500", "1.5e3", "1.5k", with k M G = 1000^n and Ki Mi Gi =
   1024^n; an integer option takes all that is exactly an integer. "" removes the value of an option without a default,
   so that option_set(o, option_text(o)) changes nothing. The option keeps the pointer to a text or choice. */
void option_set(const Option *option, const char *value);
Option *options_find(Option *table, const char *name);              /* NULL when there is none */
void options_help(FILE *file, const Option *table);                 /* 79 columns at most */

/* Whether the user typed it, also where a file of --config has another value. */
int  option_is_typed(Option *table, const char *name);

/* Whether options_write writes it. */
int  option_is_setting(const Option *option);

/* The word quoted for a shell: plain words as they are, others in '...' (a ' in them as '\''), control characters as
   '?': one line, which a terminal can show. */
void print_quoted(FILE *file, const char *word);

/* argv, each word quoted: a new string. */
char *command_line(int argc, char **argv);

/* The value as text that option_set accepts: "0.0003", "flash", "yes"; "" for an option with neither value nor default.
   Returns text, or the value itself of a text or choice. */
const char *option_text(const Option *option, char text[256]);

#endif
