// Replays a trace through the cache and its policies, or through the best that could have been done.
//
// The engine's rules: what one layer uses in one step is one event, each expert once; a prefill is one event for each
// layer, and evicts nothing; nothing that an event uses is evicted by it; an event's experts come in ascending order.
#pragma once

#include "cache/cache.h"
#include "trace/trace.h"

struct gn_replay_event {
    uint32_t layer;
    uint32_t first, n; // in entries[]
    bool decode;
    size_t row, n_rows; // in the trace
};

// A trace cut into events. Entries are numbered through the layers, as the cache does.
struct gn_replay_events {
    const struct gn_trace_layer *layers;   // the trace's; must outlive this
    uint32_t n_layers, n_entries, largest; // largest: experts in an event
    uint32_t n_events, n_tokens;           // n_tokens: steps of decode
    uint32_t *layer_of;                    // [n_entries]
    struct gn_replay_event *events;
    uint32_t *entries;
    float *weight;  // beside entries[]: of the router, all tokens together
    uint32_t *next; // beside entries[]: the event that uses this one next, GN_NONE if none does
};

int gn_replay_open(const struct gn_trace *trace, struct gn_replay_events *events); // 0, -EINVAL or -ENOMEM
void gn_replay_close(struct gn_replay_events *events);
uint64_t gn_replay_all_bytes(const struct gn_replay_events *events); // slots for all experts

struct gn_replay_result {
    uint64_t slots;
    uint64_t hits, misses;            // of decode
    uint64_t missed_bytes;            // in decode
    double weight_hit, weight_missed; // the same, each use as heavy as the router made it; 0: not known
    uint64_t prefill_hits, prefill_misses, prefill_missed_bytes;
    struct gn_cache_totals totals; // in the end, prompts included; not of belady
};

// Through a cache with these options; layers and n_layers are the trace's.
int gn_replay_cache(const struct gn_replay_events *events, const struct gn_cache_options *options,
                    struct gn_replay_result *result);
// The same, and calls watch() for every event, when its experts have been looked up and inserted; missed[i]: the i-th
// was not there. watch: NULL is allowed.
typedef void (*gn_replay_watch_fn)(void *context, const struct gn_replay_event *event, const struct gn_cache *cache,
                                   const bool *missed);
int gn_replay_watched(const struct gn_replay_events *events, const struct gn_cache_options *options,
                      gn_replay_watch_fn watch, void *context, struct gn_replay_result *result);
// The same with nothing but a policy.
int gn_replay_policy(const struct gn_replay_events *events, const struct guanaco_policy *policy, uint64_t budget,
                     struct gn_replay_result *result);
// The fewest misses that any policy could have, knowing the future: of what the event does not use, the expert goes
// that is wanted again latest (Belady, 1966). Size classes are the cache's.
int gn_replay_belady(const struct gn_replay_events *events, uint64_t budget, struct gn_replay_result *result);

// By other rules, those of BigMoeOnEdge's published curves (pool.c says how they differ); policy NULL is Belady's.
int gn_replay_pool(const struct gn_trace *trace, const struct gn_replay_events *events,
                   const struct guanaco_policy *policy, uint64_t budget, struct gn_replay_result *result);

// Whether two rows that follow one another are of one event.
bool gn_trace_same_event(const struct gn_trace_row *a, const struct gn_trace_row *b);

// Adds one event to a result; missed[i]: the i-th of what it uses was not there.
void gn_replay_count(const struct gn_replay_events *events, const struct gn_replay_event *event, const bool *missed,
                     struct gn_replay_result *result);
