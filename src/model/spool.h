// A file for weights that no file backs: loaded without a mapping, or sent over the network. It has no name (it is
// unlinked from the start, so that it goes with the process), its room on disk is taken beforehand, and it is streamed
// from like any other.
//
// Not thread-safe: written by the loading thread.
#pragma once

#include "io/reader.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gn_spool;

// Makes a file with room for `bytes` in `directory` (GUANACO_SPOOL_DIR); NULL: the directory of TMPDIR, else /var/tmp,
// unless it lies in memory (tmpfs). Refused (-ENOSPC) before anything is written when less is free there. Returns 0
// with the spool, or a negative errno with one plain line in why: what, where, what to do.
int gn_spool_open(const char *directory, uint64_t bytes, bool direct, struct gn_spool **out, char *why,
                  size_t why_size);
void gn_spool_close(struct gn_spool *spool); // not a file handed out; NULL is allowed

// Writes bytes at `offset`. What is written does not stay in the page cache. Returns 0 or a negative errno.
int gn_spool_write(struct gn_spool *spool, uint64_t offset, const void *data, size_t bytes);

// The file to read from, its path being the directory's. Who calls this closes it.
struct gn_file *gn_spool_file(struct gn_spool *spool);
const char *gn_spool_directory(const struct gn_spool *spool);
