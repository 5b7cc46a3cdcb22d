// How much memory this machine, and the control group this process runs in, can still give.
#pragma once

#include <stdint.h>

// Bytes that can be taken without swapping: MemAvailable, and no more than any enclosing control group (v1 or v2) still
// allows, reclaimable page cache counted as free. Reads a handful of small files; any thread. 0 when nothing can be learnt.
uint64_t gn_memory_available(void);

// The same, with /proc and /sys looked for below `root` (tests; "" is the real one).
uint64_t gn_memory_available_at(const char *root);

// This process's resident set: now, and at its peak. Bytes; 0 when /proc is not there.
uint64_t gn_memory_resident(void);
uint64_t gn_memory_peak(void);
