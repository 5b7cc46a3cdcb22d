// How layers share the slots: what each gets, and that the cache keeps to it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096 };

// Ten slots for three layers of 8, 8 and 4 experts: 4, 4 and 2. Eleven: the one left goes to the first of those that
// have least for their demand.
static void equal_shares_follow_the_number_of_experts(void **state) {
    (void)state;
    const struct gn_shares_layer layers[] = {{8, 0}, {8, 0}, {4, 0}};
    const uint32_t slots[][4] = {{10, 4, 4, 2}, {11, 5, 4, 2}, {0, 0, 0, 0}, {20, 8, 8, 4}, {25, 8, 8, 4}};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        struct gn_shares *shares = gn_shares_open(GN_SHARES_EQUAL, layers, 3, slots[i], 1);
        assert_non_null(shares);
        for (uint32_t l = 0; l < 3; l++) {
            assert_int_equal(gn_shares_of(shares, l), slots[i][l + 1]);
        }
        gn_shares_close(shares);
    }
}

static void sweep(struct gn_shares *shares, const uint32_t *distinct, int sweeps) {
    for (int s = 0; s < sweeps; s++) {
        for (uint32_t l = 0; l < 3; l++) {
            gn_shares_event(shares);
            gn_shares_use(shares, l, l * 8 + (uint32_t)s % distinct[l]);
        }
    }
}

// Three layers of 8, twelve slots: 4 each at first. In 32 sweeps they use 8, 2 and 2 different experts: the first gets
// 8 of 12, the others 2. Then 2, 2 and 8: demands are the means 5, 2 and 5, so 5, 2 and 5. Equal shares never change.
static void shares_follow_demand(void **state) {
    (void)state;
    const struct gn_shares_layer layers[] = {{8, 0}, {8, 0}, {8, 0}};
    const uint32_t slots = 12, first[] = {8, 2, 2}, then[] = {2, 2, 8};
    const uint32_t expected[2][3][3] = {{{4, 4, 4}, {4, 4, 4}, {4, 4, 4}}, {{4, 4, 4}, {8, 2, 2}, {5, 2, 5}}};
    for (int demand = 0; demand < 2; demand++) {
        struct gn_shares *shares = gn_shares_open(demand ? GN_SHARES_DEMAND : GN_SHARES_EQUAL, layers, 3, &slots, 1);
        for (int phase = 0; phase < 3; phase++) {
            for (uint32_t l = 0; l < 3; l++) {
                assert_int_equal(gn_shares_of(shares, l), expected[demand][phase][l]);
            }
            sweep(shares, phase == 0 ? first : then, GN_SHARES_SWEEPS);
            gn_shares_event(shares); // the next sweep begins
            gn_shares_use(shares, 0, 0);
        }
        gn_shares_close(shares);
    }
}

// Size classes cannot lend one another slots.
static void each_class_is_shared_by_itself(void **state) {
    (void)state;
    const struct gn_shares_layer layers[] = {{8, 0}, {8, 1}, {8, 0}};
    const uint32_t slots[] = {6, 5};
    struct gn_shares *shares = gn_shares_open(GN_SHARES_DEMAND, layers, 3, slots, 2);
    const uint32_t distinct[] = {4, 8, 2};
    sweep(shares, distinct, GN_SHARES_SWEEPS + 1);
    assert_int_equal(gn_shares_of(shares, 0), 4);
    assert_int_equal(gn_shares_of(shares, 1), 5);
    assert_int_equal(gn_shares_of(shares, 2), 2);
    gn_shares_close(shares);
}

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

