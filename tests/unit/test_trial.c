// Trials: what makes steps faster is kept, what makes them slower is left, and finding out costs little. Times are made
// up here.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "predict/trial.h"

#include <math.h>

static uint32_t seed;

static double noise(double width) {
    seed = seed * 1664525u + 1013904223u;
    return 1 + width * ((double)(seed >> 8) / (1 << 24) - 0.5);
}

// Steps that take 1 without it and `with` with it, give or take. Returns the time of all of them.
static double run(struct gn_trial *trial, int steps, double with, double width) {
    double all = 0;
    for (int i = 0; i < steps; i++) {
        double time = (gn_trial_with(trial) ? with : 1) * noise(width);
        all += time;
        gn_trial_step(trial, time);
    }
    return all;
}

static void what_helps_is_kept(void **state) {
    (void)state;
    struct gn_trial trial;
    gn_trial_begin(&trial);
    assert_true(gn_trial_with(&trial)); // thought to pay until it is known
    run(&trial, 2000, 0.8, 0.2);
    assert_true(trial.pays);
    assert_true(fabs(gn_trial_gain(&trial) - 0.2) < 0.05);
    uint64_t with = trial.steps_with;
    run(&trial, 2000, 0.8, 0.2);
    assert_true(trial.steps_with - with > 1940);
}

// However much slower it makes steps, all steps together lose less than 2 %.
static void what_harms_is_left(void **state) {
    (void)state;
    static const double slower[] = {1.02, 1.05, 1.2, 1.5, 2};
    for (size_t s = 0; s < sizeof slower / sizeof *slower; s++) {
        struct gn_trial trial;
        gn_trial_begin(&trial);
        run(&trial, 2000, slower[s], 0.2);
        double time = run(&trial, 8000, slower[s], 0.2);
        assert_true(time < 8000 * 1.02);
        assert_true(slower[s] < 1.1 || !trial.pays);
    }
}

// Finding that out is cheap enough for short runs, too.
static void the_first_thousand_steps_lose_little(void **state) {
    (void)state;
    struct gn_trial trial;
    gn_trial_begin(&trial);
    assert_true(run(&trial, 1000, 1.2, 0.2) < 1000 * 1.02);
    gn_trial_begin(&trial);
    assert_true(run(&trial, 1000, 1.05, 0.05) < 1000 * 1.02);
    gn_trial_begin(&trial); // nor does what would have been gained go to waste
    assert_true(run(&trial, 1000, 0.8, 0.2) < 1000 * 0.82);
}

// In a run of a hundred steps most of what there is to gain is gained. Mean of many runs.
static void short_runs_gain(void **state) {
    (void)state;
    double time = 0;
    for (int i = 0; i < 100; i++) {
        struct gn_trial trial;
        gn_trial_begin(&trial);
        time += run(&trial, 100, 0.8, 0.4);
    }
    assert_true(time < 100 * 100 * 0.825);
}

// Speed that drifts, by itself, is no reason to think anything.
static void drift_is_not_blamed_on_it(void **state) {
    (void)state;
    struct gn_trial trial;
    gn_trial_begin(&trial);
    double slower = 1;
    for (int i = 0; i < 4000; i++) {
        slower *= 1.0005;
        double time = slower * (gn_trial_with(&trial) ? 0.9 : 1) * noise(0.1);
        gn_trial_step(&trial, time);
    }
    assert_true(trial.pays);
    assert_true(fabs(gn_trial_gain(&trial) - 0.1) < 0.05);
}

static void a_verdict_can_change(void **state) {
    (void)state;
    struct gn_trial trial;
    gn_trial_begin(&trial);
    run(&trial, 4000, 0.7, 0.1);
    assert_true(trial.pays);
    run(&trial, 20000, 1.5, 0.1);
    assert_false(trial.pays);
    run(&trial, 20000, 0.7, 0.1);
    assert_true(trial.pays);
}

// A step of a second here and there, by which side it may come, and steps whose time is not known.
static void outliers_do_not_count(void **state) {
    (void)state;
    struct gn_trial trial;
    gn_trial_begin(&trial);
    for (int i = 0; i < 3000; i++) {
        double time = (gn_trial_with(&trial) ? 0.9 : 1) * noise(0.1);
        gn_trial_step(&trial, i % 23 == 0 ? 50 : i % 101 == 0 ? 0 : time);
        if (i % 307 == 0) {
            gn_trial_disturb(&trial);
        }
    }
    assert_true(trial.pays);
    assert_true(gn_trial_gain(&trial) > 0.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_helps_is_kept),
        cmocka_unit_test(what_harms_is_left),
        cmocka_unit_test(the_first_thousand_steps_lose_little),
        cmocka_unit_test(short_runs_gain),
        cmocka_unit_test(drift_is_not_blamed_on_it),
        cmocka_unit_test(a_verdict_can_change),
        cmocka_unit_test(outliers_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
