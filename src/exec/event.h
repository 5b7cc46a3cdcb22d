// The event that is being fetched: what fetch.c (beginning, giving back) and arrive.c (taking in, waiting) share.
#pragma once

#include "exec/fetch.h"

// One expert of the event.
struct gn_fetch_item {
    uint32_t entry;
    uint32_t spare;        // which spare it is in, or GN_NONE
    const uint8_t *memory; // its slot or spare; NULL while it waits for a spare
    struct gn_load *load;  // while its reads are under way
    bool missed;           // comes from disk in this event
    bool kept;             // missed, and given a slot
    bool fresh;            // kept, and its reads are still to be queued
};

struct gn_fetch {
    struct gn_fetch_request request;
    struct gn_fetch_item *items; // [most experts of any layer]
    uint32_t *ready;             // items ready and not returned: a queue of [most experts]
    uint32_t ready_head, ready_tail;
    uint32_t *waiting; // items that wait for a spare, in order
    uint32_t waiting_head, waiting_tail;
    struct gn_load *loads; // the storage of all loads: items' and spares'
    struct gn_load **own;  // [most experts] the load that item i may use
    uint32_t loading;      // items whose reads are not complete
    uint32_t left;         // items not returned yet
    bool any_missed, checked;
    _Atomic int error;
    pthread_mutex_t sleeping; // for threads that sleep until a slice is there
    pthread_cond_t arrival;
    struct gn_cache_totals before;
};

static inline void gn_event_push_ready(struct gn_fetch *fetch, uint32_t i) {
    fetch->ready[fetch->ready_tail++] = i;
}

// Gives waiting items the spares that are free. In fetch.c.
void gn_event_fill_spares(struct gn_stream *stream);

// Waits until no read of the event is in flight; those for events to come go on. In arrive.c.
void gn_event_drain(struct gn_stream *stream);
