// Which experts are in memory, and where. Decides; moves no bytes. The engine and the simulator run exactly this.
//
// A slot holds one whole expert. Slots come in size classes, cut once from a byte budget; a slot's class never changes.
// Slots can be closed for a time: gn_cache_resize(). One thread owns a cache. Nothing here allocates, locks or calls
// the kernel after gn_cache_open().
//
// Use is in events. An event is what one layer uses in one step, each expert once:
//
//     gn_cache_begin(cache);
//     for every expert:  slot = gn_cache_lookup(cache, entry);          // hit: a slot; miss: GN_NONE
//     for every miss:    slot = gn_cache_insert(cache, entry, evict);   // after all look-ups
//     …read into the new slots, compute…
//     gn_cache_end(cache);
//
// Nothing that an event has looked up or inserted is evicted by it.
//
// With shares, a layer that has its share gets no more slots but those of its own experts; one that has less takes them
// from the layer that has most beyond its share. The policy then sees each layer as a size class of its own.
//
// With pins, the hottest experts are kept out of the policy's sight while they are in slots: victims are the others, as
// the policy chooses them. Only where there are no others, the hot one goes that was used longest ago.
#pragma once

#include "cache/admission.h"
#include "cache/counts.h"
#include "cache/layout.h"
#include "cache/pins.h"
#include "cache/shares.h"
#include "policy/policy.h"

#include <stdbool.h>
#include <stdint.h>

struct gn_cache_options {
    const struct gn_cache_layer *layers; // copied
    uint32_t n_layers;
    uint64_t budget; // bytes for slots
    const struct guanaco_policy *policy;
    const struct gn_parameters *parameters; // of the policy; NULL: its defaults
    struct gn_pins_options pins;            // all 0: no expert is pinned
    struct gn_admission_options admission;
    enum gn_shares_kind shares;
};

struct gn_cache;

// Returns 0 and the cache in *out; -EINVAL for a shape that cannot be, -ENOMEM. A budget too small for a single slot
// gives a cache with no slots, which misses always.
int gn_cache_open(const struct gn_cache_options *options, struct gn_cache **out);
void gn_cache_close(struct gn_cache *cache); // NULL is allowed

// The number that names expert `expert` of layer `layer`.
uint32_t gn_cache_entry(const struct gn_cache *cache, uint32_t layer, uint32_t expert);
uint32_t gn_cache_entries(const struct gn_cache *cache); // how many there are

void gn_cache_begin(struct gn_cache *cache);
uint32_t gn_cache_lookup(struct gn_cache *cache, uint32_t entry);
// Gives a missing expert a slot: a free one, or, if `evict`, that of the policy's victim. GN_NONE when there is
// neither.
uint32_t gn_cache_insert(struct gn_cache *cache, uint32_t entry, bool evict);
// The expert that such an insertion would push out. GN_NONE: none, because a slot is free, or because the expert may
// not come in. An insertion of the same entry in the same event evicts this one, unless it has been used or has left
// since; the policy is not asked twice, for one that draws lots would name another.
uint32_t gn_cache_victim(struct gn_cache *cache, uint32_t entry);
// Takes an expert out again whose bytes did not arrive. Its slot is free.
void gn_cache_drop(struct gn_cache *cache, uint32_t entry);
void gn_cache_end(struct gn_cache *cache);

// Why the policy cannot be trusted any more, having named a victim that was none; NULL: it can. From then on nothing is
// evicted.
const char *gn_cache_error(const struct gn_cache *cache);

// The slot of an expert, GN_NONE when it has none; changes and counts nothing.
uint32_t gn_cache_peek(const struct gn_cache *cache, uint32_t entry);

// What is known before the first event: the expert will be used in a share `chance` of all tokens. Once for an entry,
// at most.
void gn_cache_prior(struct gn_cache *cache, uint32_t entry, float chance);

// Filling free slots ahead of use, from outside of events. A slot that is reserved belongs to the caller until it is
// filled: the expert is not to be found meanwhile, and may even be inserted elsewhere.
uint32_t gn_cache_reserve(struct gn_cache *cache, uint32_t entry); // GN_NONE: no slot is free, or it has one
// Its bytes are there. False: the expert has another slot by now, and this one is free again.
bool gn_cache_fill(struct gn_cache *cache, uint32_t entry, uint32_t slot);
void gn_cache_unreserve(struct gn_cache *cache, uint32_t entry, uint32_t slot); // its bytes will not come

// Has fewer slots, or more again: as many of each class as `budget` bytes would have been cut into, never more than at
// opening. Of those in use free ones are closed first, then those of the policy's victims, which leave as by an
// eviction; a slot that is reserved stays open. Tells of each slot that is closed or opened; its place and its number
// stay. Between events only.
void gn_cache_resize(struct gn_cache *cache, uint64_t budget, void (*changed)(void *context, uint32_t slot, bool open),
                     void *context);
uint32_t gn_cache_open_slots(const struct gn_cache *cache); // slots that may be used
uint64_t gn_cache_open_bytes(const struct gn_cache *cache); // of them

// The slots and size classes that were cut from the budget, for whoever provides the memory.
const struct gn_layout *gn_cache_layout(const struct gn_cache *cache);
uint32_t gn_cache_slots(const struct gn_cache *cache);                       // n_slots of it
uint64_t gn_cache_bytes(const struct gn_cache *cache);                       // bytes of it
bool gn_cache_class_free(const struct gn_cache *cache, uint32_t size_class); // whether any slot of it is free

struct gn_cache_totals gn_cache_totals(const struct gn_cache *cache);
// The same of one layer; its events are those that looked up any of its experts.
struct gn_cache_totals gn_cache_layer_totals(const struct gn_cache *cache, uint32_t layer);
uint32_t gn_cache_uses(const struct gn_cache *cache, uint32_t entry); // look-ups of an entry
void gn_cache_used_elsewhere(struct gn_cache *cache, uint32_t entry); // counts with them: another tier has it
// All 0 without pins.
struct gn_pins_figures gn_cache_pins(const struct gn_cache *cache);
uint64_t gn_cache_choices(const struct gn_cache *cache); // of pinned experts, made so far
// How many experts of a layer may be in slots.
uint32_t gn_cache_share(const struct gn_cache *cache, uint32_t layer);
// Whether the expert in a slot is pinned. False for a free slot.
bool gn_cache_slot_hot(const struct gn_cache *cache, uint32_t slot);
