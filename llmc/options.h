/* llmc/options.h - Command line options. One table is read by the parser, --help, the banner and the log. */
#ifndef LLMC_OPTIONS_H
#define LLMC_OPTIONS_H
#include <stdint.h>
#include <stdio.h>

typedef enum { OPTION_FLAG, OPTION_INTEGER, OPTION_REAL, OPTION_TEXT, OPTION_CHOICE } OptionType;

/* The value in a resumed run: FREE: as given now; KEPT: as in the checkpoint unless given; FIXED: as in the checkpoint,
   another one is an error. The parser ignores it. */
typedef enum { FREE_ON_RESUME, KEPT_ON_RESUME, FIXED_ON_RESUME } OptionResume;

typedef struct {
    const char *name;          /* without the dashes; NULL with help = the title of a group of options */
    OptionType  type;
    void       *value;         /* int * (flag), int64_t *, double *, const char ** (text and choice) */
    const char *fallback;      /* the default as text; NULL = none (no, 0, NULL) */
    double      min, max;      /* numbers: the range, ends included */
    const char *choices;       /* "cosine|linear|wsd" */
    const char *argument;      /* the value's name in --help: "FILE"; NULL = "N" for a number, else "NAME" */
    const char *help;
    int         given;         /* set by the parser: the command line has it */
    OptionResume resume;
} Option;

/* Sets every default, then reads argv: --name value, --name=value, --flag (or --flag=yes, --flag=no). Fails on an
   unknown option (the message names a similar one; abbreviations are unknown), a missing, empty or malformed value, a
   value out of range, an option given twice, a word that is no option, and a word that is not UTF-8. Text and choice
   values point into argv. The table ends with a row of zeros. */
void options_parse(Option *table, int argc, char **argv);

/* Sets one option as the command line would; "" removes the value of an option without a default, so that
   option_set(o, option_text(o)) changes nothing. The option keeps the pointer to a text or choice. */
void option_set(const Option *option, const char *value);
Option *options_find(Option *table, const char *name);              /* NULL when there is none */
void options_help(FILE *file, const Option *table);                 /* 100 columns at most */

/* The settings as " --name=value", quoted for a shell: all that have a value, or those that differ from their defaults.
   A flag without a default is a command, not a setting. */
void options_print(FILE *file, const Option *table, int all);

/* Whether it is a setting of the run, and has a value; the others only say what to do. */
int  option_is_setting(const Option *option);

/* All settings as lines "name = value". */
void options_write(FILE *file, const Option *table);

/* argv quoted for a shell, a new string: plain words as they are, others in '...' (a ' in them as '\''). Here and in
   options_print, control characters become '?': each is one line, which a terminal can show. */
char *command_line(int argc, char **argv);

/* The value as text that option_set accepts: "0.0003", "flash", "yes"; "" for an option with neither value nor default.
   Returns text, or the value itself of a text or choice. */
const char *option_text(const Option *option, char text[256]);

#endif
