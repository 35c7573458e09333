/* Encoding a text in several threads, with a single call from Python.
 *
 * - The text is divided into parts, and each thread encodes one part after the other. A part ends
 *   where a document starts, or where a pre-token starts in any surroundings, so the ids do not
 *   depend on where parts end.
 * - The place of a part's ids in the result is known when all earlier parts are encoded. Until then
 *   the thread that encoded the part keeps the ids in its own memory. A thread keeps up to
 *   MOST_WAITING parts, then it waits. The thread with the first part that is not encoded does not
 *   wait, so there always is progress.
 * - The thread that encodes a part of a file also reads it, into memory that the thread keeps.
 * - The last parts are smaller, so that all threads end at about the same time.
 */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"

#include <errno.h>
#include <pthread.h>

#ifndef _WIN32
#include <unistd.h>
#endif

#define UNREADABLE (-2)
#define FIRST_WINDOW 256 /* bytes before the end of a part that are searched first for a cut */
#define SMALLEST 8       /* the last parts have 1 / SMALLEST of the bytes of the first parts */
#define SEEN_AFTER 64    /* bytes after a part of a file that are read with the part */
#define SHARES 10        /* starting a thread: 25 us, as long as encoding part_bytes / SHARES */
#define COPIED 512       /* the most bytes of a text that is copied whole, to add padding */
#define KEPT (1 << 20)   /* the most bytes of a copy whose memory is kept */

/* A text that several threads encode. descriptor: the file that has the text from `offset` on; -1
 * for a text in memory. waiting: encoded parts that wait for earlier parts, by number %
 * most_waiting. */
typedef struct {
    Encoder *encoders;
    SharedWords *shared;
    const Text *text;
    uint32_t *ids;
    int64_t offset, part_bytes;
    int descriptor;
    pthread_mutex_t lock; /* held to change the fields below */
    pthread_cond_t has_placed;
    int64_t joined;              /* number of threads that have begun */
    int64_t taken, at, document; /* number of parts taken; where the next part starts */
    int64_t placed, begin;       /* number of parts whose place is known; number of their ids */
    int64_t failure, stopped, most_waiting;
    TextPart **waiting;
} Work;

/* Return the bytes of the text from `from` to `end`, with padding after them; the bytes of a file
 * are read first. Return NULL after a failure. */
static const uint8_t *read_text(Work *work, Encoder *encoder, int64_t from, int64_t end,
                                int64_t *failure)
{
    void *room = encoder->padded;

    if (work->descriptor < 0)
        return work->text->text + from;
    *failure = NO_MEMORY;
    if (grow(&room, &encoder->padded_room, end - from + TEXT_PADDING, 1) != 0)
        return NULL;
    encoder->padded = room;
    *failure = UNREADABLE;
#ifndef _WIN32
    for (int64_t done = 0; done < end - from;) {
        ssize_t got = pread(work->descriptor, encoder->padded + done, (size_t)(end - from - done),
                            (off_t)(work->offset + from + done));
        if (got > 0)
            done += got;
        else if (got == 0 || errno != EINTR)
            return NULL;
    }
#endif
    memset(encoder->padded + (end - from), 0, TEXT_PADDING);
    *failure = 0;
    return encoder->padded;
}

