#include "exec/fetch.h"

#include "stats/stats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// One expert of the event.
struct item {
    uint8_t *slot;
    uint32_t entry;
    uint32_t staging;   // which staging slot it is in, or GN_NONE
    uint16_t in_flight; // reads not yet complete
    bool missed;        // came from disk in this event
};

struct gn_fetch {
    struct gn_fetch_request request;
    struct item *items; // [most experts of any layer]
    uint32_t *ready;    // items ready and not returned: a queue of [most experts]
    uint32_t ready_head, ready_tail;
    uint32_t *waiting; // items that wait for a staging slot, in order
    uint32_t waiting_head, waiting_tail;
    uint32_t *free_staging; // stack
    uint32_t n_free_staging;
    struct gn_read *reads;  // of this event, in order of submission: [most experts x GN_MAX_SLICES]
    uint8_t *slice_of_read; // which slice each is of
    uint32_t n_reads, n_submitted;
    uint32_t left; // items not returned yet
    bool any_missed, checked;
    int error;
    struct gn_cache_totals before;
};

int gn_fetch_open(struct gn_stream *stream) {
    uint32_t most = 1;
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        uint32_t n = stream->map.layers[l]->n_experts;
        most = n > most ? n : most;
    }
    struct gn_fetch *fetch = calloc(1, sizeof *fetch);
    if (!fetch) {
        return -ENOMEM;
    }
    stream->fetch = fetch;
    fetch->items = calloc(most, sizeof *fetch->items);
    fetch->ready = calloc(most, sizeof *fetch->ready);
    fetch->waiting = calloc(most, sizeof *fetch->waiting);
    fetch->free_staging = calloc(stream->n_staging, sizeof *fetch->free_staging);
    fetch->reads = calloc((size_t)most * GN_MAX_SLICES, sizeof *fetch->reads);
    fetch->slice_of_read = calloc((size_t)most * GN_MAX_SLICES, sizeof *fetch->slice_of_read);
    if (!fetch->reads || !fetch->slice_of_read || !fetch->items || !fetch->ready || !fetch->waiting ||
        !fetch->free_staging) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < stream->n_staging; i++) {
        fetch->free_staging[fetch->n_free_staging++] = i;
    }
    return 0;
}

void gn_fetch_close(struct gn_stream *stream) {
    if (stream->fetch) {
        free(stream->fetch->items);
        free(stream->fetch->ready);
        free(stream->fetch->waiting);
        free(stream->fetch->free_staging);
        free(stream->fetch->reads);
        free(stream->fetch->slice_of_read);
        free(stream->fetch);
        stream->fetch = NULL;
    }
}

// Appends the reads of an item's slices to the event: those of `wanted` for which `last` is as given.
static void add_reads(struct gn_fetch *fetch, uint32_t index, uint32_t wanted, bool last) {
    const struct gn_layer *layer = fetch->request.layer;
    struct item *item = &fetch->items[index];
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        if ((wanted & 1u << s) && layer->slices[s].last == last) {
            fetch->slice_of_read[fetch->n_reads] = (uint8_t)s;
            struct gn_read *read = &fetch->reads[fetch->n_reads++];
            *read = gn_slice_read(&layer->slices[s], fetch->request.experts[index], item->slot);
            read->owner = item;
            item->in_flight++;
        }
    }
}

// Submits all reads added since the last time, at once.
static void submit_added(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    gn_reader_submit(stream->reader, fetch->reads + fetch->n_submitted, fetch->n_reads - fetch->n_submitted);
    fetch->n_submitted = fetch->n_reads;
}

static uint8_t *staging_slot(const struct gn_stream *stream, uint32_t i) {
    return stream->memory + stream->staging_at + i * stream->staging_slot_bytes;
}

// Gives waiting items the staging slots that are free.
static void fill_staging(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    while (fetch->n_free_staging > 0 && fetch->waiting_head < fetch->waiting_tail) {
        uint32_t index = fetch->waiting[fetch->waiting_head++];
        struct item *item = &fetch->items[index];
        item->staging = fetch->free_staging[--fetch->n_free_staging];
        item->slot = staging_slot(stream, item->staging);
        add_reads(fetch, index, fetch->request.slices, false);
        add_reads(fetch, index, fetch->request.slices, true);
    }
    submit_added(stream);
}

