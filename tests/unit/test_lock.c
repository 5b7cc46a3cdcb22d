// Locked memory: noted, let go, and refused by a limit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../support/locking.h"
#include "config/lock.h"
#include "skip.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RANGE = 64 << 10, RANGES = 3 };

static uint8_t *map_ranges(void) {
    void *memory = mmap(NULL, (size_t)RANGE * RANGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

// Whether mlock() locks: not under a limit, nor under a sanitizer, whose mlock() does nothing.
static bool may_lock(void *memory) {
    uint64_t before = locked_bytes();
    bool may = mlock(memory, (size_t)RANGE * RANGES) == 0 && locked_bytes() - before == (uint64_t)RANGE * RANGES;
    munlock(memory, (size_t)RANGE * RANGES);
    return may;
}

static void what_is_locked_is_let_go(void **state) {
    (void)state;
    uint8_t *memory = map_ranges();
    assert_non_null(memory);
    if (!may_lock(memory)) {
        left_out("mlock", "this process locks nothing: a limit, or a sanitizer, whose mlock() does nothing");
        skip();
    }
    struct gn_locks locks = {0};
    uint64_t before = locked_bytes();
    for (int i = 0; i < RANGES; i++) {
        assert_int_equal(gn_locks_add(&locks, memory + (size_t)i * RANGE, RANGE, i == 1), 0);
    }
    assert_int_equal(locks.bytes, RANGES * RANGE);
    assert_int_equal(locked_bytes() - before, RANGES * RANGE);
    gn_locks_remove(&locks, memory + RANGE);
    gn_locks_remove(&locks, memory + RANGE); // not noted any more
    assert_int_equal(locked_bytes() - before, 2 * RANGE);
    assert_int_equal(locks.bytes, 2 * RANGE);
    gn_locks_drop(&locks);
    assert_int_equal(locked_bytes(), before);
    assert_int_equal(locks.bytes, 0);
    munmap(memory, (size_t)RANGE * RANGES);
}

// Returns 0 when all is as it should be, else the line that is not. In a child: the limit is for good.
static int under_a_limit(void) {
    uint8_t *memory = map_ranges();
    if (!memory || limit_locking(2 * RANGE)) {
        return __LINE__;
    }
    struct gn_locks locks = {0};
    if (gn_locks_add(&locks, memory, RANGE, false) || gn_locks_add(&locks, memory + RANGE, RANGE, true)) {
        return __LINE__;
    }
    int error = gn_locks_add(&locks, memory + 2 * RANGE, RANGE, true);
    if (error != -ENOMEM || locks.n != 2 || locked_bytes() != 2 * RANGE) {
        return __LINE__;
    }
    char why[400];
    gn_lock_explain("the slots", (uint64_t)RANGES * RANGE, error, why, sizeof why);
    if (!strstr(why, "RLIMIT_MEMLOCK is 128.00 KiB") || !strstr(why, "the slots (192.00 KiB") || strchr(why, '\n') ||
        !strstr(why, "limits.conf") || !strstr(why, "LimitMEMLOCK") || !strstr(why, "--ulimit memlock=-1")) {
        return __LINE__;
    }
    gn_locks_drop(&locks);
    return locked_bytes() == 0 ? 0 : __LINE__;
}

static void a_limit_refuses_and_is_named(void **state) {
    (void)state;
    uint8_t *memory = map_ranges();
    assert_non_null(memory);
    bool may = may_lock(memory);
    munmap(memory, (size_t)RANGE * RANGES);
    if (!may) {
        left_out("mlock", "this process locks nothing: a limit, or a sanitizer, whose mlock() does nothing");
        skip();
    }
    pid_t child = fork();
    if (child == 0) {
        int line = under_a_limit();
        _exit(line > 255 ? 255 : line);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_locked_is_let_go),
        cmocka_unit_test(a_limit_refuses_and_is_named),
    };
    return test_result(cmocka_run_group_tests(tests, NULL, NULL));
}
