// First in, first out: the entry that came first goes first, used or not.
#include "policy/lists.h"

static void fifo_hit(void *state, uint32_t entry, uint32_t size_class) {
    (void)state, (void)entry, (void)size_class;
}

const struct guanaco_policy gn_policy_fifo = {
    .version = GUANACO_POLICY_VERSION,
    .name = "fifo",
    .help = "first in, first out",
    .open = gn_ordered_open,
    .close = gn_ordered_close,
    .hit = fifo_hit,
    .insert = gn_ordered_insert,
    .evict = gn_ordered_evict,
    .victim = gn_ordered_victim,
};
