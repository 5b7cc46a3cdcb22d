#include "bench/group.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_text(const char *directory, const char *name, const char *text) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "re+");
    if (!file) {
        return -errno;
    }
    bool written = fputs(text, file) >= 0;
    return fclose(file) == 0 && written ? 0 : -errno;
}

// One candidate: a child of `parent`. On failure nothing of it is left.
static int make(struct bench_group *group, const char *parent, uint64_t limit, struct bench_undo *undo) {
    char text[32];
    int length = snprintf(group->directory, sizeof group->directory, "%s/guanaco-bench-%d", parent, (int)getpid());
    if (length >= (int)sizeof group->directory || !bench_undo_directory(undo, group->directory)) {
        return -ENAMETOOLONG;
    }
    if (mkdir(group->directory, 0755)) {
        return -errno;
    }
    snprintf(text, sizeof text, "%" PRIu64 "\n", limit);
    int failed = write_text(group->directory, group->version1 ? "memory.limit_in_bytes" : "memory.max", text);
    if (failed) {
        rmdir(group->directory);
        return failed;
    }
    // Swapping would hide what does not fit. Where it cannot be forbidden there is none, as a rule.
    write_text(group->directory, group->version1 ? "memory.swappiness" : "memory.swap.max", "0\n");
    return 0;
}

// Our group and those above it, the nearest first, down to the mount itself.
static int make_at_or_above(struct bench_group *group, const char *mount, const char *own, uint64_t limit,
                            struct bench_undo *undo) {
    char parent[PATH_MAX];
    int failed = -ENOENT;
    if (snprintf(parent, sizeof parent, "%s%s", mount, strcmp(own, "/") != 0 ? own : "") >= (int)sizeof parent) {
        return -ENAMETOOLONG;
    }
    for (;;) {
        int now = make(group, parent, limit, undo);
        if (now == 0) {
            return 0;
        }
        // "Not permitted" tells more than "not there", which a container's view of its own group gives.
        failed = failed == -ENOENT ? now : failed;
        char *slash = strrchr(parent, '/');
        if (strlen(parent) <= strlen(mount) || slash < parent + strlen(mount)) {
            return failed;
        }
        *slash = '\0';
    }
}

static bool lists_memory(const char *controllers) {
    for (const char *at = controllers; (at = strstr(at, "memory")); at++) {
        if ((at == controllers || at[-1] == ',') && (at[6] == ',' || at[6] == '\0')) {
            return true;
        }
    }
    return false;
}

bool bench_group_open(struct bench_group *group, uint64_t limit, struct bench_undo *undo, char *why, size_t why_size) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];
    int failed = -ENOENT;
    // "4:memory:/group" (version 1), "0::/group" (version 2)
    while (file && failed && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *own = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!own) {
            continue;
        }
        *controllers++ = *own++ = '\0';
        if (controllers[0] && !lists_memory(controllers)) {
            continue;
        }
        group->version1 = controllers[0] != '\0';
        int now =
            make_at_or_above(group, group->version1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", own, limit, undo);
        failed = now == 0 || failed == -ENOENT ? now : failed;
    }
    if (file) {
        fclose(file);
    }
    if (failed) {
        snprintf(why, why_size, "no memory control group can be made here (%s); try as root, or in systemd-run --user",
                 strerror(-failed));
    }
    return failed == 0;
}

int bench_group_enter(const struct bench_group *group) {
    return write_text(group->directory, "cgroup.procs", "0\n");
}

uint64_t bench_group_peak(const struct bench_group *group) {
    char path[PATH_MAX + 64];
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s", group->directory,
             group->version1 ? "memory.max_usage_in_bytes" : "memory.peak");
    FILE *file = fopen(path, "re");
    if (file) {
        bytes = fscanf(file, "%" SCNu64, &bytes) == 1 ? bytes : 0;
        fclose(file);
    }
    return bytes;
}

void bench_group_close(const struct bench_group *group) {
    for (int tries = 0; tries < 20 && rmdir(group->directory) && errno == EBUSY; tries++) {
        usleep(50 * 1000); // its last process is on its way out
    }
}
