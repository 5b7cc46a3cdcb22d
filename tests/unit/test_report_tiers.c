// What the lines about the cache say of tiers: their layers, whichever these are, and their figures, each tier's once.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/report.h"

#include <string.h>

enum { MOST_LAYERS = 200, EXPERTS = 4, TIERS = 2 };

struct world {
    struct gn_stream stream;
    struct gn_layer storage[MOST_LAYERS], *layers[MOST_LAYERS];
    struct gn_tier tier[TIERS], *tiers[MOST_LAYERS];
    char text[512];
};

// serving: for each layer the tier that serves it, '0' or '1', or '-'. Blocks are numbered from `block` in steps.
static void open_world(struct world *world, const char *serving, uint32_t block, uint32_t step) {
    uint32_t n = (uint32_t)strlen(serving);
    *world = (struct world){0};
    for (uint32_t l = 0; l < n; l++) {
        world->storage[l].block = block + l * step;
        world->layers[l] = &world->storage[l];
        world->tiers[l] = serving[l] == '-' ? NULL : &world->tier[serving[l] - '0'];
    }
    world->stream.map.layers = world->layers;
    world->stream.map.n_layers = n;
    world->stream.tiers = world->tiers;
    for (uint32_t t = 0; t < TIERS; t++) {
        struct gn_cache_layer layers[MOST_LAYERS] = {0};
        bool serves = false;
        for (uint32_t l = 0; l < n; l++) {
            if (world->tiers[l] == &world->tier[t]) {
                layers[l] = (struct gn_cache_layer){.n_experts = EXPERTS, .slot_bytes = 100};
                serves = true;
            }
        }
        struct gn_tier_options options = {
            .layers = layers, .n_layers = n, .budget = 1000, .policy = &gn_policy_lru, .inserts = 1};
        if (serves) {
            assert_int_equal(gn_tier_open(&options, &world->tier[t]), 0);
        }
    }
}

static void close_world(struct world *world) {
    for (uint32_t t = 0; t < TIERS; t++) {
        gn_tier_close(&world->tier[t]);
    }
}

// A tier looks an expert up, and takes it if it has not got it.
static void use(struct world *world, uint32_t layer, uint32_t expert) {
    struct gn_tier *tier = world->tiers[layer];
    gn_tier_begin(tier);
    if (gn_tier_lookup(tier, layer, expert) == GN_NONE) {
        gn_cache_insert(tier->cache, gn_cache_entry(tier->cache, tier->index[layer], expert), false);
    }
    gn_tier_end(tier);
}

static const char *report(struct world *world) {
    size_t length = gn_report_tiers(&world->stream, world->text, sizeof world->text);
    assert_int_equal(length, strlen(world->text));
    return world->text;
}

static void check_layers(const char *serving, uint32_t block, uint32_t step, const char *expected) {
    static struct world world;
    open_world(&world, serving, block, step);
    const char *text = report(&world), *list = strstr(text, "(layers ");
    assert_non_null(list);
    list += strlen("(layers ");
    assert_int_equal(strcspn(list, ")"), strlen(expected));
    assert_memory_equal(list, expected, strlen(expected));
    close_world(&world);
}

static void names_the_layers(void **state) {
    (void)state;
    check_layers("0000", 0, 1, "0-3");
    check_layers("0000---0", 0, 1, "0-3,7");
    check_layers("-0-00-", 0, 1, "1,3-4");
    check_layers("000-", 3, 1, "3-5");
    check_layers("0011", 0, 1, "0-3");   // of both
    check_layers("00-0", 1, 2, "1-3,7"); // every other block has experts
}

static void shows_where_a_list_is_cut(void **state) {
    (void)state;
    static struct world world;
    char serving[MOST_LAYERS + 1];
    for (int l = 0; l < MOST_LAYERS; l++) {
        serving[l] = l % 2 ? '-' : '0';
    }
    serving[MOST_LAYERS] = '\0';
    open_world(&world, serving, 0, 1);
    const char *text = report(&world);
    assert_non_null(strstr(text, "(layers 0,2,4,6,"));
    assert_non_null(strstr(text, ",...) 0/0"));
    close_world(&world);
}

static void counts_each_tier_once(void **state) {
    (void)state;
    static struct world world;
    open_world(&world, "01-0-1", 0, 1); // the tiers' layers lie between one another
    use(&world, 0, 1);
    use(&world, 0, 1);
    use(&world, 3, 2);
    use(&world, 1, 3);
    use(&world, 5, 3);
    use(&world, 5, 3);
    assert_string_equal(report(&world), ", on the GPU (layers 0-1,3,5) 2/6 (33%), 4 held, 4 copied");
    close_world(&world);
}

// Whatever the room, what is returned is the length of what is there: the next part is put behind it.
static void never_says_more_than_there_is_room_for(void **state) {
    (void)state;
    static struct world world;
    open_world(&world, "00-0", 0, 1);
    for (size_t size = 1; size < 100; size++) {
        char text[128];
        memset(text, '#', sizeof text);
        size_t length = gn_report_tiers(&world.stream, text, size);
        assert_true(length < size);
        assert_int_equal(length, strlen(text));
        assert_int_equal(text[size], '#');
    }
    close_world(&world);
}

static void says_nothing_without_tiers(void **state) {
    (void)state;
    static struct world world;
    open_world(&world, "---", 0, 1);
    assert_string_equal(report(&world), "");
    world.stream.tiers = NULL;
    assert_string_equal(report(&world), "");
    close_world(&world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_layers),           cmocka_unit_test(shows_where_a_list_is_cut),
        cmocka_unit_test(counts_each_tier_once),      cmocka_unit_test(never_says_more_than_there_is_room_for),
        cmocka_unit_test(says_nothing_without_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
