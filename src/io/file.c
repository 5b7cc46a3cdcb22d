#include "io/file.h"

#include "config/descriptor.h"
#include "config/log.h"
#include "io/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

// The most that one step of an unaligned direct read copies.
#define BOUNCE_BYTES ((size_t)256 * 1024)

// The kernel reads no more for one MADV_WILLNEED than its read-ahead or the drive's largest request, and drops the
// rest: 128 KiB is what even a plain set-up takes whole.
#define WILL_NEED_BYTES ((size_t)128 * 1024)

struct gn_file {
    int fd;
    bool direct;
    struct stat opened; // what fstat() said at opening; st_ctim: when the contents were looked at last
    uint64_t size;
    bool sampled;
    uint64_t samples;       // of gn_file_hash_samples(), when sampled
    struct gn_guard *guard; // of its mapping
    char path[];
};

// Rejects what has no contents at offsets before opening it, because opening a FIFO would block.
static int check_kind(const char *path) {
    struct stat status;
    if (stat(path, &status)) {
        return -errno;
    }
    return S_ISREG(status.st_mode) || S_ISBLK(status.st_mode) ? 0 : S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
}

// Why statx() says that direct reads of GN_BLOCK are impossible; NULL when they are possible or it does not say.
static const char *refused_by_statx(int fd) {
#ifdef STATX_DIOALIGN
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
        if (status.stx_dio_offset_align == 0 || status.stx_dio_mem_align == 0) {
            return "its file system has no direct I/O for it";
        }
        if (GN_BLOCK % status.stx_dio_offset_align || GN_BLOCK % status.stx_dio_mem_align) {
            return "its file system wants direct I/O aligned to more than 4096 bytes";
        }
    }
#endif
    (void)fd;
    return NULL;
}

static ssize_t pread_retrying(int fd, void *to, size_t bytes, uint64_t offset) {
    ssize_t got;
    do {
        got = pread(fd, to, bytes, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

// Why a file opened with O_DIRECT cannot be read directly, or NULL. The real read catches file systems that accept the
// flag and then refuse, and kernels whose statx() does not know.
static const char *refused_direct(int fd) {
    struct stat status;
    struct statfs fs;
    bool device = fstat(fd, &status) == 0 && S_ISBLK(status.st_mode); // its node lies on a tmpfs, its bytes do not
    if (!device && fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)) {
        return "it lies in memory, on a tmpfs";
    }
    const char *why = refused_by_statx(fd);
    if (!why) {
        _Alignas(GN_BLOCK) uint8_t block[GN_BLOCK];
        ssize_t got = pread_retrying(fd, block, sizeof block, 0);
        why = got < 0 ? strerror((int)-got) : NULL;
    }
    return why;
}

// Goes over from direct reads to the page cache. Returns 0 or a negative errno.
static int read_buffered(struct gn_file *file) {
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags & ~O_DIRECT)) {
        return -errno;
    }
    file->direct = false;
    posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
    return 0;
}

static void say_buffered(const struct gn_file *file, const char *why) {
    gn_warn("%s cannot be read directly (%s): reading it through the page cache", file->path, why);
}

// Opens file->fd, direct if that works; if it was wanted and does not, *why says so. One descriptor serves both ways,
// so the name may change meanwhile.
static int open_fd(struct gn_file *file, const char *path, bool want_direct, const char **why) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY;
    file->fd = gn_above_standard(open(path, want_direct ? flags | O_DIRECT : flags));
    if (file->fd < 0 && want_direct && errno == EINVAL) {
        *why = "its file system refuses O_DIRECT";
        file->fd = gn_above_standard(open(path, flags));
    }
    if (file->fd < 0) {
        return -errno;
    }
    file->direct = want_direct && !*why;
    if (file->direct) {
        *why = refused_direct(file->fd);
    }
    return file->direct && !*why ? 0 : read_buffered(file);
}

// Records what was opened; -ESTALE when it is not the file expected.
static int identify(struct gn_file *file, uint64_t dev, uint64_t ino) {
    if (fstat(file->fd, &file->opened)) {
        return -errno;
    }
    bool other = (dev && file->opened.st_dev != dev) || (ino && file->opened.st_ino != ino);
    off_t size = S_ISBLK(file->opened.st_mode) ? lseek(file->fd, 0, SEEK_END) : file->opened.st_size;
    file->size = size > 0 ? (uint64_t)size : 0;
    return other ? -ESTALE : size < 0 ? -errno : 0;
}

