/* bpe_train.h - Training of a byte-level BPE (Sennrich et al. 2016), with the merges of HuggingFace's BpeTrainer
   (initial_alphabet ByteLevel.alphabet(), min_frequency 2, tokenizers 0.23): the most frequent pair is merged next, of
   equally frequent ones the pair with the lower left id, then the lower right one. Ids: the 256 bytes in the order of
   their letters (bpe_letter), the merged tokens, <|endoftext|> as the last. */
#pragma once
#include "texts.h"

typedef struct { struct Words *words; } BpeTrainer;     /* {0} at first; a list, those of each core */

/* Counts the words of texts, on all cores. A long one can come in spans that end at bpe_words_cut. */
void bpe_trainer_add(BpeTrainer *trainer, const BpeSpan *span, size_t count);

/* A tokenizer of vocab_size >= 257 tokens, fewer when no pair occurs twice. Frees what the trainer has. */
Tokenizer *bpe_train(BpeTrainer *trainer, int vocab_size);
