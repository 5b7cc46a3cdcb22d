// A tier above the RAM slots: experts that are held on another device, as long as they are used most. Decides; moves no
// bytes. The engine and the simulator run exactly this.
//
// A tier is a cache with two rules of its own. An expert comes up from RAM, never from disk, and leaves its slot there:
// what is in one tier is in no other. And only so many come up for each token, for every one must be copied.
//
// One event of decode:
//
//     gn_tier_begin(tier);
//     for every expert:  slot = gn_tier_lookup(tier, layer, expert);  // those that miss are the RAM's to find
//     …the RAM's event, for those…
//     n = gn_tier_promote(tier, ram, layer, …);                       // before the RAM's event ends
//     …copy these n to their slots…
//     gn_tier_end(tier);
//
// A prefill uses what is there (gn_tier_peek) and changes nothing. One thread owns a tier; nothing here allocates after
// gn_tier_open().
#pragma once

#include "cache/cache.h"

struct gn_tier_options {
    // As the RAM's, in the same order, but of what an expert takes here. Layers of another shape are of another kind,
    // and n_experts is 0 for a layer that this tier does not serve; at least one is served. Copied.
    const struct gn_cache_layer *layers;
    uint32_t n_layers;
    uint64_t budget; // bytes for slots
    const struct guanaco_policy *policy;
    const struct gn_parameters *parameters; // of the policy; NULL: its defaults
    struct gn_admission_options admission;
    uint32_t inserts; // experts that may come up for each token, at most
};

struct gn_tier {
    struct gn_cache *cache; // for what may be asked: slots, classes, totals
    uint32_t inserts;       // as in the options; may be changed between events
    uint32_t n_served;      // layers
    uint32_t *index;        // [layers] of those served, as the cache counts them; GN_NONE: not served
    uint32_t credit;        // for inserts: one costs n_served, every event brings `inserts`
};

// Returns 0, or as gn_cache_open().
int gn_tier_open(const struct gn_tier_options *options, struct gn_tier *tier);
void gn_tier_close(struct gn_tier *tier); // what it holds, not the struct

bool gn_tier_serves(const struct gn_tier *tier, uint32_t layer);
void gn_tier_begin(struct gn_tier *tier);
// The slot that holds the expert, or GN_NONE. Only for layers that it serves, as all below.
uint32_t gn_tier_lookup(struct gn_tier *tier, uint32_t layer, uint32_t expert);
uint32_t gn_tier_peek(const struct gn_tier *tier, uint32_t layer, uint32_t expert); // changes nothing
uint32_t gn_tier_class(const struct gn_tier *tier, uint32_t layer); // the layer's size class in tier->cache

struct gn_promotion {
    uint32_t expert;
    uint32_t slot;     // of this tier
    uint32_t ram_slot; // that it left; its bytes stay there until the RAM's next event
};

// Chooses which of the event's experts come up, of those that `ram` holds now: the most used first, as many as tier's
// policy admits and the token may have. They leave the RAM's slots. Fills promotions[], which has room for n, and
// returns how many.
uint32_t gn_tier_promote(struct gn_tier *tier, struct gn_cache *ram, uint32_t layer, const uint32_t *experts,
                         uint32_t n, struct gn_promotion *promotions);
// Takes an expert out again whose copy failed.
void gn_tier_drop(struct gn_tier *tier, uint32_t layer, uint32_t expert);
void gn_tier_end(struct gn_tier *tier);
