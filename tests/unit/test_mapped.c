// Experts that stay in the page cache: a read brings in the pages of a mapping, the data is the file's, and what is
// dropped leaves the page cache.
#include "io/file.h"
#include "model/expert_map.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { EXPERTS = 8, SLICE = 100000, AT = 4128, BYTES = AT + EXPERTS * SLICE };

static char path[] = "/var/tmp/guanaco-test-mapped-XXXXXX";
static struct gn_expert_map map;
static struct gn_layer *layer;

static uint8_t pattern(size_t i) {
    return (uint8_t)(i * 2654435761u >> 11);
}

static int set_up(void **state) {
    (void)state;
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    uint8_t *bytes = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = pattern(i);
    }
    bool written = write(fd, bytes, BYTES) == BYTES && fsync(fd) == 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    free(bytes);
    struct gn_file *file;
    uint32_t slice;
    return !written || gn_file_open(path, true, 0, 0, &file) ||
           gn_expert_map_add(&map, "blk.0.ffn_up_exps.weight", EXPERTS, file, AT, SLICE, &layer, &slice);
}

static int tear_down(void **state) {
    (void)state;
    gn_expert_map_free(&map);
    return 0;
}

static int read_expert(struct gn_reader *reader, uint32_t expert) {
    struct gn_read read = gn_slice_read(&layer->slices[0], expert, NULL);
    gn_reader_submit(reader, &read, 1);
    assert_ptr_equal(gn_reader_reap(reader, true), &read);
    return read.result;
}

// How many of an expert's own whole pages are in memory, and how many there are.
static unsigned pages_in_memory(uint32_t expert, unsigned *of) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (AT + expert * SLICE + page - 1) / page * page, end = (AT + (expert + 1) * SLICE) / page * page;
    unsigned char in[SLICE / 4096 + 2];
    assert_int_equal(mincore((uint8_t *)layer->slices[0].mapped + begin, end - begin, in), 0);
    unsigned n = 0;
    *of = (unsigned)((end - begin) / page);
    for (unsigned i = 0; i < *of; i++) {
        n += in[i] & 1;
    }
    return n;
}

static void test_data_is_in_place(void **state) {
    (void)state;
    struct gn_reader *reader;
    gn_expert_map_finish(&map);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    assert_int_equal(gn_reader_open(&(struct gn_reader_options){.kind = GN_READER_MAPPED}, &reader), 0);
    assert_string_equal(gn_reader_name(reader), "mapped");
    for (uint32_t e = 0; e < EXPERTS; e++) {
        assert_int_equal(read_expert(reader, e), 0);
        const uint8_t *data = gn_slice_data(&layer->slices[0], e, NULL);
        for (size_t i = 0; i < SLICE; i++) {
            assert_int_equal(data[i], pattern(AT + e * SLICE + i));
        }
    }
    gn_reader_close(reader);
}

static void test_what_is_dropped_leaves(void **state) {
    (void)state;
    struct gn_reader *reader;
    unsigned of;
    gn_expert_map_finish(&map);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    assert_int_equal(gn_reader_open(&(struct gn_reader_options){.kind = GN_READER_MAPPED}, &reader), 0);
    assert_int_equal(read_expert(reader, 2), 0);
    unsigned in = pages_in_memory(2, &of);
    assert_int_equal(in, of);
    gn_expert_drop(layer, 2);
    unsigned left = pages_in_memory(2, &of);
    if (left == of) { // advice: not every file system follows it
        print_message("this file system keeps pages that are given back\n");
    }
    assert_int_equal(read_expert(reader, 2), 0); // and comes again
    in = pages_in_memory(2, &of);
    assert_int_equal(in, of);
    gn_reader_close(reader);
}

