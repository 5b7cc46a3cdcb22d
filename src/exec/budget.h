// How many bytes the expert slots of a model may take, from the user's knobs and what the machine has.
#pragma once

#include "config/knobs.h"
#include "model/expert_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Staging slots that a model must have whatever its budget: one is read while the other is computed.
#define GN_LEAST_STAGING 2

struct gn_budget {
    uint64_t slots;     // bytes for cached experts
    uint32_t n_staging; // staging slots, each as large as the largest expert
};

// Splits what experts may take, bytes, into slots and staging: an eighth, within what is useful.
struct gn_budget gn_budget_split(uint64_t bytes, uint64_t largest_slot, uint32_t most_staging);

// What of the process's memory is known to go to other things than experts.
struct gn_taken {
    uint64_t dense;    // bytes of dense weights
    bool dense_copied; // they are part of the anonymous memory by now
};

// Bytes that --ram, or what the machine can spare, still leaves for experts or for a copy of dense weights: what the
// program needs, other models' slots and `taken` are subtracted. May be negative.
int64_t gn_budget_room(const struct gn_knobs *knobs, const struct gn_taken *taken);

// Returns 0 with the budget, or -ENOSPC with one plain line in why: what is needed, what there is, what to do.
int gn_budget_for(const struct gn_expert_map *map, const struct gn_knobs *knobs, const struct gn_taken *taken,
                  struct gn_budget *budget, char *why, size_t why_size);

// The most bytes of slots that --guanaco-max-experts allows; without it, those of all experts.
uint64_t gn_budget_most_slots(const struct gn_expert_map *map, const struct gn_knobs *knobs);