// Layer 0 uses four experts, layers 1 and 2 all sixteen. No layer ever gets more than its share, the slots are all in
// use but those of layer 0 with equal shares, which the others may not have. By demand, 4 to 16 to 16 of 24, they are
// 3, 11 and 10.
static void the_cache_keeps_to_the_shares(void **state) {
    (void)state;
    for (int p = 0; gn_policies[p]; p++) {
        for (int kind = GN_SHARES_EQUAL; kind < GN_SHARES_KINDS; kind++) {
            struct gn_cache_layer layers[] = {{.n_experts = 16, .slot_bytes = BLOCK},
                                              {.n_experts = 16, .slot_bytes = BLOCK},
                                              {.n_experts = 16, .slot_bytes = BLOCK}};
            struct gn_cache_options options = {.layers = layers,
                                               .n_layers = 3,
                                               .budget = 24 * BLOCK,
                                               .policy = gn_policies[p],
                                               .pins = {.most = 3, .warm_up = 50},
                                               .shares = (enum gn_shares_kind)kind};
            struct gn_cache *cache = NULL;
            assert_int_equal(gn_cache_open(&options, &cache), 0);
            uint64_t seed = 9;
            for (uint32_t event = 0; event < 900; event++) {
                uint32_t layer = event % 3, missed[2], n = 0;
                gn_cache_begin(cache);
                for (uint32_t k = 0; k < 2; k++) {
                    uint32_t expert = random_below(&seed, layer == 0 ? 2 : 8) + k * (layer == 0 ? 2 : 8);
                    uint32_t entry = gn_cache_entry(cache, layer, expert);
                    if (gn_cache_lookup(cache, entry) == GN_NONE) {
                        missed[n++] = entry;
                    }
                }
                for (uint32_t i = 0; i < n; i++) {
                    assert_int_not_equal(gn_cache_insert(cache, missed[i], true), GN_NONE);
                }
                gn_cache_end(cache);
            }
            uint32_t sum = 0;
            for (uint32_t l = 0; l < 3; l++) {
                uint32_t resident = gn_cache_layer_totals(cache, l).resident;
                assert_true(resident <= gn_cache_share(cache, l));
                sum += gn_cache_share(cache, l);
                assert_int_equal(resident, l == 0 && kind == GN_SHARES_EQUAL ? 4 : gn_cache_share(cache, l));
            }
            assert_int_equal(sum, 24);
            assert_int_equal(gn_cache_share(cache, 0), kind == GN_SHARES_EQUAL ? 8 : 3);
            gn_cache_close(cache);
        }
    }
}

// A reserved slot counts: a prefill may not overrun a share, nor may what is read ahead.
static void what_is_reserved_counts(void **state) {
    (void)state;
    struct gn_cache_layer layers[] = {{.n_experts = 4, .slot_bytes = BLOCK}, {.n_experts = 4, .slot_bytes = BLOCK}};
    struct gn_cache_options options = {
        .layers = layers, .n_layers = 2, .budget = 4 * BLOCK, .policy = &gn_policy_lru, .shares = GN_SHARES_EQUAL};
    struct gn_cache *cache = NULL;
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    uint32_t slot = gn_cache_reserve(cache, 0);
    assert_int_not_equal(slot, GN_NONE);
    gn_cache_begin(cache);
    assert_int_equal(gn_cache_lookup(cache, 1), GN_NONE);
    assert_int_equal(gn_cache_lookup(cache, 2), GN_NONE);
    assert_int_not_equal(gn_cache_insert(cache, 1, false), GN_NONE);
    assert_int_equal(gn_cache_insert(cache, 2, false), GN_NONE); // the share is two
    gn_cache_end(cache);
    gn_cache_unreserve(cache, 0, slot);
    gn_cache_begin(cache);
    assert_int_not_equal(gn_cache_insert(cache, 2, false), GN_NONE);
    gn_cache_end(cache);
    slot = gn_cache_reserve(cache, 4);
    gn_cache_fill(cache, 4, slot);
    assert_int_not_equal(gn_cache_peek(cache, 4), GN_NONE);
    assert_int_equal(gn_cache_totals(cache).resident, 3);
    assert_int_equal(gn_cache_reserve(cache, 4), GN_NONE); // is there
    slot = gn_cache_reserve(cache, 5);
    gn_cache_begin(cache);
    assert_int_equal(gn_cache_insert(cache, 5, false), GN_NONE); // no slot is free
    gn_cache_end(cache);
    gn_cache_fill(cache, 5, slot);
    assert_int_equal(gn_cache_totals(cache).resident, 4);
    gn_cache_close(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_shares_follow_the_number_of_experts),
        cmocka_unit_test(shares_follow_demand),
        cmocka_unit_test(each_class_is_shared_by_itself),
        cmocka_unit_test(the_cache_keeps_to_the_shares),
        cmocka_unit_test(what_is_reserved_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