// Looks up every expert of the event before anything is inserted or evicted.
static void look_up(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        struct item *item = &fetch->items[i];
        *item = (struct item){.staging = GN_NONE};
        item->entry = gn_cache_entry(stream->cache, fetch->request.layer->index, fetch->request.experts[i]);
        uint32_t slot = gn_cache_lookup(stream->cache, item->entry);
        item->missed = slot == GN_NONE;
        if (!item->missed) {
            item->slot = stream->memory + gn_cache_slot_offset(stream->cache, slot);
            fetch->ready[fetch->ready_tail++] = i;
        }
        fetch->any_missed |= item->missed;
    }
}

// Gives every miss a slot of the cache, or a place in the queue for staging.
static void place_misses(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        struct item *item = &fetch->items[i];
        if (!item->missed) {
            continue;
        }
        uint32_t slot = gn_cache_insert(stream->cache, item->entry, !fetch->request.prefill);
        if (slot == GN_NONE) {
            fetch->waiting[fetch->waiting_tail++] = i;
        } else {
            item->slot = stream->memory + gn_cache_slot_offset(stream->cache, slot);
        }
    }
}

// Adds the reads of all misses that have a slot. Decode wants gate and up of all experts before any down; prefill
// computes expert after expert, in file order.
static void add_cached(struct gn_fetch *fetch) {
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < fetch->request.n; i++) {
            struct item *item = &fetch->items[i];
            if (!item->missed || !item->slot || (fetch->request.prefill && pass == 1)) {
                continue;
            }
            add_reads(fetch, i, ~0u, pass == 1);
            if (fetch->request.prefill) {
                add_reads(fetch, i, ~0u, true);
            }
        }
    }
}

void gn_fetch_begin(struct gn_stream *stream, const struct gn_fetch_request *request) {
    struct gn_fetch *fetch = stream->fetch;
    fetch->request = *request;
    fetch->ready_head = fetch->ready_tail = 0;
    fetch->waiting_head = fetch->waiting_tail = 0;
    fetch->left = request->n;
    fetch->any_missed = fetch->checked = false;
    fetch->error = 0;
    fetch->n_reads = fetch->n_submitted = 0;
    fetch->before = gn_cache_totals(stream->cache);
    uint64_t start = gn_now_ns();
    gn_cache_begin(stream->cache);
    look_up(stream);
    if (fetch->any_missed) {
        place_misses(stream);
    }
    gn_count(manage_ns, gn_now_ns() - start);
    if (fetch->any_missed) {
        add_cached(fetch);
        submit_added(stream);
        fill_staging(stream);
    }
}

static void explain(struct gn_stream *stream, const struct item *item, const struct gn_read *read) {
    const struct gn_fetch *fetch = stream->fetch;
    uint32_t s = fetch->slice_of_read[read - fetch->reads];
    const char *reason = read->result == -ENODATA ? "the file ends before it" : strerror(-read->result);
    snprintf(stream->error, sizeof stream->error, "cannot read expert %u of %s: %s, offset %llu, %u bytes: %s",
             fetch->request.experts[item - fetch->items], fetch->request.layer->slices[s].tensor,
             gn_file_path(read->file), (unsigned long long)read->offset, read->need, reason);
}

// Takes one completed read in.
static void complete(struct gn_stream *stream, struct gn_read *read) {
    struct gn_fetch *fetch = stream->fetch;
    struct item *item = read->owner;
    item->in_flight--;
    if (read->result < 0) {
        if (!fetch->error) {
            fetch->error = read->result;
            explain(stream, item, read);
        }
        return;
    }
    gn_count(reads, 1);
    gn_count(read_bytes, read->length);
    if (item->in_flight == 0) {
        fetch->ready[fetch->ready_tail++] = (uint32_t)(item - fetch->items);
    }
}

