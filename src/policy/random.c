// Any entry, by chance: the control that every other policy must beat. The seed is fixed, so that runs repeat.
#include "policy/policy.h"

#include <stdlib.h>

struct random {
    uint32_t n_entries;
    uint32_t *members;   // [n_classes][n_entries] those in the cache, densely
    uint32_t *n_members; // [n_classes]
    uint32_t *position;  // [n_entries] in members
    uint64_t seed;
};

static void random_close(void *state) {
    struct random *random = state;
    free(random->members);
    free(random->n_members);
    free(random->position);
    free(random);
}

static void *random_open(const struct guanaco_policy_shape *shape) {
    struct random *random = calloc(1, sizeof *random);
    if (!random) {
        return NULL;
    }
    random->n_entries = shape->n_entries;
    random->members = calloc((size_t)shape->n_classes * shape->n_entries, sizeof *random->members);
    random->n_members = calloc(shape->n_classes, sizeof *random->n_members);
    random->position = calloc(shape->n_entries, sizeof *random->position);
    random->seed = 1;
    if (!random->members || !random->n_members || !random->position) {
        random_close(random);
        return NULL;
    }
    return random;
}

static void random_hit(void *state, uint32_t entry, uint32_t size_class) {
    (void)state, (void)entry, (void)size_class;
}

static uint32_t *members_of(const struct random *random, uint32_t size_class) {
    return random->members + (size_t)size_class * random->n_entries;
}

static void random_insert(void *state, uint32_t entry, uint32_t size_class) {
    struct random *random = state;
    random->position[entry] = random->n_members[size_class]++;
    members_of(random, size_class)[random->position[entry]] = entry;
}

static void random_evict(void *state, uint32_t entry, uint32_t size_class) {
    struct random *random = state;
    uint32_t *members = members_of(random, size_class);
    uint32_t last = members[--random->n_members[size_class]];
    members[random->position[entry]] = last;
    random->position[last] = random->position[entry];
}

static uint32_t random_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                              const void *context) {
    struct random *random = state;
    const uint32_t *members = members_of(random, size_class);
    uint32_t n = random->n_members[size_class];
    if (n == 0) {
        return GN_NONE;
    }
    random->seed = random->seed * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX generator
    uint32_t start = (uint32_t)((random->seed >> 33) % n);
    for (uint32_t i = 0; i < n; i++) { // from there to the next that may go
        uint32_t entry = members[(start + i) % n];
        if (!busy(context, entry)) {
            return entry;
        }
    }
    return GN_NONE;
}

const struct guanaco_policy gn_policy_random = {
    .version = GUANACO_POLICY_VERSION,
    .name = "random",
    .help = "any, as a control",
    .open = random_open,
    .close = random_close,
    .hit = random_hit,
    .insert = random_insert,
    .evict = random_evict,
    .victim = random_victim,
};
