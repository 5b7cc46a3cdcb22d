// The cache and its policies, against a plain model of what they should do.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct gn_cache *open_cache(const struct gn_cache_layer *layers, uint32_t n, uint64_t budget) {
    struct gn_cache_options options = {.layers = layers, .n_layers = n, .budget = budget, .policy = &gn_policy_lru};
    struct gn_cache *cache = NULL;
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    return cache;
}

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

// One event: look everything up, insert what missed. Returns the misses.
static uint32_t run_event(struct gn_cache *cache, const uint32_t *entries, uint32_t n, bool evict) {
    bool missed[64];
    uint32_t misses = 0;
    gn_cache_begin(cache);
    for (uint32_t i = 0; i < n; i++) {
        missed[i] = gn_cache_lookup(cache, entries[i]) == GN_NONE;
        misses += missed[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        if (missed[i]) {
            gn_cache_insert(cache, entries[i], evict);
        }
    }
    gn_cache_end(cache);
    return misses;
}

// A list in order of last use, searched from end to end: what LRU means.
struct plain_lru {
    uint32_t entries[512], n, capacity;
};

static uint32_t plain_event(struct plain_lru *lru, const uint32_t *entries, uint32_t n) {
    uint32_t misses = 0;
    bool missed[64];
    for (uint32_t i = 0; i < n; i++) {
        missed[i] = true;
        for (uint32_t j = 0; j < lru->n; j++) {
            if (lru->entries[j] == entries[i]) {
                memmove(lru->entries + j, lru->entries + j + 1, (lru->n - j - 1) * sizeof *lru->entries);
                lru->entries[lru->n - 1] = entries[i];
                missed[i] = false;
                break;
            }
        }
        misses += missed[i];
    }
    uint32_t in_event = n - misses;
    for (uint32_t i = 0; i < n; i++) {
        if (missed[i]) {
            if (lru->n == lru->capacity) {
                if (in_event == lru->capacity) {
                    continue; // all that is there is in use
                }
                memmove(lru->entries, lru->entries + 1, --lru->n * sizeof *lru->entries);
            }
            lru->entries[lru->n++] = entries[i];
            in_event++;
        }
    }
    return misses;
}

static void lru_counts_like_the_plain_model(void **state) {
    (void)state;
    for (uint32_t capacity = 0; capacity <= 130; capacity += capacity < 12 ? 1 : 13) {
        struct gn_cache_layer layers[4];
        for (int l = 0; l < 4; l++) {
            layers[l] = (struct gn_cache_layer){.n_experts = 32, .slot_bytes = 8192};
        }
        struct gn_cache *cache = open_cache(layers, 4, capacity * 8192ull);
        assert_int_equal(gn_cache_slots(cache), capacity < 128 ? capacity : 128);
        struct plain_lru plain = {.capacity = capacity};
        uint64_t seed = 7;
        for (int step = 0; step < 500; step++) {
            for (uint32_t layer = 0; layer < 4; layer++) {
                uint32_t entries[4];
                for (uint32_t k = 0; k < 4; k++) { // distinct, and skewed towards low numbers
                    uint32_t e = random_below(&seed, 1 + random_below(&seed, 8));
                    entries[k] = gn_cache_entry(cache, layer, e + 8 * k);
                }
                assert_int_equal(run_event(cache, entries, 4, true), plain_event(&plain, entries, 4));
            }
        }
        struct gn_cache_totals totals = gn_cache_totals(cache);
        assert_int_equal(totals.hits + totals.misses, 500 * 4 * 4);
        assert_int_equal(totals.inserts - totals.evictions, totals.resident);
        gn_cache_close(cache);
    }
}

static void an_event_never_evicts_what_it_uses(void **state) {
    (void)state;
    struct gn_cache_layer layer = {.n_experts = 16, .slot_bytes = 4096};
    struct gn_cache *cache = open_cache(&layer, 1, 3 * 4096);
    uint32_t five[] = {0, 1, 2, 3, 4};
    uint32_t slots[5];
    gn_cache_begin(cache);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(gn_cache_lookup(cache, five[i]), GN_NONE);
    }
    for (int i = 0; i < 5; i++) {
        slots[i] = gn_cache_insert(cache, five[i], true);
    }
    assert_int_not_equal(slots[0], slots[1]);
    assert_int_not_equal(slots[1], slots[2]);
    assert_int_not_equal(slots[0], slots[2]);
    assert_int_equal(slots[3], GN_NONE);
    assert_int_equal(slots[4], GN_NONE);
    gn_cache_end(cache);
    gn_cache_close(cache);
}