// Opens by `path` the file that is called `name`.
static int open_named(const char *path, const char *name, bool want_direct, uint64_t dev, uint64_t ino,
                      struct gn_file **out) {
    *out = NULL;
    int failed = check_kind(path);
    if (failed) {
        return failed;
    }
    size_t bytes = strlen(name) + 1;
    struct gn_file *file = calloc(1, sizeof *file + bytes);
    if (!file) {
        return -ENOMEM;
    }
    memcpy(file->path, name, bytes);
    const char *why = NULL;
    failed = open_fd(file, path, want_direct, &why);
    if (!failed) {
        failed = identify(file, dev, ino);
    }
    if (failed) {
        gn_file_close(file);
        return failed;
    }
    if (why) {
        say_buffered(file, why);
    }
    *out = file;
    return 0;
}

int gn_file_open(const char *path, bool want_direct, uint64_t expect_dev, uint64_t expect_ino, struct gn_file **out) {
    return open_named(path, path, want_direct, expect_dev, expect_ino, out);
}

// The file by a copy of the descriptor, buffered.
static int take_descriptor(int fd, const char *name, struct gn_file **out) {
    size_t bytes = strlen(name) + 1;
    struct gn_file *file = calloc(1, sizeof *file + bytes);
    if (!file) {
        return -ENOMEM;
    }
    memcpy(file->path, name, bytes);
    file->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int failed = file->fd < 0 ? -errno : identify(file, 0, 0);
    if (failed) {
        gn_file_close(file);
        return failed;
    }
    say_buffered(file, "/proc is not there to open it again");
    *out = file;
    return 0;
}

int gn_file_reopen(int fd, const char *name, bool want_direct, struct gn_file **out) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int failed = open_named(link, name, want_direct, 0, 0, out);
    // Without /proc there is no other way to one's own direct reads: the descriptor's flags are everybody's.
    return failed == -ENOENT && access("/proc/self/fd", F_OK) ? take_descriptor(fd, name, out) : failed;
}

void gn_file_compare(struct gn_file *file, uint64_t offset) {
    if (!file->direct) {
        return;
    }
    _Alignas(GN_BLOCK) uint8_t direct[GN_BLOCK], buffered[GN_BLOCK];
    offset -= offset % GN_BLOCK;
    ssize_t got = pread_retrying(file->fd, direct, sizeof direct, offset);
    if (read_buffered(file)) {
        return;
    }
    ssize_t should = pread_retrying(file->fd, buffered, sizeof buffered, offset);
    gn_file_drop(file, offset, sizeof buffered);
    if (should >= 0 && (got != should || memcmp(direct, buffered, (size_t)got) != 0)) {
        say_buffered(file, got < 0 ? strerror((int)-got) : "such reads bring other bytes");
        return;
    }
    int flags = fcntl(file->fd, F_GETFL);
    file->direct = flags >= 0 && fcntl(file->fd, F_SETFL, flags | O_DIRECT) == 0;
}

int gn_file_sample(struct gn_file *file) {
    int failed = gn_file_hash_samples(file, &file->samples);
    file->sampled = !failed;
    return failed;
}

void gn_file_close(struct gn_file *file) {
    if (file) {
        if (file->fd >= 0) {
            close(file->fd);
        }
        free(file);
    }
}

const char *gn_file_path(const struct gn_file *file) {
    return file->path;
}

uint64_t gn_file_size(const struct gn_file *file) {
    return file->size;
}

bool gn_file_direct(const struct gn_file *file) {
    return file->direct;
}

int gn_file_fd(const struct gn_file *file) {
    return file->fd;
}

