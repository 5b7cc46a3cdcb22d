// Keeps llama.cpp's loader from reading a whole Mixture-of-Experts model into the page cache: for a mapping of such a
// GGUF file MAP_POPULATE is dropped, and posix_madvise(POSIX_MADV_WILLNEED) inside it does nothing. All else passes
// through untouched. Our own pages are asked for with madvise(), which is not ours to change.
//
// A preload reaches every child process and runs inside its first allocations and its signal handlers. So: libc alone,
// no allocation, no locks, no dlsym() (it allocates), the kernel called directly.
#undef _FILE_OFFSET_BITS // would rename the mmap defined here to mmap64; the same type on every 64-bit system

#include "preload/gguf_scan.h"
#include "preload/switch.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef mmap64 // some C libraries make it a macro

#if __SIZEOF_POINTER__ != 8 || defined(__s390x__)
#error "the mmap system call takes its arguments in another way here"
#endif

#define EXPORT __attribute__((visibility("default")))

EXPORT void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset);
EXPORT int guanaco_preload_active(void);
EXPORT size_t guanaco_preload_mappings(void);

// Mappings of models, some of them cut by munmap. A range is free while start is 0 and being written while it is
// CLAIMED. Races between calls on one range would be races of the program with itself; the worst that comes of one is
// an advice given or not given.
enum { RANGES = 512, CLAIMED = 1 };
static struct range { atomic_uintptr_t start, end; } ranges[RANGES];
static atomic_size_t ranges_used; // no range at or above this index has ever been used
static atomic_size_t mappings;

static bool remember(uintptr_t start, uintptr_t end) {
    for (size_t i = 0; i < RANGES; i++) {
        uintptr_t expected = 0;
        if (!atomic_compare_exchange_strong(&ranges[i].start, &expected, CLAIMED)) {
            continue;
        }
        atomic_store(&ranges[i].end, end);
        size_t used = atomic_load(&ranges_used);
        while (used <= i && !atomic_compare_exchange_weak(&ranges_used, &used, i + 1)) {
        }
        atomic_store(&ranges[i].start, start);
        return true;
    }
    return false; // full: its advice passes through
}

static bool is_remembered(uintptr_t start, uintptr_t end) {
    size_t used = atomic_load(&ranges_used);
    for (size_t i = 0; i < used; i++) {
        uintptr_t from = atomic_load(&ranges[i].start);
        if (from > CLAIMED && from <= start && end <= atomic_load(&ranges[i].end)) {
            return true;
        }
    }
    return false;
}

static void forget(uintptr_t start, uintptr_t end) {
    size_t used = atomic_load(&ranges_used);
    for (size_t i = 0; i < used; i++) {
        uintptr_t from = atomic_load(&ranges[i].start);
        uintptr_t to = atomic_load(&ranges[i].end);
        if (from <= CLAIMED || from >= end || to <= start) {
            continue;
        }
        if (from < start) {
            atomic_store(&ranges[i].end, start);
            if (end < to) {
                remember(end, to);
            }
        } else {
            atomic_store(&ranges[i].start, end < to ? end : 0);
        }
    }
}

// Reading a device may do something, so only regular files and block devices are looked into.
static bool has_contents(int fd) {
    struct stat status;
    int saved_errno = errno;
    bool has = fstat(fd, &status) == 0 && (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode));
    errno = saved_errno;
    return has;
}

static bool maps_model(int protection, int flags, int fd) {
    return fd >= 0 && protection == PROT_READ && !(flags & MAP_ANONYMOUS) && has_contents(fd) &&
           gn_gguf_has_experts(fd) && !gn_streaming_off();
}

static uintptr_t round_to_page(uintptr_t address) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return (address + page - 1) / page * page;
}

static void *map(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    bool model = maps_model(protection, flags, fd);
    if (model) {
        flags &= ~MAP_POPULATE;
    }
    // syscall() reads longs: an int would leave the upper half of its register undefined
    void *result = (void *)syscall(SYS_mmap, address, length, (long)protection, (long)flags, (long)fd, offset);
    if (model && result != MAP_FAILED) {
        remember((uintptr_t)result, round_to_page((uintptr_t)result + length));
        atomic_fetch_add(&mappings, 1);
    }
    return result;
}

EXPORT void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    return map(address, length, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    return map(address, length, protection, flags, fd, offset);
}

// What is unmapped may be reused for something else at once, so it is forgotten before, not after.
EXPORT int munmap(void *address, size_t length) {
    uintptr_t start = (uintptr_t)address;
    if (atomic_load(&ranges_used) > 0 && length > 0 && start <= UINTPTR_MAX / 2 && length <= UINTPTR_MAX / 2 &&
        round_to_page(start) == start) {
        forget(start, round_to_page(start + length));
    }
    return (int)syscall(SYS_munmap, address, length);
}

// As libc does: the error is returned, errno stays, and POSIX's DONTNEED (harmless) is not Linux's (destructive).
EXPORT int posix_madvise(void *address, size_t length, int advice) {
    if (advice == POSIX_MADV_DONTNEED) {
        return 0;
    }
    uintptr_t start = (uintptr_t)address;
    if (advice == POSIX_MADV_WILLNEED && length <= UINTPTR_MAX - start && is_remembered(start, start + length)) {
        return 0;
    }
    int saved_errno = errno;
    int error = syscall(SYS_madvise, address, length, (long)advice) == 0 ? 0 : errno;
    errno = saved_errno;
    return error;
}

EXPORT int guanaco_preload_active(void) {
    return 1;
}

EXPORT size_t guanaco_preload_mappings(void) {
    return atomic_load(&mappings);
}
