// The process's counters, all models together. Written with relaxed atomics, readable from any thread at any time.
#pragma once

#include "guanaco.h"

#include <stdatomic.h>

// Who guesses which experts are read ahead.
enum gn_source {
    GN_SOURCE_ROUTER, // the next layer's router, run early
    GN_SOURCE_PILOT,  // what goes with this layer's experts, learnt
    GN_SOURCES
};

struct gn_stats {
    _Atomic uint64_t streamed_layers, resident_tensors, expert_bytes, dense_bytes, slots, slot_bytes, staging_bytes;
    _Atomic uint64_t events, hits, misses, inserts, evictions, staged, reads, read_bytes, failures;
    _Atomic uint64_t io_wait_ns, compute_ns, total_ns;
    _Atomic uint64_t pinned_hits, pinned_evictions, rereads, prefetch_useful, prefetch_wasted, seeded, manage_ns,
        locked_bytes, pilot_calls, pilot_slices, prefetch_wasted_bytes;
    _Atomic uint64_t gpu_slots, gpu_bytes, gpu_hits, gpu_uploads, gpu_upload_bytes, gpu_not_served, gpu_wait_ns;
    struct {
        _Atomic uint64_t used, foreseen, useful, wasted;
    } source[GN_SOURCES];
};

extern struct gn_stats gn_stats;

#define gn_count(counter, n) atomic_fetch_add_explicit(&gn_stats.counter, (n), memory_order_relaxed)

// Implements guanaco_stats_fn.
int gn_stats_snapshot(struct guanaco_stats *stats);

// Monotonic time, nanoseconds.
uint64_t gn_now_ns(void);
