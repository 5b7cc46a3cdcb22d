// A tier above the RAM's slots: what comes up, when, and that it is in one tier only.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/tier.h"

#define LAYERS 4
#define EXPERTS 16

struct world {
    struct gn_tier tier;
    struct gn_cache *ram;
};

static void open_world(struct world *world, uint32_t tier_slots, uint32_t inserts, uint32_t window) {
    struct gn_cache_layer layers[LAYERS], above[LAYERS];
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = EXPERTS, .slot_bytes = 4096};
        above[l] = (struct gn_cache_layer){.n_experts = l == 2 ? 0 : EXPERTS, .slot_bytes = 1000, .kind = l == 3};
    }
    assert_int_equal(gn_cache_open(&(struct gn_cache_options){.layers = layers,
                                                              .n_layers = LAYERS,
                                                              .budget = 4096 * LAYERS * 8,
                                                              .policy = &gn_policy_lru},
                                   &world->ram),
                     0);
    assert_int_equal(gn_tier_open(&(struct gn_tier_options){.layers = above,
                                                            .n_layers = LAYERS,
                                                            .budget = (uint64_t)1000 * tier_slots,
                                                            .policy = &gn_policy_slru,
                                                            .admission = {.window = window},
                                                            .inserts = inserts},
                                  &world->tier),
                     0);
}

static void close_world(struct world *world) {
    gn_tier_close(&world->tier);
    gn_cache_close(world->ram);
}

// One event as the engine has it. Returns how many experts came up; hits counts those that were there.
static uint32_t use(struct world *world, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t *hits) {
    struct gn_promotion promotions[EXPERTS];
    uint32_t below[EXPERTS], n_below = 0;
    gn_tier_begin(&world->tier);
    for (uint32_t i = 0; i < n; i++) {
        if (gn_tier_lookup(&world->tier, layer, experts[i]) == GN_NONE) {
            below[n_below++] = experts[i];
        }
    }
    *hits = n - n_below;
    gn_cache_begin(world->ram);
    for (uint32_t i = 0; i < n_below; i++) {
        uint32_t entry = gn_cache_entry(world->ram, layer, below[i]);
        if (gn_cache_lookup(world->ram, entry) == GN_NONE) {
            gn_cache_insert(world->ram, entry, true);
        }
    }
    n = gn_tier_promote(&world->tier, world->ram, layer, below, n_below, promotions);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(gn_tier_peek(&world->tier, layer, promotions[i].expert), promotions[i].slot);
        assert_int_equal(gn_cache_peek(world->ram, gn_cache_entry(world->ram, layer, promotions[i].expert)), GN_NONE);
    }
    gn_tier_end(&world->tier);
    gn_cache_end(world->ram);
    return n;
}

static void serves_only_its_layers(void **state) {
    (void)state;
    struct world world;
    open_world(&world, 12, 3, 0);
    assert_true(gn_tier_serves(&world.tier, 0) && gn_tier_serves(&world.tier, 3));
    assert_false(gn_tier_serves(&world.tier, 2));
    assert_int_equal(world.tier.n_served, 3);
    assert_int_equal(gn_cache_layout(world.tier.cache)->n_classes, 2); // layer 3 is of another kind
    assert_int_equal(gn_cache_slots(world.tier.cache), 12);
    close_world(&world);
}

static void comes_up_as_many_as_a_token_may(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, experts[] = {1, 5, 7, 9};
    open_world(&world, 30, 3, 0); // 3 for each token of 3 layers: 1 for each event
    assert_int_equal(use(&world, 0, experts, 4, &hits), 1);
    assert_int_equal(hits, 0);
    assert_int_equal(use(&world, 0, experts, 4, &hits), 1);
    assert_int_equal(hits, 1);
    world.tier.inserts = 0;
    assert_int_equal(use(&world, 1, experts, 4, &hits), 0);
    world.tier.inserts = 30;
    assert_int_equal(use(&world, 0, experts, 4, &hits), 2); // the rest of them
    assert_int_equal(hits, 2);
    assert_int_equal(use(&world, 0, experts, 4, &hits), 0);
    assert_int_equal(hits, 4);
    close_world(&world);
}

