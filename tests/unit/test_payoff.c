// What a device brings, from made-up times.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "predict/payoff.h"

#include <math.h>

static void repeat(struct gn_payoff *payoff, int n, uint64_t cpu_ns, uint32_t cpu, uint64_t device_ns,
                   uint32_t device) {
    for (int i = 0; i < n; i++) {
        gn_payoff_event(payoff, cpu_ns, cpu, device_ns, device);
    }
}

static void nothing_is_known_at_first(void **state) {
    (void)state;
    struct gn_payoff payoff = {0};
    assert_false(gn_payoff_known(&payoff));
    assert_true(gn_payoff_margin(&payoff, 2) == 2);
    assert_true(gn_payoff_share(&payoff) == 1);
    repeat(&payoff, 1000, 400, 4, 400, 0); // the device had nothing to do
    assert_false(gn_payoff_known(&payoff));
}

// The CPU takes 100 a unit and is the slower one: each unit that it need not compute saves 100, and a copy costs 500.
static void what_the_cpu_need_not_do_is_saved(void **state) {
    (void)state;
    struct gn_payoff payoff = {0};
    repeat(&payoff, 128, 400, 4, 400, 4);
    for (int i = 0; i < 8; i++) {
        gn_payoff_copy(&payoff, 500);
    }
    assert_true(gn_payoff_known(&payoff));
    assert_true(fabsf(payoff.saved_ns - 100) < 1);
    assert_true(fabsf(gn_payoff_margin(&payoff, 2) - 5) < 0.1F);
}

// It waits for the device: 600 for what it could have done in 800 alone, then for what it could have done in 500.
static void waiting_for_the_device_is_not_saved(void **state) {
    (void)state;
    struct gn_payoff payoff = {0};
    gn_payoff_copy(&payoff, 500);
    gn_payoff_copy(&payoff, 500);
    gn_payoff_copy(&payoff, 500);
    gn_payoff_copy(&payoff, 500);
    repeat(&payoff, 300, 400, 4, 600, 4);
    assert_true(fabsf(payoff.saved_ns - 50) < 1);
    assert_true(fabsf(gn_payoff_margin(&payoff, 2) - 10) < 0.3F);
    repeat(&payoff, 3000, 400, 4, 600, 1);
    assert_true(payoff.saved_ns < 0);
    assert_true(isinf(gn_payoff_margin(&payoff, 2)));
}

static void all_on_the_device_is_compared_with_what_the_cpu_took_before(void **state) {
    (void)state;
    struct gn_payoff payoff = {0};
    repeat(&payoff, 1, 400, 4, 0, 0);
    repeat(&payoff, 64, 0, 0, 160, 8);
    assert_true(fabsf(payoff.saved_ns - 80) < 1);
}

static void both_end_at_the_same_time(void **state) {
    (void)state;
    struct gn_payoff payoff = {0};
    repeat(&payoff, 10, 3000, 10, 1000, 10); // 300 and 100 a row
    assert_true(fabsf(gn_payoff_share(&payoff) - 0.75F) < 0.01F);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(what_the_cpu_need_not_do_is_saved),
        cmocka_unit_test(waiting_for_the_device_is_not_saved),
        cmocka_unit_test(all_on_the_device_is_compared_with_what_the_cpu_took_before),
        cmocka_unit_test(both_end_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
