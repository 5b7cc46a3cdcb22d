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
// first, to whoever can still use a slot. No class gets more slots than it has experts.
static void share_budget(struct gn_size_class *classes, uint32_t n_classes, uint64_t budget) {
    uint64_t total = 0, left = budget;
    for (uint32_t c = 0; c < n_classes; c++) {
        struct gn_size_class *class = &classes[c];
        class->expert_bytes = class->slot_bytes * class->n_experts;
        total += class->expert_bytes;
    }
    for (uint32_t c = 0; c < n_classes; c++) {
        struct gn_size_class *class = &classes[c];
        double share = total ? (double)class->expert_bytes / (double)total : 0;
        uint64_t slots = (uint64_t)((double)budget * share) / class->slot_bytes;
        class->n_slots = slots < class->n_experts ? (uint32_t)slots : class->n_experts;
        left -= class->n_slots * class->slot_bytes;
    }
    for (uint32_t c = 0; c < n_classes; c++) {
        struct gn_size_class *class = &classes[c];
        while (class->n_slots < class->n_experts && left >= class->slot_bytes) {
            class->n_slots++;
            left -= class->slot_bytes;
        }
    }
}

static void number_slots(struct gn_layout *layout) {
    for (uint32_t c = 0; c < layout->n_classes; c++) {
        struct gn_size_class *class = &layout->classes[c];
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
    if (!layout->classes || !layout->class_of_layer) {
        return -ENOMEM;
    }
    layout->n_classes = make_classes(layers, n_layers, layout->classes, layout->class_of_layer);
    share_budget(layout->classes, layout->n_classes, budget);
    number_slots(layout);
    return 0;
}

void gn_layout_close(struct gn_layout *layout) {
    free(layout->classes);
    free(layout->class_of_layer);
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
