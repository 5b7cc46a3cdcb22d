// Files: that any range of them can be read, directly or not, and that every change and every refusal is noticed.
#include "io_files.h"
#include "skip.h"

#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// Another file is written over this one, and its times are put back.
static void rewrite_and_hide(const char *path) {
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    char other[10000];
    memset(other, 0x5A, sizeof other);
    assert_int_equal(write(fd, other, sizeof other), sizeof other);
    close(fd);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){before.st_atim, before.st_mtim}, 0), 0);
}

static void cut_and_hide(const char *path) {
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(truncate(path, 9999), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){before.st_atim, before.st_mtim}, 0), 0);
}

static void move_away(const char *path) {
    char other[4300];
    snprintf(other, sizeof other, "%s-moved", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(rename(other, path), 0);
}

static void link_and_unlink(const char *path) {
    char other[4300];
    snprintf(other, sizeof other, "%s-linked", path);
    assert_int_equal(link(path, other), 0);
    assert_int_equal(unlink(other), 0);
}

static void change_mode(const char *path) {
    assert_int_equal(chmod(path, 0400), 0);
}

static void change_mode_and_overwrite(const char *path) {
    change_mode(path);
    assert_int_equal(chmod(path, 0600), 0);
    overwrite_and_hide(path);
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
                 {rewrite_and_hide, -ESTALE},
                 {cut_and_hide, -ESTALE},
                 {change_mode_and_overwrite, -ESTALE},
                 {move_away, 0},
                 {link_and_unlink, 0},
                 {change_mode, 0},
                 {append, -ESTALE},
                 {replace, 0},
                 {delete, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = make_file("changing", 10000);
        struct gn_file *file = open_file(path, true);
        assert_int_equal(gn_file_sample(file), 0);
        let_time_pass();
        assert_int_equal(gn_file_unchanged(file), 0);
        cases[i].happens(path);
        assert_int_equal(gn_file_unchanged(file), cases[i].expected);
        gn_file_close(file);
        remove_file(path);
    }
}

// What has changed is found where it is sampled: at the ends and in between.
static void test_file_samples(void **state) {
    const struct variant *variant = require(*state);
    const size_t bytes = 4000000;
    static const off_t places[] = {0, 3999999, 2000000};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *path = make_file("sampled", bytes);
        struct gn_file *file = open_file(path, variant->direct);
        assert_int_equal(gn_file_sample(file), 0);
        let_time_pass();
        change_mode(path);
        assert_int_equal(gn_file_unchanged(file), 0);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        struct stat before;
        assert_int_equal(fstat(fd, &before), 0);
        char other[200000]; // more than lies between two samples
        memset(other, 0x5A, sizeof other);
        assert_true(pwrite(fd, other, places[i] == 2000000 ? sizeof other : 1, places[i]) > 0);
        assert_int_equal(futimens(fd, (struct timespec[]){before.st_atim, before.st_mtim}), 0);
        close(fd);
        assert_int_equal(gn_file_unchanged(file), -ESTALE);
        gn_file_close(file);
        remove_file(path);
    }
}

// The file system that lies about O_DIRECT is this: while `lying`, direct reads bring other bytes than are there, but
// for the first block.
static bool lying;

ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    ssize_t got = syscall(SYS_pread64, fd, to, bytes, offset);
    int flags = lying ? fcntl(fd, F_GETFL) : 0;
    for (ssize_t i = 0; (flags & O_DIRECT) && offset > 0 && i < got; i++) {
        ((uint8_t *)to)[i] ^= 0xFF;
    }
    return got;
}

static void test_file_is_lied_to(void **state) {
    const struct variant *variant = require(*state);
    uint8_t data[20000];
    struct gn_file *file = open_file(model, variant->direct);
    gn_file_compare(file, 3 * GN_BLOCK + 100);
    assert_true(gn_file_direct(file)); // all is well
    gn_file_close(file);
    lying = true;
    file = open_file(model, variant->direct);
    assert_true(gn_file_direct(file));
    begin_capture();
    gn_file_compare(file, 3 * GN_BLOCK + 100);
    char *log = end_capture();
    assert_false(gn_file_direct(file));
    assert_int_equal(count_lines(log), 1);
    assert_non_null(strstr(log, "other bytes"));
    free(log);
    assert_int_equal(gn_file_read(file, 12345, sizeof data, data), 0);
    lying = false;
    assert_true(is_pattern(data, 12345, sizeof data));
    gn_file_close(file);
}

