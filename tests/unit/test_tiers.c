// What --tiers takes, and what it says of the rest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/tiers.h"

#include <errno.h>
#include <string.h>

static void accept(const char *text, struct gn_tier_list *list) {
    char why[256] = "";
    if (gn_tiers_parse(text, list, why, sizeof why)) {
        fail_msg("%s: %s", text, why);
    }
}

static void refuse(const char *text, int code, const char *part) {
    struct gn_tier_list list;
    char why[256] = "";
    assert_int_equal(gn_tiers_parse(text, &list, why, sizeof why), code);
    assert_null(strchr(why, '\n'));
    if (!strstr(why, part)) {
        fail_msg("'%s': '%s' does not say '%s'", text, why, part);
    }
}

static void reads_what_the_help_shows(void **state) {
    (void)state;
    struct gn_tier_list list;
    accept("Vulkan0:slru:2GiB,RAM:auto:8GiB", &list);
    assert_int_equal(list.n, 2);
    assert_string_equal(list.tier[0].name, "Vulkan0");
    assert_string_equal(list.tier[0].policy, "slru");
    assert_int_equal(list.tier[0].size, GN_TIER_BYTES);
    assert_int_equal(list.tier[0].bytes, (uint64_t)2 << 30);
    assert_string_equal(list.tier[0].size_text, "2GiB");
    assert_string_equal(list.tier[1].name, "RAM");
    assert_string_equal(list.tier[1].policy, "");
    assert_int_equal(list.tier[1].bytes, (uint64_t)8 << 30);
}

static void reads_every_kind_of_size(void **state) {
    (void)state;
    struct gn_tier_list list;
    accept("A:AUTO:12.5%,B:LFU:0,C:auto:Auto,ram:auto:100%", &list);
    assert_int_equal(list.n, 4);
    assert_int_equal(list.tier[0].size, GN_TIER_SHARE);
    assert_true(list.tier[0].share == 0.125);
    assert_string_equal(list.tier[0].policy, "");
    assert_int_equal(list.tier[1].size, GN_TIER_BYTES);
    assert_int_equal(list.tier[1].bytes, 0);
    assert_int_equal(list.tier[2].size, GN_TIER_AUTO);
    assert_string_equal(list.tier[3].name, "RAM");
    assert_true(list.tier[3].share == 1);
}

static void names_may_have_colons(void **state) {
    (void)state;
    struct gn_tier_list list;
    accept("RPC0[192.168.1.2:50052]:auto:25%,RAM:./mine.so:512", &list);
    assert_string_equal(list.tier[0].name, "RPC0[192.168.1.2:50052]");
    assert_string_equal(list.tier[1].policy, "./mine.so");
    assert_int_equal(list.tier[1].bytes, (uint64_t)512 << 20);
}

static void refuses_what_is_no_list(void **state) {
    (void)state;
    refuse("", -EINVAL, "NAME:POLICY:SIZE");
    refuse("RAM", -EINVAL, "NAME:POLICY:SIZE, such as RAM:auto:8GiB, not 'RAM'");
    refuse("RAM:8GiB", -EINVAL, "NAME:POLICY:SIZE");
    refuse(":", -EINVAL, "NAME:POLICY:SIZE");
    refuse("RAM:auto:8GiB,", -EINVAL, "NAME:POLICY:SIZE");
    refuse(",RAM:auto:8GiB", -EINVAL, "NAME:POLICY:SIZE");
    refuse(":auto:8GiB", -EINVAL, "needs a name");
    refuse("a-name-that-is-longer-than-it-may:auto:8GiB,RAM:auto:1GiB", -EINVAL, "needs a name");
    refuse("RAM::8GiB", -EINVAL, "policy is auto, or one that --policy takes, not ''");
    refuse("G:best:1GiB,RAM:auto:8GiB", -EINVAL, "not 'best'");
}

static void refuses_sizes_that_are_none(void **state) {
    (void)state;
    refuse("RAM:auto:", -EINVAL, "size is one such as 2GiB");
    refuse("RAM:auto:-1GiB", -EINVAL, "not '-1GiB'");
    refuse("RAM:auto:%", -EINVAL, "not '%'");
    refuse("RAM:auto:101%", -ERANGE, "not '101%'");
    refuse("RAM:auto:-1%", -ERANGE, "not '-1%'");
    refuse("RAM:auto:9999999999TiB", -ERANGE, "not '9999999999TiB'");
    refuse("RAM:auto:1111111111111111111111111", -EINVAL, "size is one such as");
}

static void refuses_tiers_in_disorder(void **state) {
    (void)state;
    refuse("RAM:auto:8GiB,G:auto:1GiB", -EINVAL, "'RAM' is not in its place");
    refuse("G:auto:1GiB", -EINVAL, "the last tier, and no other, is RAM; 'G'");
    refuse("G:auto:1GiB,g:auto:2GiB,RAM:auto:8GiB", -EINVAL, "'g' comes twice");
    refuse("A:auto:1,B:auto:1,C:auto:1,D:auto:1,E:auto:1,F:auto:1,G:auto:1,H:auto:1,RAM:auto:1", -ERANGE, "8 tiers");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_the_help_shows),   cmocka_unit_test(reads_every_kind_of_size),
        cmocka_unit_test(names_may_have_colons),       cmocka_unit_test(refuses_what_is_no_list),
        cmocka_unit_test(refuses_sizes_that_are_none), cmocka_unit_test(refuses_tiers_in_disorder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
