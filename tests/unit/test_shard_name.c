// Which names are those of shards, whatever else is in them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/shard_name.h"

#include <string.h>

static void reads_the_last_part_of_the_name(void **state) {
    (void)state;
    static const struct {
        const char *path, *prefix; // NULL: no shard
        uint32_t number, count;
    } names[] = {
        {"model-00003-of-00004.gguf", "model", 3, 4},
        {"/models/model-00001-of-00001.gguf", "/models/model", 1, 1},
        {"best-of-3-00001-of-00002.gguf", "best-of-3", 1, 2},
        {"/a/best-of-3.gguf-00002-of-00002.gguf", "/a/best-of-3.gguf", 2, 2},
        {"/1-00001-of-00009.gguf/m-00002-of-00003.gguf", "/1-00001-of-00009.gguf/m", 2, 3},
        {"m-00001-of-00002-00003-of-00004.gguf", "m-00001-of-00002", 3, 4},
        {"m-99999-of-99999.gguf", "m", 99999, 99999},
        {"", NULL, 0, 0},
        {"model.gguf", NULL, 0, 0},
        {"best-of-3.gguf", NULL, 0, 0},
        {"best-00001-of-00003.gguf.part", NULL, 0, 0},
        {"/m-00001-of-00002.gguf/model.gguf", NULL, 0, 0},
        {"-00001-of-00002.gguf", NULL, 0, 0}, // no name before it
        {"/models/-00001-of-00002.gguf", NULL, 0, 0},
        {"model-00001-of-00002", NULL, 0, 0},
        {"model-00000-of-00002.gguf", NULL, 0, 0},
        {"model-00003-of-00002.gguf", NULL, 0, 0},
        {"model-0001-of-0002.gguf", NULL, 0, 0},
        {"model-000001-of-00002.gguf", NULL, 0, 0},
        {"model-+0001-of-00002.gguf", NULL, 0, 0},
        {"model-    1-of-00002.gguf", NULL, 0, 0},
        {"model-00001-OF-00002.gguf", NULL, 0, 0},
        {"model_00001-of-00002.gguf", NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct gn_shard_name shard = {7, 7, 7};
        assert_int_equal(gn_shard_name_read(names[i].path, &shard), names[i].prefix != NULL);
        assert_int_equal(shard.prefix, names[i].prefix ? strlen(names[i].prefix) : 0);
        assert_memory_equal(names[i].path, names[i].prefix ? names[i].prefix : "", shard.prefix);
        assert_int_equal(shard.number, names[i].number);
        assert_int_equal(shard.count, names[i].count);
    }
}

static void writes_the_others(void **state) {
    (void)state;
    const char *path = "/a/best-of-3-00002-of-00012.gguf";
    struct gn_shard_name shard;
    char other[64], place[64];
    assert_true(gn_shard_name_read(path, &shard));
    assert_true(gn_shard_name_write(path, &shard, 11, other, sizeof other));
    assert_string_equal(other, "/a/best-of-3-00011-of-00012.gguf");
    memcpy(place, path, strlen(path) + 1);
    assert_true(gn_shard_name_write(place, &shard, 1, place, sizeof place));
    assert_string_equal(place, "/a/best-of-3-00001-of-00012.gguf");
}

static void writes_nothing_that_does_not_fit(void **state) {
    (void)state;
    const char *path = "model-00001-of-00002.gguf";
    struct gn_shard_name shard;
    char other[64] = "kept";
    assert_true(gn_shard_name_read(path, &shard));
    for (size_t size = 0; size <= strlen(path); size++) {
        assert_false(gn_shard_name_write(path, &shard, 2, other, size));
        assert_string_equal(other, "kept");
    }
    assert_false(gn_shard_name_write(path, &shard, 0, other, sizeof other));
    assert_false(gn_shard_name_write(path, &shard, 100000, other, sizeof other));
    assert_true(gn_shard_name_write(path, &shard, 2, other, strlen(path) + 1));
    assert_string_equal(other, "model-00002-of-00002.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_last_part_of_the_name),
        cmocka_unit_test(writes_the_others),
        cmocka_unit_test(writes_nothing_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