// A block device is read as a file is. Only root can make one.
static void test_file_on_a_device(void **state) {
    const struct variant *variant = require(*state);
    char command[4400], device[64] = "";
    snprintf(command, sizeof command, "losetup --read-only --find --show '%s' 2>/dev/null", model);
    FILE *made = popen(command, "re");
    if (!made || !fgets(device, sizeof device, made) || pclose(made) != 0) {
        skip();
    }
    device[strcspn(device, "\n")] = '\0';
    struct gn_file *file;
    int failed = gn_file_open(device, variant->direct, 0, 0, &file);
    uint8_t *data = malloc(100000);
    int unread = failed ? failed : gn_file_read(file, 4321, 100000, data);
    uint64_t size = failed ? 0 : gn_file_size(file);
    int changed = failed ? failed : gn_file_unchanged(file);
    gn_file_close(failed ? NULL : file);
    snprintf(command, sizeof command, "losetup --detach %s", device);
    assert_int_equal(system(command), 0);
    assert_int_equal(failed, 0);
    assert_int_equal(unread, 0);
    assert_int_equal(changed, 0);
    assert_true(is_pattern(data, 4321, 100000));
    assert_int_equal(size, FILE_BYTES / 512 * 512); // whole sectors
    free(data);
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

// All that is asked for comes, also what is more than the kernel takes at once.
static void test_file_will_need(void **state) {
    (void)state;
    const size_t bytes = (size_t)24 << 20;
    char *path = make_uncached("needed", bytes);
    struct gn_file *file = open_file(path, true);
    void *mapping;
    assert_int_equal(gn_file_map(file, &mapping), 0);
    assert_int_equal(gn_file_will_need(mapping, bytes), 0);
    size_t all = bytes / (size_t)sysconf(_SC_PAGESIZE);
    for (int tries = 0; tries < 1000 && pages_in_cache(path, bytes) < all; tries++) {
        let_time_pass();
    }
    assert_int_equal(pages_in_cache(path, bytes), all);
    gn_file_unmap(file, mapping);
    gn_file_close(file);
    remove_file(path);
}

#define TEST(function)                                                                                                 \
    { #function, function, NULL, NULL, NULL }

int main(void) {
    struct variant direct = {GN_READER_THREADS, true, "direct"}, buffered = {GN_READER_THREADS, false, "buffered"};
    const struct CMUnitTest tests[] = {
        {"test_file_reads_any_range (direct)", test_file_reads_any_range, NULL, NULL, &direct},
        {"test_file_reads_any_range (buffered)", test_file_reads_any_range, NULL, NULL, &buffered},
        {"test_file_reopens_deleted (direct)", test_file_reopens_deleted, NULL, NULL, &direct},
        {"test_file_reopens_deleted (buffered)", test_file_reopens_deleted, NULL, NULL, &buffered},
        {"test_file_samples (direct)", test_file_samples, NULL, NULL, &direct},
        {"test_file_samples (buffered)", test_file_samples, NULL, NULL, &buffered},
        {"test_file_is_lied_to (direct)", test_file_is_lied_to, NULL, NULL, &direct},
        {"test_file_on_a_device (direct)", test_file_on_a_device, NULL, NULL, &direct},
        {"test_file_on_a_device (buffered)", test_file_on_a_device, NULL, NULL, &buffered},
        TEST(test_file_refuses),
        TEST(test_file_unreadable),
        TEST(test_file_identity),
        TEST(test_file_unchanged),
        TEST(test_file_falls_back),
        TEST(test_file_will_need),
    };
    if (begin_files()) {
        return 1;
    }
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    end_files();
    return test_result(failures);
}
