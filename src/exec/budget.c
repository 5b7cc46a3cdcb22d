#include "exec/budget.h"

#include "config/memory.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdio.h>

// What a program other than ours may still take after the first graph: KV growth, compute buffers. `guanaco run` knows
// better and says so with GN_RESERVE.
#define UNKNOWN_RESERVE ((uint64_t)128 << 20)

struct gn_budget gn_budget_split(uint64_t bytes, uint64_t largest_slot, uint32_t most_staging) {
    uint64_t n = bytes / 8 / largest_slot;
    n = n < GN_LEAST_STAGING ? GN_LEAST_STAGING : n > most_staging ? most_staging : n;
    struct gn_budget budget = {.n_staging = (uint32_t)n};
    budget.slots = bytes > n * largest_slot ? bytes - n * largest_slot : 0;
    return budget;
}

// What other models' slots will take, touched or not.
static uint64_t promised_bytes(void) {
    return atomic_load(&gn_stats.slot_bytes) + atomic_load(&gn_stats.staging_bytes);
}

int64_t gn_budget_room(const struct gn_knobs *knobs, const struct gn_taken *taken) {
    int64_t coming = taken->dense_copied ? 0 : (int64_t)taken->dense, promised = (int64_t)promised_bytes();
    if (!knobs->given[GN_RAM]) {
        return (int64_t)(gn_memory_available() / 4 * 3) - (int64_t)UNKNOWN_RESERVE - coming - promised;
    }
    if (knobs->given[GN_RESERVE]) {
        return knobs->value[GN_RAM] - knobs->value[GN_RESERVE] - (int64_t)taken->dense - promised;
    }
    int64_t anonymous = (int64_t)gn_memory_anonymous();
    return knobs->value[GN_RAM] - (anonymous > promised ? anonymous : promised) - (int64_t)UNKNOWN_RESERVE - coming;
}

uint64_t gn_budget_most_slots(const struct gn_expert_map *map, const struct gn_knobs *knobs) {
    uint64_t bytes = 0, each = (uint64_t)knobs->value[GN_MAX_EXPERTS];
    for (uint32_t l = 0; l < map->n_layers; l++) {
        const struct gn_layer *layer = map->layers[l];
        bytes += layer->slot_bytes * (each > 0 && each < layer->n_experts ? each : layer->n_experts);
    }
    return bytes;
}

int gn_budget_for(const struct gn_expert_map *map, const struct gn_knobs *knobs, const struct gn_taken *taken,
                  struct gn_budget *budget, char *why, size_t why_size) {
    uint64_t largest = gn_expert_map_largest_slot(map), all = gn_expert_map_slot_bytes(map);
    uint64_t most = gn_budget_most_slots(map, knobs);
    uint64_t least = GN_LEAST_STAGING * largest;
    uint32_t most_staging = (uint32_t)knobs->value[GN_STAGING];
    most_staging = most_staging < GN_LEAST_STAGING ? GN_LEAST_STAGING : most_staging;
    int64_t wish = knobs->value[GN_EXPERT_CACHE];
    char have_text[32], need_text[32];

    if (knobs->given[GN_EXPERT_CACHE] && wish < 0) { // a share of all experts; spares come on top
        uint64_t slots = (uint64_t)((double)all * gn_knob_share(wish));
        slots = slots > most ? most : slots;
        *budget = (struct gn_budget){
            .slots = slots,
            .n_staging = gn_budget_split(slots, largest, most_staging).n_staging,
        };
        return 0;
    }
    bool explicit_cache = knobs->given[GN_EXPERT_CACHE] && wish > 0;
    int64_t bytes = explicit_cache ? wish : gn_budget_room(knobs, taken);
    if (bytes < (int64_t)least) {
        snprintf(why, why_size, "%s leaves %s for experts, but this model needs at least %s (%d experts of %s)",
                 explicit_cache         ? "--expert-cache (GUANACO_EXPERT_CACHE)"
                 : knobs->given[GN_RAM] ? "--ram (GUANACO_RAM)"
                                        : "what this machine or its control group can spare",
                 gn_format_bytes(bytes > 0 ? (uint64_t)bytes : 0, have_text), gn_format_bytes(least, need_text),
                 GN_LEAST_STAGING, gn_format_bytes(largest, (char[32]){0}));
        return -ENOSPC;
    }
    *budget = gn_budget_split((uint64_t)bytes, largest, most_staging);
    budget->slots = budget->slots > most ? most : budget->slots;
    return 0;
}
