// Doubly linked lists through the entries, oldest to newest, for policies that keep entries in order. An entry is in at
// most one list at a time.
#pragma once

#include "policy/policy.h"

struct gn_lists {
    uint32_t n_entries;
    uint32_t *newer, *older; // [n_entries + n_lists]; list l's own link is n_entries + l
};

bool gn_lists_open(struct gn_lists *lists, uint32_t n_entries, uint32_t n_lists);
void gn_lists_close(struct gn_lists *lists);
void gn_lists_push(struct gn_lists *lists, uint32_t list, uint32_t entry); // as the newest
void gn_lists_remove(struct gn_lists *lists, uint32_t entry);
// The oldest entry of a list that is not busy (busy may be NULL), or GN_NONE.
uint32_t gn_lists_oldest(const struct gn_lists *lists, uint32_t list, bool (*busy)(const void *context, uint32_t entry),
                         const void *context);

// The parts of a policy whose whole state is one such list per size class, from which the oldest goes first: lru and
// fifo, which differ in what a hit does. As in struct guanaco_policy.
void *gn_ordered_open(const struct guanaco_policy_shape *shape);
void gn_ordered_close(void *state);
void gn_ordered_insert(void *state, uint32_t entry, uint32_t size_class);
void gn_ordered_evict(void *state, uint32_t entry, uint32_t size_class);
uint32_t gn_ordered_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                           const void *context);