static void prefill_takes_free_slots_and_evicts_nothing(void **state) {
    (void)state;
    struct gn_cache_layer layer = {.n_experts = 16, .slot_bytes = 4096};
    struct gn_cache *cache = open_cache(&layer, 1, 4 * 4096);
    uint32_t decode[] = {3, 9}, prefill[] = {0, 1, 2, 4, 5, 6};
    run_event(cache, decode, 2, true);
    assert_int_equal(run_event(cache, prefill, 6, false), 6);
    assert_int_equal(gn_cache_totals(cache).evictions, 0);
    assert_int_equal(gn_cache_totals(cache).resident, 4);
    assert_int_equal(run_event(cache, decode, 2, true), 0);
    gn_cache_close(cache);
}

static void a_dropped_expert_is_gone_and_its_slot_free(void **state) {
    (void)state;
    struct gn_cache_layer layer = {.n_experts = 4, .slot_bytes = 4096};
    struct gn_cache *cache = open_cache(&layer, 1, 4096);
    uint32_t entry = 2, other = 3;
    run_event(cache, &entry, 1, true);
    gn_cache_drop(cache, entry);
    gn_cache_drop(cache, entry); // twice does no harm
    assert_int_equal(gn_cache_totals(cache).resident, 0);
    assert_int_equal(run_event(cache, &other, 1, false), 1);
    assert_int_equal(gn_cache_totals(cache).resident, 1);
    assert_int_equal(run_event(cache, &other, 1, false), 0);
    gn_cache_close(cache);
}

// Slots of one class may not overlap another's, and rounding may not lose more than 3 % or one slot of each class.
static void size_classes_share_the_budget(void **state) {
    (void)state;
    struct gn_cache_layer layers[48];
    uint64_t all = 0;
    for (uint32_t l = 0; l < 48; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = 128,
                                            .slot_bytes = (l % 2   ? 660
                                                           : l % 3 ? 760
                                                                   : 664) *
                                                          4096ull};
        all += layers[l].slot_bytes * 128;
    }
    for (uint64_t budget = all / 20; budget <= all + all / 10; budget += all / 20) {
        struct gn_cache *cache = open_cache(layers, 48, budget);
        const struct gn_layout *layout = gn_cache_layout(cache);
        uint64_t end = 0, useful = budget < all ? budget : all;
        for (uint32_t slot = 0; slot < gn_cache_slots(cache); slot++) {
            assert_true(gn_layout_slot_offset(layout, slot) >= end);
            end = gn_layout_slot_offset(layout, slot) + gn_layout_slot_bytes(layout, slot);
        }
        assert_true(end == gn_cache_bytes(cache) && end <= budget);
        assert_true(gn_cache_bytes(cache) + 760 * 4096 + useful * 3 / 100 >= useful);
        gn_cache_close(cache);
    }
}

static void impossible_shapes_are_refused(void **state) {
    (void)state;
    struct gn_cache_layer none = {.n_experts = 0, .slot_bytes = 4096}, flat = {.n_experts = 4, .slot_bytes = 0};
    struct gn_cache_options options = {.layers = &none, .n_layers = 1, .budget = 1 << 20, .policy = &gn_policy_lru};
    struct gn_cache *cache;
    assert_int_equal(gn_cache_open(&options, &cache), -EINVAL);
    options.layers = &flat;
    assert_int_equal(gn_cache_open(&options, &cache), -EINVAL);
    options.n_layers = 0;
    assert_int_equal(gn_cache_open(&options, &cache), -EINVAL);
}

