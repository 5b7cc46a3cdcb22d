// A cache that has fewer slots for a time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#define SLOT 8192u
#define MOST 512

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

// What the cache says of its slots.
struct told {
    bool closed[MOST];
    uint32_t changes;
};

static void on_change(void *context, uint32_t slot, bool open) {
    struct told *told = context;
    assert_int_equal(told->closed[slot], open);
    told->closed[slot] = !open;
    told->changes++;
}

// One event of four distinct experts of a layer with 32.
static void choose(struct gn_cache *cache, uint32_t layer, uint64_t *seed, uint32_t *entries) {
    for (uint32_t k = 0; k < 4; k++) {
        entries[k] = gn_cache_entry(cache, layer, random_below(seed, 1 + random_below(seed, 8)) + 8 * k);
    }
}

static uint32_t run_event(struct gn_cache *cache, const uint32_t *entries, const struct told *told) {
    bool missed[4];
    uint32_t misses = 0;
    gn_cache_begin(cache);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t slot = gn_cache_lookup(cache, entries[i]);
        assert_true(slot == GN_NONE || !told->closed[slot]);
        missed[i] = slot == GN_NONE;
        misses += missed[i];
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t slot = missed[i] ? gn_cache_insert(cache, entries[i], true) : GN_NONE;
        assert_true(slot == GN_NONE || !told->closed[slot]);
    }
    gn_cache_end(cache);
    assert_null(gn_cache_error(cache));
    return misses;
}

// Slots that hold something, each in one slot that is open.
static void check_slots(const struct gn_cache *cache, const struct told *told) {
    static bool used[MOST];
    memset(used, 0, sizeof used);
    uint32_t resident = 0, closed = 0;
    for (uint32_t entry = 0; entry < gn_cache_entries(cache); entry++) {
        uint32_t slot = gn_cache_peek(cache, entry);
        if (slot != GN_NONE) {
            assert_false(used[slot] || told->closed[slot]);
            used[slot] = true;
            resident++;
        }
    }
    for (uint32_t slot = 0; slot < gn_cache_slots(cache); slot++) {
        closed += told->closed[slot];
    }
    struct gn_cache_totals totals = gn_cache_totals(cache);
    assert_int_equal(totals.resident, resident);
    assert_int_equal(totals.inserts - totals.evictions, resident);
    assert_int_equal(gn_cache_open_slots(cache), gn_cache_slots(cache) - closed);
    assert_true(resident <= gn_cache_open_slots(cache));
}

// A list in order of last use: what LRU means.
struct plain {
    uint32_t entries[64], n, capacity;
};

static bool plain_use(struct plain *lru, uint32_t entry) {
    for (uint32_t j = 0; j < lru->n; j++) {
        if (lru->entries[j] == entry) {
            memmove(lru->entries + j, lru->entries + j + 1, (lru->n - j - 1) * sizeof *lru->entries);
            lru->entries[lru->n - 1] = entry;
            return true;
        }
    }
    return false;
}

static void plain_cut(struct plain *lru, uint32_t n) {
    if (lru->n > n) {
        memmove(lru->entries, lru->entries + lru->n - n, n * sizeof *lru->entries);
        lru->n = n;
    }
}

static uint32_t plain_event(struct plain *lru, const uint32_t *entries) {
    bool missed[4];
    uint32_t misses = 0;
    for (uint32_t i = 0; i < 4; i++) {
        missed[i] = !plain_use(lru, entries[i]);
        misses += missed[i];
    }
    for (uint32_t i = 0, used = 4 - misses; i < 4; i++) {
        if (missed[i] && used < lru->capacity) { // what the event uses stays
            plain_cut(lru, lru->capacity - 1);
            lru->entries[lru->n++] = entries[i];
            used++;
        }
    }
    return misses;
}

