/* llmc/choice_cache.h - The choices of kernels/choices.h outside the process: a cache file per device, driver and
   library, $XDG_CACHE_HOME/train_gpt/choices-HASH.txt (~/.cache where that is not set), and between ranks. A file that
   cannot be read or written costs measuring again, and is no error. */
#ifndef LLMC_CHOICE_CACHE_H
#define LLMC_CHOICE_CACHE_H

/* Adopts what the cache file has; a damaged or foreign one is ignored. Returns whether it had anything. */
int choice_cache_load(void);

/* Adds the choices that this process measured to the file: atomic, beside other processes. */
void choice_cache_save(void);

/* On all ranks: all use the choices of rank 0 from here on, which writes the checkpoint, so that a resume is exact.
   Ranks of other devices keep theirs. */
void choices_agree(void);

#endif
