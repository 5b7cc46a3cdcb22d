// io_uring refused, by a system-call filter in a child process: at once, or later with reads in flight.
#include "io_files.h"
#include "skip.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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
        left_out("io_uring", "it, or a filter of system calls, is refused here");
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
        left_out("io_uring", "it is refused here");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uring_refused),
        cmocka_unit_test(test_uring_enter_refused),
        cmocka_unit_test(test_uring_enter_refused_later),
    };
    if (begin_files()) {
        return 1;
    }
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    end_files();
    return test_result(failures);
}
