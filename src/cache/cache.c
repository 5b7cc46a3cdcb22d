#include "cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// Layers whose slots differ by less share a class: the most that rounding up to the class's size may waste.
#define CLASS_WASTE_PERCENT 3

struct size_class {
    uint64_t slot_bytes;
    uint64_t expert_bytes; // slot_bytes x experts of all its layers
    uint64_t offset;       // of its first slot
    uint32_t n_experts;
    uint32_t first_slot, n_slots;
    uint32_t free_slot; // head of the free list
};

struct slot {
    uint32_t entry;     // GN_NONE when free
    uint32_t next_free; // while free
    uint64_t event;     // the last event that used it
};

struct gn_cache {
    uint32_t n_layers, n_entries, n_classes, n_slots;
    uint32_t *first_entry;    // [n_layers]
    uint32_t *layer_of;       // [n_entries]
    uint32_t *slot_of;        // [n_entries]
    uint32_t *class_of_layer; // [n_layers]
    struct size_class *classes;
    struct slot *slots;
    uint64_t bytes, event;
    const struct gn_policy *policy;
    void *policy_state;
    struct gn_cache_totals totals;
};

static int by_size(const void *a, const void *b) {
    uint64_t x = ((const struct size_class *)a)->slot_bytes, y = ((const struct size_class *)b)->slot_bytes;
    return (x < y) - (x > y); // largest first
}

// Groups the layers' slot sizes, largest first, into classes within the allowed waste.
static void make_classes(struct gn_cache *cache, const struct gn_cache_layer *layers) {
    struct size_class *sizes = cache->classes;
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        sizes[l] = (struct size_class){.slot_bytes = layers[l].slot_bytes};
    }
    qsort(sizes, cache->n_layers, sizeof *sizes, by_size);
    uint32_t n = 0;
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        uint64_t size = sizes[i].slot_bytes;
        if (n == 0 || size * 100 < sizes[n - 1].slot_bytes * (100 - CLASS_WASTE_PERCENT)) {
            sizes[n++].slot_bytes = size;
        }
    }
    cache->n_classes = n;
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        uint32_t c = n - 1;
        while (sizes[c].slot_bytes < layers[l].slot_bytes) {
            c--;
        }
        cache->class_of_layer[l] = c;
        sizes[c].n_experts += layers[l].n_experts;
    }
}

// Shares the budget among the classes in proportion to their experts' bytes; what rounding leaves goes, largest class
// first, to whoever can still use a slot. No class gets more slots than it has experts.
static void share_budget(struct gn_cache *cache, uint64_t budget) {
    uint64_t total = 0, left = budget;
    for (uint32_t c = 0; c < cache->n_classes; c++) {
        struct size_class *class = &cache->classes[c];
        class->expert_bytes = class->slot_bytes * class->n_experts;
        total += class->expert_bytes;
    }
    for (uint32_t c = 0; c < cache->n_classes; c++) {
        struct size_class *class = &cache->classes[c];
        double share = total ? (double)class->expert_bytes / (double)total : 0;
        uint64_t slots = (uint64_t)((double)budget * share) / class->slot_bytes;
        class->n_slots = slots < class->n_experts ? (uint32_t)slots : class->n_experts;
        left -= class->n_slots * class->slot_bytes;
    }
    for (uint32_t c = 0; c < cache->n_classes; c++) {
        struct size_class *class = &cache->classes[c];
        while (class->n_slots < class->n_experts && left >= class->slot_bytes) {
            class->n_slots++;
            left -= class->slot_bytes;
        }
    }
}

static int cut_slots(struct gn_cache *cache) {
    for (uint32_t c = 0; c < cache->n_classes; c++) {
        struct size_class *class = &cache->classes[c];
        class->first_slot = cache->n_slots;
        class->offset = cache->bytes;
        cache->n_slots += class->n_slots;
        cache->bytes += class->n_slots * class->slot_bytes;
    }
    cache->slots = calloc(cache->n_slots ? cache->n_slots : 1, sizeof *cache->slots);
    if (!cache->slots) {
        return -ENOMEM;
    }
    for (uint32_t c = 0; c < cache->n_classes; c++) {
        struct size_class *class = &cache->classes[c];
        class->free_slot = GN_NONE;
        for (uint32_t i = class->n_slots; i-- > 0;) {
            uint32_t slot = class->first_slot + i;
            cache->slots[slot].entry = GN_NONE;
            cache->slots[slot].next_free = class->free_slot;
            class->free_slot = slot;
        }
    }
    return 0;
}

static int number_entries(struct gn_cache *cache, const struct gn_cache_layer *layers) {
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        if (layers[l].n_experts == 0 || layers[l].slot_bytes == 0 ||
            layers[l].n_experts > GN_NONE / 2 - cache->n_entries) {
            return -EINVAL;
        }
        cache->first_entry[l] = cache->n_entries;
        cache->n_entries += layers[l].n_experts;
    }
    cache->layer_of = malloc(cache->n_entries * sizeof *cache->layer_of);
    cache->slot_of = malloc(cache->n_entries * sizeof *cache->slot_of);
    if (!cache->layer_of || !cache->slot_of) {
        return -ENOMEM;
    }
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        for (uint32_t e = 0; e < layers[l].n_experts; e++) {
            cache->layer_of[cache->first_entry[l] + e] = l;
            cache->slot_of[cache->first_entry[l] + e] = GN_NONE;
        }
    }
    return 0;
}

