// One device's tier of a model: which layers' experts it holds, in how many slots.
#pragma once

#include "backend/gpu_graph.h"
#include "cache/tier.h"
#include "config/tier_knobs.h"
#include "predict/payoff.h"

// What is known of a layer once it has been seen.
struct gn_gpu_layer {
    bool fits; // a device can hold its experts and compute them; false: not seen, or it cannot
    uint64_t signature;
    struct gn_gpu_shape shape;
    uint32_t slices, top_k, n_experts;
    uint32_t passed;          // slices that have come in this pass through the layers
    uint32_t kind;            // of its pool
    struct gn_gpu_tier *tier; // that serves it; NULL: none
};

struct gn_gpu_layers {
    struct gn_gpu_layer *layer; // [n]
    uint32_t n;
};

struct gn_gpu_tier {
    struct gn_gpu_device device;
    struct gn_tier_wish wish;
    const struct guanaco_policy *policy;
    bool open;
    struct gn_tier experts;
    struct gn_gpu_pool *pools; // [size classes of the tier]
    uint32_t n_pools;
    uint64_t budget;  // bytes that it may take
    uint64_t bytes;   // that pools take on the device
    uint64_t counted; // of them, and of what is computed with, in the process's counters
    struct gn_gpu_graph graph;
    uint32_t most_rows; // that a graph takes
    bool measures;      // what comes up, and what of a prompt is computed here, is as measured; else as was asked for
    struct gn_payoff decode, prefill; // in experts, and in rows
};

// Bytes that the tier may take for experts and computing, as it was asked for: at most what the device has free, which
// a line says. Shares and slots are of the layers that may be its own. 0: none.
uint64_t gn_gpu_tier_budget(const struct gn_gpu_tier *tier, const struct gn_gpu_layers *layers);

// Takes tier->budget for the layers that name the tier, or for some of them. run: one of these layers'. A tier that
// does not fit is made smaller; lines say what came of it. inserts: experts that may come up for each token; 0: as many
// as pay. Returns whether the tier is open.
bool gn_gpu_tier_open(struct gn_gpu_tier *tier, struct gn_gpu_layers *layers, const struct gn_moe_run *run,
                      uint32_t inserts);
// "Vulkan0 computes up to 191 experts (50 % of those of 6 layers) that it holds in 10.1 MiB, slru"
void gn_gpu_tier_describe(const struct gn_gpu_tier *tier, char *text, size_t size);
void gn_gpu_tier_close(struct gn_gpu_tier *tier); // also the device; once more does nothing
