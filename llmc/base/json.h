/* json.h - A JSON reader for untrusted files, RFC 8259 and what else Python's json writes, and a writer of strings. */
#pragma once
#include "files.h"

/* The types of values; JSON_ANY is only an argument of json_member. */
typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT, JSON_ANY } JsonType;

typedef struct Json {
    JsonType     type;
    int          count;       /* number of children */
    const char  *key;         /* name of an object's member, else NULL */
    const char  *text;        /* a string (UTF-8, unescaped), or a number as it is written */
    size_t       size;        /* bytes of a string, which may have a NUL inside; a NUL follows */
    const char  *where;       /* the file, for messages */
    struct Json *parent;      /* NULL = none */
    struct Json *child;       /* first element or member */
    struct Json *next;        /* sibling */
} Json;

/* Parses all of text; errors begin with where: "FILE: byte 17: ...", counted from 0. A byte order mark is skipped; NaN,
   Infinity and -Infinity are numbers; half of an escaped surrogate pair is U+FFFD; of a member given twice the last
   counts. Bad escapes, bad UTF-8 and anything after the value are errors. Takes memory proportional to size; json_free
   takes the root. */
Json *json_parse(const char *text, size_t size, const char *where);
Json *json_open (const char *path);                             /* a file */
/* A line of JSONL, an object, with errors "PATH: line 3: ..."; NULL = a blank line. */
Json *json_parse_line(const FileLine *line, const char *path);
void  json_free (Json *root);

/* The member of that name; NULL when there is none or object is no object. */
const Json *json_find(const Json *object, const char *key);

/* Fail when the member is missing, or a value is of another type, no finite number, no integer ("1.5" and "1e3" are
   none), out of range, or for json_string has a NUL. */
const Json *json_member (const Json *object, const char *key, JsonType type);
const char *json_string (const Json *object, const char *key);
int64_t     json_integer(const Json *value, int64_t min, int64_t max);
double      json_real   (const Json *value);

_Noreturn void json_refuse(const Json *value, const char *want);    /* FILE: "a.shape" is 5, want an array */
const char *json_text(const Json *value);              /* for messages: the digits, the text, "null", "an array" */
void json_write_string(FILE *file, const char *text);  /* quoted and escaped; bytes that are not UTF-8 as U+FFFD */
