// What the process has reserved and not touched yet: it may take it at any time, without asking anybody.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// A range of addresses that is not to be counted, and how much of it is in memory.
struct gn_memory_range {
    uintptr_t start, end;
    uint64_t touched; // bytes
};

struct gn_memory_map {
    uint64_t untouched; // bytes of private anonymous memory, writable, that are not in memory; stacks left out
    uint64_t programs;  // bytes in memory of files that are mapped to be run: programs and libraries, code and data
};

// Reads /proc/self/smaps, which goes through all page tables: milliseconds for each gigabyte that is in memory. Both
// 0 when it cannot be read.
struct gn_memory_map gn_memory_map(const struct gn_memory_range *left_out, size_t n);

// The same of a file in that form, where threads' stacks have so many bytes. For tests.
struct gn_memory_map gn_memory_map_of(FILE *smaps, uint64_t stack_bytes, const struct gn_memory_range *left_out,
                                      size_t n);
