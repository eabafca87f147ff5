/* llmc/checkpoint/json.h - A strict reader of JSON (RFC 8259) for small files that strangers may have written. */
#ifndef LLMC_JSON_H
#define LLMC_JSON_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_LONGEST = 100000000 };     /* bytes of a text: the limit that safetensors sets for its header */

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

typedef struct Json {
    JsonType     type;
    int          count;       /* of children */
    const char  *key;         /* of a member of an object, else NULL */
    const char  *text;        /* of a string (UTF-8, unescaped, no NUL inside) or the digits of a number */
    struct Json *child;       /* first element or member */
    struct Json *next;        /* sibling */
} Json;

/* Parses all of text; where names the file in errors: "FILE: byte 17: ..." in one line, counted from 0. Duplicate keys,
   depth over 32, bad escapes, bad UTF-8 and anything after the value are errors. Memory: proportional to size.
   json_free takes the root. */
Json *json_parse(const char *text, size_t size, const char *where);
Json *json_open (const char *path);                             /* of a file */
void  json_free(Json *root);

const Json *json_find(const Json *object, const char *key);     /* NULL when there is none or it is no object */

/* Fail in a line when the key is missing, of another type or out of range. */
int64_t     json_integer(const Json *object, const char *key, int64_t least, int64_t most, const char *where);
double      json_real   (const Json *object, const char *key, const char *where);
const char *json_string (const Json *object, const char *key, const char *where);

/* Exact: "1.5" and "1e3" are not integers. ok: it is one, from least to most. */
int64_t json_to_integer(const Json *number, int64_t least, int64_t most, int *ok);
const char *json_text(const Json *value);              /* for messages: the digits, the text, "null", "an array" */
void json_write_string(FILE *file, const char *text);  /* quoted, escaped; what is not UTF-8 becomes U+FFFD */

#endif
