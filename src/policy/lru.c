// Least recently used: the entry whose last use lies furthest back goes first.
#include "policy/policy.h"

#include <stdlib.h>

// One doubly linked list per size class, through the entries; the class's own link is entry n_entries + class.
struct lru {
    uint32_t n_entries;
    uint32_t *newer, *older;
};

static void *lru_open(const struct gn_policy_shape *shape) {
    uint32_t links = shape->n_entries + shape->n_classes;
    struct lru *lru = malloc(sizeof *lru);
    uint32_t *memory = malloc((size_t)links * 2 * sizeof *memory);
    if (!lru || !memory) {
        free(lru);
        free(memory);
        return NULL;
    }
    lru->n_entries = shape->n_entries;
    lru->newer = memory;
    lru->older = memory + links;
    for (uint32_t i = shape->n_entries; i < links; i++) {
        lru->newer[i] = lru->older[i] = i;
    }
    return lru;
}

static void lru_close(void *state) {
    struct lru *lru = state;
    free(lru->newer);
    free(lru);
}

static void unlink_entry(struct lru *lru, uint32_t entry) {
    lru->older[lru->newer[entry]] = lru->older[entry];
    lru->newer[lru->older[entry]] = lru->newer[entry];
}

static void lru_insert(void *state, uint32_t entry, uint32_t size_class) {
    struct lru *lru = state;
    uint32_t head = lru->n_entries + size_class; // its `older` is the newest entry, its `newer` the oldest
    lru->older[entry] = lru->older[head];
    lru->newer[entry] = head;
    lru->newer[lru->older[head]] = entry;
    lru->older[head] = entry;
}

static void lru_evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    unlink_entry(state, entry);
}

static void lru_hit(void *state, uint32_t entry, uint32_t size_class) {
    unlink_entry(state, entry);
    lru_insert(state, entry, size_class);
}

static uint32_t lru_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                           const void *context) {
    const struct lru *lru = state;
    uint32_t head = lru->n_entries + size_class;
    for (uint32_t entry = lru->newer[head]; entry != head; entry = lru->newer[entry]) {
        if (!busy(context, entry)) {
            return entry;
        }
    }
    return GN_NONE;
}

const struct gn_policy gn_policy_lru = {
    .name = "lru",
    .help = "least recently used",
    .open = lru_open,
    .close = lru_close,
    .hit = lru_hit,
    .insert = lru_insert,
    .evict = lru_evict,
    .victim = lru_victim,
};
