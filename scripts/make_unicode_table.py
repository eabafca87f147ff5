#!/usr/bin/env python3
"""Writes llmc/text/unicode_table.h: the letters, numbers and white space of Unicode 16.0.0.

    python3 -m pip install unicodedata2==16.0.0
    scripts/make_unicode_table.py > llmc/text/unicode_table.h

Letters are the categories L*, numbers N*, white space the property White_Space. Unicode 16.0.0 is what tiktoken 0.14
and tokenizers 0.23 use: every code point was compared.
"""
import sys

import unicodedata2
if unicodedata2.unidata_version != "16.0.0":
    sys.exit(f"make_unicode_table: unicodedata2 has Unicode {unicodedata2.unidata_version}, want 16.0.0")

WHITE_SPACE = {*range(0x09, 0x0E), 0x85}            # category Cc; the others are Z*


def write(name, is_member):
    print(f"\nstatic const uint16_t {name}[] = {{")
    line, end, code = "   ", 0, 0
    while code < 0x110000:
        first = code
        while code < 0x110000 and is_member(chr(code)):
            code += 1
        if code > first:
            item = f" {first - end},{code - first},"
            if len(line + item) > 118:
                print(line)
                line = "   "
            line, end = line + item, code
        code += 1
    print(line + "\n};")


category = unicodedata2.category
print("/* unicode_table.h - Letters, numbers and white space of Unicode 16.0.0, as ranges: distance from the end of the\n"
      "   range before, and length. Made by scripts/make_unicode_table.py. */\n"
      "#ifndef LLMC_UNICODE_TABLE_H\n#define LLMC_UNICODE_TABLE_H\n#include <stdint.h>")
write("unicode_letters", lambda c: category(c)[0] == "L")
write("unicode_numbers", lambda c: category(c)[0] == "N")
write("unicode_spaces", lambda c: category(c)[0] == "Z" or ord(c) in WHITE_SPACE)
print("\n#endif")
