// Segmented LRU (Karedla, Love and Wherry, 1994): what is used once stays in a small segment, on probation; a second
// use moves it to the protected one. So a run of experts that are used once each cannot push out those used often.
#include "policy/lists.h"

#include <stdlib.h>

static const struct guanaco_policy_parameter parameters[] = {
    {"protected", 80, 1, 99, "per cent of the experts held that may be protected"},
    {0},
};

struct segments {
    uint32_t n_probation, n_protected;
};

struct slru {
    struct gn_lists lists;     // of each size class two: probation, protected
    struct segments *segments; // [n_classes]
    bool *is_protected;        // [n_entries]
    double share;              // of the protected segment
};

static void slru_close(void *state) {
    struct slru *slru = state;
    gn_lists_close(&slru->lists);
    free(slru->segments);
    free(slru->is_protected);
    free(slru);
}

static void *slru_open(const struct guanaco_policy_shape *shape) {
    struct slru *slru = calloc(1, sizeof *slru);
    if (!slru) {
        return NULL;
    }
    slru->share = shape->parameters[0] / 100;
    slru->segments = calloc(shape->n_classes, sizeof *slru->segments);
    slru->is_protected = calloc(shape->n_entries, sizeof *slru->is_protected);
    if (!slru->segments || !slru->is_protected ||
        !gn_lists_open(&slru->lists, shape->n_entries, 2 * shape->n_classes)) {
        slru_close(slru);
        return NULL;
    }
    return slru;
}

static void slru_insert(void *state, uint32_t entry, uint32_t size_class) {
    struct slru *slru = state;
    slru->is_protected[entry] = false;
    slru->segments[size_class].n_probation++;
    gn_lists_push(&slru->lists, 2 * size_class, entry);
}

static void slru_evict(void *state, uint32_t entry, uint32_t size_class) {
    struct slru *slru = state;
    struct segments *segments = &slru->segments[size_class];
    gn_lists_remove(&slru->lists, entry);
    if (slru->is_protected[entry]) {
        segments->n_protected--;
    } else {
        segments->n_probation--;
    }
}

static void protect(struct slru *slru, uint32_t entry, uint32_t size_class) {
    slru_evict(slru, entry, size_class);
    slru->is_protected[entry] = true;
    slru->segments[size_class].n_protected++;
    gn_lists_push(&slru->lists, 2 * size_class + 1, entry);
}

static void slru_hit(void *state, uint32_t entry, uint32_t size_class) {
    struct slru *slru = state;
    const struct segments *segments = &slru->segments[size_class];
    protect(slru, entry, size_class);
    uint64_t resident = (uint64_t)segments->n_probation + segments->n_protected;
    if (segments->n_protected > slru->share * (double)resident) {
        uint32_t oldest = gn_lists_oldest(&slru->lists, 2 * size_class + 1, NULL, NULL);
        slru_evict(slru, oldest, size_class); // from the protected segment, back on probation
        slru_insert(slru, oldest, size_class);
    }
}

static uint32_t slru_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                            const void *context) {
    const struct slru *slru = state;
    uint32_t entry = gn_lists_oldest(&slru->lists, 2 * size_class, busy, context);
    return entry != GN_NONE ? entry : gn_lists_oldest(&slru->lists, 2 * size_class + 1, busy, context);
}

const struct guanaco_policy gn_policy_slru = {
    .version = GUANACO_POLICY_VERSION,
    .name = "slru",
    .help = "segmented LRU: used once 20 %, used again 80 %",
    .parameters = parameters,
    .open = slru_open,
    .close = slru_close,
    .hit = slru_hit,
    .insert = slru_insert,
    .evict = slru_evict,
    .victim = slru_victim,
};
