// How much memory the process may still take, and how much it takes. Knows nothing of ggml.
#pragma once

#include <stdint.h>

// Bytes that this process could still take without swapping: the least of what the kernel calls available and of what
// each control group above the process (version 1 or 2) has left, its reclaimable file cache counted as free. Where
// /proc cannot be read: what sysinfo() calls free, less than there is, and the limits that can be seen; a warning says
// so once.
uint64_t gn_memory_available(void);

// The same, with every file looked up under `root` instead of "/". For tests. *missing: what cannot be read, or NULL.
uint64_t gn_memory_available_at(const char *root, const char **missing);

// What the control groups alone have left for it: the kernel kills a process that takes more. UINT64_MAX where no
// group has a limit.
uint64_t gn_memory_group(void);
uint64_t gn_memory_group_at(const char *root); // as above

// What the process holds that is its own, file mappings not counted, now; and its resident memory, all of it, at its
// highest. Bytes. Where /proc cannot be read, both are the latter, by getrusage(). The first takes microseconds.
uint64_t gn_memory_anonymous(void);
uint64_t gn_memory_peak(void);
