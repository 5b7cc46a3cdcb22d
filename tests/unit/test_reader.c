// Readers: that the right bytes arrive whatever the engine, and that every way of failing is reported as such.
#include "io_files.h"
#include "skip.h"

#include "io/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void test_reads_beyond_depth(void **state) {
    const struct variant *variant = require(*state);
    enum { READS = 400, BATCH = 40 };
    struct gn_file *file = open_file(model, variant->direct);
    struct gn_reader *reader = open_with(variant, (struct gn_reader_options){.depth = 5});
    uint8_t *slots = make_slots(READS);
    struct gn_read reads[READS];
    bool seen[READS] = {false};
    size_t left = READS;
    for (size_t i = 0; i < READS; i++) {
        uint32_t bytes = 1 + (uint32_t)random_below(SLOT_BYTES - GN_BLOCK);
        reads[i] = make_read(file, random_below(FILE_BYTES - bytes), bytes, slots + i * SLOT_BYTES);
    }
    for (size_t i = 0; i < READS; i += BATCH) {
        gn_reader_submit(reader, reads + i, BATCH);
        struct gn_read *read = gn_reader_reap(reader, false);
        if (read) {
            seen[read - reads] = true;
            left--;
        }
    }
    assert_int_equal(gn_reader_in_flight(reader), left);
    for (struct gn_read *read; (read = gn_reader_reap(reader, true));) {
        assert_false(seen[read - reads]);
        seen[read - reads] = true;
        left--;
    }
    assert_int_equal(left, 0);
    uint64_t bytes = 0;
    for (size_t i = 0; i < READS; i++) {
        assert_true(arrived(&reads[i]));
        bytes += reads[i].done;
    }
    struct gn_reader_totals totals = gn_reader_totals(reader);
    assert_int_equal(totals.reads, READS);
    assert_int_equal(totals.bytes, bytes);
    assert_int_equal(totals.errors, 0);
    gn_reader_close(reader);
    gn_file_close(file);
    free(slots);
}

static void test_reap_without_waiting(void **state) {
    const struct variant *variant = require(*state);
    struct gn_file *file = open_file(model, variant->direct);
    struct gn_reader *reader = open_with(variant, (struct gn_reader_options){0});
    uint8_t *slot = make_slots(1);
    assert_null(gn_reader_reap(reader, false));
    struct gn_read read = make_read(file, 12345, 10000, slot);
    gn_reader_submit(reader, &read, 1);
    while (!gn_reader_reap(reader, false)) {
    }
    assert_true(arrived(&read));
    gn_reader_close(reader);
    gn_file_close(file);
    free(slot);
}

static void test_end_of_file(void **state) {
    const struct variant *variant = require(*state);
    struct gn_file *file = open_file(model, variant->direct);
    struct gn_reader *reader = open_with(variant, (struct gn_reader_options){0});
    uint8_t *slot = make_slots(1);
    struct gn_read read = make_read(file, FILE_BYTES - 9000, 9000, slot);
    assert_int_equal(read_one(reader, &read), 0);
    assert_true(arrived(&read));
    read = make_read(file, FILE_BYTES - 100, 100, slot);
    read.length = SLOT_BYTES; // far past the end, but only what is there is needed
    assert_int_equal(read_one(reader, &read), 0);
    assert_true(arrived(&read));
    read = make_read(file, FILE_BYTES - 9000, 9001, slot);
    assert_int_equal(read_one(reader, &read), -ENODATA);
    read = make_read(file, FILE_BYTES + 100000, 10, slot);
    assert_int_equal(read_one(reader, &read), -ENODATA);
    assert_int_equal(gn_reader_totals(reader).reads, 2);
    assert_int_equal(gn_reader_totals(reader).errors, 2);
    gn_reader_close(reader);
    gn_file_close(file);
    free(slot);
}

