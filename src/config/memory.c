#include "config/memory.h"

#include "config/knobs.h"
#include "config/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define PATH_SIZE 4352

static FILE *open_under(const char *root, const char *directory, const char *name) {
    char path[PATH_SIZE];
    int length = snprintf(path, sizeof path, "%s%s/%s", root, directory, name);
    return length < (int)sizeof path ? fopen(path, "re") : NULL;
}

// One number in a file; false when there is none ("max").
static bool read_number(const char *root, const char *directory, const char *name, uint64_t *number) {
    FILE *file = open_under(root, directory, name);
    bool found = file && fscanf(file, "%" SCNu64, number) == 1;
    if (file) {
        fclose(file);
    }
    return found;
}

// The sum of the lines "key number" whose key is one of keys[n].
static uint64_t sum_fields(const char *root, const char *directory, const char *name, const char *const *keys,
                           size_t n) {
    FILE *file = open_under(root, directory, name);
    char line[256], key[128];
    uint64_t sum = 0, number;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %" SCNu64, key, &number) != 2) {
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            sum += strcmp(key, keys[i]) == 0 ? number : 0;
        }
    }
    if (file) {
        fclose(file);
    }
    return sum;
}

struct version {
    const char *mount, *limit, *soft_limit, *usage;
    const char *reclaimable[3]; // in memory.stat, of the group and all below it
};

static const struct version version1 = {
    .mount = "/sys/fs/cgroup/memory",
    .limit = "memory.limit_in_bytes",
    .usage = "memory.usage_in_bytes",
    .reclaimable = {"total_active_file", "total_inactive_file", "total_slab_reclaimable"},
};

static const struct version version2 = {
    .mount = "/sys/fs/cgroup",
    .limit = "memory.max",
    .soft_limit = "memory.high", // above it the kernel throttles the group until it is useless
    .usage = "memory.current",
    .reclaimable = {"active_file", "inactive_file", "slab_reclaimable"},
};

static uint64_t left_in_group(const char *root, const char *directory, const struct version *version) {
    uint64_t limit = UINT64_MAX, number;
    if (read_number(root, directory, version->limit, &number)) {
        limit = number;
    }
    if (version->soft_limit && read_number(root, directory, version->soft_limit, &number) && number < limit) {
        limit = number;
    }
    if (limit == UINT64_MAX || !read_number(root, directory, version->usage, &number)) {
        return limit;
    }
    uint64_t cache = sum_fields(root, directory, "memory.stat", version->reclaimable, 3);
    uint64_t used = number > cache ? number - cache : 0;
    return limit > used ? limit - used : 0;
}

// The least of the group and all above it. Groups that are not visible from here (in a container the mount may show the
// container's own group as its root) are skipped.
static uint64_t left_in_hierarchy(const char *root, const char *group, const struct version *version) {
    char directory[PATH_SIZE];
    size_t mount = strlen(version->mount);
    if (snprintf(directory, sizeof directory, "%s%s", version->mount, group) >= (int)sizeof directory) {
        return UINT64_MAX;
    }
    uint64_t least = UINT64_MAX;
    for (;;) {
        uint64_t left = left_in_group(root, directory, version);
        least = left < least ? left : least;
        char *slash = strrchr(directory, '/');
        if (strlen(directory) <= mount || slash < directory + mount) {
            return least;
        }
        *slash = '\0';
    }
}

static bool lists_memory(const char *controllers) {
    char copy[256];
    snprintf(copy, sizeof copy, "%s", controllers);
    for (char *rest = copy, *word; (word = strsep(&rest, ","));) {
        if (!strcmp(word, "memory")) {
            return true;
        }
    }
    return false;
}

static uint64_t less(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

// Lines of /proc/self/cgroup: "4:memory:/group" (version 1), "0::/group" (version 2).
static uint64_t left_in_groups(const char *root, const char **missing) {
    FILE *file = open_under(root, "/proc/self", "cgroup");
    char line[PATH_SIZE];
    uint64_t least = UINT64_MAX;
    if (!file) { // in a container, the mount often shows the process's own group as its root
        *missing = *missing ? *missing : "/proc/self/cgroup";
        return less(left_in_hierarchy(root, "", &version1), left_in_hierarchy(root, "", &version2));
    }
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) {
            continue;
        }
        *controllers++ = *group++ = '\0';
        if (controllers[0] && !lists_memory(controllers)) {
            continue;
        }
        uint64_t left =
            left_in_hierarchy(root, strcmp(group, "/") ? group : "", controllers[0] ? &version1 : &version2);
        least = less(left, least);
    }
    fclose(file);
    return least;
}

// What is free without the page cache giving anything back.
static uint64_t free_by_sysinfo(void) {
    struct sysinfo info;
    return sysinfo(&info) == 0 ? ((uint64_t)info.freeram + info.bufferram) * info.mem_unit : 0;
}

uint64_t gn_memory_group_at(const char *root) {
    const char *missing = NULL; // what cannot be seen sets no limit here
    return left_in_groups(root, &missing);
}

uint64_t gn_memory_group(void) {
    return gn_memory_group_at("");
}

uint64_t gn_memory_available_at(const char *root, const char **missing) {
    static const char *const available[] = {"MemAvailable:"};
    uint64_t machine = sum_fields(root, "/proc", "meminfo", available, 1) * 1024;
    *missing = machine > 0 ? NULL : "MemAvailable in /proc/meminfo";
    machine = machine > 0 ? machine : free_by_sysinfo();
    return less(left_in_groups(root, missing), machine);
}

uint64_t gn_memory_available(void) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *missing;
    uint64_t bytes = gn_memory_available_at("", &missing);
    if (missing && !atomic_flag_test_and_set(&said)) {
        char text[32];
        gn_warn("cannot read %s: taking %s as the memory that is there; --ram (GUANACO_RAM) says it exactly", missing,
                gn_format_bytes(bytes, text));
    }
    return bytes;
}

static uint64_t peak_by_getrusage(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

uint64_t gn_memory_anonymous(void) {
    char text[128]; // "size resident shared …", in pages; without stdio, as this is asked for while computing
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    uint64_t resident, shared;
    if (sscanf(text, "%*u %" SCNu64 " %" SCNu64, &resident, &shared) != 2 || resident < shared) {
        return peak_by_getrusage();
    }
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t gn_memory_peak(void) {
    static const char *const peak[] = {"VmHWM:"};
    uint64_t bytes = sum_fields("", "/proc/self", "status", peak, 1) * 1024;
    return bytes > 0 ? bytes : peak_by_getrusage();
}
