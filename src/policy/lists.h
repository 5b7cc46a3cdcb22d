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
