#include "policy/lists.h"

#include <stdlib.h>

bool gn_lists_open(struct gn_lists *lists, uint32_t n_entries, uint32_t n_lists) {
    size_t links = (size_t)n_entries + n_lists;
    uint32_t *memory = malloc(links * 2 * sizeof *memory);
    if (!memory) {
        return false;
    }
    *lists = (struct gn_lists){.n_entries = n_entries, .newer = memory, .older = memory + links};
    for (uint32_t i = n_entries; i < links; i++) {
        lists->newer[i] = lists->older[i] = i;
    }
    return true;
}

void gn_lists_close(struct gn_lists *lists) {
    free(lists->newer);
}

// A list's link lies between its newest entry (`older`) and its oldest (`newer`).
void gn_lists_push(struct gn_lists *lists, uint32_t list, uint32_t entry) {
    uint32_t link = lists->n_entries + list;
    lists->older[entry] = lists->older[link];
    lists->newer[entry] = link;
    lists->newer[lists->older[link]] = entry;
    lists->older[link] = entry;
}

void gn_lists_remove(struct gn_lists *lists, uint32_t entry) {
    lists->older[lists->newer[entry]] = lists->older[entry];
    lists->newer[lists->older[entry]] = lists->newer[entry];
}

uint32_t gn_lists_oldest(const struct gn_lists *lists, uint32_t list, bool (*busy)(const void *context, uint32_t entry),
                         const void *context) {
    uint32_t link = lists->n_entries + list;
    for (uint32_t entry = lists->newer[link]; entry != link; entry = lists->newer[entry]) {
        if (!busy || !busy(context, entry)) {
            return entry;
        }
    }
    return GN_NONE;
}

void *gn_ordered_open(const struct guanaco_policy_shape *shape) {
    struct gn_lists *lists = malloc(sizeof *lists);
    if (lists && !gn_lists_open(lists, shape->n_entries, shape->n_classes)) {
        free(lists);
        return NULL;
    }
    return lists;
}

void gn_ordered_close(void *state) {
    gn_lists_close(state);
    free(state);
}

void gn_ordered_insert(void *state, uint32_t entry, uint32_t size_class) {
    gn_lists_push(state, size_class, entry);
}

void gn_ordered_evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    gn_lists_remove(state, entry);
}

uint32_t gn_ordered_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                           const void *context) {
    return gn_lists_oldest(state, size_class, busy, context);
}
