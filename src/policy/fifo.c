// First in, first out: the entry that came first goes first, used or not.
#include "policy/lists.h"

#include <stdlib.h>

static void *fifo_open(const struct gn_policy_shape *shape) {
    struct gn_lists *lists = malloc(sizeof *lists);
    if (lists && !gn_lists_open(lists, shape->n_entries, shape->n_classes)) {
        free(lists);
        return NULL;
    }
    return lists;
}

static void fifo_close(void *state) {
    gn_lists_close(state);
    free(state);
}

static void fifo_hit(void *state, uint32_t entry, uint32_t size_class) {
    (void)state, (void)entry, (void)size_class;
}

static void fifo_insert(void *state, uint32_t entry, uint32_t size_class) {
    gn_lists_push(state, size_class, entry);
}

static void fifo_evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    gn_lists_remove(state, entry);
}

static uint32_t fifo_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                            const void *context) {
    return gn_lists_oldest(state, size_class, busy, context);
}

const struct gn_policy gn_policy_fifo = {
    .name = "fifo",
    .help = "first in, first out",
    .open = fifo_open,
    .close = fifo_close,
    .hit = fifo_hit,
    .insert = fifo_insert,
    .evict = fifo_evict,
    .victim = fifo_victim,
};
