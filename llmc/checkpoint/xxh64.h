/* llmc/checkpoint/xxh64.h - XXH64 with seed 0 (Yann Collet, github.com/Cyan4973/xxHash, doc/xxhash_spec.md): a
   checksum about as
   fast as memory, the one that `xxhsum -H64 FILE` prints. Against damage, not against forgery. */
#ifndef LLMC_XXH64_H
#define LLMC_XXH64_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t      lane[4];
    uint64_t      bytes;       /* so far */
    unsigned char rest[32];    /* of them, the last bytes % 32 */
} XXH64;

XXH64    xxh64_begin(void);
void     xxh64_add(XXH64 *sum, const void *bytes, size_t size);      /* in pieces of any size */
uint64_t xxh64_end(const XXH64 *sum);

#endif
