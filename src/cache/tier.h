// A tier above the RAM slots: experts that are held on another device, as long as they are used most. Decides; moves no
// bytes. The engine and the simulator run exactly this.
//
// A tier is a cache with three rules of its own. An expert comes up from RAM, never from disk, and leaves its slot
// there: what is in one tier is in no other. Only so many come up for each token, for every one must be copied. And one
// that would push another out must have been used more than it of late, by a margin: what is gained must pay for the
// copy.
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

#define GN_TIER_MOST_EXPERTS 64 // that gn_tier_promote() looks at

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

// What won of all that was tried (docs/tiers.md says by how much): this policy to name victims, no admission filter, so
// many inserts, and a margin of so many uses.
#define GN_TIER_POLICY gn_policy_slru
#define GN_TIER_INSERTS 32
#define GN_TIER_MARGIN 2.0F
// Uses fade, to a half after so many tokens. What is left of an expert's uses is what may be expected of the next
// GN_TIER_HALF_LIFE / ln 2 tokens, 46, if it goes on being used as often.
#define GN_TIER_HALF_LIFE 32

struct gn_tier_use {
    float uses; // faded, as of `token`
    uint32_t token;
};

struct gn_tier {
    struct gn_cache *cache; // for what may be asked: slots, classes, totals
    uint32_t inserts;       // as in the options; may be changed between events
    float margin;      // GN_TIER_MARGIN; may be changed between events, to the uses that a copy takes as much time as
    uint32_t n_served; // layers
    uint32_t *index;   // [layers] of those served, as the cache counts them; GN_NONE: not served
    uint32_t credit;   // for inserts: one costs n_served, every event brings `inserts`
    struct gn_tier_use *uses; // [experts of the layers served]
    uint32_t token, layer;    // counted from 1 by the sweeps through the layers; of the last event
    bool in_event;            // the running event has been counted
};

// Returns 0, or as gn_cache_open().
int gn_tier_open(const struct gn_tier_options *options, struct gn_tier *tier);
void gn_tier_close(struct gn_tier *tier); // what it holds, not the struct

bool gn_tier_serves(const struct gn_tier *tier, uint32_t layer);
// What is known before the first event: the expert will be used in a share `chance` of all tokens.
void gn_tier_prior(struct gn_tier *tier, uint32_t layer, uint32_t expert, float chance);
bool gn_tier_has_room(const struct gn_tier *tier, uint32_t layer); // a slot that the layer could have is free
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

// Chooses which of n experts come up, those of the event and any others, of those that `ram` holds now: the most used
// of late first, as many as the token may have, each into a free slot or over one that was used less by the margin.
// They leave the RAM's slots. Of more than GN_TIER_MOST_EXPERTS only the first so many are looked at. Fills
// promotions[], which has room for n, and returns how many.
uint32_t gn_tier_promote(struct gn_tier *tier, struct gn_cache *ram, uint32_t layer, const uint32_t *experts,
                         uint32_t n, struct gn_promotion *promotions);
// Takes an expert out again whose copy failed.
void gn_tier_drop(struct gn_tier *tier, uint32_t layer, uint32_t expert);
void gn_tier_end(struct gn_tier *tier);
