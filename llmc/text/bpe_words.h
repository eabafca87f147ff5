/* bpe_words.h - GPT-2's split of a text into words, whose bytes are then merged (Radford et al. 2019, encoder.py):

     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

   over UTF-8 with the classes of Unicode 16.0.0. A byte that is not part of a UTF-8 character is a character of its
   own, neither letter, number nor white space, as U+FFFD is. */
#ifndef LLMC_BPE_WORDS_H
#define LLMC_BPE_WORDS_H
#include <stddef.h>

void bpe_words_init(void);      /* before any other call, once or more often; from one thread */

/* Bytes of the word at the start of text, of which size >= 1 bytes follow. */
size_t bpe_word(const unsigned char *text, size_t size);

/* Bytes of the white space character at the start of text, of which size >= 1 bytes follow: those of Python's
   str.isspace(), White_Space and U+001C to U+001F. 0 = it is another character. */
size_t bpe_space(const unsigned char *text, size_t size);

/* The first position >= from, 1 at least, where text can be cut so that both parts together have the words of the
   whole; size if there is none. That is after a character other than white space or an apostrophe, before one of
   another class. */
size_t bpe_words_cut(const unsigned char *text, size_t size, size_t from);

#endif
