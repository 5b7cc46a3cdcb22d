// Calls that fail plainly: memory, threads, processes, opening and looking at files.
#undef _FILE_OFFSET_BITS // would rename open to open64 and so on; the same types on every 64-bit system

#include "fail_nth.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#undef mmap64 // a macro in some C libraries

// glibc's own names for these: dlsym() itself allocates.
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

EXPORT void *malloc(size_t bytes) {
    return strikes(MALLOC, CALLER) ? NULL : __libc_malloc(bytes);
}

EXPORT void *calloc(size_t n, size_t bytes) {
    return strikes(CALLOC, CALLER) ? NULL : __libc_calloc(n, bytes);
}

EXPORT void *realloc(void *old, size_t bytes) {
    return strikes(REALLOC, CALLER) ? NULL : __libc_realloc(old, bytes);
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes) {
    return strikes(MALLOC, CALLER) ? NULL : __libc_memalign(alignment, bytes);
}

EXPORT char *strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = strikes(MALLOC, CALLER) ? NULL : __libc_malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

WRAP(MMAP, MAP_FAILED, void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset),
     (at, n, prot, flags, fd, offset))
WRAP(MMAP, MAP_FAILED, void *, mmap64, (void *at, size_t n, int prot, int flags, int fd, off_t offset),
     (at, n, prot, flags, fd, offset))
WRAP(MMAP, -1, int, mprotect, (void *at, size_t n, int prot), (at, n, prot))
WRAP(MADVISE, -1, int, mincore, (void *at, size_t n, unsigned char *pages), (at, n, pages))
WRAP(MLOCK, -1, int, mlock, (const void *at, size_t n), (at, n))
WRAP(MLOCK, -1, int, mlock2, (const void *at, size_t n, unsigned flags), (at, n, flags))

WRAP(OPEN, NULL, FILE *, fopen64, (const char *path, const char *mode), (path, mode))
WRAP(OPEN, NULL, FILE *, fdopen, (int fd, const char *mode), (fd, mode))
WRAP(OPEN, NULL, DIR *, opendir, (const char *path), (path))
WRAP(OPEN, -1, int, mkostemp64, (char *path, int flags), (path, flags))
WRAP(OPEN, -1, int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(OPEN, -1, int, pipe2, (int ends[2], int flags), (ends, flags))

WRAP(STAT, -1, int, stat, (const char *path, struct stat *out), (path, out))
WRAP(STAT, -1, int, stat64, (const char *path, struct stat64 *out), (path, out))
WRAP(STAT, -1, int, fstat, (int fd, struct stat *out), (fd, out))
WRAP(STAT, -1, int, fstat64, (int fd, struct stat64 *out), (fd, out))
WRAP(STAT, -1, int, lstat64, (const char *path, struct stat64 *out), (path, out))
WRAP(STAT, -1, int, statfs64, (const char *path, struct statfs64 *out), (path, out))
WRAP(STAT, -1, int, fstatfs64, (int fd, struct statfs64 *out), (fd, out))
WRAP(STAT, -1, int, statx, (int at, const char *path, int flags, unsigned mask, struct statx *out),
     (at, path, flags, mask, out))
WRAP(STAT, -1, int, access, (const char *path, int mode), (path, mode))
WRAP(STAT, -1, ssize_t, readlink, (const char *path, char *to, size_t n), (path, to, n))

WRAP(STAT, NULL, char *, realpath, (const char *path, char *to), (path, to))

WRAP(SYNC, -1, int, rename, (const char *from, const char *to), (from, to))
WRAP(SYNC, -1, int, sync_file_range, (int fd, off_t offset, off_t n, unsigned flags), (fd, offset, n, flags))

WRAP(THREAD, fail_error, int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context),
     (thread, attributes, run, context))
WRAP(FORK, -1, pid_t, fork, (void), ())

EXPORT int madvise(void *at, size_t n, int advice) {
    // WILLNEED is a wish: there are a thousand of them, and it makes no difference whether one is granted.
    if (advice != MADV_WILLNEED && strikes(MADVISE, CALLER)) {
        return -1;
    }
    NEXT(int, madvise, (void *, size_t, int))
    return next(at, n, advice);
}

EXPORT void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (strikes(MREMAP, CALLER)) {
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, old, old_bytes, bytes, (long)flags, to);
}

static bool takes_mode(int flags) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

#define WRAP_OPEN(name)                                                                                                \
    EXPORT int name(const char *path, int flags, ...) {                                                                \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = takes_mode(flags) ? va_arg(rest, mode_t) : 0;                                                    \
        va_end(rest);                                                                                                  \
        return strikes(OPEN, CALLER) ? -1 : (int)syscall(SYS_openat, (long)AT_FDCWD, path, (long)flags, (long)mode);   \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

// How the interposer, which `guanaco` contains, reaches the kernel.
EXPORT long syscall(long number, ...) {
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(rest, long);
    }
    va_end(rest);
    enum kind kind = number == SYS_mmap ? MMAP : number == SYS_madvise ? MADVISE : KINDS;
    if (kind != KINDS && strikes(kind, CALLER)) {
        return -1;
    }
    NEXT(long, syscall, (long, ...))
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
