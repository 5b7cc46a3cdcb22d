#include "exec/event.h"

#include "exec/ahead.h"
#include "exec/growth.h"
#include "exec/locking.h"
#include "exec/report.h"
#include "exec/seed.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdlib.h>

// A prefill that uses at least this share of a layer's experts will use nearly all of the next layer's as well.
#define NEARLY_ALL_PERCENT 80

#define AHEAD_MOST 64 // experts that a prefill asks for ahead, whatever the number of spares

int gn_fetch_open(struct gn_stream *stream) {
    uint32_t most = gn_expert_map_most_experts(&stream->map), n_spares = stream->spares.n;
    most = most ? most : 1;
    struct gn_fetch *fetch = calloc(1, sizeof *fetch);
    if (!fetch) {
        return -ENOMEM;
    }
    stream->fetch = fetch;
    pthread_mutex_init(&fetch->sleeping, NULL);
    pthread_cond_init(&fetch->arrival, NULL);
    fetch->items = calloc(most, sizeof *fetch->items);
    fetch->ready = calloc(most, sizeof *fetch->ready);
    fetch->waiting = calloc(most, sizeof *fetch->waiting);
    fetch->loads = calloc((size_t)most + n_spares, sizeof *fetch->loads);
    fetch->own = calloc(most, sizeof(struct gn_load *));
    if (!fetch->items || !fetch->ready || !fetch->waiting || !fetch->loads || !fetch->own) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < most; i++) {
        fetch->own[i] = &fetch->loads[i];
    }
    for (uint32_t i = 0; i < n_spares; i++) {
        stream->spares.spare[i].load = &fetch->loads[most + i];
    }
    return 0;
}

void gn_fetch_close(struct gn_stream *stream) {
    if (stream->fetch) {
        free(stream->fetch->items);
        free(stream->fetch->ready);
        free(stream->fetch->waiting);
        free(stream->fetch->loads);
        free(stream->fetch->own);
        pthread_cond_destroy(&stream->fetch->arrival);
        pthread_mutex_destroy(&stream->fetch->sleeping);
        free(stream->fetch);
        stream->fetch = NULL;
    }
}

// ------------------------------------------------------------------------------------------------- beginning

// The item's reads are described; they are not queued yet.
static void expect(struct gn_fetch *fetch, uint32_t i, struct gn_load *load, uint8_t *memory, uint32_t slices) {
    struct gn_fetch_item *item = &fetch->items[i];
    gn_load_prepare(load, fetch->request.layer, fetch->request.experts[i], memory, slices);
    load->item = i;
    item->load = load;
    item->memory = memory;
    fetch->loading++;
}

static uint64_t class_bytes(const struct gn_stream *stream, uint32_t size_class) {
    return gn_cache_layout(stream->cache)->classes[size_class].slot_bytes;
}

static void touch_spare(struct gn_stream *stream, struct gn_spare *spare) {
    gn_growth_touch(stream, &spare->touched, class_bytes(stream, spare->size_class));
}

static void touch_slot(struct gn_stream *stream, uint32_t slot) {
    uint32_t size_class = gn_cache_layout(stream->cache)->class_of_layer[stream->fetch->request.layer->index];
    gn_growth_touch(stream, &stream->slot_touched[slot], class_bytes(stream, size_class));
}

void gn_event_fill_spares(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    uint32_t size_class = gn_cache_layout(stream->cache)->class_of_layer[fetch->request.layer->index];
    while (fetch->waiting_head < fetch->waiting_tail) {
        uint32_t found = gn_spares_find(&stream->spares, size_class, true);
        if (found == GN_NONE) {
            break;
        }
        uint32_t i = fetch->waiting[fetch->waiting_head++];
        struct gn_spare *spare = &stream->spares.spare[found];
        spare->use = GN_SPARE_STAGED;
        fetch->items[i].spare = found;
        touch_spare(stream, spare);
        expect(fetch, i, spare->load, spare->memory, fetch->request.slices);
        gn_load_queue(spare->load, stream->reader, false);
        gn_load_queue(spare->load, stream->reader, true);
    }
    gn_reader_start(stream->reader);
}