static void test_file_shrinks(void **state) {
    const struct variant *variant = require(*state);
    char *path = make_file("shrinks", 100000);
    struct gn_file *file = open_file(path, variant->direct);
    struct gn_reader *reader = open_with(variant, (struct gn_reader_options){0});
    uint8_t *slot = make_slots(1);
    struct gn_read read = make_read(file, 50000, 40000, slot);
    assert_int_equal(read_one(reader, &read), 0);
    assert_int_equal(truncate(path, 70000), 0);
    assert_int_equal(read_one(reader, &read), -ENODATA);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(read_one(reader, &read), -ENODATA);
    assert_int_equal(gn_file_unchanged(file), -ESTALE);
    gn_reader_close(reader);
    gn_file_close(file);
    free(slot);
    remove_file(path);
}

// One fault among five reads: it alone fails, as told; the others arrive, and so does a second try.
static void inject(const struct variant *variant, const struct gn_file *file, uint64_t fail_at, int fail_result) {
    enum { READS = 5 };
    struct gn_reader *reader =
        open_with(variant, (struct gn_reader_options){.depth = 2, .fail_at = fail_at, .fail_result = fail_result});
    uint8_t *slots = make_slots(READS);
    struct gn_read reads[READS];
    for (size_t i = 0; i < READS; i++) {
        reads[i] = make_read(file, i * 100000 + 77, 50000, slots + i * SLOT_BYTES);
    }
    gn_reader_submit(reader, reads, 2);
    gn_reader_submit(reader, reads + 2, READS - 2);
    while (gn_reader_reap(reader, true)) {
    }
    for (size_t i = 0; i < READS; i++) {
        if (i + 1 != fail_at) {
            assert_true(arrived(&reads[i]));
            continue;
        }
        assert_int_equal(reads[i].result, fail_result < 0 ? fail_result : -ENODATA);
        assert_int_equal(reads[i].done, fail_result < 0 ? 0 : fail_result);
        assert_true(is_pattern(reads[i].to, reads[i].offset, reads[i].done));
        assert_false(is_pattern(reads[i].to, reads[i].offset, reads[i].need));
        assert_int_equal(read_one(reader, &reads[i]), 0);
        assert_true(arrived(&reads[i]));
    }
    assert_int_equal(gn_reader_totals(reader).reads, READS);
    assert_int_equal(gn_reader_totals(reader).errors, 1);
    gn_reader_close(reader);
    free(slots);
}

static void test_faults(void **state) {
    const struct variant *variant = require(*state);
    struct gn_file *file = open_file(model, variant->direct);
    for (uint64_t fail_at = 1; fail_at <= 5; fail_at++) {
        inject(variant, file, fail_at, -EIO);
        inject(variant, file, fail_at, 100);
        inject(variant, file, fail_at, 2 * GN_BLOCK);
    }
    gn_file_close(file);
}

static void test_close_in_flight(void **state) {
    const struct variant *variant = require(*state);
    enum { READS = 50 };
    struct gn_file *file = open_file(model, variant->direct);
    uint8_t *slots = make_slots(READS);
    for (int round = 0; round < 5; round++) {
        struct gn_reader *reader = open_with(variant, (struct gn_reader_options){.depth = 8});
        struct gn_read reads[READS];
        for (size_t i = 0; i < READS; i++) {
            reads[i] = make_read(file, i * 100000, 60000, slots + i * SLOT_BYTES);
        }
        gn_reader_submit(reader, reads, READS);
        gn_reader_close(reader);
        memset(slots, 0xEE, READS * SLOT_BYTES);
        let_time_pass();
        for (size_t i = 0; i < READS * SLOT_BYTES; i++) {
            if (slots[i] != 0xEE) {
                fail_msg("a read wrote to memory after the reader was closed");
            }
        }
    }
    gn_reader_close(NULL);
    gn_file_close(file);
    free(slots);
}

struct handover {
    struct gn_reader *reader;
    struct gn_read *reads;
    size_t n;
};

static void *submit_and_end(void *argument) {
    struct handover *handover = argument;
    gn_reader_submit(handover->reader, handover->reads, handover->n);
    return NULL;
}

