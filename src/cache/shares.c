#include "cache/shares.h"

#include <stdlib.h>
#include <string.h>

#define KEEP 0.5 // of the demand so far, when that of the last sweeps is added

const char *const gn_shares_names[] = {"global", "equal", "demand", NULL};

struct layer {
    uint32_t n_experts, size_class;
    uint32_t share;
    uint32_t distinct; // experts used since the last shares
    double demand;
};

struct gn_shares {
    enum gn_shares_kind kind;
    uint32_t n_layers, n_classes;
    struct layer *layers;  // [n_layers]
    uint32_t *class_slots; // [n_classes]
    uint32_t *used_in;     // [entries] the period in which each was used last
    uint32_t period;       // from 1
    uint64_t events;       // of this period
};

// A layer's share of `slots`, of which the layers together want `sum`: never more than its experts.
static uint32_t part_of(const struct layer *layer, uint32_t slots, double sum) {
    double part = sum > 0 ? slots * layer->demand / sum : 0;
    return part < layer->n_experts ? (uint32_t)part : layer->n_experts;
}

// Shares one class's slots out. What rounding, and layers with fewer experts than their part, leave goes one by one to
// those that have least for their demand.
static void share_class(struct gn_shares *shares, uint32_t size_class) {
    uint32_t left = shares->class_slots[size_class];
    double sum = 0;
    for (uint32_t l = 0; l < shares->n_layers; l++) {
        sum += shares->layers[l].size_class == size_class ? shares->layers[l].demand : 0;
    }
    for (uint32_t l = 0; l < shares->n_layers; l++) {
        struct layer *layer = &shares->layers[l];
        if (layer->size_class == size_class) {
            layer->share = part_of(layer, shares->class_slots[size_class], sum);
            left -= layer->share;
        }
    }
    while (left > 0) {
        struct layer *least = NULL;
        for (uint32_t l = 0; l < shares->n_layers; l++) {
            struct layer *layer = &shares->layers[l];
            if (layer->size_class == size_class && layer->share < layer->n_experts &&
                (!least || layer->share * least->demand < least->share * layer->demand)) {
                least = layer;
            }
        }
        if (!least) {
            return;
        }
        least->share++;
        left--;
    }
}

static void share_out(struct gn_shares *shares) {
    for (uint32_t c = 0; c < shares->n_classes; c++) {
        share_class(shares, c);
    }
}

struct gn_shares *gn_shares_open(enum gn_shares_kind kind, const struct gn_shares_layer *layers, uint32_t n_layers,
                                 const uint32_t *class_slots, uint32_t n_classes) {
    struct gn_shares *shares = calloc(1, sizeof *shares);
    if (!shares) {
        return NULL;
    }
    size_t n_entries = 0;
    for (uint32_t l = 0; l < n_layers; l++) {
        n_entries += layers[l].n_experts;
    }
    *shares = (struct gn_shares){.kind = kind, .n_layers = n_layers, .n_classes = n_classes, .period = 1};
    shares->layers = calloc((size_t)n_layers + 1, sizeof *shares->layers);
    shares->class_slots = calloc((size_t)n_classes + 1, sizeof *shares->class_slots);
    shares->used_in = calloc(n_entries + 1, sizeof *shares->used_in);
    if (!shares->layers || !shares->class_slots || !shares->used_in) {
        gn_shares_close(shares);
        return NULL;
    }
    memcpy(shares->class_slots, class_slots, n_classes * sizeof *class_slots);
    for (uint32_t l = 0; l < n_layers; l++) {
        shares->layers[l] = (struct layer){
            .n_experts = layers[l].n_experts, .size_class = layers[l].size_class, .demand = layers[l].n_experts};
    }
    share_out(shares);
    return shares;
}

void gn_shares_close(struct gn_shares *shares) {
    if (shares) {
        free(shares->layers);
        free(shares->class_slots);
        free(shares->used_in);
        free(shares);
    }
}

void gn_shares_use(struct gn_shares *shares, uint32_t layer, uint32_t entry) {
    shares->layers[layer].distinct += shares->used_in[entry] != shares->period;
    shares->used_in[entry] = shares->period;
}

void gn_shares_event(struct gn_shares *shares) {
    if (++shares->events <= (uint64_t)GN_SHARES_SWEEPS * shares->n_layers || shares->kind != GN_SHARES_DEMAND) {
        return;
    }
    for (uint32_t l = 0; l < shares->n_layers; l++) {
        struct layer *layer = &shares->layers[l];
        // The first demand is a guess, and the first count replaces it.
        layer->demand = shares->period > 1 ? KEEP * layer->demand + (1 - KEEP) * layer->distinct : layer->distinct;
        layer->distinct = 0;
    }
    share_out(shares);
    shares->events = 0;
    shares->period++;
}

void gn_shares_resize(struct gn_shares *shares, const uint32_t *class_slots) {
    memcpy(shares->class_slots, class_slots, shares->n_classes * sizeof *class_slots);
    share_out(shares);
}

uint32_t gn_shares_of(const struct gn_shares *shares, uint32_t layer) {
    return shares->layers[layer].share;
}