static int build(struct gn_cache *cache, const struct gn_cache_options *options) {
    uint32_t n = options->n_layers;
    cache->n_layers = n;
    cache->policy = options->policy;
    cache->first_entry = calloc(n, sizeof *cache->first_entry);
    cache->class_of_layer = calloc(n, sizeof *cache->class_of_layer);
    cache->classes = calloc(n, sizeof *cache->classes);
    if (!cache->first_entry || !cache->class_of_layer || !cache->classes) {
        return -ENOMEM;
    }
    int failed = number_entries(cache, options->layers);
    if (failed) {
        return failed;
    }
    make_classes(cache, options->layers);
    share_budget(cache, options->budget);
    failed = cut_slots(cache);
    if (failed) {
        return failed;
    }
    struct gn_policy_shape shape = {
        .n_entries = cache->n_entries,
        .n_classes = cache->n_classes,
        .n_layers = n,
        .layer_of = cache->layer_of,
    };
    cache->policy_state = cache->policy->open(&shape);
    return cache->policy_state ? 0 : -ENOMEM;
}

int gn_cache_open(const struct gn_cache_options *options, struct gn_cache **out) {
    if (options->n_layers == 0) {
        return -EINVAL;
    }
    struct gn_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        return -ENOMEM;
    }
    int failed = build(cache, options);
    if (failed) {
        gn_cache_close(cache);
        return failed;
    }
    *out = cache;
    return 0;
}

void gn_cache_close(struct gn_cache *cache) {
    if (!cache) {
        return;
    }
    if (cache->policy_state) {
        cache->policy->close(cache->policy_state);
    }
    free(cache->first_entry);
    free(cache->layer_of);
    free(cache->slot_of);
    free(cache->class_of_layer);
    free(cache->classes);
    free(cache->slots);
    free(cache);
}

uint32_t gn_cache_entry(const struct gn_cache *cache, uint32_t layer, uint32_t expert) {
    return cache->first_entry[layer] + expert;
}

static uint32_t class_of(const struct gn_cache *cache, uint32_t entry) {
    return cache->class_of_layer[cache->layer_of[entry]];
}

void gn_cache_begin(struct gn_cache *cache) {
    cache->event++;
    cache->totals.events++;
}

void gn_cache_end(struct gn_cache *cache) {
    cache->event++; // nothing is in use any more
}

uint32_t gn_cache_lookup(struct gn_cache *cache, uint32_t entry) {
    uint32_t slot = cache->slot_of[entry];
    if (slot == GN_NONE) {
        cache->totals.misses++;
        if (cache->policy->miss) {
            cache->policy->miss(cache->policy_state, entry, class_of(cache, entry));
        }
        return GN_NONE;
    }
    cache->totals.hits++;
    cache->slots[slot].event = cache->event;
    cache->policy->hit(cache->policy_state, entry, class_of(cache, entry));
    return slot;
}

static bool in_use(const void *context, uint32_t entry) {
    const struct gn_cache *cache = context;
    return cache->slots[cache->slot_of[entry]].event == cache->event;
}

// Takes an entry out of its slot; the slot belongs to nobody then.
static uint32_t take_slot(struct gn_cache *cache, uint32_t entry) {
    uint32_t slot = cache->slot_of[entry];
    cache->policy->evict(cache->policy_state, entry, class_of(cache, entry));
    cache->slot_of[entry] = GN_NONE;
    cache->slots[slot].entry = GN_NONE;
    cache->totals.resident--;
    return slot;
}

static uint32_t find_slot(struct gn_cache *cache, struct size_class *class, bool evict) {
    uint32_t slot = class->free_slot;
    if (slot != GN_NONE) {
        class->free_slot = cache->slots[slot].next_free;
        return slot;
    }
    if (!evict) {
        return GN_NONE;
    }
    uint32_t victim = cache->policy->victim(cache->policy_state, (uint32_t)(class - cache->classes), in_use, cache);
    if (victim == GN_NONE) {
        return GN_NONE;
    }
    cache->totals.evictions++;
    return take_slot(cache, victim);
}

uint32_t gn_cache_insert(struct gn_cache *cache, uint32_t entry, bool evict) {
    uint32_t c = class_of(cache, entry);
    uint32_t slot = find_slot(cache, &cache->classes[c], evict);
    if (slot == GN_NONE) {
        return GN_NONE;
    }
    cache->slots[slot].entry = entry;
    cache->slots[slot].event = cache->event;
    cache->slot_of[entry] = slot;
    cache->policy->insert(cache->policy_state, entry, c);
    cache->totals.inserts++;
    cache->totals.resident++;
    return slot;
}

void gn_cache_drop(struct gn_cache *cache, uint32_t entry) {
    if (cache->slot_of[entry] == GN_NONE) {
        return;
    }
    struct size_class *class = &cache->classes[class_of(cache, entry)];
    uint32_t slot = take_slot(cache, entry);
    cache->slots[slot].event = 0;
    cache->slots[slot].next_free = class->free_slot;
    class->free_slot = slot;
}

uint32_t gn_cache_slots(const struct gn_cache *cache) {
    return cache->n_slots;
}

uint64_t gn_cache_bytes(const struct gn_cache *cache) {
    return cache->bytes;
}

static const struct size_class *class_of_slot(const struct gn_cache *cache, uint32_t slot) {
    const struct size_class *class = cache->classes;
    while (slot >= class->first_slot + class->n_slots) {
        class ++;
    }
    return class;
}

uint64_t gn_cache_slot_offset(const struct gn_cache *cache, uint32_t slot) {
    const struct size_class *class = class_of_slot(cache, slot);
    return class->offset + (slot - class->first_slot) * class->slot_bytes;
}

uint64_t gn_cache_slot_bytes(const struct gn_cache *cache, uint32_t slot) {
    return class_of_slot(cache, slot)->slot_bytes;
}

struct gn_cache_totals gn_cache_totals(const struct gn_cache *cache) {
    return cache->totals;
}
