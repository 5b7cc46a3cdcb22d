#include "backend/backend.h"
#include "config/log.h"
#include "config/numbers.h"
#include "stats/stats.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[1024];

void gn_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&lock);
    gn_vformat(last, sizeof last, format, args);
    gn_error("%s", last);
    pthread_mutex_unlock(&lock);
    va_end(args);
    gn_count(failures, 1);
}

void gn_failure_forked(void) {
    pthread_mutex_init(&lock, NULL);
}

// A copy for the thread that asks: another may fail meanwhile.
const char *gn_last_failure(void) {
    static _Thread_local char copy[sizeof last];
    pthread_mutex_lock(&lock);
    memcpy(copy, last, sizeof copy);
    pthread_mutex_unlock(&lock);
    return copy;
}
