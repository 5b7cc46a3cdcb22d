// What experts may take while the program grows: the arithmetic, and what is read of the process's memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/memory_map.h"
#include "exec/growth.h"
#include "skip.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)

static void experts_get_what_is_left(void **state) {
    (void)state;
    struct gn_growth growth = {.ram = 640 * MIB, .expected = 300 * MIB, .beside = 100 * MIB, .all = 400 * MIB};
    // What is expected counts before it is there; a sixty-fourth, at most 8 MiB, is kept for what comes at once.
    assert_int_equal(gn_growth_allowed(&growth, 400 * MIB, 0) / MIB, 340);
    growth.beside = 295 * MIB;
    assert_int_equal(gn_growth_allowed(&growth, 400 * MIB, 0) / MIB, 337);
    growth.beside = 500 * MIB;
    assert_int_equal(gn_growth_allowed(&growth, 400 * MIB, 0) / MIB, 132);
    growth.beside = 700 * MIB;
    assert_true(gn_growth_allowed(&growth, 400 * MIB, 0) < 0);
    // Never more than was cut.
    growth.expected = growth.beside = 10 * MIB;
    assert_int_equal(gn_growth_allowed(&growth, 400 * MIB, 0), 400 * MIB);
}

static void models_give_in_proportion(void **state) {
    (void)state;
    struct gn_growth growth = {.ram = 640 * MIB, .expected = 440 * MIB, .all = 400 * MIB};
    assert_int_equal(gn_growth_allowed(&growth, 100 * MIB, 0) / MIB, 50);
    assert_int_equal(gn_growth_allowed(&growth, 300 * MIB, 0) / MIB, 150);
    // What the other has not given back yet is not there.
    growth.touched = 300 * MIB;
    assert_int_equal(gn_growth_allowed(&growth, 100 * MIB, 20 * MIB) / MIB, -80);
    assert_int_equal(gn_growth_allowed(&growth, 300 * MIB, 280 * MIB) / MIB, 150);
}

static struct gn_memory_map read_text(const char *text, const struct gn_memory_range *left_out, size_t n) {
    FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    assert_non_null(file);
    struct gn_memory_map map = gn_memory_map_of(file, 8192 * 1024, left_out, n);
    fclose(file);
    return map;
}

static void reserved_memory_is_found(void **state) {
    (void)state;
    static const char text[] = "10000000-10100000 r--p 00000000 fd:00 7  /usr/bin/program\nRss: 100 kB\n"
                               "10100000-10200000 r-xp 00100000 fd:00 7  /usr/bin/program\nRss: 200 kB\n"
                               "10200000-10300000 rw-p 00200000 fd:00 7  /usr/bin/program\nRss: 4 kB\n"
                               "11000000-12000000 rw-p 00000000 00:00 0  [heap]\nSize: 16384 kB\nRss: 6144 kB\n"
                               "20000000-30000000 r--s 00000000 fd:00 8  /models/a model.gguf\nRss: 5000 kB\n"
                               "40000000-44000000 rw-p 00000000 00:00 0 \nRss: 1024 kB\n"
                               "50000000-50001000 ---p 00000000 00:00 0 \nRss: 0 kB\n"
                               "50001000-50801000 rw-p 00000000 00:00 0 \nRss: 8 kB\n"
                               "60000000-60001000 ---p 00000000 00:00 0 \nRss: 0 kB\n"
                               "60001000-60901000 rw-p 00000000 00:00 0 \nRss: 24 kB\n"
                               "70000000-74000000 ---p 00000000 00:00 0 \nRss: 0 kB\n"
                               "80000000-80800000 rw-s 00000000 00:01 9  /dev/zero (deleted)\nRss: 0 kB\n"
                               "90000000-90800000 rw-p 00000000 00:00 0  [stack]\nRss: 12 kB\n";
    struct gn_memory_map map = read_text(text, NULL, 0);
    assert_int_equal(map.programs / 1024, 304);
    // The heap, what is reserved, no stacks, and what has grown together with one.
    assert_int_equal(map.untouched / 1024, 10240 + 64 * 1024 - 1024 + 1024 - 24);
    const struct gn_memory_range ranges[] = {{0x40000000, 0x42000000, 512 * 1024}, {0x43000000, 0x43800000, 0}};
    map = read_text(text, ranges, 2);
    assert_int_equal(map.untouched / 1024, 10240 + 24 * 1024 - 512 + 1024 - 24);
}

static void this_process(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    left_out("plain-build", "the thread sanitizer takes memory for each byte that a program touches");
    skip();
#endif
    struct gn_memory_map before = gn_memory_map(NULL, 0);
    assert_true(before.programs > 4096);
    size_t bytes = (size_t)(64 * MIB);
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    memset(memory, 1, bytes / 4);
    int64_t grown = (int64_t)(gn_memory_map(NULL, 0).untouched - before.untouched);
    assert_true(llabs(grown - 48 * MIB) < 3 * MIB); // a huge page may have come
    struct gn_memory_range range = {(uintptr_t)memory, (uintptr_t)memory + bytes, bytes / 4};
    grown = (int64_t)(gn_memory_map(&range, 1).untouched - before.untouched);
    assert_true(llabs(grown) < 3 * MIB);
    munmap(memory, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_get_what_is_left),
        cmocka_unit_test(models_give_in_proportion),
        cmocka_unit_test(reserved_memory_is_found),
        cmocka_unit_test(this_process),
    };
    return test_result(cmocka_run_group_tests(tests, NULL, NULL));
}
