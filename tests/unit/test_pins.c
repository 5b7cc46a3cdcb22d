// Pinned experts: which are chosen, and that the cache holds them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096 };

static struct gn_pins *open_pins(struct gn_pins_options options, uint32_t n, const uint64_t *bytes) {
    uint64_t equal[64];
    for (int i = 0; i < 64; i++) {
        equal[i] = BLOCK;
    }
    struct gn_pins *pins = gn_pins_open(&options, n, bytes ? bytes : equal);
    assert_non_null(pins);
    return pins;
}

static void use(struct gn_pins *pins, uint32_t entry, int times) {
    while (times-- > 0) {
        gn_pins_use(pins, entry);
    }
}

static void assert_hot(const struct gn_pins *pins, uint32_t n, const char *expected) {
    for (uint32_t entry = 0; entry < n; entry++) {
        assert_int_equal(gn_pins_hot(pins, entry), expected[entry] == '*');
    }
}

// Uses 3 1 5 3 0: the hottest two are 2, then 0 (of the equals 0 and 3 the one with the lower number). Halved, they are
// 1.5 0.5 2.5 1.5 0; with two more uses 3 has 3.5 and takes the place of 0, and with 9 uses 4, never seen before, takes
// the place of 2.
static void the_most_used_are_hot(void **state) {
    (void)state;
    struct gn_pins *pins = open_pins((struct gn_pins_options){.most = 2, .decay = 0.5}, 5, NULL);
    use(pins, 0, 3);
    use(pins, 1, 1);
    use(pins, 2, 5);
    use(pins, 3, 3);
    assert_hot(pins, 5, ".....");
    gn_pins_choose(pins);
    assert_hot(pins, 5, "*.*..");
    struct gn_pins_figures figures = gn_pins_figures(pins);
    assert_int_equal(figures.uses, 12);
    assert_int_equal(figures.seen, 4);
    assert_int_equal(figures.hot, 2);
    assert_int_equal(figures.most, 2);
    assert_true(figures.least == 1.5f && figures.greatest == 2.5f);
    use(pins, 3, 2);
    gn_pins_choose(pins);
    assert_hot(pins, 5, "..**.");
    use(pins, 4, 9);
    gn_pins_choose(pins);
    assert_hot(pins, 5, "...**");
    gn_pins_close(pins);
}

// 1 has more uses and is chosen. When 0 has as many, 1 stays, though its number is higher; 0 comes with one more.
static void of_equals_those_stay_that_are_hot(void **state) {
    (void)state;
    struct gn_pins *pins = open_pins((struct gn_pins_options){.most = 1, .decay = 1}, 2, NULL);
    use(pins, 0, 2);
    use(pins, 1, 3);
    gn_pins_choose(pins);
    assert_hot(pins, 2, ".*");
    use(pins, 0, 1);
    gn_pins_choose(pins);
    assert_hot(pins, 2, ".*");
    use(pins, 0, 1);
    gn_pins_choose(pins);
    assert_hot(pins, 2, "*.");
    gn_pins_close(pins);
}

// The hottest as long as they fit: 3 + 2 of 6 blocks, and the next, of 2, would not.
static void a_budget_of_bytes_holds(void **state) {
    (void)state;
    const uint64_t bytes[] = {2 * BLOCK, 3 * BLOCK, 2 * BLOCK, BLOCK};
    struct gn_pins *pins = open_pins((struct gn_pins_options){.bytes = 6 * BLOCK}, 4, bytes);
    use(pins, 0, 3);
    use(pins, 1, 4);
    use(pins, 2, 2);
    use(pins, 3, 1);
    gn_pins_choose(pins);
    assert_hot(pins, 4, "**..");
    gn_pins_close(pins);
    pins = open_pins((struct gn_pins_options){.bytes = 6 * BLOCK, .most = 1}, 4, bytes);
    use(pins, 2, 1);
    use(pins, 3, 2);
    gn_pins_choose(pins);
    assert_hot(pins, 4, "...*"); // both limits hold, and what was never used is never hot
    gn_pins_close(pins);
}

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

struct plain {
    double count;
    uint32_t entry;
    bool hot;
};

static int hotter_first(const void *a, const void *b) {
    const struct plain *x = a, *y = b;
    if (x->count != y->count) {
        return x->count > y->count ? -1 : 1;
    }
    if (x->hot != y->hot) {
        return x->hot ? -1 : 1;
    }
    return x->entry < y->entry ? -1 : 1;
}

