/* Copying and reading many bytes with several threads, of which Python sees but one call. */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"

#include <errno.h>

#ifndef _WIN32
#include <pthread.h>
#include <unistd.h>
#endif

#define PIECE_BYTES (2 << 20) /* a huge page, which is cleared by each thread that comes to it first */

/* Threads take one piece after the other, which end where huge pages of the target do. descriptor: of the file that is read, -1 to copy `source`.
 * done: bytes up to the first that are missing. failure: why they are. */
typedef struct {
    uint8_t *target;
    const uint8_t *source;
    int64_t length, offset, next, done;
    int descriptor, failure;
#ifndef _WIN32
    pthread_mutex_t lock;
#endif
} Transfer;

#ifndef _WIN32
/* Read a piece and note where bytes are missing. */
static void read_piece(Transfer *transfer, int64_t begin, int64_t end)
{
    int failure = 0;

    while (begin < end) {
        ssize_t got = pread(transfer->descriptor, transfer->target + begin, (size_t)(end - begin),
                            (off_t)(transfer->offset + begin));
        if (got > 0) {
            begin += got;
        } else if (got == 0 || errno != EINTR) {
            failure = got ? errno : 0;
            break;
        }
    }
    if (begin < end) {
        pthread_mutex_lock(&transfer->lock);
        if (begin < transfer->done) {
            transfer->done = begin;
            transfer->failure = failure;
        }
        pthread_mutex_unlock(&transfer->lock);
    }
}

static void *run(void *given)
{
    Transfer *transfer = given;
    int64_t first = PIECE_BYTES - (int64_t)((uintptr_t)transfer->target % PIECE_BYTES), end;

    while ((end = first + __atomic_fetch_add(&transfer->next, PIECE_BYTES, __ATOMIC_RELAXED)) <
           transfer->length + PIECE_BYTES) {
        int64_t begin = end > PIECE_BYTES ? end - PIECE_BYTES : 0;
        end = end < transfer->length ? end : transfer->length;
        if (transfer->descriptor < 0)
            memcpy(transfer->target + begin, transfer->source + begin, (size_t)(end - begin));
        else
            read_piece(transfer, begin, end);
    }
    return NULL;
}

static void transfer_in_threads(Transfer *transfer, int threads)
{
    int64_t pieces = transfer->length / PIECE_BYTES + 1;

    pthread_mutex_init(&transfer->lock, NULL);
    run_in_threads(run, transfer, threads < pieces ? threads : pieces);
    pthread_mutex_destroy(&transfer->lock);
}
#endif

/* Copy bytes between places that don't overlap. */
API void llmgpu_copy(uint8_t *target, const uint8_t *source, int64_t length, int threads)
{
#ifdef _WIN32
    (void)threads;
    memcpy(target, source, (size_t)length);
#else
    Transfer transfer = {.target = target, .source = source, .length = length, .descriptor = -1};
    transfer_in_threads(&transfer, threads);
#endif
}

/* Read bytes of a file from `offset` on; return how many there are, or minus the error's number if the
 * first can't be read. */
API int64_t llmgpu_read(int descriptor, uint8_t *target, int64_t length, int64_t offset, int threads)
{
#ifdef _WIN32
    (void)descriptor, (void)target, (void)length, (void)offset, (void)threads;
    return -ENOSYS;
#else
    Transfer transfer = {.target = target, .length = length, .offset = offset, .done = length,
                         .descriptor = descriptor};
    transfer_in_threads(&transfer, threads);
    return transfer.done == 0 && transfer.failure ? -transfer.failure : transfer.done;
#endif
}
