// How a budget is cut into slots. Layers whose experts are nearly of one size share a size class, so that little is
// lost and any of them can use any slot of the class.
#pragma once

#include "cache/cache.h"

struct gn_size_class {
    uint64_t slot_bytes;
    uint64_t expert_bytes; // slot_bytes x experts of all its layers
    uint64_t offset;       // of its first slot
    uint32_t n_experts;
    uint32_t kind;
    uint32_t first_slot, n_slots;
    uint32_t free_slot; // head of the free list
};

// Fills classes[] (room for n_layers), kind by kind, largest slots first, and class_of_layer[]. Returns how many
// classes there are. Offsets and slot numbers are the caller's.
uint32_t gn_layout(const struct gn_cache_layer *layers, uint32_t n_layers, uint64_t budget,
                   struct gn_size_class *classes, uint32_t *class_of_layer);