static void chosen_as_by_sorting(void **state) {
    (void)state;
    enum { N = 500 };
    uint64_t seed = 3, bytes[N];
    struct plain plain[N];
    for (uint32_t i = 0; i < N; i++) {
        bytes[i] = BLOCK * (1 + random_below(&seed, 3));
        plain[i] = (struct plain){.entry = i};
    }
    struct gn_pins *pins =
        open_pins((struct gn_pins_options){.most = 90, .bytes = 170 * BLOCK, .decay = 0.5}, N, bytes);
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 400; i++) {
            uint32_t entry = (random_below(&seed, 1 + random_below(&seed, N)) + (uint32_t)round * 7) % N;
            gn_pins_use(pins, entry);
            plain[entry].count += 1;
        }
        struct plain sorted[N];
        memcpy(sorted, plain, sizeof sorted);
        qsort(sorted, N, sizeof *sorted, hotter_first);
        uint64_t left = 170 * BLOCK;
        uint32_t n = 0;
        bool full = false;
        for (uint32_t i = 0; i < N; i++) {
            full = full || n == 90 || bytes[sorted[i].entry] > left || sorted[i].count == 0;
            plain[sorted[i].entry].hot = !full;
            if (!full) {
                left -= bytes[sorted[i].entry];
                n++;
            }
        }
        gn_pins_choose(pins);
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(gn_pins_hot(pins, i), plain[i].hot);
            plain[i].count = plain[i].count / 2 < 1e-6 ? 0 : plain[i].count / 2;
        }
    }
    gn_pins_close(pins);
}

// ------------------------------------------------------------------------------------------------ in the cache

static struct gn_cache *open_cache(const struct guanaco_policy *policy, uint32_t slots, struct gn_pins_options pins) {
    struct gn_cache_layer layer = {.n_experts = 16, .slot_bytes = BLOCK};
    struct gn_cache_options options = {
        .layers = &layer, .n_layers = 1, .budget = (uint64_t)slots * BLOCK, .policy = policy, .pins = pins};
    struct gn_cache *cache = NULL;
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    return cache;
}

// An event of one expert. Returns whether it missed.
static bool run(struct gn_cache *cache, uint32_t entry) {
    gn_cache_begin(cache);
    bool missed = gn_cache_lookup(cache, entry) == GN_NONE;
    if (missed) {
        gn_cache_insert(cache, entry, true);
    }
    gn_cache_end(cache);
    return missed;
}

// Four uses of 0, then a scan of 1, 2, 3 … past three slots. LRU has pushed 0 out after three of them; pinned, it
// stays, under any policy, and the others take turns in the two slots that are left.
static void a_pinned_expert_outlasts_a_scan(void **state) {
    (void)state;
    struct gn_cache *cache = open_cache(&gn_policy_lru, 3, (struct gn_pins_options){0});
    for (uint32_t i = 0; i < 8; i++) {
        run(cache, i < 4 ? 0 : i - 3);
    }
    assert_true(run(cache, 0));
    gn_cache_close(cache);
    for (int p = 0; gn_policies[p]; p++) {
        cache = open_cache(gn_policies[p], 3, (struct gn_pins_options){.most = 1, .warm_up = 4});
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(run(cache, 0), i == 0);
        }
        for (uint32_t i = 1; i < 12; i++) {
            assert_true(run(cache, i));
        }
        assert_false(run(cache, 0));
        struct gn_cache_totals totals = gn_cache_totals(cache);
        assert_int_equal(totals.evictions, 9);
        assert_int_equal(totals.hot_evictions, 0);
        assert_int_equal(totals.hot_hits, 1); // the three before were not pinned yet
        assert_int_equal(totals.hot_resident, 1);
        assert_int_equal(gn_cache_layer_totals(cache, 0).hot_resident, 1);
        gn_cache_close(cache);
    }
}

// Two slots, both with hot experts, 0 used longer ago than 1: a third expert takes the slot of 0. Then 0 is hot and
// absent; it comes back in the place of the third, which is cold, though 1 was used longer ago.
static void hot_ones_go_by_last_use_when_no_cold_one_is_left(void **state) {
    (void)state;
    for (int p = 0; gn_policies[p]; p++) {
        struct gn_cache *cache = open_cache(gn_policies[p], 2, (struct gn_pins_options){.most = 2, .warm_up = 4});
        const uint32_t order[] = {0, 1, 0, 1, 2};
        for (int i = 0; i < 5; i++) {
            run(cache, order[i]);
        }
        assert_int_equal(gn_cache_totals(cache).hot_evictions, 1);
        assert_true(run(cache, 0));
        assert_int_equal(gn_cache_totals(cache).hot_evictions, 1);
        assert_int_equal(gn_cache_totals(cache).rereads, 1); // 0, soon after its eviction
        assert_false(run(cache, 1));
        assert_false(run(cache, 0));
        gn_cache_close(cache);
    }
}

