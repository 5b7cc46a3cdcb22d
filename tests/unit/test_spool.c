// Weights without a file: written, read back through the reader's own file, and what is said when there is no room.
#include "model/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "skip.h"

#define BYTES (((size_t)20 << 20) + 12345) // more than two steps, and no whole number of blocks

static char directory[] = "/var/tmp/guanaco-test-XXXXXX";
static char why[512];

static uint8_t pattern(size_t i) {
    return (uint8_t)(i * 2654435761u >> 13);
}

static void test_bytes_come_back(void **state) {
    (void)state;
    uint8_t *bytes = malloc(BYTES), *back = calloc(1, BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = pattern(i);
    }
    for (int direct = 0; direct < 2; direct++) {
        struct gn_spool *spool;
        assert_int_equal(gn_spool_open(directory, BYTES + 4096, direct, &spool, why, sizeof why), 0);
        struct gn_file *file = gn_spool_file(spool);
        assert_int_equal(gn_file_size(file), BYTES + 4096);
        assert_int_equal(gn_spool_write(spool, 32, bytes, BYTES), 0);
        assert_int_equal(gn_file_unchanged(file), 0); // our own writing is no change
        assert_int_equal(gn_file_read(file, 32, BYTES, back), 0);
        assert_memory_equal(bytes, back, BYTES);
        assert_int_equal(gn_spool_write(spool, 0, bytes, 64), 0); // over what is there
        assert_int_equal(gn_file_read(file, 0, 96, back), 0);
        assert_memory_equal(bytes, back, 64);
        assert_memory_equal(bytes + 32, back + 64, 32);
        gn_spool_close(spool);
        assert_int_equal(gn_file_read(file, 0, 64, back), 0); // whoever streams from it still has it
        gn_file_close(file);
    }
    free(bytes);
    free(back);
}

static void test_nothing_is_left(void **state) {
    (void)state;
    struct gn_spool *spool;
    assert_int_equal(gn_spool_open(directory, 4096, true, &spool, why, sizeof why), 0);
    assert_int_equal(rmdir(directory), 0); // it has no name there
    assert_int_equal(mkdir(directory, 0700), 0);
    gn_spool_close(spool);
}

static void test_room_is_taken_beforehand(void **state) {
    (void)state;
    struct gn_spool *spool = (void *)1;
    int failed = gn_spool_open(directory, (uint64_t)1 << 58, true, &spool, why, sizeof why);
    assert_true(failed == -ENOSPC || failed == -EFBIG);
    assert_null(spool);
    assert_non_null(strstr(why, directory));
    assert_non_null(strstr(why, "GUANACO_SPOOL_DIR"));
}

static uint64_t free_bytes(void) {
    struct statvfs fs;
    assert_int_equal(statvfs(directory, &fs), 0);
    return (uint64_t)fs.f_bfree * fs.f_frsize;
}

// The disk is not filled to find out that it is too small.
static void test_room_is_looked_at_first(void **state) {
    (void)state;
    struct gn_spool *spool = (void *)1;
    uint64_t bytes = free_bytes() + ((uint64_t)1 << 40); // more than others can free meanwhile
    assert_int_equal(gn_spool_open(directory, bytes, true, &spool, why, sizeof why), -ENOSPC);
    assert_null(spool);
    assert_non_null(strstr(why, "are free"));
    assert_non_null(strstr(why, directory));
    assert_non_null(strstr(why, "GUANACO_SPOOL_DIR"));
    assert_null(strchr(why, '\n'));
}

static void test_no_such_directory(void **state) {
    (void)state;
    struct gn_spool *spool;
    assert_int_equal(gn_spool_open("/none/such", 4096, true, &spool, why, sizeof why), -ENOENT);
    assert_non_null(strstr(why, "/none/such"));
}

static void test_memory_is_no_disk(void **state) {
    (void)state;
    struct gn_spool *spool;
    struct stat status;
    if (stat("/dev/shm", &status)) {
        left_out("tmpfs", "there is no /dev/shm");
        skip();
    }
    setenv("TMPDIR", "/dev/shm", 1);
    assert_int_equal(gn_spool_open(NULL, 4096, true, &spool, why, sizeof why), -ENOSPC);
    assert_non_null(strstr(why, "lies in memory"));
    // who says so means it
    assert_int_equal(gn_spool_open("/dev/shm", 4096, true, &spool, why, sizeof why), 0);
    gn_spool_close(spool);
    setenv("TMPDIR", directory, 1);
    assert_int_equal(gn_spool_open(NULL, 4096, true, &spool, why, sizeof why), 0);
    assert_string_equal(gn_spool_directory(spool), directory);
    gn_spool_close(spool);
}

// Calls of sync_file_range() until one fails with disk_error; 0: none does. In place of the library's.
static int calls_until_error, disk_error;

int sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned flags) {
    (void)fd;
    (void)offset;
    (void)bytes;
    (void)flags;
    if (calls_until_error > 0 && --calls_until_error == 0) {
        errno = disk_error;
        return -1;
    }
    return 0;
}

// What the kernel could not write is an error, whenever it shows; a kernel that cannot be asked is none.
static void test_disk_errors_come_up(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EDQUOT, ENOSYS};
    uint8_t *bytes = calloc(1, BYTES);
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        for (int call = 1; call <= 6; call++) { // two for each of three steps
            struct gn_spool *spool;
            assert_int_equal(gn_spool_open(directory, BYTES, false, &spool, why, sizeof why), 0);
            calls_until_error = call;
            disk_error = errors[e];
            assert_int_equal(gn_spool_write(spool, 0, bytes, BYTES), errors[e] == ENOSYS ? 0 : -errors[e]);
            assert_int_equal(calls_until_error, 0);
            gn_spool_close(spool);
        }
    }
    free(bytes);
}

int main(void) {
    if (!mkdtemp(directory)) {
        perror(directory);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_come_back),          cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_room_is_taken_beforehand), cmocka_unit_test(test_no_such_directory),
        cmocka_unit_test(test_memory_is_no_disk),        cmocka_unit_test(test_disk_errors_come_up),
        cmocka_unit_test(test_room_is_looked_at_first),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(directory);
    return test_result(failed);
}