/* Return the number of documents that begin before a position. */
static int64_t documents_before(const Text *text, int64_t position)
{
    int64_t low = 0, high = text->own_starts;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (text->starts[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return the last position in (from, at] at which a document may be cut; `from` if there is none.
 * limit: where the document ends. */
static int64_t cut_inside(Work *work, Encoder *encoder, int64_t from, int64_t at, int64_t limit)
{
    const Text *text = work->text;
    int64_t end = at + SEEN_AFTER < limit ? at + SEEN_AFTER : limit, cut;

    for (int64_t size = FIRST_WINDOW;; size *= 4) {
        int64_t low = at - from > size ? at - size : from;
        const uint8_t *window = read_text(work, encoder, low, end, &work->failure);
        if (window == NULL)
            return from;
        cut = low + last_certain_start(encoder->pattern, window,
                                       text->marks ? text->marks + low : NULL, 0, at - low,
                                       end - low);
        if (cut > low || low == from)
            return cut > low ? cut : from;
    }
}

/* Return the end of a part of at most `size` bytes. If the text can't be cut in them, the part is
 * longer. */
static int64_t part_end(Work *work, Encoder *encoder, int64_t size)
{
    const Text *text = work->text;

    for (int64_t low = work->at, at;; low = at) {
        at = low + size;
        if (at >= text->main_end)
            return text->main_end;
        int64_t next = documents_before(text, at + 1);
        int64_t document = next > 0 ? text->starts[next - 1] : 0;
        int64_t limit = next < text->num_starts ? text->starts[next] : text->length;
        int64_t from = document > low ? document : low;
        int64_t cut = cut_inside(work, encoder, from, at, limit);
        if (cut > low || work->failure)
            return cut;
    }
}

/* Take the next part, while holding the lock; return whether there is one. */
static int take_part(Work *work, Encoder *encoder, TextPart *part)
{
    const Text *text = work->text;
    int64_t left = text->main_end - work->at, size = left / (2 * work->encoders->threads);

    if (left == 0 || work->failure)
        return 0;
    size = size < work->part_bytes / SMALLEST ? work->part_bytes / SMALLEST : size;
    size = size < work->part_bytes ? size : work->part_bytes;
    int64_t end = part_end(work, encoder, size > 0 ? size : 1);
    if (work->failure)
        return 0;
    int64_t next = end < text->main_end ? documents_before(text, end) : text->own_starts;
    part->text = *text;
    part->text.entry = work->at;
    part->text.main_end = end;
    if (text->num_starts) {
        part->text.starts += work->document;
        part->text.num_starts -= work->document;
        part->text.own_starts = next - work->document;
        part->text.token_starts += work->document;
    }
    part->number = work->taken++;
    part->begin = -1;
    part->is_free = 0;
    work->at = end;
    work->document = next;
    return 1;
}

/* Encode a part, and keep its ids in the part; return 0 or a failure. */
static int64_t encode_part(Work *work, Encoder *encoder, TextPart *part)
{
    Text *text = &part->text;
    int64_t first = text->entry, failure = 0, stopped;
    int64_t end = text->length - text->main_end > SEEN_AFTER ? text->main_end + SEEN_AFTER
                                                              : text->length;
    void *ids = part->ids;

    if (grow(&ids, &part->room, text->main_end - first + 3, sizeof *part->ids) != 0)
        return NO_MEMORY;
    part->ids = ids;
    if (work->descriptor >= 0) {
        text->text = read_text(work, encoder, first, end, &failure);
        if (text->text == NULL)
            return failure;
        text->length = end - first;
        text->main_end -= first;
        text->entry = 0;
    }
    part->count = encode_text(encoder, text, part->ids, &stopped);
    return part->count < 0 ? part->count : 0;
}

/* Set `begin` of all parts whose place is known now that `part` is encoded, while holding the
 * lock. */
static void place_parts(Work *work, TextPart *part)
{
    TextPart **waiting = work->waiting;

    waiting[part->number % work->most_waiting] = part;
    while ((part = waiting[work->placed % work->most_waiting]) != NULL) {
        waiting[work->placed++ % work->most_waiting] = NULL;
        __atomic_store_n(&part->begin, work->begin, __ATOMIC_RELEASE);
        work->begin += part->count;
    }
    pthread_cond_broadcast(&work->has_placed);
}

/* Copy the ids of the thread's parts to their place if it is known; return a free part, or NULL. */
static TextPart *copy_parts(Work *work, Encoder *encoder)
{
    TextPart *found = NULL;

    for (TextPart *part = encoder->parts; part < encoder->parts + MOST_WAITING; part++) {
        int64_t begin = part->is_free ? 0 : __atomic_load_n(&part->begin, __ATOMIC_ACQUIRE);
        if (begin < 0)
            continue;
        if (!part->is_free) {
            memcpy(work->ids + begin, part->ids, (size_t)part->count * sizeof *part->ids);
            for (int64_t k = 0; k < part->text.own_starts; k++)
                part->text.token_starts[k] += begin;
            part->is_free = 1;
        }
        found = part;
    }
    return found;
}

/* Wait until the place of one of the thread's parts is known; return 0 if no part waits, or after a
 * failure. */
static int wait_for_place(Work *work, Encoder *encoder)
{
    int is_known = 0, waits = 1;

    pthread_mutex_lock(&work->lock);
    while (waits && !is_known) {
        waits = 0;
        for (TextPart *part = encoder->parts; part < encoder->parts + MOST_WAITING; part++) {
            waits |= !part->is_free;
            is_known |= !part->is_free && part->begin >= 0;
        }
        if (work->failure)
            waits = is_known = 0;
        else if (waits && !is_known)
            pthread_cond_wait(&work->has_placed, &work->lock);
    }
    pthread_mutex_unlock(&work->lock);
    return is_known;
}

static void *work_on_parts(void *given)
{
    Work *work = given;
    int64_t failure = 0;
    int is_taken = 1;

    Encoder *encoder = work->encoders + __atomic_fetch_add(&work->joined, 1, __ATOMIC_RELAXED);
    encoder->shared = work->shared;
    while (is_taken && !failure) {
        TextPart *part = copy_parts(work, encoder);
        if (part == NULL) {
            is_taken = wait_for_place(work, encoder);
            continue;
        }
        pthread_mutex_lock(&work->lock);
        is_taken = take_part(work, encoder, part);
        pthread_mutex_unlock(&work->lock);
        if (!is_taken)
            break;
        failure = encode_part(work, encoder, part);
        pthread_mutex_lock(&work->lock);
        if (failure)
            work->failure = failure;
        else
            place_parts(work, part);
        pthread_mutex_unlock(&work->lock);
    }
    pthread_cond_broadcast(&work->has_placed); /* wakes threads that wait, in case of a failure */
    while (wait_for_place(work, encoder))
        copy_parts(work, encoder);
    return NULL;
}

/* Free the parts for another text. Free also the memory of each part that has room for more than
 * `most` ids. */
static void release_parts(Encoder *encoder, int64_t most)
{
    for (TextPart *part = encoder->parts; part < encoder->parts + MOST_WAITING; part++) {
        part->is_free = 1;
        if (part->room > most) {
            free(part->ids);
            part->ids = NULL;
            part->room = 0;
        }
    }
    if (encoder->padded_room > most) {
        free(encoder->padded);
        encoder->padded = NULL;
        encoder->padded_room = 0;
    }
}

static int64_t encode_parts(Work *work, int64_t threads)
{
    work->most_waiting = threads * MOST_WAITING;
    work->waiting = calloc((size_t)work->most_waiting, sizeof *work->waiting);
    if (work->waiting == NULL)
        return NO_MEMORY;
    pthread_mutex_init(&work->lock, NULL);
    pthread_cond_init(&work->has_placed, NULL);
    run_in_threads(work_on_parts, work, threads);
    pthread_cond_destroy(&work->has_placed);
    pthread_mutex_destroy(&work->lock);
    for (int64_t k = 0; k < threads; k++)
        release_parts(work->encoders + k, 4 * work->part_bytes);
    free(work->waiting);
    return work->failure ? work->failure : work->begin;
}

/* Return the number of threads that encode some bytes soonest. Threads are started one after the
 * other, so n threads take the time of n starts and of an n-th of the work. A share is the work
 * that takes as long as a start. So n threads are fastest from about n * n shares on. */
static int64_t best_threads(int64_t bytes, int64_t part_bytes, int64_t most)
{
    int64_t share = part_bytes / SHARES + 1, threads = 1;

    while (threads < most && (threads + 1) * (threads + 2) * share <= bytes)
        threads++;
    return threads;
}

/* Write the ids of the words that start in a text, see `Text`; return the number of ids, NO_MEMORY,
 * or UNREADABLE for a file that is shorter or can't be read.
 *
 * encoders: of `llmgpu_encoder_new`. shared: words with their ids by the same vocabulary; new words
 *     are added.
 * descriptor: a file that has the text from `offset` on; -1 if `text` points to the text.
 * part_bytes: the most bytes of the text that a thread takes at a time.
 * ids: uint32_t, has room for an id for each byte up to main_end, and 3 more.
 * *stopped is set to where the last token ends. */
API int64_t llmgpu_encode(Encoder *encoders, SharedWords *shared, const uint8_t *text,
                          const uint8_t *marks, int descriptor, int64_t offset, int64_t length,
                          int64_t main_end, int64_t entry, const int64_t *starts,
                          int64_t num_starts, int64_t own_starts, int64_t *token_starts,
                          int64_t part_bytes, uint32_t *ids, int64_t *stopped)
{
    Text whole = {.text = text, .marks = marks, .length = length, .main_end = main_end,
                  .entry = entry, .starts = starts, .num_starts = num_starts,
                  .own_starts = own_starts, .token_starts = token_starts};
    Work work = {.encoders = encoders, .shared = shared, .text = &whole, .ids = ids, .offset = offset,
                 .part_bytes = part_bytes, .descriptor = descriptor, .at = entry};
    int64_t threads = best_threads(main_end - entry, part_bytes, encoders->threads);

    uint8_t *own = NULL; /* the marks of a caller without marks */
    int64_t count = 0;

    encoders->shared = shared;
    *stopped = main_end;
    if (marks == NULL && descriptor < 0) {
        count = marks_of(encoders->pattern, text, length, starts, num_starts, &own);
        whole.marks = own;
    }
    if (count == 0 && descriptor < 0 && (threads == 1 || cuts_anywhere(encoders)))
        count = encode_text(encoders, &whole, ids, stopped);
    else if (count == 0)
        count = encode_parts(&work, threads);
    free(own);
    return count;
}

/* Return the position from which on a document is copied, to add padding: 0, or a position at which
 * a pre-token starts. The text before it is encoded in place, because other text follows it. */
static int64_t copied_from(const Encoder *encoder, const uint8_t *text, int64_t length)
{
    int64_t limit = length - TEXT_PADDING, at = limit - SEEN_AFTER;

    if (length <= COPIED || cuts_anywhere(encoder) || encoder->pattern->expressions)
        return 0;
    for (int64_t size = FIRST_WINDOW;; size *= 4) {
        int64_t from = at > size ? at - size : 0;
        int64_t cut = from + last_certain_start(encoder->pattern, text + from, NULL, 0, at - from,
                                                limit - from);
        if (cut > from || from == 0)
            return cut;
    }
}

/* Write the ids of a document that has neither padding nor marks; otherwise like
 * `llmgpu_encode`. */
API int64_t llmgpu_encode_document(Encoder *encoders, SharedWords *shared, const uint8_t *text,
                                   int64_t length, int64_t part_bytes, uint32_t *ids)
{
    int64_t cut = copied_from(encoders, text, length), count = 0, stopped;

    encoders->shared = shared;
    if (cut > 0)
        count = llmgpu_encode(encoders, shared, text, NULL, -1, 0, length - TEXT_PADDING, cut, 0, NULL,
                              0, 0, NULL, part_bytes, ids, &stopped);
    if (count < 0)
        return count;
    int64_t more = encode_copy(encoders, text + cut, length - cut, ids + count);
    if (encoders->padded_room > KEPT) {
        free(encoders->padded);
        encoders->padded = NULL;
        encoders->padded_room = 0;
    }
    return more < 0 ? more : count + more;
}
