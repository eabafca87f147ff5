/* autotune_cache.h - The choices of kernels/autotune.h outside the process: a cache file per version, device, driver
   and library, $XDG_CACHE_HOME/train_gpt/choices-HASH.txt (~/.cache where that is not set), and between ranks. A file
   that cannot be read or written is not an error: the choices are measured again. */
#pragma once

char *autotune_read(const char *path);      /* a file of choices as a new string; fails as file_map does */
void autotune_cache_load(void);
void autotune_cache_save(void);             /* rank 0: adds the choices to the file, which is replaced atomically */

/* Called by all ranks: all adopt the choices of rank 0, which writes the checkpoint, so that a resume is exact. Ranks
   with another device, driver or library keep theirs. */
void autotune_agree(void);
