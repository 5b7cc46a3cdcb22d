// Policies that are none, for test_own_policy. Built once for each FLAW.
#include "guanaco.h"

enum { NO_SYMBOL, WRONG_VERSION, NO_FUNCTION, NAMES_BUSY, NAMES_ABSENT, NAMES_NUMBERS };

static bool held[1 << 16];

static void *open_state(const struct guanaco_policy_shape *shape) {
    return shape->n_entries < 1 << 16 ? held : NULL;
}

static void close_state(void *state) {
    (void)state;
}

static void hit(void *state, uint32_t entry, uint32_t size_class) {
    (void)state, (void)entry, (void)size_class;
}

static void insert(void *state, uint32_t entry, uint32_t size_class) {
    (void)state, (void)size_class;
    held[entry] = true;
}

static void evict(void *state, uint32_t entry, uint32_t size_class) {
    (void)state, (void)size_class;
    held[entry] = false;
}

static uint32_t victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                       const void *context) {
    (void)state, (void)size_class;
    if (FLAW == NAMES_NUMBERS) {
        return UINT32_MAX - 1;
    }
    for (uint32_t entry = 0; entry < 1 << 16; entry++) {
        if (FLAW == NAMES_ABSENT ? !held[entry] : held[entry] && busy(context, entry)) {
            return entry;
        }
    }
    return GUANACO_NONE;
}

#if FLAW == 0 // NO_SYMBOL
#define VISIBILITY "hidden"
#else
#define VISIBILITY "default"
#endif
__attribute__((visibility(VISIBILITY))) extern const struct guanaco_policy guanaco_policy;

const struct guanaco_policy guanaco_policy = {
    .version = FLAW == WRONG_VERSION ? GUANACO_POLICY_VERSION + 1 : GUANACO_POLICY_VERSION,
    .name = "bad",
    .help = "a policy with a flaw",
    .open = open_state,
    .close = close_state,
    .hit = hit,
    .insert = insert,
    .evict = evict,
    .victim = FLAW == NO_FUNCTION ? NULL : victim,
};
