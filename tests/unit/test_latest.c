// The heap of what is wanted again latest, against a search of everything.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace/latest.h"

enum { MOST = 200, STEPS = 20000, EVENTS = 40 };

static uint32_t find(const struct gn_wanted *noted, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (noted[i].next > noted[best].next ||
            (noted[i].next == noted[best].next && noted[i].entry < noted[best].entry)) {
            best = i;
        }
    }
    return best;
}

static void the_latest_comes_first(void **state) {
    (void)state;
    struct gn_wanted room[MOST], plain[MOST], taken;
    struct gn_latest latest = {.noted = room};
    uint32_t n = 0, seed = 1;
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        if (n < MOST && (n == 0 || seed >> 31)) {
            uint32_t next = (seed >> 8) % EVENTS;
            struct gn_wanted wanted = {next == 0 ? UINT32_MAX : next, (uint32_t)step};
            gn_latest_add(&latest, wanted);
            plain[n++] = wanted;
        } else {
            uint32_t best = find(plain, n);
            assert_true(gn_latest_take(&latest, &taken));
            assert_int_equal(taken.next, plain[best].next);
            assert_int_equal(taken.entry, plain[best].entry);
            plain[best] = plain[--n];
        }
        assert_int_equal(latest.n, n);
    }
}

static void nothing_comes_of_nothing(void **state) {
    (void)state;
    struct gn_wanted taken;
    struct gn_latest latest = {0};
    assert_false(gn_latest_take(&latest, &taken));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_latest_comes_first),
        cmocka_unit_test(nothing_comes_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
