#include "json.h"
#include "../files.h"
#include "../os.h"
#include "../../kernels/check.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 32 };

typedef struct {
    const unsigned char *text;
    size_t      size, at;
    char       *copy;          /* strings unescaped, and digits, each at its place in text */
    Json       *free;          /* the next free node */
    const char *where;
} Parser;

static Json *parse_value(Parser *p, int depth);

static _Noreturn void refuse(const Parser *p, const char *want) {
    int c = p->at < p->size ? p->text[p->at] : -1;
    if (c < 0) fail("%s: byte %zu: the text ends, want %s", p->where, p->at, want);
    if (c > ' ' && c < 127) fail("%s: byte %zu: found '%c', want %s", p->where, p->at, c, want);
    fail("%s: byte %zu: found byte 0x%02x, want %s", p->where, p->at, c, want);
}

static int peek(const Parser *p) { return p->at < p->size ? p->text[p->at] : -1; }

static int accept(Parser *p, int c) {
    if (peek(p) != c) return 0;
    p->at++;
    return 1;
}

static int skip_space(Parser *p) {
    while (peek(p) == ' ' || peek(p) == '\t' || peek(p) == '\n' || peek(p) == '\r') p->at++;
    return peek(p);
}

/* ---- Strings */

static char *utf8_put(char *out, unsigned code) {
    int tail = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[4] = { 0, 0xc0, 0xe0, 0xf0 };
    *out++ = (char)(lead[tail] | code >> (6 * tail));
    for (int i = tail - 1; i >= 0; i--) *out++ = (char)(0x80 | (code >> (6 * i) & 0x3f));
    return out;
}

static unsigned parse_hex(Parser *p) {
    unsigned code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        int c = peek(p);
        unsigned digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
                         c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
        if (digit > 15) refuse(p, "four hexadecimal digits after \\u");
        code = code << 4 | digit;
    }
    return code;
}

/* At the 'u' of \uXXXX; a pair of surrogates is one character. */
static unsigned parse_unicode(Parser *p) {
    size_t start = p->at++ - 1;
    unsigned code = parse_hex(p);
    REQUIRE(code, "%s: byte %zu: \\u0000 inside a string, which is not supported", p->where, start);
    if (code < 0xd800 || code > 0xdfff) return code;
    unsigned low = 0;
    if (code < 0xdc00 && accept(p, '\\') && accept(p, 'u')) low = parse_hex(p);
    REQUIRE(low >= 0xdc00 && low <= 0xdfff, "%s: byte %zu: lone surrogate \\u%04x, want a pair", p->where, start, code);
    return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

static const char *parse_string(Parser *p) {
    if (!accept(p, '"')) refuse(p, "a string");
    char *string = p->copy + p->at, *out = string;
    while (!accept(p, '"')) {
        int c = peek(p);
        if (c < 0) refuse(p, "the closing '\"' of a string");
        if (c < ' ') refuse(p, "a character of a string: control characters are written \\u00XX");
        if (c != '\\') {
            size_t length = utf8_length(p->text + p->at, p->size - p->at);
            if (!length) refuse(p, "UTF-8");
            memcpy(out, p->text + p->at, length);
            out += length;
            p->at += length;
            continue;
        }
        p->at++;
        static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        c = peek(p);
        const char *name = c > 0 ? strchr(names, c) : NULL;
        if (c == 'u') {
            out = utf8_put(out, parse_unicode(p));
        } else {
            if (!name) refuse(p, "one of \"\\/bfnrtu after a backslash");
            *out++ = values[name - names];
            p->at++;
        }
    }
    *out = 0;       /* at the closing quote at the latest */
    return string;
}

/* ---- Values */

static void parse_digits(Parser *p) {
    if (peek(p) < '0' || peek(p) > '9') refuse(p, "a digit");
    while (peek(p) >= '0' && peek(p) <= '9') p->at++;
}

static const char *parse_number(Parser *p) {
    size_t start = p->at;
    accept(p, '-');
    if (accept(p, '0')) {
        if (peek(p) >= '0' && peek(p) <= '9') refuse(p, "no digit after a leading zero");
    } else {
        parse_digits(p);
    }
    if (accept(p, '.')) parse_digits(p);
    if (accept(p, 'e') || accept(p, 'E')) {
        if (!accept(p, '+')) accept(p, '-');
        parse_digits(p);
    }
    memcpy(p->copy + start, p->text + start, p->at - start);
    p->copy[p->at] = 0;
    return p->copy + start;
}

static void parse_children(Parser *p, Json *parent, int close, int depth) {
    REQUIRE(depth <= DEPTH, "%s: byte %zu: nested deeper than %d", p->where, p->at - 1, DEPTH);
    if (skip_space(p) == close) {
        p->at++;
        return;
    }
    for (Json **last = &parent->child; ; last = &(*last)->next) {
        const char *key = NULL;
        if (close == '}') {
            if (skip_space(p) != '"') refuse(p, "a key in quotes");
            key = parse_string(p);
            if (skip_space(p) != ':') refuse(p, "':' after a key");
            p->at++;
        }
        *last = parse_value(p, depth);
        (*last)->key = key;
        parent->count++;
        skip_space(p);
        if (accept(p, close)) break;
        if (!accept(p, ',')) refuse(p, close == '}' ? "',' or '}'" : "',' or ']'");
    }
}

static Json *parse_value(Parser *p, int depth) {
    static const struct { const char *word; JsonType type; } words[] = {
        { "null", JSON_NULL }, { "false", JSON_FALSE }, { "true", JSON_TRUE }
    };
    Json *value = p->free++;
    *value = (Json){ .where = p->where };
    int c = skip_space(p);
    if (c == '{' || c == '[') {
        p->at++;
        value->type = c == '{' ? JSON_OBJECT : JSON_ARRAY;
        parse_children(p, value, c == '{' ? '}' : ']', depth + 1);
        return value;
    }
    if (c == '"') {
        value->type = JSON_STRING;
        value->text = parse_string(p);
        return value;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        value->type = JSON_NUMBER;
        value->text = parse_number(p);
        return value;
    }
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i].word);
        if (p->size - p->at < length || memcmp(p->text + p->at, words[i].word, length)) continue;
        p->at += length;
        value->type = words[i].type;
        return value;
    }
    refuse(p, "a value");
}

