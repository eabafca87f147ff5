/* llmc/utf8.h - UTF-8 as RFC 3629 has it: the shortest form alone, no surrogates, nothing above U+10FFFF. */
#ifndef LLMC_UTF8_H
#define LLMC_UTF8_H
#include <stddef.h>

/* Bytes of the character at the start of text, which has size >= 1; 0 when it is none. */
static inline size_t utf8_length(const unsigned char *text, size_t size) {
    unsigned c = text[0];
    size_t length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (length > size) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if (c == 0xe0 && text[1] < 0xa0) return 0;
    if (c == 0xed && text[1] > 0x9f) return 0;
    if (c == 0xf0 && text[1] < 0x90) return 0;
    if (c == 0xf4 && text[1] > 0x8f) return 0;
    return length;
}

#endif