// The oldest go, and what is left is an LRU of the new size.
static void lru_of_a_changing_size(void **state) {
    (void)state;
    struct gn_cache_layer layers[4];
    for (int l = 0; l < 4; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = 32, .slot_bytes = SLOT};
    }
    struct gn_cache_options options = {.layers = layers, .n_layers = 4, .budget = 60 * SLOT, .policy = &gn_policy_lru};
    struct gn_cache *cache;
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    struct told told = {0};
    struct plain plain = {.capacity = 60};
    uint64_t seed = 3;
    for (int step = 0; step < 4000; step++) {
        if (step % 50 == 49) {
            plain.capacity = random_below(&seed, 61);
            plain_cut(&plain, plain.capacity);
            gn_cache_resize(cache, (uint64_t)plain.capacity * SLOT, on_change, &told);
            assert_int_equal(gn_cache_open_slots(cache), plain.capacity);
            assert_int_equal(gn_cache_open_bytes(cache), plain.capacity * SLOT);
            assert_int_equal(gn_cache_share(cache, 0), plain.capacity < 32 ? plain.capacity : 32);
        }
        uint32_t entries[4];
        choose(cache, (uint32_t)step % 4, &seed, entries);
        assert_int_equal(run_event(cache, entries, &told), plain_event(&plain, entries));
        check_slots(cache, &told);
    }
    assert_true(told.changes > 100);
    gn_cache_close(cache);
}

// Layers of three sizes. Whatever the policy, with pins and with shares: as much as a cache of that budget has, and all
// of them again in the end.
static void every_policy_gives_slots_back(void **state) {
    (void)state;
    struct gn_cache_layer layers[6];
    for (uint32_t l = 0; l < 6; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = 32, .slot_bytes = SLOT * (1 + l % 3)};
    }
    for (int variant = 0; gn_policies[variant / 6]; variant++) {
        struct gn_cache_options options = {
            .layers = layers, .n_layers = 6, .budget = 200 * SLOT, .policy = gn_policies[variant / 6]};
        options.shares = (enum gn_shares_kind)(variant % 3);
        options.pins.most = variant % 6 < 3 ? 0 : 30;
        struct gn_cache *cache, *fresh;
        assert_int_equal(gn_cache_open(&options, &cache), 0);
        struct told told = {0};
        uint64_t seed = 11 + (uint64_t)variant;
        for (int step = 0; step < 3000; step++) {
            if (step % 60 == 59) {
                options.budget = (uint64_t)random_below(&seed, 250) * SLOT;
                gn_cache_resize(cache, options.budget, on_change, &told);
                options.budget = options.budget < 200 * SLOT ? options.budget : 200 * SLOT;
                assert_int_equal(gn_cache_open(&options, &fresh), 0);
                // Rounding may give a slot to another class.
                assert_true(gn_cache_open_bytes(cache) <= options.budget);
                assert_true(gn_cache_open_bytes(cache) + (uint64_t)3 * SLOT >= gn_cache_bytes(fresh));
                gn_cache_close(fresh);
                check_slots(cache, &told);
            }
            uint32_t entries[4];
            choose(cache, (uint32_t)step % 6, &seed, entries);
            run_event(cache, entries, &told);
        }
        check_slots(cache, &told);
        gn_cache_resize(cache, UINT64_MAX / 2, on_change, &told);
        assert_int_equal(gn_cache_open_slots(cache), gn_cache_slots(cache));
        gn_cache_close(cache);
    }
}

// A slot that is reserved is not taken away from under the reads into it.
static void reserved_slots_stay(void **state) {
    (void)state;
    struct gn_cache_layer layer = {.n_experts = 32, .slot_bytes = SLOT};
    struct gn_cache_options options = {.layers = &layer, .n_layers = 1, .budget = 8 * SLOT, .policy = &gn_policy_lru};
    struct gn_cache *cache;
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    struct told told = {0};
    uint32_t slots[3];
    gn_cache_begin(cache);
    gn_cache_end(cache);
    for (uint32_t e = 0; e < 3; e++) {
        slots[e] = gn_cache_reserve(cache, e);
        assert_true(slots[e] != GN_NONE);
    }
    gn_cache_resize(cache, 0, on_change, &told);
    assert_int_equal(gn_cache_open_slots(cache), 3);
    for (uint32_t e = 0; e < 3; e++) {
        assert_false(told.closed[slots[e]]);
        assert_true(gn_cache_fill(cache, e, slots[e]));
    }
    gn_cache_resize(cache, 0, on_change, &told);
    assert_int_equal(gn_cache_open_slots(cache), 0);
    assert_int_equal(gn_cache_peek(cache, 1), GN_NONE);
    gn_cache_close(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_of_a_changing_size),
        cmocka_unit_test(every_policy_gives_slots_back),
        cmocka_unit_test(reserved_slots_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
