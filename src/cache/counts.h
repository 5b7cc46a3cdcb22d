// What a cache counts: in all, by layer, and the uses of each expert. Part of a cache: its thread, its numbers.
//
// All that is counted for a use is a few additions, inline here. Each function counts in all and for `layer`, which is
// the entry's.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// A miss counts as a re-read when the expert was evicted within so many sweeps through all layers.
#define GN_REREAD_SWEEPS 8

struct gn_cache_totals {
    uint64_t events, hits, misses, inserts, evictions;
    uint64_t hot_hits, hot_evictions; // of these, of experts that were pinned
    uint64_t rereads;                 // misses soon after an eviction
    uint32_t resident;                // experts now in slots
    uint32_t hot_resident;            // of these, pinned
};

struct gn_counts {
    uint32_t n_layers;
    struct gn_cache_totals all, *of_layer; // [n_layers] a layer's events are those that looked any of its experts up
    uint64_t *last_event;                  // [n_layers] all.events when they were
    uint64_t *evicted_at;                  // [n_entries] all.events then; 0: never
    uint32_t *uses;                        // [n_entries]
};

bool gn_counts_open(struct gn_counts *counts, uint32_t n_layers, uint32_t n_entries); // false: no memory
void gn_counts_close(struct gn_counts *counts);                                       // also after a failure

static inline void gn_counts_event(struct gn_counts *counts) {
    counts->all.events++;
}

// A use by a tier that has the expert instead is one as well.
static inline void gn_counts_entry(struct gn_counts *counts, uint32_t entry) {
    counts->uses[entry] += counts->uses[entry] < UINT32_MAX;
}

static inline void gn_counts_use(struct gn_counts *counts, uint32_t layer, uint32_t entry) {
    counts->of_layer[layer].events += counts->last_event[layer] != counts->all.events;
    counts->last_event[layer] = counts->all.events;
    gn_counts_entry(counts, entry);
}

static inline void gn_counts_hit(struct gn_counts *counts, uint32_t layer, bool hot) {
    counts->all.hits++;
    counts->all.hot_hits += hot;
    counts->of_layer[layer].hits++;
    counts->of_layer[layer].hot_hits += hot;
}

static inline void gn_counts_miss(struct gn_counts *counts, uint32_t layer, uint32_t entry) {
    uint64_t evicted_at = counts->evicted_at[entry];
    bool reread = evicted_at && counts->all.events - evicted_at <= (uint64_t)GN_REREAD_SWEEPS * counts->n_layers;
    counts->all.misses++;
    counts->all.rereads += reread;
    counts->of_layer[layer].misses++;
    counts->of_layer[layer].rereads += reread;
}

static inline void gn_counts_insert(struct gn_counts *counts, uint32_t layer) {
    counts->all.inserts++;
    counts->of_layer[layer].inserts++;
}

static inline void gn_counts_evict(struct gn_counts *counts, uint32_t layer, uint32_t entry, bool hot) {
    counts->all.evictions++;
    counts->all.hot_evictions += hot;
    counts->of_layer[layer].evictions++;
    counts->of_layer[layer].hot_evictions += hot;
    counts->evicted_at[entry] = counts->all.events;
}

static inline void gn_counts_change(uint32_t *count, bool comes) {
    if (comes) {
        (*count)++;
    } else {
        (*count)--;
    }
}

// An expert comes into a slot, or leaves it.
static inline void gn_counts_resident(struct gn_counts *counts, uint32_t layer, bool comes) {
    gn_counts_change(&counts->all.resident, comes);
    gn_counts_change(&counts->of_layer[layer].resident, comes);
}

// One that is in a slot is pinned from now on, or no longer.
static inline void gn_counts_hot(struct gn_counts *counts, uint32_t layer, bool hot) {
    gn_counts_change(&counts->all.hot_resident, hot);
    gn_counts_change(&counts->of_layer[layer].hot_resident, hot);
}
