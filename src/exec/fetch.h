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

// The other way, for few experts: computing begins before all bytes are there, and waits for each slice when it comes
// to it.
//
//     n = gn_fetch_placed(stream, ready, capacity);
//     …compute: gn_fetch_arrived() or gn_fetch_await() before a slice is touched…
//     error = gn_fetch_settle(stream);

// Returns all experts of the event, those whose bytes are there first, or 0 when some have no place yet or they exceed
// `capacity`: then go the first way.
uint32_t gn_fetch_placed(struct gn_stream *stream, struct gn_ready *ready, uint32_t capacity);

// Whether slice `slice` of request.experts[index] is in memory. Any thread, without waiting.
bool gn_fetch_arrived(const struct gn_stream *stream, uint32_t index, uint32_t slice);

// Waits for it. Returns false when a read of the event failed. The thread that began the event only.
bool gn_fetch_await(struct gn_stream *stream, uint32_t index, uint32_t slice);

// The same for the other threads: sleeps until the thread that began the event has taken it in.
bool gn_fetch_sleep(struct gn_stream *stream, uint32_t index, uint32_t slice);

// Takes in what has arrived, without waiting, and gives the drive more to do. The thread that began the event only.
void gn_fetch_poll(struct gn_stream *stream);

// Whether the drive has hardly anything to read for the event any more. The thread that began the event only.
bool gn_fetch_slack(const struct gn_stream *stream);

// Whether a read of the event failed: what has not arrived never will. Any thread.
bool gn_fetch_failed(const struct gn_stream *stream);

// Waits for the rest of the event. Returns 0, or a negative errno as gn_fetch_next().
int gn_fetch_settle(struct gn_stream *stream);

void gn_fetch_release(struct gn_stream *stream, const struct gn_ready *ready, uint32_t n);
void gn_fetch_end(struct gn_stream *stream);
