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
    __atomic_store_n(&left, nth, __ATOMIC_RELAXED);
}

/* Return how many calls are left until one fails; 0 or less: it has failed. */
int64_t calls_left(void)
{
    return __atomic_load_n(&left, __ATOMIC_RELAXED);
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

/* Threads of the engine count together. */
static void add(int64_t *to, int64_t more)
{
    __atomic_fetch_add(to, more, __ATOMIC_RELAXED);
}

static void take(int64_t more)
{
    int64_t now = __atomic_add_fetch(&bytes, more, __ATOMIC_RELAXED);
    int64_t known = __atomic_load_n(&most, __ATOMIC_RELAXED);

    while (now > known && !__atomic_compare_exchange_n(&most, &known, now, 0, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}

static int fails(void)
{
    return calls_left() > 0 && __atomic_sub_fetch(&left, 1, __ATOMIC_RELAXED) == 0;
}

void *counted_malloc(size_t size)
{
    void *block = fails() ? NULL : malloc(size);

    add(&blocks, block != NULL);
    take((int64_t)malloc_usable_size(block));
    return block;
}

void *counted_calloc(size_t count, size_t size)
{
    void *block = fails() ? NULL : calloc(count, size);

    add(&blocks, block != NULL);
    take((int64_t)malloc_usable_size(block));
    return block;
}

void *counted_realloc(void *old, size_t size)
{
    int64_t before = (int64_t)malloc_usable_size(old);
    void *block = fails() ? NULL : realloc(old, size);

    add(&blocks, block != NULL && old == NULL);
    if (block) {
        take((int64_t)malloc_usable_size(block)); /* as if the old one were still there */
        take(-before);
    }
    return block;
}

void counted_free(void *block)
{
    add(&blocks, -(int64_t)(block != NULL));
    take(-(int64_t)malloc_usable_size(block));
    free(block);
}

void *counted_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    void *pages = fails() ? MAP_FAILED : mmap(at, size, protection, flags, file, offset);

    add(&mapped, pages == MAP_FAILED ? 0 : (int64_t)size);
    take(pages == MAP_FAILED ? 0 : (int64_t)size);
    return pages;
}

int counted_munmap(void *pages, size_t size)
{
    add(&mapped, -(int64_t)size);
    take(-(int64_t)size);
    return munmap(pages, size);
}
