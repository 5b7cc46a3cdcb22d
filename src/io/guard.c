#include "io/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// Never freed, since a handler may be looking at it; used again.
struct gn_guard {
    _Atomic uintptr_t begin, end; // both 0: not in use
    atomic_bool torn;
    struct gn_guard *next;
};

static _Atomic(struct gn_guard *) guards;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // of opening and closing; the handler takes none
static struct sigaction before;
static uintptr_t page_bytes;

static struct gn_guard *find(uintptr_t at) {
    for (struct gn_guard *guard = atomic_load(&guards); guard; guard = guard->next) {
        if (at >= atomic_load(&guard->begin) && at < atomic_load(&guard->end)) {
            return guard;
        }
    }
    return NULL;
}

// As if our handler were not there.
static void pass_on(int number, siginfo_t *info, void *context) {
    bool sent = info->si_code <= 0; // by a process: nothing brings it again
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else if (!sent || before.sa_handler == SIG_DFL) {
        sigaction(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        if (sent) {
            raise(number);
        }
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr / page_bytes * page_bytes;
    struct gn_guard *guard = info->si_code == BUS_ADRERR ? find(at) : NULL;
    if (guard) {
        atomic_store(&guard->torn, true);
    }
    if (!guard ||
        mmap((void *)at, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        pass_on(number, info, context);
    }
    errno = saved;
}

static bool is_ours(const struct sigaction *action) {
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_bus_error;
}

static bool install(void) {
    struct sigaction now, action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (sigaction(SIGBUS, NULL, &now)) {
        return false;
    }
    if (!is_ours(&now)) {
        before = now;
        return sigaction(SIGBUS, &action, NULL) == 0;
    }
    return true;
}

// Puts the handler before ours back, unless somebody has put another one in ours' place.
static void uninstall(void) {
    struct sigaction now;
    if (!sigaction(SIGBUS, NULL, &now) && is_ours(&now)) {
        sigaction(SIGBUS, &before, NULL);
    }
}

static bool any_in_use(void) {
    for (const struct gn_guard *guard = atomic_load(&guards); guard; guard = guard->next) {
        if (atomic_load(&guard->end)) {
            return true;
        }
    }
    return false;
}

static struct gn_guard *take_one(void) {
    for (struct gn_guard *guard = atomic_load(&guards); guard; guard = guard->next) {
        if (atomic_load(&guard->end) == 0) {
            return guard;
        }
    }
    struct gn_guard *guard = calloc(1, sizeof *guard);
    if (guard) {
        guard->next = atomic_load(&guards);
        atomic_store(&guards, guard);
    }
    return guard;
}

struct gn_guard *gn_guard_open(void *mapping, size_t bytes) {
    pthread_mutex_lock(&lock);
    struct gn_guard *guard = install() ? take_one() : NULL;
    if (guard) {
        atomic_store(&guard->torn, false);
        atomic_store(&guard->begin, (uintptr_t)mapping);
        // The last page goes beyond the end of the file.
        atomic_store(&guard->end, ((uintptr_t)mapping + bytes + page_bytes - 1) / page_bytes * page_bytes);
    }
    pthread_mutex_unlock(&lock);
    return guard;
}

void gn_guard_close(struct gn_guard *guard) {
    if (guard) {
        pthread_mutex_lock(&lock);
        atomic_store(&guard->end, 0);
        atomic_store(&guard->begin, 0);
        if (!any_in_use()) {
            uninstall();
        }
        pthread_mutex_unlock(&lock);
    }
}

bool gn_guard_torn(const struct gn_guard *guard) {
    return guard && atomic_load(&guard->torn);
}

void gn_guards_forked(void) {
    pthread_mutex_init(&lock, NULL);
}