// Hot slots are found by number, so that they can be locked; a dropped one is hot no more.
static void slots_tell_whether_they_hold_a_hot_expert(void **state) {
    (void)state;
    struct gn_cache *cache = open_cache(&gn_policy_lru, 3, (struct gn_pins_options){.most = 1, .warm_up = 2});
    run(cache, 5);
    run(cache, 5);
    run(cache, 6);
    uint32_t hot = 0, which = 0;
    for (uint32_t slot = 0; slot < 3; slot++) {
        hot += gn_cache_slot_hot(cache, slot);
        which = gn_cache_slot_hot(cache, slot) ? slot : which;
    }
    assert_int_equal(hot, 1);
    gn_cache_begin(cache);
    assert_int_equal(gn_cache_lookup(cache, 5), which);
    gn_cache_end(cache);
    gn_cache_drop(cache, 5);
    assert_false(gn_cache_slot_hot(cache, which));
    assert_int_equal(gn_cache_totals(cache).hot_resident, 0);
    assert_true(run(cache, 5)); // still hot, so pinned as soon as it is back
    assert_int_equal(gn_cache_totals(cache).hot_resident, 1);
    gn_cache_close(cache);
}

// Random use: what is counted by layer and in all adds up, and no expert is lost or held twice.
static void the_counts_add_up(void **state) {
    (void)state;
    for (int p = 0; gn_policies[p]; p++) {
        struct gn_cache_layer layers[] = {{.n_experts = 32, .slot_bytes = BLOCK},
                                          {.n_experts = 32, .slot_bytes = BLOCK},
                                          {.n_experts = 32, .slot_bytes = 3 * BLOCK}};
        struct gn_cache_options options = {.layers = layers,
                                           .n_layers = 3,
                                           .budget = 40 * BLOCK,
                                           .policy = gn_policies[p],
                                           .pins = {.most = 12, .warm_up = 20}};
        struct gn_cache *cache = NULL;
        assert_int_equal(gn_cache_open(&options, &cache), 0);
        uint64_t seed = 5;
        for (uint32_t event = 0; event < 3000; event++) {
            uint32_t used[4], n = 0;
            gn_cache_begin(cache);
            for (uint32_t k = 0; k < 4; k++) {
                uint32_t expert = (random_below(&seed, 1 + random_below(&seed, 8)) + 8 * k + event / 1000) % 32;
                uint32_t entry = gn_cache_entry(cache, event % 3, expert);
                if (gn_cache_lookup(cache, entry) == GN_NONE) {
                    used[n++] = entry;
                }
            }
            for (uint32_t i = 0; i < n; i++) {
                if (gn_cache_insert(cache, used[i], event % 7 > 0) != GN_NONE && event % 11 == 0) {
                    gn_cache_drop(cache, used[i]);
                }
            }
            gn_cache_end(cache);
        }
        struct gn_cache_totals all = gn_cache_totals(cache), sum = {0};
        for (uint32_t l = 0; l < 3; l++) {
            struct gn_cache_totals layer = gn_cache_layer_totals(cache, l);
            assert_int_equal(layer.events, 1000);
            sum.hits += layer.hits;
            sum.misses += layer.misses;
            sum.inserts += layer.inserts;
            sum.evictions += layer.evictions;
            sum.hot_hits += layer.hot_hits;
            sum.hot_evictions += layer.hot_evictions;
            sum.rereads += layer.rereads;
            sum.resident += layer.resident;
            sum.hot_resident += layer.hot_resident;
        }
        sum.events = all.events; // each of one layer here
        assert_memory_equal(&sum, &all, sizeof sum);
        assert_int_equal(all.hits + all.misses, 12000);
        assert_true(all.hot_hits > 0 && all.hot_hits < all.hits && all.rereads > 0 && all.rereads < all.misses);
        uint32_t hot = 0;
        for (uint32_t slot = 0; slot < gn_cache_slots(cache); slot++) {
            hot += gn_cache_slot_hot(cache, slot);
        }
        assert_int_equal(hot, all.hot_resident);
        struct gn_pins_figures pins = gn_cache_pins(cache);
        assert_int_equal(pins.uses, 12000);
        assert_true(pins.hot == 12 && hot <= 12 && pins.least > 0 && pins.least <= pins.greatest);
        gn_cache_close(cache);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_used_are_hot),
        cmocka_unit_test(of_equals_those_stay_that_are_hot),
        cmocka_unit_test(a_budget_of_bytes_holds),
        cmocka_unit_test(chosen_as_by_sorting),
        cmocka_unit_test(a_pinned_expert_outlasts_a_scan),
        cmocka_unit_test(hot_ones_go_by_last_use_when_no_cold_one_is_left),
        cmocka_unit_test(slots_tell_whether_they_hold_a_hot_expert),
        cmocka_unit_test(the_counts_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
