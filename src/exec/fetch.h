// Brings the experts of one event into memory: hits from their slots, misses from disk, into a slot of the cache or,
// when the cache has none to give, through a spare slot. All misses of an event are under way at once, as far as slots
// go. Knows nothing of ggml.
//
//     gn_fetch_begin(stream, &request);
//     while ((n = gn_fetch_next(stream, ready, capacity)) > 0) {
//         …compute with these experts…
//         gn_fetch_release(stream, ready, n);   // spares are read into again
//     }
//     gn_fetch_end(stream);                     // always, also after an error
//
// One event at a time per stream, under its lock.
#pragma once

#include "exec/stream.h"

struct gn_fetch_request {
    const struct gn_layer *layer;
    const uint32_t *experts; // [n] distinct, ascending, each below layer->n_experts
    uint32_t n;
    uint32_t
        slices;   // bit s: slice s will be used. Experts that only pass through a spare are read no further than that.
    bool prefill; // take free slots, but evict nothing
};

struct gn_ready {
    uint32_t index; // which of request.experts
    const uint8_t *slice[GN_MAX_SLICES];
};

// Returns 0 or -ENOMEM. Called by gn_stream_start().
int gn_fetch_open(struct gn_stream *stream);
void gn_fetch_close(struct gn_stream *stream);

void gn_fetch_begin(struct gn_stream *stream, const struct gn_fetch_request *request);

// How many experts of the event were not in slots.
uint32_t gn_fetch_misses(const struct gn_stream *stream);

// Returns how many experts became ready (1 … capacity), waiting for the first; 0 when all have been returned; a
// negative errno when a read failed, with one plain line (file, offset, expert) in stream->error. After an error no
// read is in flight and no expert of this event that came from disk stays cached.
int gn_fetch_next(struct gn_stream *stream, struct gn_ready *ready, uint32_t capacity);

void gn_fetch_release(struct gn_stream *stream, const struct gn_ready *ready, uint32_t n);
void gn_fetch_end(struct gn_stream *stream);