// Collects completions: all that are there, and at least one if nothing is ready.
static void collect(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    struct gn_read *read;
    while ((read = gn_reader_reap(stream->reader, false))) {
        complete(stream, read);
    }
    uint64_t start = 0;
    while (fetch->ready_head == fetch->ready_tail && !fetch->error) {
        start = start ? start : gn_now_ns();
        read = gn_reader_reap(stream->reader, true);
        if (!read) {
            break;
        }
        complete(stream, read);
    }
    if (start) {
        gn_count(io_wait_ns, gn_now_ns() - start);
    }
}

static void drain(struct gn_stream *stream) {
    struct gn_read *read;
    while ((read = gn_reader_reap(stream->reader, true))) {
        struct item *item = read->owner;
        item->in_flight--;
    }
}

// Makes sure that no file changed under the reads of this event, once they are all complete.
static void check_files(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    if (!fetch->any_missed || fetch->checked || gn_reader_in_flight(stream->reader) ||
        fetch->waiting_head < fetch->waiting_tail) {
        return;
    }
    fetch->checked = true;
    const struct gn_layer *layer = fetch->request.layer;
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        const struct gn_file *file = layer->slices[s].file;
        if ((s == 0 || file != layer->slices[s - 1].file) && gn_file_unchanged(file)) {
            fetch->error = -ESTALE;
            snprintf(stream->error, sizeof stream->error,
                     "%s was changed while it was in use: its experts cannot be trusted; load the model again",
                     gn_file_path(file));
            return;
        }
    }
}

int gn_fetch_next(struct gn_stream *stream, struct gn_ready *ready, uint32_t capacity) {
    struct gn_fetch *fetch = stream->fetch;
    if (fetch->left == 0) {
        return 0;
    }
    if (fetch->any_missed && !fetch->error) {
        collect(stream);
        check_files(stream);
    }
    if (fetch->error) {
        drain(stream);
        return fetch->error;
    }
    const struct gn_layer *layer = fetch->request.layer;
    uint32_t n = 0;
    while (n < capacity && fetch->ready_head < fetch->ready_tail) {
        uint32_t index = fetch->ready[fetch->ready_head++];
        ready[n].index = index;
        for (uint32_t s = 0; s < layer->n_slices; s++) {
            ready[n].slice[s] =
                gn_slice_data(&layer->slices[s], fetch->request.experts[index], fetch->items[index].slot);
        }
        n++;
    }
    if (n == 0) { // nothing in flight, and experts missing: must not pass for done
        fetch->error = -EIO;
        snprintf(stream->error, sizeof stream->error, "%u experts of block %u never came", fetch->left, layer->block);
        return fetch->error;
    }
    fetch->left -= n;
    return (int)n;
}

void gn_fetch_release(struct gn_stream *stream, const struct gn_ready *ready, uint32_t n) {
    struct gn_fetch *fetch = stream->fetch;
    for (uint32_t i = 0; i < n; i++) {
        struct item *item = &fetch->items[ready[i].index];
        if (item->staging != GN_NONE) {
            fetch->free_staging[fetch->n_free_staging++] = item->staging;
            item->staging = GN_NONE;
            gn_count(staged, 1);
        }
    }
    fill_staging(stream);
}

static void count_event(const struct gn_stream *stream) {
    const struct gn_cache_totals *before = &stream->fetch->before;
    struct gn_cache_totals after = gn_cache_totals(stream->cache);
    gn_count(events, 1);
    gn_count(hits, after.hits - before->hits);
    gn_count(misses, after.misses - before->misses);
    gn_count(inserts, after.inserts - before->inserts);
    gn_count(evictions, after.evictions - before->evictions);
    gn_count(pinned_hits, after.hot_hits - before->hot_hits);
    gn_count(pinned_evictions, after.hot_evictions - before->hot_evictions);
    gn_count(rereads, after.rereads - before->rereads);
}

void gn_fetch_end(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    drain(stream);
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        struct item *item = &fetch->items[i];
        if (item->staging != GN_NONE) {
            fetch->free_staging[fetch->n_free_staging++] = item->staging;
        }
        // An event that was cut short leaves nothing behind that it had not finished.
        if (item->missed && item->slot && (fetch->error || fetch->left > 0)) {
            gn_cache_drop(stream->cache, item->entry);
        }
    }
    gn_cache_end(stream->cache);
    count_event(stream);
}
