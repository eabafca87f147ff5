/* bpe_words.h - GPT-2's split of a text into words, whose bytes are then merged (Radford et al. 2019, encoder.py):

     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

   over UTF-8 with the classes of Unicode 16.0.0. A byte that is not part of a UTF-8 character is a character of its
   own, neither letter, number nor white space, as U+FFFD is. */
#ifndef LLMC_BPE_WORDS_H
#define LLMC_BPE_WORDS_H
#include <stddef.h>

/* Bytes of the first word of text, which has size >= 1 bytes. */
size_t bpe_word(const unsigned char *text, size_t size);

/* Bytes of the white space character at the start of text, which has size >= 1 bytes; 0 = another character. As
   Python's str.isspace(): White_Space and U+001C to U+001F. */
size_t bpe_space(const unsigned char *text, size_t size);

/* The first position >= max(from, 1) where a cut leaves the words as they are, size = none: after a character other
   than white space or an apostrophe, before one of another class. */
size_t bpe_words_cut(const unsigned char *text, size_t size, size_t from);

#endif
