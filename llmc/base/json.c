#include "json.h"
#include "base.h"

/* Works on a copy of the text, with a NUL at its end, in which strings and numbers become those of the values. */
typedef struct {
    unsigned char *start, *at, *end;
    Json          *root, *free;     /* the next free node */
    const char    *where;
} Parser;

static _Noreturn void refuse(const Parser *p, const char *want) {
    const int c = *p->at;
    char found[20] = "the end";
    if (p->at < p->end) snprintf(found, sizeof found, c > ' ' && c < 127 ? "'%c'" : "byte 0x%02x", c);
    json_free(p->root);
    fail("%s: byte %zu: found %s, want %s", p->where, (size_t)(p->at - p->start), found, want);
}

static int accept(Parser *p, int c) {
    if (*p->at != c) return 0;
    p->at++;
    return 1;
}

static int skip_space(Parser *p) { return *(p->at += strspn((char *)p->at, " \t\n\r")); }

/* ---- Strings */

static char *utf8_put(char *out, unsigned code) {
    int tail = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[4] = { 0, 0xc0, 0xe0, 0xf0 };
    *out++ = (char)(lead[tail] | code >> (6 * tail));
    for (int i = tail - 1; i >= 0; i--) *out++ = (char)(0x80 | (code >> (6 * i) & 0x3f));
    return out;
}

static unsigned parse_hex(Parser *p) {
    char digits[5] = "";
    for (int i = 0; i < 4; i++) {
        if (!isxdigit(*p->at)) refuse(p, "four hexadecimal digits after \\u");
        digits[i] = (char)*p->at++;
    }
    return (unsigned)strtoul(digits, NULL, 16);
}

/* Reads XXXX of \uXXXX. A pair of surrogates is one character; half of one is U+FFFD, as for Python's json and
   tiktoken. */
static unsigned parse_unicode(Parser *p) {
    const unsigned code = parse_hex(p);
    unsigned char *end = p->at;
    if (code < 0xd800 || code > 0xdfff) return code;
    if (code < 0xdc00 && accept(p, '\\') && accept(p, 'u')) {
        const unsigned low = parse_hex(p);
        if (low >= 0xdc00 && low <= 0xdfff) return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    p->at = end;
    return 0xfffd;
}

static char *parse_escape(Parser *p, char *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (accept(p, 'u')) return utf8_put(out, parse_unicode(p));
    const char *name = *p->at ? strchr(names, *p->at) : NULL;
    if (!name) refuse(p, "one of \"\\/bfnrtu after a backslash");
    p->at++;
    *out = values[name - names];
    return out + 1;
}

static const char *parse_string(Parser *p, size_t *size) {
    if (!accept(p, '"')) refuse(p, "a string");
    char *string = (char *)p->at, *out = string;        /* out <= at: no escape is shorter than its character */
    while (!accept(p, '"')) {
        if (accept(p, '\\')) {
            out = parse_escape(p, out);
            continue;
        }
        size_t length = utf8_length(p->at, (size_t)(p->end - p->at) + 1);
        if (!length || *p->at < ' ') refuse(p, "UTF-8 without control characters, or '\"'");
        memmove(out, p->at, length);
        out += length;
        p->at += length;
    }
    *out = 0;
    *size = (size_t)(out - string);
    return string;
}

/* ---- Values */

static void skip_digits(Parser *p) {
    if (!isdigit(*p->at)) refuse(p, "a digit");
    while (isdigit(*p->at)) p->at++;
}

static const char *parse_number(Parser *p) {
    char *start = (char *)p->at;
    accept(p, '-');
    if (!accept(p, '0')) skip_digits(p);
    if (accept(p, '.')) skip_digits(p);
    if (accept(p, 'e') || accept(p, 'E')) {
        if (!accept(p, '+')) accept(p, '-');
        skip_digits(p);
    }
    memmove(start - 1, start, (size_t)((char *)p->at - start));         /* makes room for the NUL behind it */
    p->at[-1] = 0;
    return start - 1;
}

static const char *parse_key(Parser *p) {
    size_t size;
    if (skip_space(p) != '"') refuse(p, "a key in quotes");
    const char *key = parse_string(p, &size);
    skip_space(p);
    if (!accept(p, ':')) refuse(p, "':' after a key");
    return strlen(key) == size ? key : "\ufffd";        /* one with a NUL is none that is looked for */
}

/* The next value, with its key in an object; the opening bracket alone of an array or object. */
static Json *parse_value(Parser *p, Json *parent) {
    static const struct { const char *text; JsonType type; } words[] = {
        { "{", JSON_OBJECT }, { "[", JSON_ARRAY }, { "null", JSON_NULL }, { "false", JSON_FALSE },
        { "true", JSON_TRUE }, { "NaN", JSON_NUMBER }, { "Infinity", JSON_NUMBER },       /* as Python has them */
        { "-Infinity", JSON_NUMBER },
    };
    Json *value = p->free++;
    *value = (Json){ .where = (char *)p->end + 1, .parent = parent };
    if (parent && parent->type == JSON_OBJECT) value->key = parse_key(p);
    const int c = skip_space(p);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t length = strlen(words[i].text);
        if (strncmp((char *)p->at, words[i].text, length)) continue;
        p->at += length;
        value->type = words[i].type;
        value->text = value->type == JSON_NUMBER ? words[i].text : NULL;
        return value;
    }
    if (c != '"' && c != '-' && !isdigit(c)) refuse(p, "a value");
    value->type = c == '"' ? JSON_STRING : JSON_NUMBER;
    value->text = c == '"' ? parse_string(p, &value->size) : parse_number(p);
    return value;
}