// An expert that was read ahead, or is on its way, is the item's from now on.
static void claim(struct gn_stream *stream, uint32_t i) {
    struct gn_fetch *fetch = stream->fetch;
    struct gn_fetch_item *item = &fetch->items[i];
    uint32_t found = gn_spares_find_ahead(&stream->spares, item->entry);
    if (found == GN_NONE || stream->spares.spare[found].load->error) {
        return; // what could not be read ahead is read again
    }
    struct gn_spare *spare = &stream->spares.spare[found];
    spare->use = GN_SPARE_STAGED;
    stream->spares.ahead--;
    item->spare = found;
    item->memory = spare->memory;
    item->load = spare->load;
    item->load->item = i;
    gn_ahead_count_useful(stream, spare->source);
    if (item->load->in_flight > 0) {
        fetch->loading++;
    } else {
        gn_event_push_ready(fetch, i);
    }
}

// Looks up every expert of the event before anything is inserted or evicted.
static void look_up(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        struct gn_fetch_item *item = &fetch->items[i];
        *item = (struct gn_fetch_item){.spare = GN_NONE};
        item->entry = gn_cache_entry(stream->cache, fetch->request.layer->index, fetch->request.experts[i]);
        uint32_t slot = gn_cache_lookup(stream->cache, item->entry);
        item->missed = slot == GN_NONE;
        if (!item->missed) {
            item->memory = stream->slot_memory[slot];
            gn_event_push_ready(fetch, i);
        }
        fetch->any_missed |= item->missed;
    }
}

// The spare that item i is in becomes the slot, and the slot's memory the spare: no byte moves. Reads may be in flight.
static void exchange(struct gn_stream *stream, uint32_t i, uint32_t slot) {
    struct gn_fetch *fetch = stream->fetch;
    struct gn_fetch_item *item = &fetch->items[i];
    struct gn_spare *spare = &stream->spares.spare[item->spare];
    uint8_t *memory = stream->slot_memory[slot];
    bool touched = stream->slot_touched[slot];
    stream->slot_memory[slot] = spare->memory;
    stream->slot_touched[slot] = spare->touched;
    spare->memory = memory;
    spare->touched = touched;
    spare->load = fetch->own[i];
    fetch->own[i] = item->load;
    spare->use = GN_SPARE_FREE;
    item->spare = GN_NONE;
}

// Gives every miss a slot of the cache, or a place in the queue for a spare.
static void place_misses(struct gn_stream *stream) {
    struct gn_fetch *fetch = stream->fetch;
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        struct gn_fetch_item *item = &fetch->items[i];
        if (!item->missed) {
            continue;
        }
        bool admitted = !fetch->request.prefill || gn_seed_admits(stream, item->entry);
        uint32_t slot = admitted ? gn_cache_insert(stream->cache, item->entry, !fetch->request.prefill) : GN_NONE;
        item->kept = slot != GN_NONE;
        if (item->kept) {
            gn_stream_hold(stream, slot, fetch->request.layer, fetch->request.experts[i]);
        }
        item->fresh = item->kept && item->spare == GN_NONE;
        if (item->kept && !item->fresh) {
            exchange(stream, i, slot);
        } else if (item->fresh) {
            touch_slot(stream, slot);
            expect(fetch, i, fetch->own[i], stream->slot_memory[slot], ~0u);
        } else if (item->spare == GN_NONE) {
            fetch->waiting[fetch->waiting_tail++] = i;
        }
    }
}

// Queues the reads of the misses that were given a slot. Decode wants gate and up of all experts before any down;
// prefill computes expert after expert, in file order.
static void queue_kept(struct gn_stream *stream) {
    const struct gn_fetch *fetch = stream->fetch;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < fetch->request.n; i++) {
            if (!fetch->items[i].fresh || (fetch->request.prefill && pass == 1)) {
                continue;
            }
            gn_load_queue(fetch->items[i].load, stream->reader, pass == 1);
            if (fetch->request.prefill) {
                gn_load_queue(fetch->items[i].load, stream->reader, true);
            }
        }
    }
    gn_reader_start(stream->reader);
}

