#include "config/lock.h"

#include "config/knobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static int lock(void *at, size_t bytes, bool on_fault) {
#ifdef MLOCK_ONFAULT
    if (on_fault) {
        if (mlock2(at, bytes, MLOCK_ONFAULT) == 0) {
            return 0;
        }
        if (errno != ENOSYS) {
            return -errno;
        }
    }
#endif
    (void)on_fault;
    return mlock(at, bytes) ? -errno : 0;
}

int gn_locks_add(struct gn_locks *locks, void *at, size_t bytes, bool on_fault) {
    struct gn_locked *grown = realloc(locks->items, (locks->n + 1) * sizeof *grown);
    if (!grown) {
        return -ENOMEM;
    }
    locks->items = grown;
    int failed = lock(at, bytes, on_fault);
    if (!failed) {
        locks->items[locks->n++] = (struct gn_locked){at, bytes};
        locks->bytes += bytes;
    }
    return failed;
}

static void unlock(const struct gn_locked *locked) {
    (void)munlock(locked->at, locked->bytes); // fails only where nothing is mapped any more
}

void gn_locks_remove(struct gn_locks *locks, void *at) {
    for (size_t i = 0; i < locks->n; i++) {
        if (locks->items[i].at == at) {
            unlock(&locks->items[i]);
            locks->bytes -= locks->items[i].bytes;
            locks->items[i] = locks->items[--locks->n];
            return;
        }
    }
}

void gn_locks_drop(struct gn_locks *locks) {
    for (size_t i = 0; i < locks->n; i++) {
        unlock(&locks->items[i]);
    }
    free(locks->items);
    *locks = (struct gn_locks){0};
}

void gn_lock_explain(const char *what, uint64_t bytes, int error, char *why, size_t why_size) {
    struct rlimit limit = {0};
    char want[32], have[32] = "not limited";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        gn_format_bytes(limit.rlim_cur, have);
    }
    snprintf(why, why_size,
             "cannot lock %s (%s: %s): nothing is locked. RLIMIT_MEMLOCK is %s; raise it with memlock in "
             "/etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, or --ulimit memlock=-1 for a "
             "container",
             what, gn_format_bytes(bytes, want), strerror(-error), have);
}