static void test_a_shorter_file_is_an_error(void **state) {
    (void)state;
    struct gn_reader *reader;
    gn_expert_map_finish(&map);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    assert_int_equal(gn_reader_open(&(struct gn_reader_options){.kind = GN_READER_MAPPED}, &reader), 0);
    assert_int_equal(truncate(path, AT + 2 * SLICE), 0);
    int result = read_expert(reader, 6);
    assert_true(result == -ENODATA || result == 0); // 0: a kernel without MADV_POPULATE_READ cannot tell
    assert_int_equal(read_expert(reader, 0), 0);
    gn_reader_close(reader);
}

static volatile uint8_t sink;

// Touches the first byte of an expert.
static void touch(uint32_t expert) {
    sink = *gn_slice_data(&layer->slices[0], expert, NULL);
}

static void test_what_is_gone_reads_as_zeros(void **state) {
    (void)state;
    gn_expert_map_finish(&map);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    touch(6);
    assert_int_equal(gn_file_unchanged(map.files[0]), 0);
    assert_int_equal(truncate(path, AT + 2 * SLICE), 0);
    touch(6);
    assert_int_equal(sink, 0);
    assert_int_equal(gn_file_unchanged(map.files[0]), -ESTALE);
    assert_int_equal(gn_file_accept(map.files[0]), 0);
    assert_int_equal(gn_file_unchanged(map.files[0]), -EIO); // as when the drive fails
}

static sigjmp_buf back;

static void jump_back(int number) {
    siglongjmp(back, number);
}

// What happens elsewhere is the program's own affair.
static void test_other_bus_errors_are_passed_on(void **state) {
    (void)state;
    struct sigaction theirs = {.sa_handler = jump_back}, now;
    assert_int_equal(sigaction(SIGBUS, &theirs, NULL), 0);
    gn_expert_map_finish(&map);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    FILE *file = tmpfile();
    assert_int_equal(ftruncate(fileno(file), 4096), 0);
    const uint8_t *other = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(file), 0);
    assert_int_equal(ftruncate(fileno(file), 0), 0);
    volatile bool passed = false;
    if (sigsetjmp(back, 1) == 0) {
        sink = *other;
    } else {
        passed = true;
    }
    assert_true(passed);
    munmap((void *)(uintptr_t)other, 4096);
    fclose(file);
    gn_expert_map_free(&map);
    assert_int_equal(sigaction(SIGBUS, NULL, &now), 0);
    assert_ptr_equal(now.sa_handler, jump_back);
    signal(SIGBUS, SIG_DFL);
}

static void test_a_failed_read_writes_nothing(void **state) {
    (void)state;
    struct gn_reader *reader;
    gn_expert_map_finish(&map);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    struct gn_reader_options options = {.kind = GN_READER_MAPPED, .fail_at = 1, .fail_result = -EIO};
    assert_int_equal(gn_reader_open(&options, &reader), 0);
    assert_int_equal(read_expert(reader, 3), -EIO); // the mapping is read-only
    gn_reader_close(reader);
}

// Memory may be there again when a model is started anew.
static void test_a_failed_mapping_is_tried_again(void **state) {
    (void)state;
    struct rlimit before, none;
    gn_expert_map_finish(&map);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    none = before;
    none.rlim_cur = 0; // no more addresses than are taken
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
    int failed = gn_expert_map_in_place(&map);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(failed, -ENOMEM);
    assert_null(layer->slices[0].mapped);
    assert_int_equal(gn_expert_map_in_place(&map), 0);
    assert_non_null(layer->slices[0].mapped);
}

static void test_other_maps_are_left_alone(void **state) {
    (void)state;
    gn_expert_map_finish(&map);
    gn_expert_drop(layer, 1); // nothing is mapped
    uint8_t slot[GN_BLOCK];
    assert_ptr_equal(gn_slice_data(&layer->slices[0], 0, slot), slot + AT % GN_BLOCK);
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) {
        perror(path);
        return 1;
    }
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_data_is_in_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_dropped_leaves, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_shorter_file_is_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_gone_reads_as_zeros, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_bus_errors_are_passed_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_failed_read_writes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_failed_mapping_is_tried_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_maps_are_left_alone, set_up, tear_down),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
