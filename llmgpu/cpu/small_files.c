/* Reading many small files of text in several threads, with a single call from Python. */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"

#ifndef _WIN32
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __APPLE__
#define CHANGED_NS(status) ((status).st_mtimensec)
#else
#define CHANGED_NS(status) ((status).st_mtim.tv_nsec)
#endif
#define MOST_BYTES (1 << 16) /* the most bytes of a file */

/* The arguments of llmgpu_read_small_files. next: the first file that no thread has taken. done:
 * the number of files before the first file that is not read. */
typedef struct {
    const char *names;
    const int64_t *names_at, *texts_at, *changed_ns;
    const uint8_t *are_any_bytes;
    uint8_t *text;
    int64_t count, next, done;
} SmallFiles;

/* Read a file into `data`; return 0 if it can't be read, or if its length or time has changed. */
static int read_file(const char *name, int64_t length, int64_t changed_ns, uint8_t *data)
{
    int descriptor = open(name, O_RDONLY | O_CLOEXEC);
    int64_t held = 0;
    ssize_t got = 1;
    struct stat status;

    if (descriptor < 0)
        return 0;
    while (held < length && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(descriptor, data + held, (size_t)(length - held));
        held += got > 0 ? got : 0;
    }
    int is_same = held == length && fstat(descriptor, &status) == 0 && status.st_size == length &&
                  status.st_mtime * INT64_C(1000000000) + CHANGED_NS(status) == changed_ns;
    close(descriptor);
    return is_same;
}

static const uint8_t *after_space(const uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        p++;
    return p;
}

/* Whether a text begins, after white space, like an object of JSON or an array of objects. */
static int begins_as_json(const uint8_t *p, const uint8_t *end)
{
    p = after_space(p, end);
    if (p < end && *p == '[')
        p = after_space(p + 1, end);
    if (p == end || *p++ != '{')
        return 0;
    p = after_space(p, end);
    return p < end && *p == '"';
}

/* Whether a text is plain: without control characters, byte order mark, JSON and invalid UTF-8. */
static int is_plain(const uint8_t *text, int64_t length)
{
    uint32_t allowed = UINT32_C(1) << '\a' | 1 << '\b' | 1 << '\t' | 1 << '\n' | 1 << '\v' |
                       1 << '\f' | 1 << '\r' | 1 << 27;

    for (int64_t k = 0; k < length; k++)
        if (text[k] < 32 && !(allowed >> text[k] & 1))
            return 0;
    return !(length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) &&
           !begins_as_json(text, text + length) && llmgpu_valid_utf8(text, length) == length;
}

static void *read_files(void *given)
{
    SmallFiles *files = given;
    uint8_t data[MOST_BYTES]; /* texts are checked here, because `text` may be slow to read */
    int64_t k;

    while ((k = __atomic_fetch_add(&files->next, 1, __ATOMIC_RELAXED)) <
           __atomic_load_n(&files->done, __ATOMIC_RELAXED)) {
        int64_t length = files->texts_at[k + 1] - files->texts_at[k];
        if (read_file(files->names + files->names_at[k], length, files->changed_ns[k], data) &&
            (files->are_any_bytes[k] || is_plain(data, length))) {
            memcpy(files->text + files->texts_at[k], data, (size_t)length);
            continue;
        }
        int64_t done = __atomic_load_n(&files->done, __ATOMIC_RELAXED);
        while (k < done && !__atomic_compare_exchange_n(&files->done, &done, k, 0, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED))
            continue;
    }
    return NULL;
}
#endif

/* Read files into `text`, up to the first file that has changed, can't be read, or is not plain
 * text; return the number of files read.
 *
 * names: end to end, each with a zero after it; the name of file k begins at names_at[k].
 *     changed_ns: (count,), the time of each file's last change. are_any_bytes: (count,), whether a
 *     file need not be plain text. texts_at: (count + 1,), the position in `text` for each file,
 *     then the end; files have up to 65,536 bytes each. */
API int64_t llmgpu_read_small_files(const char *names, const int64_t *names_at,
                                    const int64_t *changed_ns, const uint8_t *are_any_bytes,
                                    int64_t count, uint8_t *text, const int64_t *texts_at,
                                    int threads)
{
#ifdef _WIN32
    (void)names, (void)names_at, (void)changed_ns, (void)are_any_bytes, (void)count;
    (void)text, (void)texts_at, (void)threads;
    return 0;
#else
    SmallFiles files = {names, names_at, texts_at, changed_ns, are_any_bytes, text, count, 0, count};

    run_in_threads(read_files, &files, threads < count ? threads : count);
    return files.done;
#endif
}
