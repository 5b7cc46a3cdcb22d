#include "exec/models.h"

#include "config/log.h"
#include "config/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gn_stream *models; // by next_model

void gn_models_lock(void) {
    pthread_mutex_lock(&lock);
}

void gn_models_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static _Atomic uint32_t forks;

uint32_t gn_models_forks(void) {
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

void gn_models_forked(void) {
    atomic_fetch_add(&forks, 1);
    pthread_mutex_init(&lock, NULL);
    for (struct gn_stream *stream = models; stream; stream = stream->next_model) {
        gn_stream_forked(stream);
    }
}

void gn_models_add(struct gn_stream *stream) {
    gn_models_lock();
    stream->next_model = models;
    models = stream;
    gn_models_unlock();
}

void gn_models_remove(struct gn_stream *stream) {
    gn_models_lock();
    for (struct gn_stream **at = &models; *at; at = &(*at)->next_model) {
        if (*at == stream) {
            *at = stream->next_model;
            break;
        }
    }
    gn_models_unlock();
}

struct gn_stream *gn_models_first(void) {
    return models;
}

uint32_t gn_models_count(void) {
    uint32_t n = 0;
    for (const struct gn_stream *stream = models; stream; stream = stream->next_model) {
        n += stream->claim.most > 0;
    }
    return n;
}

// How much of a stream's slots and spares has ever been used, and so is in memory.
static uint64_t touched_bytes(const struct gn_stream *stream) {
    enum { AT_ONCE = 4096 };
    unsigned char pages[AT_ONCE];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = 0;
    for (uint64_t at = 0; stream->region && at < stream->memory_bytes; at += AT_ONCE * page) {
        uint64_t bytes = stream->memory_bytes - at < AT_ONCE * page ? stream->memory_bytes - at : AT_ONCE * page;
        uint64_t here = (bytes + page - 1) / page;
        if (mincore(stream->memory + at, bytes, pages)) {
            return stream->memory_bytes; // the kernel does not say: then all of it
        }
        for (uint64_t i = 0; i < here; i++) {
            n += pages[i] & 1;
        }
    }
    return n * page;
}

int gn_models_taken(const struct gn_stream *stream, struct gn_taken *taken) {
    *taken = (struct gn_taken){
        .dense = stream->dense_bytes,
        .dense_copied = stream->dense == GN_DENSE_COPY,
        .available = gn_memory_available(),
        .group = gn_memory_group(),
        .anonymous = gn_memory_anonymous(),
    };
    struct gn_other *others = calloc(gn_models_count() + 1, sizeof *others);
    if (!others) {
        return -ENOMEM;
    }
    for (const struct gn_stream *other = models; other; other = other->next_model) {
        if (other == stream || other->claim.most == 0) {
            continue;
        }
        others[taken->n_others++] = (struct gn_other){
            .claim = other->claim,
            .held = other->held_bytes,
            .dense_left = other->dense == GN_DENSE_COPY ? 0 : other->dense_bytes,
        };
        taken->touched += touched_bytes(other);
    }
    taken->others = others;
    return 0;
}

void gn_models_forget(struct gn_taken *taken) {
    free((void *)taken->others);
    taken->others = NULL;
}

// Starts a model anew with the bytes that it may keep.
static void give_back(struct gn_stream *stream, const struct gn_knobs *knobs) {
    pthread_mutex_lock(&stream->lock);
    uint32_t before = gn_cache_slots(stream->cache);
    if (gn_stream_restart(stream, knobs)) {
        gn_warn("another model shares the memory: %s", stream->error);
    } else {
        char text[512];
        gn_stream_describe(stream, text, sizeof text);
        gn_info("mode: %s; it had %u slots before another model came", text, before);
    }
    pthread_mutex_unlock(&stream->lock);
}

void gn_models_make_room(const struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_taken taken;
    if (stream->started || gn_models_count() < 2 || gn_models_taken(stream, &taken)) {
        return;
    }
    uint64_t *keep = calloc(taken.n_others + 1, sizeof *keep);
    if (keep && gn_budget_make_room(stream->claim, knobs, &taken, keep)) {
        uint32_t i = 0;
        // All are told first, so that each finds the others as they will be.
        for (struct gn_stream *other = models; other; other = other->next_model) {
            if (other != stream && other->claim.most > 0) {
                other->held_bytes = keep[i++];
            }
        }
        for (struct gn_stream *other = models; other; other = other->next_model) {
            if (other != stream && other->started && other->held_bytes < gn_stream_memory(other)) {
                give_back(other, knobs);
            }
        }
    }
    free(keep);
    gn_models_forget(&taken);
}
