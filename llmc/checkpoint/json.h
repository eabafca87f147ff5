/* llmc/checkpoint/json.h - A strict JSON reader (RFC 8259) for small, untrusted files. */
#ifndef LLMC_JSON_H
#define LLMC_JSON_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_BYTES_MAX = 100000000 };     /* as in the header of a safetensors file */

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct Json {
    JsonType     type;
    int          count;       /* of children */
    const char  *key;         /* of a member of an object, else NULL */
    const char  *text;        /* of a string (UTF-8, unescaped, no NUL inside) or the digits of a number */
    const char  *where;       /* the file, for messages */
    struct Json *child;       /* first element or member */
    struct Json *next;        /* sibling */
} Json;

/* Parses all of text; errors begin with where: "FILE: byte 17: ...", counted from 0. A depth over 32, bad escapes, bad
   UTF-8 and anything after the value are errors. Takes memory proportional to size; json_free takes the root. */
Json *json_parse(const char *text, size_t size, const char *where);
Json *json_open (const char *path);                             /* of a file */
void  json_free(Json *root);

/* The member of that name; NULL when there is none or object is no object. Fails when the key occurs twice. */
const Json *json_find(const Json *object, const char *key);

/* Fail when the key is missing, of another type or out of range. */
const Json *json_member (const Json *object, const char *key);
int64_t     json_integer(const Json *object, const char *key, int64_t min, int64_t max);
const char *json_string (const Json *object, const char *key);

double  json_to_real(const Json *number, const char *key);     /* fails when it is no finite number; key: for that */
/* Exact: "1.5" and "1e3" are not integers. ok: it is one, from min to max. */
int64_t json_to_integer(const Json *number, int64_t min, int64_t max, int *ok);
const char *json_text(const Json *value);              /* for messages: the digits, the text, "null", "an array" */
void json_write_string(FILE *file, const char *text);  /* quoted, escaped; bytes that are not UTF-8 become U+FFFD */

#endif
