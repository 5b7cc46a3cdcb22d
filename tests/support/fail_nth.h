// The preload's middle: which calls count, and which one fails. See fail_nth.c.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

enum kind {
    MALLOC,
    CALLOC,
    REALLOC,
    MMAP,
    MREMAP,
    OPEN,
    STAT,
    READ,
    STREAM,
    MADVISE,
    THREAD,
    MLOCK,
    URING_SETUP,
    URING_ENTER,
    URING_READ,
    SPACE,
    FORK,
    SYNC,
    KINDS,
};

// The error that the wanted call fails with; 0: it does less than it was asked for.
extern int fail_error;

// Counts a call, if `caller` lies in code whose calls count. True: this one is to fail, and errno is set. Any thread.
bool strikes(enum kind kind, const void *caller);

#define CALLER __builtin_return_address(0)

// Declares `next`, the function that would have been called without us.
#define NEXT(result, name, parameters)                                                                                 \
    static result(*next) parameters;                                                                                   \
    if (!next) {                                                                                                       \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                     \
    }

// A function that either fails or is called.
#define WRAP(kind, failed, result, name, parameters, arguments)                                                        \
    EXPORT result name parameters;                                                                                     \
    EXPORT result name parameters {                                                                                    \
        if (strikes(kind, CALLER)) {                                                                                   \
            return failed;                                                                                             \
        }                                                                                                              \
        NEXT(result, name, parameters)                                                                                 \
        return next arguments;                                                                                         \
    }
