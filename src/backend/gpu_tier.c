#include "backend/gpu_tier.h"

#include "config/log.h"
#include "config/numbers.h"
#include "stats/stats.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
#define LEFT_FREE (1024 * MIB) // of the device's memory, by a tier of size auto
#define LEAST_ROWS 256u        // that a graph must take: a batch of decode
#define GRAPH_SHARE 8          // at most one part in so many of a tier's memory is for computing
#define SHRINKS 24             // times that a tier is made smaller until it fits

// ------------------------------------------------------------------------------------------------- budget

static bool may_serve(const struct gn_gpu_layer *layer, const struct gn_gpu_tier *tier) {
    return layer->fits && (!layer->tier || layer->tier == tier);
}

static uint64_t bytes_of_all(const struct gn_gpu_layers *layers, const struct gn_gpu_tier *tier, uint32_t most_slots) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < layers->n; l++) {
        const struct gn_gpu_layer *layer = &layers->layer[l];
        if (may_serve(layer, tier)) {
            bytes +=
                gn_gpu_shape_bytes(&layer->shape) * (most_slots < layer->n_experts ? most_slots : layer->n_experts);
        }
    }
    return bytes;
}

// Whether the size is of experts alone: what computes them comes on top.
static bool is_of_experts(const struct gn_tier_wish *wish) {
    return wish->size == GN_TIER_SHARE || wish->size == GN_TIER_SLOTS;
}

uint64_t gn_gpu_tier_budget(const struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers) {
    const struct gn_tier_wish *wish = &tier->wish;
    size_t free_bytes, total_bytes;
    ggml_backend_dev_memory(tier->device.device, &free_bytes, &total_bytes);
    if (wish->size == GN_TIER_AUTO && ggml_backend_dev_type(tier->device.device) == GGML_BACKEND_DEVICE_TYPE_IGPU) {
        gn_warn("%s has no memory of its own, experts would only be copied: none are held there; give a size to have "
                "it all the same",
                tier->device.name);
        return 0;
    }
    if (wish->size == GN_TIER_AUTO) {
        if (free_bytes <= LEFT_FREE) {
            gn_warn("%s: only %.0f MiB are free, and %.0f MiB are to stay so: no experts are held there",
                    tier->device.name, (double)free_bytes / MIB, (double)LEFT_FREE / MIB);
        }
        return free_bytes > LEFT_FREE ? free_bytes - LEFT_FREE : 0;
    }
    uint64_t asked = wish->bytes;
    if (is_of_experts(wish)) {
        double all = (double)bytes_of_all(layers, tier, UINT32_MAX);
        asked = wish->size == GN_TIER_SLOTS ? bytes_of_all(layers, tier, wish->slots) : (uint64_t)(all * wish->share);
    }
    if (asked > free_bytes) {
        gn_warn("%s has %.0f MiB free of the %.0f MiB asked for: it holds fewer experts", tier->device.name,
                (double)free_bytes / MIB, (double)asked / MIB);
        asked = free_bytes;
    }
    return asked;
}

// What a layer needs at least: with fewer slots than twice its top-k it is slower than without any.
static uint64_t least_bytes(const struct gn_gpu_layer *layer) {
    uint32_t slots = 2 * layer->top_k < layer->n_experts ? 2 * layer->top_k : layer->n_experts;
    return gn_gpu_shape_bytes(&layer->shape) * slots;
}

// Leaves out the layers that get too little of the budget. Returns how many are left.
static uint32_t leave_out_layers(const struct gn_gpu_tier *tier, struct gn_gpu_layers *layers, uint64_t budget) {
    uint64_t need = 0;
    uint32_t served = 0;
    for (uint32_t l = 0; l < layers->n; l++) {
        struct gn_gpu_layer *layer = &layers->layer[l];
        if (layer->tier != tier) {
            continue;
        }
        if (need + least_bytes(layer) > budget) {
            layer->tier = NULL;
        } else {
            need += least_bytes(layer);
            served++;
        }
    }
    return served;
}

// How many layers are the tier's, and what the smallest of them needs.
static uint32_t count_layers(const struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers, uint64_t *least) {
    uint32_t n = 0;
    *least = UINT64_MAX;
    for (uint32_t l = 0; l < layers->n; l++) {
        if (layers->layer[l].tier == tier) {
            uint64_t bytes = least_bytes(&layers->layer[l]);
            *least = bytes < *least ? bytes : *least;
            n++;
        }
    }
    return n;
}

// ------------------------------------------------------------------------------------------------- pools

