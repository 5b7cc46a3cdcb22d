// Guesses: which are worth reading, by how often those of their rank that were missing came true.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "predict/guesses.h"

#define ALL_MISSING (~0u)

static void trust_can_be_withheld(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1, 0.25);
    assert_non_null(guesses);
    uint32_t noted[] = {7, 3}, used[] = {7}, worth[GN_GUESSES];
    for (int i = 0; i < 5; i++) {
        gn_guesses_note(guesses, 0, noted, 2, ALL_MISSING, 0.5);
        assert_true(i > 0 || gn_guesses_worth(guesses, 0, worth) == 0);
        gn_guesses_check(guesses, 0, used, 1, 1);
    }
    gn_guesses_note(guesses, 0, noted, 2, ALL_MISSING, 0.5);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), 1); // earned
    gn_guesses_close(guesses);
}

static void untried_ranks_are_trusted(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(2, 0.75);
    assert_non_null(guesses);
    uint32_t noted[] = {7, 3, 5}, worth[GN_GUESSES];
    gn_guesses_note(guesses, 1, noted, 3, ALL_MISSING, 0.5);
    assert_int_equal(gn_guesses_worth(guesses, 1, worth), 3);
    assert_memory_equal(worth, noted, sizeof noted);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), 0); // nothing noted
    gn_guesses_forget(guesses, 1);
    assert_int_equal(gn_guesses_worth(guesses, 1, worth), 0);
    gn_guesses_close(guesses);
}

static void what_is_there_is_not_read(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1, 0.75);
    assert_non_null(guesses);
    uint32_t noted[] = {7, 3, 5}, worth[GN_GUESSES];
    gn_guesses_note(guesses, 0, noted, 3, 1u << 1, 0.5);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), 1);
    assert_int_equal(worth[0], 3);
    gn_guesses_close(guesses);
}

// Rank 0 always comes true, rank 1 never: after many events only rank 0 is worth reading.
static void ranks_that_fail_are_left_out(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1, 0.75);
    assert_non_null(guesses);
    uint32_t noted[] = {9, 4}, used[] = {2, 9}, worth[GN_GUESSES];
    for (int i = 0; i < 100; i++) {
        gn_guesses_note(guesses, 0, noted, 2, ALL_MISSING, 0.35);
        struct gn_guesses_figures now = gn_guesses_check(guesses, 0, used, 2, 1);
        assert_int_equal(now.used, 2);
        assert_int_equal(now.foreseen, 1);
        assert_int_equal(now.came_true, 1);
    }
    gn_guesses_note(guesses, 0, noted, 2, ALL_MISSING, 0.35);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), 1);
    assert_int_equal(worth[0], 9);
    struct gn_guesses_figures figures = gn_guesses_figures(guesses, 0);
    assert_int_equal(figures.used, 200);
    assert_int_equal(figures.foreseen, 100);
    assert_true(figures.worth < 120); // rank 1 was read a few times, until that was known
    // And rank 1 is taken up again when it comes true.
    uint32_t both[] = {4, 9};
    for (int i = 0; i < 100; i++) {
        gn_guesses_note(guesses, 0, noted, 2, ALL_MISSING, 0.35);
        gn_guesses_check(guesses, 0, both, 2, 1);
    }
    gn_guesses_note(guesses, 0, noted, 2, ALL_MISSING, 0.35);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), 2);
    gn_guesses_close(guesses);
}

// Whether an expert that is in memory anyway was guessed right says nothing of those that would have to be read.
static void only_missing_experts_teach(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1, 0.75);
    assert_non_null(guesses);
    uint32_t held[] = {1, 2}, missing[] = {8, 9}, used[] = {1, 2}, worth[GN_GUESSES];
    for (int i = 0; i < 50; i++) {
        gn_guesses_note(guesses, 0, held, 2, 0, 0.35);
        gn_guesses_check(guesses, 0, used, 2, 0);
        gn_guesses_note(guesses, 0, missing, 2, ALL_MISSING, 0.35);
        gn_guesses_check(guesses, 0, used, 2, 0);
    }
    gn_guesses_note(guesses, 0, missing, 2, ALL_MISSING, 0.35);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), 0);
    gn_guesses_close(guesses);
}

static void value_tells_what_guesses_bring(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(2, 0.75);
    assert_non_null(guesses);
    uint32_t noted[] = {1, 2, 3}, used[] = {1, 2, 3};
    for (int i = 0; i < 200; i++) {
        gn_guesses_note(guesses, 0, noted, 3, ALL_MISSING, 0.5);
        gn_guesses_check(guesses, 0, used, 3, 3);
        gn_guesses_note(guesses, 1, noted, 3, ALL_MISSING, 0.0); // all are read, whatever comes of it
        gn_guesses_check(guesses, 1, used, 1, 1);
    }
    assert_true(gn_guesses_value(guesses, 0) > 2.9);
    assert_true(gn_guesses_value(guesses, 1) > 0.9 && gn_guesses_value(guesses, 1) < 1.1); // vain ones were free
    for (int i = 0; i < 200; i++) { // as dear as they are good, one in three right
        gn_guesses_note(guesses, 1, noted, 3, ALL_MISSING, 1.0 / 3);
        gn_guesses_check(guesses, 1, used, 1, 1);
    }
    // Ranks 1 and 2 are not read any more.
    assert_true(gn_guesses_value(guesses, 1) > 0.9 && gn_guesses_value(guesses, 1) < 1.1);
    gn_guesses_close(guesses);
}

static void misses_fade_where_there_are_none(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1, 0.75);
    assert_non_null(guesses);
    uint32_t used[] = {1};
    assert_true(gn_guesses_misses(guesses, 0) > 0.5); // unknown: worth a guess
    for (int i = 0; i < 200; i++) {
        gn_guesses_check(guesses, 0, used, 1, 0);
    }
    assert_true(gn_guesses_misses(guesses, 0) < 0.05);
    for (int i = 0; i < 200; i++) {
        gn_guesses_check(guesses, 0, used, 1, 1);
    }
    assert_true(gn_guesses_misses(guesses, 0) > 0.9);
    gn_guesses_close(guesses);
}

static void too_many_guesses_are_cut(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1, 0.75);
    assert_non_null(guesses);
    uint32_t noted[GN_GUESSES + 5], worth[GN_GUESSES];
    for (uint32_t i = 0; i < GN_GUESSES + 5; i++) {
        noted[i] = i;
    }
    gn_guesses_note(guesses, 0, noted, GN_GUESSES + 5, ALL_MISSING, 0);
    assert_int_equal(gn_guesses_worth(guesses, 0, worth), GN_GUESSES);
    gn_guesses_close(guesses);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(untried_ranks_are_trusted),        cmocka_unit_test(trust_can_be_withheld),
        cmocka_unit_test(what_is_there_is_not_read),        cmocka_unit_test(ranks_that_fail_are_left_out),
        cmocka_unit_test(only_missing_experts_teach),       cmocka_unit_test(value_tells_what_guesses_bring),
        cmocka_unit_test(misses_fade_where_there_are_none), cmocka_unit_test(too_many_guesses_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
