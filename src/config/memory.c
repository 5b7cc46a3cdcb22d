#include "config/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_LIMIT UINT64_MAX

// The number after `key` in a file of "key value" lines, times `unit`; fallback when it is not there.
static uint64_t value_of(const char *path, const char *key, uint64_t unit, uint64_t fallback) {
    FILE *file = fopen(path, "re");
    if (!file) {
        return fallback;
    }
    char line[256];
    size_t length = strlen(key);
    uint64_t value = fallback;
    while (fgets(line, sizeof line, file)) {
        uint64_t number;
        if (!strncmp(line, key, length) && sscanf(line + length, " %" SCNu64, &number) == 1) {
            value = number * unit;
            break;
        }
    }
    fclose(file);
    return value;
}

// A file with one number; "max" and absurd numbers are no limit.
static uint64_t number_in(const char *directory, const char *name, uint64_t fallback) {
    char path[4352];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    uint64_t number = value_of(path, "", 1, fallback);
    return number > (uint64_t)1 << 60 ? NO_LIMIT : number;
}

struct names {
    const char *limit, *usage, *reclaimable;
};

static const struct names version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
static const struct names version2 = {"memory.max", "memory.current", "inactive_file "};

// What one group still allows.
static uint64_t left_in_group(const char *directory, const struct names *names) {
    uint64_t limit = number_in(directory, names->limit, NO_LIMIT);
    if (limit == NO_LIMIT) {
        return NO_LIMIT;
    }
    char path[4352];
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    uint64_t used = number_in(directory, names->usage, 0), cached = value_of(path, names->reclaimable, 1, 0);
    used = used > cached ? used - cached : 0;
    return limit > used ? limit - used : 0;
}

// The least that a group or any of those around it allows.
static uint64_t left_in_hierarchy(const char *mount, const char *group, const struct names *names) {
    char directory[4096];
    snprintf(directory, sizeof directory, "%s%s", mount, strcmp(group, "/") ? group : "");
    uint64_t left = NO_LIMIT;
    size_t root = strlen(mount);
    for (;;) {
        uint64_t here = left_in_group(directory, names);
        left = here < left ? here : left;
        char *slash = strrchr(directory + root, '/');
        if (!slash) {
            return left;
        }
        *slash = '\0';
    }
}

// One line of /proc/self/cgroup: "id:controllers:path".
static uint64_t left_by_line(const char *root, char *line) {
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) {
        return NO_LIMIT;
    }
    *path++ = '\0';
    controllers++;
    path[strcspn(path, "\n")] = '\0';
    char mount[512];
    if (!*controllers) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        return left_in_hierarchy(mount, path, &version2);
    }
    bool memory = false;
    for (char *save, *name = strtok_r(controllers, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        memory |= !strcmp(name, "memory");
    }
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
    return memory ? left_in_hierarchy(mount, path, &version1) : NO_LIMIT;
}

uint64_t gn_memory_available_at(const char *root) {
    char path[512], line[4096];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t left = value_of(path, "MemAvailable:", 1024, 0);
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *groups = fopen(path, "re");
    while (groups && fgets(line, sizeof line, groups)) {
        uint64_t here = left_by_line(root, line);
        left = here < left ? here : left;
    }
    if (groups) {
        fclose(groups);
    }
    return left;
}

uint64_t gn_memory_available(void) { return gn_memory_available_at(""); }

uint64_t gn_memory_resident(void) { return value_of("/proc/self/status", "VmRSS:", 1024, 0); }

uint64_t gn_memory_peak(void) { return value_of("/proc/self/status", "VmHWM:", 1024, 0); }