// Numbers the shapes, each in `banks` banks: layers of one kind share a pool. Returns how many kinds there are.
static uint32_t number_kinds(const struct gn_gpu_tier *tier, struct gn_gpu_layers *layers, uint32_t banks) {
    uint32_t kinds = 0;
    for (uint32_t l = 0; l < layers->n; l++) {
        struct gn_gpu_layer *layer = &layers->layer[l];
        uint32_t same = 0, first = 0;
        for (uint32_t k = 0; layer->tier == tier && k < l; k++) {
            const struct gn_gpu_layer *other = &layers->layer[k];
            if (other->tier == tier && gn_gpu_shape_same(&other->shape, &layer->shape)) {
                first = same++ ? first : other->kind;
            }
        }
        layer->kind = same ? first + same % banks : kinds;
        kinds += layer->tier == tier && !same ? banks : 0;
    }
    return kinds;
}

static bool cut(struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers, uint64_t budget, uint32_t inserts) {
    struct gn_cache_layer *cut = calloc(layers->n, sizeof *cut);
    for (uint32_t l = 0; cut && l < layers->n; l++) {
        const struct gn_gpu_layer *layer = &layers->layer[l];
        if (layer->tier == tier) {
            cut[l] = (struct gn_cache_layer){layer->n_experts, gn_gpu_shape_bytes(&layer->shape), layer->kind};
        }
    }
    struct gn_tier_options options = {
        .layers = cut,
        .n_layers = layers->n,
        .budget = budget,
        .policy = tier->policy,
        .inserts = inserts ? inserts : GN_TIER_INSERTS,
    };
    bool done = cut && !gn_tier_open(&options, &tier->experts);
    free(cut);
    return done;
}

// Whether a tensor of the pools would be larger than the device allows.
static bool too_large(const struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers) {
    const struct gn_layout *layout = gn_cache_layout(tier->experts.cache);
    for (uint32_t l = 0; l < layers->n; l++) {
        const struct gn_gpu_layer *layer = &layers->layer[l];
        if (layer->tier == tier && layout->classes[gn_tier_class(&tier->experts, l)].n_slots >
                                       tier->device.largest / gn_gpu_shape_largest(&layer->shape)) {
            return true;
        }
    }
    return false;
}

static void close_pools(struct gn_gpu_tier *tier) {
    for (uint32_t p = 0; p < tier->n_pools; p++) {
        gn_gpu_pool_close(&tier->pools[p]);
    }
    free(tier->pools);
    tier->pools = NULL;
    tier->n_pools = 0;
    tier->bytes = 0;
    gn_tier_close(&tier->experts);
}

static bool take_pools(struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers) {
    const struct gn_layout *layout = gn_cache_layout(tier->experts.cache);
    uint32_t n = layout->n_classes;
    tier->pools = calloc(n, sizeof *tier->pools);
    tier->n_pools = tier->pools ? n : 0;
    for (uint32_t l = 0; l < layers->n; l++) {
        const struct gn_gpu_layer *layer = &layers->layer[l];
        if (layer->tier != tier || !tier->pools) {
            continue;
        }
        uint32_t class = gn_tier_class(&tier->experts, l), slots = layout->classes[class].n_slots;
        struct gn_gpu_pool *pool = &tier->pools[class];
        if (pool->buffer || slots == 0) {
            continue;
        }
        if (!gn_gpu_pool_open(pool, &tier->device, &layer->shape, slots)) {
            return false;
        }
        tier->bytes += gn_gpu_pool_bytes(pool);
    }
    return tier->pools != NULL;
}

// Cuts the budget into slots, in as many pools as it needs, and takes their memory.
static bool try_pools(struct gn_gpu_tier *tier, struct gn_gpu_layers *layers, uint64_t budget, uint32_t inserts) {
    size_t rounding = ggml_backend_buft_get_alignment(tier->device.type) * GN_GPU_PARTS;
    for (uint32_t banks = 1; banks <= layers->n; banks++) {
        uint64_t lost = rounding * number_kinds(tier, layers, banks);
        if (lost >= budget || !cut(tier, layers, budget - lost, inserts)) {
            break;
        }
        if (!too_large(tier, layers)) {
            if (take_pools(tier, layers) && tier->bytes <= budget) {
                return true;
            }
            break;
        }
        gn_tier_close(&tier->experts);
    }
    close_pools(tier);
    return false;
}

// ------------------------------------------------------------------------------------------------- the tier

