/* json.h - A strict JSON reader (RFC 8259) for small, untrusted files, and a writer of strings. */
#ifndef LLMC_JSON_H
#define LLMC_JSON_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "files.h"

/* The types of values; JSON_ANY is only an argument of json_member. */
typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT, JSON_ANY } JsonType;

typedef struct Json {
    JsonType     type;
    int          count;       /* number of children */
    const char  *key;         /* name of an object's member, else NULL */
    const char  *text;        /* a string (UTF-8, unescaped, no NUL inside), or the digits of a number */
    const char  *where;       /* the file, for messages */
    struct Json *parent;      /* NULL = none */
    struct Json *child;       /* first element or member */
    struct Json *next;        /* sibling */
} Json;

/* Parses all of text; errors begin with where: "FILE: byte 17: ...", counted from 0. A depth over 32, bad escapes, bad
   UTF-8 and anything after the value are errors; half of an escaped surrogate pair is U+FFFD. Takes memory proportional
   to size; json_free takes the root. */
Json *json_parse(const char *text, size_t size, const char *where);
Json *json_open (const char *path);                             /* a file */
Json *json_parse_line(const FileLine *line, const char *path);  /* a line of JSONL, an object: "PATH: line 3: ..." */
void  json_free (Json *root);

/* The member of that name; NULL when there is none or object is no object. Fails when the key occurs twice. */
const Json *json_find(const Json *object, const char *key);

/* Fail when the member is missing, or a value is of another type, no finite number, no integer ("1.5" and "1e3" are
   none), or out of range. */
const Json *json_member (const Json *object, const char *key, JsonType type);
const char *json_string (const Json *object, const char *key);
int64_t     json_integer(const Json *value, int64_t min, int64_t max);
double      json_real   (const Json *value);

_Noreturn void json_refuse(const Json *value, const char *want);    /* FILE: "a.shape" is 5, want an array */
const char *json_text(const Json *value);              /* for messages: the digits, the text, "null", "an array" */
void json_write_string(FILE *file, const char *text);  /* quoted and escaped; bytes that are not UTF-8 as U+FFFD */

#endif
