// Guesses: which are worth reading, by how often their rank came true.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "predict/guesses.h"

static void untried_ranks_are_trusted(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(2);
    assert_non_null(guesses);
    uint32_t noted[] = {7, 3, 5}, worth[GN_GUESSES];
    gn_guesses_note(guesses, 1, noted, 3);
    assert_int_equal(gn_guesses_worth(guesses, 1, 0.5, worth), 3);
    assert_memory_equal(worth, noted, sizeof noted);
    assert_int_equal(gn_guesses_worth(guesses, 0, 0.5, worth), 0); // nothing noted
    gn_guesses_close(guesses);
}

// Rank 0 always comes true, rank 1 never: after many events only rank 0 is worth reading.
static void ranks_that_fail_are_left_out(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1);
    assert_non_null(guesses);
    uint32_t noted[] = {9, 4}, used[] = {2, 9}, worth[GN_GUESSES];
    for (int i = 0; i < 100; i++) {
        gn_guesses_note(guesses, 0, noted, 2);
        gn_guesses_check(guesses, 0, used, 2, 1);
    }
    gn_guesses_note(guesses, 0, noted, 2);
    assert_int_equal(gn_guesses_worth(guesses, 0, 0.35, worth), 1);
    assert_int_equal(worth[0], 9);
    struct gn_guesses_figures figures = gn_guesses_figures(guesses, 0);
    assert_int_equal(figures.used, 200);
    assert_int_equal(figures.foreseen, 100);
    // And rank 1 is taken up again when it comes true.
    uint32_t both[] = {4, 9};
    for (int i = 0; i < 100; i++) {
        gn_guesses_note(guesses, 0, noted, 2);
        gn_guesses_check(guesses, 0, both, 2, 1);
    }
    gn_guesses_note(guesses, 0, noted, 2);
    assert_int_equal(gn_guesses_worth(guesses, 0, 0.35, worth), 2);
    gn_guesses_close(guesses);
}

static void misses_fade_where_there_are_none(void **state) {
    (void)state;
    struct gn_guesses *guesses = gn_guesses_open(1);
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
    struct gn_guesses *guesses = gn_guesses_open(1);
    assert_non_null(guesses);
    uint32_t noted[GN_GUESSES + 5], worth[GN_GUESSES];
    for (uint32_t i = 0; i < GN_GUESSES + 5; i++) {
        noted[i] = i;
    }
    gn_guesses_note(guesses, 0, noted, GN_GUESSES + 5);
    assert_int_equal(gn_guesses_worth(guesses, 0, 0, worth), GN_GUESSES);
    gn_guesses_close(guesses);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(untried_ranks_are_trusted),
        cmocka_unit_test(ranks_that_fail_are_left_out),
        cmocka_unit_test(misses_fade_where_there_are_none),
        cmocka_unit_test(too_many_guesses_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
