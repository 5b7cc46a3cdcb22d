// Files and readers: that the right bytes arrive whatever the engine, and that every way of failing is reported as
// such.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES ((size_t)6 * 1024 * 1024 + 1234)
#define SLOT_BYTES ((size_t)64 * 1024)

static char folder[4096];
static char model[4200]; // the path of the file that most tests read, FILE_BYTES of pattern

struct variant {
    enum gn_reader_kind kind;
    bool direct;
    const char *label;
};

// ---- helpers ----

static uint8_t pattern(uint64_t offset) {
    return (uint8_t)((offset + 1) * 0x9E3779B97F4A7C15u >> 56);
}

static bool is_pattern(const uint8_t *data, uint64_t offset, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(offset + i)) {
            return false;
        }
    }
    return true;
}

// Writes bytes of pattern to a new file in the folder, and to the disk. Returns its path, to be freed.
static char *make_file(const char *name, size_t bytes) {
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    uint8_t *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = pattern(i);
    }
    assert_int_equal(write(fd, data, bytes), bytes);
    free(data);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(close(fd), 0);
    return path;
}

static void remove_file(char *path) {
    unlink(path);
    free(path);
}

static struct gn_file *open_file(const char *path, bool direct) {
    struct gn_file *file;
    assert_int_equal(gn_file_open(path, direct, 0, 0, &file), 0);
    return file;
}

static struct gn_reader *open_with(const struct variant *variant, struct gn_reader_options options) {
    struct gn_reader *reader;
    options.kind = variant->kind;
    assert_int_equal(gn_reader_open(&options, &reader), 0);
    return reader;
}

// Skips the test where there are no direct reads or no io_uring, so that it never passes for want of them.
static const struct variant *require(void *state) {
    const struct variant *variant = state;
    struct gn_file *file = open_file(model, variant->direct);
    bool direct = gn_file_direct(file);
    gn_file_close(file);
    if (direct != variant->direct) {
        print_message("skipped: no direct reads in %s\n", folder);
        skip();
    }
    struct gn_reader *reader;
    int failed = gn_reader_open(&(struct gn_reader_options){.kind = variant->kind}, &reader);
    gn_reader_close(reader);
    if (failed && variant->kind == GN_READER_URING) {
        print_message("skipped: io_uring is refused here (%s)\n", strerror(-failed));
        skip();
    }
    return variant;
}

static uint8_t *make_slots(size_t n) {
    uint8_t *slots = aligned_alloc(GN_BLOCK, n * SLOT_BYTES);
    assert_non_null(slots);
    memset(slots, 0xEE, n * SLOT_BYTES);
    return slots;
}

// A read of the `bytes` at `offset`, at any alignment, widened to whole blocks.
static struct gn_read make_read(const struct gn_file *file, uint64_t offset, uint32_t bytes, void *to) {
    uint64_t first = offset - offset % GN_BLOCK;
    uint32_t need = (uint32_t)(offset + bytes - first);
    uint32_t length = (need + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK;
    return (struct gn_read){.file = file, .offset = first, .length = length, .need = need, .to = to};
}

static bool arrived(const struct gn_read *read) {
    return read->result == 0 && read->done >= read->need && is_pattern(read->to, read->offset, read->need);
}

static int read_one(struct gn_reader *reader, struct gn_read *read) {
    gn_reader_submit(reader, read, 1);
    assert_int_equal(gn_reader_in_flight(reader), 1);
    assert_ptr_equal(gn_reader_reap(reader, true), read);
    assert_int_equal(gn_reader_in_flight(reader), 0);
    assert_null(gn_reader_reap(reader, true));
    return read->result;
}

static uint64_t random_below(uint64_t limit) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
}

// Long enough for a changed file to get another time stamp.
static void let_time_pass(void) {
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
}

// What was written to standard error since begin_capture(). To be freed.
static int real_stderr = -1;

static void begin_capture(void) {
    FILE *to = tmpfile();
    assert_non_null(to);
    fflush(stderr);
    real_stderr = dup(STDERR_FILENO);
    dup2(fileno(to), STDERR_FILENO);
    fclose(to);
}

static char *end_capture(void) {
    fflush(stderr);
    off_t bytes = lseek(STDERR_FILENO, 0, SEEK_END);
    char *text = calloc(1, (size_t)bytes + 1);
    assert_int_equal(pread(STDERR_FILENO, text, (size_t)bytes, 0), bytes);
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    return text;
}

