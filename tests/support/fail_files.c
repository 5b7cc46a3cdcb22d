// Reads and writes of files that fail, or bring less than was asked for.
#undef _FILE_OFFSET_BITS // would rename open to open64 and so on; the same types on every 64-bit system

#include "fail_nth.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef fwrite_unlocked // a macro in some C libraries

// ------------------------------------------------------------------------------------------------ reads

// What would have come for the rest is scribbled over: whoever uses it is found out.
static ssize_t shorten(void *to, ssize_t got) {
    ssize_t less = got > 0 ? got - got / 2 : got;
    memset((char *)to + (got > 0 ? less : 0), 0xA5, got > 0 ? (size_t)(got - less) : 0);
    return less;
}

#define WRAP_READ(name, parameters, arguments)                                                                         \
    EXPORT ssize_t name parameters {                                                                                   \
        bool struck = strikes(READ, CALLER);                                                                           \
        if (struck && fail_error) {                                                                                    \
            return -1;                                                                                                 \
        }                                                                                                              \
        NEXT(ssize_t, name, parameters)                                                                                \
        ssize_t got = next arguments;                                                                                  \
        return struck ? shorten(to, got) : got;                                                                        \
    }
WRAP_READ(read, (int fd, void *to, size_t n), (fd, to, n))
WRAP_READ(pread, (int fd, void *to, size_t n, off_t offset), (fd, to, n, offset))
WRAP_READ(pread64, (int fd, void *to, size_t n, off_t offset), (fd, to, n, offset))

// Puts another file in the place of a stream's: what the stream does next, it does there.
static void divert(FILE *stream, const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd >= 0 && fileno(stream) >= 0) {
        dup3(fd, fileno(stream), O_CLOEXEC);
        close(fd);
    }
}

// Address 0 of our own memory: reading it gives EIO.
static const char unreadable[] = "/proc/self/mem";

// Whether the next read takes something from the file, and not from the stream's buffer.
static bool is_drained(const FILE *stream) {
    return stream->_IO_read_ptr == stream->_IO_read_end;
}

#define WRAP_STREAM(result, name, parameters, arguments)                                                               \
    EXPORT result name parameters;                                                                                     \
    EXPORT result name parameters {                                                                                    \
        if (is_drained(stream) && strikes(STREAM, CALLER)) {                                                           \
            divert(stream, unreadable, O_RDONLY);                                                                      \
        }                                                                                                              \
        NEXT(result, name, parameters)                                                                                 \
        return next arguments;                                                                                         \
    }
WRAP_STREAM(char *, fgets, (char *to, int n, FILE *stream), (to, n, stream))
WRAP_STREAM(size_t, fread, (void *to, size_t bytes, size_t n, FILE *stream), (to, bytes, n, stream))
WRAP_STREAM(ssize_t, getdelim, (char **line, size_t *n, int end, FILE *stream), (line, n, end, stream))
WRAP_STREAM(ssize_t, __getdelim, (char **line, size_t *n, int end, FILE *stream), (line, n, end, stream))

EXPORT int __isoc99_fscanf(FILE *stream, const char *format, ...);
EXPORT int __isoc99_fscanf(FILE *stream, const char *format, ...) {
    if (is_drained(stream) && strikes(STREAM, CALLER)) {
        divert(stream, unreadable, O_RDONLY);
    }
    va_list rest;
    va_start(rest, format);
    int n = vfscanf(stream, format, rest);
    va_end(rest);
    return n;
}

// ------------------------------------------------------------------------------------------------ out of space

static atomic_bool is_full;

static bool is_regular(int fd) {
    struct stat64 status;
    return syscall(SYS_fstat, (long)fd, &status) == 0 && S_ISREG(status.st_mode);
}

// Whether a write to this file finds no room.
static bool no_room(int fd, const void *caller) {
    int saved_errno = errno;
    bool regular = is_regular(fd);
    errno = saved_errno;
    if (!regular) {
        return false;
    }
    if (strikes(SPACE, caller)) {
        atomic_store(&is_full, true);
    }
    if (atomic_load(&is_full)) {
        errno = fail_error;
        return true;
    }
    return false;
}

// The error shows when the buffer is written, as it does on a full disk.
static void flushes(FILE *stream, const void *caller) {
    if (fileno(stream) > 2 && no_room(fileno(stream), caller)) {
        divert(stream, "/dev/full", O_WRONLY);
    }
}

// What only adds to a buffer takes no room.
static void puts_more(FILE *stream, const void *caller) {
    bool adds = stream->_IO_write_ptr > stream->_IO_write_base && stream->_IO_write_ptr < stream->_IO_write_end;
    if (!adds) {
        flushes(stream, caller);
    }
}

#define WRAP_WRITE(failed, result, name, parameters, arguments)                                                        \
    EXPORT result name parameters;                                                                                     \
    EXPORT result name parameters {                                                                                    \
        if (no_room(fd, CALLER)) {                                                                                     \
            return failed;                                                                                             \
        }                                                                                                              \
        NEXT(result, name, parameters)                                                                                 \
        return next arguments;                                                                                         \
    }
WRAP_WRITE(-1, ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
WRAP_WRITE(-1, ssize_t, pwrite64, (int fd, const void *from, size_t n, off_t offset), (fd, from, n, offset))
WRAP_WRITE(fail_error, int, posix_fallocate64, (int fd, off_t offset, off_t n), (fd, offset, n))
WRAP_WRITE(-1, int, ftruncate64, (int fd, off_t n), (fd, n))

// A full disk can still be waited for.
#define WRAP_SYNC(name)                                                                                                \
    EXPORT int name(int fd) {                                                                                          \
        if (strikes(SYNC, CALLER)) {                                                                                   \
            return -1;                                                                                                 \
        }                                                                                                              \
        NEXT(int, name, (int))                                                                                         \
        return atomic_load(&is_full) && !is_regular(fd) ? 0 : next(fd);                                                \
    }
WRAP_SYNC(fsync)
WRAP_SYNC(fdatasync)

#define WRAP_PUT(way, result, name, parameters, arguments)                                                             \
    EXPORT result name parameters;                                                                                     \
    EXPORT result name parameters {                                                                                    \
        way(stream, CALLER);                                                                                           \
        NEXT(result, name, parameters)                                                                                 \
        return next arguments;                                                                                         \
    }
WRAP_PUT(puts_more, size_t, fwrite, (const void *from, size_t bytes, size_t n, FILE *stream), (from, bytes, n, stream))
WRAP_PUT(puts_more, size_t, fwrite_unlocked, (const void *from, size_t bytes, size_t n, FILE *stream),
         (from, bytes, n, stream))
WRAP_PUT(puts_more, int, fputs, (const char *text, FILE *stream), (text, stream))
WRAP_PUT(puts_more, int, fputc, (int letter, FILE *stream), (letter, stream))
WRAP_PUT(flushes, int, fclose, (FILE * stream), (stream))

EXPORT int fflush(FILE *stream) {
    if (stream) {
        flushes(stream, CALLER);
    }
    NEXT(int, fflush, (FILE *))
    return next(stream);
}

EXPORT int fprintf(FILE *stream, const char *format, ...) {
    puts_more(stream, CALLER);
    va_list rest;
    va_start(rest, format);
    int n = vfprintf(stream, format, rest);
    va_end(rest);
    return n;
}
