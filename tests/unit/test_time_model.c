// The time model against cases computed by hand.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace/time_model.h"

#include <math.h>

// An expert of 1000 bytes takes 1 ms on the device, 4 ms on the CPU, 10 ms from disk, 2 ms over the link.
static const struct gn_time_model machine = {1e6, 250e3, 100e3, 500e3, 0.003};

static struct gn_replay_use event(bool first, uint32_t held, uint32_t hits, uint32_t misses, uint32_t inserts) {
    return (struct gn_replay_use){.decode = true,
                                  .first = first,
                                  .held = held,
                                  .hits = hits,
                                  .misses = misses,
                                  .inserts = inserts,
                                  .expert_bytes = 1000};
}

static void expect_ms(double seconds, double milliseconds) {
    if (fabs(seconds * 1000 - milliseconds) > 1e-9) {
        fail_msg("%.6f ms, not %.6f", seconds * 1000, milliseconds);
    }
}

// Time of one token of one event.
static double token(struct gn_replay_use use) {
    struct gn_time time = {.model = machine};
    gn_time_add(&time, &use);
    gn_time_end(&time);
    assert_int_equal(time.tokens, 1);
    return time.seconds;
}

static void the_slower_side_counts(void **state) {
    (void)state;
    expect_ms(token(event(true, 0, 0, 0, 0)), 3);       // the rest alone
    expect_ms(token(event(true, 6, 0, 0, 0)), 3 + 6);   // device
    expect_ms(token(event(true, 0, 2, 0, 0)), 3 + 8);   // CPU
    expect_ms(token(event(true, 6, 2, 0, 0)), 3 + 8);   // CPU 8, device 6
    expect_ms(token(event(true, 10, 2, 0, 0)), 3 + 10); // CPU 8, device 10
}

static void what_comes_from_disk_is_computed_as_it_comes(void **state) {
    (void)state;
    expect_ms(token(event(true, 0, 0, 1, 0)), 3 + 14);  // read 10, compute 4
    expect_ms(token(event(true, 0, 0, 2, 0)), 3 + 24);  // read 20, compute the last 4
    expect_ms(token(event(true, 0, 6, 1, 0)), 3 + 28);  // 7 to compute hide the read
    expect_ms(token(event(true, 30, 6, 1, 0)), 3 + 30); // and the device hides both
}

static void copies_count_when_the_link_is_the_limit(void **state) {
    (void)state;
    expect_ms(token(event(true, 6, 2, 0, 5)), 3 + 8); // 10 ms of copies beside 11
    expect_ms(token(event(true, 6, 2, 0, 9)), 18);
}

static void tokens_add_up(void **state) {
    (void)state;
    struct gn_time time = {.model = machine};
    struct gn_replay_use uses[] = {
        event(true, 2, 0, 1, 0),  // 14
        event(false, 0, 2, 0, 3), // 8: 3 + 22 = 25, link 6
        event(true, 0, 1, 0, 9),  // 4: 3 + 4 = 7, link 18
    };
    struct gn_replay_use prompt = event(false, 0, 0, 50, 0);
    prompt.decode = false;
    gn_time_add(&time, &prompt);
    for (size_t i = 0; i < 3; i++) {
        gn_time_add(&time, &uses[i]);
    }
    gn_time_end(&time);
    assert_int_equal(time.tokens, 2);
    expect_ms(time.seconds, 25 + 18);
    expect_ms(time.link, 11);
    expect_ms(time.disk, 10); // of the first event's 14, computing takes 4

    struct gn_time later = {.model = machine, .skip = 1};
    for (size_t i = 0; i < 3; i++) {
        gn_time_add(&later, &uses[i]);
    }
    gn_time_end(&later);
    assert_int_equal(later.tokens, 1);
    expect_ms(later.seconds, 18);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slower_side_counts),
        cmocka_unit_test(what_comes_from_disk_is_computed_as_it_comes),
        cmocka_unit_test(copies_count_when_the_link_is_the_limit),
        cmocka_unit_test(tokens_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