static size_t count_lines(const char *text) {
    size_t lines = 0;
    for (; (text = strchr(text, '\n')); text++) {
        lines++;
    }
    return lines;
}

// ---- files ----

static void test_file_reads_any_range(void **state) {
    const struct variant *variant = require(*state);
    struct gn_file *file = open_file(model, variant->direct);
    assert_string_equal(gn_file_path(file), model);
    assert_int_equal(gn_file_size(file), FILE_BYTES);
    const size_t most = 1000000;
    uint8_t *memory = aligned_alloc(GN_BLOCK, (most / GN_BLOCK + 2) * GN_BLOCK);
    for (int i = 0; i < 300; i++) {
        uint64_t offset = random_below(FILE_BYTES);
        uint64_t left = FILE_BYTES - offset;
        size_t bytes = random_below((left < most ? left : most) + 1);
        // Every third as far into a block as the file's bytes are, every third on one.
        size_t at = i % 3 == 0 ? offset % GN_BLOCK : i % 3 == 1 ? 0 : random_below(GN_BLOCK);
        memory[at + bytes] = 0x77;
        assert_int_equal(gn_file_read(file, offset, bytes, memory + at), 0);
        assert_true(is_pattern(memory + at, offset, bytes));
        assert_int_equal(memory[at + bytes], 0x77); // not a byte too many
    }
    assert_int_equal(gn_file_read(file, FILE_BYTES - 10, 10, memory), 0);
    assert_int_equal(gn_file_read(file, FILE_BYTES - 10, 11, memory), -ENODATA);
    assert_int_equal(gn_file_read(file, FILE_BYTES - 10000, 10001, memory), -ENODATA);
    assert_int_equal(gn_file_read(file, FILE_BYTES + 50000, 1, memory), -ENODATA);
    assert_int_equal(gn_file_read(file, FILE_BYTES, 0, memory), 0);
    free(memory);
    gn_file_close(file);
}

static void test_file_refuses(void **state) {
    (void)state;
    struct gn_file *file;
    char path[4300];
    snprintf(path, sizeof path, "%s/none", folder);
    assert_int_equal(gn_file_open(path, true, 0, 0, &file), -ENOENT);
    assert_null(file);
    assert_int_equal(gn_file_open(folder, true, 0, 0, &file), -EISDIR);
    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gn_file_open(path, true, 0, 0, &file), -EINVAL);
    unlink(path);
    assert_int_equal(gn_file_reopen(-1, "gone", true, &file), -ENOENT);
    gn_file_close(NULL);
}

static void test_file_unreadable(void **state) {
    (void)state;
    char *path = make_file("unreadable", 100);
    assert_int_equal(chmod(path, 0), 0);
    if (geteuid() == 0) {
        assert_int_equal(seteuid(65534), 0);
    }
    struct gn_file *file;
    int failed = gn_file_open(path, true, 0, 0, &file);
    if (getuid() == 0) {
        assert_int_equal(seteuid(0), 0);
    }
    assert_int_equal(failed, -EACCES);
    remove_file(path);
}

static void test_file_identity(void **state) {
    (void)state;
    struct stat status;
    assert_int_equal(stat(model, &status), 0);
    struct gn_file *file;
    assert_int_equal(gn_file_open(model, false, status.st_dev, status.st_ino, &file), 0);
    gn_file_close(file);
    assert_int_equal(gn_file_open(model, false, status.st_dev, status.st_ino + 1, &file), -ESTALE);
    assert_null(file);
    assert_int_equal(gn_file_open(model, false, status.st_dev + 1, 0, &file), -ESTALE);
}

static void test_file_reopens_deleted(void **state) {
    const struct variant *variant = require(*state);
    char *path = make_file("deleted", 10000);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    remove_file(path);
    struct gn_file *file;
    assert_int_equal(gn_file_reopen(fd, "a name", variant->direct, &file), 0);
    close(fd);
    assert_string_equal(gn_file_path(file), "a name");
    uint8_t data[10000];
    assert_int_equal(gn_file_read(file, 0, sizeof data, data), 0);
    assert_true(is_pattern(data, 0, sizeof data));
    assert_int_equal(gn_file_unchanged(file), 0);
    gn_file_close(file);
}

static void overwrite(const char *path) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "x", 1, 0), 1);
    close(fd);
}

