/* Copying, reading and writing many bytes in several threads, with a single call from Python. */
#define _GNU_SOURCE /* madvise, fallocate */
#include "engine.h"

#include <errno.h>

#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>
#endif

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define RAM_DISK 0x01021994 /* TMPFS_MAGIC */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#endif

#define MOST_OF_FREE 4 /* at most 1/4 of a disk's free memory is reserved for a file in advance */
#define PIECE_BYTES (2 << 20) /* a huge page: each thread that touches one first clears it */

/* The work of several threads, which take one piece after the other. Pieces end where huge pages of
 * the target end. move: moves a piece. descriptor: the file that is read or written. done: the
 * number of bytes before the first missing byte. failure: the error that made it missing, 0 at
 * the end of a file. */
typedef struct Transfer {
    void (*move)(struct Transfer *, int64_t begin, int64_t end);
    uint8_t *target;
    const uint8_t *source;
    int64_t length, offset, next, done;
    int descriptor, failure;
#ifndef _WIN32
    pthread_mutex_t lock; /* of `done` and `failure` */
    pthread_mutex_t turn; /* held by the thread that writes through the file system */
#endif
} Transfer;

#ifndef _WIN32
static void copy_piece(Transfer *transfer, int64_t begin, int64_t end)
{
    memcpy(transfer->target + begin, transfer->source + begin, (size_t)(end - begin));
}

static void note_missing(Transfer *transfer, int64_t begin, int failure)
{
    pthread_mutex_lock(&transfer->lock);
    if (begin < transfer->done) {
        transfer->done = begin;
        transfer->failure = failure;
    }
    pthread_mutex_unlock(&transfer->lock);
}

/* Read a piece, and record the first missing byte. */
static void read_piece(Transfer *transfer, int64_t begin, int64_t end)
{
    while (begin < end) {
        ssize_t got = pread(transfer->descriptor, transfer->target + begin, (size_t)(end - begin),
                            (off_t)(transfer->offset + begin));
        if (got > 0) {
            begin += got;
        } else if (got == 0 || errno != EINTR) {
            note_missing(transfer, begin, got ? errno : 0);
            break;
        }
    }
}

#ifdef __linux__
/* Return the free bytes of the disk of a file; -1 if the file is not in memory. */
static int64_t free_memory(int descriptor)
{
    struct statfs disk;

    if (fstatfs(descriptor, &disk) || disk.f_type != RAM_DISK)
        return -1;
    return (int64_t)disk.f_bavail * (int64_t)disk.f_bsize;
}

/* Write a piece, and record the first missing byte. */
static void write_piece(Transfer *transfer, int64_t begin, int64_t end)
{
    while (begin < end) {
        ssize_t put = pwrite(transfer->descriptor, transfer->source + begin, (size_t)(end - begin),
                             (off_t)(transfer->offset + begin));
        if (put > 0) {
            begin += put;
        } else if (put == 0 || errno != EINTR) {
            note_missing(transfer, begin, put ? errno : 0);
            break;
        }
    }
}

/* Write a piece through the file system, which allows one thread at a time. While another thread
 * does so, write through the mapping. The mapping's pages are requested first: if no memory is
 * left, the request fails, but writing to a missing page would end the process. */
static void share_piece(Transfer *transfer, int64_t begin, int64_t end)
{
    uint8_t *place = transfer->target + begin;
    uintptr_t into_page = (uintptr_t)place % (uintptr_t)sysconf(_SC_PAGESIZE);

    if (pthread_mutex_trylock(&transfer->turn) == 0) {
        write_piece(transfer, begin, end);
        pthread_mutex_unlock(&transfer->turn);
    } else if (madvise(place - into_page, (size_t)(end - begin) + into_page, MADV_POPULATE_WRITE)) {
        write_piece(transfer, begin, end);
    } else {
        copy_piece(transfer, begin, end);
    }
}
#endif

static void *run(void *given)
{
    Transfer *transfer = given;
    int64_t first = PIECE_BYTES - (int64_t)((uintptr_t)transfer->target % PIECE_BYTES), end;

    while ((end = first + __atomic_fetch_add(&transfer->next, PIECE_BYTES, __ATOMIC_RELAXED)) <
           transfer->length + PIECE_BYTES) {
        int64_t begin = end > PIECE_BYTES ? end - PIECE_BYTES : 0;
        transfer->move(transfer, begin, end < transfer->length ? end : transfer->length);
    }
    return NULL;
}