void gn_file_drop(const struct gn_file *file, uint64_t offset, uint64_t bytes) {
    if (!file->direct && bytes > 0) {      // 0 would mean: to the end
        uint64_t head = offset % GN_BLOCK; // only whole pages are dropped
        uint64_t whole = (head + bytes + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK;
        posix_fadvise(file->fd, (off_t)(offset - head), (off_t)whole, POSIX_FADV_DONTNEED);
    }
}

int gn_file_map(struct gn_file *file, void **mapping) {
    size_t bytes = (size_t)file->size;
    void *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (mapped == MAP_FAILED) {
        return -errno;
    }
    if (madvise(mapped, bytes, MADV_RANDOM)) {
        gn_debug("no advice for the mapping of %s: %s", file->path, strerror(errno));
    }
    file->guard = gn_guard_open(mapped, bytes);
    if (!file->guard) { // a page that cannot be read would end the process
        munmap(mapped, bytes);
        return -ENOMEM;
    }
    *mapping = mapped;
    return 0;
}

void gn_file_unmap(struct gn_file *file, void *mapping) {
    if (mapping) {
        gn_guard_close(file->guard);
        file->guard = NULL;
        munmap(mapping, (size_t)file->size);
    }
}

void gn_file_drop_mapped(const struct gn_file *file, const uint8_t *mapping, uint64_t offset, uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t begin = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
    if (begin < end) {
        // Page-table entries first: the page cache keeps what anybody has mapped.
        (void)madvise((uint8_t *)mapping + begin, end - begin, MADV_DONTNEED);
        posix_fadvise(file->fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_DONTNEED);
    }
}

unsigned gn_file_will_need(uint8_t *begin, size_t bytes) {
    unsigned refused = 0;
    for (size_t at = 0; at < bytes; at += WILL_NEED_BYTES) {
        size_t piece = bytes - at < WILL_NEED_BYTES ? bytes - at : WILL_NEED_BYTES;
        refused += madvise(begin + at, piece, MADV_WILLNEED) != 0;
    }
    return refused;
}

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int gn_file_unchanged(struct gn_file *file) {
    const struct stat *then = &file->opened;
    struct stat now;
    if (fstat(file->fd, &now)) {
        return -errno;
    }
    if (now.st_size != then->st_size || !same_time(now.st_mtim, then->st_mtim)) {
        return -ESTALE;
    }
    if (!same_time(now.st_ctim, then->st_ctim) && file->sampled) {
        uint64_t samples;
        int failed = gn_file_hash_samples(file, &samples);
        if (failed || samples != file->samples) {
            return failed ? failed : -ESTALE;
        }
    }
    file->opened.st_ctim = now.st_ctim;
    return gn_guard_torn(file->guard) ? -EIO : 0;
}

int gn_file_accept(struct gn_file *file) {
    file->sampled = false;
    return fstat(file->fd, &file->opened) ? -errno : 0;
}

// Reads a first part of the range, whole blocks into `bounce`, and copies what was asked for. Returns how much that
// was.
static ssize_t read_bounced(const struct gn_file *file, uint64_t offset, size_t bytes, uint8_t *to, uint8_t *bounce) {
    size_t head = offset % GN_BLOCK;
    // Where the middle can go straight to `to`, one block gets there.
    size_t most = (uintptr_t)to % GN_BLOCK == head ? GN_BLOCK : BOUNCE_BYTES;
    size_t want = most;
    if (bytes < most - head) {
        want = (head + bytes + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK;
    }
    ssize_t got = pread_retrying(file->fd, bounce, want, offset - head);
    if (got < 0) {
        return got;
    }
    size_t useful = (size_t)got > head ? (size_t)got - head : 0;
    useful = useful < bytes ? useful : bytes;
    memcpy(to, bounce + head, useful);
    return (ssize_t)useful;
}

static ssize_t read_part(const struct gn_file *file, uint64_t offset, size_t bytes, uint8_t *to, uint8_t *bounce) {
    if (!file->direct) {
        return pread_retrying(file->fd, to, bytes, offset);
    }
    if (offset % GN_BLOCK == 0 && (uintptr_t)to % GN_BLOCK == 0 && bytes >= GN_BLOCK) {
        return pread_retrying(file->fd, to, bytes - bytes % GN_BLOCK, offset);
    }
    return read_bounced(file, offset, bytes, to, bounce);
}

int gn_file_read(const struct gn_file *file, uint64_t offset, size_t bytes, void *to) {
    uint8_t *bounce = NULL;
    if (file->direct && !(bounce = aligned_alloc(GN_BLOCK, BOUNCE_BYTES))) {
        return -ENOMEM;
    }
    ssize_t got = 0;
    for (size_t done = 0; done < bytes; done += (size_t)got) {
        got = read_part(file, offset + done, bytes - done, (uint8_t *)to + done, bounce);
        if (got <= 0) {
            got = got ? got : -ENODATA;
            break;
        }
    }
    free(bounce);
    gn_file_drop(file, offset, bytes);
    return got < 0 ? (int)got : 0;
}
