#include "cache/tier.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int gn_tier_open(const struct gn_tier_options *options, struct gn_tier *tier) {
    *tier = (struct gn_tier){.inserts = options->inserts, .margin = GN_TIER_MARGIN};
    struct gn_cache_layer *served = malloc(options->n_layers * sizeof *served);
    tier->index = malloc(options->n_layers * sizeof *tier->index);
    uint32_t n_experts = 0;
    for (uint32_t l = 0; l < options->n_layers; l++) {
        n_experts += options->layers[l].n_experts;
    }
    tier->uses = calloc(n_experts ? n_experts : 1, sizeof *tier->uses);
    int status = -ENOMEM;
    if (served && tier->index && tier->uses) {
        for (uint32_t l = 0; l < options->n_layers; l++) {
            bool serves = options->layers[l].n_experts > 0;
            tier->index[l] = serves ? tier->n_served : GN_NONE;
            if (serves) {
                served[tier->n_served++] = options->layers[l];
            }
        }
        status = gn_cache_open(
            &(struct gn_cache_options){
                .layers = served,
                .n_layers = tier->n_served,
                .budget = options->budget,
                .policy = options->policy,
                .parameters = options->parameters,
                .admission = options->admission,
            },
            &tier->cache);
    }
    free(served);
    return status;
}

void gn_tier_close(struct gn_tier *tier) {
    gn_cache_close(tier->cache);
    free(tier->index);
    free(tier->uses);
    *tier = (struct gn_tier){0};
}

bool gn_tier_serves(const struct gn_tier *tier, uint32_t layer) {
    return tier->index[layer] != GN_NONE;
}

static uint32_t entry_of(const struct gn_tier *tier, uint32_t layer, uint32_t expert) {
    return gn_cache_entry(tier->cache, tier->index[layer], expert);
}

static float recent_uses(const struct gn_tier *tier, uint32_t entry) {
    const struct gn_tier_use *use = &tier->uses[entry];
    return use->uses * exp2f(-(float)(tier->token - use->token) / GN_TIER_HALF_LIFE);
}

void gn_tier_prior(struct gn_tier *tier, uint32_t layer, uint32_t expert, float chance) {
    float tokens = GN_TIER_HALF_LIFE / logf(2); // that the uses of an expert in steady use are of
    tier->uses[entry_of(tier, layer, expert)] = (struct gn_tier_use){chance * tokens, tier->token};
}

bool gn_tier_has_room(const struct gn_tier *tier, uint32_t layer) {
    uint32_t class = gn_tier_class(tier, layer);
    return gn_cache_class_free(tier->cache, class);
}

void gn_tier_begin(struct gn_tier *tier) {
    tier->in_event = false;
    gn_cache_begin(tier->cache);
}

uint32_t gn_tier_lookup(struct gn_tier *tier, uint32_t layer, uint32_t expert) {
    uint32_t entry = entry_of(tier, layer, expert);
    if (!tier->in_event) {
        tier->token += tier->token == 0 || layer <= tier->layer;
        tier->layer = layer;
        tier->in_event = true;
    }
    tier->uses[entry] = (struct gn_tier_use){recent_uses(tier, entry) + 1, tier->token};
    return gn_cache_lookup(tier->cache, entry);
}

uint32_t gn_tier_peek(const struct gn_tier *tier, uint32_t layer, uint32_t expert) {
    return gn_cache_peek(tier->cache, entry_of(tier, layer, expert));
}

uint32_t gn_tier_class(const struct gn_tier *tier, uint32_t layer) {
    return gn_cache_layout(tier->cache)->class_of_layer[tier->index[layer]];
}

// The most used of those that have not been tried; n when there is none. An expert that is here or not in RAM is none.
static uint32_t most_used(const struct gn_tier *tier, const struct gn_cache *ram, uint32_t layer,
                          const uint32_t *experts, uint32_t n, uint64_t tried) {
    uint32_t best = n;
    float most = 0;
    for (uint32_t i = 0; i < n; i++) {
        float uses = recent_uses(tier, entry_of(tier, layer, experts[i]));
        bool comes = !(tried >> i & 1) && gn_tier_peek(tier, layer, experts[i]) == GN_NONE &&
                     gn_cache_peek(ram, gn_cache_entry(ram, layer, experts[i])) != GN_NONE;
        if (comes && uses > most) {
            most = uses;
            best = i;
        }
    }
    return best;
}

// A slot for the entry, GN_NONE when it does not pay.
static uint32_t insert(struct gn_tier *tier, uint32_t entry) {
    uint32_t victim = gn_cache_victim(tier->cache, entry);
    bool pays = victim == GN_NONE || recent_uses(tier, entry) - recent_uses(tier, victim) >= tier->margin;
    return gn_cache_insert(tier->cache, entry, pays);
}

uint32_t gn_tier_promote(struct gn_tier *tier, struct gn_cache *ram, uint32_t layer, const uint32_t *experts,
                         uint32_t n, struct gn_promotion *promotions) {
    uint32_t found = 0;
    uint64_t tried = 0;
    n = n < GN_TIER_MOST_EXPERTS ? n : GN_TIER_MOST_EXPERTS;
    tier->credit += tier->inserts;
    while (tier->credit >= tier->n_served) {
        uint32_t i = most_used(tier, ram, layer, experts, n, tried);
        if (i == n) {
            break;
        }
        tried |= (uint64_t)1 << i;
        uint32_t slot = insert(tier, entry_of(tier, layer, experts[i]));
        if (slot != GN_NONE) {
            uint32_t entry = gn_cache_entry(ram, layer, experts[i]);
            tier->credit -= tier->n_served;
            promotions[found++] = (struct gn_promotion){experts[i], slot, gn_cache_peek(ram, entry)};
            gn_cache_drop(ram, entry);
        }
    }
    uint32_t most = tier->inserts * tier->n_served; // what was not used of one token is not saved for later ones
    tier->credit = tier->credit < most ? tier->credit : most;
    return found;
}

void gn_tier_drop(struct gn_tier *tier, uint32_t layer, uint32_t expert) {
    gn_cache_drop(tier->cache, entry_of(tier, layer, expert));
}

void gn_tier_end(struct gn_tier *tier) {
    gn_cache_end(tier->cache);
}
