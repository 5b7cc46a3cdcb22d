// A trace through tiers: when they open, which layers they take, and that nothing is counted twice or not at all.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace/replay_tiers.h"

#include <string.h>

#define LAYERS 6
#define EXPERTS 16
#define TOP_K 2
#define BYTES 1000

struct world {
    struct gn_trace trace;
    struct gn_trace_layer layers[LAYERS];
    struct gn_trace_row rows[20000];
    struct gn_replay_events events;
    struct gn_replay_tiers_options options;
    struct gn_replay_tiers_result result;
    uint32_t seed;
};

static struct world world;

static void add(uint32_t step, bool decode, uint32_t layer, uint32_t expert) {
    world.rows[world.trace.n_rows++] =
        (struct gn_trace_row){.step = step, .decode = decode, .layer = layer, .expert = expert};
}

// Low numbers are used more often.
static uint32_t draw(void) {
    world.seed = world.seed * 1664525 + 1013904223;
    uint32_t a = world.seed >> 28, b = world.seed >> 24 & 15;
    return a < b ? a : b;
}

static void add_step(uint32_t step, bool decode) {
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t first = draw();
        add(step, decode, l, first);
        add(step, decode, l, (first + 1 + draw() % (EXPERTS - 1)) % EXPERTS);
    }
}

static void open_world(void) {
    memset(&world, 0, sizeof world);
    world.trace = (struct gn_trace){.n_layers = LAYERS, .layers = world.layers, .rows = world.rows, .top_k = TOP_K};
    for (uint32_t l = 0; l < LAYERS; l++) {
        world.layers[l] = (struct gn_trace_layer){.number = l, .n_experts = EXPERTS, .expert_bytes = BYTES};
    }
    world.options = (struct gn_replay_tiers_options){
        .n_devices = 1,
        .device =
            {{.budget = BYTES * 24, .policy = &GN_TIER_POLICY, .inserts = GN_TIER_INSERTS, .margin = GN_TIER_MARGIN}},
        .ram = {.budget = BYTES * 24, .policy = &gn_policy_lru},
        .top_k = TOP_K,
    };
}

static void replay(void) {
    assert_int_equal(gn_replay_open(&world.trace, &world.events), 0);
    assert_int_equal(gn_replay_tiers(&world.events, &world.options, &world.result), 0);
}

static void close_world(void) {
    gn_replay_close(&world.events);
}

static void every_use_is_counted_once(void **state) {
    (void)state;
    open_world();
    for (uint32_t step = 0; step < 200; step++) {
        add_step(step, step % 50 != 7);
    }
    replay();
    const struct gn_replay_tier *device = &world.result.device[0], *ram = &world.result.ram;
    assert_int_equal(world.result.uses, 196 * LAYERS * TOP_K);
    assert_int_equal(world.result.prefill_uses, 4 * LAYERS * TOP_K);
    assert_int_equal(device->hits + ram->hits + ram->misses, world.result.uses);
    assert_int_equal(device->prefill_hits + ram->prefill_hits + ram->prefill_misses, world.result.prefill_uses);
    assert_true(device->hits > world.result.uses / 4 && ram->hits > 0 && device->prefill_hits > 0);
    assert_int_equal(device->bytes, device->inserts * BYTES);
    assert_int_equal(ram->bytes, ram->misses * BYTES);
    assert_int_equal(device->layers, LAYERS);
    assert_int_equal(device->slots, 24);
    assert_int_equal(device->inserts - device->evictions, 24);
    close_world();
}

static void without_room_it_is_the_ram_alone(void **state) {
    (void)state;
    open_world();
    for (uint32_t step = 0; step < 100; step++) {
        add_step(step, step % 50 != 7);
    }
    world.options.device[0].budget = 0;
    replay();
    struct gn_replay_result alone;
    assert_int_equal(gn_replay_cache(&world.events, &world.options.ram, &alone), 0);
    assert_int_equal(world.result.ram.hits, alone.hits);
    assert_int_equal(world.result.ram.misses, alone.misses);
    assert_int_equal(world.result.ram.evictions, alone.totals.evictions);
    assert_int_equal(world.result.ram.prefill_misses, alone.prefill_misses);
    assert_int_equal(world.result.device[0].hits + world.result.device[0].misses, 0);
    close_world();
}

static void note_first(void *context, const struct gn_replay_use *use) {
    uint32_t *events = context;
    if (use->device == GN_NONE) {
        ++*events;
    }
}

static void opens_after_a_whole_pass(void **state) {
    (void)state;
    uint32_t before = 0;
    open_world();
    for (uint32_t step = 0; step < 10; step++) {
        add_step(step, step > 0);
    }
    world.options.each = note_first;
    world.options.context = &before;
    replay();
    assert_int_equal(before, LAYERS);
    close_world();
}

static void layers_go_to_devices_by_their_bytes(void **state) {
    (void)state;
    open_world();
    for (uint32_t step = 0; step < 50; step++) {
        add_step(step, true);
    }
    world.options.n_devices = 2;
    world.options.device[1] = world.options.device[0];
    world.options.device[0].budget = BYTES * 20;
    world.options.device[1].budget = BYTES * 40;
    replay();
    assert_int_equal(world.result.device[0].layers, 2);
    assert_int_equal(world.result.device[1].layers, 4);
    assert_int_equal(world.result.device[0].hits + world.result.device[0].misses, 49 * 2 * TOP_K);
    assert_int_equal(world.result.device[1].hits + world.result.device[1].misses, 49 * 4 * TOP_K);
    close_world();
}

static void layers_with_too_few_slots_are_left_out(void **state) {
    (void)state;
    open_world();
    for (uint32_t step = 0; step < 50; step++) {
        add_step(step, true);
    }
    world.options.device[0].budget = BYTES * (3 * 2 * TOP_K + 1); // 4 slots for each of 3 layers
    replay();
    assert_int_equal(world.result.device[0].layers, 3);
    assert_int_equal(world.result.device[0].hits + world.result.device[0].misses, 49 * 3 * TOP_K);
    close_world();
}

static void a_prefill_changes_nothing_above(void **state) {
    (void)state;
    open_world();
    for (uint32_t step = 0; step < 50; step++) {
        add_step(step, true);
    }
    replay();
    struct gn_replay_tier before = world.result.device[0];
    close_world();
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t e = 0; e < EXPERTS; e++) {
            add(50, false, l, e);
        }
    }
    replay();
    const struct gn_replay_tier *after = &world.result.device[0];
    assert_int_equal(after->inserts, before.inserts);
    assert_int_equal(after->hits, before.hits);
    assert_int_equal(after->prefill_hits, 24); // all slots
    assert_int_equal(after->prefill_hits + after->prefill_misses, LAYERS * EXPERTS);
    close_world();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_use_is_counted_once),
        cmocka_unit_test(without_room_it_is_the_ram_alone),
        cmocka_unit_test(opens_after_a_whole_pass),
        cmocka_unit_test(layers_go_to_devices_by_their_bytes),
        cmocka_unit_test(layers_with_too_few_slots_are_left_out),
        cmocka_unit_test(a_prefill_changes_nothing_above),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
