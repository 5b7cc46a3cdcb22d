// Files that are written: which may be, told by device and inode; and that an old file is replaced whole or not at all.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/descriptor.h"
#include "config/output_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char directory[] = "/tmp/guanaco-output-XXXXXX";
static char why[512];

// ------------------------------------------------------------------------------------------------ failing calls

// What calls do, in the place of libc's: 0 as usual, -1 one byte is written, else they fail with this errno.
static struct { int write, fsync, close, rename; } fault;

ssize_t write(int fd, const void *bytes, size_t n) {
    if (fault.write > 0) {
        errno = fault.write;
        return -1;
    }
    return syscall(SYS_write, fd, bytes, fault.write < 0 ? 1 : n);
}

int fsync(int fd) {
    errno = fault.fsync;
    return fault.fsync ? -1 : (int)syscall(SYS_fsync, fd);
}

int close(int fd) {
    int result = (int)syscall(SYS_close, fd);
    if (fault.close) {
        errno = fault.close;
        return -1;
    }
    return result;
}

int rename(const char *from, const char *to) {
    errno = fault.rename;
    return fault.rename ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

// ------------------------------------------------------------------------------------------------ files

static int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", directory);
    return system(command);
}

static const char *in_directory(const char *name) {
    static char paths[8][600];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_holds(const char *path, const char *text) {
    char got[100] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = fread(got, 1, sizeof got - 1, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(got, text, n);
}

static unsigned count_files(void) {
    unsigned n = 0;
    DIR *entries = opendir(directory);
    assert_non_null(entries);
    while (readdir(entries)) {
        n++;
    }
    closedir(entries);
    return n - 2;
}

// ------------------------------------------------------------------------------------------------ replacing

static void a_new_file_is_made_with_the_mode_asked_for(void **state) {
    (void)state;
    struct stat status;
    const char *path = in_directory("new");
    assert_int_equal(gn_replace_file(path, "one", 3, 0600), 0);
    assert_holds(path, "one");
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(unlink(path), 0);
}

static void an_old_file_keeps_its_mode_and_its_links(void **state) {
    (void)state;
    struct stat status;
    char path[600], link[600], hard[600];
    snprintf(path, sizeof path, "%s/old", directory);
    snprintf(link, sizeof link, "%s/link", directory);
    snprintf(hard, sizeof hard, "%s/hard", directory);
    put(path, "one");
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(symlink("old", link), 0);
    assert_int_equal(linkat(AT_FDCWD, path, AT_FDCWD, hard, 0), 0);
    assert_int_equal(gn_replace_file(link, "two", 3, 0600), 0);
    assert_holds(path, "two");
    assert_holds(hard, "one"); // another's name for the old file
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0640);
    assert_int_equal(lstat(link, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(unlink(path) + unlink(link) + unlink(hard), 0);
}

static void a_write_that_fails_leaves_the_old_file(void **state) {
    (void)state;
    const char *path = in_directory("old");
    put(path, "one");
    int *const calls[] = {&fault.write, &fault.fsync, &fault.close, &fault.rename};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        *calls[c] = c == 1 ? EIO : ENOSPC;
        assert_int_equal(gn_replace_file(path, "two", 3, 0600), c == 1 ? -EIO : -ENOSPC);
        *calls[c] = 0;
        assert_holds(path, "one");
        assert_int_equal(count_files(), 1); // nothing is left behind
    }
    fault.write = -1;
    assert_int_equal(gn_replace_file(path, "three", 5, 0600), 0);
    fault.write = 0;
    assert_holds(path, "three");
    fault.fsync = EINVAL; // the file system has none
    assert_int_equal(gn_replace_file(path, "four", 4, 0600), 0);
    fault.fsync = 0;
    assert_holds(path, "four");
    assert_int_equal(unlink(path), 0);
}

static void names_that_can_be_guessed_are_not_used(void **state) {
    (void)state;
    char guess[600];
    const char *path = in_directory("set"), *victim = in_directory("victim");
    put(victim, "mine");
    snprintf(guess, sizeof guess, "%s.%ld", path, (long)getpid());
    assert_int_equal(link(victim, guess), 0);
    assert_int_equal(gn_replace_file(path, "one", 3, 0600), 0);
    assert_holds(victim, "mine");
    assert_int_equal(unlink(guess) + unlink(victim) + unlink(path), 0);
}

// ------------------------------------------------------------------------------------------------ what may be written

static bool add(struct gn_outputs *outputs, enum gn_output_kind kind, const char *path) {
    why[0] = '\0';
    bool good = gn_outputs_add(outputs, kind, "--out", path, why, sizeof why);
    assert_true(good || (why[0] && !strchr(why, '\n')));
    return good;
}

static bool alone(enum gn_output_kind kind, const char *path) {
    struct gn_outputs outputs = {0};
    return add(&outputs, kind, path);
}

static void assert_refused(enum gn_output_kind kind, const char *path, const char *reason) {
    assert_false(alone(kind, path));
    if (!strstr(why, reason) || !strstr(why, "--out")) {
        fail_msg("'%s' does not say '%s'", why, reason);
    }
}

static void kinds_of_files(void **state) {
    (void)state;
    char text[600], fifo[600];
    snprintf(text, sizeof text, "%s/text", directory);
    snprintf(fifo, sizeof fifo, "%s/fifo", directory);
    put(text, "some text");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_true(alone(GN_OUTPUT_STREAM, text));
    assert_true(alone(GN_OUTPUT_REPLACED, text));
    assert_true(alone(GN_OUTPUT_STREAM, "/dev/null"));
    assert_true(alone(GN_OUTPUT_STREAM, NULL));
    assert_refused(GN_OUTPUT_HOT_SET, text, "no hot set");
    for (int kind = GN_OUTPUT_STREAM; kind <= GN_OUTPUT_HOT_SET; kind++) {
        assert_true(alone((enum gn_output_kind)kind, in_directory("none")));
        assert_refused((enum gn_output_kind)kind, fifo, "FIFO");
        assert_refused((enum gn_output_kind)kind, directory, "directory");
        assert_refused((enum gn_output_kind)kind, in_directory("none/none"), "No such file");
        assert_refused((enum gn_output_kind)kind, in_directory("text/none"), "Not a directory");
        assert_refused((enum gn_output_kind)kind, in_directory("none/"), "cannot write");
    }
    assert_refused(GN_OUTPUT_REPLACED, "/dev/null", "device");
    assert_refused(GN_OUTPUT_HOT_SET, "/dev/null", "device");
    put(text, "");
    assert_true(alone(GN_OUTPUT_HOT_SET, text));
    put(text, GN_HOT_SET_MAGIC "damaged");
    assert_true(alone(GN_OUTPUT_HOT_SET, text));
    put(text, "GGUFxxxx");
    assert_refused(GN_OUTPUT_STREAM, text, "GGUF");
    assert_refused(GN_OUTPUT_REPLACED, text, "GGUF");
    assert_int_equal(unlink(text) + unlink(fifo), 0);
}

static void the_same_file_by_another_name(void **state) {
    (void)state;
    char link[600], path[600];
    snprintf(path, sizeof path, "%s/text", directory);
    snprintf(link, sizeof link, "%s/link", directory);
    put(path, "text");
    assert_int_equal(symlink("text", link), 0);
    struct gn_outputs outputs = {0};
    assert_true(add(&outputs, GN_OUTPUT_STREAM, link));
    assert_true(add(&outputs, GN_OUTPUT_REPLACED, in_directory("none")));
    assert_false(add(&outputs, GN_OUTPUT_REPLACED, path));
    assert_non_null(strstr(why, "both write"));
    assert_false(add(&outputs, GN_OUTPUT_REPLACED, in_directory("./none")));
    assert_true(gn_outputs_spare(&outputs, "the model", in_directory("other"), why, sizeof why));
    assert_true(gn_outputs_spare(&outputs, "the model", NULL, why, sizeof why));
    assert_false(gn_outputs_spare(&outputs, "the model", path, why, sizeof why));
    assert_non_null(strstr(why, "the model"));
    // Devices may be shared.
    assert_true(add(&outputs, GN_OUTPUT_STREAM, "/dev/null"));
    assert_true(gn_outputs_spare(&outputs, "the prompt", "/dev/null", why, sizeof why));
    assert_int_equal(unlink(link) + unlink(path), 0);
}

static void opening_never_waits(void **state) {
    (void)state;
    const char *fifo = in_directory("fifo"), *path = in_directory("file");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gn_output_open(fifo), -ENXIO);
    put(path, "old and long");
    int fd = gn_output_open(path);
    assert_true(fd > 2);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
    assert_holds(path, "");
    assert_int_equal(unlink(fifo) + unlink(path), 0);
}

static void a_closed_standard_stream_is_not_taken(void **state) {
    (void)state;
    int kept = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    int fd = gn_above_standard(open("/dev/null", O_RDONLY | O_CLOEXEC));
    bool taken = fcntl(STDIN_FILENO, F_GETFD) >= 0;
    if (kept >= 0) {
        dup2(kept, STDIN_FILENO);
        close(kept);
    }
    assert_true(fd > 2);
    assert_false(taken);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_file_is_made_with_the_mode_asked_for),
        cmocka_unit_test(an_old_file_keeps_its_mode_and_its_links),
        cmocka_unit_test(a_write_that_fails_leaves_the_old_file),
        cmocka_unit_test(names_that_can_be_guessed_are_not_used),
        cmocka_unit_test(kinds_of_files),
        cmocka_unit_test(the_same_file_by_another_name),
        cmocka_unit_test(opening_never_waits),
        cmocka_unit_test(a_closed_standard_stream_is_not_taken),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
