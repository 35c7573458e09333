/* malloc and what belongs to it, by which one call fails, and which count what is not given back.
 *
 * The engine is built with these names in place of the usual ones: see test_allocations.py. */
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef mmap
#undef munmap
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static int64_t left, blocks, mapped, bytes, most;

/* Let the nth call from now on fail; 0: none. */
void fail_at(int64_t nth)
{
    left = nth;
}

/* Return how many calls are left until one fails; 0 or less: it has failed. */
int64_t calls_left(void)
{
    return left;
}

/* Return how many blocks, and bytes of pages, are not given back. */
int64_t not_given_back(void)
{
    return blocks + mapped;
}

/* Return the most bytes that were taken at a time since the last call. */
int64_t peak_bytes(void)
{
    int64_t found = most;

    most = bytes;
    return found;
}

static void take(int64_t more)
{
    bytes += more;
    most = bytes > most ? bytes : most;
}

static int fails(void)
{
    return left > 0 && --left == 0;
}

void *counted_malloc(size_t size)
{
    void *block = fails() ? NULL : malloc(size);

    blocks += block != NULL;
    take((int64_t)malloc_usable_size(block));
    return block;
}

void *counted_calloc(size_t count, size_t size)
{
    void *block = fails() ? NULL : calloc(count, size);

    blocks += block != NULL;
    take((int64_t)malloc_usable_size(block));
    return block;
}

void *counted_realloc(void *old, size_t size)
{
    int64_t before = (int64_t)malloc_usable_size(old);
    void *block = fails() ? NULL : realloc(old, size);

    blocks += block != NULL && old == NULL;
    if (block) {
        take((int64_t)malloc_usable_size(block)); /* as if the old one were still there */
        take(-before);
    }
    return block;
}

void counted_free(void *block)
{
    blocks -= block != NULL;
    take(-(int64_t)malloc_usable_size(block));
    free(block);
}

void *counted_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    void *pages = fails() ? MAP_FAILED : mmap(at, size, protection, flags, file, offset);

    mapped += pages == MAP_FAILED ? 0 : (int64_t)size;
    take(pages == MAP_FAILED ? 0 : (int64_t)size);
    return pages;
}

int counted_munmap(void *pages, size_t size)
{
    mapped -= (int64_t)size;
    take(-(int64_t)size);
    return munmap(pages, size);
}
