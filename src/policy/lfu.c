// Least frequently used: the entry with the fewest uses goes first, of equal ones the least recently used. Uses are
// counted whether the entry is in the cache or not. With ageing all counts are halved now and then, as in TinyLFU
// (Einziger, Friedman and Manes, 2017), so that what was hot in an earlier text does not stay for ever.
#include "policy/lists.h"

#include <stdlib.h>

#define MOST 1023       // counts stop here
#define PRIOR_TOKENS 64 // as many tokens' uses are counted in advance

static const struct guanaco_policy_parameter parameters[] = {
    {"age", 10, 1, 1000000, "counts are halved after this many uses for each expert held"},
    {0},
};

struct lfu {
    uint32_t n_entries, n_resident;
    struct gn_lists lists; // of each size class one for every count
    uint16_t *count;       // [n_entries]
    bool *resident;        // [n_entries]
    uint16_t *lowest;      // [n_classes] no entry of the class has a lower count
    uint32_t *class_of;    // [n_entries] while resident
    uint64_t uses;         // since the counts were halved
    double age_uses;       // for each entry in the cache, until counts are halved; 0: never
};

static void lfu_close(void *state) {
    struct lfu *lfu = state;
    gn_lists_close(&lfu->lists);
    free(lfu->count);
    free(lfu->resident);
    free(lfu->lowest);
    free(lfu->class_of);
    free(lfu);
}

static void *open_either(const struct guanaco_policy_shape *shape, double age_uses) {
    struct lfu *lfu = calloc(1, sizeof *lfu);
    if (!lfu) {
        return NULL;
    }
    lfu->age_uses = age_uses;
    lfu->n_entries = shape->n_entries;
    lfu->count = calloc(shape->n_entries, sizeof *lfu->count);
    lfu->resident = calloc(shape->n_entries, sizeof *lfu->resident);
    lfu->lowest = calloc(shape->n_classes, sizeof *lfu->lowest);
    lfu->class_of = calloc(shape->n_entries, sizeof *lfu->class_of);
    if (!lfu->count || !lfu->resident || !lfu->lowest || !lfu->class_of ||
        !gn_lists_open(&lfu->lists, shape->n_entries, shape->n_classes * (MOST + 1))) {
        lfu_close(lfu);
        return NULL;
    }
    return lfu;
}

static void *lfu_open(const struct guanaco_policy_shape *shape) {
    return open_either(shape, shape->parameters[0]);
}

static void *lfu_plain_open(const struct guanaco_policy_shape *shape) {
    return open_either(shape, 0);
}

static void put(struct lfu *lfu, uint32_t entry, uint32_t size_class) {
    gn_lists_push(&lfu->lists, size_class * (MOST + 1) + lfu->count[entry], entry);
    if (lfu->count[entry] < lfu->lowest[size_class]) {
        lfu->lowest[size_class] = lfu->count[entry];
    }
}

// Rare, and no dearer than a step or two for each use since the last time.
static void age(struct lfu *lfu) {
    for (uint32_t entry = 0; entry < lfu->n_entries; entry++) {
        if (lfu->resident[entry]) {
            gn_lists_remove(&lfu->lists, entry);
        }
        lfu->count[entry] /= 2;
        if (lfu->resident[entry]) {
            put(lfu, entry, lfu->class_of[entry]);
        }
    }
    lfu->uses = 0;
}

static void count_use(struct lfu *lfu, uint32_t entry) {
    lfu->count[entry] += lfu->count[entry] < MOST;
    uint64_t sample = (uint64_t)(lfu->n_resident * lfu->age_uses);
    uint64_t least = lfu->n_entries / 4;
    if (++lfu->uses >= (sample > least ? sample : least) && lfu->age_uses > 0) {
        age(lfu);
    }
}

static void lfu_miss(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    count_use(state, entry);
}

static void lfu_hit(void *state, uint32_t entry, uint32_t size_class) {
    struct lfu *lfu = state;
    gn_lists_remove(&lfu->lists, entry);
    lfu->resident[entry] = false; // while it is in no list
    count_use(lfu, entry);
    lfu->resident[entry] = true;
    put(lfu, entry, size_class);
}

static void lfu_insert(void *state, uint32_t entry, uint32_t size_class) {
    struct lfu *lfu = state;
    lfu->resident[entry] = true;
    lfu->class_of[entry] = size_class;
    lfu->n_resident++;
    put(lfu, entry, size_class);
}

static void lfu_evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    struct lfu *lfu = state;
    lfu->resident[entry] = false;
    lfu->n_resident--;
    gn_lists_remove(&lfu->lists, entry);
}

static uint32_t lfu_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                           const void *context) {
    struct lfu *lfu = state;
    bool empty = true; // all lists so far
    for (uint32_t count = lfu->lowest[size_class]; count <= MOST; count++) {
        uint32_t list = size_class * (MOST + 1) + count;
        uint32_t entry = gn_lists_oldest(&lfu->lists, list, busy, context);
        if (entry != GN_NONE) {
            return entry;
        }
        empty = empty && gn_lists_oldest(&lfu->lists, list, NULL, NULL) == GN_NONE;
        if (empty && count < MOST) {
            lfu->lowest[size_class] = (uint16_t)(count + 1);
        }
    }
    return GN_NONE;
}

static void lfu_prior(void *state, uint32_t entry, float chance) {
    struct lfu *lfu = state;
    float uses = chance * PRIOR_TOKENS;
    lfu->count[entry] = (uint16_t)(uses < MOST ? uses : MOST);
}

const struct guanaco_policy gn_policy_lfu = {
    .version = GUANACO_POLICY_VERSION,
    .name = "lfu",
    .help = "least frequently used, with ageing",
    .parameters = parameters,
    .open = lfu_open,
    .close = lfu_close,
    .hit = lfu_hit,
    .miss = lfu_miss,
    .insert = lfu_insert,
    .evict = lfu_evict,
    .victim = lfu_victim,
    .prior = lfu_prior,
};

const struct guanaco_policy gn_policy_lfu_plain = {
    .version = GUANACO_POLICY_VERSION,
    .name = "lfu-plain",
    .help = "least frequently used, counted for ever",
    .open = lfu_plain_open,
    .close = lfu_close,
    .hit = lfu_hit,
    .miss = lfu_miss,
    .insert = lfu_insert,
    .evict = lfu_evict,
    .victim = lfu_victim,
    .prior = lfu_prior,
};