// Two slots, two layers of four experts. Entries 0 and 1 find them free; 2 must miss twice within two tokens.
static void the_second_miss_is_let_in(void **state) {
    (void)state;
    struct gn_cache_layer layers[] = {{.n_experts = 4, .slot_bytes = 100}, {.n_experts = 4, .slot_bytes = 100}};
    struct gn_cache_options options = {
        .layers = layers, .n_layers = 2, .budget = 200, .policy = &gn_policy_lru, .admission.window = 2};
    struct gn_cache *cache = NULL;
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    // Layer 0 in even places, layer 1 in odd ones: a token is two events. Who misses, and how many evictions so far.
    static const struct {
        uint32_t entry;
        bool miss;
        uint32_t evictions;
    } steps[] = {{0, true, 0},  {4, true, 0},  // free slots
                 {2, true, 0},  {5, true, 0},  // first misses
                 {2, true, 1},  {4, false, 1}, // 2 again: 0 goes
                 {2, false, 1}, {4, false, 1}, {3, true, 1}, {4, false, 1},
                 {1, true, 1},  {4, false, 1}, {1, true, 2}, {4, false, 2}, // 1 again: 2 goes
                 {2, true, 2},  {4, false, 2}, {0, true, 2}, {4, false, 2}, // their last misses: long ago
                 {3, true, 2},  {5, true, 2}};                              // too
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(run_event(cache, &steps[i].entry, 1, true), steps[i].miss);
        assert_int_equal(gn_cache_totals(cache).evictions, steps[i].evictions);
    }
    gn_cache_close(cache);
}

// What is looked at before an eviction is what goes, also where the policy draws lots.
static void evicts_the_victim_that_it_named(void **state) {
    (void)state;
    const struct guanaco_policy *const policies[] = {&gn_policy_random, &gn_policy_lru, &gn_policy_slru};
    struct gn_cache_layer layer = {.n_experts = 64, .slot_bytes = 4096};
    for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
        struct gn_cache_options options = {.layers = &layer, .n_layers = 1, .budget = 16 * 4096, .policy = policies[p]};
        struct gn_cache *cache = NULL;
        assert_int_equal(gn_cache_open(&options, &cache), 0);
        uint64_t seed = 7;
        for (int i = 0; i < 500; i++) {
            uint32_t entry = random_below(&seed, 64);
            gn_cache_begin(cache);
            if (gn_cache_lookup(cache, entry) == GN_NONE) {
                uint32_t victim = gn_cache_victim(cache, entry);
                assert_int_not_equal(gn_cache_insert(cache, entry, true), GN_NONE);
                assert_true(victim == GN_NONE || gn_cache_peek(cache, victim) == GN_NONE);
            }
            gn_cache_end(cache);
        }
        assert_true(gn_cache_totals(cache).evictions > 100);
        gn_cache_close(cache);
    }
}

// A victim that has been used, or has gone, since it was named is not taken.
static void forgets_a_victim_that_may_not_go(void **state) {
    (void)state;
    struct gn_cache_layer layer = {.n_experts = 8, .slot_bytes = 4096};
    struct gn_cache *cache = open_cache(&layer, 1, 2 * 4096);
    run_event(cache, (uint32_t[]){0, 1}, 2, true);
    gn_cache_begin(cache);
    gn_cache_lookup(cache, 2);
    assert_int_equal(gn_cache_victim(cache, 2), 0);
    gn_cache_lookup(cache, 0);
    assert_int_equal(gn_cache_victim(cache, 2), 1);
    gn_cache_drop(cache, 1);
    assert_int_equal(gn_cache_victim(cache, 2), GN_NONE); // a slot is free
    assert_int_not_equal(gn_cache_insert(cache, 2, true), GN_NONE);
    assert_int_not_equal(gn_cache_peek(cache, 0), GN_NONE);
    gn_cache_end(cache);
    gn_cache_close(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_counts_like_the_plain_model),
        cmocka_unit_test(an_event_never_evicts_what_it_uses),
        cmocka_unit_test(prefill_takes_free_slots_and_evicts_nothing),
        cmocka_unit_test(a_dropped_expert_is_gone_and_its_slot_free),
        cmocka_unit_test(size_classes_share_the_budget),
        cmocka_unit_test(the_second_miss_is_let_in),
        cmocka_unit_test(evicts_the_victim_that_it_named),
        cmocka_unit_test(forgets_a_victim_that_may_not_go),
        cmocka_unit_test(impossible_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
