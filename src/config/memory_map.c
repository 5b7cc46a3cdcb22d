#include "config/memory_map.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

// No more than this lies below a stack to keep it from growing into something else.
#define MOST_GUARD ((uint64_t)64 << 10)

struct mapping {
    uintptr_t start, end;
    char mode[8];
    char name[256]; // "" when it has none
    uint64_t rss;
};

struct sum {
    struct gn_memory_map map;
    uint64_t stack_bytes;
    const struct gn_memory_range *left_out;
    size_t n;
    uintptr_t guard_end;      // of the mapping before, if it may be the guard of a stack
    char program[256];        // the file that is mapped to be run now
    uint64_t program_pending; // bytes of a file's mappings before the one that is run
    char pending[256];        // that file
};

static uint64_t overlap(const struct mapping *mapping, const struct gn_memory_range *range) {
    uintptr_t start = mapping->start > range->start ? mapping->start : range->start;
    uintptr_t end = mapping->end < range->end ? mapping->end : range->end;
    return end > start ? end - start : 0;
}

static void add_anonymous(struct sum *sum, const struct mapping *mapping) {
    uint64_t size = mapping->end - mapping->start, rss = mapping->rss;
    for (size_t i = 0; i < sum->n; i++) {
        uint64_t bytes = overlap(mapping, &sum->left_out[i]), touched = sum->left_out[i].touched;
        size -= bytes;
        touched = bytes > 0 ? touched : 0;
        rss = rss > touched ? rss - touched : 0;
    }
    if (mapping->start == sum->guard_end) { // begins with a stack, of which a thread uses next to nothing
        size -= size < sum->stack_bytes ? size : sum->stack_bytes;
    }
    sum->map.untouched += size > rss ? size - rss : 0;
}

// A library is mapped in pieces, one after another, of which one can be run.
static void add_file(struct sum *sum, const struct mapping *mapping) {
    if (strcmp(sum->pending, mapping->name) != 0) {
        memcpy(sum->pending, mapping->name, sizeof sum->pending);
        sum->program_pending = 0;
    }
    sum->program_pending += mapping->rss;
    bool runs = strchr(mapping->mode, 'x') != NULL;
    if (runs) {
        memcpy(sum->program, mapping->name, sizeof sum->program);
    }
    if (!strcmp(sum->program, mapping->name)) {
        sum->map.programs += sum->program_pending;
        sum->program_pending = 0;
    }
}

static void add(struct sum *sum, const struct mapping *mapping) {
    bool private = mapping->mode[3] == 'p', writable = mapping->mode[1] == 'w';
    if (mapping->name[0] == '/') {
        add_file(sum, mapping);
    } else if (private && writable && strcmp(mapping->name, "[stack]") != 0) {
        add_anonymous(sum, mapping);
    }
    bool guards = !strcmp(mapping->mode, "---p") && mapping->end - mapping->start <= MOST_GUARD;
    sum->guard_end = guards ? mapping->end : 0;
}

struct gn_memory_map gn_memory_map_of(FILE *smaps, uint64_t stack_bytes, const struct gn_memory_range *left_out,
                                      size_t n) {
    struct sum sum = {.stack_bytes = stack_bytes, .left_out = left_out, .n = n};
    struct mapping mapping = {0};
    char line[8192];
    while (fgets(line, sizeof line, smaps)) {
        struct mapping next = {0};
        int name = 0;
        uint64_t kib;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %*s %n", &next.start, &next.end, next.mode, &name) >=
            3) {
            if (mapping.end > 0) {
                add(&sum, &mapping);
            }
            line[strcspn(line, "\n")] = '\0';
            snprintf(next.name, sizeof next.name, "%.255s", name > 0 ? line + name : "");
            mapping = next;
        } else if (sscanf(line, "Rss: %" SCNu64, &kib) == 1) {
            mapping.rss = kib * 1024;
        }
    }
    if (mapping.end > 0) {
        add(&sum, &mapping);
    }
    return sum.map;
}

struct gn_memory_map gn_memory_map(const struct gn_memory_range *left_out, size_t n) {
    size_t stack_bytes = (size_t)8 << 20;
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) == 0) {
        pthread_attr_getstacksize(&attributes, &stack_bytes);
        pthread_attr_destroy(&attributes);
    }
    struct gn_memory_map map = {0};
    FILE *smaps = fopen("/proc/self/smaps", "re");
    if (smaps) {
        map = gn_memory_map_of(smaps, stack_bytes, left_out, n);
        fclose(smaps);
    }
    return map;
}
