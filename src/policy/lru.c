// Least recently used: the entry whose last use lies furthest back goes first.
#include "policy/lists.h"

static void lru_hit(void *state, uint32_t entry, uint32_t size_class) {
    gn_lists_remove(state, entry);
    gn_lists_push(state, size_class, entry);
}

const struct guanaco_policy gn_policy_lru = {
    .version = GUANACO_POLICY_VERSION,
    .name = "lru",
    .help = "least recently used",
    .open = gn_ordered_open,
    .close = gn_ordered_close,
    .hit = lru_hit,
    .insert = gn_ordered_insert,
    .evict = gn_ordered_evict,
    .victim = gn_ordered_victim,
};
