#include "cache/layout.h"

#include <errno.h>
#include <stdlib.h>

// Layers whose slots differ by less share a class: the most that rounding up to the class's size may waste.
#define CLASS_WASTE_PERCENT 3

// Kinds apart, the largest of each first.
static int by_size(const void *a, const void *b) {
    const struct gn_size_class *x = a, *y = b;
    if (x->kind != y->kind) {
        return (x->kind > y->kind) - (x->kind < y->kind);
    }
    return (x->slot_bytes < y->slot_bytes) - (x->slot_bytes > y->slot_bytes);
}

// Groups the layers' slot sizes, largest first, into classes within the allowed waste.
static uint32_t make_classes(const struct gn_cache_layer *layers, uint32_t n_layers, struct gn_size_class *sizes,
                             uint32_t *class_of_layer) {
    for (uint32_t l = 0; l < n_layers; l++) {
        sizes[l] = (struct gn_size_class){.slot_bytes = layers[l].slot_bytes, .kind = layers[l].kind};
    }
    qsort(sizes, n_layers, sizeof *sizes, by_size);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        uint64_t size = sizes[i].slot_bytes;
        if (n == 0 || sizes[i].kind != sizes[n - 1].kind ||
            size * 100 < sizes[n - 1].slot_bytes * (100 - CLASS_WASTE_PERCENT)) {
            sizes[n++] = sizes[i];
        }
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        uint32_t c = n - 1;
        while (sizes[c].kind != layers[l].kind || sizes[c].slot_bytes < layers[l].slot_bytes) {
            c--;
        }
        class_of_layer[l] = c;
        sizes[c].n_experts += layers[l].n_experts;
    }
    return n;
}

// Shares the budget among the classes in proportion to their experts' bytes; what rounding leaves goes, largest class
// first, to whoever can still use a slot. No class gets more than most[] slots.
static void share_budget(const struct gn_layout *layout, uint64_t budget, const uint32_t *most, uint32_t *n_slots) {
    const struct gn_size_class *classes = layout->classes;
    uint64_t total = 0, left = budget;
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        total += classes[c].expert_bytes;
    }
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        double share = total ? (double)classes[c].expert_bytes / (double)total : 0;
        uint64_t slots = (uint64_t)((double)budget * share) / classes[c].slot_bytes;
        n_slots[c] = slots < most[c] ? (uint32_t)slots : most[c];
        left -= n_slots[c] * classes[c].slot_bytes;
    }
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        while (n_slots[c] < most[c] && left >= classes[c].slot_bytes) {
            n_slots[c]++;
            left -= classes[c].slot_bytes;
        }
    }
}

void gn_layout_cut(const struct gn_layout *layout, uint64_t budget, uint32_t *n_slots) {
    share_budget(layout, budget, layout->class_slots, n_slots);
}

static void number_slots(struct gn_layout *layout) {
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        struct gn_size_class *class = &layout->classes[c];
        class->n_slots = layout->class_slots[c];
        class->first_slot = layout->n_slots;
        class->offset = layout->bytes;
        layout->n_slots += class->n_slots;
        layout->bytes += class->n_slots * class->slot_bytes;
    }
}

int gn_layout_open(struct gn_layout *layout, const struct gn_cache_layer *layers, uint32_t n_layers, uint64_t budget) {
    *layout = (struct gn_layout){0};
    layout->classes = calloc(n_layers, sizeof *layout->classes);
    layout->class_of_layer = calloc(n_layers, sizeof *layout->class_of_layer);
    layout->class_slots = calloc(n_layers, sizeof *layout->class_slots);
    uint32_t *experts = calloc(n_layers, sizeof *experts); // of each class: it has a use for no more slots
    int failed = layout->classes && layout->class_of_layer && layout->class_slots && experts ? 0 : -ENOMEM;
    if (!failed) {
        layout->n_classes = make_classes(layers, n_layers, layout->classes, layout->class_of_layer);
        for (uint32_t c = 0; c < layout->n_classes; c++) {
            experts[c] = layout->classes[c].n_experts;
            layout->classes[c].expert_bytes = layout->classes[c].slot_bytes * experts[c];
        }
        share_budget(layout, budget, experts, layout->class_slots);
        number_slots(layout);
    }
    free(experts);
    return failed;
}

void gn_layout_close(struct gn_layout *layout) {
    free(layout->classes);
    free(layout->class_of_layer);
    free(layout->class_slots);
}

static const struct gn_size_class *class_of_slot(const struct gn_layout *layout, uint32_t slot) {
    const struct gn_size_class *class = layout->classes;
    while (slot >= class->first_slot + class->n_slots) {
        class ++;
    }
    return class;
}

uint64_t gn_layout_slot_offset(const struct gn_layout *layout, uint32_t slot) {
    const struct gn_size_class *class = class_of_slot(layout, slot);
    return class->offset + (slot - class->first_slot) * class->slot_bytes;
}

uint64_t gn_layout_slot_bytes(const struct gn_layout *layout, uint32_t slot) {
    return class_of_slot(layout, slot)->slot_bytes;
}
