// A memory control group of our own, version 1 or 2, for one run.
#pragma once

#include "bench/undo.h"

#include <limits.h>
#include <stdint.h>

struct bench_group {
    char directory[PATH_MAX];
    bool version1;
};

// Makes a group with a memory limit, below our own group or, where that cannot be, the nearest group above it that lets
// us. Returns true, or false with one plain line in why.
bool bench_group_open(struct bench_group *group, uint64_t limit, struct bench_undo *undo, char *why, size_t why_size);

// Moves the calling process into the group. Returns 0 or a negative errno.
int bench_group_enter(const struct bench_group *group);

// Memory of the group at its highest, page cache and the kernel's share included; 0 when the kernel does not say.
uint64_t bench_group_peak(const struct bench_group *group);

// Removes the group, whose processes have ended.
void bench_group_close(const struct bench_group *group);
