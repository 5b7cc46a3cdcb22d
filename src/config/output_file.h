// Which files a command may write. No file that is read is written over, nor one that another option writes; a model or
// an imatrix (any GGUF file) never is. This is asked before anything is loaded. Needs libc alone.
//
// Files are compared by device and inode, so links and other spellings of a path are the same file. A file that does
// not exist yet is told by its folder and name.
//
// Not thread-safe. Functions that take why[why_size] return true, or false with one plain line in it: the option, the
// file, what to do.
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum gn_output_kind {
    GN_OUTPUT_STREAM,   // written as things happen: a regular file, a character device, or a pipe that is open already
    GN_OUTPUT_REPLACED, // written by gn_replace_file(): a regular file, or none yet
    GN_OUTPUT_HOT_SET,  // the same; what is there must be a hot set, or empty
};

#define GN_HOT_SET_MAGIC "GNHOTSET" // the first eight bytes of a hot set

// Which file a path names.
struct gn_file_id {
    bool regular; // or none yet; else it is nothing that could be overwritten, and equals no other
    dev_t dev;    // of the file, or of its folder
    ino_t ino;
    char name[NAME_MAX + 1]; // "" when the file exists
};

struct gn_output {
    const char *option, *path; // not copied
    struct gn_file_id id;
};

// What one command writes. Begin with all zeros.
struct gn_outputs {
    struct gn_output output[8];
    unsigned n;
};

// Adds the file that an option names, such as "--trace (GUANACO_TRACE)". False when it may not be written: it is of the
// wrong kind, its folder does not allow it, or another output, or what standard input or output is redirected to, is
// the same file. path NULL: nothing is added.
bool gn_outputs_add(struct gn_outputs *outputs, enum gn_output_kind kind, const char *option, const char *path,
                    char *why, size_t why_size);

// Why what is at `path` now may not be written, to follow the path in a sentence; NULL: it may, or nothing is there.
const char *gn_output_unfit(enum gn_output_kind kind, const char *path);

// False when the file at `path`, which is read, is one of the outputs. what: in words, such as "the model". path NULL,
// or one that names no file: true.
bool gn_outputs_spare(const struct gn_outputs *outputs, const char *what, const char *path, char *why, size_t why_size);

// Opens a file of GN_OUTPUT_STREAM for writing, empty, and never waits for a reader. Returns the descriptor, above
// those of the standard streams, or a negative errno: -ENXIO for a FIFO that nobody reads.
int gn_output_open(const char *path);

// Replaces the file at `path` (where a link leads, the file there) by one of these bytes, or makes it: whoever reads
// sees the old one or the new one, whole. The new file has the old one's mode, or else `mode`. Returns 0, or a negative
// errno, and the old file is then as it was.
int gn_replace_file(const char *path, const void *bytes, size_t n, mode_t mode);