// Takes what computing needs; it comes out of a budget in bytes.
static bool take_graph(struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers, const struct gn_moe_run *run,
                       uint64_t *budget) {
    uint64_t rows = *budget / GRAPH_SHARE / run->row_bytes, expert = 0;
    tier->most_rows = rows > GN_GPU_ROWS ? GN_GPU_ROWS : rows < LEAST_ROWS ? LEAST_ROWS : (uint32_t)rows;
    const struct gn_gpu_shape *shape = &layers->layer[run->layer->index].shape;
    for (uint32_t l = 0; l < layers->n; l++) {
        uint64_t bytes = layers->layer[l].tier == tier ? gn_gpu_shape_bytes(&layers->layer[l].shape) : 0;
        expert = bytes > expert ? bytes : expert;
    }
    if (!gn_gpu_graph_open(&tier->graph, tier->device.type) ||
        !gn_gpu_graph_reserve(&tier->graph, run, &tier->device, shape, tier->most_rows) ||
        !gn_gpu_device_stage(&tier->device, expert)) {
        return false;
    }
    uint64_t bytes = is_of_experts(&tier->wish) ? 0 : gn_gpu_graph_bytes(&tier->graph);
    *budget = *budget > bytes ? *budget - bytes : 0;
    return true;
}

void gn_gpu_tier_describe(const struct gn_gpu_tier *tier, char *text, size_t size) {
    uint32_t slots = gn_cache_slots(tier->experts.cache), experts = gn_cache_entries(tier->experts.cache);
    gn_format(text, size, "%s computes up to %u experts (%.0f %% of those of %u layers) that it holds in %.1f MiB, %s",
              tier->device.name, slots, 100.0 * slots / experts, tier->experts.n_served, (double)tier->bytes / MIB,
              tier->policy->name);
}

// Takes the pools, making the tier smaller until they fit. Returns how many layers it serves; 0: it is not open, a line
// has said why.
static uint32_t take_experts(struct gn_gpu_tier *tier, struct gn_gpu_layers *layers, uint64_t *budget, uint64_t least,
                             uint32_t inserts) {
    uint32_t served = leave_out_layers(tier, layers, *budget);
    if (served == 0) {
        gn_warn("%s: %.1f MiB are too little, one layer needs %.1f MiB (twice its top-k): no experts are held there; "
                "give it more",
                tier->device.name, (double)*budget / MIB, (double)least / MIB);
        return 0;
    }
    for (int i = 0; served > 0 && i < SHRINKS; i++) {
        if (try_pools(tier, layers, *budget, inserts)) {
            return served;
        }
        *budget -= *budget / 8;
        served = leave_out_layers(tier, layers, *budget);
    }
    gn_warn("%s gives no memory for experts: none are held there", tier->device.name);
    return 0;
}

bool gn_gpu_tier_open(struct gn_gpu_tier *tier, struct gn_gpu_layers *layers, const struct gn_moe_run *run,
                      uint32_t inserts) {
    uint64_t budget = tier->budget, least;
    uint32_t n_layers = count_layers(tier, layers, &least);
    tier->measures = inserts == 0;
    if (n_layers == 0) {
        gn_warn("%s: no layer is left for it, since layers are dealt by the sizes of the tiers: no experts are held "
                "there; give it more",
                tier->device.name);
        gn_gpu_tier_close(tier);
        return false;
    }
    if (!take_graph(tier, layers, run, &budget)) {
        gn_warn("%s: no memory to compute there: no experts are held there", tier->device.name);
        gn_gpu_tier_close(tier);
        return false;
    }
    uint64_t asked = budget;
    uint32_t served = take_experts(tier, layers, &budget, least, inserts);
    tier->open = served > 0;
    if (!tier->open) {
        gn_gpu_tier_close(tier);
        return false;
    }
    if (served < n_layers) {
        gn_warn("%s: %.1f MiB hold experts of %u of %u layers; the others stay with the CPU, since a layer with fewer "
                "slots than twice its top-k is slower than without any",
                tier->device.name, (double)budget / MIB, served, n_layers);
    }
    if (budget < asked) {
        gn_warn("%s did not give %.1f MiB for experts: it holds as many as fit", tier->device.name,
                (double)asked / MIB);
    }
    tier->counted = tier->bytes + gn_gpu_graph_bytes(&tier->graph);
    gn_count(gpu_slots, gn_cache_slots(tier->experts.cache));
    gn_count(gpu_bytes, tier->counted);
    char text[256];
    gn_gpu_tier_describe(tier, text, sizeof text);
    gn_info("mode: %s", text);
    return true;
}

void gn_gpu_tier_close(struct gn_gpu_tier *tier) {
    if (tier->open) {
        atomic_fetch_sub(&gn_stats.gpu_slots, gn_cache_slots(tier->experts.cache));
        atomic_fetch_sub(&gn_stats.gpu_bytes, tier->counted);
        tier->open = false;
    }
    gn_gpu_device_close(&tier->device); // waits for what is being copied
    close_pools(tier);
    gn_gpu_graph_close(&tier->graph);
}
