// An eviction policy of your own: CLOCK, which gives what was used since the hand last passed a second chance.
//
//     cc -shared -fPIC -I include -o clock.so docs/example-policy.c
//     guanaco run -m model.gguf --policy ./clock.so
//     guanaco simulate trace.csv --policy ./clock.so
//
// include/guanaco.h says what a policy must do.
#include "guanaco.h"

#include <stdlib.h>

struct clock {
    uint32_t n_entries;
    uint32_t *class_of; // [n_entries] GUANACO_NONE: not in the cache
    bool *used;         // [n_entries] since the hand passed
    uint32_t *hand;     // [n_classes]
};

static void clock_close(void *state) {
    struct clock *clock = state;
    free(clock->class_of);
    free(clock->used);
    free(clock->hand);
    free(clock);
}

static void *clock_open(const struct guanaco_policy_shape *shape) {
    struct clock *clock = calloc(1, sizeof *clock);
    if (!clock) {
        return NULL;
    }
    clock->n_entries = shape->n_entries;
    clock->class_of = malloc(shape->n_entries * sizeof *clock->class_of);
    clock->used = calloc(shape->n_entries, sizeof *clock->used);
    clock->hand = calloc(shape->n_classes, sizeof *clock->hand);
    if (!clock->class_of || !clock->used || !clock->hand) {
        clock_close(clock);
        return NULL;
    }
    for (uint32_t entry = 0; entry < shape->n_entries; entry++) {
        clock->class_of[entry] = GUANACO_NONE;
    }
    return clock;
}

static void clock_hit(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    ((struct clock *)state)->used[entry] = true;
}

static void clock_insert(void *state, uint32_t entry, uint32_t size_class) {
    struct clock *clock = state;
    clock->class_of[entry] = size_class;
    clock->used[entry] = false;
}

static void clock_evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)size_class;
    ((struct clock *)state)->class_of[entry] = GUANACO_NONE;
}

// Twice around at most: after the first time nothing has a second chance left.
static uint32_t clock_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                             const void *context) {
    struct clock *clock = state;
    for (uint64_t step = 0; step < 2 * (uint64_t)clock->n_entries; step++) {
        uint32_t entry = clock->hand[size_class];
        clock->hand[size_class] = (entry + 1) % clock->n_entries;
        if (clock->class_of[entry] != size_class || busy(context, entry)) {
            continue;
        }
        if (!clock->used[entry]) {
            return entry;
        }
        clock->used[entry] = false;
    }
    return GUANACO_NONE;
}

__attribute__((visibility("default"))) extern const struct guanaco_policy guanaco_policy;

const struct guanaco_policy guanaco_policy = {
    .version = GUANACO_POLICY_VERSION,
    .name = "clock",
    .help = "what was not used since the hand last passed",
    .open = clock_open,
    .close = clock_close,
    .hit = clock_hit,
    .insert = clock_insert,
    .evict = clock_evict,
    .victim = clock_victim,
};
