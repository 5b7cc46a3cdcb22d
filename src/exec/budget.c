#include "exec/budget.h"

#include <errno.h>
#include <stdio.h>

// What a program other than ours may still take when slots are sized: compute buffers, checkpoints, what it answers. An
// eighth of the memory, up to this; what is reserved in fact is measured before the first graph (growth.h). `guanaco
// run` knows better and says so with GN_RESERVE.
#define MOST_RESERVE ((uint64_t)128 << 20)

struct gn_budget gn_budget_split(uint64_t bytes, uint64_t largest_slot, uint32_t most_staging) {
    uint64_t n = bytes / 8 / largest_slot;
    n = n < GN_LEAST_STAGING ? GN_LEAST_STAGING : n > most_staging ? most_staging : n;
    struct gn_budget budget = {.n_staging = (uint32_t)n};
    budget.slots = bytes > n * largest_slot ? bytes - n * largest_slot : 0;
    return budget;
}

static uint32_t most_staging(const struct gn_knobs *knobs) {
    int64_t wish = knobs->value[GN_STAGING];
    return wish < GN_LEAST_STAGING ? GN_LEAST_STAGING : (uint32_t)wish;
}

struct gn_claim gn_budget_claim(const struct gn_expert_map *map, const struct gn_knobs *knobs) {
    uint64_t largest = gn_expert_map_largest_slot(map);
    return (struct gn_claim){
        .least = GN_LEAST_STAGING * largest,
        .most = gn_budget_most_slots(map, knobs) + most_staging(knobs) * largest,
    };
}

uint64_t gn_budget_ram(const struct gn_knobs *knobs, const struct gn_taken *taken) {
    if (!knobs->given[GN_RAM]) {
        return (taken->available + taken->anonymous) / 4 * 3;
    }
    uint64_t ram = (uint64_t)knobs->value[GN_RAM];
    bool fits = taken->group == 0 || taken->group >= ram || taken->group + taken->anonymous >= ram;
    return fits ? ram : taken->group + taken->anonymous;
}

int64_t gn_budget_room(const struct gn_knobs *knobs, const struct gn_taken *taken) {
    if (knobs->given[GN_RAM] && knobs->given[GN_RESERVE]) {
        return knobs->value[GN_RAM] - knobs->value[GN_RESERVE] - (int64_t)taken->dense;
    }
    uint64_t ram = gn_budget_ram(knobs, taken);
    uint64_t reserve = ram / 8 < MOST_RESERVE ? ram / 8 : MOST_RESERVE;
    uint64_t program_cache =
        (uint64_t)knobs->value[GN_PROGRAM_CACHE]; // it fills slowly: what is reserved serves it too
    reserve = reserve > program_cache ? reserve : program_cache;
    uint64_t own = taken->anonymous > taken->touched ? taken->anonymous - taken->touched : 0;
    uint64_t dense = taken->dense_copied ? 0 : taken->dense;
    for (uint32_t i = 0; i < taken->n_others; i++) {
        dense += taken->others[i].dense_left;
    }
    return (int64_t)ram - (int64_t)(reserve + own + dense);
}

static bool has_explicit_cache(const struct gn_knobs *knobs) {
    return knobs->given[GN_EXPERT_CACHE] && knobs->value[GN_EXPERT_CACHE] > 0;
}

static bool has_cache_share(const struct gn_knobs *knobs) {
    return knobs->given[GN_EXPERT_CACHE] && knobs->value[GN_EXPERT_CACHE] < 0;
}

// Bytes for the experts of all models. May be negative.
static int64_t all_bytes(const struct gn_knobs *knobs, const struct gn_taken *taken) {
    return has_explicit_cache(knobs) ? knobs->value[GN_EXPERT_CACHE] : gn_budget_room(knobs, taken);
}

static uint64_t share_of(struct gn_claim claim, double fraction) {
    uint64_t bytes = (uint64_t)((double)claim.most * fraction);
    return bytes > claim.least ? bytes : claim.least;
}

// The fraction of what it can use that each model gets, so that all together get `bytes`. Models that would have less
// than they need are taken out first; that leaves less to the others, so it may be too little for more of them.
static double common_fraction(int64_t bytes, struct gn_claim claim, const struct gn_taken *taken) {
    double fraction = 1;
    for (uint32_t round = 0; round <= taken->n_others + 1; round++) {
        double needs = 0, uses = 0;
        for (uint32_t i = 0; i <= taken->n_others; i++) {
            struct gn_claim one = i < taken->n_others ? taken->others[i].claim : claim;
            bool least = (double)one.most * fraction < (double)one.least;
            needs += least ? (double)one.least : 0;
            uses += least ? 0 : (double)one.most;
        }
        double left = (double)bytes - needs;
        if (left <= 0 || uses <= 0) {
            return 0;
        }
        fraction = left / uses < fraction ? left / uses : fraction;
    }
    return fraction;
}

// What other models have or, those that have not started, will have.
static uint64_t bytes_of_others(const struct gn_taken *taken, double fraction) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < taken->n_others; i++) {
        const struct gn_other *other = &taken->others[i];
        bytes += other->held > 0 ? other->held : share_of(other->claim, fraction);
    }
    return bytes;
}

bool gn_budget_make_room(struct gn_claim claim, const struct gn_knobs *knobs, const struct gn_taken *taken,
                         uint64_t *keep) {
    int64_t bytes = all_bytes(knobs, taken);
    double fraction = common_fraction(bytes, claim, taken);
    int64_t left = bytes - (int64_t)bytes_of_others(taken, fraction);
    uint64_t share = share_of(claim, fraction);
    bool is_short = !has_cache_share(knobs) && left < (int64_t)(share - share / 64), any = false;
    for (uint32_t i = 0; i < taken->n_others; i++) {
        const struct gn_other *other = &taken->others[i];
        uint64_t fair = share_of(other->claim, fraction);
        bool gives = is_short && other->held > fair;
        keep[i] = gives ? fair : other->held;
        any = any || gives;
    }
    return any;
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
    int64_t wish = knobs->value[GN_EXPERT_CACHE];
    char have_text[32], need_text[32];

    if (has_cache_share(knobs)) { // a share of all experts; spares come on top
        uint64_t slots = (uint64_t)((double)all * gn_knob_share(wish));
        slots = slots > most ? most : slots;
        *budget = (struct gn_budget){
            .slots = slots,
            .n_staging = gn_budget_split(slots, largest, most_staging(knobs)).n_staging,
        };
        return 0;
    }
    struct gn_claim claim = gn_budget_claim(map, knobs);
    int64_t bytes = all_bytes(knobs, taken);
    bytes -= (int64_t)bytes_of_others(taken, common_fraction(bytes, claim, taken));
    if (bytes < (int64_t)claim.least) {
        snprintf(why, why_size, "%s leaves %s for experts%s, but this model needs at least %s (%d experts of %s)",
                 has_explicit_cache(knobs) ? "--expert-cache (GUANACO_EXPERT_CACHE)"
                 : knobs->given[GN_RAM]    ? "--ram (GUANACO_RAM)"
                                           : "what this machine or its control group can spare",
                 gn_format_bytes(bytes > 0 ? (uint64_t)bytes : 0, have_text),
                 taken->n_others > 0 ? " beside the other models" : "", gn_format_bytes(claim.least, need_text),
                 GN_LEAST_STAGING, gn_format_bytes(largest, (char[32]){0}));
        return -ENOSPC;
    }
    *budget = gn_budget_split((uint64_t)bytes, largest, most_staging(knobs));
    budget->slots = budget->slots > most ? most : budget->slots;
    return 0;
}