/* One allocation: the nodes, a copy of the text, a copy of where. Every value but the first follows a ',', '[', or '{'.
 */
Json *json_parse(const char *text, size_t size, const char *where) {
    REQUIRE(size <= JSON_BYTES_MAX, "%s: %zu bytes of JSON, want at most %d", where, size, JSON_BYTES_MAX);
    size_t nodes = 1;
    for (size_t i = 0; i < size; i++) nodes += text[i] == ',' || text[i] == '[' || text[i] == '{';
    Json *root = malloc(nodes * sizeof *root + size + 1 + strlen(where) + 1);
    REQUIRE(root, "%s: out of memory for %zu values of JSON", where, nodes);
    char *copy = (char *)(root + nodes), *where_copy = strcpy(copy + size + 1, where);
    Parser p = { (const unsigned char *)text, size, 0, copy, root, where_copy };
    parse_value(&p, 0);
    skip_space(&p);
    if (p.at < size) refuse(&p, "the end of the text");
    return root;
}

Json *json_open(const char *path) {
    FileMap map = file_map(path);
    Json *root = json_parse((const char *)map.bytes, (size_t)map.size, path);
    file_unmap(map);
    return root;
}

void json_free(Json *root) { free(root); }

/* ---- Reading values */

const Json *json_find(const Json *object, const char *key) {
    const Json *found = NULL;
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (const Json *member = object->child; member; member = member->next) {
        if (strcmp(member->key, key)) continue;
        REQUIRE(!found, "%s: the key \"%.80s\" occurs twice", object->where, key);
        found = member;
    }
    return found;
}

const char *json_text(const Json *value) {
    static const char *const name[] = { "null", "false", "true", NULL, NULL, "an array", "an object" };
    return value->text ? value->text : name[value->type];
}

const Json *json_member(const Json *object, const char *key) {
    const Json *value = json_find(object, key);
    REQUIRE(value, "%s: \"%s\" is missing", object->where, key);
    return value;
}

int64_t json_to_integer(const Json *number, int64_t min, int64_t max, int *ok) {
    *ok = 0;
    if (number->type != JSON_NUMBER || number->text[strspn(number->text, "-0123456789")]) return 0;
    errno = 0;
    int64_t value = strtoll(number->text, NULL, 10);
    *ok = !errno && value >= min && value <= max;
    return value;
}

int64_t json_integer(const Json *object, const char *key, int64_t min, int64_t max) {
    const Json *value = json_member(object, key);
    int ok;
    int64_t integer = json_to_integer(value, min, max, &ok);
    REQUIRE(ok, "%s: \"%s\" is %.80s, want an integer from %lld to %lld", object->where, key, json_text(value),
            (long long)min, (long long)max);
    return integer;
}

double json_to_real(const Json *number, const char *key) {
    double real = number->type == JSON_NUMBER ? strtod(number->text, NULL) : NAN;
    REQUIRE(isfinite(real), "%s: \"%s\" is %.80s, want a number", number->where, key, json_text(number));
    return real;
}

const char *json_string(const Json *object, const char *key) {
    const Json *value = json_member(object, key);
    REQUIRE(value->type == JSON_STRING, "%s: \"%s\" is %.80s, want a string", object->where, key, json_text(value));
    return value->text;
}

/* ---- Writing */

void json_write_string(FILE *file, const char *text) {
    fputc('"', file);
    const unsigned char *end = (const unsigned char *)text + strlen(text);
    for (const unsigned char *c = (const unsigned char *)text; c < end; ) {
        size_t length = utf8_length(c, (size_t)(end - c));
        if (!length)                      fputs("\\ufffd", file);
        else if (*c == '"' || *c == '\\') fprintf(file, "\\%c", *c);
        else if (*c < ' ')                fprintf(file, "\\u%04x", *c);
        else                              fwrite(c, 1, length, file);
        c += length ? length : 1;
    }
    fputc('"', file);
}
