// Which file lies behind an address of this process: /proc/self/maps, read and searched.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gn_mapping {
    uintptr_t start, end; // [start, end)
    uint64_t offset;      // file offset of `start`
    uint64_t dev, ino;    // as in struct stat; on overlay and btrfs `dev` may differ from stat's
    bool shared;          // not MAP_PRIVATE: what is in memory is what is in the file
    char path[4096];      // may end in " (deleted)"
};

// Finds the file-backed mapping that holds the address. Returns 1; 0 when there is none; a negative errno when that
// cannot be found out.
int gn_mapping_find(const void *address, struct gn_mapping *out);

// Maps the first page of an open file for a moment, to learn its device and inode number as mappings have them: stat's
// device need not be the same. False: it cannot be mapped, or not be found.
bool gn_mapping_of_file(int fd, struct gn_mapping *out);

// Whether the descriptor is open on the very file that is mapped: its inode number and its device.
bool gn_mapping_is_of(const struct gn_mapping *mapping, int fd);

// Calls visit(context, mapping) for every mapping of the file `dev`, `ino` (as in struct gn_mapping) that overlaps
// [start, end), in address order. Returns 0, or the first non-zero value of visit, or a negative errno.
int gn_mapping_each(uint64_t dev, uint64_t ino, uintptr_t start, uintptr_t end,
                    int (*visit)(void *context, const struct gn_mapping *mapping), void *context);
