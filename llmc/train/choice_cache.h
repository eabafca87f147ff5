/* choice_cache.h - The choices of kernels/choices.h outside the process: a cache file per version, device, driver
   and library, $XDG_CACHE_HOME/train_gpt/choices-HASH.txt (~/.cache where that is not set), and between ranks. A file
   that cannot be read or written costs measuring again, and is not an error. */
#ifndef LLMC_CHOICE_CACHE_H
#define LLMC_CHOICE_CACHE_H
#include "../../kernels/choices.h"

/* choices_adopt of a file; 0 where it is too long, too. Fails as file_map does. */
int choices_load(const char *path, ChoicesKind kind);

/* Adopts the cache file, as CHOICES_KNOWN. */
void choice_cache_load(void);

/* Rank 0: adds the choices that this process measured to the file, which is replaced atomically. */
void choice_cache_save(void);

/* Called by all ranks. From here on all use the choices of rank 0, which writes the checkpoint, so that a resume is
   exact. Ranks with another device, driver or library keep theirs. */
void choices_agree(void);

#endif
