// What the reader and its engines need of a file beyond reader.h.
#pragma once

#include "io/reader.h"

int gn_file_fd(const struct gn_file *file);

// A number made of some blocks of the contents, spread over the file, in *hash. Returns 0 or a negative errno. In
// samples.c.
int gn_file_hash_samples(const struct gn_file *file, uint64_t *hash);

// Drops a range from the page cache that a buffered read has just filled; nothing for a direct file.
void gn_file_drop(const struct gn_file *file, uint64_t offset, uint64_t bytes);

// Maps the whole file, read-only, with no read-ahead, once at most. Returns 0 with its first byte, or a negative errno.
// Pages that cannot be had read as zeros (guard.h); gn_file_unchanged() then says -EIO, if not -ESTALE.
int gn_file_map(struct gn_file *file, void **mapping);
void gn_file_unmap(struct gn_file *file, void *mapping); // NULL is allowed
// Gives back the whole pages within a range, to the kernel and out of the page cache. Advice: pages that another
// process has mapped stay.
void gn_file_drop_mapped(const struct gn_file *file, const uint8_t *mapping, uint64_t offset, uint64_t bytes);

// Asks the kernel to read pages of a mapping, from the page at `begin` on, ahead of use; does not wait for them.
// Returns how many of its calls were refused.
unsigned gn_file_will_need(uint8_t *begin, size_t bytes);

// Takes the file as it stands now for unchanged: for one that this process writes itself. Returns 0 or a negative
// errno.
int gn_file_accept(struct gn_file *file);
