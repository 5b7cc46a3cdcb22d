// How much memory the process may still take, and how much it takes. Knows nothing of ggml.
#pragma once

#include <stdint.h>

// Bytes that this process could still take without swapping: the least of what the kernel calls available and of what
// each control group above the process (version 1 or 2) has left, its reclaimable file cache counted as free. 0 when
// /proc cannot be read.
uint64_t gn_memory_available(void);

// The same, with every file looked up under `root` instead of "/". For tests.
uint64_t gn_memory_available_at(const char *root);

// What the process holds that is its own, file mappings not counted, now; and its resident memory, all of it, at its
// highest. Bytes; 0 when /proc cannot be read.
uint64_t gn_memory_anonymous(void);
uint64_t gn_memory_peak(void);