static void transfer_in_threads(Transfer *transfer, int threads)
{
    int64_t pieces = transfer->length / PIECE_BYTES + 1;

    pthread_mutex_init(&transfer->lock, NULL);
    pthread_mutex_init(&transfer->turn, NULL);
    run_in_threads(run, transfer, threads < pieces ? threads : pieces);
    pthread_mutex_destroy(&transfer->turn);
    pthread_mutex_destroy(&transfer->lock);
}
#endif

/* Copy bytes; source and target don't overlap. */
API void llmgpu_copy(uint8_t *target, const uint8_t *source, int64_t length, int threads)
{
#ifdef _WIN32
    (void)threads;
    memcpy(target, source, (size_t)length);
#else
    Transfer transfer = {.move = copy_piece, .target = target, .source = source, .length = length};
    transfer_in_threads(&transfer, threads);
#endif
}

/* Read bytes of a file from `offset` on; return the number of bytes before the first missing byte.
 * If no byte can be read, return minus the error's number. */
API int64_t llmgpu_read(int descriptor, uint8_t *target, int64_t length, int64_t offset, int threads)
{
#ifdef _WIN32
    (void)descriptor, (void)target, (void)length, (void)offset, (void)threads;
    return -ENOSYS;
#else
    Transfer transfer = {.move = read_piece, .target = target, .length = length, .offset = offset,
                         .done = length, .descriptor = descriptor};
    transfer_in_threads(&transfer, threads);
    return transfer.done == 0 && transfer.failure ? -transfer.failure : transfer.done;
#endif
}

/* Write bytes to a file in memory from `offset` on, if the file is also readable; return the number
 * of bytes before the first missing byte. The caller writes the missing bytes, and so meets the
 * error. The file's length may include the missing bytes. */
API int64_t llmgpu_write(int descriptor, const uint8_t *source, int64_t length, int64_t offset,
                         int threads)
{
#ifdef __linux__
    int64_t into_page = offset % (int64_t)sysconf(_SC_PAGESIZE);
    struct stat file;

    if (length <= 0 || free_memory(descriptor) < 0 || fstat(descriptor, &file) ||
        (file.st_size < offset + length && ftruncate(descriptor, (off_t)(offset + length))))
        return 0;
    uint8_t *mapping = mmap(NULL, (size_t)(length + into_page), PROT_READ | PROT_WRITE, MAP_SHARED,
                            descriptor, (off_t)(offset - into_page));
    if (mapping == MAP_FAILED)
        return 0;
    Transfer transfer = {.move = share_piece, .target = mapping + into_page, .source = source,
                         .length = length, .offset = offset, .done = length, .descriptor = descriptor};
    transfer_in_threads(&transfer, threads);
    munmap(mapping, (size_t)(length + into_page));
    return transfer.done;
#else
    (void)descriptor, (void)source, (void)length, (void)offset, (void)threads;
    return 0;
#endif
}

/* Reserve memory for the first `length` bytes of a file in memory, without changing the file's
 * length. Stop if no memory is left, or when another thread sets *has_ended. Reserve only a part of
 * the free memory, because other files need memory, too. Return the number of bytes that are
 * reserved. */
API int64_t llmgpu_reserve(int descriptor, int64_t length, const int *has_ended)
{
    int64_t reserved = 0;

#ifdef __linux__
    int64_t most = free_memory(descriptor) / MOST_OF_FREE;

    if (length > most)
        length = most;
    /* Reserve piece by piece, so that other threads may write the file in between. */
    while (reserved < length && !__atomic_load_n(has_ended, __ATOMIC_RELAXED)) {
        int64_t rest = length - reserved, piece = rest < PIECE_BYTES ? rest : PIECE_BYTES;

        if (fallocate(descriptor, FALLOC_FL_KEEP_SIZE, (off_t)reserved, (off_t)piece))
            break;
        reserved += piece;
    }
#else
    (void)descriptor, (void)length, (void)has_ended;
#endif
    return reserved;
}
