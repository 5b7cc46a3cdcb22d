// How a budget is cut into slots: 0 … n_slots-1, each at an offset in one region of `bytes` bytes. Layers whose experts
// are nearly of one size share a size class, so that little is lost and any of them can use any slot of the class. Cut
// once; nothing of it changes.
#pragma once

#include <stdint.h>

struct gn_cache_layer {
    uint32_t n_experts;
    uint64_t slot_bytes; // memory one expert of this layer needs in a slot
    uint32_t kind;       // layers of different kinds share no slots
};

struct gn_size_class {
    uint64_t slot_bytes;
    uint64_t expert_bytes; // slot_bytes x experts of all its layers
    uint64_t offset;       // of its first slot
    uint32_t n_experts;
    uint32_t kind;
    uint32_t first_slot, n_slots; // its slots follow one another
};

struct gn_layout {
    struct gn_size_class *classes; // [n_classes] kind by kind, the largest slots first
    uint32_t *class_of_layer;      // [n_layers]
    uint32_t *class_slots;         // [n_classes] n_slots of each
    uint32_t n_classes, n_slots;
    uint64_t bytes;
};

// Returns 0 or -ENOMEM. layers are not empty: n_layers, n_experts and slot_bytes are not 0.
int gn_layout_open(struct gn_layout *layout, const struct gn_cache_layer *layers, uint32_t n_layers, uint64_t budget);
void gn_layout_close(struct gn_layout *layout); // also after a failure

// Sets n_slots[n_classes] to how many slots of each class a smaller budget would have been cut into; never more than
// there are.
void gn_layout_cut(const struct gn_layout *layout, uint64_t budget, uint32_t *n_slots);

uint64_t gn_layout_slot_offset(const struct gn_layout *layout, uint32_t slot);
uint64_t gn_layout_slot_bytes(const struct gn_layout *layout, uint32_t slot);
