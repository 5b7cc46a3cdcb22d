#include "model/spool.h"

#include "config/descriptor.h"
#include "config/knobs.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STEP ((size_t)8 << 20) // written, then on its way to the disk, at a time

struct gn_spool {
    int fd;
    struct gn_file *file;
    bool handed_out;
};

static const char *temporary_directory(void) {
    const char *temporary = getenv("TMPDIR");
    return temporary && *temporary ? temporary : "/var/tmp";
}

static bool lies_in_memory(const char *directory) {
    struct statfs fs;
    return statfs(directory, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

// Bytes that this user may still write there; all, if the file system does not say.
static uint64_t free_bytes(const char *directory) {
    struct statvfs fs;
    if (statvfs(directory, &fs) || fs.f_blocks == 0) {
        return UINT64_MAX;
    }
    return (uint64_t)(geteuid() == 0 ? fs.f_bfree : fs.f_bavail) * fs.f_frsize;
}

// A file without a name. Where the file system has none, one whose name is taken away at once.
static int open_unnamed(const char *directory) {
    int fd = gn_above_standard(open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)) {
        return fd >= 0 ? fd : -errno;
    }
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/guanaco-spool-XXXXXX", directory) >= sizeof path) {
        return -ENAMETOOLONG;
    }
    int made = mkostemp(path, O_CLOEXEC);
    if (made < 0) {
        return -errno;
    }
    fd = gn_above_standard(made);
    if (unlink(path) || fd < 0) {
        int error = errno;
        if (fd >= 0) {
            close(fd);
        }
        return -error;
    }
    return fd;
}

static int open_at(struct gn_spool *spool, const char *directory, uint64_t bytes, bool direct) {
    spool->fd = open_unnamed(directory);
    if (spool->fd < 0) {
        return spool->fd;
    }
    int failed = -posix_fallocate(spool->fd, 0, (off_t)bytes);
    return failed ? failed : gn_file_reopen(spool->fd, directory, direct, &spool->file);
}

int gn_spool_open(const char *directory, uint64_t bytes, bool direct, struct gn_spool **out, char *why,
                  size_t why_size) {
    bool chosen = directory != NULL;
    directory = chosen ? directory : temporary_directory();
    char need[32];
    gn_format_bytes(bytes, need);
    *out = NULL;
    if (!chosen && lies_in_memory(directory)) {
        snprintf(why, why_size,
                 "experts that come without a file need %s on a disk, and %s lies in memory; name a directory in "
                 "GUANACO_SPOOL_DIR, or load with --load-mode mmap",
                 need, directory);
        return -ENOSPC;
    }
    uint64_t room = free_bytes(directory);
    if (room < bytes) {
        snprintf(why, why_size,
                 "experts that come without a mapped file need %s in %s, where %s are free; name a directory with room "
                 "in GUANACO_SPOOL_DIR, or load with --load-mode mmap",
                 need, directory, gn_format_bytes(room, (char[32]){0}));
        return -ENOSPC;
    }
    struct gn_spool *spool = calloc(1, sizeof *spool);
    if (!spool) {
        snprintf(why, why_size, "memory is short");
        return -ENOMEM;
    }
    int failed = open_at(spool, directory, bytes, direct);
    if (failed) {
        snprintf(why, why_size,
                 "cannot keep %s of experts that come without a file in %s (%s); name a directory with room in "
                 "GUANACO_SPOOL_DIR, or load with --load-mode mmap",
                 need, directory, strerror(-failed));
        gn_spool_close(spool);
        return failed;
    }
    *out = spool;
    return 0;
}

void gn_spool_close(struct gn_spool *spool) {
    if (spool) {
        if (spool->fd >= 0) {
            close(spool->fd);
        }
        if (!spool->handed_out) {
            gn_file_close(spool->file);
        }
        free(spool);
    }
}

static int write_step(int fd, uint64_t offset, const uint8_t *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(fd, data + done, bytes - done, (off_t)(offset + done));
        if (put < 0 && errno != EINTR) {
            return -errno;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

// Has the kernel write a range to the disk. Where it cannot be asked, it does so in its own time. A disk that fails is
// an error: what is read back later would be other bytes.
static int write_back(int fd, uint64_t offset, size_t bytes, unsigned flags) {
    if (sync_file_range(fd, (off_t)offset, (off_t)bytes, flags) == 0) {
        return 0;
    }
    bool disk = errno == EIO || errno == ENOSPC || errno == EDQUOT;
    return disk ? -errno : 0;
}

// Waits until a range is on disk, and drops it from the page cache.
static int settle(int fd, uint64_t offset, size_t bytes) {
    int failed =
        write_back(fd, offset, bytes, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    return failed;
}

static int first_of(int failed, int then) {
    return failed ? failed : then;
}

int gn_spool_write(struct gn_spool *spool, uint64_t offset, const void *data, size_t bytes) {
    int failed = 0;
    for (size_t done = 0; done < bytes && !failed; done += STEP) {
        size_t step = bytes - done < STEP ? bytes - done : STEP;
        failed = write_step(spool->fd, offset + done, (const uint8_t *)data + done, step);
        if (done > 0) { // the step before is on its way meanwhile
            failed = first_of(failed, settle(spool->fd, offset + done - STEP, STEP));
        }
        failed = first_of(failed, write_back(spool->fd, offset + done, step, SYNC_FILE_RANGE_WRITE));
    }
    size_t last = bytes % STEP ? bytes % STEP : bytes < STEP ? bytes : STEP;
    failed = first_of(failed, settle(spool->fd, offset + bytes - last, last));
    return first_of(failed, gn_file_accept(spool->file));
}

struct gn_file *gn_spool_file(struct gn_spool *spool) {
    spool->handed_out = true;
    return spool->file;
}

const char *gn_spool_directory(const struct gn_spool *spool) {
    return gn_file_path(spool->file);
}
