// A pool of threads that call pread(), one read each at a time. The same pool serves files that are mapped: there a
// read brings pages of the mapping into memory, where they are, and moves nothing.
#include "io/engine.h"
#include "io/file.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 // Linux 5.14
#endif

struct pool {
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t has_work, has_ended;
    struct gn_read_list work, ended;
    bool stop;
    int (*read)(const struct gn_read *read); // returns bytes or a negative errno
    unsigned n;
    pthread_t threads[];
};

static int read_rest(const struct gn_read *read) {
    ssize_t got = pread(gn_file_fd(read->file), (uint8_t *)read->to + read->done, read->length - read->done,
                        (off_t)(read->offset + read->done));
    return got < 0 ? -errno : (int)got;
}

// The whole pages that what is needed of a read lies in. They end where the file does at the latest.
static size_t pages_of(const struct gn_read *read, uint8_t **first) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)read->to / page * page;
    *first = (uint8_t *)begin;
    return ((uintptr_t)read->to + read->need - begin + page - 1) / page * page;
}

static int populate(const struct gn_read *read) {
    uint8_t *first;
    size_t bytes = pages_of(read, &first);
    while (madvise(first, bytes, MADV_POPULATE_READ)) {
        if (errno == EFAULT) {
            return -ENODATA; // the file has become shorter
        }
        if (errno == EINVAL) {
            break; // an older kernel: the pages come when they are used
        }
        if (errno != EINTR && errno != EAGAIN) {
            return -errno;
        }
    }
    return (int)(read->length - read->done);
}

static void *run(void *state) {
    struct pool *pool = state;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        struct gn_read *read = gn_read_pop(&pool->work);
        if (!read) {
            pthread_cond_wait(&pool->has_work, &pool->mutex);
            continue;
        }
        pthread_mutex_unlock(&pool->mutex);
        read->result = pool->read(read);
        pthread_mutex_lock(&pool->mutex);
        gn_read_push(&pool->ended, read);
        pthread_cond_signal(&pool->has_ended);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void threads_close(void *state) {
    struct pool *pool = state;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->has_work);
    pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->n; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    pthread_cond_destroy(&pool->has_ended);
    pthread_cond_destroy(&pool->has_work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

// Starts up to n threads, with all signals blocked: those are for the program's own threads. Returns 0 if one started.
static int start_threads(struct pool *pool, unsigned n) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    while (pool->n < n && !failed) {
        failed = pthread_create(&pool->threads[pool->n], NULL, run, pool);
        pool->n += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool->n ? 0 : -failed;
}

static int open_pool(int (*read)(const struct gn_read *read), unsigned *depth, void **state) {
    struct pool *pool = calloc(1, sizeof *pool + *depth * sizeof *pool->threads);
    if (!pool) {
        return -ENOMEM;
    }
    pool->read = read;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->has_work, NULL);
    pthread_cond_init(&pool->has_ended, NULL);
    int failed = start_threads(pool, *depth);
    if (failed) {
        threads_close(pool);
        return failed;
    }
    *depth = pool->n;
    *state = pool;
    return 0;
}

static int threads_open(unsigned *depth, void **state) {
    return open_pool(read_rest, depth, state);
}

static int mapped_open(unsigned *depth, void **state) {
    return open_pool(populate, depth, state);
}

static void threads_submit(void *state, struct gn_read_list *reads) {
    struct pool *pool = state;
    pthread_mutex_lock(&pool->mutex);
    struct gn_read *read;
    while ((read = gn_read_pop(reads))) {
        gn_read_push(&pool->work, read);
        pthread_cond_signal(&pool->has_work);
    }
    pthread_mutex_unlock(&pool->mutex);
}

static void threads_reap(void *state, bool wait, struct gn_read_list *ended) {
    struct pool *pool = state;
    pthread_mutex_lock(&pool->mutex);
    while (wait && !pool->ended.first) {
        pthread_cond_wait(&pool->has_ended, &pool->mutex);
    }
    struct gn_read *read;
    while ((read = gn_read_pop(&pool->ended))) {
        gn_read_push(ended, read);
    }
    pthread_mutex_unlock(&pool->mutex);
}

// The kernel is asked for all of them first: in a mapping that is read here and there it would otherwise fetch page
// after page.
static void mapped_submit(void *state, struct gn_read_list *reads) {
    for (const struct gn_read *read = reads->first; read; read = read->next) {
        uint8_t *first;
        size_t bytes = pages_of(read, &first);
        (void)gn_file_will_need(first, bytes); // a wish
    }
    threads_submit(state, reads);
}

const struct gn_engine gn_threads_engine = {
    .name = "threads",
    .depth = 8,
    .most_depth = 64,
    .open = threads_open,
    .close = threads_close,
    .submit = threads_submit,
    .reap = threads_reap,
};

const struct gn_engine gn_mapped_engine = {
    .name = "mapped",
    .in_place = true,
    .depth = 8,
    .most_depth = 64,
    .open = mapped_open,
    .close = threads_close,
    .submit = mapped_submit,
    .reap = threads_reap,
};
