// What arrives: reads are taken in, threads wait for slices, files are checked.
#include "exec/ahead.h"
#include "exec/event.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdio.h>

// While experts of the running event are still to arrive, the drive gets no more than this many to read at once with
// what is read ahead: those that are needed now are hardly held up, and it does not fall idle while we compute.
#define BUSY 2

// How often a thread that computes looks for a slice before it sleeps: about as long as waking up takes. A thread that
// spins takes time from others, on a virtual machine even from those that read for it.
#define SPINS 1000

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wake_sleepers(struct gn_fetch *fetch) {
    pthread_mutex_lock(&fetch->sleeping);
    pthread_cond_broadcast(&fetch->arrival);
    pthread_mutex_unlock(&fetch->sleeping);
}

// Takes one completed read in.
static void complete(struct gn_stream *stream, const struct gn_read *read) {
    struct gn_fetch *fetch = stream->fetch;
    struct gn_load *load = read->owner;
    load->in_flight--;
    if (read->result < 0) {
        load->error = load->error ? load->error : read->result;
        if (load->item != GN_NO_ITEM && !fetch->error) {
            fetch->error = read->result;
            gn_load_explain(load, read, stream->error, sizeof stream->error);
            wake_sleepers(fetch);
        }
    } else {
        gn_count(reads, 1);
        gn_count(read_bytes, read->length);
        uint32_t slice = load->slice[read - load->reads];
        atomic_fetch_or(&load->arrived, 1u << slice);
        if (atomic_load(&load->awaited) & 1u << slice) { // in this order, as a sleeper looks in the other one
            wake_sleepers(fetch);
        }
    }
    if (load->in_flight > 0) {
        return;
    }
    if (load->item != GN_NO_ITEM) {
        fetch->loading--;
        if (!load->error) {
            gn_event_push_ready(fetch, load->item);
        }
    } else if (gn_spares_ended(&stream->spares, load) && !fetch->error) {
        gn_event_fill_spares(stream);
    }
}

static bool in_progress(const struct gn_fetch *fetch) {
    return fetch->loading > 0 || fetch->waiting_head < fetch->waiting_tail;
}

// Collects completions: all that are there, and at least one expert if none is ready.
static void collect(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    struct gn_read *read;
    while ((read = gn_reader_reap(stream->reader, false))) {
        complete(stream, read);
    }
    uint64_t start = 0;
    while (fetch->ready_head == fetch->ready_tail && in_progress(fetch) && !fetch->error) {
        start = start ? start : gn_now_ns();
        read = gn_reader_reap(stream->reader, true);
        if (!read) {
            break;
        }
        complete(stream, read);
    }
    if (start) {
        gn_count_of(stream, io_wait_ns, gn_now_ns() - start);
    }
}

void gn_event_drain(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    fetch->waiting_head = fetch->waiting_tail; // nothing more is started
    struct gn_read *read;
    while (fetch->loading > 0 && (read = gn_reader_reap(stream->reader, true))) {
        complete(stream, read);
    }
}

// Makes sure that no file changed under the reads of this event, once they are all complete. What stays in the page
// cache changes with the file even when nothing is read.
static void check_files(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    if (fetch->checked || in_progress(fetch)) {
        return;
    }
    fetch->checked = true;
    const struct gn_layer *layer = fetch->request.layer;
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        struct gn_file *file = layer->slices[s].file;
        int changed = s == 0 || file != layer->slices[s - 1].file ? gn_file_unchanged(file) : 0;
        if (changed) {
            fetch->error = changed;
            snprintf(stream->error, sizeof stream->error,
                     "%s %s while it was in use: its experts cannot be trusted; load the model again",
                     gn_file_path(file), changed == -ESTALE ? "was changed" : "could not be read");
            return;
        }
    }
}

bool gn_fetch_slack(const struct gn_stream *stream) {
    const struct gn_fetch *fetch = stream->fetch;
    return fetch->waiting_head == fetch->waiting_tail && fetch->loading < BUSY;
}

// Reads ahead with what the drive has left over.
static void read_ahead(struct gn_stream *stream) {
    const struct gn_fetch *fetch = stream->fetch;
    if (!in_progress(fetch)) {
        gn_ahead_start(stream, UINT32_MAX);
    } else if (fetch->loading < BUSY) {
        gn_ahead_start(stream, BUSY - fetch->loading);
    }
}

static void describe(const struct gn_fetch *fetch, uint32_t index, struct gn_ready *ready) {
    const struct gn_layer *layer = fetch->request.layer;
    ready->index = index;
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        ready->slice[s] = gn_slice_data(&layer->slices[s], fetch->request.experts[index], fetch->items[index].memory);
    }
}