static void the_most_used_come_first(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, often[] = {9}, both[] = {2, 9};
    open_world(&world, 30, 0, 0);
    use(&world, 0, often, 1, &hits);
    use(&world, 0, often, 1, &hits);
    world.tier.inserts = 3;
    assert_int_equal(use(&world, 0, both, 2, &hits), 1);
    assert_int_not_equal(gn_tier_peek(&world.tier, 0, 9), GN_NONE);
    assert_int_equal(gn_tier_peek(&world.tier, 0, 2), GN_NONE);
    close_world(&world);
}

static void pushes_out_nothing_that_the_event_uses(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, first[] = {0, 1}, second[] = {0, 1, 2, 3};
    open_world(&world, 6, 30, 0); // 4 slots for layers 0 and 1
    uint32_t slots = gn_cache_layout(world.tier.cache)->classes[0].n_slots;
    assert_int_equal(slots, 4);
    assert_int_equal(use(&world, 0, first, 2, &hits), 2);
    assert_int_equal(use(&world, 1, first, 2, &hits), 2);
    world.tier.margin = -1;
    assert_int_equal(use(&world, 0, second, 4, &hits), 2); // in place of layer 1's
    assert_int_equal(hits, 2);
    assert_int_equal(use(&world, 0, second, 4, &hits), 0);
    assert_int_equal(hits, 4);
    close_world(&world);
}

static void what_was_used_once_pushes_nothing_out(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, first[] = {0, 1, 2, 3}, second[] = {8};
    open_world(&world, 6, 30, 8);
    world.tier.margin = -1;
    assert_int_equal(use(&world, 0, first, 4, &hits), 4); // free slots are open to all
    assert_int_equal(use(&world, 0, second, 1, &hits), 0);
    assert_int_equal(use(&world, 0, second, 1, &hits), 1);
    close_world(&world);
}

static void pushes_out_what_is_used_less_by_the_margin(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, first[] = {0, 1, 2, 3}, second[] = {8};
    open_world(&world, 6, 30, 0);
    assert_int_equal(use(&world, 0, first, 4, &hits), 4);
    assert_int_equal(use(&world, 0, second, 1, &hits), 0); // 1 to 0.98
    assert_int_equal(use(&world, 0, second, 1, &hits), 0); // 1.98 to 0.96
    assert_int_equal(use(&world, 0, second, 1, &hits), 0); // 2.94 to 0.94
    assert_int_equal(use(&world, 0, second, 1, &hits), 1); // 3.87 to 0.92
    assert_int_equal(use(&world, 0, first, 4, &hits), 0);
    assert_int_equal(hits, 3);
    close_world(&world);
}

static void uses_fade(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, often[] = {0, 1, 2, 3}, later[] = {8}, other[] = {9};
    open_world(&world, 6, 30, 0);
    for (int i = 0; i < 20; i++) {
        use(&world, 0, often, 4, &hits);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(use(&world, 0, later, 1, &hits), 0);
    }
    for (int i = 0; i < 2 * GN_TIER_HALF_LIFE; i++) { // 16.5 uses become 4.1 and less
        use(&world, 3, other, 1, &hits);
        use(&world, 1, other, 1, &hits);
    }
    uint32_t came = 0;
    for (int i = 0; i < 6; i++) {
        came += use(&world, 0, later, 1, &hits);
    }
    assert_int_equal(came, 1);
    close_world(&world);
}

static void a_failed_copy_is_taken_back(void **state) {
    (void)state;
    struct world world;
    uint32_t hits, experts[] = {3};
    open_world(&world, 6, 30, 0);
    assert_int_equal(use(&world, 0, experts, 1, &hits), 1);
    gn_tier_drop(&world.tier, 0, 3);
    assert_int_equal(use(&world, 0, experts, 1, &hits), 1);
    assert_int_equal(hits, 0);
    close_world(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serves_only_its_layers),
        cmocka_unit_test(comes_up_as_many_as_a_token_may),
        cmocka_unit_test(the_most_used_come_first),
        cmocka_unit_test(pushes_out_nothing_that_the_event_uses),
        cmocka_unit_test(what_was_used_once_pushes_nothing_out),
        cmocka_unit_test(pushes_out_what_is_used_less_by_the_margin),
        cmocka_unit_test(uses_fade),
        cmocka_unit_test(a_failed_copy_is_taken_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