static void overwrite_and_hide(const char *path) {
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    overwrite(path);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){before.st_atim, before.st_mtim}, 0), 0);
}

static void overwrite_and_delete(const char *path) {
    overwrite(path);
    assert_int_equal(unlink(path), 0);
}

static void append(const char *path) {
    assert_int_equal(truncate(path, 10001), 0);
}

static void replace(const char *path) {
    char *other = make_file("replacement", 10000);
    assert_int_equal(rename(other, path), 0);
    free(other);
}

static void delete (const char *path) {
    assert_int_equal(unlink(path), 0);
}

static void test_file_unchanged(void **state) {
    (void)state;
    const struct {
        void (*happens)(const char *path);
        int expected;
    } cases[] = {{overwrite, -ESTALE},
                 {overwrite_and_delete, -ESTALE},
                 {overwrite_and_hide, -ESTALE},
                 {append, -ESTALE},
                 {replace, 0},
                 {delete, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = make_file("changing", 10000);
        struct gn_file *file = open_file(path, true);
        let_time_pass();
        assert_int_equal(gn_file_unchanged(file), 0);
        cases[i].happens(path);
        assert_int_equal(gn_file_unchanged(file), cases[i].expected);
        gn_file_close(file);
        remove_file(path);
    }
}

// A file in memory has no direct reads: one line says so, and reads work.
static void test_file_falls_back(void **state) {
    (void)state;
    int fd = memfd_create("guanaco-test", MFD_CLOEXEC);
    assert_int_equal(pwrite(fd, "abcdef", 6, 0), 6);
    begin_capture();
    struct gn_file *file;
    int failed = gn_file_reopen(fd, "in-memory.gguf", true, &file);
    char *log = end_capture();
    assert_int_equal(failed, 0);
    assert_int_equal(count_lines(log), 1);
    assert_non_null(strstr(log, "in-memory.gguf"));
    assert_non_null(strstr(log, "tmpfs"));
    free(log);
    assert_false(gn_file_direct(file));
    char data[4];
    assert_int_equal(gn_file_read(file, 1, 4, data), 0);
    assert_memory_equal(data, "bcde", 4);
    gn_file_close(file);

    begin_capture();
    assert_int_equal(gn_file_reopen(fd, "in-memory.gguf", false, &file), 0);
    log = end_capture();
    assert_string_equal(log, ""); // not wanted, so nothing to say
    free(log);
    gn_file_close(file);
    close(fd);
}

// ---- reading, with every engine ----

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

static size_t pages_in_cache(const char *path, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page, resident = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *mapping = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(mapping, MAP_FAILED);
    unsigned char *in_core = calloc(n, 1);
    assert_int_equal(mincore(mapping, bytes, in_core), 0);
    for (size_t i = 0; i < n; i++) {
        resident += in_core[i] & 1;
    }
    free(in_core);
    munmap(mapping, bytes);
    close(fd);
    return resident;
}

// The kernel itself says that reads leave nothing in the page cache: direct ones pass it by, buffered ones clean up.
static void test_page_cache_stays_empty(void **state) {
    const struct variant *variant = require(*state);
    enum { READS = 16 };
    char *path = make_file("uncached", READS * SLOT_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    if (pages_in_cache(path, READS * SLOT_BYTES) > 0) {
        remove_file(path);
        print_message("skipped: the page cache keeps pages in %s\n", folder);
        skip();
        return; // skip() does not come back; the analyser cannot know
    }
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

// ---- io_uring refused, by a system-call filter in a child process ----

static bool refuse(int system_call, int error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)system_call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

enum { CHILD_OK, CHILD_SKIP, CHILD_WRONG };

static int run_child(int (*child)(void)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(child());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_child(int (*child)(void)) {
    int result = run_child(child);
    if (result == CHILD_SKIP) {
        print_message("skipped: io_uring or system-call filters are refused here\n");
        skip();
    }
    assert_int_equal(result, CHILD_OK);
}

static int open_kind(enum gn_reader_kind kind, struct gn_reader **reader) {
    return gn_reader_open(&(struct gn_reader_options){.kind = kind}, reader);
}

static int expect_fall_back(int system_call, int error) {
    struct gn_reader *reader;
    if (!refuse(system_call, error)) {
        return CHILD_SKIP;
    }
    if (open_kind(GN_READER_URING, &reader) != -error || reader) {
        return CHILD_WRONG;
    }
    begin_capture();
    int failed = open_kind(GN_READER_AUTO, &reader);
    char *log = end_capture();
    bool right = !failed && strcmp(gn_reader_name(reader), "threads") == 0 && count_lines(log) == 1 &&
                 strstr(log, "io_uring") && strstr(log, strerror(error));
    free(log);
    gn_reader_close(reader);
    return right ? CHILD_OK : CHILD_WRONG;
}

static int no_setup(void) {
    return expect_fall_back(SYS_io_uring_setup, EPERM);
}
static int no_system_call(void) {
    return expect_fall_back(SYS_io_uring_setup, ENOSYS);
}
static int no_enter(void) {
    return expect_fall_back(SYS_io_uring_enter, EPERM);
}

static void test_uring_refused(void **state) {
    (void)state;
    expect_child(no_setup);
    expect_child(no_system_call);
}

static void test_uring_enter_refused(void **state) {
    (void)state;
    struct gn_reader *reader;
    if (open_kind(GN_READER_URING, &reader)) {
        skip();
    }
    gn_reader_close(reader);
    expect_child(no_enter);
}

// A sandbox that closes while reads are in flight: what the kernel has arrives, the rest fails, nothing hangs.
static int enter_refused_later(void) {
    enum { BEFORE = 4, READS = 8 };
    struct gn_reader *reader;
    struct gn_file *file;
    if (open_kind(GN_READER_URING, &reader) || gn_file_open(model, true, 0, 0, &file)) {
        return CHILD_SKIP;
    }
    uint8_t *slots = make_slots(READS);
    struct gn_read reads[READS];
    for (size_t i = 0; i < READS; i++) {
        reads[i] = make_read(file, i * 70000, 60000, slots + i * SLOT_BYTES);
    }
    gn_reader_submit(reader, reads, BEFORE);
    if (!refuse(SYS_io_uring_enter, EPERM)) {
        return CHILD_SKIP;
    }
    gn_reader_submit(reader, reads + BEFORE, READS - BEFORE);
    while (gn_reader_reap(reader, true)) {
    }
    bool right = gn_reader_in_flight(reader) == 0;
    for (size_t i = 0; i < READS; i++) {
        right = right && (i < BEFORE ? arrived(&reads[i]) : reads[i].result == -EPERM);
    }
    gn_reader_close(reader);
    gn_file_close(file);
    free(slots);
    return right ? CHILD_OK : CHILD_WRONG;
}

static void test_uring_enter_refused_later(void **state) {
    (void)state;
    expect_child(enter_refused_later);
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

static int run_rest(void) {
    struct variant *direct = &variants[2], *buffered = &variants[3]; // io_uring is not needed
    const struct CMUnitTest tests[] = {
        {"test_file_reads_any_range (direct)", test_file_reads_any_range, NULL, NULL, direct},
        {"test_file_reads_any_range (buffered)", test_file_reads_any_range, NULL, NULL, buffered},
        {"test_file_reopens_deleted (direct)", test_file_reopens_deleted, NULL, NULL, direct},
        {"test_file_reopens_deleted (buffered)", test_file_reopens_deleted, NULL, NULL, buffered},
        TEST(test_file_refuses),
        TEST(test_file_unreadable),
        TEST(test_file_identity),
        TEST(test_file_unchanged),
        TEST(test_file_falls_back),
        TEST(test_null_engine),
        TEST(test_retries_buffered),
        {"test_retries_direct", test_retries_direct, NULL, NULL, direct},
        TEST(test_uring_refused),
        TEST(test_uring_enter_refused),
        TEST(test_uring_enter_refused_later),
    };
    return cmocka_run_group_tests_name("files and reader", tests, NULL, NULL);
}

// Removes the folder with whatever a skipped or failed test has left there.
static void remove_folder(void) {
    DIR *open_folder = opendir(folder);
    if (open_folder) {
        for (struct dirent *entry; (entry = readdir(open_folder));) {
            unlinkat(dirfd(open_folder), entry->d_name, 0);
        }
        closedir(open_folder);
    }
    rmdir(folder);
}

int main(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/guanaco-io-XXXXXX", base && *base ? base : ".");
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    char *path = make_file("model", FILE_BYTES);
    snprintf(model, sizeof model, "%s", path);
    free(path);
    int failures = run_rest();
    for (size_t i = 0; i < VARIANTS; i++) {
        failures += run_with(&variants[i]);
    }
    remove_folder();
    return failures != 0;
}
