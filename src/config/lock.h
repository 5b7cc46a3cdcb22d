// Memory that the kernel may not page out. A set of locked ranges is kept, so that all of them can be let go together:
// a lock that fails leaves nothing locked.
//
// How much a process may lock is limited (RLIMIT_MEMLOCK): often to 64 KiB or 8 MiB, unless it has CAP_IPC_LOCK.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gn_locks {
    struct gn_locked {
        void *at;
        size_t bytes;
    } * items; // [n]
    size_t n;
    uint64_t bytes; // of them all
};

// Locks a range and notes it. `on_fault`: pages are locked as they are touched, none is brought in now; the limit
// counts them all at once. Returns 0, or a negative errno: -ENOMEM or -EPERM when the limit is too low. Others stay
// locked.
int gn_locks_add(struct gn_locks *locks, void *at, size_t bytes, bool on_fault);
// Unlocks what was noted, or all that is noted. The memory may have been unmapped since.
void gn_locks_remove(struct gn_locks *locks, void *at);
void gn_locks_drop(struct gn_locks *locks);

// Writes the line for a lock that failed: what was wanted, what the limit is, how it is raised.
void gn_lock_explain(const char *what, uint64_t bytes, int error, char *why, size_t why_size);
