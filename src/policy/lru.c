// Least recently used: the entry whose last use lies furthest back goes first. One list per size class.
#include "policy/lists.h"

#include <stdlib.h>

static void *lru_open(const struct gn_policy_shape *shape) {
    struct gn_lists *lists = malloc(sizeof *lists);
    if (lists && !gn_lists_open(lists, shape->n_entries, shape->n_classes)) {
        free(lists);
        return NULL;
    }
    return lists;
}

static void lru_close(void *state) {
    gn_lists_close(state);
    free(state);
}

static void lru_insert(void *state, uint32_t entry, uint32_t size_class) {
    gn_lists_push(state, size_class, entry);
}

static void lru_evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    gn_lists_remove(state, entry);
}

static void lru_hit(void *state, uint32_t entry, uint32_t size_class) {
    gn_lists_remove(state, entry);
    gn_lists_push(state, size_class, entry);
}

static uint32_t lru_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                           const void *context) {
    return gn_lists_oldest(state, size_class, busy, context);
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
