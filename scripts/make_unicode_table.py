#!/usr/bin/env python3
"""Writes llmc/text/unicode_table.h: the letters, numbers and white space of Unicode 16.0.0.

    python3 -m pip install unicodedata2==16.0.0
    scripts/make_unicode_table.py > llmc/text/unicode_table.h

Letters are the categories L*, numbers N*, white space the property White_Space. Unicode 16.0.0 is what tiktoken 0.14
and tokenizers 0.23 use: every code point was compared.
"""
import sys

try:
    import unicodedata2
except ImportError as error:
    sys.exit(f"make_unicode_table: {error}; pip install unicodedata2==16.0.0")
if unicodedata2.unidata_version != "16.0.0":
    sys.exit(f"make_unicode_table: unicodedata2 has Unicode {unicodedata2.unidata_version}, want 16.0.0")

CODES = range(0x110000)
WHITE_SPACE = {*range(0x09, 0x0E), 0x85}            # category Cc; the others are Z*


def ranges(codes):
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def write(name, codes):
    print(f"\nstatic const uint32_t {name}[][2] = {{")
    line = "   "
    for first, last in ranges(codes):
        item = f" {{{first:#x},{last:#x}}},"
        if len(line + item) > 118:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


category = unicodedata2.category
print("/* llmc/text/unicode_table.h - Letters, numbers and white space of Unicode 16.0.0 as ranges, first and last code\n"
      "   point. Made by scripts/make_unicode_table.py. */\n"
      "#ifndef LLMC_UNICODE_TABLE_H\n#define LLMC_UNICODE_TABLE_H\n#include <stdint.h>")
write("unicode_letters", (c for c in CODES if category(chr(c))[0] == "L"))
write("unicode_numbers", (c for c in CODES if category(chr(c))[0] == "N"))
write("unicode_spaces", (c for c in CODES if category(chr(c))[0] == "Z" or c in WHITE_SPACE))
print("\n#endif")