static void claim_ahead(struct gn_stream *stream) {
    for (uint32_t i = 0; i < stream->fetch->request.n && stream->spares.ahead > 0; i++) {
        if (stream->fetch->items[i].missed) {
            claim(stream, i);
        }
    }
}

void gn_fetch_begin(struct gn_stream *stream, const struct gn_fetch_request *request) {
    struct gn_fetch *fetch = stream->fetch;
    fetch->request = *request;
    fetch->ready_head = fetch->ready_tail = 0;
    fetch->waiting_head = fetch->waiting_tail = 0;
    fetch->left = request->n;
    fetch->loading = 0;
    fetch->any_missed = fetch->checked = false;
    fetch->error = 0;
    gn_seed_step(stream, request->prefill);
    gn_growth_step(stream);
    gn_locking_step(stream);
    fetch->before = gn_cache_totals(stream->cache);
    uint64_t start = gn_now_ns();
    gn_cache_begin(stream->cache);
    look_up(stream);
    claim_ahead(stream);
    gn_ahead_dismiss(stream, request->layer);
    if (fetch->any_missed) {
        place_misses(stream);
    }
    gn_count_of(stream, manage_ns, gn_now_ns() - start);
    if (fetch->any_missed) {
        queue_kept(stream);
        if (fetch->waiting_tail > 0) {
            gn_ahead_dismiss(stream, NULL); // they may be needed now
        }
        gn_event_fill_spares(stream);
    }
}

uint32_t gn_fetch_misses(const struct gn_stream *stream) {
    return (uint32_t)(gn_cache_totals(stream->cache).misses - stream->fetch->before.misses);
}

// ------------------------------------------------------------------------------------------------- ending

static void give_back_spare(struct gn_stream *stream, struct gn_fetch_item *item) {
    if (item->spare != GN_NONE) {
        const struct gn_load *load = stream->spares.spare[item->spare].load;
        gn_expert_drop(load->layer, load->expert);
        stream->spares.spare[item->spare].use = GN_SPARE_FREE;
        item->spare = GN_NONE;
        gn_count(staged, 1);
    }
}

void gn_fetch_release(struct gn_stream *stream, const struct gn_ready *ready, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        give_back_spare(stream, &stream->fetch->items[ready[i].index]);
    }
    gn_event_fill_spares(stream);
}

// A prefill that uses nearly all experts will do so in the next layer: its first experts are read while others compute.
static void plan_next_layer(struct gn_stream *stream) {
    const struct gn_fetch *fetch = stream->fetch;
    const struct gn_layer *layer = fetch->request.layer;
    if (stream->prefetch == GN_PREFETCH_OFF || !fetch->request.prefill || layer->index + 1 == stream->map.n_layers ||
        fetch->request.n * 100 < layer->n_experts * NEARLY_ALL_PERCENT) {
        return;
    }
    const struct gn_layer *next = stream->map.layers[layer->index + 1];
    uint32_t experts[AHEAD_MOST], n = 0;
    for (uint32_t e = 0; e < next->n_experts && n < AHEAD_MOST; e++) {
        if (gn_cache_peek(stream->cache, gn_cache_entry(stream->cache, next->index, e)) == GN_NONE) {
            experts[n++] = e;
        }
    }
    gn_ahead_plan(stream, next, experts, n, GN_SOURCES);
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
    gn_event_drain(stream);
    bool cut_short = fetch->error || fetch->left > 0;
    for (uint32_t i = 0; i < fetch->request.n; i++) {
        give_back_spare(stream, &fetch->items[i]);
        // An event that was cut short leaves nothing behind that it had not finished.
        if (fetch->items[i].kept && cut_short) {
            gn_cache_drop(stream->cache, fetch->items[i].entry);
        }
    }
    gn_cache_end(stream->cache);
    count_event(stream);
    gn_report_step(stream, fetch->request.layer, fetch->request.prefill);
    if (!cut_short) {
        plan_next_layer(stream);
        gn_ahead_start(stream, UINT32_MAX);
    }
}