// The thread that submitted may be gone before its reads have ended.
static void test_owner_changes(void **state) {
    const struct variant *variant = require(*state);
    enum { READS = 64 };
    struct gn_file *file = open_file(model, variant->direct);
    struct gn_reader *reader = open_with(variant, (struct gn_reader_options){.depth = 16});
    uint8_t *slots = make_slots(READS);
    struct gn_read reads[READS];
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < READS; i++) {
            reads[i] = make_read(file, i * 90000 + 5, 60000, slots + i * SLOT_BYTES);
        }
        struct handover handover = {reader, reads, READS};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, submit_and_end, &handover), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        for (size_t i = 0; i < READS; i++) {
            assert_non_null(gn_reader_reap(reader, true));
        }
        for (size_t i = 0; i < READS; i++) {
            assert_true(arrived(&reads[i]));
        }
    }
    gn_reader_close(reader);
    gn_file_close(file);
    free(slots);
}

// The kernel itself says that reads leave nothing in the page cache: direct ones pass it by, buffered ones clean up.
static void test_page_cache_stays_empty(void **state) {
    const struct variant *variant = require(*state);
    enum { READS = 16 };
    char *path = make_uncached("uncached", READS * SLOT_BYTES);
    struct gn_file *file = open_file(path, variant->direct);
    struct gn_reader *reader = open_with(variant, (struct gn_reader_options){0});
    uint8_t *slots = make_slots(READS);
    struct gn_read reads[READS];
    for (size_t i = 0; i < READS; i++) {
        reads[i] = make_read(file, i * SLOT_BYTES, SLOT_BYTES, slots + i * SLOT_BYTES);
    }
    gn_reader_submit(reader, reads, READS);
    while (gn_reader_reap(reader, true)) {
    }
    assert_true(arrived(&reads[0]));
    assert_int_equal(gn_file_read(file, 12345, 100000, slots), 0);
    assert_int_equal(pages_in_cache(path, READS * SLOT_BYTES), 0);
    gn_reader_close(reader);
    gn_file_close(file);
    free(slots);
    remove_file(path);
}

static void test_null_engine(void **state) {
    (void)state;
    struct gn_reader *reader;
    assert_int_equal(gn_reader_open(&(struct gn_reader_options){.kind = GN_READER_NULL, .depth = 3}, &reader), 0);
    assert_string_equal(gn_reader_name(reader), "null");
    struct gn_file *file = open_file(model, false);
    uint8_t *slots = make_slots(1);
    struct gn_read reads[10];
    for (size_t i = 0; i < 10; i++) {
        reads[i] = make_read(file, i * 5000, 5000, slots);
    }
    gn_reader_submit(reader, reads, 10);
    for (size_t i = 0; i < 10; i++) {
        assert_ptr_equal(gn_reader_reap(reader, false), &reads[i]);
        assert_int_equal(reads[i].result, 0);
    }
    assert_int_equal(slots[0], 0xEE);
    gn_reader_close(reader);
    gn_file_close(file);
    free(slots);
    assert_int_equal(gn_reader_open(&(struct gn_reader_options){.kind = 99}, &reader), -EINVAL);
}

// ---- what the reader makes of an engine's results, with an engine that ends each read as a script says ----

static struct {
    int results[8];
    int64_t offsets[8]; // seen: where each try started
    size_t tries;
    struct gn_read *read;
} script;

static int script_open(unsigned *depth, void **state) {
    (void)depth;
    *state = NULL;
    return 0;
}

static void script_close(void *state) {
    (void)state;
}

static void script_submit(void *state, struct gn_read_list *reads) {
    (void)state;
    script.read = gn_read_pop(reads);
    assert_null(reads->first);
    script.offsets[script.tries] = (int64_t)(script.read->offset + script.read->done);
    script.read->result = script.results[script.tries++];
}

static void script_reap(void *state, bool wait, struct gn_read_list *ended) {
    (void)state;
    assert_true(wait);
    gn_read_push(ended, script.read);
}

static const struct gn_engine script_engine = {
    .name = "script",
    .depth = 1,
    .most_depth = 1,
    .open = script_open,
    .close = script_close,
    .submit = script_submit,
    .reap = script_reap,
};

struct retry_case {
    int results[8];     // what the engine says, try after try
    int64_t offsets[8]; // where each try must start; -1: no more tries
    int expected;
};

