#include "bpe_words.h"
#include <string.h>
#include "../base/os.h"
#include "unicode_table.h"

/* OTHER is 0, so that most pages of the table stay untouched. LEAD: the first byte of a longer character, or none. */
enum { OTHER, LETTER, NUMBER, SPACE, LEAD };

static unsigned char class_of_code[0x110000], class_of_byte[256];

static void set_class(const uint16_t *range, size_t count, int class) {
    unsigned char *code = class_of_code;
    for (size_t i = 0; i < count; code += range[i + 1], i += 2) memset(code += range[i], class, range[i + 1]);
}

/* Before main: 0.1 ms. */
__attribute__((constructor)) static void set_classes(void) {
    set_class(unicode_letters, sizeof unicode_letters / sizeof *unicode_letters, LETTER);
    set_class(unicode_numbers, sizeof unicode_numbers / sizeof *unicode_numbers, NUMBER);
    set_class(unicode_spaces, sizeof unicode_spaces / sizeof *unicode_spaces, SPACE);
    memcpy(class_of_byte, class_of_code, 0x80);
    memset(class_of_byte + 0x80, LEAD, 0x80);
}

/* The class of the character at text, and its length. */
static int class_at(const unsigned char *text, size_t size, size_t *length) {
    *length = 1;
    if (class_of_byte[*text] != LEAD) return class_of_byte[*text];
    size_t bytes = utf8_length(text, size);
    if (bytes == 0) return OTHER;
    uint32_t code = *text & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) code = code << 6 | (text[i] & 0x3f);
    *length = bytes;
    return class_of_code[code];
}

size_t bpe_space(const unsigned char *text, size_t size) {
    size_t length;
    return class_at(text, size, &length) == SPACE || (*text >= 0x1c && *text <= 0x1f) ? length : 0;
}

/* The end of the ASCII letters, eight at a time: a byte's top bit marks a letter; |0x20 makes lower case. */
static const unsigned char *skip_ascii_letters(const unsigned char *text, const unsigned char *end) {
    const uint64_t ones = 0x0101010101010101, tops = 0x80 * ones;
    for (uint64_t word; end - text >= 8; text += 8) {
        memcpy(&word, text, 8);
        uint64_t lower = (word | 0x20 * ones) & ~tops;
        uint64_t from_a = lower + (0x80 - 'a') * ones, above_z = lower + (0x80 - 'z' - 1) * ones;
        uint64_t others = ~(from_a & ~above_z & ~word) & tops;
        if (others) return text + __builtin_ctzll(others) / 8;
    }
    return text;
}

/* The end of the characters of a class from text on. */
static const unsigned char *skip(const unsigned char *text, const unsigned char *end, int class) {
    size_t length;
    if (class == LETTER) text = skip_ascii_letters(text, end);
    for (;;) {
        while (text < end && class_of_byte[*text] == class) text++;
        if (text == end || class_of_byte[*text] != LEAD || class_at(text, (size_t)(end - text), &length) != class)
            return text;
        text += length;
    }
}

/* Bytes of 's, 't, 'm, 'd, 're, 've or 'll behind an apostrophe, 0 = none of them. */
static size_t contraction(const unsigned char *text, size_t size) {
    if (size >= 1 && (text[0] == 's' || text[0] == 't' || text[0] == 'm' || text[0] == 'd')) return 1;
    if (size < 2) return 0;
    int is_pair = (text[1] == 'e' && (text[0] == 'r' || text[0] == 'v')) || (text[0] == 'l' && text[1] == 'l');
    return is_pair ? 2 : 0;
}

size_t bpe_word(const unsigned char *text, size_t size) {
    const unsigned char *end = text + size, *from = text;
    size_t length, tail = *text == '\'' ? contraction(text + 1, size - 1) : 0;
    if (tail) return 1 + tail;
    if (*text == ' ' && size > 1) from++;
    int class = class_at(from, (size_t)(end - from), &length);
    if (class != SPACE) return (size_t)(skip(from + length, end, class) - text);
    /* \s+(?!\S): all white space up to the end of the text, else all but its last character, if there are several */
    const unsigned char *next = text, *last = text;
    while (next < end && class_at(next, (size_t)(end - next), &length) == SPACE) {
        last = next;
        next += length;
    }
    return (size_t)((next == end || last == text ? next : last) - text);
}

size_t bpe_words_cut(const unsigned char *text, size_t size, size_t from) {
    size_t at = from ? from : 1, length, start;
    while (at < size && (text[at] & 0xc0) == 0x80) at++;        /* any other byte begins a character */
    if (at >= size) return size;
    for (start = at - 1; start > 0 && at - start < 4 && (text[start] & 0xc0) == 0x80; ) start--;
    int before = class_at(text + start, at - start, &length);
    if (length != at - start) before = OTHER;                   /* invalid bytes */
    for (; at < size; at += length) {
        int class = class_at(text + at, size - at, &length);
        if (before != SPACE && before != class && text[at - 1] != '\'') return at;
        before = class;
    }
    return size;
}