int gn_fetch_next(struct gn_stream *stream, struct gn_ready *ready, uint32_t capacity) {
    struct gn_fetch *fetch = stream->fetch;
    if (fetch->left == 0) {
        fetch->checked = !stream->held; // pages of a file may have gone while they were computed with
        check_files(stream);
        return fetch->error;
    }
    if ((fetch->any_missed || stream->held) && !fetch->error) {
        collect(stream);
        check_files(stream);
    }
    if (fetch->error) {
        gn_event_drain(stream);
        return fetch->error;
    }
    read_ahead(stream);
    const struct gn_layer *layer = fetch->request.layer;
    uint32_t n = 0;
    while (n < capacity && fetch->ready_head < fetch->ready_tail) {
        describe(fetch, fetch->ready[fetch->ready_head++], &ready[n++]);
    }
    if (n == 0) { // nothing in flight, and experts missing: must not pass for done
        fetch->error = -EIO;
        snprintf(stream->error, sizeof stream->error, "%u experts of block %u never came", fetch->left, layer->block);
        return fetch->error;
    }
    fetch->left -= n;
    return (int)n;
}

uint32_t gn_fetch_placed(struct gn_stream *stream, struct gn_ready *ready, uint32_t capacity) {
    struct gn_fetch *fetch = stream->fetch;
    if (fetch->waiting_head < fetch->waiting_tail || fetch->request.n > capacity) {
        return 0;
    }
    read_ahead(stream);
    uint32_t n = 0;
    while (fetch->ready_head < fetch->ready_tail) {
        describe(fetch, fetch->ready[fetch->ready_head++], &ready[n++]);
    }
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        if (fetch->items[i].load && fetch->items[i].load->in_flight > 0) {
            describe(fetch, i, &ready[n++]);
        }
    }
    fetch->left = 0;
    return n;
}

bool gn_fetch_arrived(const struct gn_stream *stream, uint32_t index, uint32_t slice) {
    struct gn_load *load = stream->fetch->items[index].load;
    return !load || atomic_load(&load->arrived) & 1u << slice;
}

bool gn_fetch_failed(const struct gn_stream *stream) {
    return atomic_load_explicit(&stream->fetch->error, memory_order_relaxed) != 0;
}

void gn_fetch_poll(struct gn_stream *stream) {
    const struct gn_read *read;
    while ((read = gn_reader_reap(stream->reader, false))) {
        complete(stream, read);
    }
    read_ahead(stream);
}

// Takes in one read, waiting for it. False: there is none in flight.
static bool take_one(struct gn_stream *stream) {
    const struct gn_read *read = gn_reader_reap(stream->reader, true);
    if (read) {
        complete(stream, read);
        read_ahead(stream);
    }
    return read != NULL;
}

bool gn_fetch_await(struct gn_stream *stream, uint32_t index, uint32_t slice) {
    if (gn_fetch_arrived(stream, index, slice)) {
        return true;
    }
    uint64_t start = gn_now_ns();
    while (!gn_fetch_failed(stream) && !gn_fetch_arrived(stream, index, slice) && take_one(stream)) {
    }
    gn_count_of(stream, io_wait_ns, gn_now_ns() - start);
    return !gn_fetch_failed(stream) && gn_fetch_arrived(stream, index, slice);
}

// Whether there is nothing to wait for any more.
static bool decided(const struct gn_stream *stream, uint32_t index, uint32_t slice) {
    return gn_fetch_arrived(stream, index, slice) || gn_fetch_failed(stream);
}

bool gn_fetch_sleep(struct gn_stream *stream, uint32_t index, uint32_t slice) {
    struct gn_fetch *fetch = stream->fetch;
    for (int i = 0; i < SPINS && !decided(stream, index, slice); i++) {
        relax();
    }
    if (!decided(stream, index, slice)) {
        pthread_mutex_lock(&fetch->sleeping);
        atomic_fetch_or(&fetch->items[index].load->awaited, 1u << slice);
        while (!decided(stream, index, slice)) {
            pthread_cond_wait(&fetch->arrival, &fetch->sleeping);
        }
        pthread_mutex_unlock(&fetch->sleeping);
    }
    return !gn_fetch_failed(stream) && gn_fetch_arrived(stream, index, slice);
}

int gn_fetch_settle(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    gn_event_drain(stream);
    if (!fetch->error) {
        check_files(stream);
    }
    return fetch->error;
}
