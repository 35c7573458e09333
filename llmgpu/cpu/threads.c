/* A pool of threads that share the work of each operation.
 *
 * A thread takes further items when its last items are done, and an operation ends when all items
 * are done. So a thread that the system holds back delays no other thread. A waiting thread looks
 * for work for some microseconds, because operations follow each other closely, and then sleeps.
 */
#include "tensors.h"

#include <pthread.h>

#define MOST_THREADS 256
#define LOOKS 4000 /* how often a thread looks for work before it sleeps */
#define LEAST_ELEMENTS 16384 /* handing over a step with fewer elements does not pay off */

struct Threads {
    pthread_mutex_t turn; /* held by the caller of run_job */
    pthread_mutex_t lock; /* held to change the fields below */
    pthread_cond_t has_work, is_done;
    int64_t others; /* number of threads beside the caller's */
    int64_t started; /* number of jobs so far */
    int64_t inside;  /* number of these threads that work on the job */
    int is_open, is_ended;
    Job job;
    const void *arguments;
    int64_t count, step, next;
    int64_t numbers; /* the last number given to a thread */
    pthread_t handles[MOST_THREADS];
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void take_items(Threads *threads, int64_t thread)
{
    int64_t count = threads->count, step = threads->step;

    for (;;) {
        int64_t start = __atomic_fetch_add(&threads->next, step, __ATOMIC_RELAXED);
        if (start >= count)
            return;
        threads->job(threads->arguments, start, count - start < step ? count : start + step, thread);
    }
}

static void *work(void *argument)
{
    Threads *threads = argument;
    int64_t seen = 0; /* number of jobs that this thread has worked on or missed */

    pthread_mutex_lock(&threads->lock);
    int64_t thread = ++threads->numbers;
    for (;;) {
        while (!threads->is_ended && (threads->started == seen || !threads->is_open)) {
            seen = threads->started;
            pthread_mutex_unlock(&threads->lock);
            for (int look = 0; look < LOOKS; look++) {
                if (__atomic_load_n(&threads->started, __ATOMIC_RELAXED) != seen)
                    break;
                pause_briefly();
            }
            pthread_mutex_lock(&threads->lock);
            while (!threads->is_ended && threads->started == seen)
                pthread_cond_wait(&threads->has_work, &threads->lock);
        }
        if (threads->is_ended)
            break;
        seen = threads->started;
        __atomic_fetch_add(&threads->inside, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&threads->lock);
        take_items(threads, thread);
        pthread_mutex_lock(&threads->lock);
        if (__atomic_sub_fetch(&threads->inside, 1, __ATOMIC_RELEASE) == 0)
            pthread_cond_signal(&threads->is_done);
    }
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

int64_t thread_count(const Threads *threads)
{
    return threads->others + 1;
}

int64_t worthwhile_step(int64_t elements)
{
    int64_t step = LEAST_ELEMENTS / (elements > 0 ? elements : 1);
    return step > 0 ? step : 1;
}

void run_job(Threads *threads, Job job, const void *arguments, int64_t count, int64_t step)
{
    if (threads->others == 0 || count <= step) {
        for (int64_t start = 0; start < count; start += step)
            job(arguments, start, count - start < step ? count : start + step, 0);
        return;
    }
    pthread_mutex_lock(&threads->turn);
    pthread_mutex_lock(&threads->lock);
    threads->job = job;
    threads->arguments = arguments;
    threads->count = count;
    threads->step = step;
    threads->next = 0;
    threads->is_open = 1;
    __atomic_fetch_add(&threads->started, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&threads->has_work);
    pthread_mutex_unlock(&threads->lock);
    take_items(threads, 0);
    for (int look = 0; look < LOOKS; look++) {
        if (__atomic_load_n(&threads->inside, __ATOMIC_ACQUIRE) == 0)
            break;
        pause_briefly();
    }
    pthread_mutex_lock(&threads->lock);
    threads->is_open = 0; /* threads that wake up from here on take no items */
    while (__atomic_load_n(&threads->inside, __ATOMIC_ACQUIRE) > 0)
        pthread_cond_wait(&threads->is_done, &threads->lock);
    pthread_mutex_unlock(&threads->lock);
    pthread_mutex_unlock(&threads->turn);
}

API void llmgpu_threads_free(Threads *threads)
{
    pthread_mutex_lock(&threads->lock);
    threads->is_ended = 1;
    __atomic_fetch_add(&threads->started, 1, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&threads->has_work);
    pthread_mutex_unlock(&threads->lock);
    for (int64_t k = 0; k < threads->others; k++)
        pthread_join(threads->handles[k], NULL);
    free(threads);
}

/* Start `count` - 1 threads, or as many as the system allows; return NULL without memory. */
API Threads *llmgpu_threads_new(int64_t count)
{
    Threads *threads = calloc(1, sizeof *threads);

    if (threads == NULL)
        return NULL;
    pthread_mutex_init(&threads->turn, NULL);
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->has_work, NULL);
    pthread_cond_init(&threads->is_done, NULL);
    while (threads->others < count - 1 && threads->others < MOST_THREADS &&
           pthread_create(&threads->handles[threads->others], NULL, work, threads) == 0)
        threads->others++;
    return threads;
}

void run_in_threads(void *(*function)(void *), void *argument, int64_t threads)
{
    pthread_t others[MOST_THREADS];
    int64_t started = 0;

    threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    while (started < threads - 1 &&
           pthread_create(&others[started], NULL, function, argument) == 0)
        started++; /* if the system allows fewer threads, these do the work */
    function(argument);
    while (started)
        pthread_join(others[--started], NULL);
}
