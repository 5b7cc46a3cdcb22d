// Reads byte ranges of files into memory, many at a time. Knows nothing of experts, caches or ggml.
//
// One thread owns a reader: all calls below come from it. Completions are collected by that same thread in
// gn_reader_reap(), so no callback ever runs elsewhere and callers need no locks. The owner may change between two
// calls, even with reads in flight, if the callers order them (with a mutex, say). A file may be read by any threads at
// once.
//
// A read is described by a struct gn_read that the caller owns. From gn_reader_submit() until the read is returned by
// gn_reader_reap() neither the struct nor its destination may be touched or freed.
//
// Errors are negative errno values, as in liburing. Retried inside: EINTR, EAGAIN and short reads that make progress.
// Never retried: EIO and end of file (-ENODATA), which the caller turns into a failed decode.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Direct reads start, end and land on multiples of this. It is at least what every Linux file system asks for.
#define GN_BLOCK 4096u

struct gn_file;

// Opens the file for reading; direct (O_DIRECT, past the page cache) where asked for and possible. That it is possible
// is proven by statx(STATX_DIOALIGN), where the kernel has it, and by one real read. Otherwise the file is opened
// buffered, its pages are dropped after use with posix_fadvise, and one log line names the file and the reason.
//
// path: file to open; copied. expect_dev, expect_ino: 0, or the identity the file must have (-ESTALE when it differs).
// Returns 0 and the file in *out, or a negative errno: -EISDIR for a directory, -EINVAL for whatever else is neither a
// regular file nor a block device. On failure *out is NULL.
int gn_file_open(const char *path, bool want_direct, uint64_t expect_dev, uint64_t expect_ino, struct gn_file **out);

// Opens again, by its descriptor, a file that this process has open already (its name may be gone). As gn_file_open().
int gn_file_reopen(int fd, const char *name, bool want_direct, struct gn_file **out);

// For a file that is going to be streamed from: reads the block at `offset` both ways, and goes over to the page cache,
// with one log line, where a direct read brings other bytes. Once per file; while nobody else uses it.
void gn_file_compare(struct gn_file *file, uint64_t offset);

// Remembers a part of the contents for gn_file_unchanged(): some blocks, spread over the file. Returns 0 or a negative
// errno. While nobody else uses the file.
int gn_file_sample(struct gn_file *file);

void gn_file_close(struct gn_file *file); // NULL is allowed

const char *gn_file_path(const struct gn_file *file);
uint64_t gn_file_size(const struct gn_file *file); // bytes, as of opening
bool gn_file_direct(const struct gn_file *file);

// Whether the file still is what it was when opened, by its size and modification time. Returns 0, or -ESTALE when
// somebody changed it: bytes read since then cannot be trusted. Deleting the file, renaming it, giving it other names,
// a mode or an owner is no change, and the open one keeps its bytes when another is renamed over it. All these move the
// change time, as does a writer who puts the modification time back: so when that alone has moved, the sampled blocks
// are read again (gn_file_sample()), and -ESTALE tells that they are others. -EIO when pages of its mapping could not
// be read (io/guard.h). One fstat(). Not by two threads at once.
int gn_file_unchanged(struct gn_file *file);

// Reads `bytes` from `offset` into `to`, at any alignment and synchronously; for headers, dense weights and tests.
// Where `to` and `offset` are equally far from a multiple of GN_BLOCK, direct reads land in `to` without a copy.
// Returns 0, -ENODATA at the end of the file, or another negative errno.
int gn_file_read(const struct gn_file *file, uint64_t offset, size_t bytes, void *to);

struct gn_read {
    const struct gn_file *file;
    uint64_t offset;      // multiple of GN_BLOCK
    uint32_t length;      // bytes, multiple of GN_BLOCK; may pass the end of the file
    uint32_t need;        // bytes from `offset` that must arrive; the rest is padding
    void *to;             // length bytes, aligned to GN_BLOCK
    void *owner;          // the caller's
    int result;           // set on completion: 0, or a negative errno
    uint32_t done;        // bytes that arrived (the reader's own while in flight)
    struct gn_read *next; // the reader's own while in flight
};

enum gn_reader_kind {
    GN_READER_AUTO,    // io_uring, or threads where the kernel refuses it
    GN_READER_URING,   // io_uring; opening fails where the kernel or a sandbox refuses it
    GN_READER_THREADS, // a pool of threads that call pread()
    GN_READER_MAPPED,  // `to` lies in a read-only mapping of the file: its pages are brought into memory, nothing moves
    GN_READER_NULL,    // every read succeeds at once and moves nothing: measures all but the I/O, results are garbage
};

struct gn_reader_options {
    enum gn_reader_kind kind;
    unsigned depth; // reads in flight at most; 0: 32 for io_uring, 8 threads. Not above 4096, or 64 threads
    // Fault injection for tests: the fail_at-th read submitted (from 1; 0: none) completes with fail_result: a negative
    // errno, or, when positive, after only that many bytes have arrived, with -ENODATA. What did not arrive is
    // overwritten with garbage, so that a caller who ignores the error is found out.
    uint64_t fail_at;
    int fail_result;
};

struct gn_reader;

// Returns 0 and a reader in *out, or a negative errno (-ENOSYS, -EPERM, -ENOMEM when io_uring is refused). AUTO never
// fails for want of io_uring; it logs the fall-back in one line.
int gn_reader_open(const struct gn_reader_options *options, struct gn_reader **out);

// Waits for reads in flight, which then are the caller's again. NULL is allowed.
void gn_reader_close(struct gn_reader *reader);

// In a child process after fork(), instead of closing: a reader is its parent's. The reads in flight land in the
// parent's memory, and the threads that wait for them are not there. The reader's memory is not given back, as another
// thread may have been about to change it. Safe in a handler of pthread_atfork(). NULL is allowed.
void gn_reader_forked(struct gn_reader *reader);

const char *gn_reader_name(const struct gn_reader *reader); // "io_uring", "threads", "mapped" or "null"

// Starts n reads, in the given order, with as few system calls as the engine can. Never blocks on more reads than fit
// in flight: what exceeds the depth is queued and started as others complete. Cannot fail: errors come with the
// completions.
void gn_reader_submit(struct gn_reader *reader, struct gn_read *reads, size_t n);

// The same in two steps, for reads that lie apart: queues one, and starts what is queued.
void gn_reader_queue(struct gn_reader *reader, struct gn_read *read);
void gn_reader_start(struct gn_reader *reader);

// Returns one completed read, or NULL when none is in flight. When none is complete yet: waits if `wait`, else NULL.
struct gn_read *gn_reader_reap(struct gn_reader *reader, bool wait);

unsigned gn_reader_depth(const struct gn_reader *reader); // reads in flight at most, as opened

size_t gn_reader_in_flight(const struct gn_reader *reader); // submitted and not reaped

// How many more reads can be submitted that need not wait for others to complete.
size_t gn_reader_room(const struct gn_reader *reader);

// Since opening.
struct gn_reader_totals {
    uint64_t reads, bytes; // completed without error; bytes that arrived, padding included
    uint64_t errors;       // reads that failed
};
struct gn_reader_totals gn_reader_totals(const struct gn_reader *reader);
