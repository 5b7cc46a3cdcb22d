// What was read ahead for nothing is counted with the sizes of its own layers, and for whoever guessed it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/ahead.h"

enum { SPARES = 4 };

struct world {
    struct gn_stream stream;
    struct gn_layer small, large;
    struct gn_load loads[SPARES];
    struct gn_spare spares[SPARES];
};

static void read_ahead(struct world *world, uint32_t i, const struct gn_layer *layer, enum gn_source source) {
    world->loads[i].layer = layer;
    world->loads[i].in_flight = 1; // so that no page is given back
    world->spares[i] = (struct gn_spare){.use = GN_SPARE_AHEAD, .source = source, .load = &world->loads[i]};
    world->stream.spares.ahead++;
}

static void open_world(struct world *world) {
    *world = (struct world){.small = {.index = 0, .expert_bytes = 100}, .large = {.index = 1, .expert_bytes = 700}};
    world->stream.spares.spare = world->spares;
    world->stream.spares.n = SPARES;
    read_ahead(world, 0, &world->small, GN_SOURCE_ROUTER);
    read_ahead(world, 1, &world->large, GN_SOURCE_PILOT);
    read_ahead(world, 2, &world->large, GN_SOURCE_PILOT);
    read_ahead(world, 3, &world->large, GN_SOURCES);
    world->stream.ahead.layer = &world->small; // the plan is another layer's by now, and another's guess
    world->stream.ahead.source = GN_SOURCE_ROUTER;
}

static void counts_each_layers_bytes(void **state) {
    (void)state;
    static struct world world;
    open_world(&world);
    gn_ahead_dismiss(&world.stream, NULL);
    assert_int_equal(world.stream.counts.prefetch_wasted, 4);
    assert_int_equal(world.stream.counts.prefetch_wasted_bytes, 100 + 3 * 700);
    assert_int_equal(world.stream.spares.ahead, 0);
}

static void counts_for_who_guessed(void **state) {
    (void)state;
    static struct world world;
    open_world(&world);
    gn_ahead_dismiss(&world.stream, &world.large);
    assert_int_equal(world.stream.counts.prefetch_wasted, 3);
    assert_int_equal(world.stream.counts.prefetch_wasted_bytes, 3 * 700);
    assert_int_equal(world.stream.counts.source[GN_SOURCE_ROUTER].wasted, 0);
    assert_int_equal(world.stream.counts.source[GN_SOURCE_PILOT].wasted, 2);
    assert_int_equal(world.stream.spares.ahead, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_each_layers_bytes),
        cmocka_unit_test(counts_for_who_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
