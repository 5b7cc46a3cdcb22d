#include "config/log.h"

#include "config/numbers.h"
#include "config/printable.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int log_level = GN_LOG_INFO;

void gn_log_set_level(enum gn_log_level level) {
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void gn_log(enum gn_log_level level, const char *format, ...) {
    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed)) {
        return;
    }
    static const char *const prefix[] = {"error: ", "warning: ", "", ""};
    char line[GN_LOG_LINE];
    va_list args;
    va_start(args, format);
    gn_vformat(line, sizeof line, format, args);
    va_end(args);
    char shown[4 * sizeof line]; // what a file says is in it, maybe: a byte becomes "\x1b"
    fprintf(stderr, "guanaco: %s%s\n", prefix[level], gn_printable(line, shown, sizeof shown));
}
