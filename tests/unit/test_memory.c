// What the machine and the control groups have left, from files made up here.
#include "config/memory.h"

// cmocka wants these before itself
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk) {
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

static int remove_root(void **state) {
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

// Writes a file below the root, its directories as needed.
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int make_root(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/guanaco-memory-XXXXXX");
    if (!mkdtemp(root)) {
        return -1;
    }
    put("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable:    8000 kB\nSwapTotal: 0 kB\n");
    return 0;
}

#define MACHINE (8000 * (uint64_t)1024)

static uint64_t available(void) {
    const char *missing;
    return gn_memory_available_at(root, &missing);
}

static void nothing_to_read(void **state) {
    (void)state;
    const char *missing = NULL;
    assert_true(gn_memory_available_at("/nonexistent", &missing) > 0); // by sysinfo()
    assert_non_null(strstr(missing, "/proc/meminfo"));
}

// A kernel before 3.14, or something that is no kernel's.
static void no_figure_for_the_machine(void **state) {
    (void)state;
    const char *missing = NULL;
    put("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 100 kB\n");
    put("/proc/self/cgroup", "0::/\n");
    assert_true(gn_memory_available_at(root, &missing) > 0);
    assert_non_null(strstr(missing, "MemAvailable"));
}

static void groups_that_are_not_told(void **state) {
    (void)state;
    const char *missing = NULL;
    put("/sys/fs/cgroup/memory.max", "4000000\n");
    put("/sys/fs/cgroup/memory.current", "1000000\n");
    assert_true(gn_memory_available_at(root, &missing) == 3000000);
    assert_string_equal(missing, "/proc/self/cgroup");
}

static void the_machine_alone(void **state) {
    (void)state;
    assert_true(available() == MACHINE);
    put("/proc/self/cgroup", "garbage\n\n::\n0::/\n");
    assert_true(available() == MACHINE);
}

static void version2_limit_counts_its_cache_as_free(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "5000000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "3000000\n");
    put("/sys/fs/cgroup/a/b/memory.stat", "anon 1500000\nfile 1500000\ninactive_file 900000\nactive_file 500000\n"
                                          "slab_reclaimable 100000\nworkingset_refault_file 7\n");
    assert_true(available() == 5000000 - (3000000 - 1500000));
}

static void version2_limit_above(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "3000000\n");
    put("/sys/fs/cgroup/a/memory.max", "4000000\n");
    put("/sys/fs/cgroup/a/memory.current", "1000000\n");
    assert_true(available() == 3000000);
    put("/sys/fs/cgroup/a/memory.high", "2500000\n"); // the kernel throttles from there on
    assert_true(available() == 1500000);
    put("/sys/fs/cgroup/a/memory.current", "2600000\n");
    assert_true(available() == 0);
}

static void version2_in_a_container(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/not/visible/here\n"); // the mount's root is our own group
    put("/sys/fs/cgroup/memory.max", "4000000\n");
    put("/sys/fs/cgroup/memory.current", "1000000\n");
    assert_true(available() == 3000000);
}

// A namespace of its own shows the process at the root, and the group's limit there; a child of it adds its own.
static void version2_in_a_namespace(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    put("/sys/fs/cgroup/memory.max", "4000000\n");
    put("/sys/fs/cgroup/memory.current", "3000000\n");
    put("/sys/fs/cgroup/memory.stat", "anon 100\ninactive_file 2000000\n");
    assert_true(available() == 3000000);
    put("/proc/self/cgroup", "0::/model.service\n");
    put("/sys/fs/cgroup/model.service/memory.max", "2500000\n");
    put("/sys/fs/cgroup/model.service/memory.current", "500000\n");
    assert_true(available() == 2000000);
    put("/sys/fs/cgroup/model.service/memory.high", "max\n");
    assert_true(available() == 2000000);
}

static void version1_among_other_controllers(void **state) {
    (void)state;
    put("/proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/a/b\n1:memoryless:/a\n0::/\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "2000000\n");
    assert_true(available() == MACHINE);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000000\n");
    put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2000000\n");
    put("/sys/fs/cgroup/memory/a/memory.stat",
        "inactive_file 1\ntotal_inactive_file 300000\ntotal_active_file 200000\n");
    assert_true(available() == 5000000 - (2000000 - 500000));
}

static void a_huge_path(void **state) {
    (void)state;
    char *line = malloc(20000);
    memset(line, 'a', 20000);
    memcpy(line, "0::/", 4);
    line[19999] = '\0';
    put("/proc/self/cgroup", line);
    free(line);
    assert_true(available() == MACHINE);
}

static void this_process(void **state) {
    (void)state;
    assert_true(gn_memory_available() > 0);
    assert_true(gn_memory_anonymous() > 4096);
    assert_true(gn_memory_peak() >= gn_memory_anonymous() / 2);
}

#define test(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        test(nothing_to_read),
        test(no_figure_for_the_machine),
        test(groups_that_are_not_told),
        test(the_machine_alone),
        test(version2_limit_counts_its_cache_as_free),
        test(version2_limit_above),
        test(version2_in_a_container),
        test(version1_among_other_controllers),
        test(version2_in_a_namespace),
        test(a_huge_path),
        cmocka_unit_test(this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
