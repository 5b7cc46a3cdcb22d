// How many slots each layer may take, where the budget is not simply everybody's: equal shares, or shares in proportion
// to the different experts that a layer has used lately. Their sum is always the number of slots.
//
// Part of a cache: its thread, its numbers. A use is a comparison and an addition; new shares are worked out once in a
// few dozen sweeps through the layers.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum gn_shares_kind {
    GN_SHARES_GLOBAL, // any layer may take any slot
    GN_SHARES_EQUAL,  // in proportion to a layer's experts
    GN_SHARES_DEMAND, // in proportion to the different experts used lately
    GN_SHARES_KINDS
};
extern const char *const gn_shares_names[]; // "global", "equal", "demand", NULL

#define GN_SHARES_SWEEPS 32 // between two shares

struct gn_shares_layer {
    uint32_t n_experts, size_class;
};

struct gn_shares;

// layers: [n_layers] and class_slots: [n_classes] are copied. NULL when memory is short.
struct gn_shares *gn_shares_open(enum gn_shares_kind kind, const struct gn_shares_layer *layers, uint32_t n_layers,
                                 const uint32_t *class_slots, uint32_t n_classes);
void gn_shares_close(struct gn_shares *shares); // NULL is allowed

// Expert `entry`, counted through all layers, is used by its layer.
void gn_shares_use(struct gn_shares *shares, uint32_t layer, uint32_t entry);
void gn_shares_event(struct gn_shares *shares); // an event begins: shares may change
uint32_t gn_shares_of(const struct gn_shares *shares, uint32_t layer);
// The classes have so many slots from now on: [n_classes], copied.
void gn_shares_resize(struct gn_shares *shares, const uint32_t *class_slots);