static int closes(Parser *p, const Json *parent) {
    skip_space(p);
    return accept(p, parent->type == JSON_OBJECT ? '}' : ']');
}

/* Without recursion, so that the depth has no limit. last: the value before the next one of parent, NULL = none. */
static void parse_document(Parser *p) {
    Json *parent = NULL, *last = NULL;
    do {
        Json *value = parse_value(p, parent);
        if (parent) *(last ? &last->next : &parent->child) = value;
        if (parent) parent->count++;
        last = value;
        if (value->type >= JSON_ARRAY) parent = value, last = NULL;
        while (parent && closes(p, parent)) last = parent, parent = parent->parent;
        if (parent && last && !accept(p, ','))
            refuse(p, parent->type == JSON_OBJECT ? "',' or '}'" : "',' or ']'");
    } while (parent);
    skip_space(p);
    if (p->at < p->end) refuse(p, "the end of the text");
}

/* One allocation: nodes, a byte in front of the copy of the text, that and its NUL, a copy of where. Every value but
   the first follows a ',', '[' or '{'. */
Json *json_parse(const char *text, size_t size, const char *where) {
    size_t nodes = 1;
    for (size_t i = 0; i < size; i++) nodes += text[i] == ',' || text[i] == '[' || text[i] == '{';
    Json *root = host_alloc(nodes * sizeof *root + size + strlen(where) + 3, where);
    unsigned char *copy = (unsigned char *)(root + nodes) + 1;
    memcpy(copy, text, size);
    strcpy((char *)copy + size + 1, where);
    parse_document(&(Parser){ copy, copy + utf8_mark(text, size), copy + size, root, root, where });
    return root;
}

Json *json_open(const char *path) {
    FileMap map = file_map(path);
    Json *root = json_parse((const char *)map.bytes, (size_t)map.size, path);
    file_unmap(map);
    return root;
}

Json *json_parse_line(const FileLine *line, const char *path) {
    size_t blanks = 0;
    while (blanks < line->size && isspace((unsigned char)line->text[blanks])) blanks++;
    if (blanks == line->size) return NULL;
    char *where = format_string("%s: line %lld", path, (long long)line->number);
    REQUIRE(line->text[blanks] == '{' && blanks + 1 < line->size, "%s: begins with '%s': this is not JSONL, "
            "in which every line is an object, {...}; jq -c '.[]' FILE makes it of an array", where,
            format_string("%.*s", line->size - blanks < 20 ? (int)(line->size - blanks) : 20, line->text + blanks));
    Json *root = json_parse(line->text, line->size, where);
    free(where);
    return root;
}

void json_free(Json *root) { free(root); }

/* ---- Reading values */

static const char *const type_names[] = { "null", "false", "true", "a number", "a string", "an array", "an object" };

const char *json_text(const Json *value) { return value->text ? value->text : type_names[value->type]; }

/* An element has the key of its array. */
void json_refuse(const Json *value, const char *want) {
    const Json *named = value;
    while (!named->key && named->parent) named = named->parent;
    const char *outer = named->parent && named->parent->key ? named->parent->key : "";
    const char *quote = value->type == JSON_STRING ? "\"" : "";
    if (!named->key) fail("%s: this is %.80s, want %s", value->where, json_text(value), want);
    fail("%s: \"%.80s%s%.80s\" is %s%.80s%s, want %s", value->where, outer, *outer ? "." : "",
         named->key ? named->key : "", quote, json_text(value), quote, want);
}

const Json *json_find(const Json *object, const char *key) {
    const Json *found = NULL;
    if (object->type != JSON_OBJECT) return NULL;
    for (const Json *member = object->child; member; member = member->next)
        if (!strcmp(member->key, key)) found = member;
    return found;
}

const Json *json_member(const Json *object, const char *key, JsonType type) {
    const Json *value = json_find(object, key);
    const char *outer = object->key ? object->key : "";
    REQUIRE(value, "%s: \"%.80s%s%s\" is missing", object->where, outer, *outer ? "." : "", key);
    if (type != JSON_ANY && value->type != type) json_refuse(value, type_names[type]);
    return value;
}

const char *json_string(const Json *object, const char *key) {
    const Json *value = json_member(object, key, JSON_STRING);
    if (strlen(value->text) < value->size) json_refuse(value, "one without \\u0000");
    return value->text;
}

int64_t json_integer(const Json *value, int64_t min, int64_t max) {
    char want[80], *end = "";
    errno = value->type != JSON_NUMBER;
    int64_t integer = errno ? 0 : strtoll(value->text, &end, 10);
    if (!errno && !*end && integer >= min && integer <= max) return integer;
    snprintf(want, sizeof want, "an integer from %lld to %lld", (long long)min, (long long)max);
    json_refuse(value, want);
}

double json_real(const Json *value) {
    double real = value->type == JSON_NUMBER ? strtod(value->text, NULL) : NAN;
    if (!isfinite(real)) json_refuse(value, "a number");
    return real;
}

/* ---- Writing */

void json_write_string(FILE *file, const char *text) {
    fputc('"', file);
    while (*text) {
        size_t length = utf8_length((const unsigned char *)text, strnlen(text, 4));
        if (!length)                             fputs("\\ufffd", file);
        else if (*text == '"' || *text == '\\')  fprintf(file, "\\%c", *text);
        else if ((unsigned char)*text < ' ')     fprintf(file, "\\u%04x", *text);
        else                                     fwrite(text, 1, length, file);
        text += length ? length : 1;
    }
    fputc('"', file);
}
