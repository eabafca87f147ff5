/* llmc/options.h - Command line options: one table feeds the parser, --help, the banner and the log. */
#ifndef LLMC_OPTIONS_H
#define LLMC_OPTIONS_H
#include <stdint.h>
#include <stdio.h>

typedef enum { OPTION_FLAG, OPTION_INTEGER, OPTION_REAL, OPTION_TEXT, OPTION_CHOICE } OptionType;

/* What a resumed run does about an option: leave it alone; take the earlier value unless another is given; refuse
   another. */
typedef enum { FREE_ON_RESUME, KEPT_ON_RESUME, FIXED_ON_RESUME } OptionResume;

typedef struct {
    const char *name;          /* without the dashes; NULL with help = the title of a group of options */
    OptionType  type;
    void       *value;         /* int * (flag), int64_t *, double *, const char ** (text and choice) */
    const char *fallback;      /* the default as text; NULL = none (no, 0, NULL) */
    double      least, most;   /* numbers: the range, ends included; -INFINITY, INFINITY = no limit */
    const char *choices;       /* "cosine|linear|wsd" */
    const char *argument;      /* how --help calls the value: "N", "FILE"; NULL for a flag */
    const char *help;          /* '\n' begins a new line */
    int         given;         /* set by the parser: stood on the command line */
    OptionResume resume;       /* for the program's use; the parser does not look at it */
} Option;

/* Sets every default, then reads argv: --name value, --name=value, --flag (or --flag=yes, --flag=no). Fails in a line
   on an unknown option (which names the nearest one; abbreviations are unknown), a missing, empty or malformed value, a
   value out of range, an option given twice, a stray word, a word that is not UTF-8. Text and
   choice values point into argv.
   The table ends with a row of all zeros. */
void options_parse(Option *table, int argc, char **argv);

/* One option, as if value stood on the command line, but "" takes the value of one without a default away, so that
   option_set(o, option_text(o)) changes nothing. The text must live as long as the option. */
void option_set(const Option *option, const char *value);
Option *options_find(Option *table, const char *name);              /* NULL when there is none */
void options_help(FILE *file, const Option *table);                 /* 100 columns at most */

/* What was set, but not the flags without a default, which only say what to do: all as " name=value" for a log, or
   those that are not as by default as " --name=value", which options_parse() takes again. */
void options_print(FILE *file, const Option *table);
void options_print_changed(FILE *file, const Option *table);

/* The words of a command line as a shell would take them again, a new string: plain ones as they are, others in '...'
   (a ' in them as '\''). */
char *command_line(int argc, char **argv);

/* The value as the text that would set it again: "0.0003", "flash", "yes"; "" for one that has neither value nor
   default. Returns text or, for a text of any length, the value itself. */
const char *option_text(const Option *option, char text[256]);

#endif
