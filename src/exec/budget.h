// How many bytes the expert slots of a model may take, from the user's knobs, what the machine has and what other
// models of the process have. Arithmetic only: who calls has measured.
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

// What one model needs to work at all, and what it has a use for: bytes of slots and spares. Both 0: not known yet.
struct gn_claim {
    uint64_t least, most;
};
struct gn_claim gn_budget_claim(const struct gn_expert_map *map, const struct gn_knobs *knobs);

// Another model of the process.
struct gn_other {
    struct gn_claim claim;
    uint64_t held;       // bytes of its slots and spares; 0 when it has none yet
    uint64_t dense_left; // bytes of its dense weights that are not part of the anonymous memory
};

// What of the process's memory, and the machine's, is known to go to other things than this model's experts.
struct gn_taken {
    uint64_t dense;                // bytes of this model's dense weights
    bool dense_copied;             // they are part of the anonymous memory by now
    uint64_t available;            // bytes that the process could still take
    uint64_t group;                // bytes that its control groups would let it take, or more; 0: not known
    uint64_t anonymous;            // bytes that it has taken for its own
    uint64_t touched;              // of these, bytes of other models' slots and spares
    const struct gn_other *others; // [n_others]
    uint32_t n_others;
};

// What the whole process may take: --ram, as far as the control groups allow it; without it, a part of what the machine
// can spare.
uint64_t gn_budget_ram(const struct gn_knobs *knobs, const struct gn_taken *taken);

// Bytes that --ram, or what the machine can spare, leaves to the experts of all models together, or for copies of dense
// weights. May be negative.
int64_t gn_budget_room(const struct gn_knobs *knobs, const struct gn_taken *taken);

// Returns 0 with the budget, or -ENOSPC with one plain line in why: what is needed, what there is, what to do.
//
// Models share what there is so that each can hold the same share of its experts, and none less than its least. A model
// gets what the others leave: what they hold, or, if they have not started, their shares, is theirs.
int gn_budget_for(const struct gn_expert_map *map, const struct gn_knobs *knobs, const struct gn_taken *taken,
                  struct gn_budget *budget, char *why, size_t why_size);

// Sets keep[i] to the bytes of slots and spares that others[i] may go on holding, so that a model with this claim gets
// its share: what it holds, or its own share where that is less and the new model's would be short. Returns whether any
// has to give some back.
bool gn_budget_make_room(struct gn_claim claim, const struct gn_knobs *knobs, const struct gn_taken *taken,
                         uint64_t *keep);

// The most bytes of slots that --guanaco-max-experts allows; without it, those of all experts.
uint64_t gn_budget_most_slots(const struct gn_expert_map *map, const struct gn_knobs *knobs);