// Reads 15000 bytes from 8192.
static void run_retry_case(const struct gn_file *file, const struct retry_case *retry) {
    struct gn_reader *reader;
    assert_int_equal(gn_reader_open_engine(&script_engine, &(struct gn_reader_options){0}, &reader), 0);
    memset(&script, 0, sizeof script);
    memcpy(script.results, retry->results, sizeof script.results);
    uint8_t *slot = make_slots(1);
    struct gn_read read = make_read(file, 8192, 15000, slot);
    assert_int_equal(read_one(reader, &read), retry->expected);
    for (size_t i = 0; i < script.tries; i++) {
        assert_int_equal(script.offsets[i], retry->offsets[i]);
    }
    assert_int_equal(retry->offsets[script.tries], -1);
    gn_reader_close(reader);
    free(slot);
}

static void test_retries_buffered(void **state) {
    const struct retry_case cases[] = {
        {{16384}, {8192, -1}, 0},
        {{15000}, {8192, -1}, 0},
        {{-EINTR, -EAGAIN, 15000}, {8192, 8192, 8192, -1}, 0},
        {{5000, -EINTR, 10000}, {8192, 13192, 13192, -1}, 0},
        {{5000, 1, 0}, {8192, 13192, 13193, -1}, -ENODATA},
        {{0}, {8192, -1}, -ENODATA},
        {{-EIO}, {8192, -1}, -EIO},
        {{5000, -EIO}, {8192, 13192, -1}, -EIO},
    };
    (void)state;
    struct gn_file *file = open_file(model, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_retry_case(file, &cases[i]);
    }
    gn_file_close(file);
}

static void test_retries_direct(void **state) {
    const struct retry_case cases[] = {
        {{16384}, {8192, -1}, 0},
        {{-EAGAIN, 5000, 11904}, {8192, 8192, 12288, -1}, 0},
        {{9000, 7000}, {8192, 16384, -1}, 0},
        {{9000, 808}, {8192, 16384, -1}, -ENODATA}, // the file ends at 9000 of 15000
        {{100}, {8192, -1}, -ENODATA},
        {{8192, 0}, {8192, 16384, -1}, -ENODATA},
        {{8192, -EIO}, {8192, 16384, -1}, -EIO},
    };
    struct gn_file *file = open_file(model, require(*state)->direct);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_retry_case(file, &cases[i]);
    }
    gn_file_close(file);
}

// ---- the list of tests ----

static struct variant variants[] = {
    {GN_READER_URING, true, "io_uring, direct"},
    {GN_READER_URING, false, "io_uring, buffered"},
    {GN_READER_THREADS, true, "threads, direct"},
    {GN_READER_THREADS, false, "threads, buffered"},
};
#define VARIANTS (sizeof variants / sizeof *variants)

#define TEST(function)                                                                                                 \
    { #function, function, NULL, NULL, NULL }

static const struct CMUnitTest with_each_engine[] = {
    TEST(test_reads_beyond_depth),
    TEST(test_reap_without_waiting),
    TEST(test_end_of_file),
    TEST(test_file_shrinks),
    TEST(test_faults),
    TEST(test_close_in_flight),
    TEST(test_owner_changes),
    TEST(test_page_cache_stays_empty),
};
#define EACH (sizeof with_each_engine / sizeof *with_each_engine)

static int run_with(struct variant *variant) {
    static char names[EACH][100];
    struct CMUnitTest tests[EACH];
    for (size_t i = 0; i < EACH; i++) {
        tests[i] = with_each_engine[i];
        snprintf(names[i], sizeof names[i], "%s (%s)", with_each_engine[i].name, variant->label);
        tests[i].name = names[i];
        tests[i].initial_state = variant;
    }
    return cmocka_run_group_tests_name(variant->label, tests, NULL, NULL);
}

int main(void) {
    const struct CMUnitTest with_no_engine[] = {
        TEST(test_null_engine),
        TEST(test_retries_buffered),
        {"test_retries_direct", test_retries_direct, NULL, NULL, &variants[2]}, // io_uring is not needed
    };
    if (begin_files()) {
        return 1;
    }
    int failures = cmocka_run_group_tests_name("reader", with_no_engine, NULL, NULL);
    for (size_t i = 0; i < VARIANTS; i++) {
        failures += run_with(&variants[i]);
    }
    end_files();
    return test_result(failures);
}
